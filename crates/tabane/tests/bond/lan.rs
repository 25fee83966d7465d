//! `tabane up --lan`: a host behind the machine, which knows nothing.
//!
//! ```text
//!   host l1 10.72.0.2 ── 10.72.0.1 c9 client (the world's machine, routing) ══ relay, servers
//! ```

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use super::text;
use crate::running::{Running, within};
use crate::up::{UP, Up, forbid_plain_pings, hop, is_plain};
use crate::world::{World, ip};

/// Asks a server twice by one connection who it is, the second time when told to.
const KEEP: &str = "
import http.client, sys
c = http.client.HTTPConnection(sys.argv[1], 8000, timeout=20)
for _ in range(2):
    c.request('GET', '/peer')
    print(c.getresponse().read().decode().strip(), flush=True)
    sys.stdin.readline()
";

pub(crate) struct Host<'a> {
    world: &'a World,
    ns: String,
}

impl<'a> Host<'a> {
    pub(crate) fn new(world: &'a World) -> Self {
        let ns = format!("{}l", world.client_ns());
        let (c, r) = (world.client_ns(), world.relay_ns());
        for line in [
            format!("netns add {ns}"),
            format!("-n {ns} link set lo up"),
            format!("-n {c} link add c9 type veth peer name l1 netns {ns}"),
            format!("-n {c} addr add 10.72.0.1/24 dev c9"),
            format!("-n {c} addr add 2001:db8:72::1/64 dev c9 nodad"),
            format!("-n {ns} addr add 10.72.0.2/24 dev l1"),
            format!("-n {ns} addr add 2001:db8:72::2/64 dev l1 nodad"),
            format!("-n {c} link set c9 up"),
            format!("-n {ns} link set l1 up"),
            format!("-n {ns} route add default via 10.72.0.1"),
            format!("-n {ns} -6 route add default via 2001:db8:72::1"),
            // The way back for what comes plainly.
            format!("-n {r} route add 10.72.0.0/24 via 10.71.1.1"),
            format!("-n {r} -6 route add 2001:db8:72::/64 via 2001:db8:1::1"),
        ] {
            ip(&line);
        }
        for value in ["net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"] {
            let set = world.in_client("sysctl").args(["-qw", value]).status();
            assert!(set.unwrap().success());
        }
        Self { world, ns }
    }

    pub(crate) fn shell(&self, line: &str) -> (bool, String) {
        let mut command = Command::new("ip");
        let output = command
            .args(["netns", "exec", &self.ns, "sh", "-c", line])
            .output();
        let output = output.unwrap();
        (
            output.status.success(),
            text(&output.stdout).trim().to_owned(),
        )
    }

    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.ns, program]);
        command
    }

    /// Whether both servers answer its pings, in one packet each: fragments find no echo.
    fn pings(&self) -> bool {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bond/ping.py");
        let line = format!("BLOCKS=1 python3 {script} 5 203.0.113.2 2001:db8:ffff::2");
        self.shell(&line).1 == "203.0.113.2\n2001:db8:ffff::2"
    }

    fn peer(&self, url: &str) -> String {
        let (fine, peer) = self.shell(&format!("curl -sS --fail --max-time 20 '{url}'"));
        assert!(fine, "{url}");
        peer
    }

    fn udp_peer(&self, family: &str, address: &str) -> String {
        let script = format!(
            "import socket; s = socket.socket(socket.{family}, socket.SOCK_DGRAM); \
             s.settimeout(10); s.sendto(b'?', ('{address}', 9001)); \
             data, peer = s.recvfrom(100); assert peer[:2] == ('{address}', 9001), peer; \
             print(data.decode())"
        );
        let (fine, peer) = self.shell(&format!("python3 -c \"{script}\""));
        assert!(fine, "{address}");
        peer
    }

    /// All ways of reaching the servers, as they saw us.
    fn peers(&self) -> Vec<String> {
        vec![
            self.peer("http://203.0.113.2:8000/peer"),
            self.peer("http://[2001:db8:ffff::2]:8000/peer"),
            self.udp_peer("AF_INET", "203.0.113.2"),
            self.udp_peer("AF_INET6", "2001:db8:ffff::2"),
        ]
    }
}

impl Drop for Host<'_> {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.ns]).output();
        let _ = self.world;
    }
}

/// Asks a server again and again from one socket who it is, and says where that changes.
const ASK: &str = "
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(0.1)
known = None
while True:
    s.sendto(b'?', ('203.0.113.2', 9001))
    try:
        peer = s.recv(100).decode()
    except TimeoutError:
        continue
    if peer != known:
        print(peer, flush=True)
    known = peer
";

/// A connection of a host's that began without tabane.
struct Open {
    program: Child,
    heard: Lines<BufReader<ChildStdout>>,
}

impl Open {
    fn begin(host: &Host<'_>) -> Self {
        let mut program = host.command("python3");
        let program = program.args(["-c", KEEP, "203.0.113.2"]);
        let program = program.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut program = program.spawn().unwrap();
        let mut heard = BufReader::new(program.stdout.take().unwrap()).lines();
        assert!(is_from_lan(&heard.next().unwrap().unwrap()));
        Self { program, heard }
    }

    /// Whether it still serves, as it began; not where it was reset.
    fn goes_on(mut self) -> bool {
        let mut told = self.program.stdin.take().unwrap();
        told.write_all(b"\n").unwrap();
        let peer = self.heard.next().transpose().unwrap();
        drop(told);
        self.program.wait().unwrap();
        peer.is_some_and(|peer| is_from_lan(&peer))
    }
}

fn is_from_lan(peer: &str) -> bool {
    peer.starts_with("10.72.") || peer.starts_with("2001:db8:72:")
}

#[test]
fn hosts_behind_are_carried_and_never_cut_off() {
    let Some(world) = World::new(&[]) else { return };
    if !forbid_plain_pings(&world) {
        println!("skipped: no nft");
        return;
    }
    world.join();
    let host = Host::new(&world);
    let plain = host.peers();
    assert!(plain.iter().all(|peer| is_from_lan(peer)), "{plain:?}");

    let open = Open::begin(&host);
    let mut up = Up::start(&world, &["--lan", "c9"]);
    up.wait_until(UP);
    assert!(open.goes_on(), "as it began");
    let carried = host.peers();
    let is_far = |peer: &String| !is_from_lan(peer) && !is_plain(peer);
    assert!(carried.iter().all(is_far), "{carried:?}");
    assert!(host.pings());
    let (_, seen) = host.shell(&hop(2));
    assert_eq!(seen, "10.71.1.2\n2001:db8:1::2");
    let (fine, size) = host.shell("curl -sS http://203.0.113.2:8000/3000000 | wc -c");
    assert!(fine && size == "3000000", "{size}");
    // The machine itself is a neighbour, not a destination beyond the relay.
    let (refused, _) = host.shell("curl -s --max-time 5 http://10.72.0.1:81/; test $? = 7");
    assert!(refused);
    assert!(!is_plain(&crate::up::peer(
        &world,
        "http://203.0.113.2:8000/peer"
    )));

    up.kill();
    // Its rules have stayed, and pass everything on.
    within(Duration::from_secs(5), "it is served again", || {
        host.shell("curl -sS --fail --max-time 1 http://203.0.113.2:8000/peer")
            .0
    });
    let plain = host.peers();
    assert!(plain.iter().all(|peer| is_from_lan(peer)), "{plain:?}");

    // A new one clears away what that one left; without a relay the LAN goes on as well.
    let mut world_relay = Up::start(&world, &["--lan", "c9"]);
    world_relay.wait_until(UP);
    let carried = host.peers();
    assert!(carried.iter().all(is_far), "{carried:?}");
    assert!(world.tabane(&["down"]).status().unwrap().success());
    world_relay.child.wait().unwrap();
    let plain = host.peers();
    assert!(plain.iter().all(|peer| is_from_lan(peer)), "{plain:?}");

    // What was open would go without the relay.
    let open = Open::begin(&host);
    let strict = Up::start(&world, &["--lan", "c9", "--strict"]);
    strict.wait_until(UP);
    assert!(!open.goes_on());
    let carried = host.peers();
    assert!(carried.iter().all(is_far), "{carried:?}");
}

/// As hosts behind a router are, whose flows are named as they leave.
#[test]
fn datagrams_of_hosts_go_on_plainly_when_it_ends() {
    let Some(world) = World::new(&[]) else { return };
    if !forbid_plain_pings(&world) {
        println!("skipped: no nft");
        return;
    }
    world.join();
    let host = Host::new(&world);
    let naming = "add table ip names; \
                  add chain ip names out { type nat hook postrouting priority 100; }; \
                  add rule ip names out oifname { c1, c2 } masquerade";
    assert!(
        world
            .in_client("nft")
            .arg(naming)
            .status()
            .unwrap()
            .success()
    );
    let mut up = Up::start(&world, &["--lan", "c9"]);
    up.wait_until(UP);
    let mut python = host.command("python3");
    let python = python.args(["-c", ASK]).stdout(Stdio::piped());
    let mut program = Running(python.spawn().unwrap());
    let (said, peers) = mpsc::channel();
    let heard = BufReader::new(program.0.stdout.take().unwrap()).lines();
    std::thread::spawn(move || {
        heard
            .map_while(Result::ok)
            .try_for_each(|peer| said.send(peer))
    });
    let patience = Duration::from_secs(10);
    let carried = peers.recv_timeout(patience).unwrap();
    assert!(!is_plain(&carried), "{carried}");
    assert!(world.tabane(&["down"]).status().unwrap().success());
    up.child.wait().unwrap();
    let plain = peers.recv_timeout(patience).expect("answered again");
    assert!(is_plain(&plain), "{plain}");
}

/// As Docker has it on the machine where it runs.
#[test]
fn hosts_behind_a_bridge_that_filters_are_not_cut_off() {
    let Some(world) = World::new(&[]) else { return };
    let filters = |value| {
        let mut sysctl = world.in_client("sysctl");
        let key = format!("net.bridge.bridge-nf-call-iptables={value}");
        let done = sysctl.args(["-qw", &key, &key.replace("iptables", "ip6tables")]);
        done.output().unwrap().status.success()
    };
    if !forbid_plain_pings(&world) || !filters(1) {
        println!("skipped: no nft, or bridges filter nothing here");
        return;
    }
    world.join();
    let host = Host::new(&world);
    let c = world.client_ns();
    for line in [
        format!("-n {c} link add br9 type bridge"),
        format!("-n {c} addr flush dev c9"),
        format!("-n {c} link set c9 master br9"),
        format!("-n {c} addr add 10.72.0.1/24 dev br9"),
        format!("-n {c} link set br9 up"),
    ] {
        ip(&line);
    }
    let refused = world.tabane(&["up", "--lan", "br9"]).output().unwrap();
    let said = text(&refused.stderr);
    assert!(said.contains("sysctl -w net.bridge."), "{said}");
    assert!(is_from_lan(&host.peer("http://203.0.113.2:8000/peer")));
    assert!(filters(0));
    let up = Up::start(&world, &["--lan", "br9"]);
    up.wait_until(UP);
    let carried = host.peer("http://203.0.113.2:8000/peer");
    assert!(!is_from_lan(&carried) && !is_plain(&carried), "{carried}");
}
