//! Networks that are not as they should be: two modems that have the same addresses, a router that
//! is none.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use crate::policy::received;
use crate::process::PATIENCE;
use crate::text;
use crate::world::{World, first_line, ip, wait_for, without_sum};

/// What carries data, in bytes; handshakes are thousands.
const MUCH: u64 = 1_000_000;

/// Namespaces beside those of the world, gone with this.
struct Namespaces(Vec<String>);

impl Drop for Namespaces {
    fn drop(&mut self) {
        for ns in &self.0 {
            let _ = std::process::Command::new("ip")
                .args(["netns", "del", ns])
                .output();
        }
    }
}

/// Two modems in the place of the client's links, d1 and d2: each gives it 192.168.8.100 and is
/// 192.168.8.1 itself, as modems of one make do. `None` without nft.
fn same_modems(world: &World) -> Option<Namespaces> {
    let (c, r) = (world.client_ns(), world.relay_ns());
    let mut made = Namespaces(Vec::new());
    for i in 1..=2 {
        let m = format!("{c}m{i}");
        ip(&format!("netns add {m}"));
        made.0.push(m.clone());
        ip(&format!("-n {c} link del c{i}"));
        let near = format!("-n {c} link add d{i} type veth peer name near netns {m}");
        let far = format!("-n {m} link add far type veth peer name q{i} netns {r}");
        for line in [near, far] {
            ip(&line);
        }
        for (ns, end, address) in [
            (c, format!("d{i}"), "192.168.8.100/24".to_owned()),
            (&m, "near".to_owned(), "192.168.8.1/24".to_owned()),
            (&m, "far".to_owned(), format!("10.72.{i}.1/24")),
            (r, format!("q{i}"), format!("10.72.{i}.2/24")),
        ] {
            ip(&format!("-n {ns} addr add {address} dev {end}"));
            ip(&format!("-n {ns} link set {end} up"));
        }
        // Less than the program reads: both are needed.
        let mut tc = world.in_relay("tc");
        tc.args(["qdisc", "add", "dev", &format!("q{i}"), "root", "tbf"]);
        tc.args(["rate", "100mbit", "burst", "20000", "latency", "60ms"]);
        assert!(tc.status().unwrap().success());
        ip(&format!("-n {m} route add default via 10.72.{i}.2"));
        ip(&format!(
            "-n {c} route add default via 192.168.8.1 dev d{i} metric {i}"
        ));
        ip(&format!("netns exec {m} sysctl -qw net.ipv4.ip_forward=1"));
        let nat = "table ip nat { chain p { type nat hook postrouting priority 100; \
                   oifname far masquerade; }; }";
        let mut nft = std::process::Command::new("ip");
        let nft = nft.args(["netns", "exec", &m, "nft", nat]).status();
        if !nft.is_ok_and(|status| status.success()) {
            println!("skipped: no nft");
            return None;
        }
    }
    Some(made)
}

#[test]
fn two_gateways_with_one_address_on_two_interfaces_are_two_links() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    let Some(_modems) = same_modems(&world) else {
        return;
    };
    let before = ["d1", "d2"].map(|link| received(&world, link));
    let url = "http://203.0.113.2:8000/20000000";
    let line = format!("curl -sS --fail {url} | wc -c");
    let fetched = world.run(&["--stats"], &line);
    assert_eq!(text(&fetched.stdout).trim(), "20000000", "{fetched:?}");
    for (link, before) in ["d1", "d2"].into_iter().zip(before) {
        let carried = received(&world, link) - before;
        assert!(carried > MUCH, "{link}: {carried} bytes, {fetched:?}");
    }
    // Past the relay as well each is what its name says.
    for (link, source) in [("d1", "10.72.1.1"), ("d2", "10.72.2.1")] {
        let mut open = world.tabane(&["open", link, "--"]);
        let peer = open.args(["curl", "-sS", "http://203.0.113.2:8000/peer"]);
        let opened = peer.output().unwrap();
        assert_eq!(text(&opened.stdout).trim(), source, "{link}: {opened:?}");
    }
}

/// Announces itself as the best router on r2, by an address that nobody answers for, with a prefix
/// that nobody routes.
const FORGED_RA: &str = "
import socket, struct
prefix = socket.inet_pton(socket.AF_INET6, '2001:db8:bad::')
ra = struct.pack('!BBHBBHII', 134, 0, 0, 64, 0x08, 1800, 0, 0)
ra += struct.pack('!BBBBIII', 3, 4, 64, 0xc0, 86400, 86400, 0) + prefix
s = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
index = socket.if_nametoindex('r2')
s.bind(('fe80::bad', 0, 0, index))
s.sendto(ra, ('ff02::1', 0, 0, index))
";

#[test]
fn a_forged_router_takes_one_link_at_most_and_the_transfer_goes_on() {
    let Some(world) = World::new(&["--public", "2001:db8:ffff::1"]) else {
        return;
    };
    // By IPv6 alone, or nothing would depend on what is forged.
    let join = without_sum(&world.join).replace("203.0.113.1", "[2001:db8:ffff::1]");
    world.join_with(&join);
    // Less than the program reads: c2 is needed.
    world.limit_rates([40, 40]);
    // The honest router's route is worth less than what any announcement gives (metric 1024).
    let c = world.client_ns();
    ip(&format!("-n {c} -6 route del default dev c2"));
    ip(&format!(
        "-n {c} -6 route add default via 2001:db8:2::2 dev c2 metric 4096"
    ));
    let got = world.path("got");
    let url = "http://203.0.113.2:8000/20000000";
    let line = format!(
        "echo up; curl -sS --fail --limit-rate 6M -o {} {url}",
        got.display()
    );
    let mut command = world.tabane(&["run", "--", "sh", "-c", &line]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(first_line(&mut child), "up");
    let begun = std::time::Instant::now();
    while received(&world, "c2") < MUCH {
        assert!(begun.elapsed() < PATIENCE, "c2 carries nothing");
        std::thread::sleep(Duration::from_millis(20));
    }
    let r = world.relay_ns();
    ip(&format!("-n {r} addr add fe80::bad/64 dev r2 nodad"));
    let forged = world.in_relay("python3").args(["-c", FORGED_RA]).output();
    let forged = forged.unwrap();
    assert!(forged.status.success(), "{forged:?}");
    ip(&format!("-n {r} addr del fe80::bad/64 dev r2"));
    let routes = || {
        let shown = world.in_client("ip").args(["-6", "route"]).output();
        text(&shown.unwrap().stdout)
    };
    while !routes().contains("via fe80::bad dev c2") {
        assert!(begun.elapsed() < PATIENCE, "not believed: {}", routes());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(wait_for(&mut child, PATIENCE).success());
    assert_eq!(fs::metadata(&got).unwrap().len(), 20_000_000);
}
