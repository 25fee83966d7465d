//! Rules for packets between sites that are neither TCP, UDP nor pings.
//!
//! Owns whose name they bear. The relay passes on only what is from a network that its client
//! offers, so what is from elsewhere bears this machine's address there. Those for hosts whose
//! router this machine is not come to them in its name, for answers would go to the router.

use std::net::IpAddr;

use super::ECHO;
use crate::sites::Offered;

/// What rules call a family.
pub(super) struct Family {
    pub(super) is_v4: bool,
    /// Its packets' headers.
    pub(super) ip: &'static str,
    pub(super) icmp: &'static str,
    pub(super) version: &'static str,
    /// Types of what hosts and routers say of others' packets.
    pub(super) errors: &'static str,
    /// What was put into each pair of sets.
    site: &'static str,
    own: &'static str,
}

pub(super) const V4: Family = Family {
    is_v4: true,
    ip: "ip",
    icmp: "icmp",
    version: "ipv4",
    errors: "{ destination-unreachable, time-exceeded, parameter-problem }",
    site: "@site4",
    own: "@own4",
};
pub(super) const V6: Family = Family {
    is_v4: false,
    ip: "ip6",
    icmp: "icmpv6",
    version: "ipv6",
    errors: "{ destination-unreachable, packet-too-big, time-exceeded, parameter-problem }",
    site: "@site6",
    own: "@own6",
};

impl Family {
    /// Leaves such packets to sites alone.
    pub(super) fn leave_alone(&self) -> String {
        let Self { ip, icmp, site, .. } = self;
        format!(
            "meta l4proto != {{ tcp, udp, {icmp} }} {ip} daddr {site} return\n\
             {ip} daddr {site} {icmp} type != echo-request return\n"
        )
    }

    /// Has them go by the device; what is neither has been told from the rest before.
    pub(super) fn take_up(&self) -> String {
        let Self { ip, icmp, site, .. } = self;
        let then = format!("meta mark set {} return", ECHO.mark);
        format!(
            "{ip} daddr {site} meta l4proto != {icmp} {then}\n\
             {ip} daddr {site} {icmp} type != echo-request {then}\n"
        )
    }

    /// Lets those of others in by the device, and brings answers of hosts that have been asked in
    /// this machine's name there; what has a mark is for sockets that speak in others' names.
    pub(super) fn let_in(&self, tun: &str) -> String {
        let Self { ip, site, own, .. } = self;
        format!(
            "iifname \"{tun}\" {ip} saddr {site} {ip} daddr {own} accept\n\
             iifname != \"{tun}\" meta mark 0 meta l4proto != {{ tcp, udp }} ct direction reply \
             ct original {ip} saddr {site} meta mark set {}\n",
            ECHO.mark
        )
    }

    /// Names what goes to other sites, and what comes from them.
    pub(super) fn name(&self, tun: &str, offered: &Offered) -> String {
        let Self {
            ip,
            icmp,
            site,
            own,
            ..
        } = self;
        let to_others = format!("oifname \"{tun}\" {ip} daddr {site} meta l4proto != {icmp}");
        let mut rules = format!("{to_others} {ip} saddr {own} accept\n");
        if let Some(address) = self.address(offered) {
            rules += &format!("{to_others} snat {ip} to {address}\n");
        }
        let shown = offered.shown.iter().map(|name| format!(", \"{name}\""));
        rules
            + &format!(
                "oifname != {{ \"{tun}\"{} }} meta l4proto != {{ tcp, udp }} \
                 {ip} saddr {site} {ip} daddr {own} masquerade\n",
                shown.collect::<String>()
            )
    }

    /// Of what this site's routers say about others' packets, whoever says it in which network.
    pub(super) fn name_errors(&self, tun: &str, offered: &Offered) -> String {
        let Self {
            ip,
            icmp,
            site,
            own,
            errors,
            ..
        } = self;
        let Some(address) = self.address(offered) else {
            return String::new();
        };
        format!(
            "oifname \"{tun}\" {ip} daddr {site} {ip} saddr != {own} {icmp} type {errors} \
             {ip} saddr set {address}\n"
        )
    }

    /// This machine's own for other sites.
    fn address(&self, offered: &Offered) -> Option<IpAddr> {
        let own = &offered.addresses;
        own.iter().copied().find(|ip| ip.is_ipv4() == self.is_v4)
    }

    /// Whether others have anything of this family here.
    pub(super) fn is_offered(&self, offered: &Offered) -> bool {
        let mut ranges = offered.ranges.iter();
        ranges.any(|it| it.address.is_ipv4() == self.is_v4)
    }
}
