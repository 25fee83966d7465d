//! What is said of links and relays.

use tabane_tunnel::Lodging;

use crate::doctor::network::{AnswerFacts, Network, RelayFacts};
use crate::doctor::{Finding, Grade, Mode};

/// Below this our packets (1,200 bytes and headers) do not fit; IPv6 asks as much (RFC 8200 §5).
const MIN_MTU: u32 = 1_280;

pub(super) const CLIENTS: [Mode; 3] = [Mode::Run, Mode::Proxy, Mode::Up];
/// Those that use links of their own.
pub(super) const LINKED: [Mode; 4] = [Mode::Run, Mode::Proxy, Mode::Up, Mode::Sctp];

/// What carries packets, and whether it can.
pub(super) fn links(network: &Network) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(why) = &network.failure {
        let remedy = "tabane links; tabane relays";
        findings.push(Finding::bad(Grade::Missing, "links", &LINKED, why, remedy));
        return findings;
    }
    let names: Vec<&str> = network.links.iter().map(|link| &link.name[..]).collect();
    let others = network.unusable.iter().filter(|(name, _)| name != "lo");
    let others: Vec<String> = others.map(|(name, why)| format!("{name}: {why}")).collect();
    findings.push(match &names[..] {
        [] => Finding::bad(
            Grade::Missing,
            "links",
            &LINKED,
            match &others[..] {
                [] => "none".to_owned(),
                others => format!("none; {}", others.join("; ")),
            },
            "plug one in, or ip link set IF up; `tabane links` says more",
        ),
        [only] => Finding::bad(
            Grade::Poor,
            "links",
            &LINKED,
            format!("only {only}: there is nothing to bond it with"),
            "tabane links, for why other interfaces are none",
        ),
        names => Finding::good("links", &LINKED, names.join(", ")),
    });
    if !network.links.is_empty() && network.links.iter().all(|link| !link.has_v4) {
        findings.push(Finding::bad(
            Grade::Missing,
            "IPv4",
            &[Mode::Sctp],
            "no link has an IPv4 address",
            "tabane run, which takes IPv6 as well",
        ));
    }
    for link in &network.links {
        if link.mtu_bytes < MIN_MTU {
            findings.push(Finding::bad(
                Grade::Poor,
                "MTU",
                &LINKED,
                format!("{} carries only {} bytes", link.name, link.mtu_bytes),
                format!("ip link set {} mtu {MIN_MTU}", link.name),
            ));
        }
    }
    findings
}

/// Settings that cannot be read.
pub(super) fn settings(network: &Network) -> Vec<Finding> {
    let faults = network.faults.iter();
    let bad = |(what, remedy): &(String, String)| {
        Finding::bad(Grade::Missing, "settings", &CLIENTS, what, remedy)
    };
    faults.map(bad).collect()
}

/// Which relays answer, and over which links.
pub(super) fn relays(network: &Network) -> Vec<Finding> {
    if !network.faults.is_empty() {
        // Nobody was asked, and that they are known or not matters only when that is mended.
        return Vec::new();
    }
    if network.relays.is_empty() {
        return vec![Finding::bad(
            Grade::Missing,
            "relays",
            &CLIENTS,
            "none known",
            "tabane join STRING, with the line that `tabane relay` printed",
        )];
    }
    if network.offline {
        let names: Vec<&str> = network.relays.iter().map(|relay| &relay.name[..]).collect();
        return vec![Finding::good(
            "relays",
            &CLIENTS,
            format!("{}; not asked", names.join(", ")),
        )];
    }
    // One that answers is enough.
    let is_any = network.relays.iter().any(|relay| relay.reached.is_ok());
    let relays = network.relays.iter();
    let mut findings: Vec<Finding> = relays
        .flat_map(|facts| [Some(relay(facts, is_any)), beside(facts)])
        .flatten()
        .collect();
    if network.relays_omitted > 0 {
        let text = format!("{} more, not asked", network.relays_omitted);
        findings.push(Finding::good("relays", &CLIENTS, text));
    }
    findings
}

/// What becomes of packets that are neither TCP nor UDP.
fn beside(facts: &RelayFacts) -> Option<Finding> {
    let what = match facts.lodging? {
        Lodging::Given => "carried, under an address of the relay's pool",
        Lodging::NoPool => {
            "pings are carried, the rest goes as without tabane, whatever the policy says: no \
             `relay --pool` there"
        }
        Lodging::Full => "pings are carried, the rest goes as without tabane: the pool is full",
    };
    let what = format!("{}: {what}", facts.name);
    Some(Finding::good("other protocols", &[Mode::Up], what))
}

fn answered(link: &str, answer: &AnswerFacts) -> String {
    let (rtt_ms, carrier) = (answer.rtt_ms, &answer.carrier);
    let why = answer.carrier_why.as_ref();
    let why = why.map_or_else(String::new, |why| format!(" ({why})"));
    format!("{rtt_ms:.1} ms over {link} by {carrier}{why}")
}

fn relay(facts: &RelayFacts, is_any: bool) -> Finding {
    let name = &facts.name;
    let links = match &facts.reached {
        Ok(links) => links,
        Err(why) => {
            let grade = if is_any { Grade::Poor } else { Grade::Missing };
            let remedy = "tabane relay, on its machine; and open its UDP port in the firewall";
            return Finding::bad(grade, "relays", &CLIENTS, format!("{name}: {why}"), remedy);
        }
    };
    let texts: Vec<String> = links
        .iter()
        .map(|(link, reached)| match reached {
            Ok(answer) => answered(link, answer),
            Err(why) => format!("{link}: {why}"),
        })
        .collect();
    let text = format!("{name}: {}", texts.join(", "));
    let dead: Vec<&str> = links
        .iter()
        .filter(|(_, reached)| reached.is_err())
        .map(|(link, _)| &link[..])
        .collect();
    match &dead[..] {
        [] => Finding::good("relays", &CLIENTS, text),
        dead => Finding::bad(
            Grade::Poor,
            "relays",
            &CLIENTS,
            text,
            format!("ping -I {} RELAY: is UDP let through there?", dead[0]),
        ),
    }
}
