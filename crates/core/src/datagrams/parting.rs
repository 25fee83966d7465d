//! Datagrams that leave more than once or in more than one packet: fragments and copies [P-7].
//!
//! Owns how much of a datagram has left, and the form of what goes next. Which packet takes it is
//! others' to say.

use bytes::Bytes;

use crate::wire::{datagram_copy_header_len, emit_datagram_copy, emit_fragment};

/// Header of a fragment at the most: type and four variable-length integers.
const FRAGMENT_HEADER: usize = 1 + 8 + 4 + 4 + 4;

/// A datagram that leaves in parts.
#[derive(Debug)]
pub(super) struct Parting {
    number: u64,
    /// Label and data.
    content: Bytes,
    sent: usize,
}

impl Parting {
    /// Nothing has left of `content`, a label and its data.
    pub(super) fn new(number: u64, content: Bytes) -> Self {
        Self {
            number,
            content,
            sent: 0,
        }
    }

    /// Bytes that have not left.
    pub(super) fn left(&self) -> usize {
        self.content.len() - self.sent
    }

    /// Appends as much as fits before `end`, as a fragment.
    pub(super) fn fill(&mut self, out: &mut Vec<u8>, end: usize) {
        let room = end - out.len();
        if room <= FRAGMENT_HEADER {
            return;
        }
        let n = (room - FRAGMENT_HEADER).min(self.left());
        let part = &self.content[self.sent..self.sent + n];
        let (offset, total) = (self.sent as u64, self.content.len() as u64);
        emit_fragment(self.number, offset, total, part, out);
        self.sent += n;
    }

    /// The next part that a packet with `space` for frames can hold.
    pub(super) fn next_copy(&mut self, space: usize) -> DatagramCopy {
        let (number, total) = (self.number, self.content.len());
        let whole = datagram_copy_header_len(number, total) + total <= space;
        let most = if whole {
            total
        } else {
            space.saturating_sub(FRAGMENT_HEADER).max(1)
        };
        let offset = self.sent;
        self.sent = total.min(offset + most);
        DatagramCopy {
            number,
            offset,
            total,
            data: self.content.slice(offset..self.sent),
        }
    }
}

/// A datagram, or a part of one that does not fit into a packet, for sending more than once.
#[derive(Clone, Debug)]
pub(crate) struct DatagramCopy {
    number: u64,
    offset: usize,
    total: usize,
    data: Bytes,
}

impl DatagramCopy {
    /// Bytes of the application's data.
    pub(crate) fn len(&self) -> usize {
        self.data.len()
    }

    fn is_whole(&self) -> bool {
        self.data.len() == self.total
    }

    /// Bytes in a packet at the most.
    pub(crate) fn size(&self) -> usize {
        let header = match self.is_whole() {
            true => datagram_copy_header_len(self.number, self.total),
            false => FRAGMENT_HEADER,
        };
        header + self.data.len()
    }

    pub(crate) fn emit(&self, out: &mut Vec<u8>) {
        match self.is_whole() {
            true => emit_datagram_copy(self.number, &self.data, out),
            false => {
                let (offset, total) = (self.offset as u64, self.total as u64);
                emit_fragment(self.number, offset, total, &self.data, out);
            }
        }
    }
}
