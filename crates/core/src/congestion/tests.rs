//! Controllers on links of every kind: how much they use, how much they queue.
//!
//! `cargo test -p tabane-core congestion -- --nocapture` prints the table.

mod link;

use tabane_base::{Duration, Rate, Seed};

use super::Kind;
use link::{Link, Outcome, run};

struct Row {
    name: &'static str,
    link: Link,
    /// Least utilisation of the whole run, start-up included.
    least: f64,
    /// Most time in the queue at the 95th percentile.
    queued: Duration,
    span: Duration,
}

fn row(name: &'static str, link: Link, least: f64, queued_ms: u64) -> Row {
    Row {
        name,
        link,
        least,
        queued: Duration::from_millis(queued_ms),
        span: Duration::from_secs(20),
    }
}

fn check(kind: Kind, rows: &[Row]) {
    let seed = Seed(7);
    println!("seed {seed}, {kind}");
    println!("link                     | util % | 2nd half | Mbit/s | loss % | queue ms p50 | p95");
    let mut failures = Vec::new();
    for Row {
        name,
        link,
        least,
        queued,
        span,
    } in rows
    {
        let outcome = run(link, kind, *span, seed);
        let Outcome {
            utilisation,
            goodput,
            loss,
            queue_p50,
            queue_p95,
            late_half,
        } = outcome;
        println!(
            "{name:24} | {:6.2} | {:8.2} | {:6.1} | {:6.2} | {:12.1} | {:6.1}",
            utilisation * 100.0,
            late_half * 100.0,
            goodput.as_mbps_f64(),
            loss * 100.0,
            queue_p50.as_secs_f64() * 1e3,
            queue_p95.as_secs_f64() * 1e3,
        );
        if utilisation < *least || queue_p95 > *queued {
            failures.push(*name);
        }
    }
    assert!(failures.is_empty(), "missed on {failures:?}, seed {seed}");
}

fn lossy(mut link: Link, loss: f64) -> Link {
    link.loss = loss;
    link
}

fn ack_every(mut link: Link, packets: usize) -> Link {
    link.ack_every = packets;
    link
}

fn late(mut link: Link, micros: u64) -> Link {
    link.late = Duration::from_micros(micros);
    link
}

/// A rate that wanders over 0..30 Mbit/s, with a new direction every 100 ms.
fn cellular(delay_ms: u64, queue_kb: u64) -> Link {
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
    Link {
        rates,
        ..Link::new(0, delay_ms, queue_kb)
    }
}

/// `high` and `low` in turn, each for `seconds`.
fn square(high: u64, low: u64, seconds: f64, delay_ms: u64, queue_kb: u64) -> Link {
    let steps = (seconds / link::STEP.as_secs_f64()) as usize;
    let level = |mbps| std::iter::repeat_n(Rate::from_mbps(mbps), steps);
    Link {
        rates: level(high).chain(level(low)).collect(),
        ..Link::new(0, delay_ms, queue_kb)
    }
}

/// Two hosts side by side: no shaping, the receiver's processor and socket buffer are the link.
fn wire(mbps: u64, buffer_kb: u64, pause_us: u64) -> Link {
    Link {
        delay: Duration::from_micros(30),
        pause: Duration::from_micros(pause_us),
        ack_every: 16,
        ..Link::new(mbps * 1_000, 0, buffer_kb)
    }
}

#[test]
fn bbr_fills_links_and_not_queues() {
    check(
        Kind::Bbr,
        &[
            row("11M 0ms 100K", Link::new(11_000, 0, 100), 0.99, 25),
            row(
                "11M 0ms 100K ack16",
                ack_every(Link::new(11_000, 0, 100), 16),
                0.98,
                25,
            ),
            row(
                "5.5M 0ms 100K late2ms",
                late(Link::new(5_500, 0, 100), 2_000),
                0.98,
                25,
            ),
            row("50M 10ms 200K", Link::new(50_000, 10, 200), 0.98, 25),
            row(
                "50M 10ms 200K ack16",
                ack_every(Link::new(50_000, 10, 200), 16),
                0.98,
                25,
            ),
            row(
                "50M 10ms 200K late2ms",
                late(Link::new(50_000, 10, 200), 2_000),
                0.98,
                25,
            ),
            row("10M 50ms 100K", Link::new(10_000, 50, 100), 0.97, 30),
            row("20M 100ms 400K", Link::new(20_000, 100, 400), 0.95, 30),
            row("20M 150ms 400K", Link::new(20_000, 150, 400), 0.92, 40),
            row("50M 150ms 1000K", Link::new(50_000, 150, 1_000), 0.90, 40),
            row("5M 100ms 100K", Link::new(5_000, 100, 100), 0.96, 30),
            row("1M 30ms 30K", Link::new(1_000, 15, 30), 0.98, 60),
            row("2M 60ms 30K", Link::new(2_000, 30, 30), 0.98, 60),
            row("64k 100ms 16K", Link::new(64, 100, 16), 0.95, 1_000),
            row(
                "50M 10ms loss 1%",
                lossy(Link::new(50_000, 10, 200), 0.01),
                0.96,
                25,
            ),
            row(
                "50M 10ms loss 2%",
                lossy(Link::new(50_000, 10, 200), 0.02),
                0.94,
                25,
            ),
            row(
                "20M 30ms loss 0.5%",
                lossy(Link::new(20_000, 30, 200), 0.005),
                0.97,
                25,
            ),
            row(
                "20M 100ms loss 2%",
                lossy(Link::new(20_000, 100, 400), 0.02),
                0.92,
                30,
            ),
            row("10M 40ms 2000K", Link::new(10_000, 40, 2_000), 0.97, 30),
            row("20M 20ms 20K shallow", Link::new(20_000, 20, 20), 0.95, 10),
            row("cellular 20ms 300K", cellular(20, 300), 0.90, 400),
            row("cellular 50ms 300K", cellular(50, 300), 0.85, 400),
            row(
                "leo 100/60 25ms 500K",
                square(100, 60, 5.0, 25, 500),
                0.95,
                60,
            ),
            row(
                "60/3 1s 20ms 300K",
                square(60, 3, 1.0, 20, 300),
                0.85,
                1_000,
            ),
        ],
    );
}

#[test]
fn bbr_does_not_throttle_fast_hosts() {
    let short = |name, link, least, ms| Row {
        span: Duration::from_secs(3),
        ..row(name, link, least, ms)
    };
    check(
        Kind::Bbr,
        &[
            short("wire 3G 400K", wire(3_000, 400, 0), 0.97, 2),
            short("wire 4G 400K pause300", wire(4_000, 400, 300), 0.93, 2),
            short("wire 4G 4M pause1000", wire(4_000, 4_000, 1_000), 0.85, 8),
            short(
                "wire 4G 4M late1ms",
                late(wire(4_000, 4_000, 300), 1_000),
                0.93,
                8,
            ),
            short(
                "1G 2ms 2M",
                late(Link::new(1_000_000, 2, 2_000), 200),
                0.97,
                5,
            ),
        ],
    );
}

#[test]
fn cubic_fills_links() {
    check(
        Kind::Cubic,
        &[
            row("11M 0ms 100K", Link::new(11_000, 0, 100), 0.98, 100),
            row("50M 10ms 200K", Link::new(50_000, 10, 200), 0.98, 100),
            row("10M 50ms 100K", Link::new(10_000, 50, 100), 0.93, 100),
            row("20M 100ms 400K", Link::new(20_000, 100, 400), 0.90, 200),
            row("cellular 20ms 300K", cellular(20, 300), 0.90, 1_000),
            row(
                "50M 10ms loss 1%",
                lossy(Link::new(50_000, 10, 200), 0.01),
                0.01,
                100,
            ),
            row("64k 100ms 16K", Link::new(64, 100, 16), 0.90, 3_000),
        ],
    );
}

#[test]
fn an_application_that_pauses_does_not_lose_the_rate() {
    let link = Link {
        idle_period: Some(Duration::from_millis(600)),
        ..Link::new(50_000, 10, 200)
    };
    let outcome = run(&link, Kind::Bbr, Duration::from_secs(20), Seed(7));
    println!("half the time idle: {outcome:?}");
    assert!(outcome.utilisation > 0.48, "{outcome:?}");
}

#[test]
fn names_are_understood() {
    for kind in Kind::ALL {
        assert_eq!(kind.to_string().parse(), Ok(kind));
    }
    assert!("reno".parse::<Kind>().is_err());
    assert_eq!(format!("{:>6}", Kind::Bbr), "   bbr");
    assert_eq!(Bytes::new(1), Bytes::new(1));
}
