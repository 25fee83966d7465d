//! When the follower asks and looks of its own accord. Pure: asked with the time.

use tabane_base::Duration;
use tokio::time::Instant;

/// How often NetworkManager is asked which links are metered, beside whenever interfaces change.
const ASK_INTERVAL: Duration = Duration::from_secs(60);
/// It hears of changes a moment later itself.
const ASK_DELAY: Duration = Duration::from_millis(300);
/// When a gateway's card is looked for once more, and how often: the first packet towards it has
/// the kernel ask, and nobody is told of the answer.
const LOOK_DELAY: Duration = Duration::from_millis(100);
const LOOKS: u32 = 5;

/// See the module.
pub(super) struct Rounds {
    ask_at: Instant,
    /// By then NetworkManager has heard of the last change.
    heard_at: Instant,
    look_at: Instant,
    looks: u32,
}

impl Rounds {
    /// All has just been asked and looked at.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            ask_at: now + ASK_INTERVAL,
            heard_at: now,
            look_at: now + LOOK_DELAY,
            looks: LOOKS,
        }
    }

    /// Interfaces have changed, and are looked at.
    pub(super) fn on_change(&mut self, now: Instant) {
        self.heard_at = now + ASK_DELAY;
        // Who changes all the time does not put it off.
        self.ask_at = self.ask_at.min(self.heard_at);
        self.look_at = now + LOOK_DELAY;
        self.looks = LOOKS;
    }

    /// When NetworkManager is to be asked.
    pub(super) const fn ask_at(&self) -> Instant {
        self.ask_at
    }

    /// It is asked now; once more, if it may not have heard of the last change.
    pub(super) fn on_ask(&mut self, now: Instant) {
        self.ask_at = match self.heard_at > now {
            true => self.heard_at,
            false => now + ASK_INTERVAL,
        };
    }

    /// When interfaces are to be looked at once more, where a gateway's card is missing; `None`
    /// where that has been in vain often enough.
    pub(super) fn look_at(&self) -> Option<Instant> {
        (self.looks > 0).then_some(self.look_at)
    }

    /// They are looked at now.
    pub(super) fn on_look(&mut self, now: Instant) {
        self.look_at = now + LOOK_DELAY;
        self.looks = self.looks.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When NetworkManager is asked within so many seconds, in milliseconds from the beginning on,
    /// where interfaces change at these.
    fn asked(changes: &[u64], seconds: u64) -> Vec<u64> {
        let begin = Instant::now();
        let mut rounds = Rounds::new(begin);
        let mut asked = Vec::new();
        for ms in 0..=seconds * 1_000 {
            let now = begin + Duration::from_millis(ms);
            if changes.contains(&ms) {
                rounds.on_change(now);
            }
            if rounds.ask_at() <= now {
                asked.push(ms);
                rounds.on_ask(now);
            }
        }
        asked
    }

    #[test]
    fn network_manager_is_asked_each_minute_and_when_it_has_heard_of_a_change() {
        assert_eq!(asked(&[], 130), [60_000, 120_000]);
        assert_eq!(asked(&[5_000], 70), [5_300, 65_300]);
        // What changed just before it was asked is asked for again.
        assert_eq!(asked(&[5_000, 5_290], 70), [5_300, 5_590, 65_590]);
        assert_eq!(asked(&[59_900], 70), [60_000, 60_200]);
        let all_the_time: Vec<u64> = (1_000..3_000).step_by(50).collect();
        let expected = [1_300, 1_600, 1_900, 2_200, 2_500, 2_800, 3_100, 3_250];
        assert_eq!(asked(&all_the_time, 10), expected);
    }

    #[test]
    fn a_gateways_card_is_looked_for_five_times_after_each_change() {
        let begin = Instant::now();
        let mut rounds = Rounds::new(begin);
        let mut begun_at = begin;
        for _ in 0..2 {
            for look in 1..=LOOKS {
                let at = begun_at + LOOK_DELAY * look;
                assert_eq!(rounds.look_at(), Some(at));
                rounds.on_look(at);
            }
            assert_eq!(rounds.look_at(), None);
            begun_at += Duration::from_secs(10);
            rounds.on_change(begun_at);
        }
        // A change is a look itself.
        let next = begun_at + LOOK_DELAY / 2;
        rounds.on_change(next);
        assert_eq!(rounds.look_at(), Some(next + LOOK_DELAY));
    }
}
