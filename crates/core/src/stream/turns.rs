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
    waiting: BTreeMap<Turn, StreamId>,
}

impl Turns {
    /// Nobody.
    pub(super) const fn new() -> Self {
        Self {
            waiting: BTreeMap::new(),
        }
    }

    /// After all others.
    pub(super) fn push_back(&mut self, id: StreamId) -> Turn {
        let last = self.waiting.last_key_value();
        self.put(Turn(last.map_or(0, |(turn, _)| turn.0 + 1)), id)
    }

    /// Before all others.
    pub(super) fn push_front(&mut self, id: StreamId) -> Turn {
        let first = self.waiting.first_key_value();
        self.put(Turn(first.map_or(0, |(turn, _)| turn.0 - 1)), id)
    }

    fn put(&mut self, turn: Turn, id: StreamId) -> Turn {
        self.waiting.insert(turn, id);
        turn
    }

    /// The one whose turn it is.
    pub(super) fn pop_front(&mut self) -> Option<StreamId> {
        self.waiting.pop_first().map(|(_, id)| id)
    }

    /// Whoever has this turn does without.
    pub(super) fn remove(&mut self, turn: Turn) {
        self.waiting.remove(&turn);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &StreamId> {
        self.waiting.values()
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
