//! The relay's first byte on a stream.

/// The relay's first byte on a stream: what came of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[repr(u8)]
pub enum Status {
    /// Connected; data follows.
    #[error("connected")]
    Open = 0,
    /// The destination refused the connection.
    #[error("the destination refused the connection")]
    Refused = 1,
    /// The relay has no way to the destination.
    #[error("the relay has no route to the destination")]
    Unreachable = 2,
    /// The destination did not answer.
    #[error("the destination did not answer in time")]
    TimedOut = 3,
    /// The relay's resolver does not know the name.
    #[error("the relay could not resolve the host name")]
    NameNotFound = 4,
    /// The relay's policy forbids the destination.
    #[error(
        "the relay's owner does not allow this destination; private addresses, and those of the \
         relay itself, need --allow-private there"
    )]
    Denied = 5,
    /// The session, its user or the relay has as many connections as it may.
    #[error("too many connections at the relay")]
    Limit = 6,
    /// The relay did not understand the request.
    #[error("the relay did not understand the request; update the older end")]
    Malformed = 7,
    /// The client's user has no volume left.
    #[error("this user's volume at the relay is used up")]
    VolumeUsedUp = 8,
    /// The network of the destination does not find it.
    #[error("the destination's host cannot be reached")]
    HostUnreachable = 9,
    /// Another client of the relay has the port, or the name at it.
    #[error("another client of the relay has this port")]
    PortTaken = 10,
    /// The relay's host does not let it listen there.
    #[error("the relay cannot listen there: something else does, or it may not")]
    PortUnavailable = 11,
}

impl Status {
    /// The byte on the wire.
    #[must_use]
    pub const fn emit(self) -> u8 {
        self as u8
    }

    /// What a byte means; `None` for one that means nothing.
    #[must_use]
    pub const fn parse(byte: u8) -> Option<Self> {
        Some(match byte {
            0 => Self::Open,
            1 => Self::Refused,
            2 => Self::Unreachable,
            3 => Self::TimedOut,
            4 => Self::NameNotFound,
            5 => Self::Denied,
            6 => Self::Limit,
            7 => Self::Malformed,
            8 => Self::VolumeUsedUp,
            9 => Self::HostUnreachable,
            10 => Self::PortTaken,
            11 => Self::PortUnavailable,
            _ => return None,
        })
    }
}
