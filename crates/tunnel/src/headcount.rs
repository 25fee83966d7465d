//! How many of something each holder has, in all threads together: clients of a relay sessions,
//! where these are no user's, and programs that ping; hosts behind a client connections.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// They by holder. Copies are the same.
#[derive(Debug, Clone)]
pub struct Headcount<K>(Arc<Mutex<Heads<K>>>);

#[derive(Debug)]
struct Heads<K> {
    of_holders: BTreeMap<K, usize>,
    all: usize,
}

/// One, counted while it lives.
#[derive(Debug)]
pub struct Counted<K: Ord> {
    all: Headcount<K>,
    key: K,
}

impl<K> Default for Headcount<K> {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Heads {
            of_holders: BTreeMap::new(),
            all: 0,
        })))
    }
}

impl<K: Ord + Copy> Headcount<K> {
    /// Counts one more, where the holder has fewer than `most`.
    #[must_use]
    pub fn count(&self, key: K, most: usize) -> Option<Counted<K>> {
        self.count_if(key, |own, _| own < most)
    }

    /// Counts one more of `places` for all holders together, where this one has fewer than are left
    /// to all others: whoever comes next finds as many as whoever has most.
    #[must_use]
    pub fn count_among(&self, key: K, places: usize) -> Option<Counted<K>> {
        self.count_if(key, |own, all| own < places.saturating_sub(all))
    }

    fn count_if(&self, key: K, may: impl FnOnce(usize, usize) -> bool) -> Option<Counted<K>> {
        let mut heads = self.lock();
        let own = heads.of_holders.get(&key).copied().unwrap_or(0);
        if !may(own, heads.all) {
            return None;
        }
        heads.of_holders.insert(key, own + 1);
        heads.all += 1;
        drop(heads);
        let all = self.clone();
        Some(Counted { all, key })
    }
}

impl<K> Headcount<K> {
    fn lock(&self) -> MutexGuard<'_, Heads<K>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Ord> Drop for Counted<K> {
    fn drop(&mut self) {
        let mut heads = self.all.lock();
        heads.all -= 1;
        if let Some(has) = heads.of_holders.get_mut(&self.key) {
            *has -= 1;
            if *has == 0 {
                heads.of_holders.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tabane_core::PublicKey;

    use super::*;

    #[test]
    fn a_client_has_so_many_and_those_that_end_make_room() {
        let (all, key) = (Headcount::default(), PublicKey([1; 32]));
        let mut held: Vec<_> = (0..3).map_while(|_| all.count(key, 2)).collect();
        assert_eq!(held.len(), 2);
        assert!(all.count(PublicKey([2; 32]), 2).is_some(), "another client");
        held.pop();
        assert!(all.count(key, 2).is_some());
        held.clear();
        assert!(
            all.lock().of_holders.is_empty(),
            "nobody is kept in mind for ever"
        );
    }

    #[test]
    fn one_client_leaves_as_many_to_all_others_as_it_has() {
        let all = Headcount::default();
        let take = |key| {
            let next = || all.count_among(PublicKey([key; 32]), 16);
            std::iter::from_fn(next).collect::<Vec<_>>()
        };
        let first = take(1);
        assert_eq!(first.len(), 8);
        let second = take(2);
        assert_eq!(second.len(), 4);
        assert!(all.count_among(PublicKey([1; 32]), 16).is_none());
        drop(first);
        assert_eq!(take(3).len(), 6);
    }
}
