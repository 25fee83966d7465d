//! Why sessions and paths end, each with what to try next.

use thiserror::Error;

/// Why a session ended. Users see these lines.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CloseReason {
    /// Either side said good-bye.
    #[error("the session was closed")]
    Finished,
    /// The relay knows neither the client's key nor the token it showed.
    #[error(
        "the relay does not accept this client: its token is wrong, used up, expired or revoked; \
         ask for a new join string and run `tabane join` again"
    )]
    Unauthorised,
    /// The other end proved another key than the pinned one.
    #[error(
        "the relay at this address has another key than the join string says; \
         if it was set up anew, or the string was mistyped, run `tabane join --replace` with the \
         right join string"
    )]
    WrongPeerKey,
    /// No protocol version in common.
    #[error(
        "the relay speaks protocol version {theirs:?}, this program {}; update the older one",
        crate::PROTOCOL_VERSION
    )]
    VersionMismatch {
        /// The versions the other end offers.
        theirs: Vec<u32>,
    },
    /// Nothing answered on any link.
    #[error(
        "no answer from the relay on any link; is it running, and is its UDP port open in the \
         firewalls between?"
    )]
    HandshakeTimeout,
    /// TLS refused the handshake.
    #[error("the handshake failed: {0}")]
    HandshakeFailed(String),
    /// Nothing was heard for the idle timeout.
    #[error("the session timed out: nothing was heard from the other end on any link")]
    IdleTimeout,
    /// The other end has forgotten the session.
    #[error("the relay has forgotten this session (it was restarted)")]
    StatelessReset,
    /// The other end broke a rule of the protocol.
    #[error("the other end broke the protocol: {0}")]
    ProtocolViolation(Violation),
    /// The relay serves as many sessions as it may.
    #[error("the relay is full; try again later or use another one")]
    Overloaded,
    /// The relay is going down.
    #[error("the relay is shutting down")]
    ShuttingDown,
    /// Too many packets could not be authenticated, or the keys are used up.
    #[error("the session's keys reached their limit of use; a new session is needed")]
    KeysExhausted,
    /// The relay's owner has withdrawn the client's leave.
    #[error("the relay's owner has revoked this client; only they can let it in again")]
    Revoked,
    /// The client's user has as many sessions at the relay as it may.
    #[error(
        "this user has as many sessions at the relay as it may; end another one, or ask the \
         relay's owner for more"
    )]
    TooManySessions,
}

/// Exactly one rule that the other end broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum Violation {
    #[error("a frame that does not parse")]
    MalformedFrame,
    #[error("transport parameters that do not parse")]
    MalformedParameters,
    #[error("more data on a stream than was granted")]
    StreamCreditExceeded,
    #[error("more data in the session than was granted")]
    SessionCreditExceeded,
    #[error("more streams than were granted")]
    StreamLimitExceeded,
    #[error("a stream that only we may open")]
    ForeignStream,
    #[error("data beyond the end of a stream, or two different ends")]
    FinalSizeChanged,
    #[error("an acknowledgement for a packet never sent")]
    AckedUnsent,
    #[error("more handshake data than a handshake has")]
    CryptoBufferExceeded,
    #[error("a frame that only the other side may send")]
    WrongSide,
    #[error("data before it was admitted")]
    BeforeAdmission,
}

impl CloseReason {
    /// The number on the wire [P-9.2].
    pub(crate) fn code(&self) -> u64 {
        match self {
            Self::Finished => 0,
            Self::Unauthorised => 1,
            Self::WrongPeerKey => 2,
            Self::VersionMismatch { .. } => 3,
            Self::HandshakeTimeout => 4,
            Self::HandshakeFailed(_) => 5,
            Self::IdleTimeout => 6,
            Self::StatelessReset => 7,
            Self::ProtocolViolation(_) => 8,
            Self::Overloaded => 9,
            Self::ShuttingDown => 10,
            Self::KeysExhausted => 11,
            Self::Revoked => 12,
            Self::TooManySessions => 13,
        }
    }

    /// What a peer's CLOSE frame means to us.
    pub(crate) fn from_wire(code: u64, text: &str) -> Self {
        match code {
            0 => Self::Finished,
            1 => Self::Unauthorised,
            9 => Self::Overloaded,
            10 => Self::ShuttingDown,
            11 => Self::KeysExhausted,
            12 => Self::Revoked,
            13 => Self::TooManySessions,
            2 | 5 => Self::HandshakeFailed(format!("refused by the other end: {text}")),
            _ => Self::HandshakeFailed(format!("the other end closed it: {text}")),
        }
    }
}

/// Why a path stopped carrying data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PathDownReason {
    /// Nothing sent on it was acknowledged for a probe timeout.
    #[error("no answer")]
    NoAnswer,
    /// The address never answered its challenge.
    #[error("never answered")]
    NotValidated,
    /// The interface is gone.
    #[error("the interface is gone")]
    InterfaceGone,
    /// Closed on request, here or there.
    #[error("closed")]
    Closed,
}
