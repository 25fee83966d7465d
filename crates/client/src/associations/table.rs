//! The flows of one entrance, by key.
//!
//! Owns how many there may be, and which one ends for one more: the longest silent one of whoever
//! has most, so that a host behind this machine that begins flow upon flow ends its own.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::Association;
use crate::lan_hosts::Holder;

/// Flows at once. Each may be a stream of the session, which has 4,096 in all, most for TCP.
const MAX_FLOWS: usize = 1_024;

pub(super) struct Table<K> {
    flows: BTreeMap<K, Rc<Association>>,
    /// How many of them each holder has.
    held: BTreeMap<Option<Holder>, usize>,
}

impl<K> Default for Table<K> {
    fn default() -> Self {
        Self {
            flows: BTreeMap::new(),
            held: BTreeMap::new(),
        }
    }
}

impl<K> Table<K> {
    pub(super) fn flows(&self) -> impl Iterator<Item = &Association> {
        self.flows.values().map(|flow| &**flow)
    }
}

impl<K: Ord + Clone> Table<K> {
    pub(super) fn get(&self, key: &K) -> Option<&Association> {
        self.flows.get(key).map(|flow| &**flow)
    }

    /// One more, whose key is new; hands back who made room for it, to be ended.
    pub(super) fn insert(&mut self, key: K, flow: Rc<Association>) -> Option<Rc<Association>> {
        let is_full = self.flows.len() >= MAX_FLOWS;
        let displaced = is_full.then(|| self.make_room(flow.holder));
        *self.held.entry(flow.holder).or_default() += 1;
        self.flows.insert(key, flow);
        displaced.flatten()
    }

    /// This flow has ended; the key may stand for a newer one by now.
    pub(super) fn forget(&mut self, key: &K, flow: &Rc<Association>) {
        if self.flows.get(key).is_some_and(|it| Rc::ptr_eq(it, flow)) {
            self.remove(key);
        }
    }

    fn make_room(&mut self, wanting: Option<Holder>) -> Option<Rc<Association>> {
        let most = self.held.values().max()?;
        let has_most = |holder| self.held.get(holder) == Some(most);
        let flows = self
            .flows
            .iter()
            .filter(|(_, flow)| match has_most(&wanting) {
                true => flow.holder == wanting,
                false => has_most(&flow.holder),
            });
        let oldest = flows.min_by_key(|(_, flow)| flow.last_used_at.get());
        let key = oldest.map(|(key, _)| key.clone())?;
        self.remove(&key)
    }

    fn remove(&mut self, key: &K) -> Option<Rc<Association>> {
        let flow = self.flows.remove(key)?;
        if let Some(held) = self.held.get_mut(&flow.holder) {
            *held -= 1;
            if *held == 0 {
                self.held.remove(&flow.holder);
            }
        }
        Some(flow)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_host_that_begins_flow_upon_flow_ends_its_own() {
        let host = |n: u8| Some(Holder::Address(IpAddr::from([10, 0, 0, n])));
        let mut table = Table::default();
        let mut begin = |holder, port: usize| {
            let flow = Rc::new(Association::new(b"", Box::new(|_| ()), None, holder));
            let displaced = table.insert((holder, port), flow);
            displaced.map(|it| it.holder)
        };
        let (quiet, busy, other) = (host(1), host(2), host(3));
        assert_eq!(begin(quiet, 0), None);
        for port in 0..MAX_FLOWS / 4 {
            assert_eq!(begin(other, port), None);
        }
        for port in 0..10 * MAX_FLOWS {
            tokio::time::advance(std::time::Duration::from_millis(1)).await;
            let displaced = begin(busy, port);
            assert!(
                displaced.is_none_or(|it| it == busy),
                "{port}: {displaced:?}"
            );
        }
        // Another takes of its, until both have as many; from there on each ends its own.
        for port in MAX_FLOWS / 4..2 * MAX_FLOWS {
            tokio::time::advance(std::time::Duration::from_millis(1)).await;
            let most = if port < MAX_FLOWS / 2 { busy } else { other };
            assert_eq!(begin(other, port), Some(most), "{port}");
        }
        assert_eq!(table.flows.keys().filter(|(it, _)| *it == quiet).count(), 1);
    }
}
