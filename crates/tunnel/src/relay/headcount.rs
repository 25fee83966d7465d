//! How many sessions each client has that is no user's, at all workers together.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tabane_core::PublicKey;

/// Sessions by client. Copies are the same.
#[derive(Clone, Default)]
pub(super) struct Headcount(Arc<Mutex<BTreeMap<PublicKey, usize>>>);

/// One session, counted while it lives.
pub(super) struct Counted {
    all: Headcount,
    key: PublicKey,
}

impl Headcount {
    /// Counts one more, where the client has fewer than `most`.
    pub(super) fn count(&self, key: PublicKey, most: usize) -> Option<Counted> {
        let mut all = self.lock();
        if all.get(&key).copied().unwrap_or(0) >= most {
            return None;
        }
        *all.entry(key).or_default() += 1;
        drop(all);
        let all = self.clone();
        Some(Counted { all, key })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<PublicKey, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut all = self.all.lock();
        if let Some(has) = all.get_mut(&self.key) {
            *has -= 1;
            if *has == 0 {
                all.remove(&self.key);
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
        assert!(all.lock().is_empty(), "nobody is kept in mind for ever");
    }
}
