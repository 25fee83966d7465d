//! What no well-behaved host sends, and what no well-behaved network does.

use std::net::{Ipv4Addr, SocketAddr};

use tabane_base::{Bytes, Duration, Instant, Rng};
use tabane_gateway::{
    Bypass, Checksum, Config, Flags, Gateway, Packet, Segment, Seq, Side, Stance, Verdict,
};
use tabane_netem::LinkConfig;
use tabane_sim::{Endpoint, Impairments, Passage, PassageLinks, TcpClient, TcpServer};

use super::bench::{Bench, MOBILE, SERVER, config, segment};
use super::{CONTENT, for_seeds};

#[test]
fn a_window_that_shrinks_takes_nothing_back_from_the_server() {
    let mut bench = Bench::new(config());
    bench.open();
    let edges = |bench: &mut Bench| -> Vec<u32> {
        let said = bench.said().into_iter();
        let edge = |said: (Side, Flags, Seq, Seq, u16)| said.3.0 + u32::from(said.4);
        said.map(edge).collect()
    };
    bench.data(5_001, 500);
    bench.data(5_501, 500);
    assert_eq!(edges(&mut bench), [13_001]);
    let shrunk = Segment {
        window: 2_000,
        ..segment(Side::Radio, 1_001, 6_001, Flags::ACK, &[])
    };
    bench.pass(Side::Radio, shrunk);
    bench.data(6_001, 500);
    bench.data(6_501, 500);
    bench.wait(Duration::from_millis(50));
    let after = edges(&mut bench);
    assert!(
        !after.is_empty() && after.iter().all(|edge| *edge == 13_001),
        "{after:?}"
    );
    // What was sent because the old window allowed it is carried, and repeated from here.
    bench.data(12_501, 500);
    assert!(edges(&mut bench).iter().all(|edge| *edge == 13_001));
    let ack = segment(Side::Radio, 1_001, 7_001, Flags::ACK, &[]);
    bench.pass(Side::Radio, ack);
    bench.data(7_001, 500);
    bench.data(7_501, 500);
    assert_eq!(edges(&mut bench).last(), Some(&15_001), "it opens again");
}

#[test]
fn segments_that_overlap_are_owed_once() {
    let mut bench = Bench::new(config());
    bench.open();
    bench.data(5_001, 500);
    bench.data(5_201, 600);
    bench.data(5_101, 900);
    bench.wait(Duration::from_millis(50));
    let acked = bench.said().last().map(|said| said.3);
    assert_eq!((acked, bench.gateway.owed()), (Some(Seq(6_001)), 1_000));
    // With what its three copies cost besides.
    assert_eq!(bench.gateway.snapshot().held, 1_000 + 3 * 192);
}

#[test]
fn a_mobile_host_that_is_gone_for_ever_ends_in_resets() {
    let mut bench = Bench::new(config());
    bench.open();
    bench.data(5_001, 500);
    bench.data(5_501, 500);
    bench.wait(Duration::from_millis(50));
    assert_eq!(bench.gateway.owed(), 1_000);
    bench.said();
    bench.wait(Duration::from_secs(290));
    let resent = bench.said();
    assert!((10..60).contains(&resent.len()), "{}", resent.len());
    assert!(
        resent
            .iter()
            .all(|said| said.0 == Side::Radio && said.2 == Seq(5_001))
    );
    bench.wait(Duration::from_secs(20));
    let resets: Vec<_> = bench
        .said()
        .into_iter()
        .filter(|said| said.1.has(Flags::RST))
        .collect();
    let ends: Vec<_> = resets.iter().map(|said| (said.0, said.2)).collect();
    assert_eq!(ends, [(Side::Wired, Seq(1_001)), (Side::Radio, Seq(5_001))]);
    let snapshot = bench.gateway.snapshot();
    assert_eq!(
        (snapshot.counters.reset, snapshot.held, snapshot.flows),
        (1, 0, 0)
    );
}

#[test]
fn flows_that_cannot_be_assisted_pass_untouched_and_are_counted_once() {
    let mut bench = Bench::new(config());
    for n in 0..3 {
        assert_eq!(bench.data(5_001 + n * 100, 100), Verdict::Accept);
        let ack = segment(Side::Radio, 1_001, 5_001, Flags::ACK, &[]);
        assert_eq!(bench.pass(Side::Radio, ack), Verdict::Accept);
    }
    let count = |bench: &Bench, why| bench.gateway.snapshot().counters.bypassed_for(why);
    assert_eq!(count(&bench, Bypass::MidFlow), 1);

    let mut bench = Bench::new(config());
    bench.pass(Side::Radio, segment(Side::Radio, 1_000, 0, Flags::SYN, &[]));
    bench.pass(
        Side::Radio,
        segment(Side::Radio, 1_001, 5_001, Flags::ACK, &[1]),
    );
    assert_eq!(
        count(&bench, Bypass::OneWay),
        1,
        "the answer went another way"
    );

    let mut bench = Bench::new(config());
    bench.pass(
        Side::Radio,
        segment(Side::Radio, 1_000, 0, Flags::SYN, b"early"),
    );
    assert_eq!(count(&bench, Bypass::FastOpen), 1);

    let excluded = Config {
        ports: vec![443],
        ..config()
    };
    let mut bench = Bench::new(excluded);
    bench.open();
    bench.data(5_001, 500);
    bench.data(5_501, 500);
    assert_eq!(
        (count(&bench, Bypass::Excluded), bench.said().len()),
        (1, 0)
    );
}

#[test]
fn urgent_data_ends_assistance_and_what_is_owed_is_still_delivered() {
    let mut bench = Bench::new(config());
    bench.open();
    bench.data(5_001, 500);
    bench.data(5_501, 500);
    bench.pass(
        Side::Wired,
        segment(
            Side::Wired,
            6_001,
            1_001,
            Flags::ACK.with(Flags::URG),
            &[1; 9],
        ),
    );
    bench.said();
    let owed = bench.gateway.owed();
    assert_eq!(owed, 500);
    bench.wait(Duration::from_secs(4));
    assert!(
        bench
            .said()
            .iter()
            .all(|said| said.0 == Side::Radio && said.2 == Seq(5_001))
    );
    bench.pass(
        Side::Radio,
        segment(Side::Radio, 1_001, 5_501, Flags::ACK, &[]),
    );
    let stance = bench.flow().stance;
    assert_eq!((bench.gateway.owed(), stance), (0, Stance::Watching));
    let real = segment(Side::Radio, 1_001, 6_010, Flags::ACK, &[]);
    assert_eq!(bench.pass(Side::Radio, real), Verdict::Accept);
}

/// A connection from its middle on: the mobile host asks for 5001 each second, the server repeats.
fn from_the_middle(repeated: &[u32], length: usize, seconds: u64) -> (u64, Vec<(Side, Seq)>) {
    let mut bench = Bench::new(config());
    for _ in 0..seconds {
        for seq in repeated {
            assert_eq!(bench.data(*seq, length), Verdict::Accept);
        }
        let ack = segment(Side::Radio, 1_001, 5_001, Flags::ACK, &[]);
        assert_eq!(bench.pass(Side::Radio, ack), Verdict::Accept);
        bench.wait(Duration::from_secs(1));
    }
    let said = bench.said();
    assert!(said.iter().all(|said| said.1.has(Flags::RST)));
    let count = bench.gateway.snapshot().counters.orphans_reset;
    (count, said.iter().map(|said| (said.0, said.2)).collect())
}

#[test]
fn what_a_killed_gateway_owes_is_noticed_and_both_ends_are_reset() {
    let resets = vec![(Side::Wired, Seq(1_001)), (Side::Radio, Seq(5_001))];
    let nothing = || (0, Vec::new());
    assert_eq!(
        from_the_middle(&[6_001, 6_501], 500, 15),
        (1, resets.clone())
    );
    assert_eq!(
        from_the_middle(&[6_000], 0, 15),
        (1, resets),
        "probes of the window"
    );
    assert_eq!(
        from_the_middle(&[6_001], 500, 5),
        nothing(),
        "too early to say"
    );
    assert_eq!(
        from_the_middle(&[5_001, 6_001], 500, 15),
        nothing(),
        "what is asked for comes"
    );
    assert_eq!(from_the_middle(&[5_000], 0, 15), nothing(), "a true probe");
}

/// A mobile host as kernels are: a packet without data is answered where its number lies outside
/// the window, and one within it is not.
#[derive(Clone, Copy)]
struct Kernel {
    /// What it has received.
    next: u32,
    window: u16,
    is_there: bool,
}

const STALLED: Kernel = Kernel {
    next: 5_001,
    window: 8_000,
    is_there: true,
};

impl Kernel {
    fn answer(self, seq: u32) -> Option<Segment<'static>> {
        // In what it has offered at some time, that is.
        let is_acceptable = (self.next..self.next + (1 << 27)).contains(&seq);
        let answer = Segment {
            window: self.window,
            ..segment(Side::Radio, 1_001, self.next, Flags::ACK, &[])
        };
        (self.is_there && !is_acceptable).then_some(answer)
    }
}

/// What comes of `probes`, each its number and how long after the one before it comes, when they
/// are the first that a gateway sees of a connection: resets counted and sent, and what the mobile
/// host was asked.
fn probed_from_the_middle(
    kernel: Kernel,
    probes: impl IntoIterator<Item = (u32, Duration)>,
) -> (u64, Vec<(Side, Seq)>, usize) {
    let mut bench = Bench::new(config());
    let (mut resets, mut questions) = (Vec::new(), 0);
    let mut hear = |bench: &mut Bench| {
        for (to, flags, seq, _, _) in bench.said() {
            if flags.has(Flags::RST) {
                resets.push((to, seq));
            } else {
                assert_eq!(to, Side::Radio, "the server is not asked");
                questions += 1;
                if let Some(answer) = kernel.answer(seq.0) {
                    assert_eq!(bench.pass(Side::Radio, answer), Verdict::Accept);
                }
            }
        }
    };
    for (seq, after) in probes {
        for _ in 0..after.as_millis() / 100 {
            bench.wait(Duration::from_millis(100));
            hear(&mut bench);
        }
        assert_eq!(bench.data(seq, 0), Verdict::Accept);
        if let Some(answer) = kernel.answer(seq) {
            assert_eq!(bench.pass(Side::Radio, answer), Verdict::Accept);
        }
        hear(&mut bench);
    }
    let count = bench.gateway.snapshot().counters.orphans_reset;
    (count, resets, questions)
}

#[test]
fn a_window_that_stays_shut_for_what_is_lost_ends_in_resets_and_no_other_does() {
    // Twice as long each time, and no longer than Linux's two minutes (RFC 6298 §5.5).
    let backed_off = |seq, first: u64, times: u32| {
        (0..times).map(move |n| (seq, Duration::from_secs((first << n.min(16)).min(120))))
    };
    let resets = vec![(Side::Wired, Seq(1_001)), (Side::Radio, Seq(5_001))];
    for (first, times) in [(1, 6), (30, 3), (120, 3)] {
        let (count, sent, _) = probed_from_the_middle(STALLED, backed_off(6_000, first, times));
        assert_eq!((count, &sent), (1, &resets), "probes from {first} s on");
    }
    let without_resets = |kernel, seq, times| {
        let (count, sent, questions) = probed_from_the_middle(kernel, backed_off(seq, 1, times));
        assert_eq!((count, sent), (0, Vec::new()));
        questions
    };
    let has_all = Kernel {
        next: 6_001,
        ..STALLED
    };
    assert_eq!(without_resets(has_all, 6_000, 20), 0, "it says so itself");
    let is_sender = Kernel {
        next: 6_000,
        ..STALLED
    };
    without_resets(is_sender, 6_000, 20);
    let gone = Kernel {
        is_there: false,
        ..STALLED
    };
    let questions = without_resets(gone, 6_000, 20);
    assert!((1..=60).contains(&questions), "{questions} to nobody");
    let reader = Kernel {
        window: 0,
        ..STALLED
    };
    without_resets(reader, 6_000, 20);
    // Too far away for anything that a gateway could owe, so somebody else's.
    without_resets(STALLED, 5_001 + (1 << 25), 20);
    // Not again and again, but the same one twice on its way.
    let twice = [(6_000, Duration::from_secs(1)), (6_000, Duration::ZERO)];
    let (count, _, questions) = probed_from_the_middle(
        STALLED,
        twice.into_iter().chain([(6_500, Duration::from_secs(60))]),
    );
    assert_eq!((count, questions), (0, 0));
}

#[test]
fn a_server_that_goes_on_is_not_taken_for_one_that_cannot() {
    let mut bench = Bench::new(config());
    let answer = |bench: &mut Bench| {
        for said in bench.said() {
            assert!(!said.1.has(Flags::RST), "{said:?}");
            let ack = segment(Side::Radio, 1_001, 5_001, Flags::ACK, &[]);
            bench.pass(Side::Radio, ack);
        }
    };
    for _ in 0..20 {
        for _ in 0..3 {
            bench.data(6_000, 0);
            bench.wait(Duration::from_secs(1));
            answer(&mut bench);
        }
        bench.data(5_001, 500);
        bench.wait(Duration::from_secs(4));
        answer(&mut bench);
    }
    assert_eq!(bench.gateway.snapshot().counters.orphans_reset, 0);
}

/// A full queue lets packets pass; so do routes that the gateway is not on.
#[test]
fn what_passed_unseen_ends_assistance_of_its_flow_and_of_no_other() {
    let mut bench = Bench::new(config());
    bench.open();
    bench.data(5_001, 500);
    bench.data(5_501, 500);
    bench.said();
    // 6001 to 7001 went by while nobody looked.
    let real = segment(Side::Radio, 1_001, 7_001, Flags::ACK, &[]);
    assert_eq!(bench.pass(Side::Radio, real), Verdict::Accept);
    let snapshot = bench.gateway.snapshot();
    let counted = snapshot.counters.bypassed_for(Bypass::OneWay);
    assert_eq!((counted, snapshot.held, bench.gateway.owed()), (1, 0, 0));
    assert_eq!(bench.flow().stance, Stance::Watching);
    assert_eq!(bench.data(7_001, 500), Verdict::Accept);
    bench.wait(Duration::from_secs(5));
    assert_eq!(
        bench.said(),
        [],
        "the server is answered by the mobile host"
    );
}

#[test]
fn congestion_marks_are_answered_until_the_server_has_heard() {
    let mut bench = Bench::new(config());
    bench.open();
    let echo = Flags::ACK.with(Flags::ECE);
    bench.data(5_001, 500);
    bench.data(5_501, 500);
    bench.said();
    // All was acknowledged early but the last segment: the mark is all that is new.
    let verdict = bench.pass(Side::Radio, segment(Side::Radio, 1_001, 5_501, echo, &[]));
    assert!(matches!(verdict, Verdict::Drop | Verdict::Replace(_)));
    bench.data(6_001, 500);
    let said = bench.said();
    assert!(said.iter().any(|said| said.1.has(Flags::ECE)), "{said:?}");
    let answer = Flags::ACK.with(Flags::CWR);
    let reduced = segment(Side::Wired, 6_501, 1_001, answer, &[7; 500]);
    assert_eq!(bench.pass(Side::Wired, reduced), Verdict::Accept);
    let said = bench.said();
    assert!(!said.is_empty());
    assert!(said.iter().all(|said| !said.1.has(Flags::ECE)), "{said:?}");
    // The mobile host, which has not heard yet, goes on; the server is not told twice.
    bench.pass(Side::Radio, segment(Side::Radio, 1_001, 6_501, echo, &[]));
    bench.data(7_001, 500);
    assert!(bench.said().iter().all(|said| !said.1.has(Flags::ECE)));
}

/// Sequence numbers come round after 4 GiB: nothing that was noted long ago may be taken for what
/// is to come.
#[test]
fn a_flow_longer_than_its_numbers_is_treated_at_its_end_as_at_its_beginning() {
    const PIECE: u32 = 60_000;
    let mut bench = Bench::new(config());
    bench.open();
    let wide = |flags| Segment {
        window: u16::MAX,
        ..segment(Side::Radio, 1_001, 5_001, flags, &[])
    };
    let (echo, ack) = (wide(Flags::ACK.with(Flags::ECE)), wide(Flags::ACK));
    bench.pass(Side::Radio, ack);
    let payload = vec![7; PIECE as usize];
    let data = |flags| segment(Side::Wired, 5_001, 1_001, flags, &payload).emit();
    let (reduced, data) = (data(Flags::ACK.with(Flags::CWR)), data(Flags::ACK));
    let (echo, ack) = (echo.emit(), ack.emit());
    let mut next = 5_001_u32;
    // Sends a piece, which the mobile host acknowledges with `ack`; what the server hears of marks.
    let mut carry = |bench: &mut Bench, data: &[u8], ack: &[u8]| -> bool {
        let at = |packet: &[u8], place: usize, number: u32| {
            let mut packet = packet.to_vec();
            packet[place..place + 4].copy_from_slice(&number.to_be_bytes());
            packet
        };
        let data = at(data, 24, next);
        next = next.wrapping_add(PIECE);
        let ack = at(ack, 28, next);
        let mut is_marked = false;
        let mut heard = |packet: &[u8]| {
            let packet = Packet::parse(packet).expect("it is ours");
            is_marked |= packet.flags().has(Flags::ECE);
        };
        for (from, packet) in [(Side::Wired, data), (Side::Radio, ack)] {
            bench.now += Duration::from_millis(1);
            let known = Checksum::Known;
            match bench.gateway.handle_packet(bench.now, from, &packet, known) {
                Verdict::Replace(packet) => heard(&packet),
                Verdict::Accept | Verdict::Drop => {}
            }
            while let Some(transmit) = bench.gateway.poll_transmit() {
                assert_eq!(transmit.to, Side::Wired, "nothing is sent again");
                heard(&transmit.packet);
            }
        }
        is_marked
    };
    assert!(carry(&mut bench, &data, &echo));
    carry(&mut bench, &reduced, &ack);
    // What was noted 3 GiB ago looks like what comes in 1 GiB.
    for gib in [3, 6] {
        for _ in 0..3 * (1_u32 << 30) / PIECE {
            assert!(!carry(&mut bench, &data, &ack));
        }
        assert!(carry(&mut bench, &data, &echo), "after {gib} GiB");
        carry(&mut bench, &reduced, &ack);
    }
    let snapshot = bench.gateway.snapshot();
    let flow = bench.flow();
    assert_eq!((flow.stance, bench.gateway.owed()), (Stance::Assisting, 0));
    assert_eq!(flow.figures.repeated, 0);
    assert_eq!(snapshot.counters.uncopied, 0);
}

#[test]
fn a_flood_of_handshakes_takes_no_room_from_flows() {
    let mut bench = Bench::new(Config {
        max_opening: 100,
        ..config()
    });
    bench.open();
    for n in 0..50_000_u32 {
        let flags = Flags::SYN;
        let mut syn = segment(Side::Radio, n, 0, flags, &[]);
        syn.source = SocketAddr::new(Ipv4Addr::from(0x0a01_0000 + n).into(), 9);
        assert_eq!(bench.pass(Side::Radio, syn), Verdict::Accept);
    }
    let snapshot = bench.gateway.snapshot();
    assert_eq!((snapshot.opening, snapshot.flows), (100, 1));
    assert_eq!(snapshot.counters.openings_forgotten, 49_900);
    bench.data(5_001, 500);
    bench.data(5_501, 500);
    assert_eq!(bench.said().len(), 1, "the flow is assisted as before");
    bench.wait(Duration::from_secs(60));
    assert_eq!(bench.gateway.snapshot().opening, 0);
}

/// A packet as hosts send it, harmed: cut short, with other bits, or nothing but noise.
fn harmed(rng: &mut Rng) -> (Side, Vec<u8>) {
    let from = if rng.chance(0.5) {
        Side::Wired
    } else {
        Side::Radio
    };
    let flags = Flags(rng.below(512) as u16);
    let (seq, ack) = (rng.next_u64() as u32, rng.next_u64() as u32);
    let payload = vec![3; rng.below(600) as usize];
    let mut packet = segment(from, seq, ack, flags, &payload).emit();
    match rng.below(3) {
        0 => packet.truncate(rng.below(packet.len() as u64) as usize),
        1 => {
            // Within what TCP's checksum covers: one that is right could be the host's own.
            let at = 20 + rng.below(packet.len() as u64 - 20) as usize;
            packet[at] ^= 1 << rng.below(8);
        }
        _ => rng.fill(&mut packet),
    }
    (from, packet)
}

#[test]
fn harmed_packets_harm_no_flow() {
    for_seeds(|seed| {
        let mut rng = seed.rng("harm");
        let link = |ms| LinkConfig {
            delay: Duration::from_millis(ms),
            ..LinkConfig::wire()
        };
        let way = PassageLinks {
            wired_down: link(5),
            radio_down: link(40),
            radio_up: link(40),
            wired_up: link(5),
        };
        let gateway = Gateway::new(config());
        let mut passage = Passage::new(way, Impairments::default(), Some(gateway), seed);
        let isn = Seq(rng.next_u64() as u32);
        let end = |own, peer| Endpoint { own, peer, isn };
        let mut server = TcpServer::new(end(SERVER, MOBILE), CONTENT, 50_000, 500);
        let mut mobile = TcpClient::new(end(MOBILE, SERVER), CONTENT, 8_000);
        let mut end = Instant::EPOCH;
        while !(server.is_done() && mobile.is_done()) {
            end += Duration::from_millis(20);
            assert!(
                end < Instant::EPOCH + Duration::from_secs(600),
                "hangs: {passage:?}"
            );
            while passage.step(&mut server, &mut mobile, end) {}
            let (from, packet) = harmed(&mut rng);
            passage.inject(from, packet);
        }
        assert_eq!(mobile.received(), 50_000);
        let snapshot = passage.gateway.as_ref().expect("there is one").snapshot();
        assert!(snapshot.counters.malformed > 0);
    });
}

#[test]
fn when_there_is_no_room_for_copies_nothing_is_acknowledged_early() {
    let mut bench = Bench::new(Config {
        copies_total: Bytes::new(700),
        ..config()
    });
    bench.open();
    bench.data(5_001, 500);
    bench.data(5_501, 500);
    bench.data(6_001, 500);
    bench.wait(Duration::from_millis(50));
    assert_eq!(bench.gateway.owed(), 500);
    assert_eq!(bench.gateway.snapshot().counters.uncopied, 2);
    let real = segment(Side::Radio, 1_001, 6_501, Flags::ACK, &[]);
    let Verdict::Replace(ack) = bench.pass(Side::Radio, real) else {
        panic!("news for the server");
    };
    assert_eq!(Packet::parse(&ack).expect("it is ours").ack(), Seq(6_501));
}
