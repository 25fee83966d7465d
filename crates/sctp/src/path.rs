//! Paths: what the stack takes for addresses of the peer.
//!
//! Owns the addresses that we invent for them, and which *way* (a link of ours and an address of
//! the peer) each stands for. The stack is told of all [`SLOTS`] addresses of an association in the
//! INIT ACK, since nothing can add one later; those without a way are not confirmed and carry
//! nothing until they get one.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};

/// The most paths of an association.
pub const SLOTS: usize = 8;
/// The most associations of our own making that may stand at a time: as many as a /20 has room for.
pub const ASSOCIATIONS_MAX: usize = 512;

/// A link of this host, numbered by whoever owns the sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u32);

/// A path, by the address that the stack knows it by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathId(pub Ipv4Addr);

/// Which link a path leaves by, and where to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathTuple {
    /// The link.
    pub link: LinkId,
    /// The peer's address, with the UDP port that it takes SCTP at (RFC 6951).
    pub remote: SocketAddrV4,
}

/// How far an address reaches; the stack tells the peer of those local addresses that reach as far
/// as the peer's (RFC 9260 §5.1.2), so what we invent must reach as far as what it stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    Host,
    Private,
    Global,
}

impl Reach {
    pub(crate) fn of(address: Ipv4Addr) -> Self {
        if address.is_loopback() {
            Self::Host
        } else if address.is_private() {
            Self::Private
        } else {
            Self::Global
        }
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

/// All paths of all associations.
#[derive(Debug, Default)]
pub(crate) struct Paths {
    /// By path; for those of our own making alone.
    ways: BTreeMap<PathId, Option<PathTuple>>,
}

impl Paths {
    /// Invents the addresses of another association; `None` where there are too many.
    pub(crate) fn invent(&mut self, reach: Reach) -> Option<[PathId; SLOTS]> {
        let block = u32::from(reach.block());
        let room = |row: usize| block + u32::try_from(row * SLOTS).unwrap_or(0);
        let is_free = |first: &u32| !self.ways.contains_key(&PathId(Ipv4Addr::from(*first)));
        let first = (0..ASSOCIATIONS_MAX).map(room).find(is_free)?;
        let paths = std::array::from_fn(|slot| {
            PathId(Ipv4Addr::from(first + u32::try_from(slot).unwrap_or(0)))
        });
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
    pub(crate) fn is_invented(&self, address: Ipv4Addr) -> bool {
        self.ways.contains_key(&PathId(address))
    }

    /// Where a path leads; `None` while it leads nowhere.
    pub(crate) fn way(&self, path: PathId) -> Option<PathTuple> {
        *self.ways.get(&path)?
    }

    /// The path, of these, that leads that way. Of the peer's address only the host counts: its
    /// answers may come from another port.
    pub(crate) fn find(&self, paths: &[PathId], link: LinkId, remote: Ipv4Addr) -> Option<PathId> {
        let leads = |path: &&PathId| {
            self.way(**path)
                .is_some_and(|way| way.link == link && *way.remote.ip() == remote)
        };
        paths.iter().find(leads).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_found_by_its_link_and_address_and_rows_are_used_again() {
        let mut paths = Paths::default();
        let one = paths.invent(Reach::Private).unwrap();
        let two = paths.invent(Reach::Private).unwrap();
        assert!(one.iter().all(|path| !two.contains(path)));
        let way = |link, host| PathTuple {
            link: LinkId(link),
            remote: SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, host), 9899),
        };
        paths.set(one[0], Some(way(1, 1)));
        paths.set(one[1], Some(way(2, 1)));
        let peer = Ipv4Addr::new(192, 0, 2, 1);
        assert_eq!(paths.find(&one, LinkId(2), peer), Some(one[1]));
        assert_eq!(paths.find(&two, LinkId(2), peer), None);
        assert_eq!(paths.find(&one, LinkId(3), peer), None);
        paths.forget(&one);
        assert_eq!(paths.invent(Reach::Private), Some(one));
    }

    #[test]
    fn there_is_an_end_to_associations() {
        let mut paths = Paths::default();
        for _ in 0..ASSOCIATIONS_MAX {
            assert!(paths.invent(Reach::Host).is_some());
        }
        assert!(paths.invent(Reach::Host).is_none());
    }
}
