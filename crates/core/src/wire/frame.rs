//! Frames [P-5]: what packets carry. QUIC's meaning where QUIC has the frame.

use std::ops::RangeInclusive;

use tabane_base::{Duration, Instant};

use super::class::{class_id, emit_class, parse_class};
use super::cursor::{Cursor, Malformed, put_varint, varint_len};
use crate::class::{ClassId, ClassRule};
use crate::id::{PathId, StreamId};
use crate::policy::PathWish;
use crate::probe::{Probe, Report, Wish};

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
    pub(crate) fn largest(&self) -> u64 {
        self.ranges.first().map_or(0, |range| *range.end())
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
                | Self::Datagram(_)
                | Self::DatagramCopy { .. }
                | Self::DatagramFragment { .. }
        )
    }

    /// Appends the frame. Streams, ACKs and datagrams have emitters of their own.
    pub(crate) fn emit(&self, out: &mut Vec<u8>) {
        match *self {
            Self::Padding => out.push(kind::PADDING),
            Self::Ping => out.push(kind::PING),
            Self::ResetStream {
                id,
                code,
                final_size,
            } => {
                put(out, kind::RESET_STREAM, &[id.0, code, final_size]);
            }
            Self::StopSending { id, code } => put(out, kind::STOP_SENDING, &[id.0, code]),
            Self::Crypto { offset, data } => {
                put(out, kind::CRYPTO, &[offset, data.len() as u64]);
                out.extend_from_slice(data);
            }
            Self::MaxData(max) => put(out, kind::MAX_DATA, &[max]),
            Self::MaxStreamData { id, max } => put(out, kind::MAX_STREAM_DATA, &[id.0, max]),
            Self::MaxStreams(max) => put(out, kind::MAX_STREAMS, &[max]),
            Self::PathChallenge(data) => {
                out.push(kind::PATH_CHALLENGE);
                out.extend_from_slice(&data);
            }
            Self::PathResponse(data) => {
                out.push(kind::PATH_RESPONSE);
                out.extend_from_slice(&data);
            }
            Self::Close { code, text } => {
                put(out, kind::CLOSE, &[code, text.len() as u64]);
                out.extend_from_slice(text);
            }
            Self::Hello { token } => {
                put(out, kind::HELLO, &[token.len() as u64]);
                out.extend_from_slice(token);
            }
            Self::Admitted => out.push(kind::ADMITTED),
            Self::GoAway => out.push(kind::GO_AWAY),
            Self::PathAbandon(path) => put(out, kind::PATH_ABANDON, &[path.0.into()]),
            Self::AckFrequency {
                path,
                packets,
                delay,
            } => {
                put(
                    out,
                    kind::ACK_FREQUENCY,
                    &[path.0.into(), packets, micros(delay)],
                );
            }
            Self::PathPolicy { path, number, wish } => {
                let mut flags = 0;
                if wish.backup {
                    flags |= policy_bit::BACKUP;
                }
                if wish.metered {
                    flags |= policy_bit::METERED;
                }
                let PathWish {
                    weight,
                    priority,
                    cap,
                    ..
                } = wish;
                let path = path.0.into();
                let fields = [path, number, flags, weight, priority, cap];
                put(out, kind::PATH_POLICY, &fields);
            }
            Self::Probe(Probe {
                id,
                index,
                count,
                wish,
            }) => {
                put(out, kind::PROBE, &[id, index, count, wish.to_wire()]);
            }
            Self::ProbeReport { path, report } => {
                let Report {
                    id,
                    packets,
                    bytes,
                    spacing,
                } = report;
                let fields = [path.0.into(), id, packets, bytes, nanos(spacing)];
                put(out, kind::PROBE_REPORT, &fields);
            }
            Self::Class {
                class,
                number,
                ref rule,
            } => {
                out.push(kind::CLASS);
                emit_class(class, number, rule, out);
            }
            Self::StreamClass { id, number, class } => {
                put(out, kind::STREAM_CLASS, &[id.0, number, class.get().into()]);
            }
            Self::Datagram(data) => emit_datagram(&[], data, out),
            Self::DatagramCopy { number, data } => emit_datagram_copy(number, data, out),
            Self::DatagramFragment {
                id,
                offset,
                total,
                data,
            } => {
                emit_fragment(id, offset, total, data, out);
            }
            Self::Stream { header, data } => {
                header.emit(Some(data.len()), out);
                out.extend_from_slice(data);
            }
            Self::Ack(ref ack) => {
                emit_ack(
                    ack.path,
                    ack.delay,
                    ack.largest_at,
                    &ack.ranges,
                    &ack.times,
                    out,
                );
            }
            Self::Shed(ref shed) => {
                emit_shed(shed.path, shed.delay, shed.largest_at, &shed.ranges, out);
            }
        }
    }
}

fn put(out: &mut Vec<u8>, kind: u8, fields: &[u64]) {
    out.push(kind);
    for field in fields {
        put_varint(out, *field);
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

fn nanos(span: Duration) -> u64 {
    let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
    nanos.min(super::VARINT_MAX)
}

/// Appends an ACK. `ranges` are newest first and not empty.
pub(crate) fn emit_ack(
    path: PathId,
    delay: Duration,
    largest_at: Instant,
    ranges: &[RangeInclusive<u64>],
    times: &[Duration],
    out: &mut Vec<u8>,
) {
    emit_packets(kind::ACK, (path, delay, largest_at), ranges, times, out);
}

/// Appends a SHED. `ranges` are newest first and not empty.
pub(crate) fn emit_shed(
    path: PathId,
    delay: Duration,
    largest_at: Instant,
    ranges: &[RangeInclusive<u64>],
    out: &mut Vec<u8>,
) {
    emit_packets(kind::SHED, (path, delay, largest_at), ranges, &[], out);
}

fn emit_packets(
    kind: u8,
    (path, delay, largest_at): (PathId, Duration, Instant),
    ranges: &[RangeInclusive<u64>],
    times: &[Duration],
    out: &mut Vec<u8>,
) {
    let Some(first) = ranges.first() else { return };
    let fields = [
        path.0.into(),
        *first.end(),
        micros(delay),
        largest_at.as_micros(),
        ranges.len() as u64 - 1,
        first.end() - first.start(),
    ];
    put(out, kind, &fields);
    for pair in ranges.windows(2) {
        put_varint(out, pair[0].start() - pair[1].end() - 2);
        put_varint(out, pair[1].end() - pair[1].start());
    }
    put_varint(out, times.len() as u64);
    let mut before = 0;
    for time in times {
        let time = micros(*time);
        put_varint(out, time.saturating_sub(before));
        before = time;
    }
}

/// Bytes an ACK takes at the most, for planning what fits.
pub(crate) const ACK_RESERVE: usize = 32 + 6 * MAX_ACK_RANGES + 4 * MAX_ACK_TIMES;

/// Bytes a SHED takes at the most.
pub(crate) const SHED_MAX: usize = 32 + 6 * MAX_ACK_RANGES;

/// Bytes a PROBE_REPORT takes at the most.
pub(crate) const PROBE_REPORT_MAX: usize = 1 + 4 + 4 * 8;

/// Appends a whole datagram, label and data, with its length.
pub(crate) fn emit_datagram(label: &[u8], data: &[u8], out: &mut Vec<u8>) {
    put(out, kind::DATAGRAM, &[(label.len() + data.len()) as u64]);
    out.extend_from_slice(label);
    out.extend_from_slice(data);
}

/// Appends a whole datagram that may come more than once [P-7.4].
pub(crate) fn emit_datagram_copy(number: u64, data: &[u8], out: &mut Vec<u8>) {
    put(out, kind::DATAGRAM_COPY, &[number, data.len() as u64]);
    out.extend_from_slice(data);
}

/// Bytes before the data of a datagram that may come more than once.
pub(crate) const fn datagram_copy_header_len(number: u64, len: usize) -> usize {
    1 + varint_len(number) + varint_len(len as u64)
}

/// Appends a part of a datagram too large for one packet [P-7.3].
pub(crate) fn emit_fragment(id: u64, offset: u64, total: u64, data: &[u8], out: &mut Vec<u8>) {
    put(
        out,
        kind::DATAGRAM_FRAGMENT,
        &[id, offset, total, data.len() as u64],
    );
    out.extend_from_slice(data);
}

/// Bytes before a whole datagram's data.
pub(crate) const fn datagram_header_len(len: usize) -> usize {
    1 + varint_len(len as u64)
}

/// Takes one frame off `cursor`.
pub(crate) fn parse_frame<'a>(cursor: &mut Cursor<'a>) -> Result<Frame<'a>, Malformed> {
    let first = cursor.u8()?;
    if first & kind::STREAM != 0 {
        return parse_stream(first, cursor);
    }
    Ok(match first {
        kind::PADDING => Frame::Padding,
        kind::PING => Frame::Ping,
        kind::ACK => Frame::Ack(parse_ack(cursor)?),
        kind::SHED => Frame::Shed(parse_ack(cursor)?),
        kind::RESET_STREAM => Frame::ResetStream {
            id: stream_id(cursor)?,
            code: cursor.varint()?,
            final_size: cursor.varint()?,
        },
        kind::STOP_SENDING => Frame::StopSending {
            id: stream_id(cursor)?,
            code: cursor.varint()?,
        },
        kind::CRYPTO => Frame::Crypto {
            offset: cursor.varint()?,
            data: cursor.prefixed()?,
        },
        kind::MAX_DATA => Frame::MaxData(cursor.varint()?),
        kind::MAX_STREAM_DATA => Frame::MaxStreamData {
            id: stream_id(cursor)?,
            max: cursor.varint()?,
        },
        kind::MAX_STREAMS => Frame::MaxStreams(cursor.varint()?),
        kind::PATH_CHALLENGE => Frame::PathChallenge(cursor.array()?),
        kind::PATH_RESPONSE => Frame::PathResponse(cursor.array()?),
        kind::CLOSE => Frame::Close {
            code: cursor.varint()?,
            text: cursor.prefixed()?,
        },
        kind::HELLO => Frame::Hello {
            token: cursor.prefixed()?,
        },
        kind::ADMITTED => Frame::Admitted,
        kind::GO_AWAY => Frame::GoAway,
        kind::PATH_ABANDON => Frame::PathAbandon(PathId(cursor.varint_u32()?)),
        kind::ACK_FREQUENCY => Frame::AckFrequency {
            path: PathId(cursor.varint_u32()?),
            packets: cursor.varint()?,
            delay: Duration::from_micros(cursor.varint()?),
        },
        kind::PATH_POLICY => {
            let (path, number) = (PathId(cursor.varint_u32()?), cursor.varint()?);
            let flags = cursor.varint()?;
            Frame::PathPolicy {
                path,
                number,
                wish: PathWish {
                    backup: flags & policy_bit::BACKUP != 0,
                    metered: flags & policy_bit::METERED != 0,
                    weight: cursor.varint()?,
                    priority: cursor.varint()?,
                    cap: cursor.varint()?,
                },
            }
        }
        kind::PROBE => Frame::Probe(Probe {
            id: cursor.varint()?,
            index: cursor.varint()?,
            count: cursor.varint()?,
            wish: Wish::from_wire(cursor.varint()?),
        }),
        kind::PROBE_REPORT => Frame::ProbeReport {
            path: PathId(cursor.varint_u32()?),
            report: Report {
                id: cursor.varint()?,
                packets: cursor.varint()?,
                bytes: cursor.varint()?,
                spacing: Duration::from_nanos(cursor.varint()?),
            },
        },
        kind::CLASS => parse_class(cursor)?,
        kind::STREAM_CLASS => Frame::StreamClass {
            id: stream_id(cursor)?,
            number: cursor.varint()?,
            class: class_id(cursor)?,
        },
        kind::DATAGRAM => Frame::Datagram(cursor.prefixed()?),
        kind::DATAGRAM_COPY => Frame::DatagramCopy {
            number: cursor.varint()?,
            data: cursor.prefixed()?,
        },
        kind::DATAGRAM_FRAGMENT => Frame::DatagramFragment {
            id: cursor.varint()?,
            offset: cursor.varint()?,
            total: cursor.varint()?,
            data: cursor.prefixed()?,
        },
        _ => return Err(Malformed),
    })
}

fn stream_id(cursor: &mut Cursor<'_>) -> Result<StreamId, Malformed> {
    match cursor.varint()? {
        id @ 0..=0xffff_ffff => Ok(StreamId(id)),
        _ => Err(Malformed),
    }
}

fn parse_stream<'a>(first: u8, cursor: &mut Cursor<'a>) -> Result<Frame<'a>, Malformed> {
    let id_len = (first >> stream_bit::ID_LEN_SHIFT & 3) as usize + 1;
    let offset_len = OFFSET_LEN[(first >> stream_bit::OFFSET_LEN_SHIFT & 3) as usize];
    let id = StreamId(cursor.uint(id_len)?);
    let offset = cursor.uint(offset_len)?;
    let data = if first & stream_bit::LEN != 0 {
        let len = cursor.uint(2)?;
        cursor.take(len as usize)?
    } else {
        cursor.rest()
    };
    if offset > super::VARINT_MAX - data.len() as u64 {
        return Err(Malformed);
    }
    let fin = first & stream_bit::FIN != 0;
    Ok(Frame::Stream {
        header: StreamHeader { id, offset, fin },
        data,
    })
}

fn parse_ack(cursor: &mut Cursor<'_>) -> Result<AckFrame, Malformed> {
    let path = PathId(cursor.varint_u32()?);
    let largest = cursor.varint()?;
    let delay = Duration::from_micros(cursor.varint()?);
    let largest_at = Instant::from_micros(cursor.varint()?);
    let more = cursor.varint()?;
    if more >= MAX_ACK_RANGES as u64 {
        return Err(Malformed);
    }
    let mut ranges = Vec::with_capacity(more as usize + 1);
    let mut start = largest.checked_sub(cursor.varint()?).ok_or(Malformed)?;
    ranges.push(start..=largest);
    for _ in 0..more {
        let gap = cursor.varint()?;
        let end = start.checked_sub(gap + 2).ok_or(Malformed)?;
        start = end.checked_sub(cursor.varint()?).ok_or(Malformed)?;
        ranges.push(start..=end);
    }
    let count = cursor.varint()?;
    if count > MAX_ACK_TIMES as u64 {
        return Err(Malformed);
    }
    let mut times = Vec::with_capacity(count as usize);
    let mut before = 0_u64;
    for _ in 0..count {
        before = before.saturating_add(cursor.varint()?);
        times.push(Duration::from_micros(before));
    }
    Ok(AckFrame {
        path,
        delay,
        largest_at,
        ranges,
        times,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<Frame<'static>> {
        let id = StreamId(77_000);
        vec![
            Frame::Ping,
            Frame::ResetStream {
                id,
                code: 3,
                final_size: 1 << 40,
            },
            Frame::StopSending { id, code: 9 },
            Frame::Crypto {
                offset: 5,
                data: b"hello",
            },
            Frame::MaxData(1 << 50),
            Frame::MaxStreamData { id, max: 12 },
            Frame::MaxStreams(64),
            Frame::PathChallenge([1; 8]),
            Frame::PathResponse([2; 8]),
            Frame::Close {
                code: 1,
                text: b"bye",
            },
            Frame::Hello {
                token: b"let me in",
            },
            Frame::Admitted,
            Frame::GoAway,
            Frame::Class {
                class: ClassId::new(3).expect("in range"),
                number: 7,
                rule: ClassRule {
                    paths: Some(vec![PathId(0), PathId(70_000)]),
                    redundant: true,
                },
            },
            Frame::StreamClass {
                id,
                number: 1,
                class: ClassId::ORDINARY,
            },
            Frame::PathAbandon(PathId(300)),
            Frame::AckFrequency {
                path: PathId(1),
                packets: 8,
                delay: Duration::from_millis(5),
            },
            Frame::PathPolicy {
                path: PathId(1),
                number: 3,
                wish: PathWish {
                    backup: true,
                    metered: true,
                    weight: 500,
                    priority: 2,
                    cap: 20_000,
                },
            },
            Frame::Probe(Probe {
                id: 70,
                index: 3,
                count: 32,
                wish: Wish::InAnyCase,
            }),
            Frame::ProbeReport {
                path: PathId(2),
                report: Report {
                    id: 70,
                    packets: 32,
                    bytes: 45_000,
                    spacing: Duration::from_nanos(376_123),
                },
            },
            Frame::Datagram(b"dgram"),
            Frame::DatagramCopy {
                number: 70_000,
                data: b"again",
            },
            Frame::DatagramFragment {
                id: 1,
                offset: 1_400,
                total: 3_000,
                data: b"part",
            },
            Frame::Ack(AckFrame {
                path: PathId(2),
                delay: Duration::from_micros(130),
                largest_at: Instant::from_micros(123_456_789),
                ranges: vec![90..=100, 80..=85, 3..=3],
                times: vec![Duration::from_micros(12), Duration::from_micros(240)],
            }),
            Frame::Shed(AckFrame {
                path: PathId(1),
                delay: Duration::ZERO,
                largest_at: Instant::from_micros(987_654),
                ranges: vec![20..=21, 4..=9],
                times: Vec::new(),
            }),
        ]
    }

    #[test]
    fn frames_survive_the_wire() {
        let mut out = Vec::new();
        for frame in samples() {
            frame.emit(&mut out);
        }
        let mut cursor = Cursor::new(&out);
        for frame in samples() {
            assert_eq!(parse_frame(&mut cursor), Ok(frame));
        }
        assert!(cursor.is_empty());
    }

    #[test]
    fn stream_headers_survive_at_every_size() {
        for id in [0, 255, 256, 65_536, 1 << 24] {
            for offset in [0, 1, 0xff_ffff, 0x100_0000, 1 << 40, 1 << 61] {
                for (fin, with_len) in [(false, false), (true, true)] {
                    let header = StreamHeader {
                        id: StreamId(id),
                        offset,
                        fin,
                    };
                    let mut out = Vec::new();
                    header.emit(with_len.then_some(4), &mut out);
                    assert_eq!(out.len(), header.size(with_len));
                    out.extend_from_slice(b"data");
                    let parsed = parse_frame(&mut Cursor::new(&out));
                    assert_eq!(
                        parsed,
                        Ok(Frame::Stream {
                            header,
                            data: b"data"
                        })
                    );
                }
            }
        }
    }

    #[test]
    fn any_prefix_and_any_flipped_byte_parse_or_fail_but_never_panic() {
        let mut out = Vec::new();
        for frame in samples() {
            frame.emit(&mut out);
        }
        for cut in 0..out.len() {
            super::super::fuzz_decoders(&out[..cut]);
            let mut flipped = out.clone();
            for bit in 0..8 {
                flipped[cut] ^= 1 << bit;
                super::super::fuzz_decoders(&flipped);
            }
        }
    }
}
