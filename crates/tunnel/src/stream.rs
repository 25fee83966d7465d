//! A task's hold on one stream of a session.
//!
//! Owns the duty to leave nothing behind: a stream that is dropped before both of its directions
//! have ended is abandoned towards the peer. Reading and writing in bulk is `connection`'s affair;
//! here are the few bytes of prefaces.

use std::future::poll_fn;
use std::task::{Context, Poll};

use tabane_base::Duration;
use tabane_core::{ReadState, StreamId};

use crate::assignment::Assignment;
use crate::engine::{Engine, SessionId, Visit};
use crate::label::Label;
use crate::request::{MAX_REQUEST, Request, RequestError, Status};

/// Why a stream is abandoned, told to the peer for its log. Any number ends it all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Abandon {
    /// The task that served the stream has ended.
    Dropped = 0,
    /// The TCP connection behind it was reset.
    Reset = 1,
}

/// The stream or its session is no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamEnd {
    /// The peer gave it up.
    Reset,
    /// The peer finished it.
    Finished,
    /// The session ended.
    SessionLost,
}

pub(crate) struct Stream {
    engine: Engine,
    session: SessionId,
    id: StreamId,
    abandon: Abandon,
    /// How it is treated, where that is said.
    pub(crate) label: Option<Label>,
    /// Our side has been finished, or stopped by the peer and reset.
    pub(crate) is_written: bool,
    /// The peer's side has been read to its end.
    pub(crate) is_read: bool,
}

impl Stream {
    /// Takes hold of stream `id`, which exists.
    pub(crate) fn new(engine: Engine, session: SessionId, id: StreamId) -> Self {
        engine.visit(session, |visit| visit.adopt(id));
        Self {
            engine,
            session,
            id,
            abandon: Abandon::Dropped,
            label: None,
            is_written: false,
            is_read: false,
        }
    }

    /// At a relay: opens one more stream of the session, on behalf of this one, whose class it
    /// begins in. `None` where there are as many as the client takes, or the session has ended.
    pub(crate) fn open_beside(&self) -> Option<Self> {
        let id = self.visit(|visit| visit.session.open_stream_for(visit.now, self.id))?;
        Some(Self::new(self.engine.clone(), self.session, id.ok()?))
    }

    pub(crate) fn session(&self) -> SessionId {
        self.session
    }

    /// For how long nothing has come from the peer; `None` once the session has ended.
    pub(crate) fn silent_for(&self) -> Option<Duration> {
        self.visit(|visit| visit.session.snapshot(visit.now).silent_for)
    }

    pub(crate) fn id(&self) -> StreamId {
        self.id
    }

    /// Works with the stream's session; `None` once that has ended.
    pub(crate) fn visit<R>(&self, f: impl FnOnce(&mut Visit<'_>) -> R) -> Option<R> {
        self.engine.visit(self.session, f)
    }

    /// Tells the peer this reason when the stream is dropped unfinished.
    pub(crate) fn abandon_as(&mut self, abandon: Abandon) {
        self.abandon = abandon;
    }

    /// Ends our side.
    pub(crate) fn finish(&mut self) {
        let id = self.id;
        self.is_written = true;
        self.visit(|visit| {
            // Only a peer that stopped us makes this fail, and then there is nothing to finish.
            let _ = visit.session.finish(visit.now, id);
            visit.touch();
        });
    }

    /// Abandons our side behind what was written.
    pub(crate) fn reset_behind(&mut self) {
        if self.is_written {
            return;
        }
        let (id, code) = (self.id, self.abandon as u64);
        self.is_written = true;
        self.visit(|visit| {
            visit.session.reset_behind(visit.now, id, code);
            visit.touch();
        });
    }

    /// Reads no more of the peer's side.
    pub(crate) fn stop(&mut self) {
        let (id, code) = (self.id, self.abandon as u64);
        self.is_read = true;
        self.visit(|visit| {
            visit.session.stop(visit.now, id, code);
            visit.touch();
        });
    }

    /// Ends both sides, as far as they are not over.
    pub(crate) fn end(&mut self) {
        if !self.is_written {
            self.finish();
        }
        if !self.is_read {
            self.stop();
        }
    }

    /// Writes all of `data`, which should be small: it waits in memory of the caller.
    pub(crate) async fn write_all(&self, data: &[u8]) -> Result<(), StreamEnd> {
        let mut rest = data;
        poll_fn(|cx| self.poll_write_all(cx, &mut rest)).await
    }

    fn poll_write_all(&self, cx: &Context<'_>, rest: &mut &[u8]) -> Poll<Result<(), StreamEnd>> {
        let id = self.id;
        let written = self.visit(|visit| {
            let written = visit.session.write(visit.now, id, rest);
            visit.touch();
            visit.park_writer(id, cx);
            written
        });
        match written {
            None => Poll::Ready(Err(StreamEnd::SessionLost)),
            Some(Err(_)) => Poll::Ready(Err(StreamEnd::Reset)),
            Some(Ok(n)) => {
                *rest = &rest[n..];
                if rest.is_empty() {
                    Poll::Ready(Ok(()))
                } else {
                    Poll::Pending
                }
            }
        }
    }

    /// Reads the request at the beginning of the stream, and no byte beyond it.
    pub(crate) async fn read_request(
        &mut self,
    ) -> Result<Result<Request, RequestError>, StreamEnd> {
        self.read_preface(MAX_REQUEST, Request::parse).await
    }

    /// Reads what `parse` finds at the beginning of the stream, at most so many bytes, and no byte
    /// beyond it.
    pub(crate) async fn read_preface<T>(
        &mut self,
        most: usize,
        parse: impl Fn(&[u8]) -> Result<Option<(T, usize)>, RequestError>,
    ) -> Result<Result<T, RequestError>, StreamEnd> {
        let mut bytes = Vec::new();
        poll_fn(|cx| self.poll_preface(cx, &mut bytes, most, &parse)).await
    }

    fn poll_preface<T>(
        &mut self,
        cx: &Context<'_>,
        bytes: &mut Vec<u8>,
        most: usize,
        parse: impl Fn(&[u8]) -> Result<Option<(T, usize)>, RequestError>,
    ) -> Poll<Result<Result<T, RequestError>, StreamEnd>> {
        loop {
            let before = bytes.len();
            match self.poll_peek(cx, |data| {
                let room = most - bytes.len();
                bytes.extend_from_slice(&data[..data.len().min(room)]);
                // What belongs to the preface is known once it has been parsed.
                match parse(bytes) {
                    Ok(Some((preface, used))) => (used - before, Some(Ok(preface))),
                    Ok(None) => (bytes.len() - before, None),
                    Err(error) => (0, Some(Err(error))),
                }
            }) {
                Poll::Ready(Ok(Some(preface))) => return Poll::Ready(Ok(preface)),
                // Longer than any preface: parsing must have decided before.
                Poll::Ready(Ok(None)) => {}
                Poll::Ready(Err(end)) => return Poll::Ready(Err(end)),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Reads the relay's first byte.
    pub(crate) fn poll_status(&mut self, cx: &Context<'_>) -> Poll<Result<Status, StreamEnd>> {
        let read = self.poll_byte(cx);
        read.map_ok(|byte| Status::parse(byte).unwrap_or(Status::Malformed))
    }

    /// Reads one byte.
    pub(crate) fn poll_byte(&mut self, cx: &Context<'_>) -> Poll<Result<u8, StreamEnd>> {
        self.poll_peek(cx, |data| (1, data[0]))
    }

    /// Writes what of `data` there is room for, and gives how much that was.
    pub(crate) fn write_some(&self, data: &[u8]) -> usize {
        let id = self.id;
        let written = self.visit(|visit| {
            let written = visit.session.write(visit.now, id, data);
            visit.touch();
            written.unwrap_or(0)
        });
        written.unwrap_or(0)
    }

    /// Reads the addresses that the relay gives, which follow its first byte.
    pub(crate) async fn read_assignment(&mut self) -> Result<Assignment, StreamEnd> {
        let mut bytes = Vec::new();
        loop {
            poll_fn(|cx| {
                self.poll_peek(cx, |data| {
                    bytes.extend_from_slice(data);
                    (data.len(), ())
                })
            })
            .await?;
            if let Some((assignment, _)) = Assignment::parse(&bytes) {
                return Ok(assignment);
            }
        }
    }

    /// Reads up to the end of the stream; more than `most` bytes end it like a reset.
    pub(crate) async fn read_all(&mut self, most: usize) -> Result<Vec<u8>, StreamEnd> {
        let mut bytes = Vec::new();
        loop {
            let read = poll_fn(|cx| {
                self.poll_peek(cx, |data| {
                    bytes.extend_from_slice(data);
                    (data.len(), ())
                })
            });
            match read.await {
                Ok(()) if bytes.len() > most => return Err(StreamEnd::Reset),
                Ok(()) => {}
                Err(StreamEnd::Finished) => return Ok(bytes),
                Err(end) => return Err(end),
            }
        }
    }

    /// Waits until the peer abandons its side, whatever it has written before.
    pub(crate) fn poll_reset(&self, cx: &Context<'_>) -> Poll<StreamEnd> {
        let id = self.id;
        let seen = self.visit(|visit| {
            visit.park_reader(id, cx);
            if visit.session.is_reset(id) {
                return Poll::Ready(StreamEnd::Reset);
            }
            match visit.session.peek(id) {
                Ok(ReadState::Data(_) | ReadState::Empty | ReadState::Finished) => Poll::Pending,
                Ok(ReadState::Reset(_)) | Err(_) => Poll::Ready(StreamEnd::Reset),
            }
        });
        seen.unwrap_or(Poll::Ready(StreamEnd::SessionLost))
    }

    /// Waits until the peer's side ends; data that comes before is thrown away.
    pub(crate) fn poll_end(&mut self, cx: &Context<'_>) -> Poll<StreamEnd> {
        loop {
            match self.poll_peek(cx, |data| (data.len(), ())) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(end)) => return Poll::Ready(end),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Shows `f` the next bytes, at least one; it tells how many it used.
    fn poll_peek<R>(
        &mut self,
        cx: &Context<'_>,
        f: impl FnOnce(&[u8]) -> (usize, R),
    ) -> Poll<Result<R, StreamEnd>> {
        let id = self.id;
        let seen = self.visit(|visit| {
            let (used, result) = match visit.session.peek(id) {
                Ok(ReadState::Data(data)) => f(data),
                Ok(ReadState::Empty) => {
                    visit.park_reader(id, cx);
                    return Poll::Pending;
                }
                Ok(ReadState::Finished) => return Poll::Ready(Err(StreamEnd::Finished)),
                Ok(ReadState::Reset(_)) | Err(_) => return Poll::Ready(Err(StreamEnd::Reset)),
            };
            visit.session.consume(visit.now, id, used);
            visit.touch();
            Poll::Ready(Ok(result))
        });
        let seen = seen.unwrap_or(Poll::Ready(Err(StreamEnd::SessionLost)));
        if matches!(seen, Poll::Ready(Err(_))) {
            self.is_read = true;
        }
        seen
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let (id, code) = (self.id, self.abandon as u64);
        let (is_written, is_read) = (self.is_written, self.is_read);
        self.visit(|visit| {
            if !is_written {
                visit.session.reset(visit.now, id, code);
            }
            if !is_read {
                visit.session.stop(visit.now, id, code);
            }
            if !(is_written && is_read) {
                visit.touch();
            }
            // Core forgets a stream at the first look after both of its sides are over.
            let _ = visit.session.peek(id);
            visit.abandon(id);
        });
    }
}
