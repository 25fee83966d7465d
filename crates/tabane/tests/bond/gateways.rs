//! Several gateways behind one interface: two routers at a switch, each a link of its own.
//!
//! ```text
//!   client  e0 192.168.1.10 ── switch ── 192.168.1.1    router 1  10.72.1.1 ─── 10.72.1.2  relay
//!                                └────── 192.168.1.254  router 2  10.72.2.1 ─── 10.72.2.2
//! ```
//!
//! Both routers translate addresses, as modems do, so that what comes back tells by whom it went.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use serde_json::Value;

use crate::control::{link, until};
use crate::process::PATIENCE;
use crate::text;
use crate::up::shell;
use crate::world::{TABANE, World, first_line, ip, pid, wait_for};

const ROUTERS: [&str; 2] = ["192.168.1.1", "192.168.1.254"];
const SECOND: &str = "e0@192.168.1.254";
const PEER: &str = "http://203.0.113.2:8000/peer";

/// Beside the world's own namespaces.
struct Routers<'a> {
    world: &'a World,
    switch: String,
    routers: [String; 2],
}

impl<'a> Routers<'a> {
    /// In the place of the client's own links; the system knows `known` of the routers.
    fn new(world: &'a World, known: usize) -> Self {
        let (client, relay) = (world.client_ns(), world.relay_ns());
        let switch = format!("{client}w");
        let routers = [1, 2].map(|i| format!("{client}{i}"));
        for old in ["c1", "c2"] {
            ip(&format!("-n {client} link del {old}"));
        }
        for ns in routers.iter().chain([&switch]) {
            ip(&format!("netns add {ns}"));
        }
        ip(&format!("-n {switch} link add br0 type bridge"));
        ip(&format!("-n {switch} link set br0 up"));
        ip(&format!(
            "-n {client} link add e0 type veth peer name w0 netns {switch}"
        ));
        ip(&format!("-n {client} addr add 192.168.1.10/24 dev e0"));
        ip(&format!("-n {client} link set e0 up"));
        for (i, router) in (1..).zip(&routers) {
            ip(&format!(
                "-n {router} link add m0 type veth peer name w{i} netns {switch}"
            ));
            ip(&format!(
                "-n {router} link add u0 type veth peer name x{i} netns {relay}"
            ));
            for (ns, end, address) in [
                (router.as_str(), "m0", format!("{}/24", ROUTERS[i - 1])),
                (router, "u0", format!("10.72.{i}.1/24")),
                (relay, &format!("x{i}"), format!("10.72.{i}.2/24")),
            ] {
                ip(&format!("-n {ns} addr add {address} dev {end}"));
                ip(&format!("-n {ns} link set {end} up"));
            }
            ip(&format!("-n {router} route add default via 10.72.{i}.2"));
        }
        for port in ["w0", "w1", "w2"] {
            ip(&format!("-n {switch} link set {port} master br0 up"));
        }
        let made = Self {
            world,
            switch,
            routers,
        };
        let translate = "table ip modem { chain out { type nat hook postrouting priority 100; \
                         oifname u0 masquerade; }; }";
        for router in 0..2 {
            made.run(router, &["sysctl", "-qw", "net.ipv4.ip_forward=1"]);
            made.run(router, &["nft", translate]);
        }
        for (metric, router) in ROUTERS.iter().enumerate().take(known) {
            ip(&format!(
                "-n {client} route add default via {router} dev e0 metric {metric}"
            ));
        }
        made
    }

    fn run(&self, router: usize, command: &[&str]) -> String {
        let mut ip = Command::new("ip");
        ip.args(["netns", "exec", &self.routers[router]])
            .args(command);
        let output = ip.output().unwrap();
        assert!(output.status.success(), "{command:?}: {output:?}");
        text(&output.stdout)
    }

    /// What has come from the internet by each so far, by the kernel's count.
    fn received(&self) -> [u64; 2] {
        [0, 1].map(|router| {
            let counter = "/sys/class/net/u0/statistics/rx_bytes";
            self.run(router, &["cat", counter]).trim().parse().unwrap()
        })
    }

    /// The rules of ours that the client's machine has.
    fn rules(&self) -> Vec<String> {
        let rules = shell(self.world, "ip rule; ip -6 rule");
        let ours = rules.lines().filter(|rule| rule.contains("fwmark 0x11"));
        ours.map(str::to_owned).collect()
    }

    fn policy(&self, text: &str) {
        let settings = self.world.path(".config/tabane");
        fs::create_dir_all(&settings).unwrap();
        fs::write(settings.join("policy.toml"), text).unwrap();
    }
}

impl Drop for Routers<'_> {
    fn drop(&mut self) {
        for ns in self.routers.iter().chain([&self.switch]) {
            let _ = Command::new("ip").args(["netns", "del", ns]).output();
        }
    }
}

/// As slow as a modem: what one carries is not all.
const SLOW: &str = "[[link]]\nname = \"e0\"\ndown = \"40mbit\"\n";
const NAMED: &str = "[[link]]\nname = \"dsl\"\ninterface = \"e0\"\ngateway = \"192.168.1.1\"\n\
                     down = \"40mbit\"\n\
                     [[link]]\nname = \"lte\"\ninterface = \"e0\"\ngateway = \"192.168.1.254\"\n\
                     down = \"40mbit\"\n";

/// A command with a session that lasts until its input ends.
fn start(world: &World, line: &str) -> (Child, String) {
    let line = format!("echo up; {line}; cat");
    let mut command = world.tabane(&["run", "--", "sh", "-c", &line]);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    assert_eq!(first_line(&mut child), "up");
    let name = format!("run-{}", child.id());
    (child, name)
}

fn end(mut child: Child) {
    drop(child.stdin.take());
    assert!(wait_for(&mut child, PATIENCE).success());
}

fn is_active(state: &Value, name: &str) -> bool {
    let mut links = state["links"].as_array().unwrap().iter();
    links.any(|link| link["name"] == name && link["state"] == "active")
}

/// What came over a link, as its session has it.
fn counted(state: &Value, name: &str) -> u64 {
    link(state, name)["traffic"]["received_bytes"]
        .as_u64()
        .unwrap()
}

/// Both carried their share, and what is said of each is what its router saw, but for headers of
/// what carries it, as soon as the instance has looked once more.
fn check_shares(world: &World, instance: &str, names: [&str; 2], passed: [u64; 2]) {
    let sum = passed[0] + passed[1];
    for (name, passed) in names.into_iter().zip(passed) {
        assert!(passed * 4 > sum, "{name}: {passed} of {sum}");
        until(world, instance, |state| {
            passed.abs_diff(counted(state, name)) * 10 < passed
        });
    }
}

#[test]
fn gateways_that_are_found_are_links_of_their_own() {
    let Some(world) = World::new(&[]) else { return };
    let routers = Routers::new(&world, 2);
    world.join();
    routers.policy(SLOW);
    let fetch = "curl -sS --fail -o /dev/null http://203.0.113.2:8000/20000000 && echo got";
    let (child, name) = start(&world, "read line; cat");
    until(&world, &name, |state| {
        is_active(state, "e0") && is_active(state, SECOND)
    });
    end(child);
    let before = routers.received();
    let (mut child, name) = start(&world, fetch);
    assert_eq!(first_line(&mut child), "got");
    let after = routers.received();
    let passed = [0, 1].map(|it| after[it] - before[it]);
    check_shares(&world, &name, ["e0", SECOND], passed);
    end(child);
    assert_eq!(routers.rules(), Vec::<String>::new());
}

#[test]
fn gateways_that_are_named_carry_fetches_and_what_goes_plainly_apart() {
    let Some(world) = World::new(&[]) else { return };
    // The system knows of one; the other one is the user's word.
    let routers = Routers::new(&world, 1);
    world.join();
    let rule = "[[rule]]\nname = \"x\"\naddress = \"203.0.113.2\"\ndirect = true\n";
    // Plainly, each where the other is better spared.
    for (link, other, seen) in [("lte", "dsl", "10.72.2.1"), ("dsl", "lte", "10.72.1.1")] {
        let name = format!("name = \"{other}\"\n");
        let spared = NAMED.replace(&name, &format!("{name}metered = true\n"));
        routers.policy(&format!("{spared}{rule}"));
        let output = world.run(&[], &format!("curl -sS --fail {PEER}"));
        let peer = text(&output.stdout);
        assert!(peer.starts_with(seen), "by {link}: {peer} {output:?}");
        let mut open = world.tabane(&["open", link, "--", "curl", "-sS", "--fail", PEER]);
        let output = open.output().unwrap();
        let peer = text(&output.stdout);
        assert!(peer.starts_with(seen), "open {link}: {peer} {output:?}");
    }
    routers.policy(NAMED);
    // Fetches without relay, by each.
    for (router, link) in ["dsl", "lte"].into_iter().enumerate() {
        let before = routers.received();
        let url = "http://203.0.113.2:8000/5000000";
        let mut get = world.tabane(&["get", "--link", link, url, "-o", "/dev/null"]);
        let output = get.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let after = routers.received();
        let passed = [0, 1].map(|it| after[it] - before[it]);
        assert!(passed[router] > 5_000_000, "by {link}: {passed:?}");
        assert!(passed[1 - router] < 100_000, "by {link}: {passed:?}");
    }
    let shown = world.tabane(&["links"]).output().unwrap();
    let shown = text(&shown.stdout);
    for words in ["dsl", "192.168.1.1 ", "lte", "192.168.1.254"] {
        assert!(shown.contains(words), "{words} in {shown}");
    }
    assert_eq!(routers.rules(), Vec::<String>::new());
}

#[test]
fn a_gateway_that_goes_takes_nothing_with_it_and_is_a_link_again_when_it_is_back() {
    let Some(world) = World::new(&[]) else { return };
    let routers = Routers::new(&world, 2);
    world.join();
    routers.policy(SLOW);
    let (mut child, name) = start(&world, "curl -sS http://203.0.113.2:8000/30000000 | wc -c");
    let both = |state: &Value| is_active(state, "e0") && is_active(state, SECOND);
    until(&world, &name, both);
    let route = "route del default via 192.168.1.254 dev e0";
    ip(&format!("-n {} {route}", world.client_ns()));
    let why = "not there any more";
    let gone = until(&world, &name, |state| {
        let mut links = state["links"].as_array().unwrap().iter();
        links.any(|link| link["name"] == SECOND && link["problem"] == why)
    });
    assert_eq!(link(&gone, SECOND)["state"], "unused");
    // One is left, which needs no rule.
    assert_eq!(routers.rules(), Vec::<String>::new());
    let route = "route add default via 192.168.1.254 dev e0 metric 2";
    ip(&format!("-n {} {route}", world.client_ns()));
    until(&world, &name, both);
    // What flushes routes and rules is mended.
    for line in ["rule del priority 10630", "route flush table 0x1100"] {
        let flushed = world.in_client("ip").args(line.split(' ')).status();
        assert!(flushed.unwrap().success());
    }
    let deadline = Instant::now() + PATIENCE;
    while routers.rules().len() != 4 {
        assert!(Instant::now() < deadline, "{:?}", routers.rules());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(first_line(&mut child), "30000000");
    end(child);
    assert_eq!(routers.rules(), Vec::<String>::new());
}

#[test]
fn what_was_killed_leaves_no_rules_to_the_next() {
    let Some(world) = World::new(&[]) else { return };
    let routers = Routers::new(&world, 2);
    world.join();
    let (mut killed, _) = start(&world, "true");
    // Two families, two gateways.
    assert_eq!(routers.rules().len(), 4);
    kill(pid(&killed), Signal::SIGKILL).unwrap();
    killed.wait().unwrap();
    assert_eq!(routers.rules().len(), 4);
    let (next, _) = start(&world, "true");
    assert_eq!(routers.rules().len(), 4);
    // Beside it, another has marks of its own, which go with it alone.
    let (mut other, _) = start(&world, "true");
    assert_eq!(routers.rules().len(), 8);
    kill(pid(&other), Signal::SIGKILL).unwrap();
    other.wait().unwrap();
    let down = world.tabane(&["down"]).output().unwrap();
    assert_eq!(routers.rules().len(), 4, "{down:?}");
    end(next);
    assert_eq!(routers.rules(), Vec::<String>::new());
    let routes = shell(
        &world,
        "ip route show table all; ip -6 route show table all",
    );
    assert!(!routes.contains("table 43"), "{routes}");
}

#[test]
fn gateways_that_cannot_be_used_are_told_of_and_the_others_go_on() {
    let Some(world) = World::new(&[]) else { return };
    let routers = Routers::new(&world, 2);
    world.join();
    // Without the right to rules: the routing table's own is used.
    let mut nobody = world.in_client("setpriv");
    nobody.args(["--reuid=65534", "--regid=65534", "--clear-groups", TABANE]);
    let shown = nobody.arg("links").current_dir("/").output().unwrap();
    let shown = text(&shown.stdout);
    let line = |name: &str| shown.lines().find(|line| line.starts_with(name));
    let second = line(SECOND).unwrap_or_else(|| panic!("{shown}"));
    assert!(
        second.contains("run as root or with CAP_NET_ADMIN"),
        "{second}"
    );
    assert!(
        line("e0 ").is_some_and(|line| line.ends_with("yes")),
        "{shown}"
    );
    // Two that are one.
    let same = NAMED.replace("192.168.1.254", "192.168.1.1");
    routers.policy(&same);
    let (child, name) = start(&world, "true");
    let state = until(&world, &name, |state| is_active(state, "dsl"));
    let problem = link(&state, "lte")["problem"].as_str().unwrap();
    assert!(problem.contains("the gateway of another link"), "{problem}");
    assert!(is_active(&state, "dsl"), "{state}");
    end(child);
}
