//! What is told of a packet's frames: their types and places, no content.
//!
//! Made only while somebody records: nobody else pays for it.

use crate::id::StreamId;
use crate::wire::{AckFrame, Cursor, Frame, parse_frame};

/// A frame of a packet. What its type does not have is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TracedFrame {
    /// Its type's name, in the words of qlog where qlog has one.
    pub name: &'static str,
    /// Its type: its first byte.
    pub code: u8,
    /// The path it is about.
    pub path: Option<u32>,
    /// The stream it is about.
    pub stream: Option<u64>,
    /// Where its data begins in the stream.
    pub offset: Option<u64>,
    /// How many bytes of data it has; of padding, of all.
    pub length: Option<u64>,
    /// Whether its data is the stream's last.
    pub is_last: bool,
    /// The most that it allows, or the stream's size at its end.
    pub limit: Option<u64>,
    /// The reason that it gives.
    pub error: Option<u64>,
    /// How long an acknowledgement waited, in microseconds.
    pub delay_us: Option<u64>,
    /// What it acknowledges: runs of numbers, first and last.
    pub ranges: Vec<(u64, u64)>,
}

/// The frames of a packet's plain text, up to the first that is none.
pub(crate) fn traced_frames(payload: &[u8]) -> Vec<TracedFrame> {
    let mut frames = Vec::new();
    let mut cursor = Cursor::new(payload);
    while !cursor.is_empty() {
        let (before, code) = (cursor.len(), payload[payload.len() - cursor.len()]);
        let Ok(frame) = parse_frame(&mut cursor) else {
            break;
        };
        let size = (before - cursor.len()) as u64;
        frames.push(TracedFrame {
            code,
            ..traced(&frame, size)
        });
    }
    frames
}

fn traced(frame: &Frame<'_>, size: u64) -> TracedFrame {
    match frame {
        Frame::Padding => TracedFrame {
            length: Some(size),
            ..named("padding")
        },
        Frame::Ping => named("ping"),
        Frame::Ack(ack) => acknowledging("ack", ack),
        Frame::Shed(ack) => acknowledging("shed", ack),
        Frame::Stream { header, data } => TracedFrame {
            stream: Some(header.id.get()),
            offset: Some(header.offset),
            is_last: header.fin,
            ..with_data("stream", data)
        },
        Frame::ResetStream {
            id,
            code,
            final_size,
        } => TracedFrame {
            limit: Some(*final_size),
            ..refusing(*id, "reset_stream", *code)
        },
        Frame::StopSending { id, code } => refusing(*id, "stop_sending", *code),
        Frame::MaxStreamData { id, max } => TracedFrame {
            limit: Some(*max),
            ..of_stream(*id, "max_stream_data")
        },
        Frame::StreamHold { id, at, .. } => TracedFrame {
            limit: *at,
            ..of_stream(*id, "stream_hold")
        },
        Frame::StreamClass { id, .. } => of_stream(*id, "stream_class"),
        Frame::Crypto { offset, data } => TracedFrame {
            offset: Some(*offset),
            ..with_data("crypto", data)
        },
        Frame::MaxData(max) => limit("max_data", *max),
        Frame::MaxStreams(max) => limit("max_streams", *max),
        Frame::PathChallenge(_) => named("path_challenge"),
        Frame::PathResponse(_) => named("path_response"),
        Frame::Close { code, .. } => TracedFrame {
            error: Some(*code),
            ..named("connection_close")
        },
        Frame::Hello { .. } => named("hello"),
        Frame::Admitted => named("admitted"),
        Frame::GoAway => named("go_away"),
        Frame::PathAbandon(path) => about(path.get(), "path_abandon"),
        Frame::AckFrequency { path, .. } => about(path.get(), "ack_frequency"),
        Frame::PathPolicy { path, .. } => about(path.get(), "path_policy"),
        Frame::ProbeReport { path, .. } => about(path.get(), "probe_report"),
        Frame::Probe(_) => named("probe"),
        Frame::Class { .. } => named("class"),
        Frame::Datagram(data) => with_data("datagram", data),
        Frame::DatagramCopy { data, .. } => with_data("datagram_copy", data),
        Frame::DatagramFragment { data, .. } => with_data("datagram_fragment", data),
    }
}

fn named(name: &'static str) -> TracedFrame {
    TracedFrame {
        name,
        ..TracedFrame::default()
    }
}

fn with_data(name: &'static str, data: &[u8]) -> TracedFrame {
    TracedFrame {
        length: Some(data.len() as u64),
        ..named(name)
    }
}

fn limit(name: &'static str, limit: u64) -> TracedFrame {
    TracedFrame {
        limit: Some(limit),
        ..named(name)
    }
}

fn of_stream(id: StreamId, name: &'static str) -> TracedFrame {
    TracedFrame {
        stream: Some(id.get()),
        ..named(name)
    }
}

fn refusing(id: StreamId, name: &'static str, code: u64) -> TracedFrame {
    TracedFrame {
        error: Some(code),
        ..of_stream(id, name)
    }
}

fn about(path: u32, name: &'static str) -> TracedFrame {
    TracedFrame {
        path: Some(path),
        ..named(name)
    }
}

fn acknowledging(name: &'static str, ack: &AckFrame) -> TracedFrame {
    let ranges = ack.ranges.iter();
    TracedFrame {
        delay_us: u64::try_from(ack.delay.as_micros()).ok(),
        ranges: ranges.map(|run| (*run.start(), *run.end())).collect(),
        ..about(ack.path.get(), name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_frame_is_told_with_its_place_and_what_is_none_ends_the_list() {
        let mut payload = vec![0, 0, 0];
        Frame::Ping.emit(&mut payload);
        Frame::MaxData(7_000).emit(&mut payload);
        payload.push(0x7f);
        let frames = traced_frames(&payload);
        let names: Vec<(&str, u8)> = frames.iter().map(|it| (it.name, it.code)).collect();
        assert_eq!(names, [("padding", 0), ("ping", 1), ("max_data", 0x10)]);
        assert_eq!((frames[0].length, frames[2].limit), (Some(3), Some(7_000)));
    }
}
