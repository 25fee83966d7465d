//! The local end of `tabane proxy` and `tabane run --proxy`: what a program says to a proxy, turned
//! into "carry this connection to that destination".
//!
//! It owns the three dialects spoken on one loopback port (SOCKS5, HTTP `CONNECT`, plain HTTP
//! forwarding; the first byte tells which), the parsing of untrusted bytes, and the answers a
//! program expects. It leaves opening destinations to its user: [`negotiate`] yields a [`Request`],
//! which is accepted or refused once the other side is known to answer.
//!
//! Invariant: names are never looked up here; they travel to the relay as they were written.

mod association;
mod http;
mod negotiation;
mod refusal;
mod socks5;

pub use association::{Incoming, UdpAssociation, UdpSender};
pub use http::{HttpError, HttpRequest, MAX_HEAD, parse_request};
pub use negotiation::{Accepted, NegotiationError, Request, TcpRequest, UdpRequest, negotiate};
pub use refusal::Refusal;
pub use socks5::{
    Command, Datagram, Socks5Error, Socks5Request, emit_datagram, parse_datagram, parse_greeting,
    parse_socks5_request,
};
