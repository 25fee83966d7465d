//! Neighbours on the local network: who announces that it lends its link, and where it is.
//!
//! DNS-SD over multicast DNS (RFC 6763, RFC 6762), service `_tabane._tcp`; the text record says the
//! key. One that announces nothing is called instead, on all [`networks`]. Nothing that is found
//! here is trusted: a neighbour proves its key when it is spoken to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::Duration;

use anyhow::{Context, Result};
use mdns_sd::{ResolvedService, ServiceDaemon, ServiceEvent, ServiceInfo};
use tabane_base::{Destination, Host};
use tabane_core::PublicKey;
use tabane_linux::interfaces::{self, Interface, Scope};
use tabane_neighbour::CallRoute;
use tokio::time::{Instant, timeout_at};

const SERVICE: &str = "_tabane._tcp.local.";
/// The text record's key for the public key.
const KEY: &str = "key";
/// How long a farewell may take.
const FAREWELL_TIME: Duration = Duration::from_millis(200);
/// How often it is seen whether this machine has other addresses.
const ADDRESSES_INTERVAL: Duration = Duration::from_secs(2);
/// No more are taken note of.
const MAX_FOUND: usize = 64;

/// Says on the local networks that this machine lends its link, until it is dropped.
pub(crate) struct Announcement {
    daemon: ServiceDaemon,
    name: String,
}

/// Somebody who announces itself.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Found {
    /// The key it says it has; to be proved there.
    pub(crate) key: PublicKey,
    /// Where it says it listens, IPv4 first.
    pub(crate) at: Vec<Destination>,
}

impl Announcement {
    /// Begins to announce this machine by `name`, where it listens on `port`.
    pub(crate) fn start(name: &str, port: u16, key: PublicKey) -> Result<Self> {
        let key = key.to_string();
        let daemon = ServiceDaemon::new().context("multicast DNS")?;
        let interval = u32::try_from(ADDRESSES_INTERVAL.as_secs()).unwrap_or(u32::MAX);
        daemon.set_ip_check_interval(interval).context("DNS-SD")?;
        // A host name of our own: the machine's may be announced by another program.
        let plain = key.chars().filter(char::is_ascii_alphanumeric);
        let host = format!("tabane-{}.local.", plain.take(12).collect::<String>());
        let service = ServiceInfo::new(SERVICE, name, &host, "", port, &[(KEY, &*key)][..]);
        let service = service.context("DNS-SD")?.enable_addr_auto();
        let name = service.get_fullname().to_owned();
        daemon.register(service).context("DNS-SD")?;
        Ok(Self { daemon, name })
    }
}

impl Drop for Announcement {
    fn drop(&mut self) {
        // Who does not hear the farewell finds nobody there.
        if let Ok(done) = self.daemon.unregister(&self.name) {
            let _ = done.recv_timeout(FAREWELL_TIME);
        }
        let _ = self.daemon.shutdown();
    }
}

/// Those who announce themselves, until one is what was looked for or the time is over.
pub(crate) async fn find(time: Duration, is_enough: impl Fn(&Found) -> bool) -> Result<Vec<Found>> {
    let deadline = Instant::now() + time;
    let daemon = ServiceDaemon::new().context("multicast DNS")?;
    let events = daemon.browse(SERVICE).context("DNS-SD")?;
    let mut all: Vec<Found> = Vec::new();
    while let Ok(Ok(event)) = timeout_at(deadline, events.recv_async()).await {
        let ServiceEvent::ServiceResolved(service) = event else {
            continue;
        };
        let Some(found) = read(&service) else {
            continue;
        };
        all.retain(|other| other.key != found.key);
        let is_last = is_enough(&found) || all.len() + 1 == MAX_FOUND;
        all.push(found);
        if is_last {
            break;
        }
    }
    // Its thread ends by itself.
    let _ = daemon.shutdown();
    Ok(all)
}

/// All hosts on a link (RFC 4291 §2.7.1).
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// How everybody on the local networks is called who listens at this port.
pub(crate) async fn networks(port: u16) -> Vec<CallRoute> {
    let interfaces = interfaces::list().await;
    let interfaces =
        interfaces.inspect_err(|error| tracing::debug!(%error, "cannot list the interfaces"));
    let mut all: Vec<CallRoute> = interfaces
        .unwrap_or_default()
        .iter()
        .filter(|interface| interface.up && interface.carrier)
        .flat_map(|interface| routes(interface, port))
        .collect();
    all.sort();
    all.dedup();
    all
}

/// The same of this interface's networks: of IPv6 from one address that others can keep, and from
/// the one that means something on this link alone, which is all that some networks have.
fn routes(interface: &Interface, port: u16) -> Vec<CallRoute> {
    let near = interface.addresses.iter();
    let near = near.filter(|address| address.scope != Scope::Host && address.ready);
    let v4 = near.clone().filter_map(|it| {
        let all = broadcast(it.address, it.prefix_bits)?;
        Some(CallRoute {
            to: (all, port).into(),
            from: (Ipv4Addr::UNSPECIFIED, 0).into(),
        })
    });
    let v6 = |is_of_link: bool| {
        let mut addresses = near.clone().filter_map(|it| match it.address {
            IpAddr::V6(v6) if v6.is_unicast_link_local() == is_of_link => Some(v6),
            IpAddr::V4(_) | IpAddr::V6(_) => None,
        });
        let ours = addresses.next()?;
        let scope = if is_of_link { interface.index } else { 0 };
        Some(CallRoute {
            to: SocketAddrV6::new(ALL_NODES, port, 0, interface.index).into(),
            from: SocketAddrV6::new(ours, 0, 0, scope).into(),
        })
    };
    v4.chain(v6(false)).chain(v6(true)).collect()
}

/// Where somebody is who answers from there: with the interface's name, where the address means
/// something there alone. It stands where names do, since no other place knows of scopes.
pub(crate) async fn place_of(from: SocketAddr) -> Destination {
    let SocketAddr::V6(v6) = from else {
        return from.into();
    };
    if !v6.ip().is_unicast_link_local() {
        return from.into();
    }
    let interfaces = interfaces::list().await.unwrap_or_default();
    let mut interfaces = interfaces.into_iter();
    let interface = interfaces.find(|interface| interface.index == v6.scope_id());
    let scope = interface.map_or_else(|| v6.scope_id().to_string(), |it| it.interface().to_owned());
    Destination {
        host: Host::Name(format!("[{}%{scope}]", v6.ip())),
        port: v6.port(),
    }
}

/// Whether a place means something only while this machine's interfaces are as they are.
pub(crate) fn is_of_link(at: &Destination) -> bool {
    matches!(&at.host, Host::Name(name) if name.contains('%'))
}

/// The address of all on this one's network, which IPv6 does not have.
fn broadcast(address: IpAddr, prefix_bits: u8) -> Option<Ipv4Addr> {
    let IpAddr::V4(address) = address else {
        return None;
    };
    // Two on a wire have no such address (RFC 3021).
    let hosts = (1..=30)
        .contains(&prefix_bits)
        .then(|| u32::MAX >> prefix_bits)?;
    Some(Ipv4Addr::from_bits(address.to_bits() | hosts))
}

fn read(service: &ResolvedService) -> Option<Found> {
    let key = service.get_property_val_str(KEY)?.parse().ok()?;
    let mut addresses: Vec<IpAddr> = service
        .get_addresses()
        .iter()
        .map(mdns_sd::ScopedIp::to_ip_addr)
        .filter(|address| !is_link_local(*address))
        .collect();
    addresses.sort_by_key(|address| (address.is_ipv6(), *address));
    let port = service.get_port();
    let at = addresses.into_iter().map(|address| Destination {
        host: Host::Ip(address),
        port,
    });
    let at: Vec<_> = at.collect();
    (!at.is_empty()).then_some(Found { key, at })
}

/// Such an address would need an interface beside it.
fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_networks_last_address_is_heard_by_all() {
        let broadcast = |text: &str, bits| {
            let found = super::broadcast(text.parse().unwrap(), bits);
            found.map(|address| address.to_string())
        };
        assert_eq!(broadcast("10.72.9.1", 24).as_deref(), Some("10.72.9.255"));
        assert_eq!(
            broadcast("172.16.5.1", 12).as_deref(),
            Some("172.31.255.255")
        );
        assert_eq!(broadcast("10.0.0.1", 30).as_deref(), Some("10.0.0.3"));
        for (address, bits) in [
            ("10.0.0.1", 31),
            ("10.0.0.1", 32),
            ("10.0.0.1", 0),
            ("fd00::1", 8),
        ] {
            assert_eq!(broadcast(address, bits), None, "{address}/{bits}");
        }
    }
}
