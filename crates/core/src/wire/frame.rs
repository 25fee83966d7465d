//! Frames [P-5]: what packets carry. QUIC's meaning where QUIC has the frame.

mod emit;
mod parse;
#[cfg(test)]
mod tests;

use std::ops::RangeInclusive;

use tabane_base::{Duration, Instant};

use crate::class::{ClassId, ClassRule};
use crate::id::{PacketNumber, PathId, StreamId};
use crate::policy::PathWish;
use crate::probe::{Probe, Report};

pub(crate) use emit::{
    datagram_copy_header_len, datagram_header_len, emit_ack, emit_datagram, emit_datagram_copy,
    emit_fragment, emit_shed,
};
pub(crate) use parse::parse_frame;

/// Ranges in one ACK, newest first. Twelve cover some 1,000 packets at 1 % random loss, and every
/// ACK repeats them, so that a lost ACK costs nothing.
pub(crate) const MAX_ACK_RANGES: usize = 12;
/// Receive times in one ACK: enough for the packets between two ACKs at usual rates; at higher
/// rates the newest are a fair sample.
pub(crate) const MAX_ACK_TIMES: usize = 16;

mod kind {
    pub(super) const PADDING: u8 = 0x00;
    pub(super) const PING: u8 = 0x01;
    pub(super) const ACK: u8 = 0x02;
    pub(super) const RESET_STREAM: u8 = 0x04;
    pub(super) const STOP_SENDING: u8 = 0x05;
    pub(super) const CRYPTO: u8 = 0x06;
    pub(super) const MAX_DATA: u8 = 0x10;
    pub(super) const MAX_STREAM_DATA: u8 = 0x11;
    pub(super) const MAX_STREAMS: u8 = 0x12;
    pub(super) const PATH_CHALLENGE: u8 = 0x1a;
    pub(super) const PATH_RESPONSE: u8 = 0x1b;
    pub(super) const CLOSE: u8 = 0x1c;
    pub(super) const HELLO: u8 = 0x1e;
    pub(super) const ADMITTED: u8 = 0x1f;
    pub(super) const PATH_ABANDON: u8 = 0x20;
    pub(super) const ACK_FREQUENCY: u8 = 0x22;
    pub(super) const PATH_POLICY: u8 = 0x24;
    pub(super) const PROBE: u8 = 0x26;
    pub(super) const PROBE_REPORT: u8 = 0x27;
    pub(super) const CLASS: u8 = 0x28;
    pub(super) const STREAM_CLASS: u8 = 0x29;
    pub(super) const SHED: u8 = 0x2a;
    pub(super) const GO_AWAY: u8 = 0x2b;
    pub(super) const STREAM_HOLD: u8 = 0x2c;
    pub(super) const DATAGRAM: u8 = 0x30;
    pub(super) const DATAGRAM_FRAGMENT: u8 = 0x31;
    pub(super) const DATAGRAM_COPY: u8 = 0x32;
    pub(super) const STREAM: u8 = 0x80;
}

/// Bits of a STREAM frame's type [P-5.3].
mod stream_bit {
    pub(super) const FIN: u8 = 0x01;
    pub(super) const LEN: u8 = 0x02;
    pub(super) const ID_LEN_SHIFT: u8 = 2;
    pub(super) const OFFSET_LEN_SHIFT: u8 = 4;
}

/// Bits of a PATH_POLICY's flags [P-4.7].
mod policy_bit {
    pub(super) const BACKUP: u64 = 0x01;
    pub(super) const METERED: u64 = 0x02;
}

/// Bytes an offset takes, by its two bits in the frame type.
const OFFSET_LEN: [usize; 4] = [0, 3, 5, 8];

/// One frame of a received packet; payloads are borrowed from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Frame<'a> {
    Padding,
    Ping,
    Ack(AckFrame),
    /// Packets that arrived and were thrown away for want of memory [P-6.8].
    Shed(AckFrame),
    ResetStream {
        id: StreamId,
        code: u64,
        final_size: u64,
    },
    StopSending {
        id: StreamId,
        code: u64,
    },
    Crypto {
        offset: u64,
        data: &'a [u8],
    },
    MaxData(u64),
    MaxStreamData {
        id: StreamId,
        max: u64,
    },
    MaxStreams(u64),
    PathChallenge([u8; 8]),
    PathResponse([u8; 8]),
    Close {
        code: u64,
        text: &'a [u8],
    },
    Hello {
        token: &'a [u8],
    },
    Admitted,
    /// The server is about to go down [P-9.5].
    GoAway,
    PathAbandon(PathId),
    AckFrequency {
        path: PathId,
        packets: u64,
        delay: Duration,
    },
    /// `number` orders wishes for one path.
    PathPolicy {
        path: PathId,
        number: u64,
        wish: PathWish,
    },
    Probe(Probe),
    ProbeReport {
        path: PathId,
        report: Report,
    },
    /// `number` orders rules for one class.
    Class {
        class: ClassId,
        number: u64,
        rule: ClassRule,
    },
    /// `number` orders what is said of one stream.
    StreamClass {
        id: StreamId,
        number: u64,
        class: ClassId,
    },
    /// The reader stands still: nothing is to be sent at or beyond `at`; `None`: the sender may go
    /// on. `number` orders what is said of one stream [P-6.9].
    StreamHold {
        id: StreamId,
        number: u64,
        at: Option<u64>,
    },
    Datagram(&'a [u8]),
    DatagramCopy {
        number: u64,
        data: &'a [u8],
    },
    DatagramFragment {
        id: u64,
        offset: u64,
        total: u64,
        data: &'a [u8],
    },
    Stream {
        header: StreamHeader,
        data: &'a [u8],
    },
}

/// Packets of one path that arrived, and when [P-5.2].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AckFrame {
    pub(crate) path: PathId,
    /// How long the receiver held the largest before it acknowledged it.
    pub(crate) delay: Duration,
    /// When the largest arrived, by the receiver's own clock.
    pub(crate) largest_at: Instant,
    /// Newest first, never empty, never touching.
    pub(crate) ranges: Vec<RangeInclusive<u64>>,
    /// How long before `largest_at` each earlier received packet arrived, newest first.
    pub(crate) times: Vec<Duration>,
}

impl AckFrame {
    pub(crate) fn largest(&self) -> PacketNumber {
        PacketNumber(self.ranges.first().map_or(0, |range| *range.end()))
    }
}

/// Where a STREAM frame's data belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamHeader {
    pub(crate) id: StreamId,
    pub(crate) offset: u64,
    pub(crate) fin: bool,
}

impl StreamHeader {
    /// Bytes this header takes, with the length of its data or as the packet's last frame.
    pub(crate) fn size(&self, with_len: bool) -> usize {
        let len = if with_len { 2 } else { 0 };
        1 + self.id_len() + OFFSET_LEN[self.offset_code()] + len
    }

    /// Appends the header. With `data_len` given, another frame may follow the data.
    pub(crate) fn emit(&self, data_len: Option<usize>, out: &mut Vec<u8>) {
        let (id_len, offset_code) = (self.id_len(), self.offset_code());
        let mut first = kind::STREAM
            | (id_len as u8 - 1) << stream_bit::ID_LEN_SHIFT
            | (offset_code as u8) << stream_bit::OFFSET_LEN_SHIFT;
        if self.fin {
            first |= stream_bit::FIN;
        }
        if data_len.is_some() {
            first |= stream_bit::LEN;
        }
        out.push(first);
        out.extend_from_slice(&self.id.0.to_be_bytes()[8 - id_len..]);
        out.extend_from_slice(&self.offset.to_be_bytes()[8 - OFFSET_LEN[offset_code]..]);
        if let Some(len) = data_len {
            out.extend_from_slice(&(len as u16).to_be_bytes());
        }
    }

    fn id_len(&self) -> usize {
        match self.id.0 {
            0..0x100 => 1,
            0x100..0x1_0000 => 2,
            0x1_0000..0x100_0000 => 3,
            _ => 4,
        }
    }

    fn offset_code(&self) -> usize {
        match self.offset {
            0 => 0,
            1..0x100_0000 => 1,
            0x100_0000..0x100_0000_0000 => 2,
            _ => 3,
        }
    }
}

impl Frame<'_> {
    /// Whether the receiver must acknowledge a packet that carries it (RFC 9000 §13.2).
    pub(crate) const fn is_ack_eliciting(&self) -> bool {
        !matches!(
            self,
            Self::Padding
                | Self::Ack(_)
                | Self::Shed(_)
                | Self::Close { .. }
                | Self::ProbeReport { .. }
        )
    }

    /// Whether it is of streams or datagrams, which only an admitted client may have.
    pub(crate) const fn is_for_application(&self) -> bool {
        matches!(
            self,
            Self::Stream { .. }
                | Self::ResetStream { .. }
                | Self::StopSending { .. }
                | Self::MaxStreamData { .. }
                | Self::Class { .. }
                | Self::StreamClass { .. }
                | Self::StreamHold { .. }
                | Self::Datagram(_)
                | Self::DatagramCopy { .. }
                | Self::DatagramFragment { .. }
        )
    }
}

/// Bytes an ACK takes at the most, for planning what fits.
pub(crate) const ACK_RESERVE: usize = 32 + 6 * MAX_ACK_RANGES + 4 * MAX_ACK_TIMES;

/// Bytes a SHED takes at the most.
pub(crate) const SHED_MAX: usize = 32 + 6 * MAX_ACK_RANGES;

/// Bytes a PROBE_REPORT takes at the most.
pub(crate) const PROBE_REPORT_MAX: usize = 1 + 4 + 4 * 8;
