//! Sessions or connections of others that are not admitted yet: how many there are, and of whom.
//!
//! Owns that one address cannot keep everybody else out: where no more may begin, the oldest of
//! whoever has most goes. When that is, and what becomes of it, is for others to say: `accept`
//! here, whoever has a [`Lobby`](crate::Lobby) elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};

use tabane_base::{Duration, Instant};

/// Those that were admitted or have ended are looked for this often at the most.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);
/// What one subscriber has of IPv6: addresses within it are not told apart (RFC 6177).
const SITE: u8 = 56;

/// The strangers of one end, each by what its owner knows it by.
#[derive(Debug)]
pub(crate) struct Strangers<H> {
    known: BTreeMap<H, (IpAddr, u64)>,
    /// By whom, the oldest first.
    held: BTreeMap<IpAddr, BTreeSet<(u64, H)>>,
    next: u64,
    looked_at: Option<Instant>,
}

impl<H> Default for Strangers<H> {
    fn default() -> Self {
        Self {
            known: BTreeMap::new(),
            held: BTreeMap::new(),
            next: 0,
            looked_at: None,
        }
    }
}

impl<H: Copy + Ord> Strangers<H> {
    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }

    /// One more, from this address.
    pub(crate) fn insert(&mut self, handle: H, from: IpAddr) {
        let place = (site(from), self.next);
        self.next += 1;
        self.known.insert(handle, place);
        self.held
            .entry(place.0)
            .or_default()
            .insert((place.1, handle));
    }

    /// One that has ended, or is a stranger no more.
    pub(crate) fn remove(&mut self, handle: H) {
        let Some((site, number)) = self.known.remove(&handle) else {
            return;
        };
        if let Some(held) = self.held.get_mut(&site) {
            held.remove(&(number, handle));
            if held.is_empty() {
                self.held.remove(&site);
            }
        }
    }

    /// Forgets those that are strangers no more, unless it has just been done.
    pub(super) fn look(&mut self, now: Instant, is_stranger: impl Fn(H) -> bool) {
        if self
            .looked_at
            .is_some_and(|at| now.since(at) < LOOK_INTERVAL)
        {
            return;
        }
        self.looked_at = Some(now);
        let gone: Vec<_> = self
            .known
            .keys()
            .copied()
            .filter(|h| !is_stranger(*h))
            .collect();
        gone.into_iter().for_each(|handle| self.remove(handle));
    }

    /// Who makes room for one more of `from`: the oldest of whoever has most, and will not have
    /// less than `from` then.
    pub(crate) fn displaced_by(&self, from: IpAddr) -> Option<H> {
        let own = self.held.get(&site(from)).map_or(0, BTreeSet::len);
        let largest = self.held.values().max_by_key(|held| held.len())?;
        let (_, oldest) = largest.first()?;
        (largest.len() > own + 1).then_some(*oldest)
    }
}

/// What stands for all addresses that one subscriber has.
fn site(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> (128 - SITE) << (128 - SITE)).into(),
        ip @ IpAddr::V4(_) => ip,
    }
}
