//! Which client has which address of the relay's pool.
//!
//! Pure. A client's place comes from its key, so that it has the same addresses again, after a
//! restart of the relay as well, as long as nobody else needed the place meanwhile. Addresses of
//! both families are the same place of their ranges.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tabane_base::Prefix;
use tabane_core::PublicKey;

/// Clients that may have addresses at once, however large the ranges are: more than a relay has
/// sessions.
const MAX_PLACES: u64 = 65_536;
/// The network's own address and the relay's come first.
const FIRST_PLACE: u64 = 2;

/// A client's place in the pool, by which it has its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolPlace {
    /// Whose it is.
    pub client: PublicKey,
    /// Counts the addresses of the pool.
    pub number: u64,
}

/// A relay's address pool.
#[derive(Debug)]
pub(super) struct Pool {
    v4: Option<Prefix>,
    v6: Option<Prefix>,
    places: u64,
    leases: BTreeMap<[u8; 32], Lease>,
    /// Runs of places that nobody has had yet, from their first to one past their last.
    free: BTreeMap<u64, u64>,
    /// Whose places are kept for them, by when they gave them back.
    away: BTreeMap<u64, [u8; 32]>,
    /// Counts releases.
    releases: u64,
    /// Another process gives places from here on; who has one here shares it with others of its
    /// sessions yet.
    is_closed: bool,
    /// In use in another process.
    reserved: Vec<PublicKey>,
}

#[derive(Debug)]
struct Lease {
    place: u64,
    /// How many have it at present: sessions of one client share it.
    holders: usize,
    /// When the last of them gave it back, by [`Pool::releases`].
    released: u64,
}

/// The addresses of one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Addresses {
    pub(super) v4: Option<Ipv4Addr>,
    pub(super) v6: Option<Ipv6Addr>,
}

impl Pool {
    /// A pool of these ranges, whose host bits are ignored.
    pub(super) fn new(v4: Option<Prefix>, v6: Option<Prefix>) -> Self {
        let room = |prefix: &Prefix, width: u32, reserved: u64| {
            let bits = width.saturating_sub(u32::from(prefix.bits));
            2_u64.saturating_pow(bits).saturating_sub(reserved)
        };
        // IPv4 has a broadcast address besides.
        let of_v4 = v4.iter().map(|prefix| room(prefix, 32, FIRST_PLACE + 1));
        let of_v6 = v6.iter().map(|prefix| room(prefix, 128, FIRST_PLACE));
        let places = of_v4.chain(of_v6).min().unwrap_or(0).min(MAX_PLACES);
        Self {
            v4,
            v6,
            places,
            leases: BTreeMap::new(),
            free: (places > 0).then_some((0, places)).into_iter().collect(),
            away: BTreeMap::new(),
            releases: 0,
            is_closed: false,
            reserved: Vec::new(),
        }
    }

    /// Gives no places from here on; those that are in use.
    pub(super) fn close(&mut self) -> Vec<PoolPlace> {
        self.is_closed = true;
        let used = self.leases.iter().filter(|(_, lease)| lease.holders > 0);
        let place = |(client, lease): (&[u8; 32], &Lease)| PoolPlace {
            client: PublicKey(*client),
            number: lease.place,
        };
        used.map(place).collect()
    }

    /// Gives places again; none is in use elsewhere any more.
    pub(super) fn open(&mut self) {
        self.is_closed = false;
        for client in std::mem::take(&mut self.reserved) {
            self.release(client);
        }
    }

    /// A place that is in use in another process is this client's, and nobody else's.
    pub(super) fn reserve(&mut self, place: PoolPlace) {
        let (key, number) = (place.client.0, place.number);
        if self.leases.contains_key(&key) || self.run_with(number).is_none() {
            return;
        }
        self.take(number);
        let lease = Lease {
            place: number,
            holders: 1,
            released: 0,
        };
        self.leases.insert(key, lease);
        self.reserved.push(place.client);
    }

    /// The addresses of the client with this key until they are [released](Self::release) as often
    /// as they were leased; `None` where all are in use.
    pub(super) fn lease(&mut self, client: PublicKey) -> Option<Addresses> {
        let key = client.0;
        let has_one = self.leases.get(&key).is_some_and(|it| it.holders > 0);
        if self.is_closed && !has_one {
            return None;
        }
        if !self.leases.contains_key(&key) {
            let place = self.find_place(&key)?;
            let (holders, released) = (0, 0);
            let lease = Lease {
                place,
                holders,
                released,
            };
            self.leases.insert(key, lease);
        }
        let lease = self.leases.get_mut(&key)?;
        if lease.holders == 0 {
            self.away.remove(&lease.released);
        }
        lease.holders += 1;
        let place = lease.place;
        Some(self.addresses(place))
    }

    /// Takes them back; they are kept for this client as long as there are others.
    pub(super) fn release(&mut self, client: PublicKey) {
        let Some(lease) = self.leases.get_mut(&client.0) else {
            return;
        };
        if lease.holders == 1 {
            self.releases += 1;
            lease.released = self.releases;
            self.away.insert(self.releases, client.0);
        }
        lease.holders = lease.holders.saturating_sub(1);
    }

    /// Places in use and in all.
    pub(super) fn fill(&self) -> (u64, u64) {
        let used = self.leases.len() - self.away.len();
        (used as u64, self.places)
    }

    fn find_place(&mut self, key: &[u8; 32]) -> Option<u64> {
        if self.places == 0 {
            return None;
        }
        // Keys are as good as random.
        let wanted = key.first_chunk::<8>().copied().map(u64::from_le_bytes);
        let wanted = wanted.unwrap_or(0) % self.places;
        let next = || self.free.range(wanted..).next().map(|(first, _)| *first);
        let first = || self.free.first_key_value().map(|(first, _)| *first);
        let free = self.run_with(wanted).map(|_| wanted);
        if let Some(place) = free.or_else(next).or_else(first) {
            self.take(place);
            return Some(place);
        }
        let (_, longest_away) = self.away.pop_first()?;
        Some(self.leases.remove(&longest_away)?.place)
    }

    /// The run of free places with this one.
    fn run_with(&self, place: u64) -> Option<(u64, u64)> {
        let (first, end) = self.free.range(..=place).next_back()?;
        (place < *end).then_some((*first, *end))
    }

    /// A free place is free no more.
    fn take(&mut self, place: u64) {
        let Some((first, end)) = self.run_with(place) else {
            return;
        };
        self.free.remove(&first);
        let rests = [(first, place), (place + 1, end)];
        let rests = rests.into_iter().filter(|(first, end)| first < end);
        self.free.extend(rests);
    }

    fn addresses(&self, place: u64) -> Addresses {
        let number = place + FIRST_PLACE;
        let v4 = self.v4.and_then(|prefix| prefix.nth(number));
        let v6 = self.v6.and_then(|prefix| prefix.nth(number));
        Addresses {
            v4: v4.and_then(|ip| match ip {
                IpAddr::V4(ip) => Some(ip),
                IpAddr::V6(_) => None,
            }),
            v6: v6.and_then(|ip| match ip {
                IpAddr::V6(ip) => Some(ip),
                IpAddr::V4(_) => None,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(v4: &str, v6: &str) -> Pool {
        Pool::new(Prefix::parse(v4), Prefix::parse(v6))
    }

    fn key(first: u8) -> PublicKey {
        let mut key = [9; 32];
        key[..8].copy_from_slice(&u64::from(first).to_le_bytes());
        PublicKey(key)
    }

    #[test]
    fn a_client_has_the_same_addresses_again_and_after_a_restart() {
        let mut first = pool("100.64.16.0/20", "fd00:1::/64");
        let had = first.lease(key(5)).unwrap();
        assert_eq!(had.v4, Some("100.64.16.7".parse().unwrap()));
        assert_eq!(had.v6, Some("fd00:1::7".parse().unwrap()));
        first.release(key(5));
        assert_ne!(
            first.lease(key(6)),
            Some(had),
            "kept while there are others"
        );
        assert_eq!(first.lease(key(5)), Some(had));
        assert_eq!(
            pool("100.64.16.0/20", "fd00:1::/64").lease(key(5)),
            Some(had)
        );
    }

    #[test]
    fn no_two_have_one_and_all_are_used_before_there_is_none() {
        // 8 less three, from a range written with host bits.
        let mut pool = pool("100.64.16.5/29", "");
        let mut given = Vec::new();
        for n in 0..5 {
            // All want the same place.
            let addresses = pool.lease(PublicKey({
                let mut key = [0; 32];
                key[31] = n;
                key
            }));
            let ip = addresses.unwrap().v4.unwrap();
            assert!(!given.contains(&ip));
            assert_eq!(addresses.unwrap().v6, None);
            given.push(ip);
        }
        given.sort();
        assert_eq!(given[0].to_string(), "100.64.16.2");
        assert_eq!(given[4].to_string(), "100.64.16.6");
        assert_eq!(pool.lease(key(77)), None);
        assert_eq!(pool.fill(), (5, 5));
        let mut gone = [0; 32];
        gone[31] = 3;
        pool.release(PublicKey(gone));
        let heir = pool.lease(key(77)).unwrap().v4.unwrap();
        assert_eq!(heir, given[3]);
        assert_eq!(
            pool.lease(PublicKey(gone)),
            None,
            "its place went to another"
        );
    }

    #[test]
    fn what_is_in_use_in_another_process_is_given_to_nobody_else() {
        let (mut old, mut new) = (pool("100.64.16.0/29", ""), pool("100.64.16.0/29", ""));
        // Both want the place that the other key has.
        let other = PublicKey({
            let mut key = key(1).0;
            key[31] = 77;
            key
        });
        let had = old.lease(key(1)).unwrap();
        old.lease(key(2)).unwrap();
        old.release(key(2));
        let places = old.close();
        assert_eq!(places.len(), 1, "of those who are there: {places:?}");
        assert_eq!(old.lease(key(3)), None, "the other process gives places");
        assert_eq!(old.lease(key(1)), Some(had), "a second session shares one");

        places.iter().for_each(|place| new.reserve(*place));
        assert_ne!(new.lease(other), Some(had));
        assert_eq!(
            new.lease(key(1)),
            Some(had),
            "whose it is has it here as well"
        );
        new.release(key(1));
        for n in 0..3 {
            assert!(new.lease(key(100 + n)).is_some());
        }
        assert_eq!(new.lease(key(200)), None, "all others are in use");
        new.open();
        assert_eq!(new.lease(key(200)), Some(had), "until that process ends");

        // One that came to nothing: the first gives places again.
        old.open();
        assert!(old.lease(key(3)).is_some());
    }

    #[test]
    fn sessions_of_one_client_share_its_addresses() {
        let mut pool = pool("100.64.16.0/30", "");
        let one = pool.lease(key(1)).unwrap();
        assert_eq!(pool.lease(key(1)), Some(one));
        pool.release(key(1));
        assert_eq!(pool.lease(key(2)), None, "still in use");
        pool.release(key(1));
        assert!(pool.lease(key(2)).is_some());
    }

    /// What a hundred newcomers take: of a pool that is nearly full, then of
    /// one of which every place is remembered for somebody who is away, then of one in use.
    fn newcomers(range: &str) -> [std::time::Duration; 3] {
        let mut pool = pool("", range);
        let wanting = |place: u64, number: u64| {
            let mut key = [0; 32];
            key[..8].copy_from_slice(&place.to_le_bytes());
            key[8..16].copy_from_slice(&number.to_le_bytes());
            PublicKey(key)
        };
        let known: Vec<_> = (0..pool.places - 100)
            .map(|place| wanting(place, 0))
            .collect();
        for key in &known {
            assert!(pool.lease(*key).is_some());
        }
        let come = |pool: &mut Pool, round: u64| {
            let since = std::time::Instant::now();
            let leased = (0..100_u64).map(|n| pool.lease(wanting(0, 100 * round + n)));
            let given = leased.filter(Option::is_some).count();
            (since.elapsed(), given)
        };
        let (nearly_full, given) = come(&mut pool, 1);
        assert_eq!((given, pool.fill().0), (100, pool.places));
        known[..100].iter().for_each(|key| pool.release(*key));
        let (remembered, given) = come(&mut pool, 2);
        assert_eq!(given, 100);
        let (in_use, given) = come(&mut pool, 3);
        assert_eq!((given, pool.fill()), (0, (pool.places, pool.places)));
        [nearly_full, remembered, in_use]
    }

    #[test]
    fn no_newcomer_is_paid_for_by_a_walk_over_all_places() {
        let (small, large) = (newcomers("fd00:1::/119"), newcomers("fd00:1::/64"));
        println!("100 newcomers to 510 places: {small:?}, to 65,536: {large:?}");
        let floor = std::time::Duration::from_micros(100);
        for (small, large) in small.into_iter().zip(large) {
            assert!(large < 10 * small.max(floor));
        }
    }
}
