//! Handshake messages behind valid protection: the keys of first packets are anybody's [P-3.1].
//!
//! Input: records of an operation and its operands. Strangers make first packets with frames of
//! their choice, or with pieces of a real ClientHello, cut, shifted and changed; and forge the
//! relay's for a client. Whatever they do, the relay lets a newcomer in afterwards, and sends no
//! stranger more than `stranger` allows.

use std::net::SocketAddr;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::quic::{ClientConnection, Version};
use tabane_base::Duration;
use tabane_core::{
    Endpoint, Event, FIRST_SIZE, FourTuple, Identity, Session, SessionConfig, forge_first_packet,
    tls_client_config,
};

use crate::stranger::{Relay, at_client, everything, from};

const ATTEMPT: usize = 8;
const CRYPTO: u8 = 6;
/// A newcomer is in after so many exchanges of 20 ms, proof of its address included.
const EXCHANGES: u32 = 200;

/// What a client of somebody's says first, in TLS.
fn client_hello() -> Vec<u8> {
    let config = tls_client_config(&Identity::from_seed([9; 32]), None).expect("sound");
    let name = ServerName::try_from("relay.tabane").expect("a name");
    let client = ClientConnection::new(Arc::new(config), Version::V1, name, Vec::new());
    let mut hello = Vec::new();
    client.expect("sound").write_hs(&mut hello);
    hello
}

/// A CRYPTO frame with a piece of `hello`: from, length, shift and change by the operands.
fn piece(hello: &[u8], [start, length, shift, change]: [u8; 4]) -> Vec<u8> {
    let start = usize::from(start) * 2 % hello.len();
    let end = (start + 1 + usize::from(length) * 2).min(hello.len());
    let mut data = hello[start..end].to_vec();
    let at = usize::from(change) % data.len();
    data[at] ^= change;
    // A varint of two bytes each (RFC 9000 §16).
    let offset = 0x4000 | (start + usize::from(shift)) as u16 & 0x3fff;
    let mut frame = vec![CRYPTO];
    frame.extend(offset.to_be_bytes());
    frame.extend((0x4000 | data.len() as u16).to_be_bytes());
    frame.extend(data);
    frame
}

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut world = Relay::new();
    let hello = client_hello();
    let seen: [u8; ATTEMPT] = world.sent[0][5..5 + ATTEMPT].try_into().expect("eight");
    let mut number = 0_u32;
    let mut rest = data;
    while let [operation, operand, tail @ ..] = rest {
        rest = tail;
        number += 1;
        let stranger = 1 + usize::from(operation >> 2) % 3;
        let attempt = match operand {
            0..64 => seen,
            other => [*other; ATTEMPT],
        };
        let mut take = |count: usize| {
            let (taken, after) = rest.split_at(count.min(rest.len()));
            rest = after;
            taken
        };
        match operation % 4 {
            0 => {
                let frames = take(usize::from(*operand));
                world.hear(
                    stranger,
                    forge_first_packet(attempt, false, number, frames, FIRST_SIZE),
                );
            }
            1 => {
                let how = take(4).try_into().unwrap_or([0, 0xff, 0, 0]);
                let frames = piece(&hello, how);
                world.hear(
                    stranger,
                    forge_first_packet(attempt, false, number, &frames, FIRST_SIZE),
                );
            }
            2 => {
                let frames = take(usize::from(*operand));
                let mut forged = forge_first_packet(seen, true, number, frames, FIRST_SIZE);
                let now = world.now;
                world.client.handle_datagram(now, at_client(), &mut forged);
            }
            _ => {
                world.now += Duration::from_millis(u64::from(*operand) * 10);
                world.answer();
            }
        }
        world.speak();
    }
    assert!(newcomer_is_in(&mut world), "the relay lets nobody in");
}

/// Whether a client from an address that nobody has used is let in.
fn newcomer_is_in(world: &mut Relay) -> bool {
    let me = Identity::from_seed([5; 32]);
    let mut client = Endpoint::client(me, SessionConfig::default(), [6; 32]).expect("valid");
    let here = FourTuple {
        remote: SocketAddr::from(([10, 9, 0, 2], 4_000)),
        ..from(0)
    };
    let opened = client.connect(world.now, world.key, None, vec![at_client()]);
    let handle = opened.expect("the first of its own");
    for _ in 0..EXCHANGES {
        for (_, mut datagram) in everything(&mut client, world.now) {
            world.relay.handle_datagram(world.now, here, &mut datagram);
        }
        admit_all(&mut world.relay, world.now);
        for (tuple, mut datagram) in everything(&mut world.relay, world.now) {
            if tuple.remote == here.remote {
                client.handle_datagram(world.now, at_client(), &mut datagram);
            }
        }
        let session = client.session_mut(handle).expect("not reaped");
        let mut events = std::iter::from_fn(|| session.poll_event());
        if events.any(|event| matches!(event, Event::Connected)) {
            return true;
        }
        world.now += Duration::from_millis(20);
    }
    false
}

fn admit_all(relay: &mut Endpoint, now: tabane_base::Instant) {
    for handle in relay.handles() {
        let Some(session) = relay.session_mut(handle) else {
            continue;
        };
        let asks = |session: &mut Session| {
            let mut events = std::iter::from_fn(|| session.poll_event());
            events.any(|event| matches!(event, Event::Authorise { .. }))
        };
        if asks(session) {
            session.admit(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Else nothing behind the protection would be reached.
    #[test]
    fn a_real_hello_in_pieces_is_answered_by_a_flight() {
        let mut world = Relay::new();
        let hello = client_hello();
        let before = world.went[1];
        for (number, start) in [(0, 0), (1, 60), (2, 120), (3, 180)] {
            let frames = piece(&hello, [start, 60, 0, 0]);
            let packet = forge_first_packet([77; ATTEMPT], false, number, &frames, FIRST_SIZE);
            world.hear(1, packet);
        }
        // A refusal is one packet of some 60 bytes.
        assert!(world.went[1] - before > 500, "{} bytes", world.went[1]);
    }
}
