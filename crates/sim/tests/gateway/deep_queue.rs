//! Radio links with deep queues, as the lab's bench has them: how full the link is kept, and how
//! much of what goes over it goes twice.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use tabane_base::{Bytes, Duration, Instant, Rate, Seed};
use tabane_gateway::{Config, Gateway, Mode, Seq};
use tabane_netem::{Change, LinkConfig, LossModel, Probability, RateModel};
use tabane_sim::{Endpoint, Impairments, Passage, PassageLinks};

use super::CONTENT;
use super::smol::SmolServer;
use super::wide::WideClient;

/// What came of a download.
#[derive(Debug)]
struct Carried {
    mbps: f64,
    /// Segments sent again, of all on the radio link.
    again: f64,
}

/// Downloads for `span` through the gateway.
fn carried(radio: LinkConfig, has_sack: bool, span: Duration) -> Carried {
    let wired = LinkConfig {
        rate: RateModel::Constant(Rate::from_mbps(1_000)),
        queue: Bytes::mega(4),
        ..LinkConfig::wire()
    };
    let way = PassageLinks {
        wired_down: wired.clone(),
        radio_down: radio.clone(),
        radio_up: radio,
        wired_up: wired,
    };
    let gateway = Gateway::new(Config {
        mode: Mode::Assist,
        ..Config::default()
    });
    let mut passage = Passage::new(way, Impairments::default(), Some(gateway), Seed(1));
    let address = |n, port| SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, n)), port);
    let end = |own, peer| Endpoint {
        own,
        peer,
        isn: Seq(1),
    };
    let (at_server, at_mobile) = (address(1, 80), address(2, 40_000));
    let total = 1 << 30;
    let mut server = SmolServer::new(end(at_server, at_mobile), CONTENT, total, false, 1);
    let mut mobile = WideClient::new(end(at_mobile, at_server), has_sack);
    while passage.step(&mut server, &mut mobile, Instant::EPOCH + span) {}
    let radio = passage.radio_down();
    let counters = passage.gateway.as_ref().unwrap().snapshot().counters;
    Carried {
        mbps: mobile.received() as f64 * 8.0 / span.as_secs_f64() / 1e6,
        again: counters.resent as f64 / radio.offered.packets as f64,
    }
}

/// Delays one way as in the lab's bench, beginning `phase` milliseconds into their period.
fn steps(phase: u64) -> Vec<Change> {
    let steps = [(2_000, 1_000), (3_000, 50), (6_000, 500), (7_000, 25)];
    let change = |(at, delay): (u64, u64)| Change {
        at: Duration::from_millis((at + PERIOD_MS - phase) % PERIOD_MS),
        every: Some(Duration::from_millis(PERIOD_MS)),
        delay: Some(Duration::from_millis(delay)),
        ..Change::default()
    };
    steps.map(change).to_vec()
}

fn link(queue_kb: u64, rate: Rate, changes: Vec<Change>) -> LinkConfig {
    LinkConfig {
        rate: RateModel::Constant(rate),
        queue: Bytes::kilo(queue_kb),
        delay: Duration::from_millis(25),
        changes,
        ..LinkConfig::wire()
    }
}

const PERIOD_MS: u64 = 8_000;
const SPAN: Duration = Duration::from_secs(30);

/// Wherever in their period the steps begin: about as much as CUBIC carries that keeps the queue
/// full (8.4 Mbit/s in the lab), and next to nothing twice.
#[test]
fn delay_steps_neither_empty_a_deep_queue_nor_make_it_overflow() {
    for phase in [0, 1_000, 3_500, 5_000] {
        for (has_sack, least) in [(true, 7.9), (false, 7.6)] {
            let radio = link(1_000, Rate::from_mbps(10), steps(phase));
            let got = carried(radio, has_sack, SPAN);
            assert!(got.mbps > least, "{got:?}, phase {phase}, SACK {has_sack}");
            assert!(
                got.again < 0.0005,
                "{got:?}, phase {phase}, SACK {has_sack}"
            );
        }
    }
}

#[test]
fn a_queue_that_overflows_does_so_once_and_little() {
    for (mbit, queue, again) in [(10, 250, 0.001), (10, 100, 0.004), (40, 1_000, 0.001)] {
        for has_sack in [true, false] {
            let radio = link(queue, Rate::from_mbps(mbit), Vec::new());
            let got = carried(radio, has_sack, SPAN);
            let share = got.mbps / mbit as f64;
            assert!(share > 0.8, "{got:?}, {queue} kB, SACK {has_sack}");
            assert!(got.again < again, "{got:?}, {queue} kB, SACK {has_sack}");
        }
    }
}

/// Round trips of three seconds from then on: no queue, but another link.
#[test]
fn a_delay_that_comes_to_stay_is_filled_too() {
    let change = Change {
        at: Duration::from_secs(5),
        delay: Some(Duration::from_millis(1_500)),
        ..Change::default()
    };
    let radio = link(5_000, Rate::from_mbps(10), vec![change]);
    let got = carried(radio, true, 6 * SPAN);
    assert!(got.mbps > 7.0, "{got:?}");
}

/// What losses leave of the allowance is less than the units of a large host's window.
#[test]
fn a_link_that_loses_shuts_no_window_for_good() {
    let mut radio = link(1_000, Rate::from_mbps(100), Vec::new());
    radio.delay = Duration::from_micros(50);
    radio.loss = LossModel::Random(Probability::new(0.05).expect("below one"));
    for (has_sack, least) in [(true, 1.0), (false, 0.5)] {
        let got = carried(radio.clone(), has_sack, 4 * SPAN);
        assert!(got.mbps > least, "{got:?}, SACK {has_sack}");
    }
}
