//! Our table of packet filter rules, and the routing that goes with it.
//!
//! Owns the rules' text. They stay behind when the process is killed, and do nothing then: marked
//! packets find an empty routing table and go on by the machine's own, and a TPROXY rule without a
//! listener passes packets on unmarked. So nothing here can cut anybody off.

use std::fmt::Write;
use std::net::IpAddr;

use anyhow::{Context, Result};
use tabane_base::Prefix;
use tabane_linux::nft;
use tabane_linux::routing::{MarkRule, Routing};

const TABLE: &str = "tabane";
/// Echo requests, and what comes back for them: by the TUN device, while the relay answers.
pub(super) const ECHO: MarkRule = MarkRule {
    priority: 10_620,
    mark: 0x1063,
    table: 10_620,
};
/// What hosts behind this machine send: to the sockets here.
pub(super) const LAN: MarkRule = MarkRule {
    priority: 10_621,
    mark: 0x1064,
    table: 10_621,
};
/// Never carried, whatever the user says: this host, the wire, groups.
const NEVER_V4: &str = "127.0.0.0/8, 169.254.0.0/16, 224.0.0.0/3";
const NEVER_V6: &str = "::1/128, fe80::/10, ff00::/8";

/// What the rules are to do.
#[derive(Debug, Default)]
pub(super) struct Filter {
    /// The TUN device for echo requests.
    pub(super) tun: Option<String>,
    /// Interfaces with hosts behind them, and the port of the sockets for those.
    pub(super) lan: Option<(Vec<String>, u16)>,
    /// What is in force.
    text: Option<String>,
}

impl Filter {
    /// Puts the rules in force, with `direct` left alone.
    pub(super) fn apply(&mut self, direct: &[Prefix]) -> Result<()> {
        if self.tun.is_none() && self.lan.is_none() {
            return Ok(());
        }
        let text = self.rules(direct);
        if self.text.as_ref() != Some(&text) {
            nft::replace_table(TABLE, &text).context("cannot set up packet filter rules")?;
            self.text = Some(text);
        }
        Ok(())
    }

    fn rules(&self, direct: &[Prefix]) -> String {
        const LEFT_ALONE: &str = "ip daddr @direct4 return\nip6 daddr @direct6 return\n";
        let (echo, lan) = (ECHO.mark, LAN.mark);
        let echo = format!(
            "icmp type echo-request meta mark set {echo}\n\
             icmpv6 type echo-request meta mark set {echo}\n"
        );
        let mut rules = sets(direct);
        if let Some(tun) = &self.tun {
            rules += &format!(
                "chain ping {{\ntype route hook output priority mangle\n\
                 meta mark != 0 return\n{LEFT_ALONE}{echo}}}\n"
            );
            // Before firewalls ask whether this is the interface that the sender is reached by.
            rules += &format!(
                "chain pong {{\ntype filter hook prerouting priority -310\n\
                 iifname \"{tun}\" meta mark set {}\n}}\n",
                ECHO.mark
            );
        }
        if let Some((interfaces, port)) = &self.lan {
            let names: Vec<String> = interfaces
                .iter()
                .map(|name| format!("\"{name}\""))
                .collect();
            rules += &format!(
                "chain lan {{\ntype filter hook prerouting priority mangle\n\
                 iifname != {{ {} }} return\n\
                 fib daddr type {{ local, broadcast, multicast, anycast }} return\n{LEFT_ALONE}",
                names.join(", ")
            );
            if self.tun.is_some() {
                rules += &echo;
            }
            for (family, host) in [("ip", "127.0.0.1"), ("ip6", "[::1]")] {
                let version = if family == "ip" { "ipv4" } else { "ipv6" };
                rules += &format!(
                    "meta nfproto {version} meta l4proto {{ tcp, udp }} \
                     tproxy {family} to {host}:{port} meta mark set {lan} accept\n"
                );
            }
            rules += "}\n";
        }
        rules
    }
}

fn sets(direct: &[Prefix]) -> String {
    let mut v4 = NEVER_V4.to_owned();
    let mut v6 = NEVER_V6.to_owned();
    for prefix in direct {
        let Prefix { address, bits } = prefix;
        // Writing into a `String` cannot fail.
        let _ = match address {
            IpAddr::V4(_) => write!(v4, ", {address}/{bits}"),
            IpAddr::V6(_) => write!(v6, ", {address}/{bits}"),
        };
    }
    let set = |name, kind, elements| {
        format!(
            "set {name} {{\ntype {kind}\nflags interval\nauto-merge\n\
             elements = {{ {elements} }}\n}}\n"
        )
    };
    set("direct4", "ipv4_addr", v4) + &set("direct6", "ipv6_addr", v6)
}

/// Removes what a daemon of this network namespace has left, or may have left.
pub(crate) async fn clear_leftovers() -> Result<()> {
    let routing = Routing::open()?;
    for rule in [ECHO, LAN] {
        routing.remove_rule(rule).await?;
    }
    routing.remove_local(LAN.table).await?;
    match nft::remove_table(TABLE) {
        // Without the program there are no rules of ours.
        Ok(()) | Err(nft::NftError::Start(_)) => Ok(()),
        Err(error) => Err(error).context("cannot remove our packet filter rules"),
    }
}
