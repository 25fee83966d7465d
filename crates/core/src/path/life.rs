//! Where a path stands in its life, and what happens when nothing is heard: probes, the path taken
//! out of use, keep-alives.
//!
//! ```text
//!            challenge answered            probe timeout, no ACK
//!  Opening ───────────────────► Active ─────────────────────────► Silent
//!     │                           ▲   ◄─────────────────────────    │
//!     │                           └──── anything acknowledged       │
//!     └──────────────► Closed ◄─── closed, abandoned, interface gone┘
//! ```

use tabane_base::{Bytes, Duration, Instant};

use super::{News, Path};
use crate::close::PathDownReason;
use crate::recovery::{SentFrame, Settled};
use crate::rest::Rest;

/// A silent path is probed at least so often.
const PROBE_INTERVAL_MAX: Duration = Duration::from_millis(1_000);

/// Probes of a silent path are so many times as far apart as before: they are small, and most
/// silences of radio links are short.
const PROBES_ALIKE: u32 = 4;

/// So many probes in a row, from the second on, have more than one packet: some 80 in all, or 5 kB
/// with their IP headers.
const PINGED: u32 = 12;

/// A question on a silent path stands at least for so long, before what comes by it asks again.
const ASKED_FOR: Duration = Duration::from_millis(100);

/// A byte stream is silent while its sender repeats what was lost, for a round trip or its shortest
/// timeout (200 ms with Linux); what is given up meanwhile arrives all the same, and is sent twice.
const STREAM_PATIENCE: Duration = Duration::from_millis(250);

/// An answer may wait behind what the peer sends by the same path. As long as that comes, the path
/// is not taken for silent for so much longer; what is in flight is repeated as ever.
const QUEUE_PATIENCE: Duration = Duration::from_millis(250);

/// A path that was heard so recently may carry acknowledgements, whatever its round-trip time.
const FRESH_FOR: Duration = Duration::from_millis(50);

/// The only path has three probes, but no longer than this: one that was measured while the peer
/// stood still would have them for half a minute.
const LAST_PATIENCE: Duration = Duration::from_secs(3);

/// After so many probes in vain, a minute at least, what is in flight on the only path is lost: a
/// peer that never acknowledges must not make us keep it for ever.
const HOPELESS: u32 = 64;

/// So often in a row silence is put down to us: a path that is dead is found out even on a machine
/// that is never in time.
const MAX_EXCUSES: u32 = 3;

/// Where the path stands in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The address has not answered yet.
    Opening {
        reported: bool,
    },
    Active,
    /// Nothing comes back; probed, not used.
    Silent {
        since: Instant,
    },
}

/// Where the path stands, what it was heard and used last, and what is due where it was not.
#[derive(Debug)]
pub(super) struct Life {
    state: State,
    /// When the path first carried data.
    active_since: Instant,
    last_sent_at: Instant,
    last_received_at: Instant,
    /// When it last carried a datagram.
    datagram_at: Option<Instant>,
    rest: Rest,
    /// Probe packets that a timeout asks for.
    probes_due: u8,
    keep_alive_due: bool,
    /// Since when silence is the path's, where we were not run before.
    excused_until: Instant,
    /// So often we were not, since something was acknowledged.
    excuses: u32,
}

impl Life {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            state: State::Opening { reported: false },
            active_since: now,
            last_sent_at: now,
            last_received_at: now,
            datagram_at: None,
            rest: Rest::default(),
            probes_due: 0,
            keep_alive_due: false,
            excused_until: Instant::EPOCH,
            excuses: 0,
        }
    }

    /// The address has answered.
    pub(super) const fn begin(&mut self, now: Instant) {
        self.state = State::Active;
        self.active_since = now;
    }

    /// Whether it is news that the address does not answer.
    pub(super) const fn report_unanswered(&mut self) -> bool {
        match &mut self.state {
            State::Opening { reported } => !std::mem::replace(reported, true),
            State::Active | State::Silent { .. } => false,
        }
    }

    pub(super) const fn on_sent(&mut self, now: Instant) {
        self.last_sent_at = now;
    }

    pub(super) const fn on_received(&mut self, now: Instant) {
        self.last_received_at = now;
    }

    /// Something newly sent was acknowledged; how long the path had been silent, if it was.
    pub(super) fn on_answer(&mut self, now: Instant) -> Option<Duration> {
        (self.probes_due, self.excused_until, self.excuses) = (0, Instant::EPOCH, 0);
        let State::Silent { since } = self.state else {
            return None;
        };
        self.state = State::Active;
        Some(now.since(since))
    }
}

impl Path {
    pub(crate) const fn state(&self) -> State {
        self.life.state
    }

    pub(crate) fn is_active(&self) -> bool {
        self.state() == State::Active
    }

    /// Since it first carried data.
    pub(crate) fn carries_for(&self, now: Instant) -> Duration {
        now.since(self.life.active_since)
    }

    pub(crate) const fn carried_datagram_at(&self) -> Option<Instant> {
        self.life.datagram_at
    }

    pub(crate) const fn on_datagram(&mut self, now: Instant) {
        self.life.datagram_at = Some(now);
    }

    /// Whether it is left alone while the peer has too little.
    pub(crate) fn rests(&self, now: Instant) -> bool {
        !self.life.rest.is_over(now)
    }

    pub(crate) fn begin_rest(&mut self, now: Instant, round_trip: Duration) {
        self.life.rest.begin(now, round_trip);
    }

    /// Whether acknowledgements sent here are likely to arrive: it was heard of late. During a
    /// transfer every live path is heard of all the time; on a quiet session none is suspected.
    pub(crate) fn is_fresh(&self, newest: Instant) -> bool {
        self.life.last_received_at + (2 * self.rtt.smoothed()).max(FRESH_FOR) >= newest
    }

    pub(crate) const fn last_sent_at(&self) -> Instant {
        self.life.last_sent_at
    }

    pub(crate) const fn last_received_at(&self) -> Instant {
        self.life.last_received_at
    }

    pub(crate) const fn last_eliciting_at(&self) -> Instant {
        self.recovery.last_eliciting_at()
    }

    /// Something is to leave that the other end acknowledges.
    pub(crate) const fn ask_sign_of_life(&mut self) {
        self.life.keep_alive_due = true;
    }

    pub(crate) const fn take_sign_of_life(&mut self) -> bool {
        std::mem::replace(&mut self.life.keep_alive_due, false)
    }

    /// Whether a timeout asks for probe packets.
    pub(crate) const fn owes_probes(&self) -> bool {
        self.life.probes_due > 0
    }

    pub(crate) const fn take_probes(&mut self) -> u8 {
        std::mem::replace(&mut self.life.probes_due, 0)
    }

    /// Until `now` we were not run when we should have been: what was not heard meanwhile says
    /// nothing about the path, whose time to answer begins now.
    pub(crate) fn on_stall(&mut self, now: Instant) {
        let waits = self.is_active() && self.recovery.has_eliciting_in_flight();
        if waits && self.life.excuses < MAX_EXCUSES {
            self.life.excused_until = now;
            self.life.excuses += 1;
        }
    }

    pub(crate) fn loss_timer(&self) -> Option<Instant> {
        if matches!(self.state(), State::Opening { .. }) {
            return None;
        }
        self.recovery.loss_at().or_else(|| self.pto_at())
    }

    fn pto_at(&self) -> Option<Instant> {
        let probes = match self.state() {
            State::Silent { .. } => PROBES_ALIKE,
            State::Opening { .. } | State::Active => 1,
        };
        let at = (self.recovery).pto_at(&self.rtt, self.acks.peer_delay(), probes)?;
        let excused = self.life.excused_until.since(self.last_eliciting_at());
        let at = match self.address.is_ordered() {
            true => at.max(self.last_eliciting_at() + self.rtt.smoothed() + STREAM_PATIENCE),
            false => at,
        };
        let at = at + excused;
        // Back-off must not make a path that has come back wait long to be noticed.
        let latest = self.last_eliciting_at()
            + excused
            + PROBE_INTERVAL_MAX.max(2 * (self.rtt.pto_base() + self.acks.peer_delay()));
        Some(at.min(latest))
    }

    /// How many empty packets a probe has. Where losses come in bursts of so many packets, and not
    /// of so much time, one at a time would take as many timeouts to get through.
    pub(crate) fn pings_of_probe(&self) -> u32 {
        match self.recovery.pto_count() {
            count @ 2..=PINGED => 1 << (count - 1).min(3),
            _ => 1,
        }
    }

    /// The loss timer fired. `others`: whether another path can carry what is in flight here.
    pub(crate) fn on_loss_timer(&mut self, now: Instant, others: bool, news: &mut News) {
        let lost_before = news.lost.len();
        if self.recovery.loss_at().is_some_and(|at| at <= now) {
            self.recovery.detect_lost(now, &self.rtt, &mut news.lost);
            self.on_lost(now, &news.lost[lost_before..], false);
            return;
        }
        if self.pto_at().is_none_or(|at| at > now) {
            return;
        }
        self.recovery.on_pto();
        self.life.probes_due = 2;
        let is_hopeless = self.recovery.pto_count().is_multiple_of(HOPELESS);
        if others || is_hopeless {
            self.give_up_in_flight(now, news);
        }
        let patient = match others {
            true => self.may_wait_behind_data(now),
            false => self.recovery.pto_count() < 3 && !self.is_long_unanswered(now),
        };
        if self.is_active() && !patient {
            self.life.state = State::Silent { since: now };
            news.down = Some(PathDownReason::NoAnswer);
        }
    }

    /// Whether what is in flight has been without an answer for so long that nobody is to wait for
    /// the path any more.
    fn is_long_unanswered(&self, now: Instant) -> bool {
        let since = self.recovery.unanswered_since();
        since.is_some_and(|since| since.max(self.life.excused_until) + LAST_PATIENCE <= now)
    }

    /// Whether the peer sends by the path all the while, and it is not silent for longer than its
    /// answers may wait behind that.
    fn may_wait_behind_data(&self, now: Instant) -> bool {
        let pto = self.rtt.pto_base();
        let is_sending = |asked_at: Instant| asked_at + pto >= now;
        let waited = pto * ((1 << self.recovery.pto_count().min(8)) - 1);
        self.received().asked_at().is_some_and(is_sending)
            && waited <= self.rtt.smoothed() + QUEUE_PATIENCE
    }

    /// Hands everything in flight over to other paths, in the order it was sent (SBAM figure 3).
    /// The controller does not hear of it: whether anything was lost is not known.
    pub(crate) fn give_up_in_flight(&mut self, now: Instant, news: &mut News) {
        let before = news.lost.len();
        self.recovery.lose_all(&mut news.lost);
        for Settled { packet, .. } in &news.lost[before..] {
            self.delivery.on_packet_lost(Bytes::new(packet.size.into()));
            let probe = packet.frames.iter().find_map(|frame| match frame {
                SentFrame::MtuProbe(size) => Some(size),
                _ => None,
            });
            match probe {
                Some(size) => self.mtu.on_probe_lost(now, size),
                None => self.mtu.on_packet_given_up(packet.size),
            }
        }
    }

    /// Something came by the path, or others say that the network carries again. If it is out of
    /// use, whether it carries ours as well is asked at once and not at the next probe's time.
    pub(crate) fn on_sign_of_life(&mut self, now: Instant) {
        let is_asked = now.since(self.last_eliciting_at()) < ASKED_FOR.max(self.rtt.smoothed());
        if matches!(self.state(), State::Silent { .. }) && !is_asked {
            self.life.keep_alive_due = true;
        }
    }

    /// When silence on the path should be broken. Never by more questions than may be open.
    pub(crate) fn keep_alive_at(&self, interval: Duration) -> Option<Instant> {
        let quiet_since = self.last_received_at().max(self.last_eliciting_at());
        match self.state() {
            State::Active if self.recovery.asks_enough(self.cwnd()) => None,
            State::Active => Some(quiet_since + interval),
            State::Silent { .. } if !self.recovery.has_eliciting_in_flight() => {
                Some(self.last_eliciting_at() + PROBE_INTERVAL_MAX)
            }
            State::Opening { .. } | State::Silent { .. } => None,
        }
    }
}
