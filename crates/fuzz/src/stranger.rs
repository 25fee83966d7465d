//! A relay that anybody may write to: anything, and what a real client sends, changed or repeated.
//!
//! Input: records of an operation, an operand and for some a payload. The client is at one address
//! and hears its answers; strangers have three others and hear none, so none is ever proved: to
//! each goes at most three times what came from it, beyond the 600 bytes of docs/security.md.

use std::net::SocketAddr;

use tabane_base::{Duration, Instant};
use tabane_core::{
    Endpoint, FourTuple, Identity, PublicKey, ServerConfig, SessionConfig, SocketId, TransmitBatch,
};

const ALLOWANCE: usize = 600;
const ADDRESSES: usize = 4;

pub(crate) struct Relay {
    pub(crate) now: Instant,
    pub(crate) relay: Endpoint,
    pub(crate) key: PublicKey,
    pub(crate) client: Endpoint,
    /// What the client has sent, in order; strangers have seen all of it.
    pub(crate) sent: Vec<Vec<u8>>,
    /// Bytes that came from each address, and that went there.
    came: [usize; ADDRESSES],
    pub(crate) went: [usize; ADDRESSES],
}

fn server() -> SocketAddr {
    SocketAddr::from(([10, 78, 0, 1], 4_510))
}

pub(crate) fn at_client() -> FourTuple {
    FourTuple {
        socket: SocketId(0),
        local_ip: None,
        remote: server(),
    }
}

pub(crate) fn from(n: usize) -> FourTuple {
    FourTuple {
        socket: SocketId(100),
        local_ip: Some(server().ip()),
        remote: SocketAddr::from(([10, 0, n as u8, 2], 4_000)),
    }
}

impl Relay {
    pub(crate) fn new() -> Self {
        let identity = Identity::from_seed([1; 32]);
        let key = identity.public_key();
        let config = SessionConfig::default();
        let relay = Endpoint::server(identity, config.clone(), ServerConfig::default(), [2; 32]);
        let me = Identity::from_seed([3; 32]);
        let mut client = Endpoint::client(me, config, [4; 32]).expect("valid");
        let now = Instant::from_millis(1_000);
        let _ = client.connect(now, key, None, vec![at_client()]);
        let mut world = Self {
            now,
            relay: relay.expect("valid"),
            key,
            client,
            sent: Vec::new(),
            came: [0; ADDRESSES],
            went: [0; ADDRESSES],
        };
        world.speak();
        world
    }

    /// A datagram reaches the relay, and what it answers its client.
    pub(crate) fn hear(&mut self, n: usize, mut datagram: Vec<u8>) {
        self.came[n] += datagram.len();
        let now = self.now;
        self.relay.handle_datagram(now, from(n), &mut datagram);
        self.answer();
    }

    pub(crate) fn answer(&mut self) {
        let batch = everything(&mut self.relay, self.now);
        for (tuple, mut datagram) in batch {
            let to = (0..ADDRESSES).find(|&n| from(n).remote == tuple.remote);
            let n = to.expect("an answer to an address that never wrote");
            self.went[n] += datagram.len();
            if n == 0 {
                let now = self.now;
                self.client.handle_datagram(now, at_client(), &mut datagram);
                continue;
            }
            let (went, came) = (self.went[n], self.came[n]);
            assert!(
                went <= 3 * came + ALLOWANCE,
                "{went} bytes for {came} from a stranger"
            );
        }
    }

    pub(crate) fn speak(&mut self) {
        let datagrams = everything(&mut self.client, self.now);
        self.sent
            .extend(datagrams.into_iter().map(|(_, bytes)| bytes));
    }
}

/// Timers that are due, then all that an endpoint and its sessions have to send.
pub(crate) fn everything(endpoint: &mut Endpoint, now: Instant) -> Vec<(FourTuple, Vec<u8>)> {
    let mut batch = TransmitBatch::new(20_000);
    endpoint.poll_transmit(now, &mut batch);
    for handle in endpoint.handles() {
        if let Some(session) = endpoint.session_mut(handle) {
            session.handle_timeout(now);
            while session.poll_transmit(now, &mut batch) {}
        }
    }
    let pieces = batch.iter().flat_map(|transmit| {
        let datagrams = transmit.contents.chunks(transmit.segment_size);
        datagrams.map(move |datagram| (transmit.tuple, datagram.to_vec()))
    });
    pieces.collect()
}

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut world = Relay::new();
    let mut rest = data;
    while let [operation, operand, tail @ ..] = rest {
        rest = tail;
        let stranger = 1 + usize::from(operation >> 2) % (ADDRESSES - 1);
        let chosen = usize::from(*operand) % world.sent.len().max(1);
        match operation % 4 {
            0 => {
                let (payload, after) = tail.split_at((usize::from(*operand) * 6).min(tail.len()));
                rest = after;
                world.hear(stranger, payload.to_vec());
            }
            // What the client sent, with some bytes changed, from elsewhere.
            1 => {
                let (changes, after) = tail.split_at(tail.len().min(4));
                rest = after;
                let Some(mut datagram) = world.sent.get(chosen).cloned() else {
                    continue;
                };
                for pair in changes.chunks_exact(2) {
                    let at = usize::from(pair[0]) % datagram.len();
                    datagram[at] ^= pair[1];
                }
                world.hear(stranger, datagram);
            }
            2 => {
                if let Some(datagram) = world.sent.get(chosen).cloned() {
                    world.hear(0, datagram);
                }
            }
            _ => {
                world.now += Duration::from_millis(u64::from(*operand) * 10);
                world.answer();
            }
        }
        world.speak();
    }
}
