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
            } => put(out, kind::RESET_STREAM, &[id.0, code, final_size]),
            Self::StopSending { id, code } => put(out, kind::STOP_SENDING, &[id.0, code]),
            Self::Crypto { offset, data } => put_data(out, kind::CRYPTO, &[offset], data),
            Self::MaxData(max) => put(out, kind::MAX_DATA, &[max]),
            Self::MaxStreamData { id, max } => put(out, kind::MAX_STREAM_DATA, &[id.0, max]),
            Self::MaxStreams(max) => put(out, kind::MAX_STREAMS, &[max]),
            Self::PathChallenge(data) => put_fixed(out, kind::PATH_CHALLENGE, data),
            Self::PathResponse(data) => put_fixed(out, kind::PATH_RESPONSE, data),
            Self::Close { code, text } => put_data(out, kind::CLOSE, &[code], text),
            Self::Hello { token } => put_data(out, kind::HELLO, &[], token),
            Self::Admitted => out.push(kind::ADMITTED),
            Self::GoAway => out.push(kind::GO_AWAY),
            Self::PathAbandon(path) => put(out, kind::PATH_ABANDON, &[path.0.into()]),
            Self::AckFrequency {
                path,
                packets,
                delay,
            } => {
                let fields = [path.0.into(), packets, micros(delay)];
                put(out, kind::ACK_FREQUENCY, &fields);
            }
            Self::PathPolicy { path, number, wish } => emit_policy(path, number, wish, out),
            Self::Probe(probe) => emit_probe(probe, out),
            Self::ProbeReport { path, report } => emit_report(path, report, out),
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
            } => emit_fragment(id, offset, total, data, out),
            Self::Stream { header, data } => {
                header.emit(Some(data.len()), out);
                out.extend_from_slice(data);
            }
            Self::Ack(ref ack) => {
                let head = (ack.path, ack.delay, ack.largest_at);
                emit_packets(kind::ACK, head, &ack.ranges, &ack.times, out);
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

/// `fields`, then the length of `data`, then `data`.
fn put_data(out: &mut Vec<u8>, kind: u8, fields: &[u64], data: &[u8]) {
    put(out, kind, fields);
    put_varint(out, data.len() as u64);
    out.extend_from_slice(data);
}

fn put_fixed(out: &mut Vec<u8>, kind: u8, data: [u8; 8]) {
    out.push(kind);
    out.extend_from_slice(&data);
}

fn emit_policy(path: PathId, number: u64, wish: PathWish, out: &mut Vec<u8>) {
    let PathWish {
        backup,
        metered,
        weight,
        priority,
        cap,
    } = wish;
    let flag = |is_set, bit| if is_set { bit } else { 0 };
    let flags = flag(backup, policy_bit::BACKUP) | flag(metered, policy_bit::METERED);
    let fields = [path.0.into(), number, flags, weight, priority, cap];
    put(out, kind::PATH_POLICY, &fields);
}

fn emit_probe(probe: Probe, out: &mut Vec<u8>) {
    let Probe {
        id,
        index,
        count,
        wish,
    } = probe;
    put(out, kind::PROBE, &[id, index, count, wish.to_wire()]);
}

fn emit_report(path: PathId, report: Report, out: &mut Vec<u8>) {
    let Report {
        id,
        packets,
        bytes,
        spacing,
    } = report;
    let fields = [path.0.into(), id, packets, bytes, nanos(spacing)];
    put(out, kind::PROBE_REPORT, &fields);
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
    put_data(out, kind::DATAGRAM_COPY, &[number], data);
}

/// Bytes before the data of a datagram that may come more than once.
pub(crate) const fn datagram_copy_header_len(number: u64, len: usize) -> usize {
    1 + varint_len(number) + varint_len(len as u64)
}

/// Appends a part of a datagram too large for one packet [P-7.3].
pub(crate) fn emit_fragment(id: u64, offset: u64, total: u64, data: &[u8], out: &mut Vec<u8>) {
    put_data(out, kind::DATAGRAM_FRAGMENT, &[id, offset, total], data);
}

/// Bytes before a whole datagram's data.
pub(crate) const fn datagram_header_len(len: usize) -> usize {
    1 + varint_len(len as u64)
}
