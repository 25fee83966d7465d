//! The kernel's path manager for programs (generic netlink, `linux/mptcp_pm.h`).
//!
//! Owns the requests for subflows, and what the kernel tells of connections that have any.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use nix::sys::socket::SockProtocol;

use super::Subflow;
use crate::netlink::{
    ACKNOWLEDGE, HEADER, NetlinkSocket, REQUEST, attribute, attributes, attributes_within, begin,
};

/// The family that knows the others, its question, and the attributes of its answer.
const CONTROLLER: u16 = 16;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
const FAMILY_GROUPS: u16 = 7;
const GROUP_NAME: u16 = 1;
const GROUP_ID: u16 = 2;

const NAME: &[u8] = b"mptcp_pm\0";
const EVENTS_GROUP: &[u8] = b"mptcp_pm_events\0";
const VERSION: u8 = 1;
const CREATE: u8 = 10;
const DESTROY: u8 = 11;

// Attributes of requests.
const NESTED: u16 = 0x8000;
const LOCAL: u16 = 1 | NESTED;
const TOKEN: u16 = 4;
const REMOTE: u16 = 6 | NESTED;
// Of addresses.
const ADDRESS_FAMILY: u16 = 1;
const ADDRESS_ID: u16 = 2;
const ADDRESS_V4: u16 = 3;
const ADDRESS_V6: u16 = 4;
const ADDRESS_PORT: u16 = 5;
const ADDRESS_INTERFACE: u16 = 7;
// Of events.
const EVENT_TOKEN: u16 = 1;

/// Bytes of requests and of news that may wait.
const BUFFER: usize = 1 << 20;

/// Begins and ends subflows.
#[derive(Debug)]
pub struct PathManager {
    socket: NetlinkSocket,
    family: u16,
}

/// What the kernel tells of connections with subflows, all those of the network namespace.
#[derive(Debug)]
pub struct Events {
    socket: NetlinkSocket,
    family: u16,
}

impl PathManager {
    /// The path manager of this network namespace, and its news.
    ///
    /// # Errors
    /// We may not (`CAP_NET_ADMIN`), or the kernel has none.
    ///
    /// # Panics
    /// Outside a tokio runtime with its I/O driver enabled.
    pub fn open() -> io::Result<(Self, Events)> {
        let open = || NetlinkSocket::open(SockProtocol::NetlinkGeneric, BUFFER);
        let mut socket = open()?;
        let mut family = None;
        let mut group = None;
        let mut question = message(CONTROLLER, GET_FAMILY);
        attribute(&mut question, FAMILY_NAME, NAME);
        socket.exchange(&mut question, |answer| {
            for (kind, range) in attributes(answer) {
                match kind {
                    FAMILY_ID => family = u16_of(answer, range),
                    FAMILY_GROUPS => group = events_among(answer, range),
                    _ => {}
                }
            }
        })?;
        let (Some(family), Some(group)) = (family, group) else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let news = open()?;
        news.join_group(group)?;
        let news = Events {
            socket: news,
            family,
        };
        Ok((Self { socket, family }, news))
    }

    /// Begins a subflow of the connection with this token: from `address` over the interface with
    /// the index `interface`, to where the connection leads. `id` is the address' number within
    /// the connection, not 0.
    ///
    /// # Errors
    /// `NotConnected` until the far end has shown that it takes subflows; else as the kernel says.
    /// That nobody answers is no error.
    pub fn join(
        &mut self,
        token: u32,
        (id, address, interface): (u8, IpAddr, u32),
        remote: SocketAddr,
    ) -> io::Result<()> {
        let mut local = end(address, None);
        attribute(&mut local, ADDRESS_ID, &[id]);
        attribute(&mut local, ADDRESS_INTERFACE, &interface.to_ne_bytes());
        self.ask(CREATE, token, &local, remote)
    }

    /// Ends a subflow, with a reset that says so.
    ///
    /// # Errors
    /// As the kernel says; `NotFound` and `NoSuchProcess` where it is over already.
    pub fn leave(&mut self, token: u32, subflow: &Subflow) -> io::Result<()> {
        let local = end(subflow.local.ip(), Some(subflow.local.port()));
        self.ask(DESTROY, token, &local, subflow.remote)
    }

    fn ask(&mut self, what: u8, token: u32, local: &[u8], remote: SocketAddr) -> io::Result<()> {
        let mut request = message(self.family, what);
        attribute(&mut request, TOKEN, &token.to_ne_bytes());
        attribute(&mut request, LOCAL, local);
        let remote = end(remote.ip().to_canonical(), Some(remote.port()));
        attribute(&mut request, REMOTE, &remote);
        self.socket.exchange(&mut request, |_| ())
    }
}

impl Events {
    /// The token of the next connection of which something has changed: subflows can be made from
    /// now on, or one is there, or over.
    ///
    /// # Errors
    /// Where the runtime is shutting down, or the socket is gone.
    pub async fn next(&mut self) -> io::Result<u32> {
        loop {
            self.socket.readable().await?;
            while let Some(length) = self.socket.receive()? {
                let message = self.socket.received(0..length);
                if crate::netlink::kind_of(message) != Some(self.family) {
                    continue;
                }
                let mut said = attributes(message);
                let token = said.find(|(kind, _)| *kind == EVENT_TOKEN);
                let token = token.and_then(|(_, range)| u32_of(message, range));
                if let Some(token) = token {
                    return Ok(token);
                }
            }
        }
    }
}

/// The headers of a request, to which attributes are added.
fn message(family: u16, command: u8) -> Vec<u8> {
    let mut message = Vec::with_capacity(128);
    begin(&mut message, family, REQUEST | ACKNOWLEDGE, 0);
    message[HEADER - 4..].copy_from_slice(&[command, VERSION, 0, 0]);
    message
}

/// One end of a subflow, as attributes.
fn end(ip: IpAddr, port: Option<u16>) -> Vec<u8> {
    let mut end = Vec::with_capacity(64);
    let family = |family: libc::c_int| (family as u16).to_ne_bytes();
    match ip {
        IpAddr::V4(v4) => {
            attribute(&mut end, ADDRESS_FAMILY, &family(libc::AF_INET));
            attribute(&mut end, ADDRESS_V4, &v4.octets());
        }
        IpAddr::V6(v6) => {
            attribute(&mut end, ADDRESS_FAMILY, &family(libc::AF_INET6));
            attribute(&mut end, ADDRESS_V6, &v6.octets());
        }
    }
    if let Some(port) = port {
        attribute(&mut end, ADDRESS_PORT, &port.to_ne_bytes());
    }
    end
}

/// The number of the group of events, in the list of groups at `range`.
fn events_among(message: &[u8], range: Range<usize>) -> Option<u32> {
    let list = &message[..range.end];
    let numbers = attributes_within(list, range.start).filter_map(|(_, group)| {
        let list = &list[..group.end];
        let mut name = None;
        let mut id = None;
        for (kind, range) in attributes_within(list, group.start) {
            match kind {
                GROUP_NAME => name = list.get(range),
                GROUP_ID => id = u32_of(list, range),
                _ => {}
            }
        }
        id.filter(|_| name == Some(EVENTS_GROUP))
    });
    numbers.last()
}

fn u16_of(message: &[u8], range: Range<usize>) -> Option<u16> {
    Some(u16::from_ne_bytes(*message.get(range)?.first_chunk()?))
}

fn u32_of(message: &[u8], range: Range<usize>) -> Option<u32> {
    Some(u32::from_ne_bytes(*message.get(range)?.first_chunk()?))
}
