//! The preface of a stream that a relay opens: who has come to a port that leads to the client
//! [P-T.9].
//!
//! Owns the wire form. Parsing is total, as that of requests is.

use std::net::SocketAddr;

use tabane_core::StreamId;

use crate::request::{RequestError, emit_address, parse_address};

/// The longest preface: the stream that asked, and two IPv6 addresses with their ports.
pub(crate) const MAX_PREFACE: usize = 8 + 2 * (1 + 16 + 2);

/// Somebody who has come to a port of the relay's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Preface {
    /// The client's stream that asked for the port.
    pub(crate) asked_by: StreamId,
    /// Where the visitor comes from.
    pub(crate) from: SocketAddr,
    /// The relay's address and port that it came to.
    pub(crate) at: SocketAddr,
}

impl Preface {
    pub(crate) fn emit(&self) -> Vec<u8> {
        let mut out = self.asked_by.get().to_be_bytes().to_vec();
        emit_address(self.from, &mut out);
        emit_address(self.at, &mut out);
        out
    }

    /// Reads a preface from the front of `bytes` and gives it with the number of bytes it took;
    /// `None` where more are needed.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, RequestError> {
        let Some((number, rest)) = bytes.split_first_chunk::<8>() else {
            return Ok(None);
        };
        let Some((from, first)) = parse_address(rest)? else {
            return Ok(None);
        };
        let Some((at, second)) = parse_address(&rest[first..])? else {
            return Ok(None);
        };
        let asked_by = StreamId::from_wire(u64::from_be_bytes(*number));
        let used = number.len() + first + second;
        Ok(Some((Self { asked_by, from, at }, used)))
    }
}

/// For the fuzzer: a preface is what it is written as, and its front asks for more.
///
/// # Panics
/// It is otherwise.
pub fn fuzz_visitor(data: &[u8]) {
    if let Ok(Some((preface, used))) = Preface::parse(data) {
        assert_eq!(preface.emit(), data[..used]);
        for cut in 0..used {
            assert_eq!(Preface::parse(&data[..cut]), Ok(None), "cut at {cut}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tabane_base::Seed;

    fn preface(from: &str, at: &str) -> Preface {
        Preface {
            asked_by: StreamId::from_wire(0x1_0000_0004),
            from: from.parse().unwrap(),
            at: at.parse().unwrap(),
        }
    }

    #[test]
    fn what_is_emitted_parses_back_and_every_truncation_asks_for_more() {
        for preface in [
            preface("192.0.2.1:50000", "203.0.113.1:443"),
            preface("[2001:db8::7]:1", "[2001:db8:ffff::1]:65535"),
        ] {
            let mut bytes = preface.emit();
            let len = bytes.len();
            assert!(len <= MAX_PREFACE);
            for cut in 0..len {
                assert_eq!(Preface::parse(&bytes[..cut]), Ok(None), "{cut}");
            }
            bytes.extend(b"SSH-2.0");
            assert_eq!(Preface::parse(&bytes), Ok(Some((preface, len))));
        }
    }

    #[test]
    fn names_and_garbage_are_no_addresses() {
        let named = [0, 0, 0, 0, 0, 0, 0, 4, 3, 1, b'a', 0, 80];
        assert_eq!(Preface::parse(&named), Err(RequestError::AddressType));
        let mut rng = Seed(12).rng("garbage");
        for _ in 0..50_000 {
            let mut bytes = vec![0; rng.below(60) as usize];
            rng.fill(&mut bytes);
            if let Some(kind) = bytes.get_mut(8) {
                *kind = 4 + 2 * (*kind % 2);
            }
            fuzz_visitor(&bytes);
        }
    }
}
