//! Relays' and peers' names, by this host's resolver.
//!
//! Owns when a name is looked up again. Which relays there are is the session's plan.

use std::net::SocketAddr;

use anyhow::{Result, bail};
use tabane_base::{Destination, Duration, Host};
use tabane_linux::interfaces::Watch;
use tabane_linux::threads::lookup_host;
use tabane_store::{RelayEntry, RelayName};
use tabane_tunnel::Client;
use tokio::time::{Instant, sleep_until};

/// Pauses before a relay's name is looked up again: first and longest.
const FIRST_RESOLVE_PAUSE: Duration = Duration::from_millis(500);
const LAST_RESOLVE_PAUSE: Duration = Duration::from_secs(15);
/// Names that are known are looked up again after this.
const NAMES_LAST: Duration = Duration::from_secs(600);

/// Looks up relays' names for ever: those without an address, and all while the relay in use is
/// silent, ever more rarely and whenever interfaces change; else now and then, for they may move.
pub(super) async fn follow(
    client: Client,
    relays: Vec<(RelayName, RelayEntry)>,
    mut known: Vec<Vec<SocketAddr>>,
    mut watch: Watch,
) {
    let mut pause = FIRST_RESOLVE_PAUSE;
    let mut renew_at = Instant::now() + NAMES_LAST;
    loop {
        let is_missing = client.is_given_up() || known.iter().any(Vec::is_empty);
        let next_at = match is_missing {
            true => renew_at.min(Instant::now() + pause),
            false => renew_at,
        };
        tokio::select! {
            () = sleep_until(next_at) => pause = (pause * 2).min(LAST_RESOLVE_PAUSE),
            () = client.until_given_up(), if !is_missing => pause = FIRST_RESOLVE_PAUSE,
            Some(()) = watch.changed(), if is_missing => pause = FIRST_RESOLVE_PAUSE,
        }
        let is_renewal = renew_at <= Instant::now() || client.is_given_up();
        if is_renewal {
            renew_at = Instant::now() + NAMES_LAST;
        }
        for (place, (name, relay)) in relays.iter().enumerate() {
            if !is_renewal && !known[place].is_empty() {
                continue;
            }
            match resolve(&relay.addresses).await {
                Ok(found) if !is_same(&found, &known[place]) => {
                    tracing::info!(relay = %name, addresses = ?found, "found");
                    known[place].clone_from(&found);
                    client.set_relay_addrs(place, found);
                }
                Ok(_) => {}
                Err(error) => tracing::debug!(relay = %name, "{error:#}"),
            }
        }
    }
}

/// The same addresses; resolvers give them in any order.
fn is_same(some: &[SocketAddr], others: &[SocketAddr]) -> bool {
    some.len() == others.len() && some.iter().all(|one| others.contains(one))
}

/// A relay's or a peer's addresses; names by this host's resolver, outside the session.
pub(crate) async fn resolve(destinations: &[Destination]) -> Result<Vec<SocketAddr>> {
    let mut addresses = Vec::new();
    let mut fault = None;
    for destination in destinations {
        match &destination.host {
            Host::Ip(ip) => addresses.push(SocketAddr::new(*ip, destination.port)),
            Host::Name(name) => match lookup_host((name.as_str(), destination.port)).await {
                Ok(found) => addresses.extend(found),
                Err(error) => fault = Some(format!("{name}: {error}")),
            },
        }
    }
    if addresses.is_empty() {
        let fault = fault.unwrap_or_default();
        bail!("cannot resolve the relay's name ({fault}); does DNS work here?");
    }
    Ok(addresses)
}
