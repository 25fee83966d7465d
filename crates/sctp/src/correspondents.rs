//! Peers that began associations with us: where each is, beyond whatever translates its address.
//!
//! Owns what is believed of that. Whoever sends a packet may write any address and port into it; so
//! a place is learnt only from a packet with the verification tag that we gave the association (RFC
//! 6951 §5.4). What begins one bears none yet: where it came from is kept apart, for its answer.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};

use tabane_base::Duration;

use crate::packet;
use crate::path::LinkId;

/// Peers of which is known where they are; the one that was not heard from for longest makes room.
const KNOWN_MAX: usize = 4_096;
/// Others that were heard from; who comes beyond that pushes all out, and asks again.
const ASKING_MAX: usize = 4_096;
/// Addresses of one association, of which the one that was not heard from for longest makes room:
/// whoever has one may send in the name of as many as it likes, and pushes out its own.
const HOSTS_MAX: usize = 16;
/// Tags that are given to one before it uses any: copies of an INIT have each its own.
const TAGS_MAX: usize = 8;

/// A peer's address and SCTP port.
type Key = (IpAddr, u16);

/// Where a packet came from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) link: LinkId,
    pub(crate) local: IpAddr,
    pub(crate) remote: SocketAddr,
    /// By the stack's clock.
    pub(crate) heard_at: Duration,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Correspondents {
    known: BTreeMap<Key, Known>,
    /// The same by when they were heard from.
    heard: BTreeSet<(Duration, Key)>,
    /// The addresses of each association, by its port at the peer and our tag.
    hosts: BTreeMap<(u16, u32), Vec<IpAddr>>,
    asking: BTreeMap<Key, Asking>,
}

#[derive(Debug)]
struct Known {
    place: Place,
    /// Ours, of the association.
    tag: u32,
}

#[derive(Debug)]
struct Asking {
    place: Place,
    tags: VecDeque<u32>,
}

impl Correspondents {
    /// A packet has come from a peer.
    pub(crate) fn on_packet(&mut self, key: Key, place: Place, bytes: &[u8]) {
        let tag = packet::tag(bytes);
        if let Some(known) = self.known.get_mut(&key)
            && known.tag == tag
        {
            let before = std::mem::replace(&mut known.place, place);
            if before.heard_at != place.heard_at {
                self.heard.remove(&(before.heard_at, key));
                self.heard.insert((place.heard_at, key));
            }
            return;
        }
        if self.is_ours(key, tag) {
            self.forget(key);
            self.make_room(key.1, tag);
            self.heard.insert((place.heard_at, key));
            self.hosts.entry((key.1, tag)).or_default().push(key.0);
            self.known.insert(key, Known { place, tag });
            return;
        }
        if self.asking.len() >= ASKING_MAX && !self.asking.contains_key(&key) {
            self.asking.clear();
        }
        let tags = VecDeque::new();
        let asking = self.asking.entry(key).or_insert(Asking { place, tags });
        asking.place = place;
    }

    /// For one more address of the association with this tag.
    fn make_room(&mut self, port: u16, tag: u32) {
        if let Some(hosts) = self.hosts.get(&(port, tag))
            && hosts.len() >= HOSTS_MAX
        {
            let heard_at =
                |host: &IpAddr| self.known.get(&(*host, port)).map(|it| it.place.heard_at);
            let oldest = hosts.iter().copied().min_by_key(heard_at);
            oldest
                .into_iter()
                .for_each(|host| self.forget((host, port)));
        }
        if self.known.len() >= KNOWN_MAX {
            let oldest = self.heard.first().map(|(_, key)| *key);
            oldest.into_iter().for_each(|key| self.forget(key));
        }
    }

    fn forget(&mut self, key: Key) {
        let Some(Known { place, tag }) = self.known.remove(&key) else {
            return;
        };
        self.heard.remove(&(place.heard_at, key));
        if let Some(hosts) = self.hosts.get_mut(&(key.1, tag)) {
            hosts.retain(|host| *host != key.0);
            if hosts.is_empty() {
                self.hosts.remove(&(key.1, tag));
            }
        }
    }

    /// Whether we gave this tag to an association of the peer's, which may have other addresses.
    fn is_ours(&self, key: Key, tag: u32) -> bool {
        let is_its = |asking: &Asking| asking.tags.contains(&tag);
        self.hosts.contains_key(&(key.1, tag)) || self.asking.get(&key).is_some_and(is_its)
    }

    /// Where a packet of ours to a peer goes; `None` where it was not heard from.
    pub(crate) fn on_transmit(&mut self, key: Key, bytes: &[u8]) -> Option<Place> {
        let Some(tag) = packet::answered_tag(bytes) else {
            return self.place(key);
        };
        let asking = self.asking.get_mut(&key)?;
        if asking.tags.len() >= TAGS_MAX {
            asking.tags.pop_front();
        }
        asking.tags.push_back(tag);
        Some(asking.place)
    }

    /// Where a peer is, as far as is known.
    pub(crate) fn place(&self, key: Key) -> Option<Place> {
        let known = self.known.get(&key).map(|it| it.place);
        known.or_else(|| Some(self.asking.get(&key)?.place))
    }

    /// Where somebody with this SCTP port is.
    pub(crate) fn by_port(&self, port: u16) -> Option<Place> {
        let (_, hosts) = self.hosts.range((port, 0)..=(port, u32::MAX)).next()?;
        Some(self.known.get(&(*hosts.first()?, port))?.place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};
    use std::time::Instant;

    const PORT: u16 = 5_001;

    /// A packet with a tag, or of tag 0 an INIT ACK that gives `given`.
    fn packet(tag: u32, given: u32) -> Vec<u8> {
        let mut packet = [[19, 137, 19, 137], tag.to_be_bytes(), [0; 4]].concat();
        packet.extend([2, 0, 0, 20]);
        packet.extend(given.to_be_bytes());
        packet.extend([0; 12]);
        packet
    }

    fn place(port: u16, heard_at: u64) -> Place {
        Place {
            link: LinkId(1),
            local: Ipv4Addr::LOCALHOST.into(),
            remote: SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port),
            heard_at: Duration::from_millis(heard_at),
        }
    }

    fn host(n: u32) -> IpAddr {
        Ipv4Addr::from_bits(0x0a00_0000 + n).into()
    }

    /// An association with `key`, to which `tag` was given.
    fn begin(all: &mut Correspondents, key: Key, tag: u32, heard_at: u64) {
        all.on_packet(key, place(1, heard_at), &packet(0, 0));
        all.on_transmit(key, &packet(0, tag)).unwrap();
        all.on_packet(key, place(1, heard_at), &packet(tag, 0));
    }

    /// What ten thousand packets of strangers take beside so many peers.
    fn taken(peers: u32) -> std::time::Duration {
        let mut all = Correspondents::default();
        (0..peers).for_each(|n| begin(&mut all, (host(n), PORT), n + 1, 0));
        let stranger = packet(1 << 31, 0);
        let since = Instant::now();
        for n in 0..10_000 {
            all.on_packet((host((1 << 20) + n % 100), PORT), place(2, 0), &stranger);
        }
        since.elapsed()
    }

    #[test]
    fn a_stranger_s_packet_costs_no_look_at_all_peers() {
        let few = (0..5).map(|_| taken(1)).min().unwrap();
        let many = (0..5).map(|_| taken(4_000)).min().unwrap();
        println!("{few:?} beside one peer, {many:?} beside 4,000");
        assert!(many < 30 * few);
    }

    #[test]
    fn one_peer_s_addresses_push_out_nobody_else_s() {
        let mut all = Correspondents::default();
        let quiet = (host(1), PORT);
        begin(&mut all, quiet, 1, 0);
        begin(&mut all, (host(2), PORT), 2, 1);
        for n in 0..10_000 {
            let key = (Ipv6Addr::from_bits(n).into(), PORT);
            all.on_packet(key, place(3, 2), &packet(2, 0));
        }
        // Somebody in its name, who does not know its tag.
        all.on_packet(quiet, place(4, 3), &packet(9, 0));
        assert_eq!(all.place(quiet).unwrap().remote.port(), 1);
        assert!(all.known.len() < 100, "{}", all.known.len());
        // It has moved, and knows its tag; so it has from an address that was not known.
        all.on_packet(quiet, place(5, 4), &packet(1, 0));
        assert_eq!(all.place(quiet).unwrap().remote.port(), 5);
        all.on_packet((host(7), PORT), place(6, 5), &packet(1, 0));
        assert_eq!(all.place((host(7), PORT)).unwrap().remote.port(), 6);
        assert!(all.by_port(PORT).is_some() && all.by_port(1).is_none());
    }

    #[test]
    fn the_peer_that_was_silent_for_longest_makes_room() {
        let mut all = Correspondents::default();
        let peers = KNOWN_MAX as u32;
        (0..peers).for_each(|n| begin(&mut all, (host(n), PORT), n + 1, u64::from(n)));
        // The first is heard once more, and has another association.
        let later = u64::from(peers);
        begin(&mut all, (host(0), PORT), peers + 1, later);
        begin(&mut all, (host(peers), PORT), peers + 2, later + 1);
        let is_known = |n: u32| all.known.contains_key(&(host(n), PORT));
        assert!(is_known(0) && !is_known(1) && is_known(2) && is_known(peers));
        assert_eq!((all.known.len(), all.heard.len()), (KNOWN_MAX, KNOWN_MAX));
        assert_eq!(all.hosts.len(), KNOWN_MAX);
        assert!(all.is_ours((host(0), PORT), peers + 1));
    }
}
