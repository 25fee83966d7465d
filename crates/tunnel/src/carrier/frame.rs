//! Packets in a stream of bytes: two bytes of length, then the packet [P-12.2]; and the reader of
//! such streams, whatever stands before their packets.

use std::ops::Range;

use thiserror::Error;

/// The largest packet: the largest UDP payload that sessions try.
pub const MAX_PACKET: usize = 9_000;
const HEADER: usize = 2;

/// The other end does not frame packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("what came is no framed packet (a length of {0})")]
pub struct FrameError(pub(super) usize);

/// Appends a packet to `out`. What is larger than [`MAX_PACKET`] is left out, as by a link whose
/// packets are smaller.
pub fn frame(packet: &[u8], out: &mut Vec<u8>) {
    if packet.len() > MAX_PACKET {
        return;
    }
    out.extend_from_slice(&(packet.len() as u16).to_be_bytes());
    out.extend_from_slice(packet);
}

/// What a stream begins with.
pub(super) enum Piece {
    /// Something that is not all there yet.
    Part,
    /// So many bytes that are no packet; they may be still to come.
    Other(usize),
    /// A packet at these bytes, with which the piece ends.
    Packet(Range<usize>),
}

/// Takes a stream apart. Holds one packet that is not complete at the most, beside what was read
/// last.
#[derive(Debug)]
pub struct Deframer {
    read: fn(&[u8]) -> Result<Piece, FrameError>,
    buffer: Vec<u8>,
    start: usize,
    /// Bytes of no packet that are still to come.
    skipped: usize,
}

impl Default for Deframer {
    fn default() -> Self {
        Self::new(read_frame)
    }
}

impl Deframer {
    /// Of streams whose pieces are read by this.
    pub(super) const fn new(read: fn(&[u8]) -> Result<Piece, FrameError>) -> Self {
        Self {
            read,
            buffer: Vec::new(),
            start: 0,
            skipped: 0,
        }
    }

    /// Bytes that came.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.start);
        self.start = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// The next packet that is complete.
    ///
    /// # Errors
    /// What comes is not framed so; nothing more can be had of the stream.
    pub fn packet(&mut self) -> Result<Option<&mut [u8]>, FrameError> {
        loop {
            let step = self.skipped.min(self.buffer.len() - self.start);
            self.start += step;
            self.skipped -= step;
            match (self.read)(&self.buffer[self.start..])? {
                Piece::Part => return Ok(None),
                Piece::Other(len) => self.skipped = len,
                Piece::Packet(at) => {
                    let at = self.start + at.start..self.start + at.end;
                    self.start = at.end;
                    return Ok(Some(&mut self.buffer[at]));
                }
            }
        }
    }
}

/// Empty packets are fillers, and left out.
fn read_frame(bytes: &[u8]) -> Result<Piece, FrameError> {
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER>() else {
        return Ok(Piece::Part);
    };
    match usize::from(u16::from_be_bytes(*header)) {
        0 => Ok(Piece::Other(HEADER)),
        length if length > MAX_PACKET => Err(FrameError(length)),
        length if length > rest.len() => Ok(Piece::Part),
        length => Ok(Piece::Packet(HEADER..HEADER + length)),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Packets of many sizes.
    pub(in crate::carrier) fn packets() -> Vec<Vec<u8>> {
        let packets = (0..50_usize).map(|i| vec![i as u8; (i * 397) % MAX_PACKET + 1]);
        packets.collect()
    }

    /// What comes out of a stream, which is the same however it is cut. Little is kept.
    pub(in crate::carrier) fn unframed(stream: &[u8], new: fn() -> Deframer) -> Vec<Vec<u8>> {
        let cut = |step| {
            let (mut deframer, mut out) = (new(), Vec::new());
            for piece in stream.chunks(step) {
                deframer.push(piece);
                while let Some(packet) = deframer.packet().unwrap() {
                    out.push(packet.to_vec());
                }
                assert!(deframer.buffer.len() - deframer.start <= MAX_PACKET + 16);
            }
            out
        };
        let whole = cut(stream.len());
        for step in [1, 2, 3, 1_000] {
            assert_eq!(cut(step), whole, "in steps of {step}");
        }
        whole
    }

    #[test]
    fn packets_come_out_as_they_went_in_however_the_stream_is_cut() {
        let mut stream = Vec::new();
        for packet in &packets() {
            frame(packet, &mut stream);
            frame(&[], &mut stream);
        }
        frame(&vec![0; MAX_PACKET + 1], &mut stream);
        assert_eq!(unframed(&stream, Deframer::default), packets());
    }

    #[test]
    fn what_is_not_framed_is_noticed() {
        let mut deframer = Deframer::default();
        deframer.push(b"HTTP/1.1 200 OK\r\n");
        assert_eq!(deframer.packet(), Err(FrameError(0x4854)));
    }
}
