//! The resolvers of the network that one link leads to, which know names that others do not: a
//! portal's, as a rule.
//!
//! Asked in this order, until one knows some: systemd-resolved (`resolvectl`), NetworkManager
//! (`nmcli`), the network's routers (RFC 8106). One short process each, as `network_manager` does.

use std::net::{IpAddr, SocketAddr};
use std::process::Stdio;
use std::time::Instant;

use tabane_base::Duration;
use tabane_linux::advertised::{Advertisements, RouterListener, solicit};
use tabane_linux::interfaces::Interface;
use tokio::process::Command;
use tokio::time::timeout;

const DNS_PORT: u16 = 53;
/// As many as resolv.conf may have.
const MAX_RESOLVERS: usize = 3;
/// Who manages names answers within some 30 ms; routers within half a second (RFC 4861 §10).
const PATIENCE: Duration = Duration::from_secs(1);

/// Those of a link; none where nobody knows.
pub async fn resolvers_of(link: &Interface) -> Vec<SocketAddr> {
    let interface = link.interface();
    let mut found = said_by("resolvectl", &["dns", interface]).await;
    if found.is_empty() {
        let fields = ["--get-values", "IP4.DNS,IP6.DNS", "device", "show"];
        found = said_by("nmcli", &[&fields[..], &[interface]].concat()).await;
    }
    if found.is_empty() {
        found = announced(link).await;
    }
    let address = |ip: &IpAddr| match ip {
        // Those of the wire are nobody's without it.
        IpAddr::V6(v6) if v6.is_unicast_link_local() => {
            std::net::SocketAddrV6::new(*v6, DNS_PORT, 0, link.index).into()
        }
        ip => SocketAddr::new(*ip, DNS_PORT),
    };
    found.iter().take(MAX_RESOLVERS).map(address).collect()
}

async fn said_by(program: &str, arguments: &[&str]) -> Vec<IpAddr> {
    let mut command = Command::new(program);
    command.args(arguments).env("LC_ALL", "C");
    command.stdin(Stdio::null()).stderr(Stdio::null());
    match timeout(PATIENCE, command.kill_on_drop(true).output()).await {
        Ok(Ok(output)) if output.status.success() => {
            parse(&String::from_utf8_lossy(&output.stdout))
        }
        _ => Vec::new(),
    }
}

/// `Link 2 (wlan0): 192.168.1.1 fe80::1%2 9.9.9.9#dns.quad9.net`, or `192.168.1.1 | 9.9.9.9`. One
/// with a port of its own is left out.
fn parse(text: &str) -> Vec<IpAddr> {
    let words = text.split_ascii_whitespace();
    let bare = words.map(|word| word.split(['#', '%']).next().unwrap_or(word));
    bare.filter_map(|word| word.parse().ok()).collect()
}

async fn announced(link: &Interface) -> Vec<IpAddr> {
    let mut listener = RouterListener::start().ok();
    if solicit(link.interface()).is_err() {
        return Vec::new();
    }
    let mut known = Advertisements::default();
    let hearing = async {
        loop {
            let news = RouterListener::hear(&mut listener).await;
            known.on_advertisement(Instant::now(), news);
            let said = known.of(Instant::now(), link.index, |it| link.has_router(it));
            if !said.resolvers.is_empty() {
                return said.resolvers;
            }
        }
    };
    timeout(PATIENCE, hearing).await.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_however_they_are_written() {
        let read =
            |text: &str| -> Vec<String> { parse(text).iter().map(IpAddr::to_string).collect() };
        let resolved = "Link 2 (wlan0): 192.168.1.1 fe80::1%2 9.9.9.9#dns.quad9.net\n";
        assert_eq!(read(resolved), ["192.168.1.1", "fe80::1", "9.9.9.9"]);
        assert_eq!(
            read("10.0.0.1 | 10.0.0.2\n2001:db8::1\n"),
            ["10.0.0.1", "10.0.0.2", "2001:db8::1"]
        );
        assert!(read("Link 2 (wlan0):\n").is_empty() && read("").is_empty());
    }
}
