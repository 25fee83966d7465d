//! How many of something each client has, at all workers together: sessions, where it is no
//! user's, and programs that ping.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tabane_core::PublicKey;

/// They by client. Copies are the same.
#[derive(Clone, Default)]
pub(super) struct Headcount(Arc<Mutex<Heads>>);

#[derive(Default)]
struct Heads {
    of_clients: BTreeMap<PublicKey, usize>,
    all: usize,
}

/// One, counted while it lives.
pub(super) struct Counted {
    all: Headcount,
    key: PublicKey,
}

impl Headcount {
    /// Counts one more, where the client has fewer than `most`.
    pub(super) fn count(&self, key: PublicKey, most: usize) -> Option<Counted> {
        self.count_if(key, |own, _| own < most)
    }

    /// Counts one more of `places` for all clients together, where this one has fewer than are left
    /// to all others: whoever comes next finds as many as whoever has most.
    pub(super) fn count_among(&self, key: PublicKey, places: usize) -> Option<Counted> {
        self.count_if(key, |own, all| own < places.saturating_sub(all))
    }

    fn count_if(&self, key: PublicKey, may: impl FnOnce(usize, usize) -> bool) -> Option<Counted> {
        let mut heads = self.lock();
        let own = heads.of_clients.get(&key).copied().unwrap_or(0);
        if !may(own, heads.all) {
            return None;
        }
        heads.of_clients.insert(key, own + 1);
        heads.all += 1;
        drop(heads);
        let all = self.clone();
        Some(Counted { all, key })
    }

    fn lock(&self) -> MutexGuard<'_, Heads> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut heads = self.all.lock();
        heads.all -= 1;
        if let Some(has) = heads.of_clients.get_mut(&self.key) {
            *has -= 1;
            if *has == 0 {
                heads.of_clients.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
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
            all.lock().of_clients.is_empty(),
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
