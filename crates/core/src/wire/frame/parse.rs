//! Frames off the wire.

use tabane_base::{Duration, Instant};

use super::{
    AckFrame, Frame, MAX_ACK_RANGES, MAX_ACK_TIMES, OFFSET_LEN, StreamHeader, kind, policy_bit,
    stream_bit,
};
use crate::id::{PathId, StreamId};
use crate::policy::PathWish;
use crate::probe::{Probe, Report, Wish};
use crate::wire::VARINT_MAX;
use crate::wire::class::{class_id, parse_class};
use crate::wire::cursor::{Cursor, Malformed};

/// Takes one frame off `cursor`; padding as one, however long: probes are hardly anything else.
pub(crate) fn parse_frame<'a>(cursor: &mut Cursor<'a>) -> Result<Frame<'a>, Malformed> {
    let first = cursor.u8()?;
    if first & kind::STREAM != 0 {
        return parse_stream(first, cursor);
    }
    Ok(match first {
        kind::PADDING => {
            cursor.skip(kind::PADDING);
            Frame::Padding
        }
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
        kind::CLOSE => Frame::Close {
            code: cursor.varint()?,
            text: cursor.prefixed()?,
        },
        kind::HELLO => Frame::Hello {
            token: cursor.prefixed()?,
        },
        kind::ADMITTED => Frame::Admitted,
        kind::GO_AWAY => Frame::GoAway,
        kind::CLASS => parse_class(cursor)?,
        kind::STREAM_CLASS => Frame::StreamClass {
            id: stream_id(cursor)?,
            number: cursor.varint()?,
            class: class_id(cursor)?,
        },
        kind::STREAM_HOLD => Frame::StreamHold {
            id: stream_id(cursor)?,
            number: cursor.varint()?,
            at: cursor.varint()?.checked_sub(1),
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
        _ => parse_of_path(first, cursor)?,
    })
}

/// A frame about a path.
fn parse_of_path<'a>(kind: u8, cursor: &mut Cursor<'a>) -> Result<Frame<'a>, Malformed> {
    Ok(match kind {
        kind::PATH_CHALLENGE => Frame::PathChallenge(cursor.array()?),
        kind::PATH_RESPONSE => Frame::PathResponse(cursor.array()?),
        kind::PATH_ABANDON => Frame::PathAbandon(PathId(cursor.varint_u32()?)),
        kind::ACK_FREQUENCY => Frame::AckFrequency {
            path: PathId(cursor.varint_u32()?),
            packets: cursor.varint()?,
            delay: Duration::from_micros(cursor.varint()?),
        },
        kind::PATH_POLICY => Frame::PathPolicy {
            path: PathId(cursor.varint_u32()?),
            number: cursor.varint()?,
            wish: parse_wish(cursor)?,
        },
        kind::PROBE => Frame::Probe(Probe {
            id: cursor.varint()?,
            index: cursor.varint()?,
            count: cursor.varint()?,
            wish: Wish::from_wire(cursor.varint()?),
        }),
        kind::PROBE_REPORT => Frame::ProbeReport {
            path: PathId(cursor.varint_u32()?),
            report: parse_report(cursor)?,
        },
        _ => return Err(Malformed),
    })
}

fn parse_wish(cursor: &mut Cursor<'_>) -> Result<PathWish, Malformed> {
    let flags = cursor.varint()?;
    Ok(PathWish {
        backup: flags & policy_bit::BACKUP != 0,
        metered: flags & policy_bit::METERED != 0,
        weight: cursor.varint()?,
        priority: cursor.varint()?,
        cap: cursor.varint()?,
    })
}

fn parse_report(cursor: &mut Cursor<'_>) -> Result<Report, Malformed> {
    Ok(Report {
        id: cursor.varint()?,
        packets: cursor.varint()?,
        bytes: cursor.varint()?,
        spacing: Duration::from_nanos(cursor.varint()?),
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
    if offset > VARINT_MAX - data.len() as u64 {
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
