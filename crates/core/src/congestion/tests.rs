//! Controllers on links of every kind: how much they use, how much they queue, how they share.
//!
//! Every controller on every kind of steady link is `sweep`'s; here are the bounds that must hold,
//! and the links of a special kind. `cargo test -p tabane-core congestion::tests -- --nocapture`
//! prints the tables.

mod bbr1;
mod link;
mod loss;
mod sender;
mod sweep;

use tabane_base::{Bytes, Duration, Instant, Rate, Seed};

use super::{Controller, Kind, LossEvent};
use link::{Link, Outcome, at, run, varying};
use sender::Flow;

const SEED: Seed = Seed(7);
const SPAN: Duration = Duration::from_secs(20);

/// A link, the least share of it to be used (start-up included), and the most time in its queue
/// at the 95th percentile, in milliseconds.
type Row = (Link, f64, u64);

fn check(kind: Kind, span: Duration, rows: &[Row]) {
    println!("seed {SEED}, {kind}");
    println!(
        "{:44} | util % | 2nd half | loss % | queue ms p50 | p95",
        "link"
    );
    let mut failures = Vec::new();
    for (link, least, queue_ms) in rows {
        let outcome = run(link, &[kind.into()], span, SEED);
        println!("{link:44} | {}", table_line(&outcome));
        let is_queue_short = outcome.queue_p95 <= Duration::from_millis(*queue_ms);
        if outcome.utilisation < *least || !is_queue_short {
            failures.push(link.to_string());
        }
    }
    assert!(failures.is_empty(), "missed on {failures:?}, seed {SEED}");
}

fn table_line(outcome: &Outcome) -> String {
    format!(
        "{:6.2} | {:8.2} | {:6.2} | {:12.1} | {:6.1}",
        outcome.utilisation * 100.0,
        outcome.second_half * 100.0,
        outcome.loss * 100.0,
        outcome.queue_p50.as_secs_f64() * 1e3,
        outcome.queue_p95.as_secs_f64() * 1e3,
    )
}

/// A rate that wanders over 0..30 Mbit/s, with a new direction every 100 ms.
fn cellular(delay_ms: u64) -> Link {
    let mut rng = Seed(3).rng("cellular");
    let mut rates = Vec::new();
    let mut mbps = 12.0_f64;
    for _ in 0..250 {
        let aim = if rng.chance(0.1) {
            0.3
        } else {
            rng.unit() * 30.0
        };
        for _ in 0..5 {
            mbps += (aim - mbps) / 3.0;
            rates.push(Rate::from_bps((mbps * 1e6) as u64));
        }
    }
    varying("cellular", rates, delay_ms, 300)
}

/// `high` and `low` Mbit/s in turn, each for `millis`.
fn square(high: u64, low: u64, millis: u64, delay_ms: u64, queue_kb: u64) -> Link {
    let steps = millis as usize / link::STEP.as_millis() as usize;
    let level = |mbps| std::iter::repeat_n(Rate::from_mbps(mbps), steps);
    let rates = level(high).chain(level(low)).collect();
    varying(
        &format!("{high}/{low} every {millis}ms"),
        rates,
        delay_ms,
        queue_kb,
    )
}

/// Two hosts side by side: no shaping, the receiver's processor and socket buffer are the link.
fn wire(mbps: u64, buffer_kb: u64) -> Link {
    let link = Link {
        delay: Duration::from_micros(30),
        ..at(mbps * 1_000, 0, buffer_kb)
    };
    link.acks(16)
}

#[test]
fn bbr_fills_steady_links_and_not_their_queues() {
    check(
        Kind::Bbr,
        SPAN,
        &[
            (at(11_000, 0, 100), 0.99, 12),
            (at(11_000, 0, 100).acks(16), 0.99, 20),
            (at(5_500, 0, 100).acks(16).late(2_000), 0.99, 20),
            (at(50_000, 10, 200), 0.99, 10),
            (at(50_000, 10, 200).acks(16).late(2_000), 0.985, 15),
            (at(50_000, 10, 200).ack_jitter(5), 0.985, 20),
            (at(10_000, 50, 100), 0.975, 25),
            (at(10_000, 50, 100).acks(16).late(2_000), 0.975, 25),
            (at(20_000, 100, 400), 0.94, 30),
            (at(20_000, 150, 400), 0.90, 35),
            (at(50_000, 150, 1_000), 0.88, 35),
            (at(5_000, 100, 100), 0.955, 30),
            (at(1_000, 15, 30), 0.985, 40),
            (at(2_000, 30, 30), 0.985, 40),
            // One packet lasts 184 ms.
            (at(64, 100, 16), 0.97, 2_000),
            (at(10_000, 40, 2_000), 0.98, 25),
            (at(20_000, 20, 20), 0.98, 10),
        ],
    );
}

#[test]
fn bbr_shrugs_off_random_loss() {
    check(
        Kind::Bbr,
        SPAN,
        &[
            (at(50_000, 10, 200).loss(0.01), 0.98, 10),
            (at(50_000, 10, 200).loss(0.02), 0.97, 10),
            (at(20_000, 30, 200).loss(0.005), 0.98, 20),
            (at(20_000, 100, 400).loss(0.02), 0.92, 30),
            (at(10_000, 50, 100).loss(0.02), 0.95, 30),
        ],
    );
}

#[test]
fn bbr_follows_links_that_change() {
    check(
        Kind::Bbr,
        SPAN,
        &[
            (cellular(20), 0.97, 400),
            (cellular(50), 0.92, 400),
            (square(100, 60, 5_000, 25, 500), 0.96, 80),
            (square(60, 3, 1_000, 20, 300), 0.96, 800),
            (square(10, 40, 2_000, 30, 150), 0.82, 120),
            (square(30, 0, 1_000, 15, 150), 0.95, 1_100),
        ],
    );
}

#[test]
fn bbr_does_not_throttle_fast_hosts() {
    check(
        Kind::Bbr,
        Duration::from_secs(3),
        &[
            (wire(3_000, 400), 0.99, 2),
            // Pauses of the receiver cost what they last, no more.
            (wire(4_000, 400).pause(300), 0.955, 2),
            (wire(4_000, 4_000).pause(1_000), 0.89, 3),
            (wire(4_000, 4_000).pause(300).late(1_000), 0.955, 2),
            (at(1_000_000, 2, 2_000).late(200), 0.985, 3),
        ],
    );
}

#[test]
fn tabane_keeps_the_queue_short_whatever_the_link_does() {
    check(
        Kind::Tabane,
        SPAN,
        &[
            (at(11_000, 0, 100), 0.99, 15),
            (at(5_500, 0, 100).acks(16).late(2_000), 0.99, 20),
            (at(50_000, 10, 200), 0.99, 15),
            (at(50_000, 10, 200).ack_jitter(5), 0.985, 15),
            (at(50_000, 10, 200).jitter(5), 0.985, 15),
            (at(50_000, 10, 200).policed(), 0.98, 0),
            (at(50_000, 10, 200).loss(0.02), 0.98, 15),
            (at(50_000, 10, 200).loss(0.05), 0.94, 15),
            (at(50_000, 10, 200).loss(0.10), 0.90, 15),
            (at(10_000, 50, 100).loss(0.02), 0.97, 25),
            (at(20_000, 150, 400), 0.90, 75),
            (at(10_000, 40, 2_000), 0.98, 20),
            (at(20_000, 20, 20), 0.98, 10),
            (square(100, 60, 5_000, 25, 500), 0.96, 15),
            (square(10, 40, 2_000, 30, 150), 0.83, 100),
        ],
    );
}

/// A handover every three seconds: nothing passes for 300 ms, and what was under way waits. The
/// rate over that time was taken for the link's, and the way back up took a second.
#[test]
fn a_silence_is_no_slow_link() {
    let steps = |millis: u128| (millis / link::STEP.as_millis()) as usize;
    let goes = std::iter::repeat_n(Rate::from_mbps(20), steps(2_700));
    let stands = std::iter::repeat_n(Rate::ZERO, steps(300));
    let link = varying("silent", goes.chain(stands).collect(), 45, 500);
    check(Kind::Tabane, SPAN, &[(link, 0.95, 400)]);
}

#[test]
fn cubic_fills_links() {
    check(
        Kind::Cubic,
        SPAN,
        &[
            (at(11_000, 0, 100), 0.99, 90),
            (at(50_000, 10, 200), 0.99, 40),
            (at(10_000, 50, 100), 0.975, 90),
            (at(20_000, 100, 400), 0.94, 170),
            (at(64, 100, 16), 0.97, 2_000),
            (cellular(20), 0.97, 400),
        ],
    );
}

#[test]
fn an_application_that_pauses_does_not_lose_the_rate() {
    let link = at(50_000, 10, 200).idle(600);
    let outcome = run(&link, &[Kind::Bbr.into()], SPAN, SEED);
    println!("half the time idle: {}", table_line(&outcome));
    assert!(outcome.utilisation > 0.48, "{outcome:?}");
}

/// Several senders on one link: everyone gets at least `least` of an equal share.
fn check_sharing(link: &Link, kinds: &[Kind], least: f64) {
    let flows: Vec<Flow> = kinds.iter().map(|kind| Flow::from(*kind)).collect();
    let outcome = run(link, &flows, Duration::from_secs(40), SEED);
    println!(
        "{link} {kinds:?}: {} | {:.2?}",
        table_line(&outcome),
        outcome.shares
    );
    let smallest = outcome.shares.iter().copied().fold(1.0, f64::min);
    assert!(
        smallest * kinds.len() as f64 >= least,
        "{kinds:?} on {link}: {:?}",
        outcome.shares
    );
    assert!(
        outcome.second_half > 0.97,
        "{kinds:?} on {link}: {outcome:?}"
    );
}

#[test]
fn senders_share_a_bottleneck() {
    let link = at(20_000, 20, 200);
    check_sharing(&link, &[Kind::Bbr, Kind::Bbr], 0.5);
    check_sharing(&link, &[Kind::Bbr, Kind::Bbr, Kind::Bbr, Kind::Bbr], 0.3);
    check_sharing(&link, &[Kind::Cubic, Kind::Cubic], 0.5);
    check_sharing(&link, &[Kind::Cubic, Kind::Bbr], 0.2);
    check_sharing(&link, &[Kind::Bbr, Kind::Cubic], 0.2);
}

#[test]
fn trouble_shrinks_the_window_and_a_reset_starts_over() {
    let mtu = link::PACKET;
    let now = Instant::from_millis(1_000);
    for kind in Kind::ALL {
        let mut controller = Controller::new(kind, mtu, now, SEED.rng("controller"));
        let fresh = controller.snapshot();
        controller.on_loss(&LossEvent {
            now,
            lost: fresh.cwnd,
            runs: 1,
            largest_lost_sent_at: now,
            in_flight: Bytes::ZERO,
            tx_in_flight: fresh.cwnd,
            persistent: true,
        });
        assert!(controller.cwnd() <= Bytes::new(mtu.get() * 4), "{kind}");
        assert!(controller.cwnd() >= Bytes::new(mtu.get() * 2), "{kind}");
        controller.on_path_reset(now);
        assert_eq!(controller.snapshot(), fresh, "{kind}");
        assert!(controller.pacing_rate() > Rate::ZERO, "{kind}");
    }
}

#[test]
fn names_are_understood() {
    for kind in Kind::ALL {
        assert_eq!(kind.to_string().parse(), Ok(kind));
    }
    assert!("reno".parse::<Kind>().is_err());
    assert_eq!(format!("{:>6}", Kind::Bbr), "   bbr");
}
