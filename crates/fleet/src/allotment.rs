//! How a volume is shared by a fleet's relays: by turns of a part of it, each lent to one relay.
//!
//! Owns the two records, an account for each user and a holding for each relay that serves it, and
//! that what is lent is never more than the volume. Both are to be changed together or not at all;
//! that, and where they stand, is the store's affair. A relay lets through what it holds and no
//! more, so all of them together stay within the volume whatever becomes of any of them: what a
//! relay held when it was killed counts as used. At most that much is lost to the user, and nothing
//! to the owner.

use serde::{Deserialize, Serialize};
use tabane_base::{Bytes, Duration};

/// A volume is lent in so many parts, within [`LEAST`] and [`MOST`].
const PARTS: u64 = 128;
/// Where it is used fast, in no fewer than so many: a relay that is killed takes what it holds.
const FEWEST_PARTS: u64 = 16;
/// A part is to last so long: it is asked for when half of the last one is left, and each costs
/// etcd a write and the relay one on its disk.
const LASTS: Duration = Duration::from_millis(500);
/// Less would be asked for too often: 8 ms at 1 Gbit/s.
const LEAST: Bytes = Bytes::mega(1);
/// More would be kept from other relays for long.
const MOST: Bytes = Bytes::mega(1_000);

/// What of a user's volume has been lent, by all relays together.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Account {
    /// The day or month that is counted.
    pub period: String,
    /// Bytes.
    pub lent: u64,
}

/// What one relay holds of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Allotment {
    /// The day or month that is counted.
    pub period: String,
    /// Bytes lent to it, in all.
    pub lent: u64,
    /// Bytes that passed there, as it last said.
    pub used: u64,
}

/// How much of `volume` is lent at a time.
#[must_use]
pub fn allotment_of(volume: Bytes) -> Bytes {
    let part = Bytes::new(volume.get() / PARTS);
    part.clamp(LEAST, MOST).min(volume)
}

/// The same to a relay where `used` passed in the time `since` the last part was lent.
#[must_use]
pub fn allotment_at(volume: Bytes, used: Bytes, since: Duration) -> Bytes {
    let usual = allotment_of(volume);
    let most = Bytes::new(volume.get() / FEWEST_PARTS).min(MOST).max(usual);
    let since = since.max(Duration::from_millis(1)).as_nanos();
    let lasts = u128::from(used.get()) * LASTS.as_nanos() / since;
    Bytes::new(u64::try_from(lasts).unwrap_or(u64::MAX)).clamp(usual, most)
}

/// Whether `period` comes after `before`: another kind of period does, an earlier one does not, for
/// a clock that was set back gives nothing back.
fn is_after(period: &str, before: &str) -> bool {
    period.len() != before.len() || period > before
}

impl Account {
    /// Begins `period` unless it is over already.
    fn enter(&mut self, holding: &mut Allotment, period: &str) {
        if is_after(period, &self.period) {
            *self = Self {
                period: period.to_owned(),
                lent: 0,
            };
        }
        if holding.period != self.period {
            *holding = Allotment {
                period: self.period.clone(),
                ..Allotment::default()
            };
        }
    }

    /// Whether `period` has begun after the one that is counted.
    #[must_use]
    pub fn is_over(&self, period: &str) -> bool {
        is_after(period, &self.period)
    }

    /// Lends one more part of what is left of `volume`; gives how much that is.
    pub fn lend(
        &mut self,
        holding: &mut Allotment,
        period: &str,
        (volume, part): (Bytes, Bytes),
    ) -> Bytes {
        self.enter(holding, period);
        let left = volume - Bytes::new(self.lent);
        let lent = part.min(left);
        self.lent = self.lent.saturating_add(lent.get());
        holding.lent = holding.lent.saturating_add(lent.get());
        lent
    }

    /// Takes back what `holding` has beyond `used`.
    pub fn settle(&mut self, holding: &mut Allotment, used: Bytes) {
        holding.used = used.get().min(holding.lent);
        if holding.period == self.period {
            self.lent = self.lent.saturating_sub(holding.lent - holding.used);
            holding.lent = holding.used;
        }
    }

    /// Puts back what a relay knows it was lent, where the records are of an older day: they were
    /// restored from a snapshot. True if something was missing.
    pub fn restore(&mut self, holding: &mut Allotment, known: &Allotment) -> bool {
        // An account without a period is one of which nothing was lent yet.
        if !self.period.is_empty() && is_after(&self.period, &known.period) {
            return false;
        }
        self.enter(holding, &known.period);
        let missing = known.lent.saturating_sub(holding.lent);
        self.lent = self.lent.saturating_add(missing);
        holding.lent += missing;
        holding.used = holding.used.max(known.used);
        missing > 0
    }
}

impl Allotment {
    /// From how much used on another part should be asked for, where the last was `part`: before
    /// that is used up.
    #[must_use]
    pub fn ask_from(&self, part: Bytes) -> Bytes {
        let kept = Bytes::new(part.get().div_ceil(2));
        (Bytes::new(self.lent) + Bytes::new(1)) - kept
    }

    /// Whether `used` is so much.
    #[must_use]
    pub fn wants_more(&self, used: Bytes, part: Bytes) -> bool {
        used >= self.ask_from(part)
    }

    /// As the relay that held it finds it when it starts again, however it ended.
    pub fn count_as_used(&mut self) {
        self.used = self.lent;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tabane_base::Seed;

    const DAY: &str = "2026-11-26";

    fn usual(volume: Bytes) -> (Bytes, Bytes) {
        (volume, allotment_of(volume))
    }

    /// What a relay holds while a user uses all of its volume at this rate, where `delay` passes
    /// between asking and having: the time for which nothing was left, and how many parts it took.
    fn stands_still(volume: Bytes, bytes_per_ms: u64, delay: u64) -> (u64, u64) {
        let (mut account, mut holding) = (Account::default(), Allotment::default());
        let mut part = allotment_of(volume);
        account.lend(&mut holding, DAY, (volume, part));
        let (mut used, mut lent_at, mut used_then) = (0, 0, 0);
        let (mut asked_at, mut still, mut parts) = (None, 0, 1);
        for now in 1.. {
            let passes = bytes_per_ms.min(holding.lent - used);
            used += passes;
            if used == volume.get() {
                break;
            }
            still += u64::from(passes < bytes_per_ms);
            if holding.wants_more(Bytes::new(used), part) && account.lent < volume.get() {
                asked_at.get_or_insert(now);
            }
            if asked_at.is_some_and(|at| now >= at + delay) {
                let since = Duration::from_millis(now - lent_at);
                part = allotment_at(volume, Bytes::new(used - used_then), since);
                account.lend(&mut holding, DAY, (volume, part));
                (asked_at, lent_at, used_then) = (None, now, used);
                parts += 1;
            }
        }
        (still, parts)
    }

    /// 100 MB at 1 Gbit/s, and 1 GB at 10 Gbit/s, by an etcd that takes 20 ms.
    #[test]
    fn a_part_is_as_large_as_it_is_used_fast() {
        for (volume, bytes_per_ms) in [(100, 125_000), (1_000, 1_250_000)] {
            let (still, parts) = stands_still(Bytes::mega(volume), bytes_per_ms, 20);
            println!("{volume} MB: nothing was left for {still} ms; {parts} parts");
            assert!(still < 50 && parts < 25, "{still} ms, {parts} parts");
        }
        // Whoever is slow is lent no more than before.
        let (still, parts) = stands_still(Bytes::mega(10), 100, 20);
        assert_eq!((still, parts), (0, 10));
        let volume = Bytes::mega(160);
        let at = |used, ms| allotment_at(volume, used, Duration::from_millis(ms));
        assert_eq!(at(Bytes::kilo(100), 10_000), allotment_of(volume));
        assert_eq!(at(Bytes::mega(4), 1_000), Bytes::mega(2));
        assert_eq!(at(Bytes::mega(100), 0), Bytes::mega(10));
        assert_eq!(at(Bytes::MAX, 1), Bytes::mega(10));
        let tiny = allotment_at(Bytes::kilo(3), Bytes::MAX, Duration::ZERO);
        assert_eq!(tiny, Bytes::kilo(3));
    }

    #[test]
    fn a_volume_is_lent_in_parts_and_never_beyond_its_end() {
        assert_eq!(allotment_of(Bytes::mega(10_000)).get(), 78_125_000);
        assert_eq!(allotment_of(Bytes::mega(2)), LEAST);
        assert_eq!(allotment_of(Bytes::kilo(3)), Bytes::kilo(3));
        assert_eq!(allotment_of(Bytes::MAX), MOST);
        let (mut account, mut holding) = (Account::default(), Allotment::default());
        let volume = Bytes::new(2_500_000);
        let lent: Vec<u64> = (0..4)
            .map(|_| account.lend(&mut holding, DAY, usual(volume)).get())
            .collect();
        assert_eq!(lent, [1_000_000, 1_000_000, 500_000, 0]);
        assert_eq!((account.lent, holding.lent), (2_500_000, 2_500_000));
        assert!(!holding.wants_more(Bytes::new(2_000_000), LEAST));
        assert!(holding.wants_more(Bytes::new(2_000_001), LEAST));
    }

    #[test]
    fn a_period_ends_once_and_a_clock_that_is_behind_gives_nothing_back() {
        let (mut account, mut holding) = (Account::default(), Allotment::default());
        account.lend(&mut holding, DAY, usual(Bytes::mega(1)));
        let mut late = Allotment::default();
        assert_eq!(
            account
                .lend(&mut late, "2026-11-25", usual(Bytes::mega(1)))
                .get(),
            0
        );
        assert_eq!(late.period, DAY);
        let lent = account.lend(&mut holding, "2026-11-27", usual(Bytes::mega(1)));
        assert_eq!(
            (lent, holding.lent, account.lent),
            (Bytes::mega(1), 1_000_000, 1_000_000)
        );
        // By the month from here on.
        assert_eq!(
            account.lend(&mut holding, "2026-11", usual(Bytes::mega(1))),
            Bytes::mega(1)
        );
        // What was held of a day that is over is nobody's debt.
        let before = account.clone();
        account.settle(&mut late, Bytes::ZERO);
        assert_eq!(account, before);
    }

    #[test]
    fn a_snapshot_of_yesterday_does_not_give_back_what_was_used() {
        let (mut account, mut holding) = (Account::default(), Allotment::default());
        let volume = Bytes::mega(100);
        account.lend(&mut holding, DAY, usual(volume));
        let snapshot = (account.clone(), holding.clone());
        account.lend(&mut holding, DAY, usual(volume));
        holding.used = 1_500_000;
        let known = holding.clone();
        let (mut account, mut holding) = snapshot;
        assert!(account.restore(&mut holding, &known));
        assert_eq!((account.lent, &holding), (2_000_000, &known));
        assert!(!account.restore(&mut holding, &known), "once is enough");
        // The snapshot may be older than whatever was lent.
        let (mut none, mut nothing) = (Account::default(), Allotment::default());
        assert!(none.restore(&mut nothing, &known));
        assert_eq!((none.lent, &nothing), (2_000_000, &known));
        account.lend(&mut holding, "2026-11-27", usual(volume));
        assert!(!account.restore(&mut holding, &known), "that day is over");
    }

    /// Three relays that serve, die, are cut off and come back: what passes stays within the
    /// volume, and what is written is at least what passed.
    #[test]
    fn whatever_becomes_of_relays_they_give_no_more_than_there_is() {
        for seed in (0..300).map(Seed) {
            let mut rng = seed.rng("allotments");
            let volume = Bytes::new(1 + rng.below(400_000_000));
            let mut account = Account::default();
            let mut holdings = vec![Allotment::default(); 3];
            // What passed, and what this life of the relay believes has.
            let (mut passed, mut counted) = (0_u64, [Bytes::ZERO; 3]);
            for _ in 0..400 {
                let at = rng.below(3) as usize;
                let holding = &mut holdings[at];
                match rng.below(20) {
                    0 => {
                        holding.count_as_used();
                        counted[at] = Bytes::new(holding.used);
                    }
                    1 => account.settle(holding, counted[at]),
                    2 => {}
                    _ => {
                        let since = Duration::from_millis(rng.below(2_000));
                        let part = allotment_at(volume, counted[at], since);
                        if holding.wants_more(counted[at], part) {
                            account.lend(holding, DAY, (volume, part));
                        }
                        let left = (Bytes::new(holding.lent) - counted[at]).get();
                        let bytes = rng.below(3_000_000).min(left);
                        passed += bytes;
                        counted[at] += Bytes::new(bytes);
                    }
                }
                assert!(account.lent <= volume.get(), "{seed}: {account:?}");
                let lent: u64 = holdings.iter().map(|it| it.lent).sum();
                assert_eq!(lent, account.lent, "{seed}");
                assert!(passed <= account.lent, "{seed}: {passed} of {account:?}");
            }
        }
    }
}
