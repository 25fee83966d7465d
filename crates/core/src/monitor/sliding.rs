//! Values over a sliding window of time, in constant space.
//!
//! The window is cut into slots on a fixed grid; what is older than the window goes a slot at a
//! time. A clock that jumps back adds to the newest slot, one that jumps ahead empties the window.

use std::collections::VecDeque;

use tabane_base::{Duration, Instant};

/// One slot per tenth of the window: what is read is at most so much out of date.
const SLOTS: usize = 10;

/// What happened in each of the last slots; slots in which nothing happened are left out.
#[derive(Clone, Debug)]
pub(crate) struct SlidingWindow<T> {
    slot_nanos: u64,
    /// By number on the grid, oldest first.
    slots: VecDeque<(u64, T)>,
}

impl<T: Copy + Default> SlidingWindow<T> {
    pub(crate) fn new(span: Duration) -> Self {
        let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        Self {
            slot_nanos: (nanos / SLOTS as u64).max(1),
            slots: VecDeque::new(),
        }
    }

    /// The slot of `now`, to be added to.
    pub(crate) fn slot(&mut self, now: Instant) -> &mut T {
        let number = self.number(now);
        if self.slots.back().is_none_or(|(newest, _)| *newest < number) {
            self.slots.push_back((number, T::default()));
        }
        while self.slots.len() > 1
            && self
                .slots
                .front()
                .is_some_and(|(oldest, _)| oldest + (SLOTS as u64) < number)
        {
            self.slots.pop_front();
        }
        let last = self.slots.len() - 1;
        &mut self.slots[last].1
    }

    /// What is within the window at `now`, oldest first.
    pub(crate) fn values(&self, now: Instant) -> impl Iterator<Item = T> {
        let first = self.number(now).saturating_sub(SLOTS as u64);
        let within = self.slots.iter().filter(move |(n, _)| *n >= first);
        within.map(|(_, value)| *value)
    }

    /// The slot that has just ended, the one under way, and the time that both have taken.
    pub(crate) fn latest(&self, now: Instant) -> ([T; 2], Duration) {
        let number = self.number(now);
        let of = |number: u64| {
            let found = self.slots.iter().find(|(n, _)| *n == number);
            found.map(|(_, value)| *value).unwrap_or_default()
        };
        let before = number.checked_sub(1).map(of).unwrap_or_default();
        let span = self
            .slot_nanos
            .saturating_add(now.as_nanos() % self.slot_nanos);
        ([before, of(number)], Duration::from_nanos(span))
    }

    /// What each slot but the one under way has gathered.
    pub(crate) fn complete(&self, now: Instant) -> impl Iterator<Item = T> {
        let number = self.number(now);
        let first = number.saturating_sub(SLOTS as u64);
        let within = self.slots.iter();
        let within = within.filter(move |(n, _)| (first..number).contains(n));
        within.map(|(_, value)| *value)
    }

    pub(crate) const fn slot_span(&self) -> Duration {
        Duration::from_nanos(self.slot_nanos)
    }

    const fn number(&self, now: Instant) -> u64 {
        now.as_nanos() / self.slot_nanos
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_older_than_the_window_is_gone_and_memory_is_bounded() {
        let mut window = SlidingWindow::<u64>::new(Duration::from_secs(10));
        for millis in 0..60_000 {
            *window.slot(Instant::from_millis(millis)) += 1;
        }
        let now = Instant::from_millis(59_999);
        assert!((10_000..=11_000).contains(&window.values(now).sum::<u64>()));
        assert!(window.slots.len() <= SLOTS + 1);
        assert!(window.complete(now).all(|count| count == 1_000));
        assert_eq!(window.values(Instant::from_millis(200_000)).count(), 0);
    }

    #[test]
    fn jumps_of_the_clock_lose_nothing_new() {
        let mut window = SlidingWindow::<u64>::new(Duration::from_secs(10));
        *window.slot(Instant::from_millis(50_000)) += 1;
        *window.slot(Instant::from_millis(1_000)) += 1;
        assert_eq!(window.values(Instant::from_millis(50_000)).sum::<u64>(), 2);
        *window.slot(Instant::NEVER) += 1;
        assert_eq!(window.values(Instant::NEVER).sum::<u64>(), 1);
    }
}
