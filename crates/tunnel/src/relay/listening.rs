//! The relay's UDP sockets: at each address a group of the kernel's, with two for each worker.
//!
//! One half of a group is this process's: a socket for each worker, in their order. The other half
//! is for a process that takes over, or of the one that was taken over from; it is bound at the
//! start, because packets of our sessions would go astray between its binding and the program that
//! leads them past it. Owns the groups, and to which half what goes.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use tabane_linux::udp::BoundUdp;
use tabane_linux::{UdpBind, UdpError};

use super::steering::{Places, program};
use super::{Relay, Shared};

/// The sockets of a relay's process, as it leaves them to the next.
#[derive(Debug)]
pub struct Inheritance {
    /// Whether the ids of its sessions are the odd ones.
    pub is_odd: bool,
    /// All addresses.
    pub groups: Vec<InheritedGroup>,
}

/// The sockets at one address.
#[derive(Debug)]
pub struct InheritedGroup {
    /// The address that was asked for; its port may have been left to the kernel.
    pub asked: SocketAddr,
    /// In the order of binding: two for each worker.
    pub sockets: Vec<OwnedFd>,
    /// Whether the process that leaves them has the second half.
    pub has_second_half: bool,
}

/// The sockets at one address.
pub(super) struct Group {
    asked: SocketAddr,
    sockets: Vec<BoundUdp>,
    /// Whether ours is the second half.
    is_second: bool,
    is_inherited: bool,
}

/// Who is where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Neighbours {
    /// All is for this process.
    Nobody,
    /// The process before this one has sessions yet; what is new is for this one.
    Predecessor,
}

impl Group {
    fn bind(asked: SocketAddr, workers: usize) -> Result<Self, UdpError> {
        let first = BoundUdp::bind(UdpBind {
            interface: None,
            local: asked,
        })?;
        let mut sockets = Vec::with_capacity(2 * workers);
        for _ in 1..2 * workers {
            sockets.push(first.sibling()?);
        }
        sockets.insert(0, first);
        Ok(Self {
            asked,
            sockets,
            is_second: false,
            is_inherited: false,
        })
    }

    fn inherit(group: InheritedGroup, workers: usize) -> io::Result<Self> {
        if group.sockets.len() != 2 * workers {
            let text = format!(
                "the relay that runs has {} workers: another number needs a restart",
                group.sockets.len() / 2
            );
            return Err(io::Error::other(text));
        }
        let sockets = group.sockets.into_iter().map(BoundUdp::inherit);
        Ok(Self {
            asked: group.asked,
            sockets: sockets.collect::<io::Result<_>>()?,
            is_second: !group.has_second_half,
            is_inherited: true,
        })
    }

    /// Where our half begins.
    fn first(&self) -> usize {
        if self.is_second {
            self.sockets.len() / 2
        } else {
            0
        }
    }

    fn local_addr(&self) -> SocketAddr {
        self.sockets[0].local_addr()
    }

    /// Leads packets to those who have their sessions.
    fn steer(&self, is_odd: bool, neighbours: Neighbours) -> io::Result<()> {
        let half = self.sockets.len() / 2;
        let (own, other) = (self.first(), if self.is_second { 0 } else { half });
        let places = match neighbours {
            Neighbours::Predecessor if self.is_inherited => {
                let (even, odd) = if is_odd { (other, own) } else { (own, other) };
                Places {
                    newcomers: own as u32,
                    even: even as u32,
                    odd: odd as u32,
                }
            }
            Neighbours::Predecessor | Neighbours::Nobody => Places::all_at(own as u32),
        };
        self.sockets[0].steer(&program(u8::try_from(half).unwrap_or(1), places))
    }

    fn bequeath(&self) -> io::Result<InheritedGroup> {
        let dup = |socket: &BoundUdp| socket.as_fd().try_clone_to_owned();
        Ok(InheritedGroup {
            asked: self.asked,
            sockets: self.sockets.iter().map(dup).collect::<io::Result<_>>()?,
            has_second_half: self.is_second,
        })
    }
}

impl Relay {
    /// Listens at one more UDP address.
    ///
    /// # Errors
    /// It is not to be had; the others are kept.
    pub fn listen_also(&mut self, local: SocketAddr) -> Result<(), UdpError> {
        let configure = |option| {
            move |source| UdpError::Configure {
                local,
                option,
                source,
            }
        };
        let workers = self.shared.crew.len();
        let inherited = self.inherited.iter().position(|group| group.asked == local);
        let group = match inherited.map(|index| self.inherited.swap_remove(index)) {
            Some(group) => {
                Group::inherit(group, workers).map_err(configure("what was inherited"))?
            }
            None => {
                let group = Group::bind(local, workers)?;
                let steered = group.steer(self.shared.is_odd, Neighbours::Nobody);
                steered.map_err(configure("SO_ATTACH_REUSEPORT_CBPF"))?;
                group
            }
        };
        let own = group.sockets.iter().skip(group.first()).take(workers);
        for (worker, socket) in own.enumerate() {
            let socket = socket.as_fd().try_clone_to_owned();
            let socket = socket
                .and_then(BoundUdp::inherit)
                .map_err(configure("dup"))?;
            self.listen_at(worker, local, socket)?;
        }
        self.addresses.push(group.local_addr());
        self.monitor.on_link(&local.to_string(), false);
        self.shared.groups().push(group);
        Ok(())
    }

    /// Has a worker listen by this socket.
    fn listen_at(
        &mut self,
        worker: usize,
        local: SocketAddr,
        socket: BoundUdp,
    ) -> Result<(), UdpError> {
        let link = local.to_string();
        let listen = move |relay: &mut Self| {
            let mark = relay.shared.mark;
            relay.engine.adopt(&link, socket, mark, true).map(drop)
        };
        if worker == self.number {
            return listen(self);
        }
        let told = self.shared.crew.ask_and_wait(worker, listen);
        told.expect("workers outlive the opening of sockets")
    }
}

impl Shared {
    /// Leads packets anew at every address.
    ///
    /// # Errors
    /// The kernel takes no such program any more at an address, where packets go on as before. It
    /// is the first of those; the others are steered all the same.
    pub(super) fn steer(&self, neighbours: Neighbours) -> io::Result<()> {
        let is_shared = neighbours != Neighbours::Nobody;
        self.has_neighbour.store(is_shared, Ordering::Relaxed);
        let groups = self.groups();
        let steered = groups
            .iter()
            .map(|group| group.steer(self.is_odd, neighbours));
        steered.fold(Ok(()), Result::and)
    }

    /// What another process needs to go on here.
    ///
    /// # Errors
    /// Out of descriptors.
    pub(super) fn bequeath(&self) -> io::Result<Inheritance> {
        let groups = self.groups();
        Ok(Inheritance {
            is_odd: self.is_odd,
            groups: groups
                .iter()
                .map(Group::bequeath)
                .collect::<io::Result<_>>()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::super::tests::shared;
    use super::*;
    use crate::access::Access;

    /// A group of the second process, which was given its sockets.
    fn given() -> Group {
        let before = Group::bind("127.0.0.1:0".parse().unwrap(), 1).unwrap();
        Group::inherit(before.bequeath().unwrap(), 1).unwrap()
    }

    /// Which half of a group gets what the session of an odd id is sent.
    fn half_of_a_session(group: &Group) -> usize {
        let mut packet = [0x40; 30];
        packet[1] = 0xc0;
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        sender.send_to(&packet, group.local_addr()).unwrap();
        let got = |socket: &BoundUdp| {
            let socket = UdpSocket::from(socket.as_fd().try_clone_to_owned().unwrap());
            socket.set_nonblocking(true).unwrap();
            // Loopback delivers before `send` returns.
            socket.recv(&mut packet).is_ok()
        };
        group
            .sockets
            .iter()
            .position(got)
            .expect("it was delivered")
    }

    #[test]
    fn an_address_that_cannot_be_steered_leaves_no_other_with_a_process_that_has_gone() {
        let shared = shared(Access::Private);
        let local = "127.0.0.1:0".parse().unwrap();
        let interface = None;
        let alone = BoundUdp::bind(UdpBind { interface, local }).unwrap();
        let unsteerable = Group {
            asked: local,
            sockets: vec![alone],
            is_second: true,
            is_inherited: true,
        };
        shared.groups().extend([given(), unsteerable, given()]);
        let halves = || -> Vec<_> {
            let groups = shared.groups();
            [&groups[0], &groups[2]].map(half_of_a_session).into()
        };
        assert!(shared.steer(Neighbours::Predecessor).is_err());
        assert_eq!(halves(), [0, 0], "sessions of the process before this one");
        assert!(shared.steer(Neighbours::Nobody).is_err());
        assert_eq!(halves(), [1, 1]);
    }
}
