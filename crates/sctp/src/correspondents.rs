//! Peers that began associations with us: where each is, beyond whatever translates its address.
//!
//! Owns what is believed of that. Whoever sends a packet may write any address and port into it; so
//! a place is learnt only from a packet with the verification tag that we gave the association (RFC
//! 6951 §5.4). What begins one bears none yet: where it came from is kept apart, for its answer.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

use tabane_base::Duration;

use crate::packet;
use crate::path::LinkId;

/// Peers of which is known where they are; the one that was not heard from for longest makes room.
const KNOWN_MAX: usize = 4_096;
/// Others that were heard from; who comes beyond that pushes all out, and asks again.
const ASKING_MAX: usize = 4_096;
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
        if self.is_ours(key, tag) {
            if self.known.len() >= KNOWN_MAX && !self.known.contains_key(&key) {
                let oldest = self.known.iter().min_by_key(|(_, it)| it.place.heard_at);
                let oldest = oldest.map(|(key, _)| *key);
                oldest.and_then(|oldest| self.known.remove(&oldest));
            }
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

    /// Whether we gave this tag to an association of the peer's, which may have other addresses.
    fn is_ours(&self, key: Key, tag: u32) -> bool {
        let is_its = |asking: &Asking| asking.tags.contains(&tag);
        let by_this = |it: &Known| it.tag == tag;
        self.known.get(&key).is_some_and(by_this) || self.asking.get(&key).is_some_and(is_its) || {
            self.known.iter()
        }
        .any(|((_, port), it)| *port == key.1 && by_this(it))
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
        let mut known = self.known.iter();
        let (_, known) = known.find(|((_, of), _)| *of == port)?;
        Some(known.place)
    }
}
