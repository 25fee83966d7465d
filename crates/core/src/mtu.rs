//! How large packets on a path may be (RFC 8899, DPLPMTUD).
//!
//! Starts at a size every path must carry, tries the interface's own size at once (nearly always
//! right), and searches between the two only when that fails. A path whose full-size packets all
//! vanish while others arrive falls back (§4.4).

use tabane_base::{Duration, Instant};

/// What every path must carry (RFC 9000 §14.1).
pub(crate) const BASE_SIZE: u16 = 1200;
/// A size failed when so many probes of it were lost (RFC 8899 §5.1.2).
const MAX_PROBES: u8 = 3;
/// The search ends when the bounds are so close.
const STEP: u16 = 20;
/// How long until a larger size is tried again (RFC 8899 §5.1.1).
const RAISE_INTERVAL: Duration = Duration::from_secs(600);
/// So many large packets lost in a row, with none so large acknowledged, mean a black hole; unless
/// all had left before the first of them was missed: a queue that overflows loses many in a row.
const BLACK_HOLE: u8 = 8;

/// The search for one path's packet size. Sizes are UDP payloads.
#[derive(Clone, Debug)]
pub(crate) struct MtuDiscovery {
    current: u16,
    /// Nothing larger is worth trying.
    ceiling: u16,
    /// The smallest size that failed.
    failed: u16,
    lost_probes: u8,
    in_flight: bool,
    lost_in_a_row: u8,
    /// When the first of those was missed, and the smallest.
    missed_at: Instant,
    smallest_lost: u16,
    /// The largest of the packets that were given up when nothing was heard.
    given_up: u16,
    raise_at: Option<Instant>,
}

impl MtuDiscovery {
    pub(crate) fn new(ceiling: u16) -> Self {
        Self {
            current: BASE_SIZE,
            ceiling: ceiling.max(BASE_SIZE),
            failed: ceiling.max(BASE_SIZE) + 1,
            lost_probes: 0,
            in_flight: false,
            lost_in_a_row: 0,
            missed_at: Instant::EPOCH,
            smallest_lost: 0,
            given_up: 0,
            raise_at: None,
        }
    }

    pub(crate) const fn current(&self) -> u16 {
        self.current
    }

    /// The size to probe now, if any.
    pub(crate) fn wants_probe(&self, now: Instant) -> Option<u16> {
        if self.in_flight || self.raise_at.is_some_and(|at| now < at) {
            return None;
        }
        let failed = if self.raise_at.is_some() {
            self.ceiling + 1
        } else {
            self.failed
        };
        match failed - 1 {
            top if top <= self.current => None,
            top if top == self.ceiling => Some(top),
            top if top - self.current < STEP => None,
            top => Some(self.current + (top - self.current) / 2),
        }
    }

    /// When [`wants_probe`](Self::wants_probe) will say more.
    pub(crate) const fn raise_at(&self) -> Option<Instant> {
        self.raise_at
    }

    pub(crate) fn on_probe_sent(&mut self) {
        self.in_flight = true;
        if self.raise_at.take().is_some() {
            self.failed = self.ceiling + 1;
        }
    }

    /// `true` when packets may be larger from now on.
    pub(crate) fn on_probe_acked(&mut self, now: Instant, size: u16) -> bool {
        self.in_flight = false;
        self.lost_probes = 0;
        let grows = size > self.current;
        self.current = self.current.max(size);
        if self.failed <= self.current {
            // It was taken for too large while this probe was on its way.
            self.failed = self.ceiling + 1;
        }
        self.settle(now);
        grows
    }

    pub(crate) fn on_probe_lost(&mut self, now: Instant, size: u16) {
        self.in_flight = false;
        if size <= self.current {
            return;
        }
        self.lost_probes += 1;
        if self.lost_probes >= MAX_PROBES {
            self.lost_probes = 0;
            self.failed = self.failed.min(size);
            self.settle(now);
        }
    }

    fn settle(&mut self, now: Instant) {
        if self.current < self.ceiling && self.failed - 1 - self.current < STEP {
            self.raise_at = Some(now + RAISE_INTERVAL);
        }
    }

    /// It says nothing of larger ones.
    pub(crate) const fn on_packet_acked(&mut self, size: u16) {
        if size >= self.smallest_lost {
            self.lost_in_a_row = 0;
        }
        if size >= self.given_up {
            self.given_up = 0;
        }
    }

    /// A packet was given up because nothing was heard: whether it was lost shows when something
    /// is.
    pub(crate) fn on_packet_given_up(&mut self, size: u16) {
        self.given_up = self.given_up.max(size);
    }

    /// Something sent since was acknowledged, and nothing of what was given up: the path carries
    /// small packets alone, perhaps. `true` when the packet size fell back.
    pub(crate) fn on_alive(&mut self, now: Instant) -> bool {
        let size = std::mem::take(&mut self.given_up);
        self.on_packet_lost(now, now, size)
    }

    /// `true` when the packet size fell back.
    pub(crate) fn on_packet_lost(&mut self, now: Instant, sent_at: Instant, size: u16) -> bool {
        if size <= BASE_SIZE || self.current == BASE_SIZE {
            return false;
        }
        (self.missed_at, self.smallest_lost) = match self.lost_in_a_row {
            0 => (now, size),
            _ => (self.missed_at, self.smallest_lost.min(size)),
        };
        self.lost_in_a_row = self.lost_in_a_row.saturating_add(1);
        if self.lost_in_a_row < BLACK_HOLE || sent_at < self.missed_at {
            return false;
        }
        self.lost_in_a_row = 0;
        self.current = BASE_SIZE;
        self.failed = self.failed.min(size);
        self.settle(now);
        true
    }

    /// The path moved: search anew.
    pub(crate) fn reset(&mut self) {
        *self = Self::new(self.ceiling);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches on a path that carries at most `limit` bytes.
    fn search(limit: u16, ceiling: u16) -> (u16, usize) {
        let mut mtu = MtuDiscovery::new(ceiling);
        let mut probes = 0;
        while let Some(size) = mtu.wants_probe(Instant::EPOCH) {
            mtu.on_probe_sent();
            probes += 1;
            if size <= limit {
                mtu.on_probe_acked(Instant::EPOCH, size);
            } else {
                mtu.on_probe_lost(Instant::EPOCH, size);
            }
        }
        (mtu.current(), probes)
    }

    #[test]
    fn the_interface_size_is_found_in_one_probe_and_others_within_a_step() {
        assert_eq!(search(1472, 1472), (1472, 1));
        for limit in [1200, 1240, 1300, 1352, 1400, 1471] {
            let (found, probes) = search(limit, 1472);
            assert!(
                found <= limit && limit - found < STEP + STEP / 2,
                "{limit}: {found}"
            );
            assert!(probes < 20, "{limit}: {probes} probes");
        }
    }

    #[test]
    fn a_black_hole_falls_back_only_when_nothing_large_arrives() {
        let mut mtu = MtuDiscovery::new(1472);
        mtu.on_probe_sent();
        assert!(mtu.on_probe_acked(Instant::EPOCH, 1472));
        for round in 0..20 {
            mtu.on_packet_given_up(1472);
            assert!(
                !mtu.on_packet_lost(Instant::EPOCH, Instant::EPOCH, 1472),
                "{round}"
            );
            mtu.on_packet_acked(1472);
            assert!(!mtu.on_alive(Instant::EPOCH), "{round}");
        }
        // A queue overflowed, and what arrived next was small.
        let mut overflowed = mtu.clone();
        for now in (10..18).map(Instant::from_millis) {
            assert!(!overflowed.on_packet_lost(now, Instant::from_millis(9), 1472));
        }
        let (now, sent_at) = (Instant::from_millis(20), Instant::from_millis(11));
        assert!(overflowed.on_packet_lost(now, sent_at, 1472));
        let mut silent = mtu.clone();
        let fell = (0..8)
            .filter(|_| mtu.on_packet_lost(Instant::EPOCH, Instant::EPOCH, 1472))
            .count();
        assert_eq!((fell, mtu.current()), (1, BASE_SIZE));
        // Where each one is alone on its way, and probes are answered.
        let fell = (0..8).filter(|_| {
            silent.on_packet_given_up(1472);
            silent.on_packet_acked(40);
            silent.on_alive(Instant::EPOCH)
        });
        assert_eq!((fell.count(), silent.current()), (1, BASE_SIZE));
    }

    /// A call's packets pass beside an upload's, which are of full size and vanish.
    #[test]
    fn packets_that_are_smaller_than_what_is_lost_do_not_hide_a_black_hole() {
        let mut mtu = MtuDiscovery::new(1472);
        mtu.on_probe_sent();
        assert!(mtu.on_probe_acked(Instant::EPOCH, 1472));
        let mut given_up = mtu.clone();
        let fell = (0..8).filter(|_| {
            mtu.on_packet_acked(1300);
            mtu.on_packet_lost(Instant::EPOCH, Instant::EPOCH, 1472)
        });
        assert_eq!((fell.count(), mtu.current()), (1, BASE_SIZE));
        let fell = (0..8).filter(|_| {
            given_up.on_packet_given_up(1472);
            given_up.on_packet_acked(1300);
            given_up.on_alive(Instant::EPOCH)
        });
        assert_eq!((fell.count(), given_up.current()), (1, BASE_SIZE));
    }
}
