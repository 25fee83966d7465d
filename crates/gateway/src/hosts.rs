//! What each mobile host has of what all of them share: the table's entries, the handshakes, the
//! copies.
//!
//! Owns that none keeps the others out. A host has no more entries, and no more bytes of copies,
//! than are left to all others (the dynamic thresholds of Choudhury and Hahne), so that whoever
//! comes next finds as much as whoever has most. Of handshakes, to which nothing is owed, the
//! oldest of the host that has most goes.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};
use std::rc::Rc;

use crate::key::Key;

/// All mobile hosts of which anything is known.
#[derive(Debug, Default)]
pub(crate) struct Hosts {
    holdings: BTreeMap<IpAddr, Holding>,
    entries: usize,
    held: usize,
    opening: usize,
    /// Hosts that have handshakes: the last one is who has most, and of several such the one with
    /// the oldest.
    ranks: BTreeSet<(usize, Reverse<u64>, IpAddr)>,
    next: u64,
}

#[derive(Debug, Default)]
struct Holding {
    entries: usize,
    held: Held,
    /// Handshakes, the oldest first.
    openings: BTreeSet<(u64, Key)>,
}

/// Bytes of copies of one host, which its flows know, so that no packet has to look for them.
pub(crate) type Held = Rc<Cell<usize>>;

impl Holding {
    fn rank(&self, host: IpAddr) -> Option<(usize, Reverse<u64>, IpAddr)> {
        let (oldest, _) = self.openings.first()?;
        Some((self.openings.len(), Reverse(*oldest), host))
    }
}

impl Hosts {
    /// Bytes of all copies.
    pub(crate) const fn held(&self) -> usize {
        self.held
    }

    /// Handshakes that are not done.
    pub(crate) const fn opening(&self) -> usize {
        self.opening
    }

    /// Whether there is room for one more entry of this host's, of `most`.
    pub(crate) fn admits(&self, mobile: IpAddr, most: usize) -> bool {
        let holding = self.holdings.get(&holder(mobile));
        holding.map_or(0, |it| it.entries) < most.saturating_sub(self.entries)
    }

    /// The table has one more entry of this host's.
    pub(crate) fn on_entry(&mut self, mobile: IpAddr) {
        self.entries += 1;
        self.holdings.entry(holder(mobile)).or_default().entries += 1;
    }

    /// One of its entries has gone, which is no handshake and has no copies any more.
    pub(crate) fn on_entry_gone(&mut self, mobile: IpAddr) {
        let host = holder(mobile);
        if let Some(holding) = self.holdings.get_mut(&host) {
            self.entries -= 1;
            holding.entries -= 1;
            if holding.entries == 0 {
                self.holdings.remove(&host);
            }
        }
    }

    /// What the copies of the flows of this host are counted in.
    pub(crate) fn held_of(&mut self, mobile: IpAddr) -> Held {
        self.holdings
            .entry(holder(mobile))
            .or_default()
            .held
            .clone()
    }

    /// How many more bytes of copies, of `most`, may be kept for the host that has `own`.
    pub(crate) fn room(&self, own: &Held, most: usize) -> usize {
        most.saturating_sub(self.held).saturating_sub(own.get())
    }

    /// A flow of the host that has `own` has other copies than before.
    pub(crate) fn on_held(&mut self, own: &Held, before: usize, after: usize) {
        self.held = self.held + after - before;
        own.set(own.get() + after - before);
    }

    /// An entry has become a handshake; says by which number it is known.
    pub(crate) fn on_opening(&mut self, key: Key) -> u64 {
        let number = self.next;
        self.next += 1;
        self.opening += 1;
        self.rerank(key, |openings| openings.insert((number, key)));
        number
    }

    /// A handshake is one no more.
    pub(crate) fn on_opening_gone(&mut self, key: Key, number: u64) {
        self.opening -= 1;
        self.rerank(key, |openings| openings.remove(&(number, key)));
    }

    fn rerank(&mut self, key: Key, change: impl FnOnce(&mut BTreeSet<(u64, Key)>) -> bool) {
        let host = holder(key.mobile.ip());
        let holding = self.holdings.entry(host).or_default();
        if let Some(rank) = holding.rank(host) {
            self.ranks.remove(&rank);
        }
        change(&mut holding.openings);
        self.ranks.extend(holding.rank(host));
    }

    /// The handshake that goes for another one.
    pub(crate) fn displaced(&self) -> Option<Key> {
        let (_, _, host) = self.ranks.last()?;
        let (_, key) = self.holdings.get(host)?.openings.first()?;
        Some(*key)
    }
}

/// What stands for all addresses that a mobile host may give itself: of IPv6 it has a /64 (RFC
/// 7066).
fn holder(mobile: IpAddr) -> IpAddr {
    match mobile {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
        ip @ IpAddr::V4(_) => ip,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_a_host_gives_itself_are_one() {
        let of = |text: &str| holder(text.parse().unwrap());
        assert_eq!(of("2001:db8:0:1::1"), of("2001:db8:0:1:ffff::2"));
        assert_ne!(of("2001:db8:0:1::1"), of("2001:db8:0:2::1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
    }

    #[test]
    fn who_has_most_handshakes_gives_one_up_and_of_equals_who_has_the_oldest() {
        let key = |host: u8, port| Key {
            mobile: ([10, 0, 0, host], port).into(),
            server: ([192, 0, 2, 1], 80).into(),
        };
        let mut hosts = Hosts::default();
        let all = [key(9, 1), key(1, 1), key(1, 2)];
        let numbers = all.map(|it| {
            hosts.on_entry(it.mobile.ip());
            hosts.on_opening(it)
        });
        assert_eq!(hosts.displaced(), Some(all[1]));
        hosts.on_opening_gone(all[1], numbers[1]);
        assert_eq!(hosts.displaced(), Some(all[0]));
        hosts.on_opening_gone(all[0], numbers[0]);
        hosts.on_opening_gone(all[2], numbers[2]);
        assert_eq!((hosts.displaced(), hosts.opening()), (None, 0));
        for key in all {
            hosts.on_entry_gone(key.mobile.ip());
        }
        assert!(hosts.holdings.is_empty() && hosts.ranks.is_empty());
    }
}
