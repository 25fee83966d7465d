//! Those of one class that have something to send, streams or flows, in the order of their turns.
//!
//! Owns the order, and that who is in it leaves it as cheaply as it enters: the peer moves them
//! between classes as often as it likes, some hundred times in a packet. And that those who wait
//! for what all need are passed over without being looked at.

use std::collections::BTreeMap;

/// A place in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Turn(i64);

/// Who sends next.
#[derive(Debug)]
pub(crate) struct Turns<Id> {
    /// Whose turn it is. Not among the others, so that a stream that sends alone, packet by packet,
    /// costs no memory to be had and given back each time.
    first: Option<(Turn, Id)>,
    /// All others, none where there is no first.
    waiting: BTreeMap<Turn, Id>,
    /// In the same order, those who can do nothing with their turn at present.
    passed_over: BTreeMap<Turn, Id>,
}

impl<Id> Default for Turns<Id> {
    fn default() -> Self {
        Self::new()
    }
}

impl<Id> Turns<Id> {
    /// Nobody.
    pub(crate) const fn new() -> Self {
        Self {
            first: None,
            waiting: BTreeMap::new(),
            passed_over: BTreeMap::new(),
        }
    }

    /// After all others.
    pub(crate) fn push_back(&mut self, id: Id) -> Turn {
        let turn = self.behind();
        self.insert(turn, id);
        turn
    }

    /// The same, to be passed over.
    pub(crate) fn pass_over(&mut self, id: Id) -> Turn {
        let turn = self.behind();
        self.passed_over.insert(turn, id);
        turn
    }

    /// Before all others.
    pub(crate) fn push_front(&mut self, id: Id) -> Turn {
        let passed_over = self.passed_over.first_key_value().map(|(turn, _)| *turn);
        let all = [self.first_turn(), passed_over];
        let turn = Turn(all.into_iter().flatten().min().map_or(0, |it| it.0 - 1));
        self.insert(turn, id);
        turn
    }

    /// Whoever has this turn is passed over no longer.
    pub(crate) fn take_up(&mut self, turn: Turn) {
        if let Some(id) = self.passed_over.remove(&turn) {
            self.insert(turn, id);
        }
    }

    fn first_turn(&self) -> Option<Turn> {
        self.first.as_ref().map(|(turn, _)| *turn)
    }

    fn behind(&self) -> Turn {
        let last = |of: &BTreeMap<Turn, Id>| of.last_key_value().map(|(turn, _)| *turn);
        let active = last(&self.waiting).or_else(|| self.first_turn());
        let all = [active, last(&self.passed_over)];
        Turn(all.into_iter().flatten().max().map_or(0, |it| it.0 + 1))
    }

    fn insert(&mut self, turn: Turn, id: Id) {
        if self.first_turn().is_some_and(|first| first < turn) {
            self.waiting.insert(turn, id);
        } else if let Some((later, other)) = self.first.replace((turn, id)) {
            self.waiting.insert(later, other);
        }
    }

    /// The one whose turn it is, of those too who are passed over where `all` may send.
    pub(crate) fn pop_front(&mut self, all: bool) -> Option<Id> {
        if all && self.is_passed_over_first() {
            return self.passed_over.pop_first().map(|(_, id)| id);
        }
        let first = self.first.take();
        self.first = self.waiting.pop_first();
        first.map(|(_, id)| id)
    }

    fn is_passed_over_first(&self) -> bool {
        let passed_over = self.passed_over.first_key_value();
        passed_over.is_some_and(|(turn, _)| self.first_turn().is_none_or(|first| *turn < first))
    }

    /// Whoever has this turn does without.
    pub(crate) fn remove(&mut self, turn: Turn) {
        if self.first_turn() == Some(turn) {
            self.pop_front(false);
        } else if self.waiting.remove(&turn).is_none() {
            self.passed_over.remove(&turn);
        }
    }

    /// All, those who are passed over in their places.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Id> {
        let mut first = self.first.as_ref().map(|(turn, id)| (turn, id));
        let mut waiting = self.waiting.iter();
        let mut passed_over = self.passed_over.iter();
        let mut other = passed_over.next();
        std::iter::from_fn(move || {
            let active = first.take().or_else(|| waiting.next());
            match (active, other) {
                // As nearly always.
                (active, None) => active.map(|(_, id)| id),
                (Some((turn, id)), Some((other, _))) if turn < other => Some(id),
                (active, Some((_, id))) => {
                    first = active;
                    other = passed_over.next();
                    Some(id)
                }
            }
        })
    }

    pub(crate) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.waiting.len() + self.passed_over.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none() && self.passed_over.is_empty()
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
        let [first, _, third] = [0, 4, 8].map(|id| turns.push_back(id));
        turns.remove(first);
        turns.push_back(0);
        turns.remove(third);
        turns.push_front(8);
        let order: Vec<_> = std::iter::from_fn(|| turns.pop_front(true)).collect();
        assert_eq!(order, [8, 4, 0]);
    }

    /// Whoever was first, put back, passed over or taken out: the order is that of one list.
    #[test]
    fn the_order_is_that_of_one_list_whoever_comes_and_goes() {
        for seed in 0..100 {
            let mut rng = Seed(seed).rng("turns");
            let (mut turns, mut model) = (Turns::new(), VecDeque::new());
            for id in 0..200 {
                let at = rng.below(model.len().max(1) as u64) as usize;
                match rng.below(7) {
                    0 | 1 => model.push_back((turns.push_back(id), id, false)),
                    2 => model.push_back((turns.pass_over(id), id, true)),
                    3 => model.push_front((turns.push_front(id), id, false)),
                    4 if !model.is_empty() => {
                        let (turn, ..) = model.remove(at).unwrap();
                        turns.remove(turn);
                    }
                    5 if !model.is_empty() => {
                        turns.take_up(model[at].0);
                        model[at].2 = false;
                    }
                    _ => {
                        let all = rng.below(2) == 0;
                        let first = model.iter().position(|(.., passed)| all || !passed);
                        let first = first.and_then(|at| model.remove(at));
                        assert_eq!(turns.pop_front(all), first.map(|it| it.1), "seed {seed}");
                    }
                }
                let order = model.iter().map(|(_, id, _)| id);
                assert!(turns.iter().eq(order), "seed {seed}");
                assert_eq!(
                    (turns.len(), turns.is_empty()),
                    (model.len(), model.is_empty())
                );
            }
        }
    }
}
