//! Links of one rate, the same both ways. Shared by tests (`#[path]`).

use tabane_base::{Bytes, Duration, Rate};
use tabane_netem::{LinkConfig, LinkSpec, RateModel};

/// A link of so many Mbit/s and ms one way, whose queue holds what it carries in a time, and 60 kB
/// at least.
pub(crate) fn link((mbps, delay_ms): (u64, u64), queue: Duration) -> LinkSpec {
    let rate = Rate::from_mbps(mbps);
    let config = LinkConfig {
        rate: RateModel::Constant(rate),
        queue: rate.amount_in(queue).max(Bytes::kilo(60)),
        delay: Duration::from_millis(delay_ms),
        ..LinkConfig::wire()
    };
    LinkSpec {
        name: format!("{mbps} Mbit/s"),
        up: config.clone(),
        down: config,
    }
}
