//! What goes into the stack and comes out of it, as values: messages, packets, paths' figures.
//!
//! Owns their names and meaning; the stack owns everything that happens.

use std::net::{IpAddr, SocketAddr};

use tabane_base::{Bytes, Duration};

use crate::event::Event;
use crate::identity::AssociationId;
use crate::library::Failure;
use crate::path::{LinkId, PathId, PathTuple};

/// Why something could not be done.
#[derive(Debug, thiserror::Error)]
pub enum SctpError {
    /// The library has one state for the whole process.
    #[error("SCTP was started in this process before")]
    Twice,
    /// More associations than there are addresses to invent for.
    #[error("there are too many associations")]
    TooMany,
    /// Without an address there is nothing to bind to.
    #[error("no local address")]
    NoAddress,
    /// It has ended.
    #[error("the association has ended")]
    Gone,
    /// The library refused.
    #[error(transparent)]
    Refused(#[from] Failure),
}

/// Whether a message was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// It is on its way.
    Queued,
    /// There is no room: try again when packets have come in or time has passed.
    Full,
}

/// A message to send.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// What it says; not empty.
    pub data: &'a [u8],
    /// The stream that it keeps its order in.
    pub stream: u16,
    /// The payload protocol identifier, handed over as it is.
    pub protocol: u32,
    /// The path to take, which must be active; `None` leaves it to the stack.
    pub path: Option<PathId>,
}

/// What an endpoint has to tell.
#[derive(Debug)]
pub enum Incoming<'a> {
    /// News.
    Event(Event),
    /// Data.
    Piece(Piece<'a>),
}

/// A message, or a part of one.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// Of which association.
    pub association: AssociationId,
    /// The stream it came by.
    pub stream: u16,
    /// The payload protocol identifier, as the peer set it.
    pub protocol: u32,
    /// What it says.
    pub data: &'a [u8],
    /// It ends the message.
    pub complete: bool,
}

/// A packet for the network.
#[derive(Debug)]
pub struct Transmit {
    /// The path it belongs to; of associations that we began.
    pub path: Option<PathId>,
    /// The link to send it over; `None`: any that leads there.
    pub link: Option<LinkId>,
    /// The local address that the peer expects it from; `None` leaves it to the kernel.
    pub local: Option<IpAddr>,
    /// Where to, UDP port included.
    pub remote: SocketAddr,
    /// The UDP datagram's contents.
    pub payload: Vec<u8>,
}

/// What is thought of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathState {
    /// Works.
    Active,
    /// Has not answered yet.
    Unconfirmed,
    /// Does not answer any more, or not at present.
    Inactive,
}

/// A path's figures, as far as the stack tells them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathStatus {
    /// The path.
    pub path: PathId,
    /// Where it leads.
    pub way: PathTuple,
    /// Whether it works.
    pub state: PathState,
    /// Congestion window.
    pub cwnd: Bytes,
    /// Smoothed round trip, in whole milliseconds.
    pub srtt: Duration,
    /// Retransmission timeout.
    pub rto: Duration,
    /// Largest packet from the IP header on, in bytes.
    pub mtu: u32,
}
