//! A session whose peer has been let in and says what it likes, on a wire that loses and delays.
//!
//! Input: records of an operation and its operands. Both ends are real; besides what they say to
//! each other, either hears frames that nobody sent.

use std::net::SocketAddr;

use tabane_base::{Duration, Instant};
use tabane_core::{
    DatagramOrder, Endpoint, Event, FlowId, FourTuple, Identity, ReadState, ServerConfig, Session,
    SessionConfig, SessionHandle, SocketId, StreamId, TransmitBatch,
};

const SERVER: SocketId = SocketId(100);

struct Pair {
    now: Instant,
    /// The client and the relay.
    ends: [Endpoint; 2],
    handles: [Option<SessionHandle>; 2],
    /// To which end, from which of the client's addresses, and what.
    wire: Vec<(usize, u32, Vec<u8>)>,
    streams: Vec<StreamId>,
}

fn address(n: u32) -> SocketAddr {
    SocketAddr::from(([10, 0, n as u8, 2], 4_000))
}

fn tuple(end: usize, n: u32) -> FourTuple {
    let server = SocketAddr::from(([10, 78, 0, 1], 4_510));
    match end {
        0 => FourTuple {
            socket: SocketId(n),
            local_ip: None,
            remote: server,
        },
        _ => FourTuple {
            socket: SERVER,
            local_ip: Some(server.ip()),
            remote: address(n),
        },
    }
}

impl Pair {
    fn connected() -> Self {
        let relay = Identity::from_seed([1; 32]);
        let key = relay.public_key();
        let config = SessionConfig::default();
        let server = Endpoint::server(relay, config.clone(), ServerConfig::default(), [2; 32]);
        let mut client =
            Endpoint::client(Identity::from_seed([3; 32]), config, [4; 32]).expect("valid");
        let now = Instant::from_millis(1_000);
        let links = vec![tuple(0, 0), tuple(0, 1)];
        let handle = client.connect(now, key, None, links).expect("links");
        let mut pair = Self {
            now,
            ends: [client, server.expect("valid")],
            handles: [Some(handle), None],
            wire: Vec::new(),
            streams: Vec::new(),
        };
        // As many rounds as the handshake takes: they cost more than most inputs do.
        for round in 0..20 {
            if round > 0 && pair.wire.is_empty() {
                break;
            }
            pair.pass(Duration::from_millis(5), usize::MAX);
        }
        pair
    }

    fn session(&mut self, end: usize) -> Option<&mut Session> {
        let handle = self.handles[end]?;
        self.ends[end].session_mut(handle)
    }

    /// Time goes on; the first `deliver` datagrams on the wire arrive and the others never do.
    fn pass(&mut self, span: Duration, deliver: usize) {
        self.now += span;
        let now = self.now;
        for (end, n, mut datagram) in std::mem::take(&mut self.wire).into_iter().take(deliver) {
            self.ends[end].handle_datagram(now, tuple(end, n), &mut datagram);
        }
        self.handles[1] = self.handles[1].or_else(|| self.ends[1].poll_incoming());
        for end in 0..2 {
            if let Some(session) = self.session(end) {
                session.handle_timeout(now);
                while let Some(event) = session.poll_event() {
                    if matches!(event, Event::Authorise { .. }) {
                        session.admit(now);
                    }
                }
            }
            self.send(end);
        }
    }

    fn send(&mut self, end: usize) {
        let now = self.now;
        let mut batch = TransmitBatch::new(20_000);
        self.ends[end].poll_transmit(now, &mut batch);
        if let Some(session) = self.session(end) {
            // No room on the wire for more than this; a session that never stops is a fault.
            for turn in 0.. {
                assert!(
                    turn < 100_000,
                    "a session that always has something to send"
                );
                if !session.poll_transmit(now, &mut batch) {
                    break;
                }
            }
        }
        for transmit in batch.iter() {
            let n = match end {
                0 => transmit.tuple.socket.0,
                _ => u32::from(transmit.tuple.remote.ip() == address(1).ip()),
            };
            for datagram in transmit.contents.chunks(transmit.segment_size) {
                if self.wire.len() < 1_000 {
                    self.wire.push((1 - end, n, datagram.to_vec()));
                }
            }
        }
    }

    fn read(&mut self, end: usize, most: usize) {
        let now = self.now;
        for id in self.streams.clone() {
            let Some(session) = self.session(end) else {
                return;
            };
            if let Ok(ReadState::Data(data)) = session.peek(id) {
                let n = data.len().min(most);
                session.consume(now, id, n);
            }
        }
    }
}

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut pair = Pair::connected();
    let mut rest = data;
    while let [operation, operand, tail @ ..] = rest {
        let end = usize::from(operation & 1);
        let now = pair.now;
        rest = tail;
        match (operation >> 1) % 8 {
            0 | 1 => {
                let payload = &tail[..(usize::from(*operand) * 5).min(tail.len())];
                rest = &tail[payload.len()..];
                if let Some(session) = pair.session(end) {
                    session.fuzz_frames(now, payload);
                }
            }
            2 => pair.pass(Duration::from_millis(u64::from(*operand)), usize::MAX),
            3 => pair.pass(Duration::from_millis(7), usize::from(*operand)),
            4 => {
                if let Some(Ok(id)) = pair.session(end).map(|session| session.open_stream(now)) {
                    pair.streams.push(id);
                }
            }
            5 => {
                let chosen = usize::from(*operand) % pair.streams.len().max(1);
                if let Some(id) = pair.streams.get(chosen).copied()
                    && let Some(session) = pair.session(end)
                {
                    let _ = session.write(now, id, &[7; 5_000]);
                    if operand & 0x80 != 0 {
                        let _ = session.finish(now, id);
                    }
                }
            }
            6 => pair.read(end, usize::from(*operand) * 100),
            _ => {
                if let Some(session) = pair.session(end) {
                    let flow = FlowId(u64::from(operand & 3));
                    let contents = vec![9; usize::from(*operand) * 10];
                    let _ = session.send_datagram(now, flow, DatagramOrder::AtOnce, &contents);
                }
            }
        }
    }
    for _ in 0..5 {
        pair.pass(Duration::from_secs(1), usize::MAX);
    }
}
