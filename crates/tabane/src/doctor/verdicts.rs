//! From facts to findings. Pure.

use std::time::Duration;

use tabane_tunnel::Lodging;

use super::machine::Machine;
use super::network::{Network, RelayFacts};
use super::{Finding, Grade, Mode};

/// What the tunnel asks for (`tabane-linux`, `udp.rs`).
const WANTED_RECEIVE_BUFFER: u64 = 8 << 20;
const WANTED_SEND_BUFFER: u64 = 4 << 20;
/// A relay takes one per connection, a browser opens hundreds.
const WANTED_DESCRIPTORS: u64 = 4_096;
/// Below this our packets (1,200 bytes and headers) do not fit; IPv6 asks as much (RFC 8200 §5).
const MIN_MTU: u32 = 1_280;
/// A clock is seldom set to the second.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(60);

const CLIENTS: [Mode; 3] = [Mode::Run, Mode::Proxy, Mode::Up];
/// Those that use links of their own.
const LINKED: [Mode; 4] = [Mode::Run, Mode::Proxy, Mode::Up, Mode::Sctp];

/// Those that take up what others send.
const ROUTING: [Mode; 2] = [Mode::Up, Mode::Gateway];

/// Everything there is to say.
pub(crate) fn judge(machine: &Machine, network: &Network) -> Vec<Finding> {
    let mut findings = privileges(machine);
    findings.extend(resources(machine));
    findings.extend(links(network));
    findings.extend(relays(network));
    findings
}

fn privileges(machine: &Machine) -> Vec<Finding> {
    let hooked = [Mode::Run, Mode::Up];
    let mut findings = Vec::new();
    let kernel = format!("Linux {}", machine.kernel);
    findings.push(Finding::good("kernel", &Mode::ALL, kernel));
    findings.push(match machine.is_root {
        true => Finding::good("root", &hooked, "yes"),
        false => Finding::bad(
            Grade::Poor,
            "root",
            &hooked,
            "no",
            "sudo tabane …; `tabane run --proxy` and `tabane proxy` do without",
        ),
    });
    findings.push(match &machine.cgroup {
        Some(place) => Finding::good("cgroup v2", &hooked, place.display().to_string()),
        // Root can make a mount of its own, which the trial of the hooks has done.
        None if machine.hooks.is_ok() => Finding::good(
            "cgroup v2",
            &hooked,
            "not mounted; a mount of our own works",
        ),
        None => Finding::bad(
            Grade::Missing,
            "cgroup v2",
            &hooked,
            "not mounted",
            "mount -t cgroup2 none /sys/fs/cgroup",
        ),
    });
    findings.push(match &machine.hooks {
        Ok(()) => Finding::good("socket hooks", &hooked, "attached and detached"),
        Err(why) => {
            let remedy = match machine.is_root {
                true => "tabane run --proxy -- CMD, or tabane proxy: they need no hooks",
                false => "sudo tabane run -- CMD; or tabane run --proxy -- CMD",
            };
            Finding::bad(Grade::Missing, "socket hooks", &hooked, why, remedy)
        }
    });
    findings.push(match &machine.tun {
        Ok(()) => Finding::good("TUN", &[Mode::Up], "/dev/net/tun opens"),
        Err(why) => Finding::bad(
            Grade::Missing,
            "TUN",
            &[Mode::Up],
            why,
            "modprobe tun; in a container: --device /dev/net/tun --cap-add NET_ADMIN",
        ),
    });
    findings.push(match &machine.tproxy {
        Ok(program) => Finding::good("TPROXY", &ROUTING, format!("by {program}")),
        Err(why) => Finding::bad(
            Grade::Poor,
            "TPROXY",
            &ROUTING,
            format!("{why} (only `tabane up --lan` and `tabane gateway --mode split` need it)"),
            "apt-get install nftables; modprobe nft_tproxy",
        ),
    });
    findings.extend(gateway(machine));
    findings.push(pool(machine));
    findings.push(match &machine.namespace {
        Ok(()) if machine.missing_programs.is_empty() => {
            Finding::good("namespaces", &[Mode::Lab], "made and left")
        }
        Ok(()) => {
            let names = machine.missing_programs.join(" ");
            let remedy = "apt-get install iproute2 curl";
            let what = format!("made, but these are not here: {names}");
            Finding::bad(Grade::Missing, "namespaces", &[Mode::Lab], what, remedy)
        }
        Err(why) => Finding::bad(
            Grade::Missing,
            "namespaces",
            &[Mode::Lab],
            why,
            "sudo tabane lab …; `tabane demo` does without",
        ),
    });
    findings
}

/// What `tabane relay --pool` needs; a relay without one serves TCP, UDP and pings.
fn pool(machine: &Machine) -> Finding {
    let (check, modes) = ("address pool", [Mode::Relay]);
    let (what, remedy) = match (machine.is_root, &machine.tun, &machine.tproxy) {
        (false, _, _) => ("needs root", "sudo tabane relay --pool 100.64.16.0/20"),
        (true, Err(_), _) => ("needs TUN", "modprobe tun"),
        (true, Ok(()), tproxy) if *tproxy != Ok("nft") => ("needs nft", "apt-get install nftables"),
        _ if !machine.forwards => (
            "this machine passes no packets on",
            "sysctl -w net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1",
        ),
        _ => return Finding::good(check, &modes, "possible (tabane relay --pool)"),
    };
    let what = format!("{what} (only `tabane relay --pool` does)");
    Finding::bad(Grade::Poor, check, &modes, what, remedy)
}

fn gateway(machine: &Machine) -> [Finding; 2] {
    let modes = [Mode::Gateway];
    let queues = match &machine.queues {
        Ok(()) => Finding::good("packet queues", &modes, "a rule was taken"),
        Err(why) => {
            let remedy = match machine.is_root {
                true => "apt-get install iptables; modprobe xt_NFQUEUE",
                false => "sudo tabane doctor gateway",
            };
            Finding::bad(Grade::Missing, "packet queues", &modes, why, remedy)
        }
    };
    let forwarding = match machine.forwards {
        true => Finding::good("forwarding", &modes, "on"),
        false => Finding::bad(
            Grade::Poor,
            "forwarding",
            &modes,
            "off: no packets of others pass through this machine",
            "sysctl -w net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1",
        ),
    };
    [queues, forwarding]
}

fn resources(machine: &Machine) -> Vec<Finding> {
    let mut findings = Vec::new();
    let buffer = |name: &str, max: Option<u64>, wanted: u64| match max {
        Some(max) if max < wanted => Some(format!("{name}={wanted}")),
        _ => None,
    };
    let small: Vec<String> = [
        (
            "net.core.rmem_max",
            machine.receive_buffer_max,
            WANTED_RECEIVE_BUFFER,
        ),
        (
            "net.core.wmem_max",
            machine.send_buffer_max,
            WANTED_SEND_BUFFER,
        ),
    ]
    .into_iter()
    .filter_map(|(name, max, wanted)| buffer(name, max, wanted))
    .collect();
    findings.push(match (&small[..], machine.has_net_admin) {
        ([], _) => Finding::good("UDP buffers", &Mode::ALL, "as large as wanted"),
        (_, true) => Finding::good(
            "UDP buffers",
            &Mode::ALL,
            "small by default, but we may exceed that (CAP_NET_ADMIN)",
        ),
        (small, false) => Finding::bad(
            Grade::Poor,
            "UDP buffers",
            &Mode::ALL,
            "smaller than wanted: high rates lose packets here",
            format!("sysctl -w {}", small.join(" ")),
        ),
    });
    if let Some((soft, hard)) = machine.descriptors {
        findings.push(match soft >= WANTED_DESCRIPTORS {
            true => Finding::good("descriptors", &Mode::ALL, soft.to_string()),
            false => Finding::bad(
                Grade::Poor,
                "descriptors",
                &Mode::ALL,
                format!("{soft} (up to {hard}): one per connection is needed"),
                format!("ulimit -n {}", hard.min(65_536)),
            ),
        });
    }
    findings.push(match machine.resolvers {
        0 => Finding::bad(
            Grade::Poor,
            "DNS",
            &[Mode::Proxy, Mode::Relay],
            "/etc/resolv.conf names no server",
            "echo nameserver 9.9.9.9 >> /etc/resolv.conf",
        ),
        n => Finding::good(
            "DNS",
            &[Mode::Proxy, Mode::Relay],
            format!("{n} servers named"),
        ),
    });
    findings.push(match machine.clock_behind > CLOCK_TOLERANCE {
        false => Finding::good("clock", &Mode::ALL, "later than this program's file"),
        true => Finding::bad(
            Grade::Poor,
            "clock",
            &Mode::ALL,
            format!(
                "at least {} min behind: tokens and counters by the day go wrong",
                machine.clock_behind.as_secs() / 60
            ),
            "timedatectl set-ntp true",
        ),
    });
    findings.push(match &machine.sctp_port {
        Ok(()) => Finding::good("SCTP port", &[Mode::Sctp], "UDP 9899 is free"),
        Err(why) => Finding::bad(
            Grade::Poor,
            "SCTP port",
            &[Mode::Sctp],
            format!("UDP 9899: {why}"),
            "tabane sctp recv --udp-port PORT, and --to ADDRESS:PORT at the sender; sending needs \
             no port",
        ),
    });
    findings.push(match &machine.relay_port {
        Ok(()) => Finding::good("relay's port", &[Mode::Relay], "free"),
        Err(why) => Finding::bad(
            Grade::Poor,
            "relay's port",
            &[Mode::Relay],
            format!("{why}: a relay may be running"),
            "tabane status --list; or tabane relay --listen [::]:PORT",
        ),
    });
    findings
}

fn links(network: &Network) -> Vec<Finding> {
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

fn relays(network: &Network) -> Vec<Finding> {
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
            Ok(rtt_ms) => format!("{rtt_ms:.1} ms over {link}"),
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

#[cfg(test)]
mod tests {
    use super::super::network::LinkFacts;
    use super::super::works;
    use super::*;

    fn machine() -> Machine {
        Machine {
            is_root: true,
            has_net_admin: true,
            kernel: "6.18.0".to_owned(),
            cgroup: Some("/sys/fs/cgroup".into()),
            hooks: Ok(()),
            tun: Ok(()),
            tproxy: Ok("nft"),
            queues: Ok(()),
            forwards: true,
            namespace: Ok(()),
            receive_buffer_max: Some(212_992),
            send_buffer_max: Some(212_992),
            descriptors: Some((65_536, 65_536)),
            resolvers: 1,
            clock_behind: Duration::ZERO,
            relay_port: Ok(()),
            sctp_port: Ok(()),
            missing_programs: Vec::new(),
        }
    }

    fn network() -> Network {
        let link = |name: &str| LinkFacts {
            name: name.to_owned(),
            mtu_bytes: 1_500,
            has_v4: true,
        };
        Network {
            links: vec![link("wlan0"), link("usb0")],
            relays: vec![RelayFacts {
                name: "home".to_owned(),
                reached: Ok(vec![
                    ("wlan0".to_owned(), Ok(12.0)),
                    ("usb0".to_owned(), Ok(40.0)),
                ]),
                lodging: Some(Lodging::Given),
            }],
            ..Network::default()
        }
    }

    fn broken(machine: &Machine, network: &Network) -> Vec<Mode> {
        let findings = judge(machine, network);
        for finding in &findings {
            let is_good = finding.grade == Grade::Good;
            assert_eq!(finding.remedy.is_none(), is_good, "{finding:?}");
        }
        let broken = Mode::ALL
            .into_iter()
            .filter(|mode| !works(*mode, &findings));
        broken.collect()
    }

    #[test]
    fn a_good_machine_is_good_for_everything() {
        assert_eq!(broken(&machine(), &network()), []);
        let findings = judge(&machine(), &network());
        assert!(findings.iter().all(|finding| finding.grade == Grade::Good));
    }

    #[test]
    fn what_is_missing_stops_the_modes_that_need_it_and_no_others() {
        let refused = || Err("not allowed".to_owned());
        let mut user = machine();
        user.is_root = false;
        user.has_net_admin = false;
        user.hooks = refused();
        user.tun = refused();
        user.tproxy = Err("no nft".to_owned());
        user.namespace = refused();
        user.queues = refused();
        let needs_root = [Mode::Run, Mode::Up, Mode::Gateway, Mode::Lab];
        assert_eq!(broken(&user, &network()), needs_root);

        let mut container = machine();
        container.tun = refused();
        assert_eq!(broken(&container, &network()), [Mode::Up]);

        assert_eq!(broken(&machine(), &Network::default()), LINKED);
        let mut v6_only = network();
        for link in &mut v6_only.links {
            link.has_v4 = false;
        }
        assert_eq!(broken(&machine(), &v6_only), [Mode::Sctp]);
        let mut cut = network();
        cut.relays[0].reached = Err("no answer".to_owned());
        assert_eq!(broken(&machine(), &cut), CLIENTS);
        let mut spare = cut.relays[0].clone();
        spare.reached = Ok(Vec::new());
        cut.relays.push(spare);
        assert_eq!(broken(&machine(), &cut), []);
    }

    #[test]
    fn what_is_poor_is_told_with_the_command_that_mends_it() {
        let remedies = |machine: &Machine, network: &Network| -> String {
            let findings = judge(machine, network);
            let texts = findings.iter().filter_map(|finding| finding.remedy.clone());
            texts.collect::<Vec<_>>().join("\n")
        };
        let mut poor = machine();
        poor.has_net_admin = false;
        poor.descriptors = Some((1_024, 524_288));
        poor.clock_behind = Duration::from_secs(86_400);
        let text = remedies(&poor, &network());
        assert!(
            text.contains("sysctl -w net.core.rmem_max=8388608"),
            "{text}"
        );
        assert!(text.contains("ulimit -n 65536"), "{text}");
        assert!(text.contains("set-ntp"), "{text}");
        let mut host = machine();
        host.forwards = false;
        let text = remedies(&host, &network());
        assert!(text.contains("net.ipv4.ip_forward=1"), "{text}");
        let mut one = network();
        one.links.pop();
        one.links[0].mtu_bytes = 1_200;
        one.relays[0].reached = Ok(vec![("wlan0".to_owned(), Err("never answered".to_owned()))]);
        let text = remedies(&machine(), &one);
        assert!(text.contains("ip link set wlan0 mtu 1280"), "{text}");
        assert!(text.contains("ping -I wlan0"), "{text}");
    }
}
