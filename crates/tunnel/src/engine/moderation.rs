//! How long the loop rests while strangers flood it, so that what they send comes in batches.
//!
//! A loop that is awake before the next datagram is there takes a turn for each, and puts off
//! whoever runs on its processor: the kernel's part of that is most of what a stray packet costs.
//! Network cards moderate their interrupts for the same reason. Pure: the time is an argument.

use tabane_base::{Duration, Instant};

/// Strangers' datagrams are counted for so long.
const WINDOW: Duration = Duration::from_millis(10);
/// So many in a window are a flood: 10,000 a second, of which each costs a turn.
const FLOOD: u64 = 100;
/// Far less than any link's round trip, and at 100,000 packets a second a batch of 25.
const REST: Duration = Duration::from_micros(250);

/// Counts strangers' datagrams, and says when to rest.
#[derive(Debug, Default)]
pub(super) struct Moderation {
    since: Instant,
    count: u64,
    /// The window before this one had a flood.
    is_flooded: bool,
}

/// The datagrams that a turn has heard.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Heard {
    pub(super) all: u64,
    /// Those for no session, as the endpoint counts them.
    pub(super) strangers: u64,
}

impl Moderation {
    /// The rest that is due after a turn, `None` where it has heard anything but a flood. The next
    /// turn has to be at `due`.
    pub(super) fn after(
        &mut self,
        now: Instant,
        heard: Heard,
        due: Option<Instant>,
    ) -> Option<Duration> {
        let age = now.since(self.since);
        if age >= WINDOW {
            // A window that nobody looked at was a quiet one.
            self.is_flooded = self.count >= FLOOD && age < WINDOW * 2;
            (self.since, self.count) = (now, 0);
        }
        self.count += heard.strangers;
        let only_strangers = heard.all > 0 && heard.all == heard.strangers;
        let rest = due.map_or(REST, |due| due.since(now).min(REST));
        (self.is_flooded && only_strangers && rest > Duration::ZERO).then_some(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRAY: Heard = Heard {
        all: 1,
        strangers: 1,
    };

    /// A stray every so many microseconds, for 50 ms; how many rests there are.
    fn rests(moderation: &mut Moderation, from_ms: u64, apart_us: u64) -> usize {
        let begin = Instant::from_millis(from_ms);
        let times = (0..50_000 / apart_us).map(|n| begin + Duration::from_micros(n * apart_us));
        times
            .filter(|now| moderation.after(*now, STRAY, None).is_some())
            .count()
    }

    #[test]
    fn it_rests_in_a_flood_and_never_else() {
        let mut moderation = Moderation::default();
        assert_eq!(rests(&mut moderation, 1_000, 1_000), 0, "a few");
        let in_flood = rests(&mut moderation, 2_000, 50);
        // All but those of the first window.
        assert!((700..=800).contains(&in_flood), "{in_flood}");
        let now = Instant::from_millis(2_050);
        let a_session_s_too = Heard { all: 2, ..STRAY };
        assert_eq!(moderation.after(now, a_session_s_too, None), None);
        assert_eq!(moderation.after(now, Heard::default(), None), None);
        assert_eq!(moderation.after(now, STRAY, None), Some(REST));
        let soon = now + Duration::from_micros(90);
        let rest = moderation.after(now, STRAY, Some(soon));
        assert_eq!(rest, Some(Duration::from_micros(90)));
        assert_eq!(moderation.after(now, STRAY, Some(now)), None);
        // Some time later there is none.
        assert_eq!(rests(&mut moderation, 3_000, 1_000), 0, "it is over");
    }
}
