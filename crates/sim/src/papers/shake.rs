//! Web SHAKE (Konishi, Ishihara, Mizuno): experiments 1 to 3, figures 6 to 9.
//!
//! Notebooks with a PHS card of 64 kbit/s each share their links for the web. The paper's rules
//! make a connection for each request and divide equally; ours keeps connections and divides by
//! what it measures. All drive the shipped `ranges`.

use tabane_base::{Bytes, Duration, Rate, Seed};
use tabane_netem::{LinkConfig, RateModel};
use tabane_ranges::{LinkLimits, Order, Rule};

use crate::web::{Tcp, WebLink, WebPlan, fetch};

mod report;

pub(super) use report::{experiment1, experiment2, experiment3};

/// The rate of PIAFS.
const PHS: Rate = Rate::from_bps(64_000);
/// What an access point lets wait: more than the windows of two connections, so that nothing is
/// lost.
const QUEUE: Bytes = Bytes::kilo(80);
/// One way to a server on the campus that the access point stands on.
pub const NEAR: Duration = Duration::from_millis(60);
/// One way through commercial providers.
pub const FAR: [Duration; 3] = [
    Duration::from_millis(150),
    Duration::from_millis(200),
    Duration::from_millis(250),
];

/// File sizes of experiments 1 and 3, in kB.
pub const SIZES: [u64; 11] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_000];
/// Those of experiment 2.
pub const SMALL: [u64; 8] = [1, 2, 4, 8, 16, 32, 64, 128];

/// A PHS link; `local`: the rate of the network to the member of the cluster that it belongs to,
/// none for the receiver's own.
#[must_use]
pub fn phs(delay: Duration, local: Option<Rate>) -> WebLink {
    let wide = LinkConfig {
        rate: RateModel::Constant(PHS),
        delay,
        queue: QUEUE,
        ..LinkConfig::wire()
    };
    let local = local.map_or_else(LinkConfig::wire, |rate| LinkConfig {
        rate: RateModel::Constant(rate),
        delay: Duration::from_millis(1),
        ..LinkConfig::wire()
    });
    WebLink {
        wide,
        local,
        facts: LinkLimits::default(),
    }
}

/// Mean throughput from the request to the last byte, in kbit/s.
#[must_use]
pub fn throughput(links: &[WebLink], rule: Rule, kilo: u64, seed: Seed) -> f64 {
    let size = Bytes::kilo(kilo);
    let plan = WebPlan {
        rule,
        order: Order::Any,
        tcp: Tcp::Papers,
        keeps_connections: rule == Rule::Tabane,
    };
    let took = fetch(links, plan, size, seed).took;
    size.bits() as f64 / took.as_secs_f64() / 1e3
}
