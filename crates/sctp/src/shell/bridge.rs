//! A TCP connection and the association that carries it.
//!
//! Owns the order of endings. SCTP has no half-closed state, so two of ours tell each other with a
//! note when one side has sent everything, and the association ends after both. With any other peer
//! the end of either side's data ends the association, once everything sent has arrived. What ends
//! otherwise, at either side, is reset at the other: nobody takes a part for the whole.

use std::io;
use std::task::Context;
use std::time::Instant;

use crate::{AssociationId, EndpointId, Event, Incoming, Message, Sent, Stack};
use tabane_base::Duration;
use tabane_linux::abortive::AbortiveStream;

use super::conversation::{
    BYTES, INDICATION, MESSAGE_BYTES, NOTES, Note, NoteReader, STREAM, message_bytes,
};
use super::driver::Driver;
use super::links::{Address, LinkSet};
use super::outgoing::{Outgoing, Stage};

/// What waits for the TCP connection, in bytes; beyond that the association's window closes.
const WAITING_MAX: usize = 256 * 1024;
/// Bytes read at a time.
const BLOCK: usize = 64 * 1024;
/// How often paths are looked after.
const TEND: Duration = Duration::from_millis(200);

/// See the module.
pub(crate) struct Bridge {
    pub endpoint: EndpointId,
    association: AssociationId,
    /// At the programs' end.
    outgoing: Option<Outgoing>,
    /// `None` until the server is reached, at the servers' end.
    stream: Option<AbortiveStream>,
    stage: Stage,
    /// Why it is reset, once it is.
    fault: Option<String>,
    peer_is_ours: bool,
    pub begun_at: Instant,
    tended_at: Instant,
    /// The most bytes of a message, at the servers' end.
    message_bytes: usize,
    /// Read from TCP, not yet sent.
    pending: Vec<u8>,
    offset: usize,
    /// Received, not yet written.
    waiting: Vec<u8>,
    notes: NoteReader,
    /// TCP has given everything; and the peer knows.
    read_all: bool,
    told_end: bool,
    /// The peer has sent everything; and TCP knows.
    heard_end: bool,
    written_end: bool,
    is_ending: bool,
    /// Bytes from TCP to the association, and from there to TCP.
    pub sent: u64,
    pub received: u64,
}

impl Bridge {
    /// For a program that has connected.
    pub(crate) fn begun(stream: AbortiveStream, outgoing: Outgoing) -> Self {
        let mut bridge = Self::new(outgoing.endpoint, outgoing.association);
        bridge.stage = Stage::Connecting;
        bridge.outgoing = Some(outgoing);
        bridge.stream = Some(stream);
        bridge
    }

    /// For an association that has come.
    pub(crate) fn accepted(
        stack: &Stack,
        endpoint: EndpointId,
        association: AssociationId,
    ) -> Self {
        Self {
            message_bytes: message_bytes(stack, endpoint, association),
            ..Self::new(endpoint, association)
        }
    }

    fn new(endpoint: EndpointId, association: AssociationId) -> Self {
        Self {
            endpoint,
            association,
            outgoing: None,
            stream: None,
            stage: Stage::Up,
            fault: None,
            peer_is_ours: false,
            begun_at: Instant::now(),
            tended_at: Instant::now(),
            message_bytes: MESSAGE_BYTES,
            pending: Vec::new(),
            offset: 0,
            waiting: Vec::new(),
            notes: NoteReader::default(),
            read_all: false,
            told_end: false,
            heard_end: false,
            written_end: false,
            is_ending: false,
            sent: 0,
            received: 0,
        }
    }

    /// The server is reached.
    pub(crate) fn connect(&mut self, stream: AbortiveStream) {
        self.stream = Some(stream);
    }

    /// Gives up where the association is not set up in time.
    pub(crate) fn lose_patience(&mut self, driver: &mut Driver, links: &LinkSet, limit: Duration) {
        if self.stage == Stage::Connecting
            && self.begun_at.elapsed() > limit
            && let Some(outgoing) = &self.outgoing
        {
            let why = outgoing.silence(driver, links, limit);
            self.give_up(&mut driver.stack, why);
        }
    }

    /// Gives up where nothing has been heard of the peer for so long.
    fn end_silence(&mut self, stack: &mut Stack, limit: Duration) {
        if self.stage == Stage::Up && stack.silence(self.endpoint, self.association) > Some(limit) {
            let why = format!("nothing was heard of the peer for {} s", limit.as_secs());
            self.give_up(stack, why);
        }
    }

    /// Ends both sides at once.
    pub(crate) fn give_up(&mut self, stack: &mut Stack, why: impl ToString) {
        // It may have ended by itself.
        let _ = stack.abort(self.endpoint, self.association);
        self.reset(why);
    }

    /// The association has ended early: so does the connection.
    fn reset(&mut self, why: impl ToString) {
        self.stage = Stage::Lost;
        self.fault.get_or_insert_with(|| why.to_string());
        self.stream = None;
    }

    /// Ends the connection: in order, unless something went wrong.
    pub(crate) fn close(&mut self) {
        match (self.stage, self.stream.take()) {
            (Stage::Closed, Some(stream)) => stream.finish(),
            (Stage::Connecting | Stage::Up | Stage::Lost, _) | (Stage::Closed, None) => {}
        }
    }

    /// Nothing is left to be done.
    pub(crate) fn is_done(&self) -> bool {
        match self.stage {
            Stage::Lost => true,
            Stage::Closed => self.waiting.is_empty() && (self.written_end || self.stream.is_none()),
            Stage::Connecting | Stage::Up => false,
        }
    }

    /// Why it was reset; `None` where it was not.
    pub(crate) fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// Whether TCP has something for us; asks to be woken.
    pub(crate) fn is_ready(&self, cx: &mut Context<'_>) -> bool {
        let Some(stream) = &self.stream else {
            return false;
        };
        let wants_read = self.stage == Stage::Up && self.offset == self.pending.len();
        let reads = wants_read && !self.read_all && stream.poll_read_ready(cx).is_ready();
        let writes = !self.waiting.is_empty() && stream.poll_write_ready(cx).is_ready();
        reads || writes
    }

    pub(crate) fn on_links(
        &mut self,
        stack: &mut Stack,
        links: &LinkSet,
        come: &[Address],
        gone: &[Address],
    ) {
        if let Some(outgoing) = &mut self.outgoing {
            outgoing.on_links(stack, links, come, gone);
        }
    }

    /// Moves what can be moved, looks after paths and gives up on a peer that is silent for longer
    /// than `patience`. There are no links at the servers' end.
    pub(crate) fn turn(
        &mut self,
        driver: &mut Driver,
        links: Option<&LinkSet>,
        patience: Duration,
    ) {
        self.listen(&mut driver.stack, links);
        if self.stage == Stage::Lost {
            return;
        }
        let moved = self.write().and_then(|()| self.read(driver, links));
        if let Err(error) = moved {
            self.give_up(&mut driver.stack, error);
            return;
        }
        let both = self.told_end && self.heard_end && self.waiting.is_empty();
        if both && !self.is_ending && self.stage == Stage::Up {
            self.is_ending = true;
            // It may have ended by itself.
            let _ = driver.stack.shutdown(self.endpoint, self.association);
        }
        if self.tended_at.elapsed() < TEND {
            return;
        }
        self.tended_at = Instant::now();
        if let (Some(outgoing), Some(links)) = (&mut self.outgoing, links) {
            outgoing.tend(driver, links);
        }
        self.end_silence(&mut driver.stack, patience);
    }

    fn listen(&mut self, stack: &mut Stack, links: Option<&LinkSet>) {
        let mut news = Vec::new();
        while self.waiting.len() < WAITING_MAX {
            match stack.poll_event(self.endpoint) {
                None => break,
                Some(Incoming::Piece(piece)) if piece.protocol == NOTES => {
                    let note = self.notes.read(piece.data, piece.complete);
                    self.heard_end |= note == Some(Note::End);
                }
                Some(Incoming::Piece(piece)) => self.waiting.extend_from_slice(piece.data),
                Some(Incoming::Event(event)) => {
                    self.on_event(&event);
                    news.push(event);
                }
            }
        }
        if let (Some(outgoing), Some(links)) = (&mut self.outgoing, links) {
            for event in news {
                outgoing.on_event(stack, links, &event);
            }
        }
    }

    fn on_event(&mut self, event: &Event) {
        match event {
            // What was under way at the first beginning is lost.
            Event::Up {
                restarted: true, ..
            } => self.reset("the peer began anew"),
            Event::Up { .. } => self.stage = Stage::Up,
            Event::Adaptation { indication, .. } => self.peer_is_ours = *indication == INDICATION,
            // Two of ours say so by a note.
            Event::PeerDone { .. } => self.heard_end |= !self.peer_is_ours,
            Event::Closed { .. } => self.on_closed(),
            Event::Lost { never_up: true, .. } => self.reset(
                "the peer refused the association: does an SCTP receiver (such as `tabane sctp \
                 forward --serve`) listen at this SCTP port?",
            ),
            Event::Lost { .. } => {
                self.reset("the peer aborted the association, or no path answers any more");
            }
        }
    }

    /// Two of ours end after both have said so; an end before that cuts something off.
    fn on_closed(&mut self) {
        if self.peer_is_ours && !self.heard_end {
            self.reset("the peer ended in the middle");
            return;
        }
        self.heard_end = true;
        self.stage = Stage::Closed;
    }

    fn write(&mut self) -> io::Result<()> {
        let Some(stream) = &self.stream else {
            return Ok(());
        };
        while !self.waiting.is_empty() {
            match stream.try_write(&self.waiting) {
                Ok(len) => {
                    self.received += len as u64;
                    self.waiting.drain(..len);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        if self.heard_end && !self.written_end {
            self.written_end = true;
            // Where it fails, reading shows it.
            let _ = stream.end_writing();
        }
        Ok(())
    }

    fn read(&mut self, driver: &mut Driver, links: Option<&LinkSet>) -> io::Result<()> {
        while self.stage == Stage::Up && !self.told_end {
            let Some(stream) = &self.stream else {
                return Ok(());
            };
            if self.offset < self.pending.len() {
                if self.send(&mut driver.stack, links)? == Sent::Full {
                    return Ok(());
                }
            } else if self.read_all {
                self.told_end = self.tell_end(&mut driver.stack)?;
                return Ok(());
            } else {
                self.pending.resize(BLOCK, 0);
                self.offset = 0;
                let read = stream.try_read(&mut self.pending);
                self.pending.truncate(*read.as_ref().unwrap_or(&0));
                match read {
                    Ok(0) => self.read_all = true,
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    fn send(&mut self, stack: &mut Stack, links: Option<&LinkSet>) -> io::Result<Sent> {
        let outgoing = self.outgoing.as_ref();
        let most = outgoing.map_or(self.message_bytes, |outgoing| outgoing.message_bytes);
        let end = self.pending.len().min(self.offset + most);
        let data = &self.pending[self.offset..end];
        let sent = match (&mut self.outgoing, links) {
            (Some(outgoing), Some(links)) => outgoing.send(stack, links, data),
            _ => stack.send(self.endpoint, self.association, message(data, BYTES)),
        };
        let sent = sent.map_err(io::Error::other)?;
        if sent == Sent::Queued {
            self.sent += data.len() as u64;
            self.offset = end;
        }
        Ok(sent)
    }

    /// `false`: there was no room to say so.
    fn tell_end(&self, stack: &mut Stack) -> io::Result<bool> {
        if self.peer_is_ours {
            let note = Note::End.to_bytes();
            let sent = stack.send(self.endpoint, self.association, message(&note, NOTES));
            return Ok(sent.map_err(io::Error::other)? == Sent::Queued);
        }
        let done = stack.shutdown(self.endpoint, self.association);
        done.map_err(io::Error::other)?;
        Ok(true)
    }
}

fn message(data: &[u8], protocol: u32) -> Message<'_> {
    Message {
        data,
        stream: STREAM,
        protocol,
        path: None,
    }
}
