//! A session as the loop sees it: who waits for which stream, and the flows' datagrams.
//!
//! Owns the wakers of tasks. Knows nothing of what a stream is for.

use std::collections::HashMap;
use std::task::Waker;

use tabane_base::Instant;
use tabane_core::{Event, Part, Session, StreamId, monitor::ClockId};

use crate::inbox::Flows;

/// Who waits for a stream.
#[derive(Default)]
struct StreamWaiters {
    reader: Option<Waker>,
    writer: Option<Waker>,
    /// The peer reads no more of what we write.
    is_stopped: bool,
}

pub(super) struct HostedSession {
    /// Tells sessions apart that had the same handle one after the other.
    pub(super) serial: u64,
    /// What the monitor calls the peer's clock.
    pub(super) clock: ClockId,
    pub(super) begun_at: Instant,
    /// Waits in the loop's list of sessions to drain.
    pub(super) touched: bool,
    /// Core has told that it ended; its streams are as good as gone.
    pub(super) is_closed: bool,
    /// What the loop's set of deadlines holds for it.
    pub(super) deadline: Option<Instant>,
    pub(super) flows: Flows,
    streams: HashMap<StreamId, StreamWaiters>,
}

impl HostedSession {
    /// Received datagrams wait in `waiting` of a pool.
    pub(super) fn new(serial: u64, clock: ClockId, now: Instant, waiting: Part) -> Self {
        Self {
            serial,
            clock,
            begun_at: now,
            touched: false,
            is_closed: false,
            deadline: None,
            flows: Flows::new(waiting),
            streams: HashMap::new(),
        }
    }

    /// Passes an event on to whoever waits for it; gives it back where that is the owner.
    pub(super) fn dispatch(
        &mut self,
        now: Instant,
        session: &mut Session,
        event: Event,
    ) -> Option<Event> {
        match event {
            Event::StreamReadable(id) => self.wake_reader(id),
            Event::StreamWritable(id) => self.wake_writer(id),
            Event::StreamReset { id, .. } => {
                self.wake_reader(id);
                self.wake_writer(id);
            }
            Event::StreamStopped { id, .. } => {
                if let Some(waiters) = self.streams.get_mut(&id) {
                    waiters.is_stopped = true;
                }
                self.wake_writer(id);
            }
            Event::DatagramsReadable => {
                while let Some(datagram) = session.poll_datagram() {
                    self.flows.handle_datagram(now, datagram);
                }
            }
            Event::StreamOpened(id) => {
                // From here on, or a stop that comes before the owner looks would go unnoticed.
                self.adopt(id);
                return Some(event);
            }
            Event::Closed(_) => {
                self.is_closed = true;
                self.wake_all();
                return Some(event);
            }
            Event::Authorise { .. }
            | Event::Connected
            | Event::SentAway
            | Event::PathUp(_)
            | Event::PathDown(..) => return Some(event),
        }
        None
    }

    pub(super) fn adopt(&mut self, stream: StreamId) {
        self.streams.entry(stream).or_default();
    }

    pub(super) fn abandon(&mut self, stream: StreamId) {
        self.streams.remove(&stream);
        self.flows.close(stream);
    }

    pub(super) fn park_reader(&mut self, stream: StreamId, waker: &Waker) {
        if let Some(waiters) = self.streams.get_mut(&stream) {
            park(&mut waiters.reader, waker);
        }
    }

    pub(super) fn park_writer(&mut self, stream: StreamId, waker: &Waker) {
        if let Some(waiters) = self.streams.get_mut(&stream) {
            park(&mut waiters.writer, waker);
        }
    }

    pub(super) fn is_stopped(&self, stream: StreamId) -> bool {
        self.streams
            .get(&stream)
            .is_some_and(|waiters| waiters.is_stopped)
    }

    pub(super) fn wake_all(&mut self) {
        for waiters in self.streams.values_mut() {
            wake(&mut waiters.reader);
            wake(&mut waiters.writer);
        }
        self.flows.wake_all();
    }

    fn wake_reader(&mut self, stream: StreamId) {
        if let Some(waiters) = self.streams.get_mut(&stream) {
            wake(&mut waiters.reader);
        }
    }

    fn wake_writer(&mut self, stream: StreamId) {
        if let Some(waiters) = self.streams.get_mut(&stream) {
            wake(&mut waiters.writer);
        }
    }
}

fn park(place: &mut Option<Waker>, waker: &Waker) {
    if !place.as_ref().is_some_and(|old| old.will_wake(waker)) {
        *place = Some(waker.clone());
    }
}

/// Wakers stay in place: the same task waits again almost every time.
fn wake(place: &mut Option<Waker>) {
    if let Some(waker) = place {
        waker.wake_by_ref();
    }
}
