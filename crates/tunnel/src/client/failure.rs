//! Why a client has no session, or no connection through it. Users see these lines.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use tabane_core::{CloseReason, ConfigError, StreamError};

use super::LinkError;
use crate::request::Status;

/// Why no session could be set up.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nothing came back on any link.
    #[error(
        "no answer from the relay at {} over {}: is the relay running, and is UDP port {} open \
         in the firewalls between?",
        List(relay), List(links), relay.first().map_or(0, SocketAddr::port)
    )]
    NoAnswer {
        /// Where it should be.
        relay: Vec<SocketAddr>,
        /// The links tried.
        links: Vec<String>,
    },
    /// The relay answered, and there will be no session.
    #[error("{0}")]
    Refused(CloseReason),
    /// Every one of several relays failed, each in its own way, or there are none.
    #[error("no relay can be used: {}", _0.iter().map(|(name, why)| format!("{name}: {why}"))
        .collect::<Vec<_>>().join("; "))]
    NoRelay(Vec<(String, Box<ConnectError>)>),
    /// No link has an address of a family that the relay has one of.
    #[error(
        "no link can reach the relay at {}: {} without an address of that family",
        List(relay),
        List(links)
    )]
    NoUsableLink {
        /// Where the relay should be.
        relay: Vec<SocketAddr>,
        /// The links there are.
        links: Vec<String>,
    },
    /// The only link, or the first of several of which none works, cannot be used.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// A setting that cannot work.
    #[error("a setting cannot work: {0}")]
    Config(#[from] ConfigError),
    /// The endpoint cannot begin a session.
    #[error("cannot begin a session: {0}")]
    Endpoint(#[from] tabane_core::ConnectError),
    /// The kernel gave no descriptors.
    #[error("cannot set up the event loop: {0}")]
    Runtime(#[source] io::Error),
}

/// Why a connection or a flow could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The relay could not, or would not, reach the destination.
    #[error("{0}")]
    Refused(Status),
    /// There is no session, and none came up in time. Holds why the last one ended.
    #[error("there is no session to the relay: {0}")]
    NoSession(CloseReason),
    /// The session ended before the relay answered.
    #[error("the session to the relay ended before it could connect")]
    SessionLost,
    /// The relay did not answer the request.
    #[error("the relay did not answer the request in time")]
    TimedOut,
    /// The session takes no more streams.
    #[error("{0}; close some connections first")]
    Limit(#[from] StreamError),
}

struct List<'a, T>(&'a [T]);

impl<T: fmt::Display> fmt::Display for List<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, item) in self.0.iter().enumerate() {
            let separator = if i == 0 { "" } else { ", " };
            write!(f, "{separator}{item}")?;
        }
        Ok(())
    }
}
