//! The short code that pairs two machines, and how long and how often it may be tried.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

/// How many wrong tries end an offer. A typing error or two are forgiven; somebody who guesses is
/// right with 3 in a million.
pub const ATTEMPTS: u8 = 3;
const DIGITS: usize = 6;
const CODES: u32 = 1_000_000;

/// Six digits. Shown in two groups; read with anything between them.
#[derive(Clone, PartialEq, Eq)]
pub struct Code(String);

/// A text that is no code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a pairing code has {DIGITS} digits, such as 123-456")]
pub struct CodeError;

impl Code {
    /// A code from 8 random bytes, all codes as likely (to one part in 10^13).
    #[must_use]
    pub fn from_random(random: [u8; 8]) -> Self {
        let number = u64::from_be_bytes(random) % u64::from(CODES);
        Self(format!("{number:0DIGITS$}"))
    }

    pub(crate) fn digits(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, second) = self.0.split_at(DIGITS / 2);
        write!(f, "{first}-{second}")
    }
}

/// Codes are secrets as long as they count; logs do not show them.
impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Code(…)")
    }
}

impl FromStr for Code {
    type Err = CodeError;

    fn from_str(text: &str) -> Result<Self, CodeError> {
        let is_between = |c: &char| c.is_whitespace() || *c == '-';
        let digits: String = text.chars().filter(|c| !is_between(c)).collect();
        let is_code = digits.len() == DIGITS && digits.bytes().all(|b| b.is_ascii_digit());
        is_code.then_some(Self(digits)).ok_or(CodeError)
    }
}

/// A code that one friend may use once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// What the friend types.
    pub code: Code,
    /// After this time since 1970 it is worth nothing.
    pub ends_at: Duration,
    /// How many tries are left; each is counted before it is known whether it is right.
    pub attempts_left: u8,
}

impl Offer {
    /// Takes one try, if there is one at `now` (since 1970).
    pub fn attempt(&mut self, now: Duration) -> Option<Code> {
        if now >= self.ends_at {
            return None;
        }
        self.attempts_left = self.attempts_left.checked_sub(1)?;
        Some(self.code.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_read_as_people_write_them() {
        let code = Code::from_random(42_u64.to_be_bytes());
        assert_eq!(code.to_string(), "000-042");
        for text in ["000042", " 000-042 ", "000 042", "0 0 0 0 4 2"] {
            assert_eq!(text.parse(), Ok(code.clone()), "{text}");
        }
        for text in ["", "00042", "0000042", "00004x", "０００042"] {
            assert_eq!(text.parse::<Code>(), Err(CodeError), "{text}");
        }
    }

    #[test]
    fn an_offer_ends_by_time_and_by_tries() {
        let second = Duration::from_secs;
        let offer = Offer {
            code: Code::from_random([7; 8]),
            ends_at: second(100),
            attempts_left: ATTEMPTS,
        };
        let mut tried = offer.clone();
        for _ in 0..ATTEMPTS {
            assert!(tried.attempt(second(99)).is_some());
        }
        assert_eq!(tried.attempt(second(99)), None);
        assert_eq!(offer.clone().attempt(second(100)), None);
    }
}
