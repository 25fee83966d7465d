//! What happens when nothing is heard: probes, the path taken out of use, keep-alives.

use tabane_base::{Bytes, Duration, Instant};

use super::{Challenge, News, Path, State};
use crate::close::PathDownReason;
use crate::recovery::{SentFrame, Settled};

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

/// The only path has three probes, but no longer than this: one that was measured while the peer
/// stood still would have them for half a minute.
const LAST_PATIENCE: Duration = Duration::from_secs(3);

/// After so many probes in vain, a minute at least, what is in flight on the only path is lost: a
/// peer that never acknowledges must not make us keep it for ever.
const HOPELESS: u32 = 64;

/// So often in a row silence is put down to us: a path that is dead is found out even on a machine
/// that is never in time.
const MAX_EXCUSES: u32 = 3;

/// Since when silence is the path's, where we were not run before.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Excuse {
    until: Instant,
    /// Since something was acknowledged.
    count: u32,
}

impl Path {
    /// Until `now` we were not run when we should have been: what was not heard meanwhile says
    /// nothing about the path, whose time to answer begins now.
    pub(crate) fn on_stall(&mut self, now: Instant) {
        let waits = self.is_active() && self.recovery.has_eliciting_in_flight();
        if waits && self.excuse.count < MAX_EXCUSES {
            self.excuse.until = now;
            self.excuse.count += 1;
        }
    }

    /// Whether the answer to what left at `sent_at` may say how long the peer stood still or the
    /// link was away, and not how long an answer takes: it had to be asked again.
    pub(super) fn may_have_waited(&self, sent_at: Instant) -> bool {
        let is_asked_again = |challenge: &Challenge| challenge.attempts > 1;
        sent_at < self.unanswered_until
            || !self.validated && self.challenge.as_ref().is_some_and(is_asked_again)
    }

    /// The path answers.
    pub(super) fn end_excuses(&mut self) {
        self.excuse = Excuse::default();
    }

    pub(crate) fn loss_timer(&self) -> Option<Instant> {
        if matches!(self.state, State::Opening { .. }) {
            return None;
        }
        self.recovery.loss_at().or_else(|| self.pto_at())
    }

    fn pto_at(&self) -> Option<Instant> {
        let probes = match self.state {
            State::Silent { .. } => PROBES_ALIKE,
            State::Opening { .. } | State::Active => 1,
        };
        let at = (self.recovery).pto_at(&self.rtt, self.peer_ack_delay, probes)?;
        let excused = self.excuse.until.since(self.last_eliciting_at);
        let at = match self.tuple.socket.is_ordered() {
            true => at.max(self.last_eliciting_at + self.rtt.smoothed() + STREAM_PATIENCE),
            false => at,
        };
        let at = at + excused;
        // Back-off must not make a path that has come back wait long to be noticed.
        let latest = self.last_eliciting_at
            + excused
            + PROBE_INTERVAL_MAX.max(2 * (self.rtt.pto_base() + self.peer_ack_delay));
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
        self.probes_due = 2;
        let is_hopeless = self.recovery.pto_count().is_multiple_of(HOPELESS);
        if others || is_hopeless {
            self.give_up_in_flight(now, news);
        }
        let patient = match others {
            true => self.may_wait_behind_data(now),
            false => self.recovery.pto_count() < 3 && !self.is_long_unanswered(now),
        };
        if self.is_active() && !patient {
            self.state = State::Silent { since: now };
            news.down = Some(PathDownReason::NoAnswer);
        }
    }

    /// Whether what is in flight has been without an answer for so long that nobody is to wait for
    /// the path any more.
    fn is_long_unanswered(&self, now: Instant) -> bool {
        let since = self.recovery.unanswered_since();
        since.is_some_and(|since| since.max(self.excuse.until) + LAST_PATIENCE <= now)
    }

    /// Whether the peer sends by the path all the while, and it is not silent for longer than its
    /// answers may wait behind that.
    fn may_wait_behind_data(&self, now: Instant) -> bool {
        let pto = self.rtt.pto_base();
        let is_sending = |asked_at: Instant| asked_at + pto >= now;
        let waited = pto * ((1 << self.recovery.pto_count().min(8)) - 1);
        self.received.asked_at().is_some_and(is_sending)
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
        let is_asked = now.since(self.last_eliciting_at) < ASKED_FOR.max(self.rtt.smoothed());
        if matches!(self.state, State::Silent { .. }) && !is_asked {
            self.keep_alive_due = true;
        }
    }

    /// When silence on the path should be broken. Never by more questions than may be open.
    pub(crate) fn keep_alive_at(&self, interval: Duration) -> Option<Instant> {
        let quiet_since = self.last_received_at.max(self.last_eliciting_at);
        match self.state {
            State::Active if self.recovery.asks_enough(self.cwnd()) => None,
            State::Active => Some(quiet_since + interval),
            State::Silent { .. } if !self.recovery.has_eliciting_in_flight() => {
                Some(self.last_eliciting_at + PROBE_INTERVAL_MAX)
            }
            State::Opening { .. } | State::Silent { .. } => None,
        }
    }
}
