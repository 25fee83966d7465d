//! Names at the relay: the resolvers it uses itself, and looking a name up.
//!
//! Owns the reading of `/etc/resolv.conf` and the limits on a lookup. Which of the addresses may
//! be used, and in which order they are tried, is left to others.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::sync::Once;

use tabane_base::Duration;
use tabane_core::PublicKey;
use tabane_linux::lookups::Lookups;

use crate::request::Status;
use crate::target::HostName;

const RESOLV_CONF: &str = "/etc/resolv.conf";

const DNS_PORT: u16 = 53;

/// As many as the system's own resolver reads (resolv.conf(5), MAXNS).
const MAX_RESOLVERS: usize = 3;

/// Addresses kept of one name: enough for both families of any sane service; the rest would only
/// prolong failing.
const MAX_ADDRESSES: usize = 16;

/// The system's resolver gives up after 5 s per server and try; clients wait no longer than that.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(6);

/// The resolvers that `/etc/resolv.conf` names, best first; empty where there are none. That it
/// cannot be read is said once, however often it is looked for.
#[must_use]
pub fn system_resolvers() -> Vec<SocketAddr> {
    match fs::read_to_string(RESOLV_CONF) {
        Ok(text) => parse_resolvers(&text),
        Err(error) => {
            static SAID: Once = Once::new();
            SAID.call_once(|| {
                tracing::warn!(
                    %error,
                    "cannot read {RESOLV_CONF}, where `nameserver ADDRESS` names a resolver"
                );
            });
            Vec::new()
        }
    }
}

fn parse_resolvers(text: &str) -> Vec<SocketAddr> {
    let address = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let ip: IpAddr = match words.next() {
            // An address with a scope (`fe80::1%eth0`) is left out: its interface may be another
            // one tomorrow.
            Some("nameserver") => words.next()?.parse().ok()?,
            _ => return None,
        };
        Some(SocketAddr::new(ip, DNS_PORT))
    };
    text.lines()
        .filter_map(address)
        .take(MAX_RESOLVERS)
        .collect()
}

/// The addresses of `name` with `port`, as the system orders them; at least one.
pub(crate) async fn lookup(
    lookups: &Lookups<PublicKey>,
    client: PublicKey,
    name: &HostName,
    port: u16,
) -> Result<Vec<SocketAddr>, Status> {
    let lookup = lookups.find(client, name.as_str(), port);
    let addresses = tokio::time::timeout(LOOKUP_TIMEOUT, lookup)
        .await
        .map_err(|_| Status::NameNotFound)?
        .map_err(|_| Status::NameNotFound)?;
    let mut found: Vec<SocketAddr> = Vec::new();
    for address in addresses {
        if !found.contains(&address) && found.len() < MAX_ADDRESSES {
            found.push(address);
        }
    }
    if found.is_empty() {
        return Err(Status::NameNotFound);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolv_conf_is_read_as_the_system_reads_it() {
        let text = "# generated\n; old\nsearch example.org\noptions ndots:2\n\
                    nameserver 127.0.0.53\n nameserver\t2001:db8::53  # second\n\
                    nameserver fe80::1%eth0\nnameserver bogus\nnameserver 192.0.2.1\n\
                    nameserver 192.0.2.2\n#nameserver 192.0.2.3\n";
        let expected: Vec<SocketAddr> = ["127.0.0.53:53", "[2001:db8::53]:53", "192.0.2.1:53"]
            .map(|text| text.parse().unwrap())
            .into();
        assert_eq!(parse_resolvers(text), expected);
        assert_eq!(parse_resolvers(""), []);
    }
}
