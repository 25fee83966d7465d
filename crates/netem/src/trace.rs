//! Recorded links in Mahimahi's format: one timestamp in milliseconds per line, each an
//! opportunity to deliver 1500 bytes; the trace repeats at its last timestamp.

use tabane_base::{Bytes, Duration, Instant, Rate};

/// What one line of a trace lets pass.
pub const OPPORTUNITY: Bytes = Bytes::new(1500);

/// A recorded link, as delivery opportunities numbered from 0 through all repetitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Sorted; the last one is the period and above zero.
    at_ms: Vec<u64>,
}

/// What is wrong with a trace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// A line is not a whole number.
    #[error("line {line}: expected a time in whole milliseconds, found {found:?}")]
    NotANumber {
        /// Counted from 1.
        line: usize,
        /// What stands there.
        found: String,
    },
    /// Time runs backwards.
    #[error("line {line}: {at_ms} ms is earlier than the line before")]
    Backwards {
        /// Counted from 1.
        line: usize,
        /// What stands there.
        at_ms: u64,
    },
    /// No line, or the last one is 0: such a trace would repeat infinitely often at once.
    #[error("the trace is empty or ends at 0 ms")]
    NoLength,
}

impl Trace {
    /// Reads a trace; blank lines are skipped.
    ///
    /// # Errors
    /// Names the first line that does not fit.
    pub fn parse(text: &str) -> Result<Self, TraceError> {
        let mut at_ms = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() {
                continue;
            }
            let at = line.parse::<u64>().map_err(|_| TraceError::NotANumber {
                line: index + 1,
                found: line.chars().take(20).collect(),
            })?;
            if at_ms.last().is_some_and(|last| at < *last) {
                return Err(TraceError::Backwards {
                    line: index + 1,
                    at_ms: at,
                });
            }
            at_ms.push(at);
        }
        match at_ms.last() {
            None | Some(0) => Err(TraceError::NoLength),
            Some(_) => Ok(Self { at_ms }),
        }
    }

    /// A trace of opportunities at these milliseconds, sorted; it repeats after `period_ms`, which
    /// is an opportunity as well.
    pub(crate) fn of(mut at_ms: Vec<u64>, period_ms: u64) -> Self {
        at_ms.retain(|at| *at < period_ms);
        at_ms.push(period_ms.max(1));
        Self { at_ms }
    }

    /// The same trace run backwards in time.
    #[must_use]
    pub fn reversed(&self) -> Self {
        let period = self.period_ms();
        let first = self.at_ms[0];
        let mut at_ms: Vec<u64> = self.at_ms.iter().rev().map(|at| period - at).collect();
        // What was silence before the first opportunity is silence after the last one: shifted to
        // the front, because the last timestamp is the period.
        at_ms.iter_mut().for_each(|at| *at += first);
        Self { at_ms }
    }

    /// How long the trace lasts before it repeats.
    #[must_use]
    pub fn period(&self) -> Duration {
        Duration::from_millis(self.period_ms())
    }

    /// What passes on average.
    #[must_use]
    pub fn mean_rate(&self) -> Rate {
        let bytes = OPPORTUNITY.get().saturating_mul(self.at_ms.len() as u64);
        Rate::of(Bytes::new(bytes), self.period())
    }

    /// What passes in each whole `step` of a repetition.
    #[must_use]
    pub fn amounts(&self, step: Duration) -> Vec<Bytes> {
        let step_ms = (step.as_millis() as u64).max(1);
        let mut amounts = vec![Bytes::ZERO; (self.period_ms() / step_ms) as usize];
        for at in &self.at_ms {
            if let Some(amount) = amounts.get_mut((at / step_ms) as usize) {
                *amount += OPPORTUNITY;
            }
        }
        amounts
    }

    /// When opportunity `number` comes, counted from a trace that started at `start`.
    pub(crate) fn time_of(&self, start: Instant, number: u64) -> Instant {
        let length = self.at_ms.len() as u64;
        let offset = self.at_ms[(number % length) as usize];
        let since_start = (number / length)
            .saturating_mul(self.period_ms())
            .saturating_add(offset);
        start + Duration::from_millis(since_start)
    }

    /// The first opportunity at or after `at`.
    pub(crate) fn first_from(&self, start: Instant, at: Instant) -> u64 {
        let nanos = at.since(start).as_nanos() as u64;
        // Rounded up: an opportunity earlier in this millisecond is past.
        let ms = nanos.div_ceil(1_000_000);
        let (cycle, offset) = (ms / self.period_ms(), ms % self.period_ms());
        let index = self.at_ms.partition_point(|t| *t < offset);
        cycle * self.at_ms.len() as u64 + index as u64
    }

    fn period_ms(&self) -> u64 {
        *self.at_ms.last().expect("a parsed trace is not empty")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_of_whole_steps() {
        let trace = Trace::parse("0\n5\n9\n10\n25\n").unwrap();
        let amounts = trace.amounts(Duration::from_millis(10));
        assert_eq!(amounts, [Bytes::new(4_500), Bytes::new(1_500)]);
    }

    #[test]
    fn opportunities_repeat_with_the_period() {
        let trace = Trace::parse("0\n5\n5\n10\n").unwrap();
        let at = |n| trace.time_of(Instant::EPOCH, n).as_micros() / 1000;
        assert_eq!(
            (0..8).map(at).collect::<Vec<_>>(),
            [0, 5, 5, 10, 10, 15, 15, 20]
        );
        let first = |ms| trace.first_from(Instant::EPOCH, Instant::from_millis(ms));
        assert_eq!(
            [first(0), first(1), first(5), first(6), first(11)],
            [0, 1, 1, 3, 5]
        );
        assert_eq!(trace.mean_rate(), Rate::from_bps(4 * 12_000 * 100));
    }

    #[test]
    fn reversing_twice_gives_the_trace_back() {
        let trace = Trace::parse("1\n4\n4\n10").unwrap();
        assert_eq!(trace.reversed(), Trace::parse("1\n7\n7\n10").unwrap());
        assert_eq!(trace.reversed().reversed(), trace);
    }

    #[test]
    fn errors_name_the_line() {
        assert_eq!(Trace::parse(""), Err(TraceError::NoLength));
        assert_eq!(Trace::parse("0\n0\n"), Err(TraceError::NoLength));
        let backwards = TraceError::Backwards { line: 3, at_ms: 4 };
        assert_eq!(Trace::parse("1\n5\n4"), Err(backwards));
        assert!(
            Trace::parse("1\nx")
                .unwrap_err()
                .to_string()
                .starts_with("line 2:")
        );
    }
}
