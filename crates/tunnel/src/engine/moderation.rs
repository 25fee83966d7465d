//! How long the loop rests before its next turn, so that what is sent to it comes in batches.
//!
//! A loop that is awake before the next datagram is there takes a turn for each: waking the thread,
//! reading, handing on and answering cost far more than the packet itself, whether it is a
//! stranger's or carries a download. Network cards moderate their interrupts for the same reason.
//! A rest is no delay of the network's: datagrams have the kernel's time of arrival. It is taken
//! where the thread would wait for the kernel, when all its tasks have had their turns, and not by
//! a timer, since what comes meanwhile would wake the thread. [`Moderation`] is pure: the time is
//! an argument.

use std::cell::Cell;

use tabane_base::{Duration, Instant};
use tabane_linux::HostClock;

thread_local! {
    /// Until when the loop of this thread rests.
    static RESTS_UNTIL: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Has the thread rest until then, once nothing else is to be done.
pub(super) fn rest_until(until: Option<Instant>) {
    RESTS_UNTIL.set(until);
}

/// Takes the rest that there is.
pub(crate) fn rest() {
    if let Some(until) = RESTS_UNTIL.take() {
        std::thread::sleep(until.since(HostClock::new().now()));
    }
}

/// Datagrams are counted for so long.
const WINDOW: Duration = Duration::from_millis(10);
/// So many strangers' in a window are a flood: 10,000 a second, of which each costs a turn.
const FLOOD: u64 = 100;
/// Far less than any link's round trip, and at 100,000 packets a second a batch of 25.
const FLOOD_REST: Duration = Duration::from_micros(250);
/// The longest rest while sessions' packets come.
const MAX_REST: Duration = Duration::from_millis(1);
/// A rest is at most this part of the round trip of the nearest path, which neither its window nor
/// who waits for an answer notices.
const ROUND_TRIP_PART: u32 = 32;
/// Fewer packets than this are not worth a rest, and a turn that has heard so many needs none.
const WORTHWHILE: u128 = 3;
const ENOUGH: u64 = 16;

/// Counts datagrams, and says when to rest.
#[derive(Clone, Debug, Default)]
pub(super) struct Moderation {
    since: Instant,
    count: Heard,
    /// What came in the window before this one.
    lately: Heard,
    rests_until: Instant,
}

/// The datagrams that a turn has heard.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Heard {
    pub(super) all: u64,
    /// Those for no session, as the endpoint counts them.
    pub(super) strangers: u64,
}

impl Moderation {
    /// Until when to rest after a turn, `None` where there is no rest; one that has heard nothing
    /// leaves it at what was said before. `nearest` is the shortest round trip of a path of the
    /// sessions that took part in the turn. The next turn has to be at `due`.
    pub(super) fn after(
        &mut self,
        now: Instant,
        heard: Heard,
        nearest: Option<Duration>,
        due: Option<Instant>,
    ) -> Option<Instant> {
        self.count(now, heard);
        if heard.all > 0 {
            let rest = match heard.all - heard.strangers {
                0 => (self.lately.strangers >= FLOOD).then_some(FLOOD_REST),
                1..ENOUGH => nearest.and_then(|nearest| self.between_packets(nearest)),
                _ => None,
            };
            self.rests_until = now + rest.unwrap_or_default();
        }
        let until = due.map_or(self.rests_until, |due| due.min(self.rests_until));
        (until > now).then_some(until)
    }

    fn count(&mut self, now: Instant, heard: Heard) {
        let age = now.since(self.since);
        if age >= WINDOW {
            // A window that nobody looked at was a quiet one.
            self.lately = match age < WINDOW * 2 {
                true => self.count,
                false => Heard::default(),
            };
            (self.since, self.count) = (now, Heard::default());
        }
        self.count.all += heard.all;
        self.count.strangers += heard.strangers;
    }

    /// The rest that is worth taking while sessions' packets come as they do.
    fn between_packets(&self, nearest: Duration) -> Option<Duration> {
        let sessions = u32::try_from(self.lately.all - self.lately.strangers).ok()?;
        // A socket of an ordinary user's holds some 90 packets.
        let until_enough = (WINDOW * ENOUGH as u32).checked_div(sessions)?;
        let rest = (nearest / ROUND_TRIP_PART).min(MAX_REST).min(until_enough);
        let packets = u128::from(sessions) * rest.as_nanos() / WINDOW.as_nanos();
        (packets >= WORTHWHILE).then_some(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRAY: Heard = Heard {
        all: 1,
        strangers: 1,
    };
    const PACKET: Heard = Heard {
        all: 1,
        strangers: 0,
    };
    const NEAREST: Duration = Duration::from_millis(16);

    /// Turns that hear so much every so many microseconds, for 50 ms; how many end with a rest.
    fn rests(moderation: &mut Moderation, heard: Heard, from_ms: u64, apart_us: u64) -> usize {
        let begin = Instant::from_millis(from_ms);
        let times = (0..50_000 / apart_us).map(|n| begin + Duration::from_micros(n * apart_us));
        times
            .filter(|now| {
                let rest = moderation.after(*now, heard, Some(NEAREST), None);
                rest.is_some()
            })
            .count()
    }

    #[test]
    fn it_rests_in_a_flood_and_not_where_a_few_strangers_come() {
        let mut moderation = Moderation::default();
        assert_eq!(rests(&mut moderation, STRAY, 1_000, 1_000), 0, "a few");
        let in_flood = rests(&mut moderation, STRAY, 2_000, 50);
        // All but those of the first window.
        assert!((700..=800).contains(&in_flood), "{in_flood}");
        let now = Instant::from_millis(2_050);
        let mut after = |heard, due| moderation.after(now, heard, None, due);
        assert_eq!(after(STRAY, None), Some(now + FLOOD_REST));
        let soon = now + Duration::from_micros(90);
        assert_eq!(after(STRAY, Some(soon)), Some(soon));
        assert_eq!(after(STRAY, Some(now)), None);
        assert_eq!(
            after(Heard::default(), None),
            Some(now + FLOOD_REST),
            "as before"
        );
        let a_session_s_too = Heard { all: 2, ..STRAY };
        assert_eq!(after(a_session_s_too, None), None);
        assert_eq!(after(Heard::default(), None), None, "nor now");
        // Some time later there is none.
        assert_eq!(rests(&mut moderation, STRAY, 3_000, 1_000), 0, "it is over");
    }

    #[test]
    fn it_rests_between_a_session_s_packets_where_several_come_meanwhile() {
        let mut moderation = Moderation::default();
        assert_eq!(rests(&mut moderation, PACKET, 1_000, 500), 0, "one or two");
        let in_bulk = rests(&mut moderation, PACKET, 2_000, 100);
        // All but those of the first window.
        assert!((380..=400).contains(&in_bulk), "{in_bulk}");
        let now = Instant::from_millis(2_050);
        let rest = |nearest_ms| {
            let nearest = Some(Duration::from_millis(nearest_ms));
            moderation.clone().after(now, PACKET, nearest, None)
        };
        assert_eq!(rest(16), Some(now + Duration::from_micros(500)));
        assert_eq!(rest(200), Some(now + MAX_REST));
        assert_eq!(rest(5), None, "two packets come in so short a time");
        // At a gigabit a second no more comes meanwhile than a small socket holds.
        rests(&mut moderation, PACKET, 2_500, 10);
        let until = moderation.after(Instant::from_millis(2_550), PACKET, Some(NEAREST), None);
        let rest = until.map(|until| until.since(Instant::from_millis(2_550)));
        assert_eq!(rest, Some(Duration::from_micros(160)));
        let a_batch = Heard {
            all: ENOUGH,
            strangers: 0,
        };
        assert_eq!(rests(&mut moderation, a_batch, 3_000, 100), 0);
    }
}
