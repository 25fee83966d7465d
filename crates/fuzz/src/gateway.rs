//! The cooperative gateway between two sides that send it anything, with time passing.
//!
//! Input: records of a control byte, a length and that many bytes of an IP packet, or of the copy
//! of one. Checksums of packets are taken for good, or nothing would get past them.

use tabane_base::{Duration, Instant};
use tabane_gateway::{Checksum, Config, Gateway, Side};

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut gateway = Gateway::new(Config::default());
    let mut now = Instant::from_millis(1_000);
    let mut rest = data;
    while let [control, length, tail @ ..] = rest {
        let packet = &tail[..usize::from(*length).min(tail.len())];
        rest = &tail[packet.len()..];
        let side = if control & 1 == 0 {
            Side::Wired
        } else {
            Side::Radio
        };
        now += Duration::from_millis(u64::from(control >> 1 & 0x3f) * 20);
        if gateway.poll_timeout().is_some_and(|at| at <= now) {
            gateway.handle_timeout(now);
        }
        // Of what a server sends, most comes as a copy: it has gone on already.
        match (side, control & 0x80) {
            (Side::Wired, 0x80) => gateway.handle_copy(now, packet),
            _ => _ = gateway.handle_packet(now, side, packet, Checksum::Known),
        }
        while gateway.poll_transmit().is_some() {}
    }
    gateway.drain();
    // Timers must come to an end: a flow is given up some day.
    for _ in 0..10_000 {
        let Some(at) = gateway.poll_timeout() else {
            break;
        };
        now = now.max(at);
        gateway.handle_timeout(now);
        while gateway.poll_transmit().is_some() {}
    }
    let _ = gateway.snapshot();
}
