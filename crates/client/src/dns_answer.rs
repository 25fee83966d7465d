//! Which addresses an answer of the DNS gives for which name (RFC 1035 §4.1).
//!
//! Pure over the message as it is on the wire. Total: what is no answer gives nothing.

use std::net::IpAddr;

use crate::near_names::{asks_for_near, question};

/// More addresses than one name is given in any answer that fits a datagram of the usual size.
const MAX_ANSWERS: usize = 64;
const TYPE_A: u16 = 1;
const TYPE_AAAA: u16 = 28;
/// Type and class of a question; type, class, time to live and length of an answer.
const QUESTION_TAIL: usize = 4;
const ANSWER_HEAD: usize = 10;

/// The name that was asked for, and the addresses that were answered.
pub(crate) fn addresses(message: &[u8]) -> Option<(String, Vec<IpAddr>)> {
    const ANSWER: u8 = 0x80;
    if message.get(2)? & ANSWER == 0 {
        return None;
    }
    let (name, rest) = question(message)?;
    let mut rest = rest.get(QUESTION_TAIL..)?;
    let count = u16::from_be_bytes([*message.get(6)?, *message.get(7)?]);
    let mut found = Vec::new();
    for _ in 0..usize::from(count).min(MAX_ANSWERS) {
        rest = skip_name(rest)?;
        let head = rest.get(..ANSWER_HEAD)?;
        let kind = u16::from_be_bytes([head[0], head[1]]);
        let length = usize::from(u16::from_be_bytes([head[8], head[9]]));
        let data = rest.get(ANSWER_HEAD..ANSWER_HEAD + length)?;
        rest = &rest[ANSWER_HEAD + length..];
        match kind {
            TYPE_A => found.push(IpAddr::from(<[u8; 4]>::try_from(data).ok()?)),
            TYPE_AAAA => found.push(IpAddr::from(<[u8; 16]>::try_from(data).ok()?)),
            _ => {}
        }
    }
    Some((name, found))
}

/// What follows a name, whatever it is.
fn skip_name(mut rest: &[u8]) -> Option<&[u8]> {
    loop {
        let (&length, after) = rest.split_first()?;
        match length {
            0 => return Some(after),
            // A pointer ends a name.
            0xc0.. => return after.get(1..),
            1..=63 => rest = after.get(usize::from(length)..)?,
            64..0xc0 => return None,
        }
    }
}

/// Answers and questions of the DNS, as strangers may write them; for fuzz targets.
pub fn fuzz_dns(message: &[u8]) {
    let _ = asks_for_near(message);
    if let Some((name, rest)) = question(message) {
        assert!(rest.len() < message.len() && name.len() < 512);
        assert!(!name.chars().any(|c| c.is_ascii_uppercase()), "{name}");
    }
    if let Some((_, found)) = addresses(message) {
        assert!(found.len() * 4 <= message.len(), "more than it can hold");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "Www.example.org" is an alias, of which there are two addresses.
    fn answer() -> Vec<u8> {
        let mut message = vec![0, 7, 0x81, 0x80, 0, 1, 0, 3, 0, 0, 0, 0];
        message.extend(b"\x03Www\x07example\x03org\0\0\x01\0\x01");
        message.extend(b"\xc0\x0c\0\x05\0\x01\0\0\0\x3c\0\x04\x01a\xc0\x10");
        message.extend(b"\x01a\xc0\x10\0\x01\0\x01\0\0\0\x3c\0\x04\xc0\0\x02\x07");
        message.extend(b"\x01a\xc0\x10\0\x1c\0\x01\0\0\0\x3c\0\x10\x20\x01\x0d\xb8");
        message.extend([0; 11]);
        message.push(9);
        message
    }

    #[test]
    fn addresses_belong_to_the_name_that_was_asked_for() {
        let (name, addresses) = addresses(&answer()).unwrap();
        assert_eq!(name, "www.example.org");
        let expected: Vec<IpAddr> = ["192.0.2.7", "2001:db8::9"]
            .map(|text| text.parse().unwrap())
            .into();
        assert_eq!(addresses, expected);
    }

    #[test]
    fn questions_and_what_is_cut_give_nothing() {
        let whole = answer();
        for length in 0..whole.len() {
            assert_eq!(addresses(&whole[..length]), None, "{length}");
        }
        let mut question = whole;
        question[2] = 1;
        assert_eq!(addresses(&question), None);
    }
}
