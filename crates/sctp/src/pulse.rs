//! Which paths answer.
//!
//! The stack leaves a path alone from its first timeout on, until it answers (RFC 7829), and
//! does not say so. After a few more it would declare the path failed; then, with CMT, usrsctp
//! sends data that way again, and the whole association waits for a timeout of seconds each time.
//! So it never gets that far (`opening.rs`), and who wants to know which paths work looks here.
//!
//! Pure: time is what the stack was told of, packets are bytes.

use std::collections::BTreeMap;

use tabane_base::Duration;

use crate::packet;
use crate::path::PathId;

/// Beyond two round trips: the least timeout and the peer's delay of acknowledgements.
const MARGIN: Duration = Duration::from_millis(900);

/// Beyond half a round trip: half of the least timeout, and more than a receiver's delay of
/// acknowledgements.
const QUIET_MARGIN: Duration = Duration::from_millis(300);

/// The paths of one association.
#[derive(Debug, Default)]
pub(crate) struct Pulses(BTreeMap<PathId, Pulse>);

#[derive(Debug, Default)]
struct Pulse {
    /// Since when an answer is wanted that has not come: since the first packet left that wants
    /// one, or since the last answer, where others have left before that.
    asked_at: Option<Duration>,
    /// The peer says that it knows no association with us there.
    is_disowned: bool,
}

impl Pulses {
    /// A packet leaves by a path.
    pub(crate) fn on_transmit(&mut self, now: Duration, path: PathId, packet: &[u8]) {
        if packet::wants_answer(packet) {
            let pulse = self.0.entry(path).or_default();
            pulse.asked_at.get_or_insert(now);
        }
    }

    /// A packet has come by a path.
    pub(crate) fn on_packet(&mut self, path: PathId, packet: &[u8]) {
        let pulse = self.0.entry(path).or_default();
        pulse.is_disowned = packet::is_disowning(packet);
    }

    /// Data is known to have arrived by a path, or a probe to have been answered; `waits` says
    /// whether other data is still under way there.
    pub(crate) fn on_answer(&mut self, now: Duration, path: PathId, waits: bool) {
        if let Some(pulse) = self.0.get_mut(&path) {
            pulse.asked_at = waits.then_some(now);
        }
    }

    /// A path leads another way, of which nothing is known.
    pub(crate) fn forget(&mut self, path: PathId) {
        self.0.remove(&path);
    }

    /// Whether a path, of this round trip, does not answer.
    pub(crate) fn is_silent(&self, now: Duration, path: PathId, srtt: Duration) -> bool {
        let asked_at = self.0.get(&path).and_then(|pulse| pulse.asked_at);
        asked_at.is_some_and(|asked_at| now > asked_at + srtt * 2 + MARGIN)
    }

    /// Whether nothing has come back by a path, of this round trip, for so long that it had better
    /// be left alone until it answers: sooner than the stack's timeout.
    pub(crate) fn is_quiet(&self, now: Duration, path: PathId, srtt: Duration) -> bool {
        let asked_at = self.0.get(&path).and_then(|pulse| pulse.asked_at);
        asked_at.is_some_and(|asked_at| now > asked_at + srtt / 2 + QUIET_MARGIN)
    }

    /// Whether the peer's last word by a path was that it knows no association there.
    pub(crate) fn is_disowned(&self, path: PathId) -> bool {
        self.0.get(&path).is_some_and(|pulse| pulse.is_disowned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{IpAddr, Ipv4Addr};

    const PATH: PathId = PathId(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)));
    const OTHER: PathId = PathId(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)));
    const SRTT: Duration = Duration::from_millis(50);

    fn chunk(kind: u8, flags: u8) -> Vec<u8> {
        let mut packet = vec![0; packet::COMMON_HEADER];
        packet.extend([kind, flags, 0, 20]);
        packet.resize(packet::COMMON_HEADER + 20, 0);
        packet
    }

    #[test]
    fn a_path_is_silent_from_what_it_does_not_answer() {
        const DATA: u8 = 0;
        const SACK: u8 = 3;
        const PROBE: u8 = 4;
        let ms = Duration::from_millis;
        let mut pulses = Pulses::default();
        let silent = |pulses: &Pulses, at| pulses.is_silent(ms(at), PATH, SRTT);
        assert!(!silent(&pulses, 9_000));
        pulses.on_transmit(ms(10), PATH, &chunk(SACK, 0));
        assert!(!silent(&pulses, 9_000), "nobody answers that");
        pulses.on_transmit(ms(100), PATH, &chunk(DATA, 3));
        pulses.on_transmit(ms(1_000), PATH, &chunk(PROBE, 0));
        assert!(!silent(&pulses, 1_100) && silent(&pulses, 1_101));
        pulses.on_answer(ms(1_000), OTHER, false);
        pulses.on_packet(PATH, &chunk(SACK, 0));
        assert!(silent(&pulses, 1_101), "it may be another path's");
        pulses.on_answer(ms(1_100), PATH, true);
        assert!(!silent(&pulses, 2_100) && silent(&pulses, 2_101));
        let quiet = |pulses: &Pulses, at| pulses.is_quiet(ms(at), PATH, SRTT);
        assert!(!quiet(&pulses, 1_425) && quiet(&pulses, 1_426));
        pulses.on_answer(ms(2_000), PATH, false);
        assert!(!silent(&pulses, 19_000) && !quiet(&pulses, 19_000));
    }

    #[test]
    fn a_stranger_s_abort_counts_until_something_else_comes() {
        let mut pulses = Pulses::default();
        pulses.on_packet(PATH, &chunk(6, 0));
        assert!(!pulses.is_disowned(PATH), "that is the peer's own end");
        pulses.on_packet(PATH, &chunk(6, 1));
        assert!(pulses.is_disowned(PATH) && !pulses.is_disowned(OTHER));
        pulses.on_packet(PATH, &chunk(3, 0));
        assert!(!pulses.is_disowned(PATH));
    }
}
