//! One end: an endpoint, driven as the shells drive theirs, with the driving contract asserted.
//!
//! After every input the outputs of the session concerned are drained: transmit until it adds
//! nothing, events until `None`. A session whose timer stays in the past although it was carried
//! out and nothing came of it would make a real driver spin: that is a failure, and it names the
//! timer.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tabane_base::{Bytes, Duration, Instant};
use tabane_core::{CloseReason, Endpoint, Event, FourTuple, SessionHandle, TransmitBatch};

use crate::network::Network;
use crate::side::Side;

/// What the shell gives to sessions for one call of `poll_transmit`.
const BATCH: usize = 65_536;
/// Rounds of carrying out a timer at one instant without any output before it counts as stuck.
const PATIENCE: u32 = 4;
/// Rounds at one instant, fruitful or not. A 20 ms burst at 1 Gbit/s is 40 batches.
const ROUNDS_MAX: u32 = 10_000;

/// How the server answers who asks to be let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Everybody.
    Open,
    /// Only who shows this token.
    Token(Vec<u8>),
}

/// One end of the world.
pub struct Host {
    side: Side,
    endpoint: Endpoint,
    admission: Admission,
    /// Suspended: takes nothing, sends nothing, and no timer wakes it.
    asleep: bool,
    /// By how much its clock is ahead of the world's.
    ahead: Duration,
    /// What each session has shown to be let in.
    tokens: BTreeMap<SessionHandle, Option<Vec<u8>>>,
    batch: TransmitBatch,
    /// Sessions to be drained.
    dirty: BTreeSet<SessionHandle>,
    events: VecDeque<(SessionHandle, Event)>,
    closed: BTreeMap<SessionHandle, CloseReason>,
    /// Events of a session after it said that it was closed: must stay zero.
    late_events: u64,
    sent: u64,
    /// Timers of sessions carried out, for telling a busy loop from work.
    timeouts: u64,
    receive_memory_max: Bytes,
}

impl Host {
    pub(crate) fn new(side: Side, endpoint: Endpoint, admission: Admission) -> Self {
        Self {
            side,
            endpoint,
            admission,
            asleep: false,
            ahead: Duration::ZERO,
            tokens: BTreeMap::new(),
            batch: TransmitBatch::new(BATCH),
            dirty: BTreeSet::new(),
            events: VecDeque::new(),
            closed: BTreeMap::new(),
            late_events: 0,
            sent: 0,
            timeouts: 0,
            receive_memory_max: Bytes::ZERO,
        }
    }

    /// The endpoint, for its counters and for getters of its sessions.
    #[must_use]
    pub const fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    pub(crate) fn endpoint_mut(&mut self) -> &mut Endpoint {
        &mut self.endpoint
    }

    /// Why a session ended, once it has.
    #[must_use]
    pub fn close_reason(&self, handle: SessionHandle) -> Option<&CloseReason> {
        self.closed.get(&handle)
    }

    /// Every session that ended here, with why.
    #[must_use]
    pub const fn closed(&self) -> &BTreeMap<SessionHandle, CloseReason> {
        &self.closed
    }

    /// Events that came after a session had said that it was closed.
    #[must_use]
    pub const fn late_events(&self) -> u64 {
        self.late_events
    }

    /// Datagrams this end has sent.
    #[must_use]
    pub const fn sent(&self) -> u64 {
        self.sent
    }

    /// How often a session was woken by its timer.
    #[must_use]
    pub const fn timeouts(&self) -> u64 {
        self.timeouts
    }

    /// The most that received data ever occupied, looked at whenever the world looks.
    #[must_use]
    pub const fn receive_memory_max(&self) -> Bytes {
        self.receive_memory_max
    }

    /// A session's command or input needs draining.
    pub(crate) fn touch(&mut self, handle: SessionHandle) {
        self.dirty.insert(handle);
    }

    pub(crate) fn set_asleep(&mut self, asleep: bool) {
        self.asleep = asleep;
    }

    /// Its clock leaps forward; a monotonic one never leaps back.
    pub(crate) fn leap(&mut self, span: Duration) {
        self.ahead += span;
    }

    /// What its clock shows when the world's shows `now`.
    pub(crate) fn clock(&self, now: Instant) -> Instant {
        now + self.ahead
    }

    /// The newest session that has shown this token.
    pub(crate) fn session_by_token(&self, token: Option<&[u8]>) -> Option<SessionHandle> {
        let shown = self.tokens.iter().rev();
        let mut shown = shown.filter(|(_, shown)| shown.as_deref() == token);
        shown.find_map(|(handle, _)| self.endpoint.session(*handle).map(|_| *handle))
    }

    pub(crate) fn handle_datagram(&mut self, now: Instant, tuple: FourTuple, data: &mut [u8]) {
        if self.asleep {
            return;
        }
        if let Some(handle) = self.endpoint.handle_datagram(self.clock(now), tuple, data) {
            self.touch(handle);
        }
        while let Some(handle) = self.endpoint.poll_incoming() {
            self.touch(handle);
        }
    }

    /// The earliest timer of any session.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        if self.asleep {
            return None;
        }
        let handles = self.endpoint.handles();
        let sessions = handles
            .iter()
            .filter_map(|handle| self.endpoint.session(*handle));
        sessions
            .filter_map(|session| session.poll_timeout())
            .map(|(at, _)| at - self.ahead)
            .min()
    }

    /// Carries out the timers that are due and drains every session concerned, until none is due.
    ///
    /// # Panics
    /// When a timer stays due without anything coming of it.
    pub(crate) fn run_timers(&mut self, now: Instant, network: &mut Network) {
        if self.asleep {
            return;
        }
        let clock = self.clock(now);
        for handle in self.endpoint.handles() {
            let mut fruitless = 0;
            for round in 0.. {
                let Some(session) = self.endpoint.session_mut(handle) else {
                    break;
                };
                let Some((at, reason)) = session.poll_timeout().filter(|(at, _)| *at <= clock)
                else {
                    break;
                };
                session.handle_timeout(clock);
                self.timeouts += 1;
                let fruitful = self.drain_session(now, handle, network);
                fruitless = if fruitful { 0 } else { fruitless + 1 };
                assert!(
                    fruitless <= PATIENCE && round < ROUNDS_MAX,
                    "{:?} at {clock}: the timer {reason:?} of {at} is never done",
                    self.side
                );
            }
        }
    }

    /// Drains what was touched. `true` when anything came out.
    pub(crate) fn drain(&mut self, now: Instant, network: &mut Network) -> bool {
        let mut any = false;
        if self.asleep {
            return any;
        }
        while let Some(handle) = self.dirty.pop_first() {
            any |= self.drain_session(now, handle, network);
        }
        let clock = self.clock(now);
        while self.endpoint.poll_transmit(clock, &mut self.batch) {
            any = true;
            self.send_batch(now, network);
        }
        any
    }

    fn drain_session(
        &mut self,
        now: Instant,
        handle: SessionHandle,
        network: &mut Network,
    ) -> bool {
        let mut any = false;
        let clock = self.clock(now);
        while let Some(session) = self.endpoint.session_mut(handle)
            && session.poll_transmit(clock, &mut self.batch)
        {
            assert!(
                !self.batch.is_empty(),
                "poll_transmit added nothing and said it did"
            );
            any = true;
            self.send_batch(now, network);
        }
        assert!(
            self.batch.is_empty(),
            "poll_transmit added something and said it did not"
        );
        while let Some(event) = self
            .endpoint
            .session_mut(handle)
            .and_then(|s| s.poll_event())
        {
            any = true;
            self.on_event(clock, handle, event);
        }
        any
    }

    fn on_event(&mut self, clock: Instant, handle: SessionHandle, event: Event) {
        if self.closed.contains_key(&handle) {
            self.late_events += 1;
        }
        match &event {
            Event::Authorise { token, .. } => {
                let admitted = match &self.admission {
                    Admission::Open => true,
                    Admission::Token(wanted) => token.as_ref() == Some(wanted),
                };
                self.tokens.insert(handle, token.clone());
                if let Some(session) = self.endpoint.session_mut(handle) {
                    if admitted {
                        session.admit(clock);
                    } else {
                        session.close(clock, CloseReason::Unauthorised);
                    }
                }
                self.touch(handle);
            }
            Event::Closed(reason) => drop(self.closed.insert(handle, reason.clone())),
            _ => {}
        }
        self.events.push_back((handle, event));
    }

    pub(crate) fn poll_event(&mut self) -> Option<(SessionHandle, Event)> {
        self.events.pop_front()
    }

    fn send_batch(&mut self, now: Instant, network: &mut Network) {
        for transmit in self.batch.iter() {
            for datagram in transmit.contents.chunks(transmit.segment_size) {
                network.send(now, self.side, transmit.tuple, datagram);
                self.sent += 1;
            }
        }
        self.batch.clear();
    }

    /// Looks at how much received data is held.
    pub(crate) fn sample_memory(&mut self, now: Instant) {
        for handle in self.endpoint.handles() {
            if let Some(session) = self.endpoint.session(handle) {
                let memory = session.snapshot(self.clock(now)).receive_memory;
                self.receive_memory_max = self.receive_memory_max.max(memory);
            }
        }
    }
}
