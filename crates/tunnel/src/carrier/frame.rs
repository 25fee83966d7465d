//! Packets in a stream of bytes: two bytes of length, then the packet [P-12.2].

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

/// Takes a stream apart. Holds one packet that is not complete at the most, beside what was read
/// last.
#[derive(Debug, Default)]
pub struct Unframer {
    buffer: Vec<u8>,
    start: usize,
}

impl Unframer {
    /// Bytes that came.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.start);
        self.start = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// The next packet that is complete. Empty ones are fillers, and left out.
    ///
    /// # Errors
    /// What comes is not framed; nothing more can be had of the stream.
    pub fn packet(&mut self) -> Result<Option<&mut [u8]>, FrameError> {
        loop {
            let rest = &self.buffer[self.start..];
            let Some((header, rest)) = rest.split_first_chunk::<HEADER>() else {
                return Ok(None);
            };
            let length = usize::from(u16::from_be_bytes(*header));
            if length > MAX_PACKET {
                return Err(FrameError(length));
            }
            if rest.len() < length {
                return Ok(None);
            }
            let begin = self.start + HEADER;
            self.start = begin + length;
            if length > 0 {
                return Ok(Some(&mut self.buffer[begin..begin + length]));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_come_out_as_they_went_in_however_the_stream_is_cut() {
        let packets: Vec<Vec<u8>> = (0..50_usize)
            .map(|i| vec![i as u8; (i * 397) % MAX_PACKET + 1])
            .collect();
        let mut stream = Vec::new();
        for packet in &packets {
            frame(packet, &mut stream);
            frame(&[], &mut stream);
        }
        frame(&vec![0; MAX_PACKET + 1], &mut stream);
        for step in [1, 2, 3, 1_000, stream.len()] {
            let mut unframer = Unframer::default();
            let mut out = Vec::new();
            for piece in stream.chunks(step) {
                unframer.push(piece);
                while let Some(packet) = unframer.packet().unwrap() {
                    out.push(packet.to_vec());
                }
                assert!(unframer.buffer.len() - unframer.start <= MAX_PACKET + HEADER);
            }
            assert_eq!(out, packets, "in steps of {step}");
        }
    }

    #[test]
    fn what_is_not_framed_is_noticed() {
        let mut unframer = Unframer::default();
        unframer.push(b"HTTP/1.1 200 OK\r\n");
        assert_eq!(unframer.packet(), Err(FrameError(0x4854)));
    }
}
