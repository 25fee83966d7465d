//! Those about whom the keeper has to be asked, until it is.
//!
//! Owns whose turn it is, when, and how long anybody waits for it. Pure: asked with the time.

use std::collections::VecDeque;

use tabane_base::Duration;
use tokio::time::Instant;

/// About so many the keeper is asked at a time: as many as one question takes.
const MOST_ASKED: usize = 40;
/// The keeper rests for so many times as long as its last answer took, and no longer than this:
/// whoever comes meanwhile is answered together, by one look at the list and one write.
const REST: u32 = 4;
const MOST_REST: Duration = Duration::from_millis(50);
/// How long anybody waits for its turn: half a handshake's patience is left for the answer.
const PATIENCE: Duration = Duration::from_secs(4);

/// Who waits.
pub(crate) struct WaitingRoom<T> {
    known: VecDeque<(Instant, T)>,
    strangers: VecDeque<(Instant, T)>,
    /// Until when the keeper rests, unless as many wait as it is asked about at a time.
    rests_until: Option<Instant>,
}

impl<T> Default for WaitingRoom<T> {
    fn default() -> Self {
        Self {
            known: VecDeque::new(),
            strangers: VecDeque::new(),
            rests_until: None,
        }
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

    /// When the keeper is to be asked; `None` where nobody waits.
    pub(crate) fn due_at(&self, now: Instant) -> Option<Instant> {
        match self.known.len() + self.strangers.len() {
            0 => None,
            MOST_ASKED.. => Some(now),
            _ => Some(self.rests_until.unwrap_or(now)),
        }
    }

    /// The keeper has answered.
    pub(crate) fn on_answer(&mut self, asked_at: Instant, now: Instant) {
        self.rests_until = Some(now + ((now - asked_at) * REST).min(MOST_REST));
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
        assert_eq!(room.due_at(begin), None);
    }

    #[test]
    fn a_lone_newcomer_waits_for_nothing_and_many_are_answered_together() {
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        let mut room = WaitingRoom::default();
        room.enter(begin, 0, false);
        assert_eq!(room.due_at(begin), Some(begin));
        room.next();
        room.on_answer(begin, at(3));
        room.enter(at(3), 1, false);
        assert_eq!(room.due_at(at(3)), Some(at(15)), "four times three");
        (2..=40).for_each(|n| room.enter(at(4), n, false));
        assert_eq!(
            room.due_at(at(4)),
            Some(at(4)),
            "more would wait for the next turn"
        );
        room.on_answer(at(5), at(1_005));
        room.next();
        room.enter(at(1_006), 40, true);
        assert_eq!(room.due_at(at(1_006)), Some(at(1_055)), "a slow keeper");
    }
}
