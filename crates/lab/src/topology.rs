//! Who is called what, who has which address, and the `ip` commands that make it so.
//!
//! ```text
//!  client                                 emulator                                 server
//!  link1 10.77.1.2 ──veth── c1 ═ AF_PACKET ═ netem ═ AF_PACKET ═ s1 ──veth── 10.77.1.1 link1
//!  link2 10.77.2.2 ──veth── c2 ═════════════ netem ═════════════ s2 ──veth── 10.77.2.1 link2
//!  default via each, metric 100 + i                            lo: 10.78.0.1, the service
//! ```
//!
//! A link that is a wire is one veth pair from client to server. IPv6 is alike: `fd77:0:0:i::2`,
//! `fd77:0:0:i::1` and the service at `fd78::1`. Neighbours are entered by hand, so that no
//! address resolution crosses the model.

use std::fmt::Write;
use std::fs;
use std::io;
use std::io::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};
use tabane_linux::{netns::Netns, packet_socket::disable_offloads};
use tabane_netem::Scenario;

use crate::error::LabError;

/// The server's own address, reachable over every link.
pub const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);

/// The server's own IPv6 address, reachable over every link.
pub const SERVICE6: Ipv6Addr = Ipv6Addr::new(0xfd78, 0, 0, 0, 0, 0, 0, 1);

/// One link of a lab, as programs at both ends see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabLink {
    /// What the scenario calls it.
    pub name: String,
    /// The interface's name, at both ends.
    pub interface: String,
    /// The client's address on it.
    pub client: Ipv4Addr,
    /// The server's address on it, the client's gateway.
    pub server: Ipv4Addr,
    /// The client's IPv6 address on it.
    pub client6: Ipv6Addr,
    /// The server's IPv6 address on it.
    pub server6: Ipv6Addr,
}

/// The three namespaces of a lab.
#[derive(Clone, Debug)]
pub(crate) struct Hosts {
    pub(crate) client: Netns,
    pub(crate) emulator: Netns,
    pub(crate) server: Netns,
}

pub(crate) fn client_port(link: usize) -> String {
    format!("c{}", link + 1)
}

pub(crate) fn server_port(link: usize) -> String {
    format!("s{}", link + 1)
}

pub(crate) fn links(scenario: &Scenario) -> Vec<LabLink> {
    let link = |(index, spec): (usize, &tabane_netem::LinkSpec)| {
        let number = number_of(index);
        LabLink {
            name: spec.name.clone(),
            interface: format!("link{number}"),
            client: Ipv4Addr::new(10, 77, number, 2),
            server: Ipv4Addr::new(10, 77, number, 1),
            client6: Ipv6Addr::new(0xfd77, 0, 0, number.into(), 0, 0, 0, 2),
            server6: Ipv6Addr::new(0xfd77, 0, 0, number.into(), 0, 0, 0, 1),
        }
    };
    scenario.links.iter().enumerate().map(link).collect()
}

/// Links count from 1 in names and addresses.
fn number_of(index: usize) -> u8 {
    u8::try_from(index + 1).expect("a scenario has at most MAX_LINKS links")
}

/// Builds everything between the (empty) namespaces.
pub(crate) fn build(hosts: &Hosts, scenario: &Scenario) -> Result<(), LabError> {
    let links = links(scenario);
    for netns in [&hosts.client, &hosts.emulator, &hosts.server] {
        netns.run(|| settings(netns.name() == hosts.emulator.name()))??;
    }
    batch(&hosts.client, &[], &cables(hosts, scenario))?;
    if !scenario.links.iter().all(tabane_netem::LinkSpec::is_wire) {
        batch(&hosts.emulator, &[], &ports(scenario))?;
    }
    batch(&hosts.client, &[], &client(&links))?;
    batch(&hosts.client, &["-6"], &client6(&links))?;
    batch(&hosts.server, &[], &server(&links))?;
    for (index, spec) in scenario.links.iter().enumerate() {
        if spec.is_wire() {
            continue;
        }
        let interface = &links[index].interface;
        hosts.client.run(|| disable_offloads(interface))??;
        hosts.server.run(|| disable_offloads(interface))??;
        hosts.emulator.run(|| {
            disable_offloads(&client_port(index))?;
            disable_offloads(&server_port(index))
        })??;
    }
    Ok(())
}

/// Lets the namespaces use BBR and CUBIC whatever the host prefers, and makes room for bursts
/// between interfaces. Host-wide settings, only ever widened, never narrowed.
pub(crate) fn prepare_host() {
    let allowed = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";
    let now = fs::read_to_string(allowed).unwrap_or_default();
    let mut wanted: Vec<&str> = now.split_whitespace().collect();
    for name in ["reno", "bbr", "cubic"] {
        if !wanted.contains(&name) {
            wanted.push(name);
        }
    }
    // Without BBR in the kernel this fails, and measurements that ask for BBR will say so.
    let _ = fs::write(allowed, wanted.join(" "));
    // Frames between two interfaces wait here; the default of 1,000 is 12 ms at 1 Gbit/s.
    let backlog = "/proc/sys/net/core/netdev_max_backlog";
    let now = fs::read_to_string(backlog).unwrap_or_default();
    if now.trim().parse::<u64>().is_ok_and(|now| now < 10_000) {
        let _ = fs::write(backlog, "10000");
    }
}

/// Kernel settings of the calling thread's namespace, before it has interfaces.
fn settings(emulator: bool) -> Result<(), LabError> {
    let ipv6 = if emulator { "1" } else { "0" };
    let settings = [
        ("ipv6/conf/all/disable_ipv6", ipv6),
        ("ipv6/conf/default/disable_ipv6", ipv6),
        // Addresses are ours to give: no duplicate detection, no asking for routers.
        ("ipv6/conf/default/accept_dad", "0"),
        ("ipv6/conf/default/accept_ra", "0"),
        ("ipv6/conf/default/router_solicitations", "0"),
        // Replies may take another link than the route back would.
        ("ipv4/conf/all/rp_filter", "0"),
        ("ipv4/conf/default/rp_filter", "0"),
        // 16 MB: 50 Mbit/s × 600 ms fit four times over.
        ("ipv4/tcp_rmem", "4096 131072 16777216"),
        ("ipv4/tcp_wmem", "4096 16384 16777216"),
        // One connection's luck must not teach the next one of a measurement.
        ("ipv4/tcp_no_metrics_save", "1"),
        ("ipv4/ping_group_range", "0 2147483647"),
    ];
    for (name, value) in settings {
        let path = format!("/proc/sys/net/{name}");
        match fs::write(&path, value) {
            Ok(()) => {}
            // A kernel without IPv6, say.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => {
                return Err(LabError::File {
                    path: path.into(),
                    source,
                });
            }
        }
    }
    Ok(())
}

const SERVER: u8 = 1;
const CLIENT: u8 = 2;

fn mac(link: usize, end: u8) -> String {
    format!("02:77:00:00:{:02x}:{end:02x}", number_of(link))
}

fn cables(hosts: &Hosts, scenario: &Scenario) -> String {
    let [client, emulator, server] =
        [&hosts.client, &hosts.emulator, &hosts.server].map(Netns::name);
    let mut text = String::new();
    let mut cable = |a: &str, mac_a: &str, in_a: &str, b: &str, mac_b: &str, in_b: &str| {
        line(
            &mut text,
            &format!(
                "link add name {a} address {mac_a} netns {in_a} type veth \
             peer name {b} address {mac_b} netns {in_b}"
            ),
        );
    };
    for (index, spec) in scenario.links.iter().enumerate() {
        let interface = format!("link{}", number_of(index));
        let (at_client, at_server) = (mac(index, CLIENT), mac(index, SERVER));
        if spec.is_wire() {
            cable(
                &interface, &at_client, client, &interface, &at_server, server,
            );
            continue;
        }
        let (to_client, to_server) = (client_port(index), server_port(index));
        cable(
            &interface,
            &at_client,
            client,
            &to_client,
            &mac(index, 0xc),
            emulator,
        );
        cable(
            &interface,
            &at_server,
            server,
            &to_server,
            &mac(index, 0x5),
            emulator,
        );
    }
    text
}

fn ports(scenario: &Scenario) -> String {
    let mut text = String::new();
    for (index, spec) in scenario.links.iter().enumerate() {
        if !spec.is_wire() {
            line(&mut text, &format!("link set {} up", client_port(index)));
            line(&mut text, &format!("link set {} up", server_port(index)));
        }
    }
    text
}

/// Per link a default route by metric, and a table of its own for sockets bound to its address,
/// as multipath TCP's are.
fn client(links: &[LabLink]) -> String {
    let mut text = "link set lo up\n".to_owned();
    for (index, link) in links.iter().enumerate() {
        let LabLink {
            interface,
            client,
            server,
            client6,
            server6,
            ..
        } = link;
        let rank = 100 + index + 1;
        let neighbour = mac(index, SERVER);
        for command in [
            format!("link set {interface} up"),
            format!("addr add {client}/24 dev {interface}"),
            format!("addr add {client6}/64 dev {interface} nodad"),
            format!("neigh replace {server} lladdr {neighbour} dev {interface} nud permanent"),
            format!("neigh replace {server6} lladdr {neighbour} dev {interface} nud permanent"),
            format!("route add default via {server} dev {interface} metric {rank}"),
            format!("route add default via {server6} dev {interface} metric {rank}"),
            format!("route add default via {server} dev {interface} table {rank}"),
            format!("route add default via {server6} dev {interface} table {rank}"),
            format!("rule add from {client} table {rank}"),
        ] {
            line(&mut text, &command);
        }
    }
    text
}

/// `ip` does not tell the family of a rule by its address.
fn client6(links: &[LabLink]) -> String {
    let mut text = String::new();
    for (index, link) in links.iter().enumerate() {
        let rank = 100 + index + 1;
        line(
            &mut text,
            &format!("rule add from {} table {rank}", link.client6),
        );
    }
    text
}

fn server(links: &[LabLink]) -> String {
    let mut text = "link set lo up\n".to_owned();
    line(&mut text, &format!("addr add {SERVICE}/32 dev lo"));
    line(&mut text, &format!("addr add {SERVICE6}/128 dev lo nodad"));
    for (index, link) in links.iter().enumerate() {
        let LabLink {
            interface,
            client,
            server,
            client6,
            server6,
            ..
        } = link;
        let neighbour = mac(index, CLIENT);
        for command in [
            format!("link set {interface} up"),
            format!("addr add {server}/24 dev {interface}"),
            format!("addr add {server6}/64 dev {interface} nodad"),
            format!("neigh replace {client} lladdr {neighbour} dev {interface} nud permanent"),
            format!("neigh replace {client6} lladdr {neighbour} dev {interface} nud permanent"),
        ] {
            line(&mut text, &command);
        }
    }
    text
}

fn line(text: &mut String, command: &str) {
    writeln!(text, "{command}").expect("writing to a string does not fail");
}

/// Runs `ip` commands in a namespace.
fn batch(netns: &Netns, options: &[&str], commands: &str) -> Result<(), LabError> {
    let mut ip = netns.command("ip");
    ip.args(options).args(["-batch", "-"]);
    feed(&mut ip, commands)
}

/// Runs a command with `input`, and fails with what it says if it fails.
pub(crate) fn feed(command: &mut Command, input: &str) -> Result<(), LabError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let fail = |source| LabError::Program {
        program: program.clone(),
        source,
    };
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(fail)?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that stops reading tells why by its status.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(fail)?;
    if output.status.success() {
        return Ok(());
    }
    Err(LabError::Refused {
        program: program.clone(),
        said: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
    })
}
