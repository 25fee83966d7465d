//! What a flow takes, and that no mobile host has what is others'.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use tabane_base::Bytes;

use super::*;
use crate::copies::{Held, MAX_BARE_RANGES, OVERHEAD};
use crate::{Blocks, Manner, Segment, Seq};

/// Ten thousand flows must not be a matter of memory: what a flow takes beside its copies.
#[test]
fn a_flow_takes_less_than_two_kilobytes() {
    // A deque grows by doubling from a power of two; tree nodes are at least half full.
    let ranges = MAX_BARE_RANGES.next_power_of_two() * size_of::<Held>();
    let nodes = 2 * (size_of::<(Key, Entry)>() + size_of::<(Instant, Key)>());
    let size = size_of::<Flow>() + ranges + nodes;
    assert!(size <= 2_048, "{size}");
}

const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 80);

fn assisting(config: Config) -> Gateway {
    Gateway::new(Config {
        mode: Mode::Assist,
        ..config
    })
}

fn host(n: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, n).into()
}

fn pass(
    gateway: &mut Gateway,
    mobile: SocketAddr,
    (from, flags): (Side, Flags),
    (seq, ack): (u32, u32),
    payload: &[u8],
) {
    let (source, destination) = match from {
        Side::Wired => (SERVER, mobile),
        Side::Radio => (mobile, SERVER),
    };
    let segment = Segment {
        source,
        destination,
        manner: Manner::PLAIN,
        seq: Seq(seq),
        ack: Seq(ack),
        flags,
        window: 60_000,
        timestamps: None,
        sack: Blocks::default(),
        payload,
    };
    gateway.handle_packet(
        Instant::from_millis(1),
        from,
        &segment.emit(),
        Checksum::Known,
    );
}

fn syn(gateway: &mut Gateway, mobile: SocketAddr) {
    pass(gateway, mobile, (Side::Radio, Flags::SYN), (1_000, 0), &[]);
}

/// A connection from its SYN to the server's first bytes; whether it is assisted.
fn connect(gateway: &mut Gateway, mobile: SocketAddr, bytes: usize) -> bool {
    let ack = Flags::ACK;
    syn(gateway, mobile);
    pass(
        gateway,
        mobile,
        (Side::Wired, Flags::SYN.with(ack)),
        (5_000, 1_001),
        &[],
    );
    pass(gateway, mobile, (Side::Radio, ack), (1_001, 5_001), &[]);
    let payload = vec![7; bytes];
    pass(
        gateway,
        mobile,
        (Side::Wired, ack),
        (5_001, 1_001),
        &payload,
    );
    let mut flows = gateway.flows();
    flows.any(|flow| flow.key.mobile == mobile && flow.stance == Stance::Assisting)
}

#[test]
fn packets_of_no_connection_keep_no_other_host_s_connections_from_being_assisted() {
    let mut gateway = assisting(Config {
        max_flows: 64,
        ..Config::default()
    });
    for port in 1..10_000 {
        let at = SocketAddr::new(host(1), port);
        pass(&mut gateway, at, (Side::Radio, Flags::ACK), (9, 9), &[]);
    }
    for n in 2..32 {
        assert!(connect(&mut gateway, (host(n), 1).into(), 10), "{n}");
    }
    // Whoever has flooded finds no room itself until its own are forgotten.
    assert!(!connect(&mut gateway, (host(1), 10_000).into(), 10));
    gateway.handle_timeout(Instant::from_millis(400_000));
    assert!(connect(&mut gateway, (host(1), 10_000).into(), 10));
}

#[test]
fn handshakes_of_one_host_end_none_of_another_s() {
    let mut gateway = assisting(Config {
        max_opening: 64,
        ..Config::default()
    });
    syn(&mut gateway, (host(2), 1).into());
    for port in 1..10_000 {
        syn(&mut gateway, (host(1), port).into());
    }
    assert_eq!(gateway.snapshot().opening, 64);
    let ack = Flags::ACK;
    let mobile = (host(2), 1).into();
    let answer = (Side::Wired, Flags::SYN.with(ack));
    pass(&mut gateway, mobile, answer, (5_000, 1_001), &[]);
    pass(
        &mut gateway,
        mobile,
        (Side::Radio, ack),
        (1_001, 5_001),
        &[],
    );
    assert_eq!(
        (gateway.snapshot().opening, gateway.snapshot().flows),
        (63, 1)
    );
}

/// A server that sends byte by byte, out of order or not: what a copy costs besides is memory, too,
/// and each acknowledgement looks at all copies.
#[test]
fn copies_of_single_bytes_are_few_and_take_room_as_others_do() {
    let of = |gateway: &mut Gateway, port| {
        let mobile = SocketAddr::new(host(1), port);
        assert!(connect(gateway, mobile, 1));
        for byte in 1..60_000 {
            let at = (5_001 + byte, 1_001);
            pass(gateway, mobile, (Side::Wired, Flags::ACK), at, b"x");
        }
        gateway.snapshot().held
    };
    let mut gateway = assisting(Config::default());
    let (one, most) = (of(&mut gateway, 1), Config::default().copies_per_flow.get());
    let copies = one / (1 + OVERHEAD as u64);
    assert!(
        (4_000..8_000).contains(&copies) && one < most,
        "{copies} in {one}"
    );
    assert_eq!(of(&mut gateway, 2), 2 * one);
}

#[test]
fn a_host_that_acknowledges_nothing_leaves_room_for_copies_to_others() {
    // In two segments.
    let each = 1_000 + 2 * OVERHEAD as u64;
    let mut gateway = assisting(Config {
        copies_total: Bytes::new(64 * each),
        ..Config::default()
    });
    for port in 1..100 {
        connect(&mut gateway, (host(1), port).into(), 1_000);
    }
    assert_eq!(gateway.snapshot().held, 32 * each);
    for n in 2..10 {
        connect(&mut gateway, (host(n), 1).into(), 1_000);
    }
    assert_eq!(gateway.snapshot().held, 40 * each);
}
