//! Which link and which address of the peer make a path.
//!
//! Pure. Every link is to be used and every address as well: a bottleneck may be on either side.
//! What is on a link's own wire is reached by that link.

use std::net::{Ipv4Addr, SocketAddrV4};

use crate::{LinkId, PathTuple, path::SLOTS};

/// A link as far as this goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reach {
    pub link: LinkId,
    pub local: Ipv4Addr,
    /// How many leading bits its neighbours share.
    pub prefix_bits: u8,
}

impl Reach {
    fn is_neighbour(&self, address: Ipv4Addr) -> bool {
        let bits = u32::from(self.prefix_bits.min(32));
        let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
        u32::from(self.local) & mask == u32::from(address) & mask
    }
}

/// The ways to begin with: as many as there are links or addresses, whichever are more, without
/// repetition, at most [`SLOTS`].
pub(crate) fn plan(links: &[Reach], remotes: &[SocketAddrV4]) -> Vec<PathTuple> {
    let mut ways: Vec<PathTuple> = Vec::new();
    for remote in remotes {
        if let Some(link) = best_link(links, &ways, *remote.ip()) {
            add(&mut ways, link, *remote);
        }
    }
    for link in links {
        if !ways.iter().any(|way| way.link == link.link)
            && let Some(remote) = best_remote(links, &ways, remotes, link)
        {
            add(&mut ways, link.link, remote);
        }
    }
    ways.truncate(SLOTS);
    ways
}

/// The link for one more address: its neighbour, else the one with the fewest ways.
fn best_link(links: &[Reach], ways: &[PathTuple], remote: Ipv4Addr) -> Option<LinkId> {
    let neighbour = links.iter().find(|link| link.is_neighbour(remote));
    let used = |link: &&Reach| ways.iter().filter(|way| way.link == link.link).count();
    let best = neighbour.or_else(|| links.iter().min_by_key(used))?;
    Some(best.link)
}

/// The address for one more link: a neighbour, else the one with the fewest ways that is nobody
/// else's neighbour, else the one with the fewest ways.
pub(crate) fn best_remote(
    links: &[Reach],
    ways: &[PathTuple],
    remotes: &[SocketAddrV4],
    link: &Reach,
) -> Option<SocketAddrV4> {
    let rank = |remote: &&SocketAddrV4| {
        let others = links.iter().filter(|other| other.link != link.link);
        let is_others = others
            .filter(|other| other.is_neighbour(*remote.ip()))
            .count();
        let used = ways.iter().filter(|way| way.remote == **remote).count();
        (!link.is_neighbour(*remote.ip()), is_others > 0, used)
    };
    remotes.iter().min_by_key(rank).copied()
}

/// The next address to try over a link on which this one does not answer.
pub(crate) fn next_remote(remotes: &[SocketAddrV4], tried: SocketAddrV4) -> Option<SocketAddrV4> {
    let at = remotes.iter().position(|remote| *remote == tried);
    let next = at.map_or(0, |at| at + 1) % remotes.len().max(1);
    remotes.get(next).copied().filter(|next| *next != tried)
}

fn add(ways: &mut Vec<PathTuple>, link: LinkId, remote: SocketAddrV4) {
    let way = PathTuple { link, remote };
    if !ways.contains(&way) {
        ways.push(way);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(number: u32, local: [u8; 4]) -> Reach {
        Reach {
            link: LinkId(number),
            local: local.into(),
            prefix_bits: 24,
        }
    }

    fn remote(host: [u8; 4]) -> SocketAddrV4 {
        SocketAddrV4::new(host.into(), 9899)
    }

    fn text(ways: &[PathTuple]) -> Vec<(u32, u8)> {
        let last = |way: &PathTuple| way.remote.ip().octets()[3];
        ways.iter().map(|way| (way.link.0, last(way))).collect()
    }

    #[test]
    fn every_link_and_every_address_has_a_way() {
        let (one, two) = (link(1, [10, 0, 1, 2]), link(2, [10, 0, 2, 2]));
        let far = |last| remote([192, 0, 2, last]);
        assert_eq!(text(&plan(&[one, two], &[far(1)])), [(1, 1), (2, 1)]);
        assert_eq!(text(&plan(&[one], &[far(1), far(2)])), [(1, 1), (1, 2)]);
        let both = [far(1), far(2)];
        assert_eq!(text(&plan(&[one, two], &both)), [(1, 1), (2, 2)]);
        assert_eq!(
            text(&plan(&[one, two], &[far(1), far(1)])),
            [(1, 1), (2, 1)]
        );
        assert!(plan(&[], &both).is_empty() && plan(&[one], &[]).is_empty());
    }

    #[test]
    fn neighbours_are_reached_on_their_wire() {
        let links = [link(1, [10, 0, 1, 2]), link(2, [10, 0, 2, 2])];
        let remotes = [remote([10, 0, 2, 8]), remote([10, 0, 1, 9])];
        assert_eq!(text(&plan(&links, &remotes)), [(2, 8), (1, 9)]);
        let added = best_remote(&links, &[], &remotes, &links[0]);
        assert_eq!(added, Some(remotes[1]));
    }

    #[test]
    fn there_are_never_more_ways_than_slots() {
        let remotes: Vec<_> = (1..40).map(|last| remote([192, 0, 2, last])).collect();
        assert_eq!(plan(&[link(1, [10, 0, 1, 2])], &remotes).len(), SLOTS);
        assert_eq!(next_remote(&remotes[..2], remotes[1]), Some(remotes[0]));
        assert_eq!(next_remote(&remotes[..1], remotes[0]), None);
    }
}
