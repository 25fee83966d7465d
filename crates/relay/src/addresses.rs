//! Where a relay listens, and under which addresses it is announced.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use anyhow::{Context, Result};
use tabane_base::{Destination, DestinationError, Host};
use tabane_linux::interfaces::{self, Interface};
use tabane_store::{DEFAULT_PORT, UsageError};
use tabane_tunnel::Access;

/// `[::]` takes IPv4 as well, but is not to be had where IPv6 is switched off.
pub(crate) fn default_listen() -> SocketAddr {
    let any_v6 = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    let any = match UdpSocket::bind((any_v6, 0)) {
        Ok(_) => any_v6,
        Err(_) => Ipv4Addr::UNSPECIFIED.into(),
    };
    SocketAddr::new(any, DEFAULT_PORT)
}

/// The literal addresses among what `--public` says: they lead here.
pub(crate) fn public_ips(given: &[String]) -> Vec<IpAddr> {
    let parsed = given
        .iter()
        .filter_map(|text| parse_public(text, DEFAULT_PORT).ok());
    let ip = |destination: Destination| match destination.host {
        Host::Ip(ip) => Some(ip.to_canonical()),
        Host::Name(_) => None,
    };
    parsed.filter_map(ip).collect()
}

/// The first name among what `--public` says.
pub(crate) fn public_name(given: &[String]) -> Option<String> {
    given
        .iter()
        .find_map(|text| match parse_public(text, DEFAULT_PORT).ok()?.host {
            Host::Name(name) => Some(name),
            Host::Ip(_) => None,
        })
}

/// What join strings announce: what was given, else what can be seen from here.
pub(crate) async fn public_addresses(
    given: &[String],
    bound: SocketAddr,
) -> Result<Vec<Destination>> {
    if !given.is_empty() {
        let parse = |text: &String| {
            parse_public(text, bound.port())
                .map_err(|error| UsageError::new(format!("--public {text}: {error}")).into())
        };
        return given.iter().map(parse).collect();
    }
    if !bound.ip().is_unspecified() {
        return Ok(vec![bound.into()]);
    }
    let interfaces = interfaces::list()
        .await
        .context("cannot list the interfaces")?;
    let guessed = guess_addresses(&interfaces, bound.ip().is_ipv4());
    let is_private = guessed.iter().all(|ip| !Access::Public.allows(*ip));
    if guessed.is_empty() {
        return Err(UsageError::new(
            "this machine has no address that clients could reach: give one with --public",
        )
        .into());
    }
    if is_private {
        tracing::warn!(
            "only private addresses here: clients elsewhere need --public ADDR, and a port \
             forwarded to this machine"
        );
    } else {
        tracing::info!("announcing the addresses of this machine; --public ADDR names others");
    }
    Ok(guessed
        .into_iter()
        .map(|ip| SocketAddr::new(ip, bound.port()).into())
        .collect())
}

/// `ADDR` or `ADDR:PORT`, IPv6 with or without brackets.
fn parse_public(text: &str, port: u16) -> Result<Destination, DestinationError> {
    match text.parse::<Ipv6Addr>() {
        Ok(ip) => Ok(Destination {
            host: Host::Ip(ip.into()),
            port,
        }),
        Err(_) => Destination::parse(text, Some(port)),
    }
}

/// The addresses of this machine by which others may reach it: public ones, else private ones;
/// those of links first, then any other (servers carry public addresses on `lo`, too).
fn guess_addresses(interfaces: &[Interface], only_v4: bool) -> Vec<IpAddr> {
    /// Of each kind; a join string should stay one line.
    const MOST: usize = 4;
    let of = |links_only: bool, public_only: bool| -> Vec<IpAddr> {
        interfaces
            .iter()
            .filter(|interface| interface.usable().is_ok() || !links_only)
            .flat_map(Interface::global_addresses)
            .filter(|ip| ip.is_ipv4() || !only_v4)
            .filter(|ip| !ip.is_loopback())
            .filter(|ip| Access::Public.allows(*ip) || !public_only)
            .take(MOST)
            .collect()
    };
    let tiers = [(true, true), (false, true), (true, false), (false, false)];
    let mut guesses = tiers.into_iter().map(|(links, public)| of(links, public));
    guesses.find(|guess| !guess.is_empty()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_addresses_may_have_a_port() {
        let of = |text| parse_public(text, 4510).map(|destination| destination.to_string());
        assert_eq!(of("192.0.2.1").as_deref(), Ok("192.0.2.1:4510"));
        assert_eq!(of("192.0.2.1:99").as_deref(), Ok("192.0.2.1:99"));
        assert_eq!(of("2001:db8::1").as_deref(), Ok("[2001:db8::1]:4510"));
        assert_eq!(of("[2001:db8::1]:99").as_deref(), Ok("[2001:db8::1]:99"));
        assert_eq!(of("relay.example").as_deref(), Ok("relay.example:4510"));
        assert!(of("relay.example:x").is_err());
    }
}
