//! Hosts behind this machine, and what each of them has had carried.
//!
//! Owns the counts, by address, of as many hosts as there is room for; those that were silent for
//! longest are summed up as one. What is counted is what labels count: bytes into the tunnel and
//! out of it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::rc::Rc;

use tabane_control::LanHost;
use tabane_policy::{HardwareAddress, Sender};
use tabane_tunnel::{Counted, Headcount, Label, Tally};

/// Hosts that are counted one by one: a large network's, and more than anybody reads.
const MAX_HOSTS: usize = 512;

/// Connections of all hosts through sessions at a time, of which one alone has half: a session has
/// 4,096 streams, and up to 1,024 flows of datagrams and this machine's own programs want some.
const MAX_CONNECTIONS: usize = 3_072;

/// The hosts. Copies are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct LanHosts(Rc<RefCell<Book>>);

#[derive(Debug, Default)]
struct Book {
    hosts: BTreeMap<IpAddr, Host>,
    /// All that there was no room for.
    others: Host,
    /// Counts connections, so that the longest silent host is known without a clock.
    turn: u64,
}

#[derive(Debug, Default)]
struct Host {
    hardware: Option<HardwareAddress>,
    tally: Tally,
    connections: u64,
    last: u64,
}

/// Whose part of what hosts share something counts in: a host's, whatever addresses it has, where
/// its card is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Holder {
    Card(HardwareAddress),
    /// All hosts whose cards are not known, where those of others are: they are behind a router, or
    /// are none. Whoever makes addresses up has no more parts for it.
    Strangers,
    /// Where no cards are known: an address, of IPv6 all that a host may give itself (a /64).
    Address(IpAddr),
}

impl Holder {
    pub(crate) fn of(sender: Sender, knows_cards: bool) -> Self {
        match (sender.hardware, sender.address) {
            (Some(card), _) => Self::Card(card),
            (None, Some(address)) if !knows_cards => Self::Address(match address.to_canonical() {
                IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
                ip @ IpAddr::V4(_) => ip,
            }),
            (None, _) => Self::Strangers,
        }
    }
}

/// A holder's part of the streams that hosts have for connections.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    all: Headcount<Holder>,
    of: Holder,
}

impl Part {
    pub(crate) fn of(all: &Headcount<Holder>, of: Holder) -> Self {
        let all = all.clone();
        Self { all, of }
    }

    /// A place for one more connection, if the holder has fewer than are left to all others.
    pub(crate) fn take(&self) -> Option<Counted<Holder>> {
        self.all.count_among(self.of, MAX_CONNECTIONS)
    }
}

impl LanHosts {
    /// A host begins something; `label` is what it bears, where it goes through the tunnel.
    pub(crate) fn on_begin(&self, sender: Sender, label: Option<&Label>) {
        let Some(address) = sender.address else {
            return;
        };
        let book = &mut *self.0.borrow_mut();
        book.turn += 1;
        book.make_room(address);
        let is_known = book.hosts.contains_key(&address);
        let host = match is_known || book.hosts.len() < MAX_HOSTS {
            true => book.hosts.entry(address).or_default(),
            false => &mut book.others,
        };
        host.connections += 1;
        host.last = book.turn;
        // A card that is not known just now was so before.
        host.hardware = sender.hardware.or(host.hardware);
        if let Some(label) = label {
            label.count_in_as_well(&host.tally);
        }
    }

    /// The card that an address had when it was heard of last.
    pub(crate) fn hardware_of(&self, address: IpAddr) -> Option<HardwareAddress> {
        self.0.borrow().hosts.get(&address)?.hardware
    }

    /// All of them, the busiest first.
    pub(crate) fn shown(&self) -> Vec<LanHost> {
        let book = self.0.borrow();
        let hosts = book.hosts.iter();
        let mut all: Vec<_> = hosts.map(|(ip, host)| host.shown(Some(*ip))).collect();
        all.sort_by_key(|it| std::cmp::Reverse(it.sent_bytes.saturating_add(it.received_bytes)));
        all.extend((book.others.connections > 0).then(|| book.others.shown(None)));
        all
    }
}

impl Book {
    /// Sums up the longest silent host, where there is one more than there is room for.
    fn make_room(&mut self, for_whom: IpAddr) {
        if self.hosts.len() < MAX_HOSTS || self.hosts.contains_key(&for_whom) {
            return;
        }
        let silent = self.hosts.iter().filter(|(_, it)| it.tally.bearers() == 0);
        let oldest = silent.min_by_key(|(_, host)| host.last);
        if let Some(ip) = oldest.map(|(ip, _)| *ip)
            && let Some(host) = self.hosts.remove(&ip)
        {
            self.others.tally.add(&host.tally);
            self.others.connections += host.connections;
        }
    }
}

impl Host {
    fn shown(&self, address: Option<IpAddr>) -> LanHost {
        LanHost {
            address,
            hardware: self.hardware.map(|it| it.to_string()),
            connections: self.tally.bearers() as u64,
            connections_so_far: self.connections,
            sent_bytes: self.tally.sent().get(),
            received_bytes: self.tally.received().get(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tabane_tunnel::Treatment;

    fn host(number: usize) -> Sender {
        let [high, low] = u16::try_from(number).unwrap().to_be_bytes();
        Sender {
            address: Some([10, 0, high, low].into()),
            hardware: Some(HardwareAddress([2, 0, 0, 0, high, low])),
        }
    }

    #[test]
    fn each_is_counted_by_itself_and_the_longest_silent_together() {
        let hosts = LanHosts::default();
        let label = Label::new(Treatment::default());
        hosts.on_begin(host(0), Some(&label));
        for number in 0..MAX_HOSTS {
            hosts.on_begin(host(number), None);
        }
        hosts.on_begin(host(1), None);
        let shown = hosts.shown();
        assert_eq!(shown.len(), MAX_HOSTS);
        let first = shown.iter().find(|it| it.address == host(0).address);
        let first = first.unwrap();
        assert_eq!((first.connections, first.connections_so_far), (1, 2));
        assert_eq!(first.hardware.as_deref(), Some("02:00:00:00:00:00"));

        // The first still has something under way, and the second was heard of last.
        hosts.on_begin(host(MAX_HOSTS), None);
        let shown = hosts.shown();
        assert_eq!(shown.len(), MAX_HOSTS + 1);
        let has = |number| shown.iter().any(|it| it.address == host(number).address);
        assert!(has(0) && has(1) && !has(2) && has(MAX_HOSTS));
        let others = shown.last().unwrap();
        assert_eq!((others.address, others.connections_so_far), (None, 1));

        let unknown = Sender {
            hardware: None,
            ..host(1)
        };
        hosts.on_begin(unknown, None);
        let address = host(1).address.unwrap();
        assert_eq!(hosts.hardware_of(address), host(1).hardware);
    }

    #[test]
    fn a_host_is_its_card_and_addresses_that_are_made_up_are_one() {
        let at = |address: &str, card: Option<u8>| Sender {
            address: Some(address.parse().unwrap()),
            hardware: card.map(|n| HardwareAddress([2, 0, 0, 0, 0, n])),
        };
        let holder = |address, card| Holder::of(at(address, card), true);
        let first = holder("10.0.0.1", Some(1));
        assert_eq!(first, holder("2001:db8::1", Some(1)));
        assert_ne!(first, holder("10.0.0.2", Some(2)));
        assert_ne!(first, holder("10.0.0.1", None));
        assert_eq!(holder("10.0.0.8", None), holder("2001:db8::9", None));

        let address = |address| Holder::of(at(address, None), false);
        assert_ne!(address("10.0.0.1"), address("10.0.0.2"));
        assert_eq!(address("2001:db8::1"), address("2001:db8::2"));
        assert_ne!(address("2001:db8::1"), address("2001:db8:0:1::1"));
    }

    #[test]
    fn one_host_leaves_as_many_connections_to_all_others_as_it_has() {
        let all = Headcount::default();
        let holder = |n| Holder::of(host(n), true);
        let take = |n| {
            let part = Part::of(&all, holder(n));
            std::iter::from_fn(|| part.take()).collect::<Vec<_>>()
        };
        let busy = take(1);
        assert_eq!(busy.len(), MAX_CONNECTIONS / 2);
        assert!(Part::of(&all, holder(2)).take().is_some());
        drop(busy);
        assert!(Part::of(&all, holder(1)).take().is_some());
    }
}
