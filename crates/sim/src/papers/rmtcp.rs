//! R-M/TCP (Osuga, Rojviboonchai, Aida): figures 5, 6 and 7.
//!
//! Five connections send for 100 s over two paths; each receiver's window is 64 KB. The upper
//! path's one-way time is 60 ms, the lower path's 30 to 120 ms. From 30 to 60 s five TCP Reno
//! flows cross on each path.
//!
//! Lost with figure 4, and chosen here: the bottlenecks' rates, 20 Mbit/s above and 25 below
//! (they differ, the paper says; together they carry 5 × 64 KB per round trip at every delay), and
//! their queues, ns-2's 50 packets. The Reno flows have ns-2's packets of 1,000 bytes and window
//! of 20.

use tabane_base::{Bytes, Duration, Instant, Rate, Seed};
use tabane_core::{ControllerKind, SchedulerKind, SessionConfig};
use tabane_netem::{LinkConfig, LinkSpec, RateModel};

use super::arena::{self, Load, Plan, Record};
use super::cross::CrossTraffic;

mod report;

pub use report::{DISTRIBUTION, NEAR_MS, ROUND_ROBIN, ours};
pub(super) use report::{POINTS, figure5, figure5_point, figure6, figure7};

/// Sending connections.
pub const CONNECTIONS: usize = 5;
/// Each receiver's window.
pub const WINDOW: Bytes = Bytes::new(64 * 1_024);
/// One-way time of the upper path, in ms.
pub const UPPER_MS: u64 = 60;
/// One-way times of the lower path, in ms: 3·x for x = 10…40 in steps of 5.
pub const LOWER_MS: [u64; 7] = [30, 45, 60, 75, 90, 105, 120];
/// How long the paper's runs last.
pub const DURATION: Duration = Duration::from_secs(100);
/// Rates of the bottlenecks: chosen, see above.
pub const UPPER_RATE: Rate = Rate::from_mbps(20);
/// The lower bottleneck's rate.
pub const LOWER_RATE: Rate = Rate::from_mbps(25);
/// ns-2's queue of 50, in full packets of ours.
const QUEUE: Bytes = Bytes::new(50 * 1_500);
/// When cross traffic begins and ends, as parts of the run.
const CROSS: (f64, f64) = (0.3, 0.6);
/// ns-2's default window and packet of a Reno flow.
const RENO_WINDOW: u64 = 20;
const RENO_PACKET: Bytes = Bytes::new(1_040);
/// How often what waits in the receive window is looked at.
const SAMPLE: Duration = Duration::from_millis(20);

/// What sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender {
    /// Which path the next packets take.
    pub scheduler: SchedulerKind,
    /// How fast a path may be used.
    pub controller: ControllerKind,
    /// Never more than 64 KB beyond what is acknowledged, as TCP's flow control has it. Otherwise
    /// the receiver has 64 KB of memory and the sender may go beyond.
    pub windowed: bool,
}

/// What five connections came to.
#[derive(Clone, Debug)]
pub struct Run {
    /// Mean of the connections, over the whole run.
    pub goodput: Rate,
    /// Bytes in the first connection's receive window that wait for order, by time in s.
    pub held: Vec<(f64, Bytes)>,
    /// What the cross traffic delivered.
    pub crossed: Bytes,
    /// Each connection's goodput.
    pub each: Vec<Rate>,
}

impl Run {
    /// Held on average between two moments, in s.
    #[must_use]
    pub fn held_mean(&self, from: f64, to: f64) -> Bytes {
        let within = self.held.iter().filter(|(at, _)| (from..to).contains(at));
        let held: Vec<u64> = within.map(|(_, held)| held.get()).collect();
        Bytes::new(held.iter().sum::<u64>() / held.len().max(1) as u64)
    }
}

/// Runs the experiment for `duration`, cross traffic from 30 % to 60 % of it.
#[must_use]
pub fn run(lower_ms: u64, sender: Sender, duration: Duration, seed: Seed) -> Run {
    let config = SessionConfig {
        scheduler: sender.scheduler,
        controller: sender.controller,
        receive_memory: WINDOW,
        // What is written and not acknowledged in order cannot exceed this: TCP's window.
        send_memory: if sender.windowed {
            WINDOW
        } else {
            SessionConfig::default().send_memory
        },
        ..SessionConfig::default()
    };
    let at = |part: f64| Instant::EPOCH + tabane_base::scale(duration, part);
    let record = arena::run(Plan {
        seed,
        links: vec![
            link("upper", UPPER_RATE, UPPER_MS),
            link("lower", LOWER_RATE, lower_ms),
        ],
        client: config.clone(),
        server: config,
        sessions: CONNECTIONS,
        load: Load::Stream(Bytes::MAX),
        cross: Some(CrossTraffic {
            flows_per_link: 5,
            from: at(CROSS.0),
            until: at(CROSS.1),
            window: RENO_WINDOW,
            packet: RENO_PACKET,
        }),
        duration,
        sample_interval: SAMPLE,
    });
    summarise(&record)
}

fn link(name: &str, rate: Rate, one_way_ms: u64) -> LinkSpec {
    let config = LinkConfig {
        rate: RateModel::Constant(rate),
        queue: QUEUE,
        delay: Duration::from_millis(one_way_ms),
        ..LinkConfig::wire()
    };
    LinkSpec {
        name: name.to_owned(),
        up: config.clone(),
        down: config,
    }
}

fn summarise(record: &Record) -> Run {
    let span = record.ended_at - record.started_at;
    let each: Vec<Rate> = record
        .delivered
        .iter()
        .map(|bytes| Rate::of(*bytes, span))
        .collect();
    let sum: u64 = each.iter().map(|rate| rate.as_bps()).sum();
    Run {
        goodput: Rate::from_bps(sum / each.len() as u64),
        held: record
            .held
            .iter()
            .map(|(at, held)| (at.as_secs_f64(), *held))
            .collect(),
        crossed: record.crossed,
        each,
    }
}

/// Equation 11 with the slower path's round trip by equation 1: what holds a sender that waits for
/// the slowest path.
#[must_use]
pub fn theory_slowest(lower_ms: u64) -> Rate {
    window_per(UPPER_MS.max(lower_ms) as f64 + average_ms(lower_ms))
}

/// Equation 12: the window per mean forward and mean backward time, what a sender reaches whose
/// packets arrive in order.
#[must_use]
pub fn theory_mean(lower_ms: u64) -> Rate {
    window_per(2.0 * average_ms(lower_ms))
}

fn average_ms(lower_ms: u64) -> f64 {
    (UPPER_MS + lower_ms) as f64 / 2.0
}

fn window_per(rtt_ms: f64) -> Rate {
    Rate::of(WINDOW, Duration::from_secs_f64(rtt_ms / 1e3))
}
