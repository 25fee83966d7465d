//! What is said of this machine: what it lets us do, and what it has enough of.

use std::time::Duration;

use tabane_linux::mptcp::Unusable;

use crate::doctor::machine::Machine;
use crate::doctor::{Finding, Grade, Mode};

/// What the tunnel asks for (`tabane-linux`, `udp.rs`).
const WANTED_RECEIVE_BUFFER: u64 = 8 << 20;
const WANTED_SEND_BUFFER: u64 = 4 << 20;
/// A relay takes one per connection, a browser opens hundreds.
const WANTED_DESCRIPTORS: u64 = 4_096;
/// A clock is seldom set to the second.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(60);

/// Those that take up connections of programs where they are made.
const HOOKED: [Mode; 2] = [Mode::Run, Mode::Up];
/// The same where a command can have a network of its own instead.
const HOOKED_ALWAYS: [Mode; 1] = [Mode::Up];
/// Those that take up what others send.
const ROUTING: [Mode; 2] = [Mode::Up, Mode::Gateway];

/// What this machine lets us do.
pub(super) fn privileges(machine: &Machine) -> Vec<Finding> {
    let kernel = format!("Linux {}", machine.kernel);
    let mut findings = vec![Finding::good("kernel", &Mode::ALL, kernel)];
    findings.extend(hooks(machine));
    findings.extend(packets(machine));
    findings.extend(gateway(machine));
    findings.push(pool(machine));
    findings.push(multipath(machine));
    findings.push(namespaces(machine));
    findings
}

/// What `tabane run` and `up` need to take up programs' connections.
fn hooks(machine: &Machine) -> [Finding; 5] {
    let (hooked, network): (&[Mode], _) = match &machine.private_network {
        Ok(()) => (
            &HOOKED_ALWAYS,
            Finding::good("network of its own", &[Mode::Run], "made and thrown away"),
        ),
        Err(_) if machine.hooks.is_ok() => (
            &HOOKED,
            Finding::good("network of its own", &[Mode::Run], "none; hooks do without"),
        ),
        Err(why) => (
            &HOOKED,
            Finding::bad(
                Grade::Poor,
                "network of its own",
                &[Mode::Run],
                why,
                "allow user namespaces and /dev/net/tun for all, or sudo tabane run -- CMD",
            ),
        ),
    };
    let root = match machine.is_root {
        true => Finding::good("root", hooked, "yes"),
        false => Finding::bad(
            Grade::Poor,
            "root",
            hooked,
            "no",
            "sudo tabane …; `tabane run --proxy` and `tabane proxy` do without",
        ),
    };
    let cgroup = match &machine.cgroup {
        Some(place) => Finding::good("cgroup v2", hooked, place.display().to_string()),
        // Root can make a mount of its own, which the trial of the hooks has done.
        None if machine.hooks.is_ok() => {
            Finding::good("cgroup v2", hooked, "not mounted; a mount of our own works")
        }
        None => Finding::bad(
            Grade::Missing,
            "cgroup v2",
            hooked,
            "not mounted",
            "mount -t cgroup2 none /sys/fs/cgroup",
        ),
    };
    let hooks = match &machine.hooks {
        Ok(()) => Finding::good("socket hooks", hooked, "attached and detached"),
        Err(why) => {
            let remedy = match machine.is_root {
                true => "tabane run --proxy -- CMD, or tabane proxy: they need no hooks",
                false => "sudo tabane run -- CMD; or tabane run --proxy -- CMD",
            };
            Finding::bad(Grade::Missing, "socket hooks", hooked, why, remedy)
        }
    };
    let waits = match &machine.holds_requests {
        Ok(()) => Finding::good("connect() waits", hooked, "for the destination's answer"),
        Err(why) => Finding::bad(
            Grade::Poor,
            "connect() waits",
            hooked,
            format!("no: it succeeds at once, and a failure is a reset later: {why}"),
            "run as root, or with CAP_BPF, CAP_NET_ADMIN and CAP_NET_RAW, on Linux 5.12 or newer",
        ),
    };
    [root, cgroup, hooks, waits, network]
}

/// What takes up what is not a program's connection.
fn packets(machine: &Machine) -> [Finding; 2] {
    let tun = match &machine.tun {
        Ok(()) => Finding::good("TUN", &[Mode::Up], "/dev/net/tun opens"),
        Err(why) => Finding::bad(
            Grade::Missing,
            "TUN",
            &[Mode::Up],
            why,
            "modprobe tun; in a container: --device /dev/net/tun --cap-add NET_ADMIN",
        ),
    };
    let tproxy = match &machine.tproxy {
        Ok(program) => Finding::good("TPROXY", &ROUTING, format!("by {program}")),
        Err(why) => Finding::bad(
            Grade::Poor,
            "TPROXY",
            &ROUTING,
            format!("{why} (only `tabane up --lan` and `tabane gateway --mode split` need it)"),
            "apt-get install nftables; modprobe -a nft_tproxy nft_socket",
        ),
    };
    [tun, tproxy]
}

/// What connections without a relay need so that they have several links.
fn multipath(machine: &Machine) -> Finding {
    const CHECK: &str = "MPTCP";
    let poor = |lack: Unusable, remedy| {
        let what = format!("{lack}: without a relay, a connection takes one link");
        Finding::bad(Grade::Poor, CHECK, &HOOKED, what, remedy)
    };
    match (machine.multipath, machine.has_net_admin) {
        (Ok(()), true) => Finding::good(
            CHECK,
            &HOOKED,
            "without a relay, connections take several links where their servers speak it",
        ),
        (Ok(()), false) | (Err(Unusable::NotAllowed), _) => Finding::good(
            CHECK,
            &HOOKED,
            "as root only; without a relay, a connection takes one link",
        ),
        (Err(lack @ Unusable::Off), _) => poor(lack, "sysctl -w net.mptcp.enabled=1"),
        (Err(lack @ Unusable::Managed), _) => poor(
            lack,
            "sysctl -w net.mptcp.pm_type=0, if no other program (mptcpd) is to manage them",
        ),
        (Err(lack @ (Unusable::Absent | Unusable::Old)), _) => {
            poor(lack, "a kernel with CONFIG_MPTCP, Linux 5.19 or newer")
        }
    }
}

fn namespaces(machine: &Machine) -> Finding {
    match &machine.namespace {
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
    }
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
    let what = format!("{what} (it matters to `tabane relay --pool` only)");
    Finding::bad(Grade::Poor, check, &modes, what, remedy)
}

fn gateway(machine: &Machine) -> [Finding; 2] {
    let modes = [Mode::Gateway];
    let queues = match &machine.queues {
        Ok(()) => Finding::good("packet queues", &modes, "a rule was taken"),
        Err(why) => {
            let remedy = match machine.is_root {
                true => "apt-get install iptables; modprobe -a xt_NFQUEUE xt_NFLOG xt_length",
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

/// What this machine has enough of, or not.
pub(super) fn resources(machine: &Machine) -> Vec<Finding> {
    let mut findings = vec![buffers(machine)];
    findings.extend(descriptors(machine));
    findings.push(resolvers(machine));
    findings.push(clock(machine));
    findings.extend(ports(machine));
    findings
}

fn buffers(machine: &Machine) -> Finding {
    let wanted = [
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
    ];
    let small = wanted
        .iter()
        .filter(|(_, max, wanted)| max.is_some_and(|max| max < *wanted));
    let small: Vec<String> = small
        .map(|(name, _, wanted)| format!("{name}={wanted}"))
        .collect();
    match (&small[..], machine.has_net_admin) {
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
    }
}

fn descriptors(machine: &Machine) -> Option<Finding> {
    let (soft, hard) = machine.descriptors?;
    Some(match soft >= WANTED_DESCRIPTORS {
        true => Finding::good("descriptors", &Mode::ALL, soft.to_string()),
        false => Finding::bad(
            Grade::Poor,
            "descriptors",
            &Mode::ALL,
            format!("{soft} (up to {hard}): one per connection is needed"),
            format!("ulimit -n {}", hard.min(65_536)),
        ),
    })
}

fn resolvers(machine: &Machine) -> Finding {
    match machine.resolvers {
        0 => Finding::bad(
            Grade::Poor,
            "DNS",
            &[Mode::Proxy, Mode::Relay],
            "/etc/resolv.conf names no server",
            "echo nameserver 9.9.9.9 >> /etc/resolv.conf",
        ),
        1 => Finding::good("DNS", &[Mode::Proxy, Mode::Relay], "1 server named"),
        n => Finding::good(
            "DNS",
            &[Mode::Proxy, Mode::Relay],
            format!("{n} servers named"),
        ),
    }
}

fn clock(machine: &Machine) -> Finding {
    match machine.clock_behind > CLOCK_TOLERANCE {
        false => Finding::good(
            "clock",
            &Mode::ALL,
            "not behind the date of tabane's program file",
        ),
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
    }
}

fn ports(machine: &Machine) -> [Finding; 2] {
    let sctp = match &machine.sctp_port {
        Ok(()) => Finding::good("SCTP port", &[Mode::Sctp], "UDP 9899 is free"),
        Err(why) => Finding::bad(
            Grade::Poor,
            "SCTP port",
            &[Mode::Sctp],
            format!("UDP 9899: {why}"),
            "tabane sctp recv --udp-port PORT, and --to ADDRESS:PORT at the sender; sending needs \
             no port",
        ),
    };
    let relay = match &machine.relay_port {
        Ok(()) => Finding::good("relay's port", &[Mode::Relay], "free"),
        Err(why) => Finding::bad(
            Grade::Poor,
            "relay's port",
            &[Mode::Relay],
            format!("{why}: a relay may be running"),
            "tabane status --list; or tabane relay --listen [::]:PORT",
        ),
    };
    [sctp, relay]
}
