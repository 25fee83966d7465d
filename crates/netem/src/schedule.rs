//! What happens to a link at which time: changes of its parameters, and outages.

use tabane_base::{Duration, Instant, Rate};

use crate::loss::LossModel;

/// A change of parameters at a time after the start of the schedule; what is `None` stays.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Change {
    /// First time.
    pub at: Duration,
    /// Repeated with this period, above zero.
    pub every: Option<Duration>,
    /// Replaces the rate, or the trace.
    pub rate: Option<Rate>,
    /// Replaces the one-way delay. Order is kept when it falls.
    pub delay: Option<Duration>,
    /// Replaces the loss model.
    pub loss: Option<LossModel>,
}

/// A span in which packets vanish while the carrier stays up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outage {
    /// First time.
    pub at: Duration,
    /// How long.
    pub lasts: Duration,
    /// Repeated with this period, above zero.
    pub every: Option<Duration>,
}

/// What is due.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Due {
    Change {
        rate: Option<Rate>,
        delay: Option<Duration>,
        loss: Option<LossModel>,
    },
    OutageBegins,
    OutageEnds,
}

#[derive(Clone, Debug)]
struct Entry {
    next_at: Instant,
    every: Option<Duration>,
    due: Due,
}

/// The changes and outages of one link direction, handed out in order of time.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    /// A handful: searched, not sorted.
    entries: Vec<Entry>,
}

impl Schedule {
    pub(crate) fn new(changes: &[Change], outages: &[Outage], start: Instant) -> Self {
        let mut entries = Vec::new();
        let mut add = |at: Duration, every: Option<Duration>, due: Due| {
            entries.push(Entry {
                next_at: start + at,
                every: every.filter(|period| !period.is_zero()),
                due,
            });
        };
        for change in changes {
            let due = Due::Change {
                rate: change.rate,
                delay: change.delay,
                loss: change.loss,
            };
            add(change.at, change.every, due);
        }
        for outage in outages {
            add(outage.at, outage.every, Due::OutageBegins);
            let end = outage.at.saturating_add(outage.lasts);
            add(end, outage.every, Due::OutageEnds);
        }
        Self { entries }
    }

    /// When the next entry is due; `NEVER` if none is.
    pub(crate) fn next_at(&self) -> Instant {
        self.entries
            .iter()
            .map(|entry| entry.next_at)
            .min()
            .unwrap_or(Instant::NEVER)
    }

    /// The next entry if it is due at `now`.
    pub(crate) fn poll(&mut self, now: Instant) -> Option<Due> {
        let entry = self.entries.iter_mut().min_by_key(|entry| entry.next_at)?;
        if entry.next_at > now || entry.next_at == Instant::NEVER {
            return None;
        }
        entry.next_at = entry
            .every
            .map_or(Instant::NEVER, |period| entry.next_at + period);
        Some(entry.due.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periodic_entries_come_in_order_of_time() {
        let ms = Duration::from_millis;
        let changes = [Change {
            at: ms(15),
            every: Some(ms(30)),
            rate: Some(Rate::from_mbps(60)),
            ..Change::default()
        }];
        let outages = [Outage {
            at: ms(15),
            lasts: ms(1),
            every: Some(ms(15)),
        }];
        let mut schedule = Schedule::new(&changes, &outages, Instant::EPOCH);
        let mut seen = Vec::new();
        while schedule.next_at() < Instant::from_millis(47) {
            let at = schedule.next_at();
            let due = schedule.poll(at).unwrap();
            let letter = match due {
                Due::Change { .. } => 'c',
                Due::OutageBegins => 'b',
                Due::OutageEnds => 'e',
            };
            seen.push((at.as_micros() / 1000, letter));
        }
        let expected = [
            (15, 'c'),
            (15, 'b'),
            (16, 'e'),
            (30, 'b'),
            (31, 'e'),
            (45, 'c'),
            (45, 'b'),
            (46, 'e'),
        ];
        assert_eq!(seen, expected);
        assert_eq!(schedule.poll(Instant::from_millis(47)), None);
    }
}
