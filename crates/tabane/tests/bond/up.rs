//! `tabane up` and `tabane down`: a namespace is the machine. The hooks are on the root group of
//! the real one, but see only what happens in the namespace.
//!
//! Which way something went is told by the address that the server saw: 10.71… came plainly.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};

use super::{complaint, status, text};
use crate::control::{link, until};
pub(crate) use crate::process::UP;
use crate::process::{Notices, PATIENCE};
use crate::running::within;
use crate::world::{TABANE, World, ip, pid, wait_for};

const PEER: &str = "http://203.0.113.2:8000/peer";
const PEER6: &str = "http://[2001:db8:ffff::2]:8000/peer";
const NEAR: &str = "http://10.71.1.2:8000/peer";
pub(crate) const LOST: &str = "STATUS=the relay does not answer";

/// `tabane up` in the client's namespace, killed at the end.
pub(crate) struct Up<'a> {
    pub(crate) world: &'a World,
    pub(crate) child: Child,
    notices: Notices,
}

impl<'a> Up<'a> {
    pub(crate) fn start(world: &'a World, flags: &[&str]) -> Self {
        Self::start_by(world, world.tabane(&[]), flags)
    }

    /// The same by a command that ends in `tabane`.
    pub(crate) fn start_by(world: &'a World, mut command: Command, flags: &[&str]) -> Self {
        let notices = Notices::of(&mut command, &world.path("notify"));
        let log = fs::File::create(world.path("up.log")).unwrap();
        command.args(["up", "--log", "debug"]).args(flags);
        command.stderr(log);
        let up = Self {
            world,
            child: command.spawn().unwrap(),
            notices,
        };
        up.wait_until("READY=1");
        up
    }

    /// Waits for a word of the daemon's.
    pub(crate) fn wait_until(&self, wanted: &str) {
        if self.notices.hear(wanted) {
            return;
        }
        let log = fs::read_to_string(self.world.path("up.log")).unwrap();
        panic!("never heard {wanted:?}; the daemon said:\n{log}");
    }

    pub(crate) fn kill(&mut self) {
        kill(pid(&self.child), Signal::SIGKILL).unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Up<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn shell(world: &World, line: &str) -> String {
    let output = world.in_client("sh").args(["-c", line]).output().unwrap();
    assert!(output.status.success(), "{line}: {output:?}");
    text(&output.stdout).trim().to_owned()
}

/// The address a server saw.
pub(crate) fn peer(world: &World, url: &str) -> String {
    shell(world, &format!("curl -sS --fail --max-time 20 '{url}'"))
}

/// Who says that so many hops are not enough, on the way to the servers by IPv4 and by IPv6.
pub(crate) fn hop(hops: u32) -> String {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bond/hop.py");
    format!("python3 {script} {hops} 203.0.113.2 2001:db8:ffff::2")
}

fn udp_peer(world: &World) -> String {
    let script = "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); \
                  s.settimeout(10); s.sendto(b'?', ('203.0.113.2', 9001)); \
                  print(s.recv(100).decode())";
    shell(world, &format!("python3 -c \"{script}\""))
}

pub(crate) fn is_plain(peer: &str) -> bool {
    peer.starts_with("10.71.") || peer.starts_with("2001:db8:1:") || peer.starts_with("2001:db8:2:")
}

/// Gives a namespace a resolver of its own, as `ip netns exec` understands it.
pub(crate) fn set_resolver(ns: &str, resolver: &str) {
    let directory = Path::new("/etc/netns").join(ns);
    fs::create_dir_all(&directory).unwrap();
    fs::write(
        directory.join("resolv.conf"),
        format!("nameserver {resolver}\n"),
    )
    .unwrap();
}

#[test]
fn everything_goes_over_the_bond_until_down() {
    let Some(mut world) = World::new(&[]) else {
        return;
    };
    // The client's resolver is near and private; the relay's answers otherwise.
    set_resolver(world.client_ns(), "10.71.1.2");
    set_resolver(world.relay_ns(), "203.0.113.2");
    world.stop_relay();
    world.start_relay(&[]);
    world.join();
    assert!(is_plain(&peer(&world, PEER)) && is_plain(&peer(&world, PEER6)));
    let mut up = Up::start(&world, &[]);
    up.wait_until(UP);
    for url in [PEER, PEER6] {
        assert!(!is_plain(&peer(&world, url)), "{url}");
    }
    assert!(!is_plain(&udp_peer(&world)));
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bond/udp_client.py");
    assert_eq!(shell(&world, &format!("python3 {script}")), "udp ok");
    // Who asks for the way is told this machine's own.
    assert_eq!(shell(&world, &hop(1)), "10.71.1.2\n2001:db8:1::2");
    let found = shell(&world, "getent hosts name.example");
    assert!(found.starts_with("192.0.2.99"), "{found}");
    let found = shell(&world, "getent hosts printer.lan");
    assert!(found.starts_with("192.0.2.77"), "{found}");
    // The neighbourhood stays the neighbourhood.
    assert!(is_plain(&peer(&world, NEAR)));

    let second = world.tabane(&["up"]).output().unwrap();
    assert_eq!(status(&second), Some(1), "{second:?}");
    let said = complaint(&second);
    assert!(
        said.contains("up already") && said.contains("tabane down"),
        "{said}"
    );

    let down = world.tabane(&["down", "--json"]).output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&down.stdout).unwrap();
    assert_eq!(report["stopped"], true, "{down:?}");
    assert!(wait_for(&mut up.child, PATIENCE).success());
    assert!(is_plain(&peer(&world, PEER)) && is_plain(&udp_peer(&world)));
    let again = world.tabane(&["down"]).output().unwrap();
    assert_eq!(text(&again.stdout), "tabane was not up\n", "{again:?}");
}

#[test]
fn killed_it_leaves_the_machine_as_it_was() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    let mut up = Up::start(&world, &["--all"]);
    up.wait_until(UP);
    assert!(!is_plain(&peer(&world, PEER)));
    up.kill();
    // The kernel's workers take the hooks away soon after.
    let deadline = Instant::now() + Duration::from_secs(2);
    let mut line = world.in_client("curl");
    line.args(["-sS", "--fail", "--max-time", "1", PEER]);
    while !line.output().unwrap().status.success() {
        assert!(Instant::now() < deadline, "cut off");
    }
    for _ in 0..5 {
        assert!(is_plain(&peer(&world, PEER)) && is_plain(&peer(&world, PEER6)));
        assert!(is_plain(&udp_peer(&world)));
    }
    drop(up);
    let up = Up::start(&world, &[]);
    up.wait_until(UP);
    assert!(!is_plain(&peer(&world, PEER)));
}

#[test]
fn without_the_relay_everything_new_goes_plainly() {
    let Some(mut world) = World::new(&[]) else {
        return;
    };
    world.join();
    world.stop_relay();
    let root = world.path("");
    let up = Up::start(&world, &[]);
    assert!(is_plain(&peer(&world, PEER)) && is_plain(&udp_peer(&world)));
    // A destination that refuses does so at once, as on a bare machine.
    let refused = world
        .in_client("curl")
        .arg("http://203.0.113.2:1/")
        .output()
        .unwrap();
    assert_eq!(status(&refused), Some(7), "{refused:?}");
    let mut relay = relay_in(&world, &root);
    up.wait_until(UP);
    assert!(!is_plain(&peer(&world, PEER)));

    // The relay falls silent: what is new waits a moment and goes plainly; what runs waits.
    let line = "curl -sS --limit-rate 4M http://203.0.113.2:8000/8000000 | wc -c";
    let mut running = world.in_client("sh");
    let running = running
        .args(["-c", line])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(500));
    kill(pid(&relay), Signal::SIGSTOP).unwrap();
    assert!(is_plain(&peer(&world, PEER)));
    up.wait_until(LOST);
    assert!(is_plain(&udp_peer(&world)));
    kill(pid(&relay), Signal::SIGCONT).unwrap();
    up.wait_until(UP);
    let output = running.wait_with_output().unwrap();
    assert_eq!(text(&output.stdout).trim(), "8000000", "{output:?}");
    assert!(!is_plain(&peer(&world, PEER)));

    // It dies, and another takes its place.
    relay.kill().unwrap();
    relay.wait().unwrap();
    assert!(is_plain(&peer(&world, PEER)));
    let mut relay = relay_in(&world, &root);
    up.wait_until(UP);
    assert!(!is_plain(&peer(&world, PEER)));
    relay.kill().unwrap();
    relay.wait().unwrap();
}

/// The world's relay once more, with a life of its own.
fn relay_in(world: &World, root: &Path) -> Child {
    let mut command: Command = world.in_relay(TABANE);
    command.args([
        "relay",
        "--log",
        "warn",
        "--public",
        "203.0.113.1",
        "--state",
    ]);
    command.arg(root.join("relay")).stdout(Stdio::null());
    command.spawn().unwrap()
}

#[test]
fn in_the_background_it_is_ready_when_the_prompt_is_back() {
    let Some(mut world) = World::new(&[]) else {
        return;
    };
    world.join();
    let detach = |world: &World| world.tabane(&["up", "--detach"]).output().unwrap();
    for _ in 0..3 {
        let first = detach(&world);
        assert!(
            first.status.success() && first.stderr.is_empty(),
            "{first:?}"
        );
        let seen = peer(&world, PEER);
        let last = detach(&world);
        assert!(!is_plain(&seen), "the next connection went plainly: {seen}");
        assert_eq!(status(&last), Some(1), "{last:?}");
        assert!(complaint(&last).contains("up already"), "{last:?}");
        assert!(world.tabane(&["down"]).status().unwrap().success());
    }
    world.stop_relay();
    let second = detach(&world);
    assert_eq!(status(&second), Some(1), "{second:?}");
    let said = complaint(&second);
    assert!(said.contains("relay does not answer"), "{second:?}");
    assert!(is_plain(&peer(&world, PEER)));
    let down = world.tabane(&["down"]).output().unwrap();
    assert!(text(&down.stdout).starts_with("down (process"), "{down:?}");
    assert!(is_plain(&peer(&world, PEER)));
}

const PINGED: [&str; 2] = ["203.0.113.2", "2001:db8:ffff::2"];

/// Who answers to pings, or `-`, of [`PINGED`].
pub(crate) fn ping(world: &World, tries: u32) -> String {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bond/ping.py");
    let [v4, v6] = PINGED;
    shell(world, &format!("python3 {script} {tries} {v4} {v6}")).replace('\n', " ")
}

/// Has the servers drop pings that come plainly.
pub(crate) fn forbid_plain_pings(world: &World) -> bool {
    let rules = "table inet t { chain c { type filter hook input priority 0; \
                 ip saddr 10.71.0.0/16 icmp type echo-request drop; \
                 ip6 saddr { 2001:db8:1::/48, 2001:db8:2::/48 } icmpv6 type echo-request drop; \
                 }; }";
    if Command::new("nft").arg("--version").output().is_err() {
        return false;
    }
    assert!(
        world
            .in_servers("nft")
            .arg(rules)
            .status()
            .unwrap()
            .success()
    );
    true
}

#[test]
fn pings_of_both_families_go_over_the_bond() {
    let Some(world) = World::new(&[]) else { return };
    if !forbid_plain_pings(&world) {
        println!("skipped: no nft");
        return;
    }
    world.join();
    let all = PINGED.join(" ");
    // As distributions have it.
    let strict = "net.ipv4.conf.all.rp_filter=1";
    assert!(
        world
            .in_client("sysctl")
            .args(["-qw", strict])
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(ping(&world, 1), "- -");
    // Somebody has the name that we would have taken.
    crate::ip(&format!(
        "-n {} link add tabane0 type veth peer name other0",
        world.client_ns()
    ));
    // First by raw sockets at the relay, then by those that need no privilege.
    let mut up = Up::start(&world, &[]);
    up.wait_until(UP);
    assert_eq!(ping(&world, 10), all);
    // Who would not serve it.
    let ping_the_relay = shell(&world, "ping -c 1 -W 5 203.0.113.1");
    assert!(ping_the_relay.contains("1 received"), "{ping_the_relay}");
    assert!(shell(&world, "ip link show tabane1").contains("UP"));
    let open = "net.ipv4.ping_group_range=0 2147483647";
    assert!(
        world
            .in_relay("sysctl")
            .args(["-qw", open])
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(ping(&world, 10), all);
    up.kill();
    assert_eq!(ping(&world, 1), "- -");
    let left = shell(&world, "nft list tables; ip rule");
    assert!(
        left.contains("inet tabane") && left.contains("0x1063"),
        "{left}"
    );
    assert!(world.tabane(&["down"]).status().unwrap().success());
    crate::ip(&format!("-n {} link del tabane0", world.client_ns()));
    let left = shell(
        &world,
        "nft list tables; ip rule; ip -6 rule; ip route show table all",
    );
    assert!(
        !left.contains("tabane") && !left.contains("0x106"),
        "{left}"
    );
    let up = Up::start(&world, &["--no-ping"]);
    up.wait_until(UP);
    assert_eq!(ping(&world, 1), "- -");
}

#[test]
fn without_nftables_it_says_so_and_carries_what_needs_none() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    let bare = || {
        let mut command = world.in_client("env");
        command.args(["PATH=/nonexistent", TABANE]);
        command
    };
    let refused = bare().args(["up", "--lan", "c1"]).output().unwrap();
    assert_eq!(status(&refused), Some(1), "{refused:?}");
    let said = text(&refused.stderr);
    assert!(said.contains("the package is called nftables"), "{said}");
    let up = Up::start_by(&world, bare(), &[]);
    up.wait_until(UP);
    assert!(!is_plain(&peer(&world, PEER)));
    let log = fs::read_to_string(world.path("up.log")).unwrap();
    assert!(
        log.contains("pings and other protocols are not carried"),
        "{log}"
    );
}

#[test]
fn a_link_that_is_not_there_is_named_at_once_and_used_when_it_comes() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    let has_nft = Command::new("nft").arg("--version").output().is_ok();
    let lan: &[&str] = if has_nft { &["--lan", "lan7"] } else { &[] };
    let up = Up::start(&world, &[&["--link", "wwan7"], lan].concat());
    if has_nft {
        // As of READY=1.
        let log = fs::read_to_string(world.path("up.log")).unwrap();
        let said = "--lan: there is no interface called 'lan7'";
        assert!(log.contains(said), "{log}");
    }
    let said = "there is no interface called 'wwan7'; there are: lo, c1, c2";
    within(PATIENCE, said, || {
        let log = fs::read_to_string(world.path("up.log")).unwrap();
        log.contains(said)
    });
    let is_seen =
        |state: &serde_json::Value| state["links"].as_array().is_some_and(|it| !it.is_empty());
    let state = until(&world, "up", is_seen);
    let shown = link(&state, "wwan7");
    let why = shown["problem"].as_str().unwrap();
    assert!(
        shown["state"] == "unused" && why.contains("no such interface"),
        "{shown:#}"
    );
    for line in [
        format!("-n {} link set c2 down", world.client_ns()),
        format!("-n {} link set c2 name wwan7", world.client_ns()),
        format!("-n {} link set wwan7 up", world.client_ns()),
        format!(
            "-n {} route replace default via 10.71.2.2 dev wwan7",
            world.client_ns()
        ),
    ] {
        ip(&line);
    }
    up.wait_until(UP);
    drop(up);

    let output = world
        .tabane(&["up", "--detach", "--link", "wwan8", "--lan", "lan8"])
        .output()
        .unwrap();
    assert!(world.tabane(&["down"]).status().unwrap().success());
    let told = text(&output.stderr);
    let first = told.lines().next().unwrap();
    let both = "no interface called 'wwan8' or 'lan8'";
    assert!(first.contains(both), "{told}");
}
