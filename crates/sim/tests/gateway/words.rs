//! What the gateway says to a server in a mobile host's name, what it takes for the mobile host's
//! own word, and what for a loss.

use tabane_base::{Duration, Instant};
use tabane_gateway::{Checksum, Flags, Gateway, Packet, Segment, Seq, Side, Verdict};

use super::bench::{Bench, config, segment};

#[test]
fn the_newest_segment_is_acknowledged_last_and_a_stall_shuts_the_window() {
    let mut bench = Bench::new(config());
    bench.open();
    for n in 0..15 {
        bench.data(5_001 + 500 * n, 500);
    }
    let said = bench.said();
    let last = said.last().expect("it speaks at once");
    assert_eq!(
        (last.0, last.3, last.4),
        (Side::Wired, Seq(5_001 + 7_000), 1_000)
    );
    bench.data(5_001 + 7_500, 500);
    bench.wait(Duration::from_millis(50));
    let said = bench.said();
    assert_eq!(
        said.last().map(|last| (last.3, last.4)),
        Some((Seq(13_001), 0)),
        "all, and no room"
    );
    let probe = bench.pass(
        Side::Wired,
        segment(Side::Wired, 13_000, 1_001, Flags::ACK, &[]),
    );
    assert_eq!(probe, Verdict::Drop);
    assert_eq!(
        bench.said().last().map(|last| last.4),
        Some(0),
        "a probe is answered from here"
    );
    let ack = bench.pass(
        Side::Radio,
        segment(Side::Radio, 1_001, 6_001, Flags::ACK, &[]),
    );
    let Verdict::Replace(update) = ack else {
        panic!("the window opens: {ack:?}");
    };
    let update = Packet::parse(&update).expect("it is ours");
    assert_eq!((update.ack(), update.window()), (Seq(13_001), 1_000));
    // Told once more when nothing is owed: the update may be lost.
    let all = segment(Side::Radio, 1_001, 13_001, Flags::ACK, &[]);
    assert!(matches!(bench.pass(Side::Radio, all), Verdict::Replace(_)));
    assert_eq!(bench.pass(Side::Radio, all), Verdict::Drop);
}

/// A SYN with the option that windows are in units of 2^`shift` bytes.
fn scaled(segment: Segment<'_>, shift: u8) -> Vec<u8> {
    let mut packet = segment.emit();
    packet.splice(40..40, [3, 3, shift, 0]);
    packet[32] = 6 << 4;
    packet[3] += 4;
    packet
}

/// Segments smaller than the window's unit move neither edge by themselves: what says nothing new
/// would be a duplicate, and three of them a loss to the server.
#[test]
fn small_segments_of_a_flow_with_coarse_windows_are_not_acknowledged_twice() {
    let mut bench = Bench::new(config());
    for (from, flags) in [
        (Side::Radio, Flags::SYN),
        (Side::Wired, Flags::SYN.with(Flags::ACK)),
    ] {
        let (seq, ack) = match from {
            Side::Radio => (1_000, 0),
            Side::Wired => (5_000, 1_001),
        };
        let syn = scaled(segment(from, seq, ack, flags, &[]), 9);
        let now = bench.now;
        bench
            .gateway
            .handle_packet(now, from, &syn, Checksum::Known);
    }
    let mut open = segment(Side::Radio, 1_001, 5_001, Flags::ACK, &[]);
    open.window = 16;
    bench.pass(Side::Radio, open);
    for n in 0..30 {
        bench.data(5_001 + 100 * n, 100);
    }
    let said: Vec<_> = bench.said().iter().map(|said| (said.3, said.4)).collect();
    assert!(said.len() > 3, "{said:?}");
    let repeated = said.windows(2).filter(|pair| pair[0] == pair[1]).count();
    assert_eq!(repeated, 0, "{said:?}");
}

/// A stack may leave a checksum for hardware to complete; nobody says so of a copy.
#[test]
fn a_checksum_that_is_only_begun_is_as_good_and_a_wrong_one_is_not() {
    let mut packet = segment(Side::Wired, 5_001, 1_001, Flags::ACK, b"data").emit();
    let addresses = [192, 0, 2, 1, 10, 0, 0, 2].chunks(2);
    let words = addresses.map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum = words.sum::<u32>() + 6 + 24;
    let begun = (sum % 65_535) as u16;
    let right = u16::from_be_bytes([packet[36], packet[37]]);
    for (checksum, whole, known) in [(right, true, false), (begun, true, true), (7, false, false)] {
        packet[36..38].copy_from_slice(&checksum.to_be_bytes());
        let parsed = Packet::parse(&packet).expect("it is one");
        assert_eq!(parsed.has_begun_checksum(), known);
        let mut gateway = Gateway::new(config());
        gateway.handle_copy(Instant::EPOCH, &packet);
        assert_eq!(gateway.snapshot().counters.malformed, u64::from(!whole));
    }
}

/// What the server repeats reaches the mobile host, which acknowledges it again: without SACK that
/// looks like a loss.
#[test]
fn echoes_of_what_the_server_sends_again_are_no_losses() {
    for repeated in [false, true] {
        let mut bench = Bench::new(config());
        bench.open();
        for n in 0..8 {
            bench.copy(5_001 + 500 * n, 500);
        }
        for n in 0..3 {
            if repeated {
                bench.copy(5_001 + 500 * n, 500);
            }
        }
        bench.said();
        for _ in 0..4 {
            let ack = segment(Side::Radio, 1_001, 7_001, Flags::ACK, &[]);
            bench.pass(Side::Radio, ack);
        }
        let copies = bench
            .said()
            .iter()
            .filter(|said| said.0 == Side::Radio)
            .count();
        assert_eq!(copies, usize::from(!repeated));
    }
}
