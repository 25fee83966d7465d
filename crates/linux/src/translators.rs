//! Which translators between IPv6 and IPv4 this host's network has, by what its resolver says.

use std::net::IpAddr;
use std::time::Duration;

use tabane_base::Translator;
use tokio::net::lookup_host;
use tokio::sync::Notify;
use tokio::time::timeout;

/// A resolver that says nothing for so long will say nothing.
const PATIENCE: Duration = Duration::from_secs(10);

/// Shows them now and whenever `changed` is told; where the resolver does not answer, they stay who
/// they were.
pub async fn follow_translators(changed: &Notify, mut show: impl FnMut(Vec<Translator>)) {
    loop {
        if let Some(translators) = ask().await {
            show(translators);
        }
        changed.notified().await;
    }
}

/// By RFC 7050 §3.
async fn ask() -> Option<Vec<Translator>> {
    let asked = timeout(PATIENCE, lookup_host((Translator::NAME, 0))).await;
    let shown = asked.ok()?.ok()?.filter_map(|answer| match answer.ip() {
        IpAddr::V6(ip) => Translator::shown_by(ip),
        IpAddr::V4(_) => None,
    });
    Some(shown.collect())
}
