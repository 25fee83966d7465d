//! First packets as anybody can make them: their keys follow from the attempt's id, which stands
//! there in clear [P-3.1].
//!
//! For the simulator's adversary and for fuzzing. No session uses it.

use rustls::Side;

use crate::crypto::seal;
use crate::id::{AttemptId, ConnectionId, PacketNumber};
use crate::tls::initial_keys;
use crate::wire::{HANDSHAKE_PN_LEN, LongHeader, LongKind, MIN_INITIAL_SIZE};

/// With its header, the size that a client's first packet must have.
pub const FIRST_SIZE: usize = MIN_INITIAL_SIZE;

/// A first packet with `frames`, filled up to `size` bytes of them, as one of the server's or of
/// the client's. Those of clients are looked at from [`FIRST_SIZE`] on.
#[must_use]
pub fn forge_first_packet(
    attempt: [u8; 8],
    by_server: bool,
    number: u32,
    frames: &[u8],
    size: usize,
) -> Vec<u8> {
    let side = match by_server {
        true => Side::Server,
        false => Side::Client,
    };
    let attempt = AttemptId(u64::from_be_bytes(attempt));
    let header = LongHeader {
        kind: LongKind::Initial { token: Vec::new() },
        attempt,
        source: ConnectionId(number),
        pn_offset: 0,
        end: 0,
    };
    let mut packet = Vec::new();
    let length = frames.len().max(size);
    let number_at = header.emit(&mut packet, number, length);
    packet.extend_from_slice(frames);
    packet.resize(packet.len() + length - frames.len(), 0);
    let keys = initial_keys(attempt.0, side).local;
    let at = (number_at, HANDSHAKE_PN_LEN);
    let place = (None, PacketNumber(number.into()));
    seal(&*keys.header, &*keys.packet, &mut packet, 0, at, place);
    packet
}
