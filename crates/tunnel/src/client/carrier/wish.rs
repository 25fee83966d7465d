//! What may carry a link's packets, and what does: words for users and for the choice.

use std::fmt;

use crate::carrier::Proxy;

/// What may carry a link's packets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CarrierWish {
    /// Which carriers.
    pub kind: CarrierKind,
    /// By which proxy TLS goes.
    pub proxy: Option<Proxy>,
}

/// Which carriers a link may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CarrierKind {
    /// UDP, and TLS where that does not pass.
    #[default]
    Auto,
    /// UDP alone.
    Udp,
    /// TLS alone.
    Tls,
}

/// What carries a link's packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Carrier {
    /// Datagrams.
    #[default]
    Udp,
    /// A TLS connection.
    Tls,
}

impl fmt::Display for Carrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Udp => "udp",
            Self::Tls => "tls",
        })
    }
}
