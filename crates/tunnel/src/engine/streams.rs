//! The engine's byte streams: connections that carry framed packets where UDP does not pass.
//!
//! Each has a task that moves bytes between the connection and two buffers, so that the loop has
//! work only with those that have news. What a connection does not take stays in its buffer, whose
//! room is what core may send there: a full one holds up no other. One that ends is reported once
//! and gone.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use crate::carrier::{BoxStream, Deframer, frame};
use tabane_base::Bytes;
use tabane_core::{FourTuple, SessionHandle, SocketId, Transmit};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::AbortHandle;

use super::volume::Volume;

/// What may wait for a connection here, beside what waits in the kernel: a burst of core's.
const OUTBOX: usize = 64 * 1024;
/// Beyond this even acknowledgements are dropped.
const MAX_OUTBOX: usize = 512 * 1024;
/// What may wait for the loop. A connection is read no further meanwhile.
const INBOX: usize = 256 * 1024;
/// Bytes of one read: four records of TLS.
const CHUNK: usize = 64 * 1024;
/// Reads in a row, so that others have their turn.
const MAX_READS: usize = 4;

#[derive(Default)]
pub(super) struct Streams {
    entries: BTreeMap<SocketId, Entry>,
    next_index: u32,
    bell: Rc<Bell>,
}

/// Where tasks ring for the loop, with what they have news of.
#[derive(Default)]
struct Bell {
    ringing: RefCell<Vec<SocketId>>,
    waker: RefCell<Option<Waker>>,
}

/// So many sessions of one connection are not looked through before it is asked for them.
const USERS_MIN: usize = 64;

struct Entry {
    link: String,
    remote: SocketAddr,
    line: Rc<Line>,
    deframer: Deframer,
    /// Sessions that packets have come for. Whose path it is, is among them, but for a client's
    /// that nobody has answered on: no burst fills it, and of its end the client is told.
    users: BTreeSet<SessionHandle>,
    /// At so many of them, who is gone is forgotten.
    users_most: usize,
    volume: Volume,
    task: AbortHandle,
}

/// What a task and the loop share.
struct Line {
    id: SocketId,
    bell: Rc<Bell>,
    outbox: RefCell<Outbox>,
    inbox: RefCell<Vec<u8>>,
    has_ended: Cell<bool>,
    is_ringing: Cell<bool>,
    /// The task's.
    waker: RefCell<Option<Waker>>,
}

/// Framed packets that wait.
#[derive(Default)]
struct Outbox {
    bytes: Vec<u8>,
    start: usize,
    /// The loop was told of less room than there is for a burst.
    was_full: bool,
}

/// What there is to do after a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct News {
    pub(super) has_ended: bool,
    /// It takes more again.
    pub(super) has_room: bool,
}

impl Streams {
    /// Carries packets over `stream` from here on, on what the monitor calls `link`.
    pub(super) fn attach(&mut self, link: &str, stream: BoxStream, remote: SocketAddr) -> SocketId {
        let id = SocketId::ordered(self.next_index);
        self.next_index += 1;
        let line = Rc::new(Line {
            id,
            bell: self.bell.clone(),
            outbox: RefCell::default(),
            inbox: RefCell::default(),
            has_ended: Cell::new(false),
            is_ringing: Cell::new(false),
            waker: RefCell::default(),
        });
        let task = tokio::task::spawn_local(pump(stream, line.clone()));
        let entry = Entry {
            link: link.to_owned(),
            remote,
            line,
            deframer: Deframer::default(),
            users: BTreeSet::new(),
            users_most: USERS_MIN,
            volume: Volume::default(),
            task: task.abort_handle(),
        };
        self.entries.insert(id, entry);
        id
    }

    /// Ends one; gives what it has carried, and over which link.
    pub(super) fn detach(&mut self, id: SocketId) -> Option<(String, Volume)> {
        let mut entry = self.entries.remove(&id)?;
        entry.task.abort();
        Some((std::mem::take(&mut entry.link), entry.volume))
    }

    /// Whom to wake.
    pub(super) fn set_waker(&self, waker: &Waker) {
        *self.bell.waker.borrow_mut() = Some(waker.clone());
    }

    /// Those that have news, each once.
    pub(super) fn take_ringing(&self) -> Vec<SocketId> {
        std::mem::take(&mut self.bell.ringing.borrow_mut())
    }

    /// What the news are; packets are handed to `take`.
    pub(super) fn attend(
        &mut self,
        id: SocketId,
        mut take: impl FnMut(FourTuple, &mut [u8]),
    ) -> News {
        let Some(entry) = self.entries.get_mut(&id) else {
            return News::default();
        };
        entry.line.is_ringing.set(false);
        entry.deframer.push(&entry.line.inbox.borrow());
        entry.line.inbox.borrow_mut().clear();
        // Read on, where the inbox was full.
        entry.line.wake();
        let tuple = FourTuple {
            socket: id,
            local_ip: None,
            remote: entry.remote,
        };
        let mut has_ended = entry.line.has_ended.get();
        loop {
            match entry.deframer.packet() {
                Ok(Some(packet)) => {
                    entry.volume.on_received(packet);
                    take(tuple, packet);
                }
                Ok(None) => break,
                Err(error) => {
                    tracing::debug!(link = entry.link, %error, "a connection is given up");
                    has_ended = true;
                    break;
                }
            }
        }
        let mut outbox = entry.line.outbox.borrow_mut();
        let has_room = outbox.was_full && outbox.waiting().len() <= OUTBOX / 2;
        outbox.was_full &= !has_room;
        News {
            has_ended,
            has_room,
        }
    }

    /// It has brought something for these. Sessions that begin and end by one connection for ever
    /// take no memory for ever.
    pub(super) fn note_users(
        &mut self,
        id: SocketId,
        sessions: &[SessionHandle],
        goes_by_it: impl Fn(SessionHandle) -> bool,
    ) {
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        entry.users.extend(sessions);
        if entry.users.len() >= entry.users_most {
            entry.users.retain(|session| goes_by_it(*session));
            entry.users_most = USERS_MIN.max(2 * entry.users.len());
        }
    }

    /// Those for whom one has brought something; who goes by it no more is forgotten.
    pub(super) fn users(
        &mut self,
        id: SocketId,
        goes_by_it: impl Fn(SessionHandle) -> bool,
    ) -> Vec<SessionHandle> {
        let Some(entry) = self.entries.get_mut(&id) else {
            return Vec::new();
        };
        entry.users.retain(|session| goes_by_it(*session));
        entry.users.iter().copied().collect()
    }

    /// Bytes that one takes at present.
    pub(super) fn room(&self, id: SocketId) -> Bytes {
        let Some(entry) = self.entries.get(&id) else {
            return Bytes::ZERO;
        };
        let mut outbox = entry.line.outbox.borrow_mut();
        let room = OUTBOX.saturating_sub(outbox.waiting().len());
        outbox.was_full |= room < OUTBOX / 2;
        Bytes::from(room)
    }

    pub(super) fn send(&mut self, transmit: &Transmit<'_>) {
        let Some(entry) = self.entries.get_mut(&transmit.tuple.socket) else {
            return;
        };
        let mut outbox = entry.line.outbox.borrow_mut();
        if outbox.waiting().len() > MAX_OUTBOX {
            return;
        }
        for packet in transmit.contents.chunks(transmit.segment_size.max(1)) {
            frame(packet, &mut outbox.bytes);
        }
        drop(outbox);
        entry
            .volume
            .on_sent(transmit.contents, transmit.segment_size);
        entry.line.wake();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn link(&self, id: SocketId) -> Option<&str> {
        self.entries.get(&id).map(|entry| entry.link.as_str())
    }

    pub(super) fn volumes(&self) -> impl Iterator<Item = (&String, &Volume)> {
        self.entries.values().map(|it| (&it.link, &it.volume))
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        for entry in self.entries.values() {
            entry.task.abort();
        }
    }
}

impl Outbox {
    fn waiting(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    fn on_taken(&mut self, n: usize) {
        self.start += n;
        if self.start == self.bytes.len() {
            self.bytes.clear();
            self.start = 0;
        } else if self.start >= OUTBOX {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
    }
}

impl Line {
    fn ring(&self) {
        if self.is_ringing.replace(true) {
            return;
        }
        self.bell.ringing.borrow_mut().push(self.id);
        if let Some(waker) = &*self.bell.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }
}

/// Moves bytes until the connection ends.
async fn pump(mut stream: BoxStream, line: Rc<Line>) {
    let mut chunk = vec![0; CHUNK];
    let ended = poll_fn(|cx| {
        let is_known = |waker: &Waker| waker.will_wake(cx.waker());
        if !line.waker.borrow().as_ref().is_some_and(is_known) {
            *line.waker.borrow_mut() = Some(cx.waker().clone());
        }
        let written = write(&mut stream, &line, cx);
        let read = read(&mut stream, &line, &mut chunk, cx);
        match (written, read) {
            (Err(error), _) | (_, Err(error)) => Poll::Ready(error),
            (Ok(()), Ok(())) => Poll::<io::Error>::Pending,
        }
    });
    let error = ended.await;
    tracing::debug!(%error, "a connection ended");
    line.has_ended.set(true);
    line.ring();
}

fn write(stream: &mut BoxStream, line: &Line, cx: &mut Context<'_>) -> io::Result<()> {
    let mut outbox = line.outbox.borrow_mut();
    while !outbox.waiting().is_empty() {
        match Pin::new(&mut *stream).poll_write(cx, outbox.waiting()) {
            Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
            Poll::Ready(result) => outbox.on_taken(result?),
            Poll::Pending => break,
        }
    }
    if outbox.was_full && outbox.waiting().len() <= OUTBOX / 2 {
        line.ring();
    }
    // What TLS has taken leaves, as far as the kernel lets it.
    match Pin::new(stream).poll_flush(cx) {
        Poll::Ready(result) => result,
        Poll::Pending => Ok(()),
    }
}

fn read(
    stream: &mut BoxStream,
    line: &Line,
    chunk: &mut [u8],
    cx: &mut Context<'_>,
) -> io::Result<()> {
    for _ in 0..MAX_READS {
        if line.inbox.borrow().len() >= INBOX {
            // The loop wakes us when it has taken it.
            return Ok(());
        }
        let mut buffer = ReadBuf::new(chunk);
        match Pin::new(&mut *stream).poll_read(cx, &mut buffer) {
            Poll::Pending => return Ok(()),
            Poll::Ready(result) => result?,
        }
        if buffer.filled().is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        line.inbox.borrow_mut().extend_from_slice(buffer.filled());
        line.ring();
    }
    cx.waker().wake_by_ref();
    Ok(())
}
