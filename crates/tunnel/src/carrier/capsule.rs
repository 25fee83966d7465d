//! Packets in a stream of bytes as capsules, as a proxy takes them that speaks UDP for us
//! (CONNECT-UDP): type, length and value (RFC 9297 §3.2); of a datagram the value is the number of
//! its context, 0 for a UDP payload, and the payload (RFC 9298 §5).
//!
//! Whoever sends and takes packets frames them by their length, whatever is on the way; so the
//! connection to such a proxy is one that puts the one form in the place of the other.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::frame::{Deframer, FrameError, MAX_PACKET, Piece, frame};

/// The type of a datagram.
const DATAGRAM: u64 = 0;
/// The context of UDP payloads.
const UDP_PAYLOAD: u64 = 0;
/// What a proxy may say beside datagrams, in one capsule; it is skipped.
const MAX_OTHER: u64 = 64 * 1024;

/// Appends a packet to `out`. What is larger than [`MAX_PACKET`] is left out, as by a link whose
/// packets are smaller.
pub fn encapsulate(packet: &[u8], out: &mut Vec<u8>) {
    if packet.is_empty() || packet.len() > MAX_PACKET {
        return;
    }
    put_varint(DATAGRAM, out);
    put_varint(packet.len() as u64 + 1, out);
    put_varint(UDP_PAYLOAD, out);
    out.extend_from_slice(packet);
}

impl Deframer {
    /// Of streams of capsules. Capsules of other types, and datagrams of other contexts, are left
    /// out; what is longer than anything that a proxy has to say is an error.
    #[must_use]
    pub const fn of_capsules() -> Self {
        Self::new(read_capsule)
    }
}

fn read_capsule(bytes: &[u8]) -> Result<Piece, FrameError> {
    let Some((kind, length, header)) = head(bytes) else {
        return Ok(Piece::Part);
    };
    let most = match kind {
        DATAGRAM => MAX_PACKET as u64 + 8,
        _ => MAX_OTHER,
    };
    if length > most {
        return Err(FrameError(usize::try_from(length).unwrap_or(usize::MAX)));
    }
    let end = header + length as usize;
    if kind != DATAGRAM {
        return Ok(Piece::Other(end));
    }
    let Some(value) = bytes.get(header..end) else {
        return Ok(Piece::Part);
    };
    let payload = match varint(value) {
        Some((UDP_PAYLOAD, used)) => header + used..end,
        _ => end..end,
    };
    match payload.len() {
        1..=MAX_PACKET => Ok(Piece::Packet(payload)),
        _ => Ok(Piece::Other(end)),
    }
}

/// Feeds a stream, in two pieces, to the reader, for fuzzing.
pub fn fuzz_capsules(data: &[u8]) {
    let (first, second) = data.split_at(data.len() / 2);
    let mut deframer = Deframer::of_capsules();
    for piece in [first, second] {
        deframer.push(piece);
        while let Ok(Some(packet)) = deframer.packet() {
            assert!(
                (1..=MAX_PACKET).contains(&packet.len()),
                "a packet of no size"
            );
        }
    }
}

/// Type and length of a capsule, and how many bytes say so.
fn head(bytes: &[u8]) -> Option<(u64, u64, usize)> {
    let (kind, first) = varint(bytes)?;
    let (length, second) = varint(&bytes[first..])?;
    Some((kind, length, first + second))
}

/// A number, and how many bytes it takes (RFC 9000 §16).
fn varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let first = *bytes.first()?;
    let len = 1 << (first >> 6);
    let rest = bytes.get(1..len)?;
    let begin = u64::from(first & 0x3f);
    let number = rest
        .iter()
        .fold(begin, |all, byte| all << 8 | u64::from(*byte));
    Some((number, len))
}

/// Numbers below 16,384, which is all there are here.
fn put_varint(number: u64, out: &mut Vec<u8>) {
    match number {
        0..64 => out.push(number as u8),
        _ => out.extend_from_slice(&(number as u16 | 0x4000).to_be_bytes()),
    }
}

/// A connection to a proxy that takes capsules, for those who frame packets by their length.
#[derive(Debug)]
pub(super) struct Capsuled<S> {
    stream: S,
    /// What is written here, up to a whole packet.
    deframer: Deframer,
    /// What leaves, as capsules.
    outward: Vec<u8>,
    left: usize,
    inbound: Deframer,
    /// What has come, framed by length.
    inward: Vec<u8>,
    given: usize,
}

/// Bytes that may wait to leave; beyond that nothing is taken.
const MAX_OUTWARD: usize = 64 * 1024;
/// Bytes of one read.
const CHUNK: usize = 16 * 1024;

impl<S> Capsuled<S> {
    pub(super) fn new(stream: S) -> Self {
        Self {
            stream,
            deframer: Deframer::default(),
            outward: Vec::new(),
            left: 0,
            inbound: Deframer::of_capsules(),
            inward: Vec::new(),
            given: 0,
        }
    }
}

fn garbled(error: FrameError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

impl<S: AsyncRead + Unpin> AsyncRead for Capsuled<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let mut chunk = [0; CHUNK];
        loop {
            let rest = &this.inward[this.given..];
            if !rest.is_empty() {
                let taken = rest.len().min(buffer.remaining());
                buffer.put_slice(&rest[..taken]);
                this.given += taken;
                return Poll::Ready(Ok(()));
            }
            this.inward.clear();
            this.given = 0;
            let mut read = ReadBuf::new(&mut chunk);
            ready!(Pin::new(&mut this.stream).poll_read(cx, &mut read))?;
            if read.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            this.inbound.push(read.filled());
            while let Some(packet) = this.inbound.packet().map_err(garbled)? {
                frame(packet, &mut this.inward);
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> Capsuled<S> {
    fn poll_leave(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.left < self.outward.len() {
            let rest = &self.outward[self.left..];
            let written = ready!(Pin::new(&mut self.stream).poll_write(cx, rest))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.left += written;
        }
        self.outward.clear();
        self.left = 0;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Capsuled<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if let Poll::Ready(Err(error)) = this.poll_leave(cx) {
            return Poll::Ready(Err(error));
        }
        if this.outward.len() - this.left >= MAX_OUTWARD {
            return Poll::Pending;
        }
        let taken = bytes.len().min(MAX_OUTWARD);
        this.deframer.push(&bytes[..taken]);
        while let Some(packet) = this.deframer.packet().map_err(garbled)? {
            encapsulate(packet, &mut this.outward);
        }
        if let Poll::Ready(Err(error)) = this.poll_leave(cx) {
            return Poll::Ready(Err(error));
        }
        Poll::Ready(Ok(taken))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_leave(cx))?;
        Pin::new(&mut this.stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_leave(cx))?;
        Pin::new(&mut this.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::tests::{packets, unframed};
    use super::*;

    #[test]
    fn packets_come_out_as_they_went_in_however_the_stream_is_cut() {
        let mut stream = Vec::new();
        for packet in &packets() {
            encapsulate(packet, &mut stream);
            // Something else; a datagram of another context, an empty one and one without context.
            stream.extend([0x40, 0x55, 0x43, 0xe8]);
            stream.extend([7; 1_000]);
            stream.extend([0, 3, 2, 9, 9, 0, 1, 0, 0, 0]);
            encapsulate(&[], &mut stream);
        }
        encapsulate(&vec![0; MAX_PACKET + 1], &mut stream);
        assert_eq!(unframed(&stream, Deframer::of_capsules), packets());
    }

    #[test]
    fn a_datagram_is_as_the_rfc_has_it() {
        let mut stream = Vec::new();
        encapsulate(b"abc", &mut stream);
        assert_eq!(stream, [0, 4, 0, b'a', b'b', b'c']);
        // The same in numbers longer than need be.
        let longer = [0x40, 0, 0x80, 0, 0, 5, 0x40, 0, b'a', b'b', b'c'];
        assert_eq!(unframed(&longer, Deframer::of_capsules), [b"abc"]);
    }

    #[test]
    fn what_is_longer_than_anything_is_refused_at_once() {
        for head in [
            &[0, 0x80, 0, 0xff, 0xff][..],
            &[9, 0x80, 1, 0, 1],
            &[0xff; 16],
        ] {
            let mut deframer = Deframer::of_capsules();
            deframer.push(head);
            assert!(deframer.packet().is_err(), "{head:?}");
        }
    }
}
