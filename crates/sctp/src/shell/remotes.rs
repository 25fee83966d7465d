//! Where the peer is: addresses and names, as they are typed, with the ports of UDP.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

use anyhow::Result;
use tabane_store::UsageError;

use super::ways::is_destination;

/// Addresses and names as addresses with UDP ports, each once.
pub fn resolve(to: &[String], udp_port: u16) -> Result<Vec<SocketAddr>> {
    let mut remotes: Vec<SocketAddr> = Vec::new();
    for text in to.iter().map(|text| text.trim()) {
        let found = match literal(text, udp_port)? {
            Some(address) => vec![address],
            None => look_up(text, udp_port)?,
        };
        if found.is_empty() {
            let text = format!("'{text}' has no address that one can send to");
            return Err(UsageError::new(text).into());
        }
        for address in found {
            // A host is one host, whatever the port.
            if remotes.iter().all(|known| known.ip() != address.ip()) {
                remotes.push(address);
            }
        }
    }
    Ok(remotes)
}

/// What is an address already, alone or with its port.
fn literal(text: &str, udp_port: u16) -> Result<Option<SocketAddr>> {
    // A scope stands behind the address: fe80::1%eth0.
    let (unscoped, is_scoped) = match text.split_once('%') {
        Some((address, _)) => (address.trim_start_matches('['), true),
        None => (text, false),
    };
    let bare = unscoped
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .unwrap_or(unscoped);
    let address = match (bare.parse::<IpAddr>(), text.parse::<SocketAddr>()) {
        (Ok(address), _) => SocketAddr::new(address.to_canonical(), udp_port),
        (_, Ok(address)) => SocketAddr::new(address.ip().to_canonical(), address.port()),
        (Err(_), Err(_)) => return Ok(None),
    };
    let is_link_local = matches!(address.ip(), IpAddr::V6(v6) if v6.is_unicast_link_local());
    if is_link_local || is_scoped {
        let text = format!(
            "'{text}' means something on one link alone, and SCTP tells addresses from end to end; \
             name a global address of the peer, or one of its network (fd…)"
        );
        return Err(UsageError::new(text).into());
    }
    if !is_destination(address.ip()) {
        let text = format!("'{text}' is no address that one can send to");
        return Err(UsageError::new(text).into());
    }
    Ok(Some(address))
}

fn look_up(text: &str, udp_port: u16) -> Result<Vec<SocketAddr>> {
    let found: Vec<SocketAddr> = match text.rsplit_once(':') {
        Some(_) => text.to_socket_addrs().map(Iterator::collect),
        None => (text, udp_port).to_socket_addrs().map(Iterator::collect),
    }
    .map_err(|error| UsageError::new(format!("cannot find '{text}': {error}")))?;
    let mut found = found;
    found.retain(|address| is_destination(address.ip()));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_once_and_strange_ones_refused() {
        let list = |text: &str| {
            let to: Vec<String> = text.split(',').map(str::to_owned).collect();
            resolve(&to, 9899)
        };
        let texts = |text: &str| {
            let found = list(text).unwrap();
            found.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let v4 = texts("192.0.2.1,192.0.2.2:7,192.0.2.1, 192.0.2.2,::ffff:192.0.2.1");
        assert_eq!(v4, ["192.0.2.1:9899", "192.0.2.2:7"]);
        let v6 = texts("2001:db8::1,[2001:db8::2]:7,[2001:db8::3],192.0.2.1,[2001:db8:0::1]:8");
        let expected = [
            "[2001:db8::1]:9899",
            "[2001:db8::2]:7",
            "[2001:db8::3]:9899",
            "192.0.2.1:9899",
        ];
        assert_eq!(v6, expected);
        for bad in [
            "",
            "0.0.0.0",
            "224.0.0.1",
            "192.0.2.1:x",
            "::",
            "ff02::1",
            "[2001:db8::1]:x",
        ] {
            assert!(list(bad).is_err(), "{bad}");
        }
        for scoped in [
            "fe80::1",
            "fe80::1%eth0",
            "[fe80::1%eth0]:9899",
            "[fe80::1]:9899",
        ] {
            let said = list(scoped).unwrap_err().to_string();
            assert!(said.contains("one link alone"), "{scoped}: {said}");
        }
    }
}
