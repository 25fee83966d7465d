//! The server's end of a connection: what leaves when, by the rules of the paper's time or today's.
//!
//! [`Recent`] is what a web server's system does at present, as far as it matters to a fetch: ten
//! packets at first (RFC 6928), an end of slow start when delay grows (RFC 9406), selective
//! acknowledgements (RFC 6675), a probe before the timer (RFC 8985), 0.7 of the window after a loss
//! (RFC 9438), and a small window again after a rest (RFC 5681 §4.1). Sequence numbers count
//! packets.

use std::collections::{BTreeMap, BTreeSet};

use tabane_base::{Duration, Instant};

use crate::reno::RenoSender;

/// The receiver's window of the paper's time, in packets: 32 kB.
const PAPERS_WINDOW: u64 = 22;
/// That of today, in packets: 4 MB.
const WINDOW: usize = 2_740;
const INITIAL_WINDOW: f64 = 10.0;
/// What a loss leaves of the window.
const KEPT: f64 = 0.7;
/// A packet is lost when so many that were sent later have come.
const REORDERING: u64 = 3;
const RTO_INITIAL: Duration = Duration::from_secs(1);
const RTO_MIN: Duration = Duration::from_millis(200);
const RTO_MAX: Duration = Duration::from_secs(60);
/// A growing delay ends slow start from this window on, and by how much it must have grown.
const LEAST_DELAYED_WINDOW: f64 = 16.0;
const DELAY_GROWTH: (Duration, Duration) = (Duration::from_millis(4), Duration::from_millis(16));
const DELAY_SAMPLES: u32 = 8;

/// Whose TCP a server has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tcp {
    /// Reno with a window of 32 kB.
    Papers,
    /// Today's.
    #[default]
    Recent,
}

#[derive(Debug)]
pub(super) enum Sender {
    Papers(RenoSender),
    Recent(Recent),
}

impl Sender {
    pub(super) fn new(tcp: Tcp) -> Self {
        match tcp {
            Tcp::Papers => {
                let mut sender = RenoSender::new(PAPERS_WINDOW);
                sender.set_end(0);
                Self::Papers(sender)
            }
            Tcp::Recent => Self::Recent(Recent::default()),
        }
    }

    /// There are so many packets in all, until more are said to be.
    pub(super) fn set_end(&mut self, packets: u64) {
        match self {
            Self::Papers(sender) => sender.set_end(packets),
            Self::Recent(sender) => sender.end = packets,
        }
    }

    /// The client has everything below `ack`, and this one.
    pub(super) fn handle_ack(&mut self, now: Instant, ack: u64, number: u64) {
        match self {
            Self::Papers(sender) => sender.handle_ack(now, ack),
            Self::Recent(sender) => sender.handle_ack(now, ack, number),
        }
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        match self {
            Self::Papers(sender) => sender.handle_timeout(now),
            Self::Recent(sender) => sender.handle_timeout(now),
        }
    }

    /// The number of the next packet that leaves now.
    pub(super) fn poll_transmit(&mut self, now: Instant) -> Option<u64> {
        match self {
            Self::Papers(sender) => sender.poll_transmit(now),
            Self::Recent(sender) => sender.poll_transmit(now),
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        match self {
            Self::Papers(sender) => sender.poll_timeout(),
            Self::Recent(sender) => sender.poll_timeout(),
        }
    }
}

/// A packet on its way.
#[derive(Clone, Copy, Debug)]
struct Sent {
    at: Instant,
    /// How many were sent before it.
    order: u64,
    is_repeated: bool,
}

/// A sender of today.
#[derive(Debug)]
pub(super) struct Recent {
    cwnd: f64,
    ssthresh: f64,
    next: u64,
    end: u64,
    flight: BTreeMap<u64, Sent>,
    lost: BTreeSet<u64>,
    order: u64,
    /// The latest sent of those that came.
    came: u64,
    /// Losses of what was sent earlier are of the same event.
    recovery: u64,
    rtt: Option<(Duration, Duration)>,
    rounds: Rounds,
    active_at: Instant,
    is_probed: bool,
    backoff: u32,
}

/// The least delay of this round trip and of the one before.
#[derive(Debug, Default)]
struct Rounds {
    ends_at: u64,
    least: Option<Duration>,
    before: Option<Duration>,
    samples: u32,
}

impl Default for Recent {
    fn default() -> Self {
        Self {
            cwnd: INITIAL_WINDOW,
            ssthresh: f64::MAX,
            next: 0,
            end: 0,
            flight: BTreeMap::new(),
            lost: BTreeSet::new(),
            order: 0,
            came: 0,
            recovery: 0,
            rtt: None,
            rounds: Rounds::default(),
            active_at: Instant::EPOCH,
            is_probed: false,
            backoff: 0,
        }
    }
}

impl Recent {
    fn handle_ack(&mut self, now: Instant, ack: u64, number: u64) {
        let in_flight = self.flight.len() as f64;
        let mut fresh = 0.0;
        if let Some(sent) = self.flight.remove(&number) {
            fresh += 1.0;
            self.came = self.came.max(sent.order);
            if !sent.is_repeated {
                self.on_round_trip(number, now - sent.at);
            }
        }
        let later = self.flight.split_off(&ack);
        fresh += self.flight.len() as f64;
        self.flight = later;
        self.lost = self.lost.split_off(&ack);
        self.lost.remove(&number);
        if fresh > 0.0 {
            self.active_at = now;
            self.is_probed = false;
            self.backoff = 0;
        }
        if in_flight + 1.0 >= self.cwnd {
            let growth = if self.cwnd < self.ssthresh {
                1.0
            } else {
                1.0 / self.cwnd
            };
            self.cwnd += fresh * growth;
        }
        self.find_losses();
    }

    fn on_round_trip(&mut self, number: u64, sample: Duration) {
        self.rtt = Some(match self.rtt {
            None => (sample, sample / 2),
            Some((smoothed, variation)) => {
                let deviation = smoothed.abs_diff(sample);
                ((smoothed * 7 + sample) / 8, (variation * 3 + deviation) / 4)
            }
        });
        let rounds = &mut self.rounds;
        rounds.least = Some(rounds.least.map_or(sample, |least| least.min(sample)));
        rounds.samples += 1;
        if let (Some(least), Some(before)) = (rounds.least, rounds.before) {
            let growth = (before / 8).clamp(DELAY_GROWTH.0, DELAY_GROWTH.1);
            let is_late = rounds.samples >= DELAY_SAMPLES && least >= before + growth;
            if is_late && self.cwnd < self.ssthresh && self.cwnd >= LEAST_DELAYED_WINDOW {
                self.ssthresh = self.cwnd;
            }
        }
        if number >= rounds.ends_at {
            rounds.ends_at = self.next;
            rounds.before = rounds.least.take();
            rounds.samples = 0;
        }
    }

    fn find_losses(&mut self) {
        let is_lost = |sent: &Sent| sent.order + REORDERING <= self.came;
        let lost = self.flight.iter().filter(|(_, sent)| is_lost(sent));
        let lost: Vec<(u64, u64)> = lost.map(|(number, sent)| (*number, sent.order)).collect();
        for (number, order) in lost {
            self.flight.remove(&number);
            self.lost.insert(number);
            if order >= self.recovery {
                self.recovery = self.order;
                self.cwnd = (self.cwnd * KEPT).max(2.0);
                self.ssthresh = self.cwnd;
            }
        }
    }

    fn rto(&self) -> Duration {
        let base = self.rtt.map_or(RTO_INITIAL, |(smoothed, variation)| {
            smoothed + (4 * variation).max(RTO_MIN)
        });
        base.saturating_mul(1 << self.backoff.min(6)).min(RTO_MAX)
    }

    fn handle_timeout(&mut self, now: Instant) {
        if self.poll_timeout().is_none_or(|at| at > now) {
            return;
        }
        self.active_at = now;
        if !self.is_probed {
            // The last one again: its acknowledgement tells what is missing.
            self.is_probed = true;
            if let Some((number, _)) = self.flight.pop_last() {
                self.lost.insert(number);
                self.cwnd = self.cwnd.max(self.flight.len() as f64 + 1.0);
            }
            return;
        }
        self.lost
            .extend(std::mem::take(&mut self.flight).into_keys());
        self.ssthresh = (self.cwnd * KEPT).max(2.0);
        self.cwnd = 1.0;
        self.recovery = self.order;
        self.backoff += 1;
    }

    fn poll_transmit(&mut self, now: Instant) -> Option<u64> {
        let is_idle = self.flight.is_empty() && self.lost.is_empty();
        if is_idle && now - self.active_at > self.rto() {
            self.cwnd = self.cwnd.min(INITIAL_WINDOW);
        }
        if self.flight.len() >= (self.cwnd as usize).clamp(1, WINDOW) {
            return None;
        }
        let repeated = self.lost.pop_first();
        let number = match repeated {
            Some(number) => number,
            None if self.next < self.end => {
                self.next += 1;
                self.next - 1
            }
            None => return None,
        };
        let sent = Sent {
            at: now,
            order: self.order,
            is_repeated: repeated.is_some(),
        };
        self.order += 1;
        self.flight.insert(number, sent);
        if is_idle {
            self.active_at = now;
            self.is_probed = false;
        }
        Some(number)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        if self.flight.is_empty() {
            return None;
        }
        let pause = match self.rtt {
            Some((smoothed, _)) if !self.is_probed => (2 * smoothed).max(RTO_MIN / 20),
            _ => self.rto(),
        };
        Some(self.active_at + pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Instant {
        Instant::from_millis(ms)
    }

    fn all(sender: &mut Recent, now: Instant) -> Vec<u64> {
        std::iter::from_fn(|| sender.poll_transmit(now)).collect()
    }

    #[test]
    fn ten_at_first_and_twice_as_many_each_round_trip() {
        let mut sender = Recent {
            end: 1_000,
            ..Recent::default()
        };
        let mut sent = all(&mut sender, ms(0));
        for (round, expected) in (1..).zip([10, 20, 40, 80]) {
            assert_eq!(sent.len(), expected);
            let mut next = Vec::new();
            for number in sent {
                sender.handle_ack(ms(round * 50), number + 1, number);
                next.extend(all(&mut sender, ms(round * 50)));
            }
            sent = next;
        }
    }

    #[test]
    fn what_is_lost_goes_again_once_and_costs_three_tenths() {
        let mut sender = Recent {
            end: 10,
            ..Recent::default()
        };
        all(&mut sender, ms(0));
        for number in [0, 3, 4, 5, 6, 7, 8, 9] {
            sender.handle_ack(ms(50), 1, number);
        }
        assert_eq!(all(&mut sender, ms(50)), [1, 2]);
        assert!((sender.cwnd - 7.7).abs() < 0.5, "{}", sender.cwnd);
    }

    #[test]
    fn a_lost_end_is_probed_for_before_the_timer() {
        let mut sender = Recent {
            end: 3,
            ..Recent::default()
        };
        all(&mut sender, ms(0));
        sender.handle_ack(ms(50), 1, 0);
        let at = sender.poll_timeout().expect("two are out");
        assert_eq!(at, ms(150));
        sender.handle_timeout(at);
        assert_eq!(all(&mut sender, at), [2]);
        let at = sender.poll_timeout().expect("two are out");
        sender.handle_timeout(at);
        assert_eq!(all(&mut sender, at), [1], "one at a time after the timer");
    }
}
