//! Packet headers [P-2]: long ones for the handshake, short ones for everything after.

use super::cursor::{Cursor, Malformed, put_varint};
use super::{PROTOCOL_VERSION, TAG_LEN};
use crate::id::{AttemptId, ConnectionId, PacketNumber, PathId};
use crate::identity::PublicKey;

/// A first byte's bit that marks a long header.
const LONG: u8 = 0x80;
/// Set in every packet of ours, so that other protocols on the port are told apart.
const FIXED: u8 = 0x40;
/// Key phase in a short header; under header protection.
const KEY_PHASE: u8 = 0x04;
/// Packet numbers in handshake packets are not truncated: there are few of them.
pub(crate) const HANDSHAKE_PN_LEN: usize = 4;
/// A client's first datagrams are padded to this, so that answers amplify little and a path
/// that cannot carry it shows at once (RFC 9000 §14.1) [P-3.3].
pub(crate) const MIN_INITIAL_SIZE: usize = 1200;

/// What a long-header packet is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LongKind {
    /// TLS's first messages, under keys anybody can derive.
    Initial {
        /// Proof of address from a Retry; empty at first.
        token: Vec<u8>,
    },
    /// TLS's later messages.
    Handshake,
    /// The server asks for proof of address before it keeps any state.
    Retry {
        /// To be sent back in the next Initial.
        token: Vec<u8>,
    },
}

/// A long header, as far as it can be read without keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LongHeader {
    pub(crate) kind: LongKind,
    pub(crate) attempt: AttemptId,
    /// What the sender wants to be called in short headers.
    pub(crate) source: ConnectionId,
    /// Where the packet number stands; meaningless for Retry.
    pub(crate) pn_offset: usize,
    /// Where this packet ends in the datagram.
    pub(crate) end: usize,
}

/// What a long header turned out to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LongError {
    Malformed,
    /// Another version (0 is version negotiation); the attempt is where every version has it.
    Version {
        version: u32,
        attempt: AttemptId,
    },
}

impl From<Malformed> for LongError {
    fn from(_: Malformed) -> Self {
        Self::Malformed
    }
}

pub(crate) fn is_long(datagram: &[u8]) -> bool {
    datagram.first().is_some_and(|first| first & LONG != 0)
}

impl LongHeader {
    /// Reads the header of the first packet in `datagram`.
    pub(crate) fn parse(datagram: &[u8]) -> Result<Self, LongError> {
        let mut cursor = Cursor::new(datagram);
        let first = cursor.u8()?;
        if first & (LONG | FIXED) != LONG | FIXED {
            return Err(LongError::Malformed);
        }
        let version = cursor.u32()?;
        let attempt = AttemptId(cursor.u64()?);
        if version != PROTOCOL_VERSION {
            return Err(LongError::Version { version, attempt });
        }
        let source = ConnectionId(cursor.u32()?);
        let kind = match first >> 4 & 3 {
            0 => LongKind::Initial {
                token: cursor.prefixed()?.to_vec(),
            },
            1 => LongKind::Handshake,
            2 => {
                return Ok(Self {
                    kind: LongKind::Retry {
                        token: cursor.rest().to_vec(),
                    },
                    attempt,
                    source,
                    pn_offset: datagram.len(),
                    end: datagram.len(),
                });
            }
            _ => return Err(LongError::Malformed),
        };
        let len = cursor.varint()?;
        if len < (HANDSHAKE_PN_LEN + TAG_LEN) as u64 || len > cursor.len() as u64 {
            return Err(LongError::Malformed);
        }
        let pn_offset = datagram.len() - cursor.len();
        Ok(Self {
            kind,
            attempt,
            source,
            pn_offset,
            end: pn_offset + len as usize,
        })
    }

    /// Appends the header of a packet whose payload (without tag) has `payload_len` bytes.
    /// `pn_offset` and `end` are ignored; the offset of the packet number is returned.
    pub(crate) fn emit(&self, out: &mut Vec<u8>, pn: u32, payload_len: usize) -> usize {
        let kind = match self.kind {
            LongKind::Initial { .. } => 0,
            LongKind::Handshake => 1,
            LongKind::Retry { .. } => 2,
        };
        out.push(LONG | FIXED | kind << 4 | (HANDSHAKE_PN_LEN as u8 - 1));
        out.extend_from_slice(&PROTOCOL_VERSION.to_be_bytes());
        out.extend_from_slice(&self.attempt.0.to_be_bytes());
        out.extend_from_slice(&self.source.0.to_be_bytes());
        match &self.kind {
            LongKind::Initial { token } => {
                put_varint(out, token.len() as u64);
                out.extend_from_slice(token);
            }
            LongKind::Handshake => {}
            LongKind::Retry { token } => {
                out.extend_from_slice(token);
                return out.len();
            }
        }
        put_varint(out, (HANDSHAKE_PN_LEN + payload_len + TAG_LEN) as u64);
        let pn_offset = out.len();
        out.extend_from_slice(&pn.to_be_bytes());
        pn_offset
    }
}

/// The version that asks who is there, and answers it [P-2.7]: "who?".
pub(crate) const INQUIRY_VERSION: u32 = 0x7768_6f3f;

/// What begins a packet of another version than ours.
pub(crate) fn version_header(version: u32, attempt: AttemptId) -> Vec<u8> {
    let mut out = vec![LONG | FIXED];
    out.extend_from_slice(&version.to_be_bytes());
    out.extend_from_slice(&attempt.0.to_be_bytes());
    out
}

/// A Version Negotiation packet: version 0 and what we speak [P-2.5].
pub(crate) fn version_negotiation(attempt: AttemptId) -> Vec<u8> {
    let mut out = version_header(0, attempt);
    out.extend_from_slice(&PROTOCOL_VERSION.to_be_bytes());
    out
}

/// The answer to an inquiry: who we are.
pub(crate) fn inquiry_answer(attempt: AttemptId, key: PublicKey) -> Vec<u8> {
    let mut out = version_header(INQUIRY_VERSION, attempt);
    out.extend_from_slice(&key.0);
    out
}

/// The key in an answer to an inquiry; `None` where there is not exactly one.
pub(crate) fn inquiry_answer_key(datagram: &[u8]) -> Option<PublicKey> {
    let key = datagram.get(1 + 4 + 8..)?;
    key.try_into().ok().map(PublicKey)
}

/// The versions a Version Negotiation packet offers.
pub(crate) fn parse_version_negotiation(datagram: &[u8]) -> Result<Vec<u32>, Malformed> {
    let mut cursor = Cursor::new(datagram);
    cursor.take(1 + 4 + 8)?;
    let mut versions = Vec::new();
    while versions.len() < 16 && !cursor.is_empty() {
        versions.push(cursor.u32()?);
    }
    Ok(versions)
}

/// A short header, as far as it can be read without keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShortHeader {
    pub(crate) destination: ConnectionId,
    pub(crate) path: PathId,
    pub(crate) pn_offset: usize,
}

impl ShortHeader {
    pub(crate) fn parse(datagram: &[u8]) -> Result<Self, Malformed> {
        let mut cursor = Cursor::new(datagram);
        if cursor.u8()? & (LONG | FIXED) != FIXED {
            return Err(Malformed);
        }
        let destination = ConnectionId(cursor.u32()?);
        let path = PathId(cursor.varint_u32()?);
        // The header-protection sample starts four bytes after the packet number does.
        if cursor.len() < 4 + TAG_LEN {
            return Err(Malformed);
        }
        Ok(Self {
            destination,
            path,
            pn_offset: datagram.len() - cursor.len(),
        })
    }

    /// Appends the header up to the packet number (of `pn_len` bytes, not appended).
    pub(crate) fn emit(
        destination: ConnectionId,
        path: PathId,
        key_phase: bool,
        pn_len: usize,
        out: &mut Vec<u8>,
    ) {
        let phase = if key_phase { KEY_PHASE } else { 0 };
        out.push(FIXED | phase | (pn_len as u8 - 1));
        out.extend_from_slice(&destination.0.to_be_bytes());
        put_varint(out, u64::from(path.0));
    }

    /// Key phase and packet-number length of an unprotected first byte.
    pub(crate) const fn protected_bits(first: u8) -> (bool, usize) {
        (first & KEY_PHASE != 0, (first & 3) as usize + 1)
    }
}

/// Bytes needed so that the receiver finds `pn` when it lies at most half their range beyond
/// the largest acknowledged (RFC 9000 §17.1, appendix A.2).
pub(crate) fn packet_number_len(pn: PacketNumber, largest_acked: Option<PacketNumber>) -> usize {
    let unacked = largest_acked.map_or(pn.0 + 1, |acked| pn.0 - acked.0);
    match unacked {
        0..0x7fff => 2,
        0x7fff..0x7f_ffff => 3,
        _ => 4,
    }
}

/// Appends the low `len` bytes of `pn`.
pub(crate) fn put_packet_number(pn: PacketNumber, len: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(&pn.0.to_be_bytes()[8 - len..]);
}

/// The packet number nearest to the expected one whose low bytes are `truncated`
/// (RFC 9000 appendix A.3).
pub(crate) fn expand_packet_number(
    largest: Option<PacketNumber>,
    truncated: u64,
    len: usize,
) -> PacketNumber {
    let expected = largest.map_or(0, |largest| largest.0.saturating_add(1));
    let window = 1_u64 << (8 * len);
    let half = window / 2;
    let candidate = (expected & !(window - 1)) | truncated;
    PacketNumber(
        if candidate + half <= expected && candidate < (1 << 62) - window {
            candidate + window
        } else if candidate > expected + half && candidate >= window {
            candidate - window
        } else {
            candidate
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc_9000_a3_example() {
        assert_eq!(
            expand_packet_number(Some(PacketNumber(0xa82f_30ea)), 0x9b32, 2),
            PacketNumber(0xa82f_9b32)
        );
        assert_eq!(expand_packet_number(None, 7, 2), PacketNumber(7));
    }

    #[test]
    fn truncation_is_undone_over_the_whole_window() {
        for largest in [0, 1, 70_000, 1 << 33] {
            for ahead in [1, 2, 1_000, 0x7ffe] {
                let (pn, largest) = (PacketNumber(largest + ahead), PacketNumber(largest));
                let len = packet_number_len(pn, Some(largest));
                let mut out = Vec::new();
                put_packet_number(pn, len, &mut out);
                let truncated = Cursor::new(&out).uint(len).expect("as many as were put");
                assert_eq!(expand_packet_number(Some(largest), truncated, len), pn);
            }
        }
    }

    #[test]
    fn long_headers_survive_the_wire() {
        let header = LongHeader {
            kind: LongKind::Initial {
                token: vec![1, 2, 3],
            },
            attempt: AttemptId(42),
            source: ConnectionId(7),
            pn_offset: 0,
            end: 0,
        };
        let mut out = Vec::new();
        let pn_offset = header.emit(&mut out, 9, 30);
        out.resize(pn_offset + HANDSHAKE_PN_LEN + 30 + TAG_LEN, 0);
        let parsed = LongHeader::parse(&out).expect("what was emitted");
        assert_eq!(
            (parsed.kind, parsed.pn_offset, parsed.end),
            (header.kind, pn_offset, out.len())
        );
    }
}
