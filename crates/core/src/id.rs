//! Names of things: newtypes, so that two numbers of different kinds cannot be swapped.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// A path of one session. Chosen by the client, never used twice in a session [P-4.1].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathId(pub(crate) u32);

impl PathId {
    /// The number on the wire.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// The place of a path among its session's, until one is closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PathIndex(pub(crate) usize);

/// A packet of one path, of those that the same end has sent by it [P-5.1]. Those of a handshake
/// have spaces of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PacketNumber(pub(crate) u64);

impl PacketNumber {
    /// The number as it is counted; less of it is on the wire.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    pub(crate) const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// A stream of one session: even when opened by the client, odd when by the server [P-6.1].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub(crate) u64);

impl StreamId {
    /// The number on the wire.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The stream called `id` on the wire, wherever it was learnt.
    #[must_use]
    pub const fn from_wire(id: u64) -> Self {
        Self(id)
    }

    pub(crate) const fn opened_by_client(self) -> bool {
        self.0 & 1 == 0
    }

    /// Which of its opener's streams this is, from 0.
    pub(crate) const fn index(self) -> u64 {
        self.0 >> 1
    }
}

/// The driver's name for one of its sockets: a UDP socket (one per interface at a client, one at a
/// relay), or a byte stream that carries packets in order and loses none ([`Self::ordered`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SocketId(pub u32);

impl SocketId {
    /// Set in the names of byte streams.
    const ORDERED: u32 = 1 << 31;

    /// The name of the `index`th byte stream. Beneath its packets somebody else repeats what is
    /// lost and holds back what is too much.
    #[must_use]
    pub const fn ordered(index: u32) -> Self {
        Self(index | Self::ORDERED)
    }

    /// Whether packets go over a byte stream.
    #[must_use]
    pub const fn is_ordered(self) -> bool {
        self.0 & Self::ORDERED != 0
    }
}

/// Where a datagram came from or goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FourTuple {
    /// The local socket.
    pub socket: SocketId,
    /// The local address, where the socket serves several; replies must leave from it.
    pub local_ip: Option<IpAddr>,
    /// The other end.
    pub remote: SocketAddr,
}

/// A session of an [`Endpoint`](crate::Endpoint), valid until it is reaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionHandle(pub(crate) usize);

/// What the receiver of a packet calls the session: the destination of every short header [P-2.2].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ConnectionId(pub(crate) u32);

/// One attempt at a handshake, chosen at random by the client [P-2.1].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct AttemptId(pub(crate) u64);

impl fmt::Display for PathId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
