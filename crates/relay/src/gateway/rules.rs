//! What the packet filter does for the gateway.
//!
//! Queue and log are iptables' (nftables of some kernels has no queues) and let packets pass when
//! nobody listens; the relay's rule is nftables', as that of `tabane up --lan`, and does nothing
//! without a listener. So rules that outlive the process, killed, cut nobody off; the next start
//! replaces them.

use anyhow::{Context, Result};
use tabane_gateway::probe_length_max;
use tabane_linux::{
    iptables, nft,
    routing::{MarkRule, Routing},
};

/// Of the log and the queue of packets to the mobile hosts; the next is that of the queue for those
/// from them.
pub const QUEUE_FIRST: u16 = 10_620;
const TABLE: &str = "tabane-gateway";
/// Connections taken up by the relay: to the sockets here.
const SPLIT: MarkRule = MarkRule {
    priority: 10_622,
    mark: 0x1065,
    table: 10_622,
};

/// Each interface has a chain. Names have 28 characters at most, interfaces' 15.
fn chain(radio: &str) -> String {
    format!("tabane-gw-{radio}")
}

/// Logs what is forwarded to `radio`, but for what may be kept back: that goes to the queue
/// `first`, and what comes from there to `first` + 1.
pub(super) fn intercept(radio: &str, first: u16) -> Result<()> {
    let queue = |number: u16| format!("-j NFQUEUE --queue-num {number} --queue-bypass");
    let rules = |is_ipv6| {
        let most = probe_length_max(is_ipv6);
        vec![
            format!(
                "-o {radio} -p tcp -m length --length 0:{most} {}",
                queue(first)
            ),
            format!("-o {radio} -p tcp -j NFLOG --nflog-group {first}"),
            format!("-i {radio} -p tcp {}", queue(first + 1)),
        ]
    };
    iptables::replace_chain(&chain(radio), rules).context("cannot set up packet filter rules")
}

/// Takes that back.
pub(super) fn let_pass(radio: &str) -> Result<()> {
    iptables::remove_chain(&chain(radio)).context("cannot remove our packet filter rules")
}

/// Hands connections that begin behind `radio` to the sockets on `port`, but for those to this
/// machine, to `untouched` ports, and, where `ports` are named, to others than those.
pub(super) async fn split(
    radio: &str,
    port: u16,
    ports: &[u16],
    untouched: &[u16],
    mobiles: &[tabane_base::Prefix],
) -> Result<Routing> {
    let routing = Routing::open()?;
    routing.remove_rule(SPLIT).await?;
    routing.add_local(SPLIT.table).await?;
    routing.add_rule(SPLIT).await?;
    let list = |ports: &[u16]| {
        let words: Vec<String> = ports.iter().map(u16::to_string).collect();
        words.join(", ")
    };
    let mut rules = format!(
        "chain split {{\ntype filter hook prerouting priority mangle\n\
         iifname != \"{radio}\" return\nmeta l4proto != tcp return\n\
         fib daddr type {{ local, broadcast, multicast, anycast }} return\n"
    );
    if !ports.is_empty() {
        rules += &format!("tcp dport != {{ {} }} return\n", list(ports));
    } else if !untouched.is_empty() {
        rules += &format!("tcp dport {{ {} }} return\n", list(untouched));
    }
    let mark = SPLIT.mark;
    rules += &nft::leave_open_alone("", &format!("meta mark set {mark}"));
    for (version, family, host) in [("ipv4", "ip", "127.0.0.1"), ("ipv6", "ip6", "[::1]")] {
        let take = format!(
            "meta l4proto tcp tproxy {family} to {host}:{port} meta mark set {mark} accept\n"
        );
        let of_family = mobiles
            .iter()
            .filter(|p| p.address.is_ipv4() == (family == "ip"));
        if mobiles.is_empty() {
            rules += &format!("meta nfproto {version} {take}");
        } else {
            of_family.for_each(|p| rules += &format!("{family} saddr {p} {take}"));
        }
    }
    rules += "}\n";
    nft::replace_table(TABLE, &rules).context("cannot set up packet filter rules")?;
    Ok(routing)
}

/// New connections pass by; those that are open keep their route until
/// [`unroute`](unroute) takes it.
pub(super) fn unsplit() -> Result<()> {
    // What belongs to open connections still has to find the sockets.
    let mark = SPLIT.mark;
    let rules = format!(
        "chain split {{\ntype filter hook prerouting priority mangle\n{}}}\n",
        nft::leave_open_alone("", &format!("meta mark set {mark}"))
    );
    let kept = nft::replace_table(TABLE, &rules);
    kept.or_else(|_| nft::remove_table(TABLE))
        .context("cannot remove our packet filter rules")
}

/// Takes back all of [`split`].
pub(super) async fn unroute(routing: &Routing) -> Result<()> {
    nft::remove_table(TABLE)?;
    routing.remove_rule(SPLIT).await?;
    routing.remove_local(SPLIT.table).await?;
    Ok(())
}
