//! Which translators between IPv6 and IPv4 this host's network has, by what its resolver and its
//! routers say.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::threads::lookup_host;
use tabane_base::Translator;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::advertised::{Advertisements, RouterListener};

/// A resolver that says nothing for so long will say nothing.
const PATIENCE: Duration = Duration::from_secs(10);

/// Shows them now, whenever `changed` is told, and when a router says something new; where the
/// resolver does not answer, its own stay who they were. Whoever says it, all are shown: a forged
/// one stands beside the true one, and not in its place.
pub async fn follow_translators(changed: &Notify, mut show: impl FnMut(Vec<Translator>)) {
    let mut routers = RouterListener::start().ok();
    let mut advertised = Advertisements::default();
    let mut resolved = Vec::new();
    loop {
        if let Some(translators) = find_translators().await {
            resolved = translators;
        }
        loop {
            let mut all = resolved.clone();
            all.extend(advertised.translators(Instant::now()));
            show(all);
            tokio::select! {
                () = changed.notified() => break,
                news = RouterListener::hear(&mut routers) => {
                    advertised.on_advertisement(Instant::now(), news);
                }
            }
        }
    }
}

/// What the resolver says, by RFC 7050 §3; `None` where it does not answer.
pub async fn find_translators() -> Option<Vec<Translator>> {
    let asked = timeout(PATIENCE, lookup_host((Translator::NAME, 0))).await;
    let shown = asked.ok()?.ok()?.filter_map(|answer| match answer.ip() {
        IpAddr::V6(ip) => Translator::shown_by(ip),
        IpAddr::V4(_) => None,
    });
    Some(shown.collect())
}
