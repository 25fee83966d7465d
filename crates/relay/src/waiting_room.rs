//! Those about whom the keeper has to be asked, until it is.
//!
//! Owns whose turn it is, and how long anybody waits for it. Pure: asked with the time.

use std::collections::VecDeque;

use tabane_base::Duration;
use tokio::time::Instant;

/// About so many the keeper is asked at a time: as many as one question takes.
const MOST_ASKED: usize = 40;
/// How long anybody waits for its turn: half a handshake's patience is left for the answer.
const PATIENCE: Duration = Duration::from_secs(4);

/// Who waits.
pub(crate) struct WaitingRoom<T> {
    known: VecDeque<(Instant, T)>,
    strangers: VecDeque<(Instant, T)>,
}

impl<T> Default for WaitingRoom<T> {
    fn default() -> Self {
        let (known, strangers) = (VecDeque::new(), VecDeque::new());
        Self { known, strangers }
    }
}

impl<T> WaitingRoom<T> {
    pub(crate) fn enter(&mut self, now: Instant, who: T, is_known: bool) {
        let room = match is_known {
            true => &mut self.known,
            false => &mut self.strangers,
        };
        room.push_back((now, who));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.known.is_empty() && self.strangers.is_empty()
    }

    /// Those who have waited in vain.
    pub(crate) fn overdue(&mut self, now: Instant) -> Vec<T> {
        let mut overdue = Vec::new();
        for room in [&mut self.known, &mut self.strangers] {
            let is_overdue = |(since, _): &mut (Instant, T)| now - *since > PATIENCE;
            while let Some((_, who)) = room.pop_front_if(is_overdue) {
                overdue.push(who);
            }
        }
        overdue
    }

    /// Those whose turn it is: whoever is known goes before all strangers.
    pub(crate) fn next(&mut self) -> Vec<T> {
        let known = self.known.len().min(MOST_ASKED);
        let strangers = self.strangers.len().min(MOST_ASKED - known);
        let known = self.known.drain(..known);
        let next = known.chain(self.strangers.drain(..strangers));
        next.map(|(_, who)| who).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_wait_for_few_and_known_ones_for_none_of_them() {
        let begin = Instant::now();
        let mut room = WaitingRoom::default();
        (0..100).for_each(|n| room.enter(begin, n, false));
        assert_eq!(room.next(), (0..40).collect::<Vec<_>>());
        (200..205).for_each(|n| room.enter(begin, n, true));
        let next = room.next();
        assert_eq!(next[..6], [200, 201, 202, 203, 204, 40]);
        assert_eq!((next.len(), next[39]), (40, 74));
        room.enter(begin + PATIENCE, 300, false);
        assert!(room.overdue(begin + PATIENCE).is_empty());
        let late = room.overdue(begin + PATIENCE + Duration::from_nanos(1));
        assert_eq!(late, (75..100).collect::<Vec<_>>());
        assert_eq!(room.next(), [300]);
        assert!(room.is_empty());
    }
}
