//! Why sessions and paths end, each with what to try next.

use thiserror::Error;

/// Characters kept of what the other end says.
const MAX_TEXT: usize = 200;

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
    /// The client, or its user, has as many sessions at the relay as it may.
    #[error(
        "this machine or its user has as many sessions at the relay as it may; end another one, \
         or ask the relay's owner for a user with more (`tabane relay user set`)"
    )]
    TooManySessions,
    /// Who may use the relay cannot be looked up at the moment.
    #[error(
        "the relay cannot look up new clients just now, because its fleet's etcd does not answer; \
         it is asked again while this client runs"
    )]
    Unavailable,
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
    #[error("paths closed in an order that nothing explains")]
    TooManyGaps,
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
            Self::Unavailable => 14,
        }
    }

    /// What a CLOSE frame means that came before the other end had proved its key: anybody on the
    /// way may have sent it, so nothing follows from it for good.
    pub(crate) fn claimed(code: u64, text: &str) -> Self {
        match code {
            1 | 12 => Self::HandshakeFailed(format!(
                "refused before the relay's key was proved: {}",
                one_line(text)
            )),
            _ => Self::from_wire(code, text),
        }
    }

    /// What a peer's CLOSE frame means to us.
    pub(crate) fn from_wire(code: u64, text: &str) -> Self {
        let text = one_line(text);
        match code {
            0 => Self::Finished,
            1 => Self::Unauthorised,
            9 => Self::Overloaded,
            10 => Self::ShuttingDown,
            11 => Self::KeysExhausted,
            12 => Self::Revoked,
            13 => Self::TooManySessions,
            14 => Self::Unavailable,
            2 | 5 => Self::HandshakeFailed(format!("refused by the other end: {text}")),
            _ => Self::HandshakeFailed(format!("the other end closed it: {text}")),
        }
    }
}

/// A stranger's text for somebody's terminal or log: one line of it, of at most 200 characters,
/// without control characters.
#[must_use]
pub fn one_line(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(MAX_TEXT)
        .collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stranger_s_text_is_one_short_line_without_escapes() {
        let text = format!("\x1b[2J\r\n\u{9b}{}", "a".repeat(5_000));
        for code in [2, 8, 99] {
            let told = CloseReason::from_wire(code, &text).to_string();
            assert!(!told.chars().any(char::is_control), "{told:?}");
            assert!(told.chars().count() < 300, "{}", told.len());
        }
    }

    #[test]
    fn nobody_is_refused_for_good_before_the_key_is_proved() {
        for code in 0..20 {
            let claimed = CloseReason::claimed(code, "");
            let is_refusal = matches!(claimed, CloseReason::Unauthorised | CloseReason::Revoked);
            assert!(!is_refusal, "{code}");
        }
    }
}
