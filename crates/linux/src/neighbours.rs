//! Which network card has an address on a wire, as the kernel has heard (ARP, RFC 826; neighbour
//! discovery, RFC 4861).
//!
//! Owns the question. Nobody is asked on the wire: what the kernel does not know stays unknown.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::net::if_::if_nametoindex;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket,
};

use crate::netlink::{REQUEST, attribute, attributes_within, kind_of};

/// `RTM_GETNEIGH` and its answer, rtnetlink(7).
const ASK: u16 = 30;
const TOLD: u16 = 28;
/// Of a netlink message, and of `struct ndmsg` behind it, whose end is the state, flags and type.
const HEADER: usize = 16;
const NEIGHBOUR: usize = 12;
const STATE: std::ops::Range<usize> = HEADER + 8..HEADER + 10;
/// `NDA_DST`, `NDA_LLADDR`.
const ADDRESS: u16 = 1;
const CARD: u16 = 2;
/// `NUD_INCOMPLETE`, `NUD_FAILED`, `NUD_NOARP`: no card is known.
const UNKNOWN: u16 = 0x01 | 0x20 | 0x40;
const MESSAGE: usize = 1_024;

/// The neighbours behind some interfaces.
#[derive(Debug)]
pub struct Neighbours {
    socket: OwnedFd,
    interfaces: Vec<String>,
}

impl Neighbours {
    /// Behind these interfaces, which may come and go.
    ///
    /// # Errors
    /// The kernel gave no socket.
    pub fn open(interfaces: Vec<String>) -> io::Result<Self> {
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let (family, route) = (AddressFamily::Netlink, SockProtocol::NetlinkRoute);
        let socket = socket(family, SockType::Raw, flags, route)?;
        Ok(Self { socket, interfaces })
    }

    /// The card that has an address, if the kernel has heard of it: two system calls for each
    /// interface, and no waiting.
    #[must_use]
    pub fn card_of(&self, address: IpAddr) -> Option<[u8; 6]> {
        let address = address.to_canonical();
        let mut indices = self.interfaces.iter().filter_map(|name| {
            let index = if_nametoindex(&**name).ok()?;
            i32::try_from(index).ok()
        });
        indices.find_map(|index| self.ask(index, address))
    }

    fn ask(&self, index: i32, address: IpAddr) -> Option<[u8; 6]> {
        let question = question(index, address);
        let socket = self.socket.as_raw_fd();
        send(socket, &question, MsgFlags::empty()).ok()?;
        let mut answer = [0; MESSAGE];
        // The kernel answers before `send` returns.
        let length = recv(socket, &mut answer, MsgFlags::MSG_DONTWAIT).ok()?;
        read(&answer[..length])
    }
}

fn question(index: i32, address: IpAddr) -> Vec<u8> {
    let (family, octets) = match address {
        IpAddr::V4(ip) => (libc::AF_INET, ip.octets().to_vec()),
        IpAddr::V6(ip) => (libc::AF_INET6, ip.octets().to_vec()),
    };
    let mut message = vec![0; 4];
    message.extend(ASK.to_ne_bytes());
    message.extend(REQUEST.to_ne_bytes());
    message.extend([0; 8]);
    message.extend([family as u8, 0, 0, 0]);
    message.extend(index.to_ne_bytes());
    message.extend([0; 4]);
    attribute(&mut message, ADDRESS, &octets);
    let length = message.len() as u32;
    message[..4].copy_from_slice(&length.to_ne_bytes());
    message
}

fn read(answer: &[u8]) -> Option<[u8; 6]> {
    if kind_of(answer) != Some(TOLD) {
        return None;
    }
    let state = answer.get(STATE)?.first_chunk().copied();
    if u16::from_ne_bytes(state?) & UNKNOWN != 0 {
        return None;
    }
    let mut attributes = attributes_within(answer, HEADER + NEIGHBOUR);
    let (_, range) = attributes.find(|(kind, _)| *kind == CARD)?;
    answer.get(range)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::Netns;
    use std::process::Command;

    #[test]
    fn the_kernel_says_whose_card_it_is() {
        if !nix::unistd::geteuid().is_root() {
            println!("skipped: namespaces need root");
            return;
        }
        let name = format!("tnb{}", std::process::id());
        let place = Netns::create(&name).unwrap();
        for line in [
            "link add d0 type veth peer name d1",
            "link set d0 up",
            "link set d1 up",
            "neigh add 192.0.2.9 lladdr 02:00:00:00:00:09 dev d0 nud stale",
            "neigh add 2001:db8::9 lladdr 02:00:00:00:00:06 dev d0 nud reachable",
            "neigh add 192.0.2.7 dev d0 nud failed",
        ] {
            let mut ip = Command::new("ip");
            ip.args(["-n", &name]).args(line.split(' '));
            assert!(ip.status().unwrap().success(), "{line}");
        }
        let card = |interfaces: &[&str], address: &str| {
            let interfaces = interfaces.iter().map(|it| (*it).to_owned()).collect();
            let address = address.parse().unwrap();
            let asked = place.run(move || Neighbours::open(interfaces).unwrap().card_of(address));
            asked.unwrap()
        };
        let nine = Some([2, 0, 0, 0, 0, 9]);
        assert_eq!(card(&["gone", "d1", "d0"], "192.0.2.9"), nine);
        assert_eq!(card(&["d0"], "::ffff:192.0.2.9"), nine);
        let six = Some([2, 0, 0, 0, 0, 6]);
        assert_eq!(card(&["d0"], "2001:db8::9"), six);
        assert_eq!(card(&["d1"], "192.0.2.9"), None);
        assert_eq!(card(&["d0"], "192.0.2.7"), None);
        assert_eq!(card(&["d0"], "192.0.2.8"), None);
        drop(place);
        Netns::remove(&name).unwrap();
    }
}
