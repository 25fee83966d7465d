//! What two of our programs say to each other beside the bytes they carry.
//!
//! Any SCTP endpoint gets the bytes, and nothing else. One that gave [`INDICATION`] as its
//! adaptation layer indication (RFC 5061 §4.2.6) when the association was set up is ours, and gets
//! notes as well, which a payload protocol identifier tells from bytes: a sender tells the length
//! and the digest, the receiver whether it has them; either end of a forwarded connection tells
//! that it has sent everything. All is on one stream, so that notes come after what they are about.

use aws_lc_rs::digest::{Context, SHA256};
use serde::{Deserialize, Serialize};

use crate::{AssociationId, EndpointId, Stack};

/// "tbn1".
pub(crate) const INDICATION: u32 = 0x7462_6e31;
/// The one stream.
pub(crate) const STREAM: u16 = 0;
/// The payload protocol identifier of bytes: none.
pub(crate) const BYTES: u32 = 0;
/// And that of notes: "tbn1".
pub(crate) const NOTES: u32 = INDICATION;
/// What a note may measure; a longer one is not ours.
pub(crate) const NOTE_MAX: usize = 4_096;
/// The most bytes of a message: with all headers it fills a packet of 1,400 bytes of IPv4.
pub(crate) const MESSAGE_BYTES: usize = 1_340;

/// The most bytes of a message in this association: less where headers of IPv6 must fit as well.
pub(crate) fn message_bytes(
    stack: &Stack,
    endpoint: EndpointId,
    association: AssociationId,
) -> usize {
    let fits = stack.message_bytes(endpoint, association);
    fits.filter(|bytes| *bytes > 0)
        .map_or(MESSAGE_BYTES, |bytes| bytes.min(MESSAGE_BYTES))
}

/// A note, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "note")]
pub(crate) enum Note {
    /// Everything is sent: so much, with this digest.
    Sent { length: u64, sha256: String },
    /// What was to be sent cannot be, or is not to be relied upon.
    Spoilt { why: String },
    /// The receiver has everything.
    Complete { length: u64, sha256: String },
    /// The receiver has not what the sender says.
    Different { why: String },
    /// This end of a forwarded connection has sent everything.
    End,
}

impl Note {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }
}

/// A message that may come in pieces.
#[derive(Debug, Default)]
pub(crate) struct NoteReader {
    bytes: Vec<u8>,
}

impl NoteReader {
    /// The note, once it is whole. What is too long, or none of ours, is dropped.
    pub(crate) fn read(&mut self, piece: &[u8], complete: bool) -> Option<Note> {
        let room = NOTE_MAX.saturating_sub(self.bytes.len());
        self.bytes
            .extend_from_slice(&piece[..piece.len().min(room)]);
        if !complete {
            return None;
        }
        Note::parse(&std::mem::take(&mut self.bytes))
    }
}

/// Length and SHA-256 of what has passed so far.
#[derive(Clone)]
pub(crate) struct Tally {
    pub length: u64,
    digest: Context,
}

impl Tally {
    pub(crate) fn new() -> Self {
        Self {
            length: 0,
            digest: Context::new(&SHA256),
        }
    }

    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.length += bytes.len() as u64;
        self.digest.update(bytes);
    }

    /// The digest in hexadecimal.
    pub(crate) fn sha256(&self) -> String {
        let digest = self.digest.clone().finish();
        let hex = digest.as_ref().iter().map(|byte| format!("{byte:02x}"));
        hex.collect()
    }
}

/// What two ends of `tabane sctp` say to each other, whole and in pieces, as strangers may change
/// it; for fuzz targets.
pub fn fuzz_notes(bytes: &[u8]) {
    let whole = Note::parse(bytes);
    let mut reader = NoteReader::default();
    let (first, second) = bytes.split_at(bytes.len() / 2);
    assert!(reader.read(first, false).is_none(), "not complete");
    let read = reader.read(second, true);
    assert_eq!(
        read.map(|note| note.to_bytes()),
        whole.map(|note| note.to_bytes())
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_come_back_as_they_were_and_strange_ones_are_none() {
        let note = Note::Sent {
            length: 7,
            sha256: "ab".to_owned(),
        };
        let bytes = note.to_bytes();
        let mut reader = NoteReader::default();
        assert_eq!(reader.read(&bytes[..5], false), None);
        assert_eq!(reader.read(&bytes[5..], true), Some(note));
        assert_eq!(reader.read(&[b'x'; 10_000], false), None);
        assert_eq!(reader.read(b"", true), None);
        assert_eq!(reader.read(&Note::End.to_bytes(), true), Some(Note::End));
    }

    #[test]
    fn a_tally_knows_length_and_digest() {
        let mut tally = Tally::new();
        tally.add(b"ab");
        tally.add(b"c");
        assert_eq!(tally.length, 3);
        assert!(tally.sha256().starts_with("ba7816bf8f01cfea"));
    }
}
