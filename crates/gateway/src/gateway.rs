//! All flows, and which packet is whose.
//!
//! Owns the table with its limits, and the timers. A packet is answered with a [`Verdict`] at once;
//! what the gateway has to say itself waits in [`Gateway::poll_transmit`]. Flows that are not
//! assisted have an entry too, without state, so that each is counted once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;

use tabane_base::{Duration, Instant};

use crate::config::{Config, Mode};
use crate::counters::{Bypass, Counters};
use crate::flow::{Fate, Flow, Stance, Surroundings};
use crate::hosts::{Held, Hosts};
use crate::key::Key;
use crate::meter::Figures;
use crate::opening::{Opening, Step};
use crate::orphan::Orphan;
use crate::packet::{Flags, Malformed, Packet};
use crate::snapshot::{FlowSnapshot, Snapshot};
use crate::survey::Survey;
use crate::{Checksum, Custody, Side, Transmit, Verdict};

/// A handshake takes no longer, or it is none.
const OPENING_MAX: Duration = Duration::from_secs(30);
/// How long a flow that is left alone is remembered after its last packet.
const PASSING_KEPT: Duration = Duration::from_secs(120);
/// The same where one before us may owe it bytes: its server may ask every two minutes only.
const ORPHAN_KEPT: Duration = Duration::from_secs(300);
/// Flows that have ended and can still be shown.
const ENDED_KEPT: usize = 32;

/// The cooperative gateway: packets in, packets out.
///
/// Driving contract: [`handle_packet`](Self::handle_packet) for every packet between the two
/// sides, whose verdict is carried out at once, but for what [`handle_copy`](Self::handle_copy)
/// gets instead; then [`poll_transmit`](Self::poll_transmit) until
/// `None`; sleep until [`poll_timeout`](Self::poll_timeout), then
/// [`handle_timeout`](Self::handle_timeout) and again `poll_transmit`.
#[derive(Debug)]
pub struct Gateway {
    config: Config,
    flows: BTreeMap<Key, Entry>,
    hosts: Hosts,
    /// When to look at which flow again: each entry's `wakes_at`.
    timers: BTreeSet<(Instant, Key)>,
    /// Of all flows together, kept as they change.
    flow_count: usize,
    owed: u64,
    /// Those that have ended with them.
    figures: Figures,
    counters: Counters,
    out: VecDeque<Transmit>,
    draining: bool,
    /// The last flows that have ended, the oldest first.
    ended: VecDeque<FlowSnapshot>,
}

#[derive(Debug)]
struct Entry {
    state: State,
    wakes_at: Instant,
}

#[derive(Debug)]
enum State {
    /// With the number by which it is known to [`Hosts`].
    Opening(Box<Opening>, u64),
    Flow(Box<Flow>, Held),
    Passing {
        seen_at: Instant,
        /// Where one before us may owe it bytes.
        orphan: Option<Box<Orphan>>,
    },
}

impl Gateway {
    /// A gateway that knows of no flow.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            flows: BTreeMap::new(),
            hosts: Hosts::default(),
            timers: BTreeSet::new(),
            flow_count: 0,
            owed: 0,
            figures: Figures::default(),
            counters: Counters::default(),
            out: VecDeque::new(),
            draining: false,
            ended: VecDeque::new(),
        }
    }

    /// Decides on a packet that came `from` one side for the other: an IP packet, whole.
    pub fn handle_packet(
        &mut self,
        now: Instant,
        from: Side,
        bytes: &[u8],
        checksum: Checksum,
    ) -> Verdict {
        let is_whole =
            |packet: &Packet<'_>| checksum == Checksum::Known || packet.has_good_checksum();
        self.handle(now, from, bytes, is_whole, Custody::Waits)
    }

    /// Takes note of a server's packet that has gone on to the mobile host: an IP packet, whole,
    /// whose checksum hardware may have to complete yet. For those with data, so that they wait for
    /// nobody; all others are better kept back where the gateway answers them itself.
    pub fn handle_copy(&mut self, now: Instant, bytes: &[u8]) {
        let is_whole =
            |packet: &Packet<'_>| packet.has_begun_checksum() || packet.has_good_checksum();
        let verdict = self.handle(now, Side::Wired, bytes, is_whole, Custody::Gone);
        debug_assert_eq!(verdict, Verdict::Accept, "it has gone on");
    }

    fn handle(
        &mut self,
        now: Instant,
        from: Side,
        bytes: &[u8],
        is_whole: impl Fn(&Packet<'_>) -> bool,
        custody: Custody,
    ) -> Verdict {
        self.counters.packets += 1;
        let packet = match Packet::parse(bytes) {
            Ok(packet) if is_whole(&packet) => packet,
            other => {
                self.counters.malformed += 1;
                let why = other.map_or_else(|why| why, |_| Malformed::Checksum);
                self.counters.malformed_last = Some(why);
                return Verdict::Accept;
            }
        };
        let key = Key::of(&packet, from);
        let verdict = self.decide(now, key, from, &packet, custody);
        self.schedule(now, key);
        verdict
    }

    fn decide(
        &mut self,
        now: Instant,
        key: Key,
        from: Side,
        packet: &Packet<'_>,
        custody: Custody,
    ) -> Verdict {
        let is_new = packet.flags().has(Flags::SYN) && !packet.flags().has(Flags::ACK);
        match self.flows.get_mut(&key).map(|entry| &mut entry.state) {
            None if packet.flags().has(Flags::RST) => Verdict::Accept,
            None => self.on_unknown(now, key, from, packet),
            Some(State::Passing { .. }) if is_new => self.on_unknown(now, key, from, packet),
            Some(State::Passing { .. }) => {
                self.on_passing(now, key, from, packet);
                Verdict::Accept
            }
            Some(State::Opening(opening, _)) => {
                let step = opening.handle(now, from, packet);
                self.on_step(now, key, from, packet, step, custody)
            }
            Some(State::Flow(flow, _)) if is_new && flow.is_over() => {
                self.remove(key);
                self.on_unknown(now, key, from, packet)
            }
            Some(State::Flow(..)) => self.with_flow(now, key, |flow, around| match from {
                Side::Wired => flow.handle_server(around, packet, custody),
                Side::Radio => flow.handle_mobile(around, packet),
            }),
        }
    }

    fn on_unknown(&mut self, now: Instant, key: Key, from: Side, packet: &Packet<'_>) -> Verdict {
        let flags = packet.flags();
        if !flags.has(Flags::SYN) || flags.has(Flags::ACK) {
            self.leave_alone(now, key, Bypass::MidFlow);
            self.on_passing(now, key, from, packet);
            return Verdict::Accept;
        }
        match Opening::begin(now, from, packet) {
            Ok(opening) => {
                self.make_room_for_an_opening();
                if self.has_room(key) {
                    let number = self.hosts.on_opening(key);
                    self.put(key, State::Opening(Box::new(opening), number));
                } else {
                    self.counters.bypass(Bypass::TableFull);
                }
            }
            Err(why) => self.leave_alone(now, key, why),
        }
        Verdict::Accept
    }

    /// Looks whether one before us owes bytes to the flow.
    fn on_passing(&mut self, now: Instant, key: Key, from: Side, packet: &Packet<'_>) {
        let entry = self.flows.get_mut(&key).map(|entry| &mut entry.state);
        let Some(State::Passing { seen_at, orphan }) = entry else {
            return;
        };
        *seen_at = now;
        let Some(heeded) = orphan else {
            return;
        };
        let farewell = match from {
            Side::Radio => heeded.on_mobile(now, packet),
            Side::Wired => {
                heeded.on_server(now, packet);
                let question = heeded.poll_question(now);
                self.out.extend(question.map(|it| it.packet(key)));
                None
            }
        };
        if let Some(farewell) = farewell {
            *orphan = None;
            self.counters.orphans_reset += 1;
            self.out.extend(farewell.resets(key));
        }
    }

    fn on_step(
        &mut self,
        now: Instant,
        key: Key,
        from: Side,
        packet: &Packet<'_>,
        step: Step,
        custody: Custody,
    ) -> Verdict {
        match step {
            Step::Going => Verdict::Accept,
            Step::Ended => {
                self.remove(key);
                Verdict::Accept
            }
            Step::Refused(why) => {
                self.leave_alone(now, key, why);
                Verdict::Accept
            }
            Step::Open(agreed) => {
                self.counters.opened += 1;
                let allowed = self.config.allows(key.mobile, key.server);
                let stance = match self.config.mode {
                    Mode::Assist if allowed && !self.draining => Stance::Assisting,
                    Mode::Assist | Mode::Observe => Stance::Watching,
                };
                if self.config.mode == Mode::Assist && !allowed {
                    self.counters.bypass(Bypass::Excluded);
                }
                let flow = Flow::new(now, key, *agreed, stance, &self.config);
                let held = self.hosts.held_of(key.mobile.ip());
                self.put(key, State::Flow(Box::new(flow), held));
                self.flow_count += 1;
                self.with_flow(now, key, |flow, around| match from {
                    Side::Wired => flow.handle_server(around, packet, custody),
                    Side::Radio => {
                        flow.handle_handshake_end(now, packet);
                        Verdict::Accept
                    }
                })
            }
        }
    }

    /// Calls one flow, and keeps the sums over all.
    fn with_flow<T: Default>(
        &mut self,
        now: Instant,
        key: Key,
        call: impl FnOnce(&mut Flow, &mut Surroundings<'_>) -> T,
    ) -> T {
        let entry = self.flows.get_mut(&key).map(|entry| &mut entry.state);
        let Some(State::Flow(flow, own)) = entry else {
            return T::default();
        };
        let (held, owed, bypass) = (flow.held(), flow.owed(), flow.bypass());
        let figures = flow.meter().figures;
        let most = self.config.copies_total.get() as usize;
        let mut around = Surroundings {
            now,
            config: &self.config,
            counters: &mut self.counters,
            room: self.hosts.room(own, most),
            out: &mut self.out,
        };
        let result = call(flow, &mut around);
        self.hosts.on_held(own, held, flow.held());
        self.owed = self.owed + u64::from(flow.owed()) - u64::from(owed);
        self.figures += flow.meter().figures - figures;
        if let Some(why) = flow.bypass().filter(|_| bypass.is_none()) {
            self.counters.bypass(why);
        }
        result
    }

    fn has_room(&self, key: Key) -> bool {
        let most = self.config.max_flows;
        self.hosts.admits(key.mobile.ip(), most) || self.flows.contains_key(&key)
    }

    fn put(&mut self, key: Key, state: State) {
        let Some(entry) = self.flows.get_mut(&key) else {
            self.hosts.on_entry(key.mobile.ip());
            let wakes_at = Instant::NEVER;
            self.flows.insert(key, Entry { state, wakes_at });
            return;
        };
        if let State::Opening(_, number) = std::mem::replace(&mut entry.state, state) {
            self.hosts.on_opening_gone(key, number);
        }
    }

    fn leave_alone(&mut self, now: Instant, key: Key, why: Bypass) {
        self.counters.bypass(why);
        if self.has_room(key) {
            let may_be_owed = why == Bypass::MidFlow && self.config.mode == Mode::Assist;
            let orphan = may_be_owed.then(Box::default);
            let seen_at = now;
            self.put(key, State::Passing { seen_at, orphan });
        }
    }

    fn remove(&mut self, key: Key) {
        let Some(entry) = self.flows.remove(&key) else {
            return;
        };
        self.timers.remove(&(entry.wakes_at, key));
        match entry.state {
            State::Flow(flow, own) => {
                self.flow_count -= 1;
                self.hosts.on_held(&own, flow.held(), 0);
                self.owed -= u64::from(flow.owed());
                if self.ended.len() == ENDED_KEPT {
                    self.ended.pop_front();
                }
                self.ended.push_back(FlowSnapshot::of(&flow));
            }
            State::Opening(_, number) => self.hosts.on_opening_gone(key, number),
            State::Passing { .. } => {}
        }
        self.hosts.on_entry_gone(key.mobile.ip());
    }

    /// A flood of SYNs takes the places of other SYNs, and of nothing else.
    fn make_room_for_an_opening(&mut self) {
        while self.hosts.opening() >= self.config.max_opening
            && let Some(key) = self.hosts.displaced()
        {
            self.counters.openings_forgotten += 1;
            self.remove(key);
        }
    }

    /// Sees to it that the flow is looked at when its next timer is due.
    fn schedule(&mut self, now: Instant, key: Key) {
        let Some(entry) = self.flows.get_mut(&key) else {
            return;
        };
        let due = match &entry.state {
            State::Opening(..) => now + OPENING_MAX,
            State::Passing { seen_at, orphan } => match orphan {
                Some(orphan) => orphan.poll_timeout().min(*seen_at + ORPHAN_KEPT),
                None => *seen_at + PASSING_KEPT,
            },
            State::Flow(flow, _) => flow.poll_timeout(&self.config),
        };
        // A later time is found out when the earlier one comes.
        if due < entry.wakes_at {
            self.timers.remove(&(entry.wakes_at, key));
            self.timers.insert((due, key));
            entry.wakes_at = due;
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) has something to do.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some((at, key)) = self.timers.first().copied()
            && at <= now
        {
            self.timers.pop_first();
            let Some(entry) = self.flows.get_mut(&key) else {
                continue;
            };
            entry.wakes_at = Instant::NEVER;
            match &mut entry.state {
                State::Opening(..) => {
                    self.counters.openings_forgotten += 1;
                    self.remove(key);
                }
                State::Passing { seen_at, orphan } => {
                    let kept = orphan.as_ref().map_or(PASSING_KEPT, |_| ORPHAN_KEPT);
                    let question = orphan.as_mut().and_then(|it| it.poll_question(now));
                    if *seen_at + kept <= now {
                        self.remove(key);
                    } else {
                        self.out.extend(question.map(|it| it.packet(key)));
                    }
                }
                State::Flow(flow, _) if flow.poll_timeout(&self.config) > now => {}
                State::Flow(..) => {
                    match self.with_flow(now, key, |flow, around| flow.handle_timeout(around)) {
                        Fate::Lives => {}
                        Fate::Forgotten => self.remove(key),
                        Fate::Reset => {
                            self.counters.reset += 1;
                            self.remove(key);
                        }
                    }
                }
            }
            self.schedule(now, key);
        }
    }

    /// The next packet that the gateway sends itself.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.out.pop_front()
    }

    /// Acknowledges nothing early from now on. Once nothing is owed
    /// ([`owed`](Self::owed) is 0), packets may pass without the gateway.
    pub fn drain(&mut self) {
        self.draining = true;
        for entry in self.flows.values_mut() {
            if let State::Flow(flow, _) = &mut entry.state {
                flow.stop_assisting(None);
            }
        }
    }

    /// Bytes acknowledged to servers that mobile hosts have not acknowledged.
    #[must_use]
    pub const fn owed(&self) -> u64 {
        self.owed
    }

    /// How everything stands. Takes the same time however many flows there are.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            counters: self.counters,
            held: self.hosts.held() as u64,
            owed: self.owed,
            opening: self.hosts.opening(),
            flows: self.flow_count,
            ended: self.ended.iter().copied().collect(),
            figures: self.figures,
        }
    }

    /// Each flow, by its ends. Where there are very many this takes long: see
    /// [`survey`](Self::survey).
    pub fn flows(&self) -> impl Iterator<Item = FlowSnapshot> {
        self.flows.values().filter_map(|entry| match &entry.state {
            State::Flow(flow, _) => Some(FlowSnapshot::of(flow)),
            State::Opening(..) | State::Passing { .. } => None,
        })
    }

    /// Looks at the next `most` entries of the table; whether it came to the end.
    pub fn survey(&self, survey: &mut Survey, most: usize) -> bool {
        let from = survey.after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut entries = self.flows.range((from, Bound::Unbounded));
        for (key, entry) in entries.by_ref().take(most) {
            survey.after = Some(*key);
            if let State::Flow(flow, _) = &entry.state {
                survey.handle(flow);
            }
        }
        entries.next().is_none()
    }
}

#[cfg(test)]
mod tests;
