//! Our table of packet filter rules, and the routing that goes with it.
//!
//! Owns the rules' text. They stay behind when the process is killed, and do nothing then: marked
//! packets find an empty routing table and go on by the machine's own, and a TPROXY rule without a
//! listener passes packets on unmarked. So nothing here can cut anybody off. Only UDP that hosts
//! behind a router had under way may wait then: until the next start, `tabane down`, or a rest of
//! two minutes.

mod site_packets;

use std::fmt::Write;
use std::net::IpAddr;

use anyhow::{Context, Result};
use tabane_base::Prefix;
use tabane_linux::{
    conntrack, nft,
    routing::{MarkRule, Routing},
};
use tabane_uplinks::clear_gateways;

use crate::sites::Offered;
use crate::sources::ANSWERS;
use site_packets::{Family, V4, V6};

const TABLE: &str = "tabane";
/// Of one that ends.
const GOING: &str = "tabane-going";
/// Pings, every other protocol that the relay serves, and what comes back for them: by the TUN
/// device, while the relay answers.
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
/// Connection requests of theirs that were held back, on their way to the sockets once more.
pub(super) const RELEASED: MarkRule = MarkRule {
    priority: 10_622,
    mark: 0x1068,
    table: LAN.table,
};
/// Never carried, whatever the user says: this host, the wire, groups.
const NEVER_V4: &str = "127.0.0.0/8, 169.254.0.0/16, 224.0.0.0/3";
const NEVER_V6: &str = "::1/128, fe80::/10, ff00::/8";
const LEFT_ALONE: &str = "ip daddr @direct4 return\nip6 daddr @direct6 return\n";

/// The same where there are sites.
const LEFT_ALONE_BUT_SITES: &str = "ip daddr @spared4 return\nip6 daddr @spared6 return\n\
     ip daddr != @site4 ip daddr @direct4 return\n\
     ip6 daddr != @site6 ip6 daddr @direct6 return\n";

/// What the kernel remembers of flows that go by the TUN device under its address.
const LODGED: u32 = 0x1066;
/// The same of flows of hosts behind this machine that came to the sockets here.
const TAKEN: u32 = 0x106b;

/// What the rules are to do.
#[derive(Debug, Default)]
pub(super) struct Filter {
    /// The TUN device for what is neither TCP nor UDP.
    tun: Option<String>,
    lan: Option<LanFilter>,
    /// The families that the device has addresses of.
    lodged: Lodged,
    direct: Vec<Prefix>,
    /// The relays, who serve their own addresses to nobody.
    relays: Vec<Prefix>,
    sites: Sites,
    /// What is in force.
    text: Option<String>,
}

/// What hosts behind this machine send.
#[derive(Debug)]
pub(super) struct LanFilter {
    pub(super) interfaces: Vec<String>,
    /// Of the sockets for it.
    pub(super) port: u16,
    /// Connections that were open before end, rather than go on without them.
    pub(super) ends_open: bool,
}

/// Networks behind other clients, which are carried although they may be left alone otherwise.
#[derive(Debug, Default)]
pub(super) struct Sites {
    pub(super) carried: Vec<Prefix>,
    /// But for these.
    pub(super) spared: Vec<Prefix>,
    /// What others have here.
    pub(super) offered: Offered,
}

/// The families of which every protocol goes by the TUN device; of the others, only pings.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lodged {
    pub(super) v4: bool,
    pub(super) v6: bool,
}

impl Lodged {
    fn has(self, family: &Family) -> bool {
        if family.is_v4 { self.v4 } else { self.v6 }
    }
}

impl Filter {
    /// Takes up what hosts behind this machine send.
    pub(super) fn set_lan(&mut self, lan: LanFilter) -> Result<()> {
        self.lan = Some(lan);
        self.apply()
    }

    /// Takes up what is neither TCP nor UDP for this device; for none, leaves it alone.
    pub(super) fn set_tun(&mut self, name: Option<&str>) -> Result<()> {
        self.tun = name.map(ToOwned::to_owned);
        self.apply()
    }

    /// The device has addresses of these families from here on.
    pub(super) fn set_lodged(&mut self, lodged: Lodged) -> Result<()> {
        self.lodged = lodged;
        self.apply()
    }

    /// Leaves these destinations alone, but for TCP, UDP and pings to sites.
    pub(super) fn set_left_alone(&mut self, direct: Vec<Prefix>, sites: Sites) -> Result<()> {
        (self.direct, self.sites) = (direct, sites);
        self.apply()
    }

    /// Leaves pings and the like to relays alone.
    pub(super) fn set_relays(&mut self, relays: Vec<Prefix>) -> Result<()> {
        self.relays = relays;
        self.apply()
    }

    /// Puts the rules in force.
    fn apply(&mut self) -> Result<()> {
        if self.tun.is_none() && self.lan.is_none() {
            return Ok(());
        }
        let text = self.rules();
        if self.text.as_ref() != Some(&text) {
            nft::replace_table(TABLE, &text).context("cannot set up packet filter rules")?;
            self.text = Some(text);
        }
        Ok(())
    }

    fn rules(&self) -> String {
        let Sites {
            carried,
            spared,
            offered,
        } = &self.sites;
        let mut rules = set_pair("direct", [NEVER_V4, NEVER_V6], &self.direct);
        if !carried.is_empty() {
            rules += &set_pair("site", ["", ""], carried);
            rules += &set_pair("spared", [NEVER_V4, NEVER_V6], spared);
            rules += &set_pair("own", ["", ""], &offered.ranges);
        }
        if let Some(tun) = &self.tun {
            let left_alone = self.left_alone();
            rules += &set_pair("relay", ["", ""], &self.relays);
            rules += &self.device_rules(tun);
            rules += &format!(
                "chain own {{\ntype route hook output priority mangle\n\
                 meta mark != 0 return\n{left_alone}jump beside\n}}\n"
            );
        }
        if let Some(lan) = &self.lan {
            rules += &self.lan_rules(lan);
        }
        rules
    }

    fn left_alone(&self) -> String {
        if self.sites.carried.is_empty() {
            return LEFT_ALONE.to_owned();
        }
        let mut rules = LEFT_ALONE_BUT_SITES.to_owned();
        for family in [V4, V6].iter().filter(|it| !self.joins(it)) {
            rules += &family.leave_alone();
        }
        rules
    }

    /// Whether packets of a family go between sites that are neither TCP, UDP nor pings.
    fn joins(&self, family: &Family) -> bool {
        let Sites {
            carried, offered, ..
        } = &self.sites;
        self.lodged.has(family) && !carried.is_empty() && family.is_offered(offered)
    }

    fn lan_rules(&self, lan: &LanFilter) -> String {
        let names: Vec<String> = lan
            .interfaces
            .iter()
            .map(|name| format!("\"{name}\""))
            .collect();
        let released = format!("iifname \"lo\" meta mark {}", RELEASED.mark);
        // Said to sockets that speak in another's name.
        let answers = ANSWERS.mark;
        let also = format!("meta mark set {}", LAN.mark);
        let beside = match &self.tun {
            Some(_) => "jump beside\n",
            None => "",
        };
        let left_alone = self.left_alone();
        // What has few hops left asks who is on the way, which is not by the relay.
        let few_hops = "meta l4proto udp ip ttl < 32 return\n\
                        meta l4proto udp ip6 hoplimit < 32 return\n";
        let open = match lan.ends_open {
            true => String::new(),
            false => few_hops.to_owned() + &nft::leave_open_alone("", &also),
        };
        // Their mark brings them here, and past the sockets' hold.
        let released = to_sockets(&released, lan.port, "accept");
        let taken = to_sockets("", lan.port, &format!("{also} goto taken"));
        format!(
            "chain taken {{\nct mark 0 ct mark set {TAKEN}\n}}\n\
             chain lan {{\ntype filter hook prerouting priority mangle\n\
             meta mark {answers} accept\n{released}iifname != {{ {} }} return\n\
             fib daddr type {{ local, broadcast, multicast, anycast }} return\n\
             {left_alone}{beside}{open}{taken}}}\n",
            names.join(", ")
        )
    }

    /// What goes by the device, and what comes in by it.
    fn device_rules(&self, tun: &str) -> String {
        let echo = ECHO.mark;
        let mut beside = "chain beside {\nmeta l4proto { tcp, udp } return\n\
             ip daddr @relay4 return\nip6 daddr @relay6 return\n"
            .to_owned();
        let mut names = String::new();
        // What nobody asked for, whatever the relay lets through: a stranger there would be within
        // this machine's firewall.
        let mut asked = "chain asked {\ntype filter hook prerouting priority mangle\n".to_owned();
        let from = format!("iifname \"{tun}\"");
        let (mut said, offered) = (String::new(), &self.sites.offered);
        for family in [V4, V6] {
            let (version, icmp, errors) = (family.version, family.icmp, family.errors);
            let of = format!("meta nfproto {version}");
            // What goes by the device goes on, for as long as its flow is remembered: one that is
            // translated and leaves by another interface is refused to whoever sends.
            let kept = format!("{of} ct mark {LODGED} meta mark set {echo} return\n");
            if !self.lodged.has(&family) {
                beside += &format!("{kept}{icmp} type echo-request meta mark set {echo}\n");
                asked += &format!(
                    "{from} {icmp} type echo-reply accept\n{from} {icmp} type {errors} accept\n\
                     {from} meta nfproto {version} drop\n"
                );
                continue;
            }
            if self.joins(&family) {
                beside += &family.take_up();
                asked += &family.let_in(tun);
                names += &family.name(tun, offered);
                said += &family.name_errors(tun, offered);
            }
            // Flows that began before, or the other way, go on as they are: addresses are chosen
            // with a flow's first packet. Of ICMP only questions begin one, and errors follow what
            // they are about.
            beside += &format!(
                "{kept}{of} ct state {{ invalid, untracked }} return\n\
                 {of} ct status confirmed return\n\
                 {of} ct direction reply return\n\
                 {icmp} type != echo-request return\n\
                 {of} meta mark set {echo} return\n"
            );
            asked += &format!(
                "{from} {of} ct state != {{ established, related }} drop\n\
                 {from} {of} ct mark != {LODGED} drop\n"
            );
            names += &format!("{of} oifname \"{tun}\" ct mark set {LODGED} masquerade\n");
        }
        beside += "}\n";
        beside += &asked;
        beside += "}\n";
        if !names.is_empty() {
            // Before anybody else names what leaves here.
            beside += &format!(
                "chain names {{\ntype nat hook postrouting priority srcnat - 1\n{names}}}\n"
            );
        }
        if !said.is_empty() {
            beside +=
                &format!("chain said {{\ntype filter hook postrouting priority mangle\n{said}}}\n");
        }
        // Marked before firewalls ask whether this is the interface that the sender is reached by;
        // for hosts behind, routed without.
        beside
            + &format!(
                "chain answers {{\ntype filter hook prerouting priority -310\n\
                 {from} meta mark set {echo}\n}}\n\
                 chain behind {{\ntype filter hook prerouting priority dstnat + 10\n\
                 {from} fib daddr type != local meta mark set 0\n}}\n"
            )
    }
}

/// Hands the TCP and UDP that `matches` to the sockets on `port`, and then does what `end` says.
fn to_sockets(matches: &str, port: u16, end: &str) -> String {
    let rule = |(version, family, host)| {
        format!(
            "{matches} meta nfproto {version} meta l4proto {{ tcp, udp }} \
             tproxy {family} to {host}:{port} {end}\n"
        )
    };
    [("ipv4", "ip", "127.0.0.1"), ("ipv6", "ip6", "[::1]")]
        .map(rule)
        .concat()
}

/// A set for each family with this name: what it begins with, and these ranges.
fn set_pair(name: &str, first: [&str; 2], ranges: &[Prefix]) -> String {
    let [mut v4, mut v6] = first.map(ToOwned::to_owned);
    for prefix in ranges {
        let of_family = match prefix.address {
            IpAddr::V4(_) => &mut v4,
            IpAddr::V6(_) => &mut v6,
        };
        let comma = if of_family.is_empty() { "" } else { ", " };
        // Writing into a `String` cannot fail.
        let _ = write!(of_family, "{comma}{prefix}");
    }
    let set = |number, kind, elements: String| {
        let elements = match elements.is_empty() {
            true => String::new(),
            false => format!("elements = {{ {elements} }}\n"),
        };
        format!("set {name}{number} {{\ntype {kind}\nflags interval\nauto-merge\n{elements}}}\n")
    };
    set(4, "ipv4_addr", v4) + &set(6, "ipv6_addr", v6)
}

/// Has what hosts behind go on sending wait, while our sockets go, until their flows are forgotten:
/// a router names what leaves with a flow's first packet, which did not leave, so that what follows
/// would leave without a name that is answered.
pub(super) fn hold_flows() {
    let held = "chain held {\ntype filter hook forward priority filter\n";
    let held = format!("{held}ct mark {TAKEN} drop\n}}\n");
    if let Err(error) = nft::replace_table(GOING, &held) {
        tracing::debug!(%error, "cannot hold the flows of hosts behind");
    }
}

/// Has flows by the device begin anew, and as without it where the rules no longer lead there.
pub(super) fn forget_lodged() {
    if let Err(error) = conntrack::forget(LODGED) {
        tracing::debug!(%error, "cannot have the flows by the device forgotten");
    }
}

/// Removes what a daemon of this network namespace has left, or may have left.
pub(super) async fn clear_leftovers() -> Result<()> {
    let routing = Routing::open()?;
    for rule in [ECHO, LAN, RELEASED] {
        routing.remove_rule(rule).await?;
    }
    routing.remove_local(LAN.table).await?;
    clear_gateways().await?;
    if let Err(error) = conntrack::forget(TAKEN) {
        tracing::debug!(%error, "cannot have the flows of hosts behind forgotten");
    }
    for table in [TABLE, GOING] {
        match nft::remove_table(table) {
            // Without the program there are no rules of ours.
            Ok(()) | Err(nft::NftError::Missing) => {}
            Err(error) => return Err(error).context("cannot remove our packet filter rules"),
        }
    }
    Ok(())
}
