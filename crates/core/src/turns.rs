//! The streams of one class that have something to send, in the order of their turns.
//!
//! Owns the order, and that a stream leaves it as cheaply as it enters: the peer moves streams
//! between classes as often as it likes, some hundred times in a packet.

use std::collections::BTreeMap;

use crate::id::StreamId;

/// A stream's place in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Turn(i64);

/// Who sends next.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// Whose turn it is. Not among the others, so that a stream that sends alone, packet by packet,
    /// costs no memory to be had and given back each time.
    first: Option<(Turn, StreamId)>,
    /// All others, none where there is no first.
    waiting: BTreeMap<Turn, StreamId>,
}

impl Turns {
    /// Nobody.
    pub(super) const fn new() -> Self {
        Self {
            first: None,
            waiting: BTreeMap::new(),
        }
    }

    /// After all others.
    pub(super) fn push_back(&mut self, id: StreamId) -> Turn {
        let Some((first, _)) = self.first else {
            return self.begin(Turn(0), id);
        };
        let last = self.waiting.last_key_value().map(|(turn, _)| *turn);
        let turn = Turn(last.unwrap_or(first).0 + 1);
        self.waiting.insert(turn, id);
        turn
    }

    /// Before all others.
    pub(super) fn push_front(&mut self, id: StreamId) -> Turn {
        let Some((first, other)) = self.first else {
            return self.begin(Turn(0), id);
        };
        self.waiting.insert(first, other);
        self.begin(Turn(first.0 - 1), id)
    }

    fn begin(&mut self, turn: Turn, id: StreamId) -> Turn {
        self.first = Some((turn, id));
        turn
    }

    /// The one whose turn it is.
    pub(super) fn pop_front(&mut self) -> Option<StreamId> {
        let first = self.first.take();
        self.first = self.waiting.pop_first();
        first.map(|(_, id)| id)
    }

    /// Whoever has this turn does without.
    pub(super) fn remove(&mut self, turn: Turn) {
        if self.first.is_some_and(|(first, _)| first == turn) {
            self.pop_front();
        } else {
            self.waiting.remove(&turn);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &StreamId> {
        let first = self.first.as_ref().map(|(_, id)| id);
        first.into_iter().chain(self.waiting.values())
    }

    pub(super) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.waiting.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;
    use tabane_base::Seed;

    #[test]
    fn whoever_leaves_and_comes_back_waits_for_all_others() {
        let mut turns = Turns::new();
        let [first, _, third] = [0, 4, 8].map(|id| turns.push_back(StreamId(id)));
        turns.remove(first);
        turns.push_back(StreamId(0));
        turns.remove(third);
        turns.push_front(StreamId(8));
        let order: Vec<_> = std::iter::from_fn(|| turns.pop_front()).collect();
        assert_eq!(order, [8, 4, 0].map(StreamId));
    }
    /// Whoever was first, put back, or taken out: the order is that of one list.
    #[test]
    fn the_order_is_that_of_one_list_whoever_comes_and_goes() {
        for seed in 0..100 {
            let mut rng = Seed(seed).rng("turns");
            let (mut turns, mut model) = (Turns::new(), VecDeque::new());
            for id in 0..200 {
                let id = StreamId(id);
                match rng.below(6) {
                    0 | 1 => model.push_back((turns.push_back(id), id)),
                    2 => model.push_front((turns.push_front(id), id)),
                    3 if !model.is_empty() => {
                        let at = rng.below(model.len() as u64) as usize;
                        let (turn, _) = model.remove(at).unwrap();
                        turns.remove(turn);
                    }
                    _ => {
                        let first = model.pop_front().map(|(_, id)| id);
                        assert_eq!(turns.pop_front(), first, "seed {seed}");
                    }
                }
                let order = model.iter().map(|(_, id)| id);
                assert!(turns.iter().eq(order), "seed {seed}");
                assert_eq!(
                    (turns.len(), turns.is_empty()),
                    (model.len(), model.is_empty())
                );
            }
        }
    }
}
