//! One TCP connection carried on one stream, from beginning to end.
//!
//! Owns the mapping of TCP's life to a stream's: data, half-closes and resets, each in its own
//! direction. The kernel copies bytes from the socket into core's buffer and from core's buffer
//! into the socket; nothing copies them in between. Backpressure is the buffers being full: what
//! core does not take stays in the socket, what the socket does not take stays in core.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use socket2::SockRef;
use tabane_base::{Bytes, Duration};
use tabane_core::{ReadState, StreamError, StreamId};
use tabane_linux::{
    abortive::AbortiveStream,
    read_ahead::{Onward, ReadAhead},
    tcp_info::Reading,
};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

use crate::engine::Visit;
use crate::relay::user::{Direction, Meter};
use crate::request::Status;
use crate::stream::{Abandon, Stream, StreamEnd};

/// Steps in each direction before other tasks have their turn: at most 1 MB, some 0.2 ms of
/// copying, so that one connection does not starve the loop that sends for it.
const STEPS: usize = 4;

/// Bytes a socket takes that it cannot send yet: enough to go on with until we are woken. The
/// kernel's own megabytes would come over the links for readers who never read.
const LEAST_UNSENT: usize = 32 * 1024;
/// The same of readers who keep pace, as a part of the window they have come to.
const UNSENT_PART: usize = 8;

/// Bytes read from the socket when core has hardly any room. They wait in the connection, which
/// makes core tell when it has room again; small, because every connection may hold so many.
const MIN_READ: usize = 4_096;
/// Bytes read by one call at the most: other tasks wait meanwhile.
const MAX_READ: usize = 256 * 1024;

/// What became of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carried {
    /// Bytes from the local socket into the tunnel.
    pub sent: Bytes,
    /// Bytes from the tunnel to the local socket.
    pub received: Bytes,
    /// How it ended.
    pub ending: Ending,
}

/// How a carried connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Both directions were closed in order.
    Finished,
    /// The local socket was reset, or failed.
    ResetHere,
    /// The connection at the other end was reset, or failed.
    ResetThere,
    /// The user's volume at the relay is used up, or nobody is there for who has come. The local
    /// socket was reset.
    Refused(Status),
    /// The session ended. The local socket was reset.
    SessionLost,
}

/// A connection being carried.
pub(crate) struct Connection {
    stream: Stream,
    tcp: AbortiveStream,
    read_ahead: ReadAhead,
    reading: Reading,
    /// What the socket takes beyond what it can send.
    unsent: usize,
    /// Since the socket has said all: its failure, which reading tells no more.
    broken: Option<Pin<Box<dyn Future<Output = ()>>>>,
    /// The peer has stopped reading before the socket had said all.
    is_stopped: bool,
    /// Read from the socket and not taken by core; empty almost always.
    leftover: Vec<u8>,
    /// At a relay: how much its user may pass on.
    meter: Meter,
    /// The peer has not said yet whether it has anybody for the socket; it may until then.
    word_until: Option<Pin<Box<Sleep>>>,
    sent: u64,
    received: u64,
}

/// What one step in one direction came to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Moved,
    Waiting,
    Done,
}

impl Connection {
    pub(crate) fn new(stream: Stream, tcp: AbortiveStream) -> Self {
        // Whoever wrote has decided what belongs together; waiting here only adds delay.
        if let Err(error) = tcp.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY");
        }
        limit_unsent(&tcp, LEAST_UNSENT);
        Self {
            stream,
            read_ahead: ReadAhead::of(&tcp),
            reading: Reading::of(&*tcp),
            tcp,
            unsent: LEAST_UNSENT,
            broken: None,
            is_stopped: false,
            leftover: Vec::new(),
            meter: Meter::default(),
            word_until: None,
            sent: 0,
            received: 0,
        }
    }

    /// Passes on no more than `meter` allows, and tells it what passed.
    pub(crate) fn metered(self, meter: Meter) -> Self {
        Self { meter, ..self }
    }

    /// The first byte that the peer sends is its word on whether anybody is there, which it may
    /// take so long for. What comes from the socket does not wait for it.
    pub(crate) fn awaiting_word(self, wait: Duration) -> Self {
        Self {
            word_until: Some(Box::pin(sleep(wait))),
            ..self
        }
    }

    /// Carries the connection until it has ended in both directions, or failed in one.
    pub(crate) async fn carry(mut self) -> Carried {
        let ending = match poll_fn(|cx| self.poll(cx)).await {
            Ok(()) => Ending::Finished,
            Err(ending) => ending,
        };
        self.conclude(ending)
    }

    fn conclude(mut self, ending: Ending) -> Carried {
        let carried = Carried {
            sent: Bytes::new(self.sent),
            received: Bytes::new(self.received),
            ending,
        };
        match ending {
            Ending::Finished => self.tcp.finish(),
            Ending::ResetHere => {
                self.stream.abandon_as(Abandon::Reset);
                self.stream.reset_behind();
            }
            Ending::ResetThere | Ending::Refused(_) | Ending::SessionLost => {
                self.stream.abandon_as(Abandon::Reset)
            }
        }
        carried
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Ending>> {
        for _ in 0..STEPS {
            if self.meter.is_used_up() {
                return Poll::Ready(Err(Ending::Refused(Status::VolumeUsedUp)));
            }
            let up = self.step_up(cx)?;
            let down = self.step_down(cx)?;
            if up == Step::Done && down == Step::Done {
                // What it says is delivered first, as data that overtook a reset.
                return Poll::Ready(match self.is_stopped {
                    true => Err(Ending::ResetThere),
                    false => Ok(()),
                });
            }
            if self.is_broken(cx) {
                return Poll::Ready(Err(Ending::ResetHere));
            }
            if up != Step::Moved && down != Step::Moved {
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// One read from the socket into the stream.
    fn step_up(&mut self, cx: &mut Context<'_>) -> Result<Step, Ending> {
        if self.stream.is_written {
            return Ok(Step::Done);
        }
        let Poll::Ready(allowed) = self.meter.poll(Direction::Down, cx) else {
            return Ok(Step::Waiting);
        };
        let id = self.stream.id();
        let Self {
            stream,
            tcp,
            read_ahead,
            leftover,
            sent,
            ..
        } = self;
        let outcome = stream.visit(|visit| -> Result<Read, Ending> {
            // Parked in any case: a stop may come while the socket is what we wait for.
            visit.park_writer(id, cx);
            if visit.is_stopped(id) {
                return Ok(Read::Stopped);
            }
            if !leftover.is_empty() {
                return write_rest(visit, id, leftover);
            }
            let onward = Onward {
                limit: visit.session.stream_limit(id),
                round_trip: visit.session.farthest_round_trip(),
                passed: *sent,
            };
            read_ahead.follow(&**tcp, visit.now, onward);
            let read = read_into(visit, id, tcp, leftover, allowed)?;
            if matches!(read, Read::Bytes(_)) {
                visit.touch();
            }
            Ok(read)
        });
        match outcome.ok_or(Ending::SessionLost)?? {
            Read::Bytes(n) => {
                self.sent += n as u64;
                if let Some(label) = &self.stream.label {
                    label.on_sent(n);
                }
                self.meter.spend(Direction::Down, n);
                Ok(Step::Moved)
            }
            Read::Nothing => match self.tcp.poll_read_ready(cx) {
                Poll::Ready(Ok(())) => Ok(Step::Moved),
                Poll::Ready(Err(_)) => Err(Ending::ResetHere),
                Poll::Pending => Ok(Step::Waiting),
            },
            Read::NoRoom => Ok(Step::Waiting),
            Read::End => {
                self.stream.finish();
                self.broken = Some(Box::pin(self.tcp.broken()));
                Ok(Step::Done)
            }
            Read::Stopped => {
                self.give_up_writing();
                Ok(Step::Done)
            }
        }
    }

    /// One write from the stream to the socket.
    fn step_down(&mut self, cx: &mut Context<'_>) -> Result<Step, Ending> {
        if self.stream.is_read {
            return Ok(Step::Done);
        }
        if !self.has_word(cx)? {
            return Ok(Step::Waiting);
        }
        let Poll::Ready(allowed) = self.meter.poll(Direction::Up, cx) else {
            return Ok(Step::Waiting);
        };
        let id = self.stream.id();
        let Self {
            stream,
            tcp,
            reading,
            unsent,
            ..
        } = self;
        let outcome = stream.visit(|visit| -> Result<Written, Ending> {
            let wanted = visit.session.stream_window(id) / UNSENT_PART;
            if wanted > *unsent {
                *unsent = wanted;
                limit_unsent(tcp, wanted);
            }
            // The kernel takes a large write whole, whatever it has unsent already.
            let written = write_out(visit, id, tcp, allowed.min(*unsent))?;
            match written {
                Written::Bytes(n) => {
                    if visit.session.reader_is_unknown(id) && reading.is_shown(&**tcp) {
                        visit.session.on_reader_known(id);
                    }
                    visit.session.consume(visit.now, id, n);
                    visit.touch();
                }
                Written::Empty => visit.park_reader(id, cx),
                Written::Blocked | Written::End => {}
            }
            Ok(written)
        });
        match outcome.ok_or(Ending::SessionLost)?? {
            Written::Bytes(n) => {
                self.received += n as u64;
                if let Some(label) = &self.stream.label {
                    label.on_received(n);
                }
                self.meter.spend(Direction::Up, n);
                Ok(Step::Moved)
            }
            Written::Empty => Ok(Step::Waiting),
            Written::Blocked => match self.tcp.poll_write_ready(cx) {
                Poll::Ready(Ok(())) => Ok(Step::Moved),
                Poll::Ready(Err(_)) => Err(Ending::ResetHere),
                Poll::Pending => Ok(Step::Waiting),
            },
            Written::End => {
                self.stream.is_read = true;
                // A program that has gone already makes it fail, which its own direction shows.
                let _ = self.tcp.end_writing();
                Ok(Step::Done)
            }
        }
    }

    /// Whether the peer has said that somebody is there.
    fn has_word(&mut self, cx: &mut Context<'_>) -> Result<bool, Ending> {
        let Some(until) = &mut self.word_until else {
            return Ok(true);
        };
        match self.stream.poll_status(cx) {
            Poll::Ready(Ok(Status::Open)) => {
                self.word_until = None;
                Ok(true)
            }
            Poll::Ready(Ok(status)) => Err(Ending::Refused(status)),
            Poll::Ready(Err(StreamEnd::SessionLost)) => Err(Ending::SessionLost),
            Poll::Ready(Err(StreamEnd::Reset | StreamEnd::Finished)) => Err(Ending::ResetThere),
            Poll::Pending if until.as_mut().poll(cx).is_ready() => {
                Err(Ending::Refused(Status::TimedOut))
            }
            Poll::Pending => Ok(false),
        }
    }

    /// Whether the socket failed after it had said all.
    fn is_broken(&mut self, cx: &mut Context<'_>) -> bool {
        let broken = self.broken.as_mut();
        broken.is_some_and(|broken| broken.as_mut().poll(cx).is_ready())
    }

    /// The peer reads no more. What it sends may still be worth delivering.
    fn give_up_writing(&mut self) {
        let id = self.stream.id();
        self.is_stopped = true;
        self.stream.is_written = true;
        self.stream.visit(|visit| {
            visit.session.reset(visit.now, id, Abandon::Reset as u64);
            visit.touch();
        });
    }
}

enum Read {
    Bytes(usize),
    Nothing,
    NoRoom,
    End,
    Stopped,
}

/// Hands core what it did not take of an earlier read.
fn write_rest(visit: &mut Visit<'_>, id: StreamId, leftover: &mut Vec<u8>) -> Result<Read, Ending> {
    match visit.session.write(visit.now, id, leftover) {
        Ok(0) => Ok(Read::NoRoom),
        Ok(n) => {
            leftover.drain(..n);
            visit.touch();
            Ok(Read::Bytes(0))
        }
        Err(error) => Err(stopped(&error)),
    }
}

/// One read of at most `most` bytes, straight to where core sends them from. Where core has hardly
/// any room, what it does not take is left over.
fn read_into(
    visit: &mut Visit<'_>,
    id: StreamId,
    tcp: &TcpStream,
    leftover: &mut Vec<u8>,
    most: usize,
) -> Result<Read, Ending> {
    if most == 0 {
        return Ok(Read::NoRoom);
    }
    let is_direct = visit.session.stream_capacity(id) >= MIN_READ;
    let room = match is_direct {
        true => visit.session.room(id, most.min(MAX_READ)),
        false => Ok(&mut visit.buffer[..MIN_READ.min(most)]),
    };
    let n = match tcp.try_read(room.map_err(|error| stopped(&error))?) {
        Ok(0) => return Ok(Read::End),
        Ok(n) => n,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Read::Nothing),
        Err(_) => return Err(Ending::ResetHere),
    };
    if is_direct {
        visit.session.filled(visit.now, id, n);
    } else {
        match visit.session.write(visit.now, id, &visit.buffer[..n]) {
            Ok(taken) => leftover.extend_from_slice(&visit.buffer[taken..n]),
            Err(error) => return Err(stopped(&error)),
        }
    }
    Ok(Read::Bytes(n))
}

enum Written {
    Bytes(usize),
    Empty,
    Blocked,
    End,
}

/// One write of at most `most` bytes, straight from where core has them.
fn write_out(
    visit: &mut Visit<'_>,
    id: StreamId,
    tcp: &TcpStream,
    most: usize,
) -> Result<Written, Ending> {
    let data = match visit.session.peek(id) {
        Ok(ReadState::Data(data)) => data,
        Ok(ReadState::Empty) => return Ok(Written::Empty),
        Ok(ReadState::Finished) => return Ok(Written::End),
        Ok(ReadState::Reset(_)) | Err(_) => return Err(Ending::ResetThere),
    };
    match tcp.try_write(&data[..data.len().min(most)]) {
        Ok(n) => Ok(Written::Bytes(n)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            visit.session.on_reader_blocked(id);
            // A reset does not wait for a reader.
            match visit.session.is_reset(id) {
                true => Err(Ending::ResetThere),
                false => Ok(Written::Blocked),
            }
        }
        Err(_) => Err(Ending::ResetHere),
    }
}

fn stopped(error: &StreamError) -> Ending {
    tracing::debug!(%error, "a stream does not take data");
    Ending::ResetThere
}

/// Has the kernel take no more from us than `most` bytes that it cannot send yet.
fn limit_unsent(tcp: &TcpStream, most: usize) {
    let most = u32::try_from(most).unwrap_or(u32::MAX);
    if let Err(error) = SockRef::from(tcp).set_tcp_notsent_lowat(most) {
        tracing::debug!(%error, "TCP_NOTSENT_LOWAT");
    }
}
