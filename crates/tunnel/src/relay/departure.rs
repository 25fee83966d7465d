//! How sockets of the relay's leave its host: by which mark and which address.
//!
//! Owns that what a user sends leaves by an exit address of the user's where one was granted, and
//! by no other: where the host has none of them of a family, what the client sends by that family
//! is refused as by its destination, the one word after which a client looks for no other way out.

use std::io;
use std::net::IpAddr;

use socket2::SockRef;
use tabane_core::PublicKey;
use tabane_linux::source_address;
use tokio::net::{TcpSocket, UdpSocket};

use super::Shared;
use super::exit_address::ExitAddress;
use super::user::{Asker, User};
use crate::access::Access;

/// By what a client's packets of one family leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exit {
    /// What the routing table prefers: nothing was granted.
    Usual,
    By(IpAddr),
    /// The host has none of those that were granted.
    Missing,
}

/// How the sockets of one client leave.
#[derive(Clone)]
pub(super) struct Departure {
    mark: Option<u32>,
    /// IPv4, IPv6.
    exits: [Exit; 2],
    user: Option<User>,
}

/// By which addresses a session's connections leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExitSnapshot {
    /// Whose they are.
    pub user: String,
    /// Those in use, one of each family at the most.
    pub addresses: Vec<IpAddr>,
    /// Those granted of a family of which the host has none: what goes by that is refused.
    pub missing: Vec<ExitAddress>,
    /// Connections, flows and pings of the user that were refused for want of one.
    pub refused: u64,
}

impl Exit {
    /// The first of a family that the host has.
    fn choose(
        granted: &[ExitAddress],
        is_v4: bool,
        client: PublicKey,
        is_local: impl Fn(IpAddr) -> bool,
    ) -> Self {
        let mut of_family = granted.iter().filter(|it| it.is_ipv4() == is_v4).peekable();
        if of_family.peek().is_none() {
            return Self::Usual;
        }
        let found = of_family.map(|it| it.of(client)).find(|ip| is_local(*ip));
        found.map_or(Self::Missing, Self::By)
    }
}

impl Shared {
    /// By what this client's packets leave, IPv4's and IPv6's. A peer leads to itself alone.
    fn exits(&self, asker: Asker<'_>) -> [Exit; 2] {
        let granted = asker.user.map(User::exits).unwrap_or_default();
        if granted.is_empty() || self.access == Access::Own {
            return [Exit::Usual; 2];
        }
        let is_local = |ip| self.own.is_local(ip);
        [true, false].map(|is_v4| Exit::choose(&granted, is_v4, asker.key, is_local))
    }

    /// How this client's sockets leave.
    pub(super) fn departure(&self, asker: Asker<'_>) -> Departure {
        Departure {
            mark: self.mark,
            exits: self.exits(asker),
            user: asker.user.cloned(),
        }
    }

    /// How sockets leave that are the relay's own.
    pub(super) fn own_departure(&self) -> Departure {
        Departure {
            mark: self.mark,
            exits: [Exit::Usual; 2],
            user: None,
        }
    }

    /// Where a client's connections leave; `None` where no address was granted to its user.
    pub(super) fn exit_snapshot(&self, asker: Asker<'_>) -> Option<ExitSnapshot> {
        let exits = self.exits(asker);
        if exits == [Exit::Usual; 2] {
            return None;
        }
        let user = asker.user?;
        let is_missing = |it: &ExitAddress| exits[usize::from(!it.is_ipv4())] == Exit::Missing;
        let by = exits.into_iter().filter_map(|exit| match exit {
            Exit::By(ip) => Some(ip),
            Exit::Usual | Exit::Missing => None,
        });
        Some(ExitSnapshot {
            user: user.name().to_owned(),
            addresses: by.collect(),
            missing: user.exits().into_iter().filter(is_missing).collect(),
            refused: user.exits_refused(),
        })
    }
}

impl Departure {
    /// Has a socket that will be connected by TCP leave so.
    pub(super) fn prepare_tcp(&self, socket: &TcpSocket, remote: IpAddr) -> io::Result<()> {
        self.mark(&SockRef::from(socket))?;
        match self.source(remote)? {
            Some(ip) => source_address::bind_connecting(socket, ip),
            None => Ok(()),
        }
    }

    /// A UDP socket of the family of `remote` that leaves so.
    pub(super) fn udp(&self, remote: IpAddr) -> io::Result<UdpSocket> {
        let domain = socket2::Domain::for_address((remote, 0).into());
        let socket = socket2::Socket::new(domain, socket2::Type::DGRAM, None)?;
        self.prepare(&socket, remote)?;
        UdpSocket::from_std(socket.into())
    }

    /// Has a socket that is bound to nothing leave so; it does not block from here on.
    pub(super) fn prepare(&self, socket: &socket2::Socket, remote: IpAddr) -> io::Result<()> {
        socket.set_nonblocking(true)?;
        self.mark(&SockRef::from(socket))?;
        match self.source(remote)? {
            Some(ip) => source_address::bind(socket, ip),
            None => Ok(()),
        }
    }

    fn mark(&self, socket: &SockRef<'_>) -> io::Result<()> {
        self.mark.map_or(Ok(()), |mark| socket.set_mark(mark))
    }

    /// The address to leave by; `None`: the usual one. What stays on this host has no way out.
    fn source(&self, remote: IpAddr) -> io::Result<Option<IpAddr>> {
        let remote = remote.to_canonical();
        match self.exits[usize::from(remote.is_ipv6())] {
            _ if remote.is_loopback() => Ok(None),
            Exit::Usual => Ok(None),
            Exit::By(ip) => Ok(Some(ip)),
            Exit::Missing => {
                if let Some(user) = &self.user {
                    user.refuse_exit(remote.is_ipv4());
                }
                Err(io::ErrorKind::ConnectionRefused.into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::tests::shared;
    use crate::relay::{Grants, UserLimits};
    use tabane_base::Bytes;

    const ANN: PublicKey = PublicKey([1; 32]);

    fn exits(texts: &[&str]) -> Vec<ExitAddress> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn of_a_family_the_first_counts_that_the_host_has() {
        let has = |all: &'static [&'static str]| {
            move |ip: IpAddr| all.iter().any(|it| it.parse::<IpAddr>() == Ok(ip))
        };
        let granted = exits(&["203.0.113.7", "203.0.113.8", "2001:db8::7"]);
        let chosen = |is_v4, host| Exit::choose(&granted, is_v4, ANN, has(host));
        let by = |text: &str| Exit::By(text.parse().unwrap());
        assert_eq!(chosen(true, &["203.0.113.8"]), by("203.0.113.8"));
        let both = &["203.0.113.8", "203.0.113.7"];
        assert_eq!(chosen(true, both), by("203.0.113.7"));
        assert_eq!(chosen(true, &["2001:db8::7"]), Exit::Missing);
        assert_eq!(chosen(false, &["2001:db8::7"]), by("2001:db8::7"));
        let v4_alone = exits(&["203.0.113.7"]);
        assert_eq!(Exit::choose(&v4_alone, false, ANN, has(&[])), Exit::Usual);
    }

    #[test]
    fn what_has_no_address_to_leave_by_is_refused_and_counted_and_loopback_is_not() {
        crate::block_on(async {
            let public = shared(Access::Private);
            let grants = Grants {
                exits: exits(&["203.0.113.7"]),
                ..Grants::default()
            };
            let limits = UserLimits {
                grants,
                ..UserLimits::default()
            };
            let ann = User::new("ann", limits, Bytes::ZERO);
            let asker = Asker {
                key: ANN,
                user: Some(&ann),
            };
            let departure = public.departure(asker);
            let error = departure.udp([198, 51, 100, 1].into()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
            assert!(departure.udp([127, 0, 0, 1].into()).is_ok());
            let seen = public.exit_snapshot(asker).unwrap();
            assert_eq!((seen.refused, &*seen.user), (1, "ann"));
            assert!(seen.addresses.is_empty());
            assert_eq!(seen.missing, exits(&["203.0.113.7"]));
            let nobody = Asker {
                user: None,
                ..asker
            };
            assert_eq!(public.exit_snapshot(nobody), None);
        })
        .unwrap();
    }
}
