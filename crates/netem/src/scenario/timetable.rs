//! Whether what is to happen to a link can all happen: changes and outages that contradict each
//! other are a mistake in the file, and are told with the lines of both.
//!
//! Owns the comparison of times. What happens at each is `schedule`'s.

use std::iter;

use tabane_base::Duration;
use toml::Spanned;

use super::file::{ChangeTable, LinkTable, OutageTable};
use super::{Reader, ScenarioError};
use crate::quantity::Text;

/// Repetitions that are compared. A day of outages every second has fewer.
const COMPARED: usize = 100_000;

/// Something that happens at a time, and perhaps again.
#[derive(Clone, Copy, Debug)]
struct Recurring {
    at: Duration,
    lasts: Duration,
    every: Option<Duration>,
}

impl Recurring {
    fn starts(self) -> impl Iterator<Item = Duration> {
        let next = move |at: &Duration| at.checked_add(self.every?);
        iter::successors(Some(self.at), next).take(COMPARED)
    }

    /// Whether it happens at a moment of the span of `lasts` from `start`.
    fn meets(self, start: Duration, lasts: Duration) -> bool {
        let end = start.saturating_add(lasts);
        let Some(room) = end.checked_sub(self.at).filter(|room| !room.is_zero()) else {
            return false;
        };
        // The last that begins before the end.
        let since = match self.every {
            Some(every) => (room.as_nanos() - 1) % every.as_nanos() + 1,
            None => room.as_nanos(),
        };
        since < self.lasts.as_nanos() + lasts.as_nanos()
    }

    /// When both happen for the first time, if they do before `until`.
    fn meeting(self, other: Self, until: Duration) -> Option<Duration> {
        let period = |it: Self| it.every.unwrap_or(Duration::MAX);
        let (rare, frequent) = if period(self) < period(other) {
            (other, self)
        } else {
            (self, other)
        };
        let until = until.max(self.at).max(other.at);
        let starts = rare.starts().take_while(|start| *start <= until);
        starts
            .into_iter()
            .find(|start| frequent.meets(*start, rare.lasts))
    }
}

impl ChangeTable {
    fn recurring(&self) -> Recurring {
        Recurring {
            at: self.at.get_ref().0,
            lasts: Duration::from_nanos(1),
            every: self.every.as_ref().map(|every| every.get_ref().0),
        }
    }

    /// The first key that both changes set.
    fn shared_key(&self, other: &Self) -> Option<&'static str> {
        let keys = [
            ("rate", self.rate.is_some() && other.rate.is_some()),
            ("delay", self.delay.is_some() && other.delay.is_some()),
            ("loss", self.loss.is_some() && other.loss.is_some()),
        ];
        keys.into_iter().find_map(|(key, both)| both.then_some(key))
    }
}

impl OutageTable {
    fn recurring(&self) -> Recurring {
        Recurring {
            at: self.at.get_ref().0,
            lasts: self.lasts.get_ref().0,
            every: self.every.as_ref().map(|every| every.get_ref().0),
        }
    }
}

impl Reader<'_> {
    /// Whether a link's changes and outages can all happen within `duration`.
    pub(super) fn check_times(
        &self,
        table: &LinkTable,
        duration: Duration,
    ) -> Result<(), ScenarioError> {
        for (index, change) in table.change.iter().enumerate() {
            self.check_period(change.every.as_ref())?;
            if change.rate.is_none() && change.delay.is_none() && change.loss.is_none() {
                let what = "this change alters nothing: expected `rate`, `delay` or `loss`";
                return Err(self.invalid(change.at.span(), what.to_owned()));
            }
            for earlier in &table.change[..index] {
                self.check_changes(earlier, change, duration)?;
            }
        }
        for (index, outage) in table.outage.iter().enumerate() {
            self.check_outage(outage)?;
            for earlier in &table.outage[..index] {
                self.check_outages(earlier, outage, duration)?;
            }
        }
        Ok(())
    }

    fn check_period(&self, every: Option<&Spanned<Text<Duration>>>) -> Result<(), ScenarioError> {
        match every {
            Some(every) if every.get_ref().0.is_zero() => {
                let what = "`every` is 0: expected a time above zero".to_owned();
                Err(self.invalid(every.span(), what))
            }
            Some(_) | None => Ok(()),
        }
    }

    fn check_changes(
        &self,
        earlier: &ChangeTable,
        later: &ChangeTable,
        duration: Duration,
    ) -> Result<(), ScenarioError> {
        let meeting = earlier.recurring().meeting(later.recurring(), duration);
        match (earlier.shared_key(later), meeting) {
            (Some(key), Some(at)) => {
                let what = format!(
                    "`{key}` is set here and by the change of line {} at the same time, {at:?}: \
                     expected one value",
                    self.line(&earlier.at.span())
                );
                Err(self.invalid(later.at.span(), what))
            }
            (None, _) | (_, None) => Ok(()),
        }
    }

    fn check_outage(&self, outage: &OutageTable) -> Result<(), ScenarioError> {
        self.check_period(outage.every.as_ref())?;
        let lasts = outage.lasts.get_ref().0;
        if lasts.is_zero() {
            let what = "`for` is 0: expected a time above zero".to_owned();
            return Err(self.invalid(outage.lasts.span(), what));
        }
        match &outage.every {
            Some(every) if every.get_ref().0 <= lasts => {
                let what = format!(
                    "`every` is {:?}, and the outage lasts {lasts:?}, so it would never end: \
                     expected `every` to be longer than `for`",
                    every.get_ref().0
                );
                Err(self.invalid(every.span(), what))
            }
            Some(_) | None => Ok(()),
        }
    }

    fn check_outages(
        &self,
        earlier: &OutageTable,
        later: &OutageTable,
        duration: Duration,
    ) -> Result<(), ScenarioError> {
        match earlier.recurring().meeting(later.recurring(), duration) {
            Some(at) => {
                let what = format!(
                    "this outage and the one of line {} overlap in that of {at:?}: expected `at`, \
                     `for` and `every` that keep them apart",
                    self.line(&earlier.at.span())
                );
                Err(self.invalid(later.at.span(), what))
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(at: u64, lasts: u64, every: u64) -> Recurring {
        Recurring {
            at: Duration::from_millis(at),
            lasts: Duration::from_millis(lasts),
            every: (every > 0).then(|| Duration::from_millis(every)),
        }
    }

    #[test]
    fn what_meets_is_found_however_it_repeats() {
        let cases = [
            // Once and once; ends are not part of them.
            (ms(0, 10, 0), ms(10, 5, 0), None),
            (ms(0, 10, 0), ms(9, 5, 0), Some(0)),
            // Periods that follow each other.
            (ms(15, 1, 30), ms(30, 1, 30), None),
            (ms(15, 1, 15), ms(30, 1, 30), Some(30)),
            // Only the fourth time, 28 and 33; and not within a second.
            (ms(7, 1, 7), ms(0, 29, 33), Some(0)),
            (ms(7, 1, 7), ms(1_029, 1, 1_000), Some(1_029)),
            (ms(500, 10, 1_000), ms(0, 10, 7), Some(500)),
            (ms(0, 1, 10), ms(5, 1, 20), None),
            // One that begins later than the other is asked for.
            (ms(900, 1, 10), ms(0, 1, 0), None),
        ];
        let until = Duration::from_secs(1);
        for (a, b, expected) in cases {
            let expected = expected.map(Duration::from_millis);
            assert_eq!(a.meeting(b, until), expected, "{a:?} {b:?}");
            assert_eq!(
                b.meeting(a, until).is_some(),
                expected.is_some(),
                "{a:?} {b:?}"
            );
        }
    }
}
