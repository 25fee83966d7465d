//! Between two sites: what is neither TCP nor UDP, and what routers say of packets.

use std::process::Command;

use nix::sys::signal::Signal;

use crate::packets::POOL;
use crate::running::{Running, run};
use crate::site::{Site, joined, offices};
use crate::world::{World, ip};

const BESIDE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bond/beside.py");

/// What the script says there.
fn beside(mut command: Command, arguments: &str) -> String {
    run(command.arg(BESIDE).args(arguments.split(' ')))
}

/// A host that answers raw protocols with whom it has seen.
fn answering(site: &Site<'_>) -> Running {
    Running::ready(site.at_host("python3").args([BESIDE, "serve"]))
}

#[test]
fn every_protocol_goes_between_hosts_of_two_sites_who_see_one_another() {
    let Some(world) = World::new(&POOL) else {
        return;
    };
    let (mut a, mut b) = offices(&world);
    joined(&mut a, &mut b);
    let _answering = [answering(&a), answering(&b)];
    let to_b = "192.168.20.2 fd00:20::2";
    for (protocol, size) in [(50, 0), (47, 1_000)] {
        let said = beside(
            a.at_host("python3"),
            &format!("ask {protocol} {size} {to_b}"),
        );
        assert_eq!(said, "192.168.10.2 fd00:10::2", "{}\n{}", a.log(), b.log());
    }
    // In pieces.
    let said = beside(a.at_host("python3"), "ask 253 5000 192.168.20.2");
    assert_eq!(said, "192.168.10.2");
    let said = beside(b.at_host("python3"), "ask 50 0 192.168.10.2 fd00:10::2");
    assert_eq!(said, "192.168.20.2 fd00:20::2");
    // What a host says of a datagram is for who has sent that.
    assert_eq!(a.ask_by_udp("192.168.20.2"), "refused");
    // The machine itself, by its address of that network.
    let said = beside(a.at_client("python3"), &format!("ask 47 0 {to_b}"));
    assert_eq!(said, "192.168.10.1 fd00:10::1");
    // A host of a network that is not offered bears its name.
    let lan = &a.lan;
    ip(&format!("-n {lan} addr add 172.31.9.2/32 dev lo"));
    ip(&format!(
        "-n {} route add 172.31.9.2 via 192.168.10.2",
        a.ns
    ));
    ip(&format!(
        "-n {lan} route add 192.168.20.0/24 via 192.168.10.1 src 172.31.9.2"
    ));
    let said = beside(a.at_host("python3"), "ask 50 0 192.168.20.2");
    assert_eq!(said, "192.168.10.1");
    ip(&format!("-n {lan} route del 192.168.20.0/24"));
    // A site that shows nobody.
    b.end(nix::sys::signal::Signal::SIGTERM);
    b.begin(&["--route", "192.168.20.0/24", "--snat"]);
    a.until_route("192.168.20.0/24", "open");
    // By what the kernel there has not seen yet: it keeps to what it has.
    let said = beside(a.at_client("python3"), "ask 253 0 192.168.20.2");
    assert_eq!(said, "192.168.20.1", "{}\n{}", a.log(), b.log());
    // Who is of another group is reached by nothing.
    world.manage("user set bob --group others");
    let said = beside(a.at_host("python3"), "ask 50 0 192.168.20.2");
    assert!(said.starts_with('-'), "{said}");
}

/// Who says what of a packet that is sent from there so.
fn complaint(command: Command, protocol: u8, hops: u8, size: usize, address: &str) -> String {
    beside(command, &format!("said {protocol} {hops} {size} {address}"))
}

#[test]
fn routers_on_the_way_and_hosts_say_what_becomes_of_packets_to_sites() {
    let Some(world) = World::new(&POOL) else {
        return;
    };
    let (mut a, mut b) = offices(&world);
    joined(&mut a, &mut b);
    let said = |protocol, hops, size, address: &str| {
        complaint(a.at_host("python3"), protocol, hops, size, address)
    };
    for protocol in [1, 47] {
        // This site's router, and the other's.
        assert_eq!(said(protocol, 1, 0, "192.168.20.2"), "192.168.10.1 11 0");
        assert_eq!(said(protocol, 2, 0, "192.168.20.2"), "192.168.20.1 11 0");
        // Nobody is there.
        assert_eq!(said(protocol, 64, 0, "192.168.20.77"), "192.168.20.1 3 1");
        // Larger than what the session carries in one piece.
        let too_big = said(protocol, 64, 1_460, "192.168.20.2");
        assert!(too_big.starts_with("192.168.10.1 3 4"), "{too_big}");
    }
    // No host knows that one.
    assert_eq!(said(200, 64, 0, "192.168.20.2"), "192.168.20.2 3 2");
    // The other way, since the kernel says nothing of IPv6 where it has no way back of its own.
    let said =
        |protocol, hops, address: &str| complaint(b.at_host("python3"), protocol, hops, 0, address);
    for protocol in [58, 47] {
        assert_eq!(said(protocol, 1, "fd00:10::2"), "fd00:20::1 3 0");
        assert_eq!(said(protocol, 2, "fd00:10::2"), "fd00:10::1 3 0");
        assert_eq!(said(protocol, 64, "fd00:10::77"), "fd00:10::1 1 3");
    }
}

#[test]
fn pings_to_sites_are_told_what_becomes_of_them_without_a_pool_as_well() {
    let Some(world) = World::new(&[]) else {
        return;
    };
    let (mut a, mut b) = offices(&world);
    joined(&mut a, &mut b);
    let said = |hops, address: &str| {
        let protocol = if address.contains(':') { 58 } else { 1 };
        complaint(a.at_host("python3"), protocol, hops, 0, address)
    };
    assert_eq!(said(2, "192.168.20.2"), "192.168.20.1 11 0", "{}", b.log());
    assert_eq!(said(64, "192.168.20.77"), "192.168.20.1 3 1");
    assert_eq!(said(2, "fd00:20::2"), "fd00:20::1 3 0");
    assert_eq!(said(64, "fd00:20::77"), "fd00:20::1 1 3");
    // Its client has gone: the relay says so in the host's name.
    b.end(nix::sys::signal::Signal::SIGTERM);
    a.until_route("192.168.20.0/24", "away");
    assert_eq!(said(64, "192.168.20.2"), "192.168.20.2 3 1");
}

/// Which of these hosts answer pings.
fn pinged(mut command: Command, hosts: &[&str]) -> Vec<String> {
    const PING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bond/ping.py");
    command.args([PING, "3"]).args(hosts).env("BLOCKS", "1");
    run(&mut command).lines().map(str::to_owned).collect()
}

fn hosts_are_pinged(relay_flags: &[&str]) {
    let Some(world) = World::new(relay_flags) else {
        return;
    };
    let (mut a, mut b) = offices(&world);
    joined(&mut a, &mut b);
    // There and not there; of both families; by hosts of the LAN and by the machine itself.
    let hosts = ["192.168.20.2", "fd00:20::2", "192.168.20.1"];
    for command in [a.at_host("python3"), a.at_client("python3")] {
        assert_eq!(pinged(command, &hosts), hosts, "{}\n{}", a.log(), b.log());
    }
    let nobody = ["192.168.20.77"];
    assert_eq!(pinged(a.at_host("python3"), &nobody), ["-"]);
    // Others of the group alone.
    b.end(Signal::SIGTERM);
    a.until_route("192.168.20.0/24", "away");
    assert_eq!(pinged(a.at_host("python3"), &hosts[..1]), ["-"]);
}

#[test]
fn hosts_of_another_site_are_pinged() {
    hosts_are_pinged(&[]);
}

#[test]
fn hosts_of_another_site_are_pinged_from_addresses_of_the_relay_s_pool() {
    hosts_are_pinged(&["--pool", "100.64.16.0/24", "--pool", "fd00:16::/64"]);
}
