//! Why a destination could not be reached, in the words of each dialect.

/// What the relay (or the session) said, told to the program as its dialect allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The destination refused the connection.
    Refused,
    /// No route to the destination.
    Unreachable,
    /// The destination did not answer in time.
    TimedOut,
    /// The relay's resolver does not know the name.
    NameNotFound,
    /// The relay's policy forbids the destination (private address ranges).
    Denied,
    /// Too many connections.
    Limit,
    /// There is no session to the relay.
    NoSession,
    /// The request asks for something this proxy does not do.
    Unsupported,
}

impl Refusal {
    /// The SOCKS5 reply code, RFC 1928 §6.
    pub(crate) fn socks5_code(self) -> u8 {
        match self {
            Self::Refused => 5,
            Self::Unreachable | Self::NameNotFound => 4,
            Self::TimedOut => 6,
            Self::Denied => 2,
            Self::Limit => 1,
            Self::NoSession => 3,
            Self::Unsupported => 7,
        }
    }

    /// The HTTP status line's code and reason, RFC 9110 §15.
    pub(crate) fn http_status(self) -> &'static str {
        match self {
            Self::Refused | Self::Unreachable | Self::NameNotFound => "502 Bad Gateway",
            Self::TimedOut => "504 Gateway Timeout",
            Self::Denied => "403 Forbidden",
            Self::Limit | Self::NoSession => "503 Service Unavailable",
            Self::Unsupported => "400 Bad Request",
        }
    }

    /// One line for a person.
    pub(crate) fn sentence(self) -> &'static str {
        match self {
            Self::Refused => "the destination refused the connection",
            Self::Unreachable => "the relay has no route to the destination",
            Self::TimedOut => "the destination did not answer in time",
            Self::NameNotFound => "the relay could not resolve the host name",
            Self::Denied => "the relay does not connect to private addresses",
            Self::Limit => "too many connections",
            Self::NoSession => "there is no session to the relay",
            Self::Unsupported => "this proxy forwards http:// URLs and CONNECT only",
        }
    }
}
