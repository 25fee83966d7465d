//! Frames onto the wire.

use std::ops::RangeInclusive;

use tabane_base::{Duration, Instant};

use super::{Frame, kind, policy_bit};
use crate::id::PathId;
use crate::policy::PathWish;
use crate::probe::{Probe, Report};
use crate::wire::VARINT_MAX;
use crate::wire::class::emit_class;
use crate::wire::cursor::{put_varint, varint_len};

impl Frame<'_> {
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
            Self::StreamHold { id, number, at } => {
                let at = at.map_or(0, |at| at + 1);
                put(out, kind::STREAM_HOLD, &[id.0, number, at]);
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
    nanos.min(VARINT_MAX)
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
