//! Asking an address whether somebody there speaks this protocol, and by which key: one datagram
//! each way, and no state at whoever is asked [P-2.7].
//!
//! Owns the form of question and answer. An answer proves nothing: it says which key a handshake
//! has to be begun with, and that proves the key.

use crate::id::AttemptId;
use crate::identity::PublicKey;
use crate::wire::{
    INQUIRY_VERSION, LongError, LongHeader, MIN_INITIAL_SIZE, PROTOCOL_VERSION, inquiry_answer_key,
    parse_version_negotiation, version_header,
};

/// A question, to be sent to one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inquiry {
    attempt: AttemptId,
}

/// What an answer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InquiryAnswer {
    /// Somebody speaks this version, and lets strangers in: a handshake may be begun with this key.
    Open(PublicKey),
    /// Somebody speaks this protocol, but not to strangers, or in other versions.
    Closed,
}

impl Inquiry {
    /// A question that only its receiver can answer: `nonce` must be secret and fresh.
    #[must_use]
    pub const fn new(nonce: u64) -> Self {
        Self {
            attempt: AttemptId(nonce),
        }
    }

    /// The datagram to send; as long as a handshake's first, so that no answer is longer.
    #[must_use]
    pub fn datagram(&self) -> Vec<u8> {
        let mut out = version_header(INQUIRY_VERSION, self.attempt);
        out.resize(MIN_INITIAL_SIZE, 0);
        out
    }

    /// What a datagram that came back says; `None` where it is no answer to this question.
    #[must_use]
    pub fn read_answer(&self, datagram: &[u8]) -> Option<InquiryAnswer> {
        let Err(LongError::Version { version, attempt }) = LongHeader::parse(datagram) else {
            return None;
        };
        if attempt != self.attempt {
            return None;
        }
        match version {
            INQUIRY_VERSION => inquiry_answer_key(datagram).map(InquiryAnswer::Open),
            0 => {
                let versions = parse_version_negotiation(datagram).ok()?;
                versions
                    .contains(&PROTOCOL_VERSION)
                    .then_some(InquiryAnswer::Closed)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{inquiry_answer, version_negotiation};

    #[test]
    fn only_answers_to_this_very_question_count() {
        let (asked, other) = (Inquiry::new(7), AttemptId(8));
        assert_eq!(asked.datagram().len(), MIN_INITIAL_SIZE);
        let key = PublicKey([5; 32]);
        let answer = inquiry_answer(asked.attempt, key);
        assert!(answer.len() < MIN_INITIAL_SIZE);
        let open = Some(InquiryAnswer::Open(key));
        assert_eq!(asked.read_answer(&answer), open);
        let closed = version_negotiation(asked.attempt);
        assert_eq!(asked.read_answer(&closed), Some(InquiryAnswer::Closed));
        for wrong in [
            inquiry_answer(other, key),
            version_negotiation(other),
            // The question itself, as an echo service has it.
            asked.datagram(),
            answer[..answer.len() - 1].to_vec(),
            Vec::new(),
        ] {
            assert_eq!(asked.read_answer(&wrong), None, "{wrong:?}");
        }
    }
}
