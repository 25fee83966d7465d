//! Frames survive the wire, and nothing that comes off it panics.

use super::*;
use crate::probe::Wish;
use crate::wire::Cursor;

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
        Frame::StreamHold {
            id,
            number: 7,
            at: Some(0),
        },
        Frame::StreamHold {
            id,
            number: 8,
            at: None,
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
        crate::fuzz_decoders(&out[..cut]);
        let mut flipped = out.clone();
        for bit in 0..8 {
            flipped[cut] ^= 1 << bit;
            crate::fuzz_decoders(&flipped);
        }
    }
}
