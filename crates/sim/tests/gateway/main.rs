//! TCP through the cooperative gateway, whatever the links do.
//!
//! A seed draws links, impairments, settings and what happens meanwhile. Whatever it is: the byte
//! stream at the receiver is the sender's (the hosts check every byte), every acknowledged byte
//! arrives,
//! no flow hangs, right edges never move left. `TABANE_SEED=7 cargo test -p tabane-sim --test
//! gateway` runs one seed alone.

#![allow(clippy::unwrap_used)]

mod bad_input;
mod bench;
mod deep_queue;
mod smol;
mod wide;
mod words;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use smol::{SmolClient, SmolServer};
use tabane_base::{Bytes, Content, Duration, Instant, Rate, Rng, Seed};
use tabane_gateway::{Config, Figures, Gateway, Mode, Seq, Stance};
use tabane_netem::{LinkConfig, LossModel, Probability, RateModel};
use tabane_sim::{Endpoint, Impairments, Passage, PassageLinks, TcpClient, TcpHost, TcpServer};

/// Seeds tried on every run, for each pair of hosts.
const SEEDS: u64 = 400;
/// Whatever happened, a flow ends within this.
const LIMIT: Duration = Duration::from_secs(3_600);
const CONTENT: Content = Content::new(Seed(42));

/// Says how to repeat what failed.
struct Guard(u64);

impl Drop for Guard {
    fn drop(&mut self) {
        println!(
            "failed: TABANE_SEED={} cargo test -p tabane-sim --test gateway",
            self.0
        );
    }
}

#[expect(clippy::disallowed_methods, reason = "how one seed is run alone")]
fn for_seeds(run: impl Fn(Seed)) {
    let chosen = std::env::var("TABANE_SEED").ok();
    let seeds = match chosen.map(|text| text.parse().expect("a number")) {
        Some(seed) => seed..seed + 1,
        None => 0..SEEDS,
    };
    for seed in seeds {
        let guard = Guard(seed);
        run(Seed(seed));
        std::mem::forget(guard);
    }
}

fn ms(rng: &mut Rng, most: u64) -> Duration {
    Duration::from_micros(rng.below(most * 1_000))
}

fn link(rng: &mut Rng, delay_ms: u64, lossy: bool) -> LinkConfig {
    let loss = rng.unit() * if lossy { 0.05 } else { 0.0 };
    LinkConfig {
        rate: RateModel::Constant(Rate::from_bps(1_000 * (200 + rng.below(20_000)))),
        queue: Bytes::new(5_000 + rng.below(100_000)),
        delay: ms(rng, delay_ms),
        jitter: ms(rng, 20),
        loss: match Probability::new(loss) {
            Some(p) if p != Probability::ZERO => LossModel::Random(p),
            _ => LossModel::None,
        },
        ..LinkConfig::wire()
    }
}

/// A passage, and whether right edges must be seen to keep still or go on: where the gateway
/// assists, and no packets change places behind it.
fn passage(seed: Seed, rng: &mut Rng) -> (Passage, bool) {
    let lossy = [rng.chance(0.5), rng.chance(0.5)];
    let way = PassageLinks {
        wired_down: link(rng, 50, lossy[0]),
        radio_down: link(rng, 150, lossy[1]),
        radio_up: link(rng, 150, lossy[1]),
        wired_up: link(rng, 50, lossy[0]),
    };
    let rough = rng.chance(0.5);
    let impairments = Impairments {
        duplicated: if rough { rng.unit() * 0.05 } else { 0.0 },
        overtaken: if rough { rng.unit() * 0.05 } else { 0.0 },
    };
    let assists = rng.chance(0.9);
    let config = Config {
        mode: if assists { Mode::Assist } else { Mode::Observe },
        copies_per_flow: Bytes::new(8_000 + rng.below(200_000)),
        copies_total: Bytes::new(4_000 + rng.below(400_000)),
        ..Config::default()
    };
    let passage = Passage::new(way, impairments, Some(Gateway::new(config)), seed);
    (passage, assists && !rough)
}

fn ends(rng: &mut Rng) -> (Endpoint, Endpoint) {
    let (server, mobile): (IpAddr, IpAddr) = if rng.chance(0.5) {
        (
            Ipv4Addr::new(192, 0, 2, 1).into(),
            Ipv4Addr::new(10, 0, 0, 2).into(),
        )
    } else {
        let host = |n| Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, n).into();
        (host(1), host(2))
    };
    let server = SocketAddr::new(server, 80);
    let mobile = SocketAddr::new(mobile, 40_000);
    // Half of the flows go through the wrap of the sequence numbers.
    let isn = |rng: &mut Rng| {
        if rng.chance(0.5) {
            Seq(u32::MAX - rng.below(100_000) as u32)
        } else {
            Seq(rng.next_u64() as u32)
        }
    };
    let end = |own, peer, isn| Endpoint { own, peer, isn };
    (end(server, mobile, isn(rng)), end(mobile, server, isn(rng)))
}

/// Stalls, cuts, and a gateway that leaves: what may happen while a flow lasts.
fn disturb(passage: &mut Passage, rng: &mut Rng) {
    match rng.below(12) {
        0..5 => passage.set_radio_delay(Duration::from_millis(50 + rng.below(950))),
        5..8 => passage.set_radio_delay(Duration::from_millis(10 + rng.below(40))),
        8 => passage.set_radio_outage(true),
        9..11 => passage.set_radio_outage(false),
        _ if rng.chance(0.1) => {
            if let Some(gateway) = &mut passage.gateway {
                gateway.drain();
            }
        }
        _ => {}
    }
}

/// Runs until `is_done`, with something happening now and then for the first minute.
fn run<S: TcpHost, C: TcpHost>(
    passage: &mut Passage,
    rng: &mut Rng,
    server: &mut S,
    mobile: &mut C,
    mut pause: impl FnMut(&mut C, bool),
    is_done: impl Fn(&S, &C) -> bool,
) -> bool {
    let mut next = Instant::EPOCH;
    let calm = Instant::EPOCH + Duration::from_secs(60);
    while passage.now() < Instant::EPOCH + LIMIT {
        if next < calm {
            disturb(passage, rng);
            pause(mobile, rng.chance(0.1));
            next += Duration::from_millis(100 + rng.below(3_000));
        } else {
            passage.set_radio_outage(false);
            pause(mobile, false);
            next = Instant::EPOCH + LIMIT;
        }
        while passage.step(server, mobile, next) && !is_done(server, mobile) {}
        if is_done(server, mobile) {
            return true;
        }
    }
    false
}

/// Once both ends are done nobody is owed anything.
fn owes_nothing(passage: &Passage) {
    let gateway = passage.gateway.as_ref().expect("there is one");
    let snapshot = gateway.snapshot();
    assert_eq!((gateway.owed(), snapshot.counters.reset), (0, 0));
    sums_agree(gateway);
}

/// What is kept as flows change is what they come to together.
fn sums_agree(gateway: &Gateway) {
    let snapshot = gateway.snapshot();
    let flows: Vec<_> = gateway.flows().collect();
    let owed: u64 = flows.iter().map(|flow| u64::from(flow.owed)).sum();
    let held: u64 = flows.iter().map(|flow| flow.held).sum();
    assert_eq!(
        (snapshot.flows, snapshot.owed, snapshot.held),
        (flows.len(), owed, held)
    );
    let mut figures = Figures::default();
    // No more have ended than are kept.
    for flow in flows.iter().chain(&snapshot.ended) {
        figures += flow.figures;
    }
    assert_eq!(snapshot.figures, figures);
}

/// Whether every flow was assisted to its end: else the mobile host speaks for itself, and smoltcp
/// rounds its windows down.
fn assisted(passage: &Passage) -> bool {
    let gateway = passage.gateway.as_ref().expect("there is one");
    gateway.flows().all(|flow| flow.stance == Stance::Assisting)
}

#[test]
fn reno_without_options_gets_every_byte_across() {
    for_seeds(|seed| {
        let mut rng = seed.rng("reno");
        let (mut passage, is_orderly) = passage(seed, &mut rng);
        let (at_server, at_mobile) = ends(&mut rng);
        let total = 1 + rng.below(400_000);
        let segment = 536 - rng.below(2) * 100;
        let buffer = 2_000 + rng.below(63_000) as u16;
        let mut server = TcpServer::new(at_server, CONTENT, total, segment);
        let mut mobile = TcpClient::new(at_mobile, CONTENT, buffer);
        let done = run(
            &mut passage,
            &mut rng,
            &mut server,
            &mut mobile,
            TcpClient::set_pausing,
            |server, mobile| server.is_done() && mobile.is_done(),
        );
        assert!(
            done,
            "hangs at {} of {total}: {server:?}\n{mobile:?}\n{:?}",
            mobile.received(),
            passage.gateway
        );
        assert_eq!(mobile.received(), total);
        assert!(!is_orderly || server.edges_moved_left == 0);
        owes_nothing(&passage);
    });
}

#[test]
fn a_tcp_with_scaling_sack_and_timestamps_gets_every_byte_across() {
    for_seeds(|seed| {
        let mut rng = seed.rng("smol");
        let (mut passage, is_orderly) = passage(seed, &mut rng);
        let (at_server, at_mobile) = ends(&mut rng);
        let total = 1 + rng.below(1_000_000);
        let stamps = rng.chance(0.5);
        let buffer = 4_000 + rng.below(300_000) as usize;
        let mut server = SmolServer::new(at_server, CONTENT, total, stamps, rng.next_u64());
        let mut mobile = SmolClient::new(at_mobile, CONTENT, buffer, stamps, rng.next_u64());
        let done = run(
            &mut passage,
            &mut rng,
            &mut server,
            &mut mobile,
            SmolClient::set_pausing,
            |server, mobile| server.is_acknowledged() && mobile.received() == total,
        );
        assert!(
            done,
            "hangs at {} of {total}: {:?}",
            mobile.received(),
            passage.gateway
        );
        assert!(!is_orderly || !assisted(&passage) || server.edges_moved_left() == 0);
    });
}
