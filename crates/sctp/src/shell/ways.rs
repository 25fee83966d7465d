//! Which link and which address of the peer make a path.
//!
//! Pure. Every link is to be used and every address as well: a bottleneck may be on either side.
//! What is on a link's own wire is reached by that link.

use std::net::{IpAddr, SocketAddr};

use crate::{LinkId, PathTuple, path::SLOTS};

/// An address of ours on a link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Local {
    pub address: IpAddr,
    /// How many leading bits its neighbours share.
    pub prefix_bits: u8,
}

impl Local {
    fn is_neighbour(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => {
                let other = u32::from(ours) ^ u32::from(theirs);
                other.leading_zeros() >= self.prefix_bits.into()
            }
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => {
                let other = u128::from(ours) ^ u128::from(theirs);
                other.leading_zeros() >= self.prefix_bits.into()
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }
}

/// A link as far as this goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reach {
    pub link: LinkId,
    pub v4: Option<Local>,
    pub v6: Option<Local>,
}

impl Reach {
    /// What it has of a family.
    pub(crate) fn local(&self, is_v6: bool) -> Option<Local> {
        match is_v6 {
            true => self.v6,
            false => self.v4,
        }
    }

    /// The same, to be changed.
    pub(crate) fn local_mut(&mut self, is_v6: bool) -> &mut Option<Local> {
        match is_v6 {
            true => &mut self.v6,
            false => &mut self.v4,
        }
    }

    /// All of it, IPv6 first.
    pub(crate) fn locals(&self) -> impl Iterator<Item = IpAddr> {
        let locals = self.v6.into_iter().chain(self.v4);
        locals.map(|local| local.address)
    }

    /// Whether it has what packets to such an address leave from.
    pub(crate) fn leads_to(&self, address: IpAddr) -> bool {
        self.local(address.is_ipv6()).is_some()
    }

    fn is_neighbour(&self, address: IpAddr) -> bool {
        let local = self.local(address.is_ipv6());
        local.is_some_and(|local| local.is_neighbour(address))
    }
}

/// Whether a peer may be there. Addresses that mean something on one link alone are not: they are
/// told to peers, to whom they mean something else.
pub(crate) fn is_destination(address: IpAddr) -> bool {
    let is_local = match address {
        IpAddr::V4(v4) => v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local() || v6.to_ipv4_mapped().is_some(),
    };
    !(is_local || address.is_unspecified() || address.is_multicast())
}

/// The ways to begin with: as many as there are links or addresses, whichever are more, without
/// repetition, at most [`SLOTS`].
pub(crate) fn plan(links: &[Reach], remotes: &[SocketAddr]) -> Vec<PathTuple> {
    let mut ways: Vec<PathTuple> = Vec::new();
    for remote in remotes {
        if let Some(link) = best_link(links, &ways, remote.ip()) {
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
fn best_link(links: &[Reach], ways: &[PathTuple], remote: IpAddr) -> Option<LinkId> {
    let leading = links.iter().filter(|link| link.leads_to(remote));
    let neighbour = leading.clone().find(|link| link.is_neighbour(remote));
    let used = |link: &&Reach| ways.iter().filter(|way| way.link == link.link).count();
    let best = neighbour.or_else(|| leading.min_by_key(used))?;
    Some(best.link)
}

/// The address for one more link: a neighbour, else the one with the fewest ways that is nobody
/// else's neighbour, else the one with the fewest ways.
pub(crate) fn best_remote(
    links: &[Reach],
    ways: &[PathTuple],
    remotes: &[SocketAddr],
    link: &Reach,
) -> Option<SocketAddr> {
    let rank = |remote: &&SocketAddr| {
        let others = links.iter().filter(|other| other.link != link.link);
        let is_others = others
            .filter(|other| other.is_neighbour(remote.ip()))
            .count();
        let used = ways.iter().filter(|way| way.remote == **remote).count();
        (!link.is_neighbour(remote.ip()), is_others > 0, used)
    };
    let led = remotes.iter().filter(|remote| link.leads_to(remote.ip()));
    led.min_by_key(rank).copied()
}

/// The next address to try over a link on which this one does not answer.
pub(crate) fn next_remote(
    link: &Reach,
    remotes: &[SocketAddr],
    tried: SocketAddr,
) -> Option<SocketAddr> {
    let at = remotes.iter().position(|remote| *remote == tried);
    let (before, from) = remotes.split_at(at.unwrap_or(0));
    let mut next = from.iter().chain(before);
    let next = next.find(|remote| **remote != tried && link.leads_to(remote.ip()));
    next.copied()
}

fn add(ways: &mut Vec<PathTuple>, link: LinkId, remote: SocketAddr) {
    let way = PathTuple { link, remote };
    if !ways.contains(&way) {
        ways.push(way);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(number: u32, locals: &[&str]) -> Reach {
        let local = |is_v6: bool| {
            let mut locals = locals.iter().map(|text| text.parse::<IpAddr>().unwrap());
            let address = locals.find(|local| local.is_ipv6() == is_v6)?;
            let prefix_bits = if is_v6 { 64 } else { 24 };
            Some(Local {
                address,
                prefix_bits,
            })
        };
        Reach {
            link: LinkId(number),
            v4: local(false),
            v6: local(true),
        }
    }

    fn remote(host: &str) -> SocketAddr {
        SocketAddr::new(host.parse().unwrap(), 9899)
    }

    fn text(ways: &[PathTuple]) -> Vec<(u32, String)> {
        let text = |way: &PathTuple| (way.link.0, way.remote.ip().to_string());
        ways.iter().map(text).collect()
    }

    fn owned(ways: &[(u32, &str)]) -> Vec<(u32, String)> {
        let owned = |(link, remote): &(u32, &str)| (*link, (*remote).to_owned());
        ways.iter().map(owned).collect()
    }

    #[test]
    fn every_link_and_every_address_has_a_way() {
        let (one, two) = (link(1, &["10.0.1.2"]), link(2, &["10.0.2.2"]));
        let far = ["192.0.2.1", "192.0.2.2"].map(remote);
        let planned = |links: &[Reach], remotes: &[SocketAddr]| text(&plan(links, remotes));
        let first = owned(&[(1, "192.0.2.1"), (2, "192.0.2.1")]);
        assert_eq!(planned(&[one, two], &far[..1]), first);
        let both = owned(&[(1, "192.0.2.1"), (1, "192.0.2.2")]);
        assert_eq!(planned(&[one], &far), both);
        let each = owned(&[(1, "192.0.2.1"), (2, "192.0.2.2")]);
        assert_eq!(planned(&[one, two], &far), each);
        assert_eq!(planned(&[one, two], &[far[0], far[0]]), first);
        assert!(plan(&[], &far).is_empty() && plan(&[one], &[]).is_empty());
    }

    #[test]
    fn a_way_is_of_one_family() {
        let v4 = link(1, &["10.0.1.2"]);
        let v6 = link(2, &["2001:db8:2::2"]);
        let both = link(3, &["10.0.3.2", "2001:db8:3::2"]);
        let remotes = ["192.0.2.1", "2001:db8::1"].map(remote);
        let each = owned(&[(1, "192.0.2.1"), (2, "2001:db8::1")]);
        assert_eq!(text(&plan(&[v4, v6], &remotes)), each);
        assert_eq!(text(&plan(&[v6], &remotes)), each[1..]);
        assert!(plan(&[v6], &remotes[..1]).is_empty());
        // A link with both has as many as there are addresses, and no more where others have some.
        let alone = owned(&[(3, "192.0.2.1"), (3, "2001:db8::1")]);
        assert_eq!(text(&plan(&[both], &remotes)), alone);
        let three = owned(&[(1, "192.0.2.1"), (2, "2001:db8::1"), (3, "192.0.2.1")]);
        assert_eq!(text(&plan(&[v4, v6, both], &remotes)), three);
        assert_eq!(next_remote(&v6, &remotes, remotes[1]), None);
        assert_eq!(next_remote(&both, &remotes, remotes[1]), Some(remotes[0]));
    }

    #[test]
    fn neighbours_are_reached_on_their_wire() {
        let links = [
            link(1, &["10.0.1.2"]),
            link(2, &["10.0.2.2"]),
            link(3, &["2001:db8:3::2"]),
        ];
        let remotes = ["10.0.2.8", "2001:db8:3::9", "10.0.1.9"].map(remote);
        let ways = owned(&[(2, "10.0.2.8"), (3, "2001:db8:3::9"), (1, "10.0.1.9")]);
        assert_eq!(text(&plan(&links, &remotes)), ways);
        let added = best_remote(&links, &[], &remotes, &links[0]);
        assert_eq!(added, Some(remotes[2]));
    }

    #[test]
    fn there_are_never_more_ways_than_slots() {
        let remotes: Vec<_> = (1..40).map(|n| remote(&format!("192.0.2.{n}"))).collect();
        let link = link(1, &["10.0.1.2"]);
        assert_eq!(plan(&[link], &remotes).len(), SLOTS);
        let next = |remotes: &[SocketAddr]| next_remote(&link, remotes, remotes[remotes.len() - 1]);
        assert_eq!(next(&remotes[..2]), Some(remotes[0]));
        assert_eq!(next(&remotes[..1]), None);
    }
}
