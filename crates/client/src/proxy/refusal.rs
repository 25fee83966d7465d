//! Why a destination could not be reached, in the words of each dialect.

/// What came of connecting, told to the program as its dialect allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The destination refused the connection.
    Refused,
    /// No route leads to the destination's network.
    NetworkUnreachable,
    /// The destination's network does not find it.
    HostUnreachable,
    /// The destination did not answer in time.
    TimedOut,
    /// Nobody knows the name.
    NameNotFound,
    /// Whoever asks a proxy may not go there.
    Denied,
    /// The request asks for something this proxy does not do.
    Unsupported,
}

impl Refusal {
    /// The SOCKS5 reply code, RFC 1928 §6.
    pub(crate) fn socks5_code(self) -> u8 {
        match self {
            Self::Refused => 5,
            Self::NetworkUnreachable => 3,
            Self::HostUnreachable | Self::NameNotFound => 4,
            Self::TimedOut => 6,
            Self::Denied => 2,
            Self::Unsupported => 7,
        }
    }

    /// The HTTP status line's code and reason, RFC 9110 §15.
    pub(crate) fn http_status(self) -> &'static str {
        match self {
            Self::Refused
            | Self::NetworkUnreachable
            | Self::HostUnreachable
            | Self::NameNotFound => "502 Bad Gateway",
            Self::TimedOut => "504 Gateway Timeout",
            Self::Denied => "403 Forbidden",
            Self::Unsupported => "400 Bad Request",
        }
    }

    /// One line for a person.
    pub(crate) fn sentence(self) -> &'static str {
        match self {
            Self::Refused => "the destination refused the connection",
            Self::NetworkUnreachable => "no way leads to the destination",
            Self::HostUnreachable => "the destination's host cannot be reached",
            Self::TimedOut => "the destination did not answer in time",
            Self::NameNotFound => "the host name could not be resolved",
            Self::Denied => "no proxy leads to this machine's own services",
            Self::Unsupported => "this proxy forwards http:// URLs and CONNECT only",
        }
    }
}
