//! Paths: what the stack takes for addresses of the peer.
//!
//! Owns the addresses that we invent for them, and which *way* (a link of ours and an address of
//! the peer) each stands for. The stack is told of all [`SLOTS`] addresses of an association in the
//! INIT ACK, since nothing can add one later; those without a way are not confirmed and carry
//! nothing until they get one.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The most paths of an association.
pub const SLOTS: usize = 8;
/// The most associations of our own making that may stand at a time: as many as a /20 has room for.
pub const ASSOCIATIONS_MAX: usize = 512;

/// A link of this host, numbered by whoever owns the sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u32);

/// A path, by the address that the stack knows it by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathId(pub IpAddr);

/// Which link a path leaves by, and where to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathTuple {
    /// The link.
    pub link: LinkId,
    /// The peer's address, with the UDP port that it takes SCTP at (RFC 6951).
    pub remote: SocketAddr,
}

/// How far an address reaches; the stack tells the peer of those local addresses that reach as far
/// as the peer's (RFC 9260 §5.1.2), so what we invent must reach as far as what it stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reach {
    Host,
    Private,
    Global,
}

impl Reach {
    /// The narrowest of what these addresses have.
    pub(crate) fn of(addresses: impl Iterator<Item = IpAddr>) -> Self {
        let of_one = |address: IpAddr| match address {
            address if address.is_loopback() => Self::Host,
            // Among addresses of IPv6 the stack makes no such difference.
            IpAddr::V4(v4) if v4.is_private() => Self::Private,
            IpAddr::V4(_) | IpAddr::V6(_) => Self::Global,
        };
        addresses.map(of_one).min().unwrap_or(Self::Global)
    }

    /// The beginning of the /20 that invented addresses are taken from: in ranges that nobody is
    /// likely to have on a link, and that do not leave this process. 198.18/15 is for tests of
    /// routers (RFC 2544) and counts as global.
    const fn block(self) -> Ipv4Addr {
        match self {
            Self::Host => Ipv4Addr::new(127, 231, 16, 0),
            Self::Private => Ipv4Addr::new(10, 231, 16, 0),
            Self::Global => Ipv4Addr::new(198, 19, 16, 0),
        }
    }
}

/// What the addresses of an association are like that are invented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guise {
    V4(Reach),
    /// In the range for tests of routers (RFC 5180).
    V6,
}

impl Guise {
    const V6_BLOCK: Ipv6Addr = Ipv6Addr::new(0x2001, 2, 0, 0xe710, 0, 0, 0, 0);

    /// For an association of an endpoint with these addresses, to these of the peer. The stack
    /// takes only an address of the same family for the source of what it sends.
    ///
    /// IPv6, if there is a choice: then packets are made to fit below either header. But the stack
    /// would not tell the peer of our private addresses of IPv4 then, and those are needed where
    /// the peer has such an address.
    pub(crate) fn of(locals: &[IpAddr], remotes: impl Iterator<Item = IpAddr>) -> Self {
        let reach = Reach::of(remotes);
        let has_v4 = locals.iter().any(IpAddr::is_ipv4);
        let has_v6 = locals.iter().any(IpAddr::is_ipv6);
        match has_v4 && (!has_v6 || reach != Reach::Global) {
            true => Self::V4(reach),
            false => Self::V6,
        }
    }

    fn address(self, number: u32) -> IpAddr {
        match self {
            Self::V4(reach) => Ipv4Addr::from(u32::from(reach.block()) + number).into(),
            Self::V6 => Ipv6Addr::from(u128::from(Self::V6_BLOCK) + u128::from(number)).into(),
        }
    }
}

/// All paths of all associations.
#[derive(Debug, Default)]
pub(crate) struct Paths {
    /// By path; for those of our own making alone.
    ways: BTreeMap<PathId, Option<PathTuple>>,
}

impl Paths {
    /// Invents the addresses of another association; `None` where there are too many.
    pub(crate) fn invent(&mut self, guise: Guise) -> Option<[PathId; SLOTS]> {
        let path = |number: usize| PathId(guise.address(u32::try_from(number).unwrap_or(0)));
        let is_free = |row: &usize| !self.ways.contains_key(&path(row * SLOTS));
        let row = (0..ASSOCIATIONS_MAX).find(is_free)?;
        let paths = std::array::from_fn(|slot| path(row * SLOTS + slot));
        self.ways.extend(paths.map(|path| (path, None)));
        Some(paths)
    }

    /// Forgets an association's paths.
    pub(crate) fn forget(&mut self, paths: &[PathId]) {
        for path in paths {
            self.ways.remove(path);
        }
    }

    /// Gives a path a way, or takes it away.
    pub(crate) fn set(&mut self, path: PathId, way: Option<PathTuple>) {
        if let Some(slot) = self.ways.get_mut(&path) {
            *slot = way;
        }
    }

    /// Whether the address is one we made up.
    pub(crate) fn is_invented(&self, address: IpAddr) -> bool {
        self.ways.contains_key(&PathId(address))
    }

    /// Where a path leads; `None` while it leads nowhere.
    pub(crate) fn way(&self, path: PathId) -> Option<PathTuple> {
        *self.ways.get(&path)?
    }

    /// The path, of these, that leads that way. Of the peer's address only the host counts: its
    /// answers may come from another port.
    pub(crate) fn find(&self, paths: &[PathId], link: LinkId, remote: IpAddr) -> Option<PathId> {
        let leads = |path: &&PathId| {
            self.way(**path)
                .is_some_and(|way| way.link == link && way.remote.ip() == remote)
        };
        paths.iter().find(leads).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_path_is_found_by_its_link_and_address_and_rows_are_used_again() {
        for guise in [Guise::V4(Reach::Private), Guise::V6] {
            let mut paths = Paths::default();
            let one = paths.invent(guise).unwrap();
            let two = paths.invent(guise).unwrap();
            assert!(one.iter().all(|path| !two.contains(path)));
            let way = |link, host| PathTuple {
                link: LinkId(link),
                remote: SocketAddr::new(ip(host), 9899),
            };
            paths.set(one[0], Some(way(1, "192.0.2.1")));
            paths.set(one[1], Some(way(2, "192.0.2.1")));
            paths.set(one[2], Some(way(2, "2001:db8::1")));
            let peer = ip("192.0.2.1");
            assert_eq!(paths.find(&one, LinkId(2), peer), Some(one[1]));
            assert_eq!(paths.find(&one, LinkId(2), ip("2001:db8::1")), Some(one[2]));
            assert_eq!(paths.find(&two, LinkId(2), peer), None);
            assert_eq!(paths.find(&one, LinkId(3), peer), None);
            paths.forget(&one);
            assert_eq!(paths.invent(guise), Some(one));
        }
    }

    #[test]
    fn there_is_an_end_to_associations() {
        for guise in [Guise::V4(Reach::Host), Guise::V6] {
            let mut paths = Paths::default();
            for _ in 0..ASSOCIATIONS_MAX {
                assert!(paths.invent(guise).is_some());
            }
            assert!(paths.invent(guise).is_none());
        }
    }

    #[test]
    fn what_is_invented_suits_what_this_host_and_the_peer_have() {
        let guise = |locals: &[&str], remotes: &[&str]| {
            let locals: Vec<IpAddr> = locals.iter().map(|text| ip(text)).collect();
            Guise::of(&locals, remotes.iter().map(|text| ip(text)))
        };
        let (private, global, v6) = ("10.0.0.1", "192.0.2.1", "2001:db8::1");
        assert_eq!(guise(&[private], &[global]), Guise::V4(Reach::Global));
        assert_eq!(guise(&[private], &[v6, private]), Guise::V4(Reach::Private));
        assert_eq!(
            guise(&[v6, private], &[private, v6]),
            Guise::V4(Reach::Private)
        );
        assert_eq!(guise(&[v6, global], &[global, v6]), Guise::V6);
        assert_eq!(guise(&[v6], &[private, v6]), Guise::V6);
        assert_eq!(guise(&[private], &["127.0.0.1"]), Guise::V4(Reach::Host));
    }
}
