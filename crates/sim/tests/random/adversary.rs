//! Somebody who sits on one link, sees what passes there, and says what he likes to both ends.
//!
//! He has no keys: what he can do is repeat, change and make up. Whatever he does costs at most the
//! link [P-1.2]; the checks are those of everybody.

use std::net::SocketAddr;

use tabane_base::Rng;
use tabane_core::FourTuple;
use tabane_sim::{Captured, LinkId, Side, World};

/// Of what passed, so many packets are used at once.
const AT_ONCE: usize = 24;

/// What he does with them.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Trick {
    /// The same again.
    Replay,
    /// The same from another address, as if the other end had moved.
    Elsewhere,
    /// With some bytes of his own.
    Change { at: u64, by: u8 },
    /// Cut.
    Cut(u64),
    /// Two in one datagram.
    Join,
    /// What everybody may send: another version, a reset, a retry, under the names he has seen.
    Forge { first: u8, fill: u8 },
    /// What went one way goes back.
    Reflect,
}

impl Trick {
    pub(crate) fn draw(rng: &mut Rng) -> Self {
        match rng.below(7) {
            0 => Self::Replay,
            1 => Self::Elsewhere,
            2 => Self::Change {
                at: rng.next_u64(),
                by: 1 + rng.below(255) as u8,
            },
            3 => Self::Cut(rng.next_u64()),
            4 => Self::Join,
            5 => Self::Forge {
                first: rng.next_u64() as u8,
                fill: rng.next_u64() as u8,
            },
            _ => Self::Reflect,
        }
    }
}

/// Does it with what has passed on `link` towards `to` since he acted last.
pub(crate) fn act(world: &mut World, link: LinkId, to: Side, trick: &Trick) {
    let seen = world.network_mut().take_captured();
    world.network_mut().capture();
    let (client, server) = (
        world.network().client_tuple(link),
        world.network().server_tuple(link),
    );
    let is_ours = |packet: &&Captured| match packet.to {
        Side::Client => packet.tuple.socket == client.socket,
        Side::Server => packet.tuple.remote == server.remote,
    };
    let towards = match trick {
        Trick::Reflect => other(to),
        _ => to,
    };
    let seen: Vec<_> = seen.iter().filter(is_ours).collect();
    let seen = seen.iter().filter(|packet| packet.to == towards);
    let seen: Vec<Vec<u8>> = seen
        .map(|packet| packet.data.clone())
        .take(AT_ONCE)
        .collect();
    let tuple = match to {
        Side::Client => client,
        Side::Server => server,
    };
    for (place, packet) in seen.iter().enumerate() {
        let next = seen.get(place + 1).map_or(&[][..], |next| next);
        let (tuple, packet) = turn(tuple, packet, next, trick);
        world.inject(to, tuple, packet);
    }
}

fn turn(tuple: FourTuple, packet: &[u8], next: &[u8], trick: &Trick) -> (FourTuple, Vec<u8>) {
    let mut data = packet.to_vec();
    let mut tuple = tuple;
    match *trick {
        Trick::Replay | Trick::Reflect => {}
        Trick::Elsewhere => tuple.remote = SocketAddr::from(([203, 0, 113, 9], 666)),
        Trick::Change { at, by } => {
            let at = (at % data.len().max(1) as u64) as usize;
            data.iter_mut()
                .skip(at)
                .take(3)
                .for_each(|byte| *byte ^= by);
        }
        Trick::Cut(at) => data.truncate((at % data.len().max(1) as u64) as usize),
        Trick::Join => data.extend_from_slice(next),
        Trick::Forge { first, fill } => {
            // Its names stay where they are.
            data[0] = first;
            data.iter_mut().skip(24).for_each(|byte| *byte = fill);
        }
    }
    (tuple, data)
}

const fn other(side: Side) -> Side {
    match side {
        Side::Client => Side::Server,
        Side::Server => Side::Client,
    }
}
