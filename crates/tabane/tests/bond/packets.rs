//! What is neither TCP nor UDP, by an address of the relay's pool.
//!
//! Whom the server saw tells the way: the relay's own address, or the machine's (10.71…).

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use serde_json::Value;

use crate::lan::Host;
use crate::running::{Running, within};
use crate::up::{UP, Up};
use crate::world::{TABANE, World, first_line, ip, pid, wait_for};
use crate::{status, text};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bond/beside.py");
pub(crate) const POOL: [&str; 4] = ["--pool", "100.64.16.0/24", "--pool", "fd00:16::/64"];
const SERVERS: [&str; 2] = ["203.0.113.2", "2001:db8:ffff::2"];
/// As servers see what the relay lets out, and what comes plainly.
pub(crate) const CARRIED: &str = "203.0.113.1 2001:db8:ffff::1";
const PLAIN: &str = "10.71.1.1 2001:db8:1::1";
const PATIENCE: Duration = Duration::from_secs(30);

/// A server of raw protocols.
pub(crate) fn answering(world: &World) -> Running {
    Running::ready(world.in_servers("python3").args([SCRIPT, "serve"]))
}

/// The world's relay with other flags and a life of its own.
struct Relay(Running);

impl Relay {
    fn start(world: &World, flags: &[&str]) -> Self {
        let mut command = world.in_relay(TABANE);
        command.args(["relay", "--log", "warn", "--public", "203.0.113.1"]);
        command.arg("--state").arg(world.path("relay")).args(flags);
        let (relay, line) = Running::start(&mut command);
        assert!(line.starts_with("tabane://"));
        Self(relay)
    }

    fn stop(mut self) {
        let Running(child) = &mut self.0;
        kill(pid(child), Signal::SIGTERM).unwrap();
        assert!(wait_for(child, PATIENCE).success());
    }
}

/// A world that has joined its relay, which is down; `None` where no rules can be made.
fn world() -> Option<(World, Running)> {
    if Command::new("nft").arg("--version").output().is_err() {
        println!("skipped: no nft");
        return None;
    }
    let mut world = World::new(&[])?;
    world.join();
    world.stop_relay();
    let answering = answering(&world);
    Some((world, answering))
}

/// Whom the servers saw when asked by a protocol from where `command` runs, by family.
fn seen(mut command: Command, protocol: u8, size: usize) -> String {
    let command = command.args([SCRIPT, "ask", &protocol.to_string(), &size.to_string()]);
    let output = command.args(SERVERS).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    text(&output.stdout).trim().to_owned()
}

pub(crate) fn seen_from_client(world: &World, protocol: u8) -> String {
    seen(world.in_client("python3"), protocol, 0)
}

/// Asks until whom the servers see is `wanted`: addresses are given just after the session is up.
pub(crate) fn soon(world: &World, wanted: &str) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let seen = seen_from_client(world, 253);
        if seen == wanted {
            return;
        }
        assert!(Instant::now() < deadline, "{seen}, never {wanted}");
    }
}

/// What the first session of an instance has of packets, once `holds`: an instance looks at itself
/// now and then.
pub(crate) fn packets(
    command: impl Fn() -> Command,
    instance: &str,
    holds: impl Fn(&Value) -> bool,
) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut status = command();
        let status = status.args(["status", "--json", "--instance", instance]);
        let output = status.output().unwrap();
        let state: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {output:?}"));
        let packets = &state["sessions"][0]["packets"];
        if packets["addresses"][0].is_string() && holds(packets) {
            return packets.clone();
        }
        assert!(Instant::now() < deadline, "never: {state}");
    }
}

fn many(number: &Value) -> bool {
    number.as_u64() > Some(6)
}

#[test]
fn other_protocols_bear_an_address_of_the_relay_and_nobody_is_cut_off() {
    let Some((world, _answering)) = world() else {
        return;
    };
    let relay = Relay::start(&world, &POOL);
    assert_eq!(seen_from_client(&world, 253), PLAIN);
    let host = Host::new(&world);
    assert_eq!(
        seen(host.command("python3"), 253, 0),
        "10.72.0.2 2001:db8:72::2"
    );
    let mut up = Up::start(&world, &["--lan", "c9"]);
    up.wait_until(UP);
    // What goes out before stays on its way, as long as it is asked again.
    packets(|| world.tabane(&[]), "up", |_| true);
    soon(&world, CARRIED);
    // Protocols without ports have one conversation with a host by one address.
    assert_eq!(seen(host.command("python3"), 47, 0), CARRIED);
    assert_eq!(seen_from_client(&world, 50), CARRIED);
    let large = seen(world.in_client("python3"), 253, 5_000);
    assert!(large.starts_with("203.0.113.1 "), "{large}");
    // Time runs out at the relay, which says so.
    let mut hop = world.in_client("python3");
    let hop = hop.args([SCRIPT, "hop", "1", SERVERS[0]]).output().unwrap();
    assert_eq!(text(&hop.stdout).trim(), "100.64.16.1", "{hop:?}");
    let ours = packets(|| world.tabane(&[]), "up", |it| many(&it["received"]));
    let address = ours["addresses"][0].as_str().unwrap().to_owned();
    assert!(address.starts_with("100.64.16."), "{ours}");
    let at_relay = || world.in_relay(TABANE);
    let theirs = packets(at_relay, "relay-4510", |it| many(&it["sent"]));
    assert_eq!(theirs["addresses"], ours["addresses"]);
    assert_eq!(theirs["refused"], serde_json::json!({}), "{theirs}");

    // A relay that comes back gives the same address. Nobody hears of it who goes on sending.
    let pouring = SERVERS.map(|server| {
        let mut pouring = world.in_client("python3");
        let pouring = pouring.args([SCRIPT, "pour", "50", server]);
        let pouring = pouring.stdin(Stdio::piped()).stdout(Stdio::piped());
        pouring.spawn().unwrap()
    });
    relay.stop();
    let left = world.in_relay("nft").args(["list", "tables"]).output();
    assert!(!text(&left.unwrap().stdout).contains("tabane"));
    // What was under way waits a moment for another session.
    assert_eq!(seen_from_client(&world, 50), PLAIN);
    let relay = Relay::start(&world, &POOL);
    // What goes out before stays on its way, as long as it is asked again.
    packets(|| world.tabane(&[]), "up", |_| true);
    soon(&world, CARRIED);
    let again = packets(|| world.tabane(&[]), "up", |_| true);
    assert_eq!(again["addresses"][0], address.as_str());
    for mut pouring in pouring {
        drop(pouring.stdin.take());
        assert_eq!(text(&pouring.wait_with_output().unwrap().stdout), "\n");
    }

    up.kill();
    assert_eq!(seen_from_client(&world, 50), PLAIN);
    drop(up);
    // Nor does a relay that was killed leave anything that matters.
    drop(relay);
    assert_eq!(seen_from_client(&world, 253), PLAIN);
    let _relay = Relay::start(&world, &[]);
    let left = world.in_relay("nft").args(["list", "tables"]).output();
    assert!(!text(&left.unwrap().stdout).contains("tabane"));
    // Without a pool, the rest goes plainly.
    let up = Up::start(&world, &[]);
    up.wait_until(UP);
    assert_eq!(seen_from_client(&world, 47), PLAIN);
}

#[test]
fn a_relay_in_other_hands_reaches_nothing_that_listens_on_this_machine() {
    let Some((world, _answering)) = world() else {
        return;
    };
    let _relay = Relay::start(&world, &POOL);
    let up = Up::start(&world, &[]);
    up.wait_until(UP);
    let ours = packets(|| world.tabane(&[]), "up", |_| true);
    soon(&world, CARRIED);
    let mut listening = world.in_client("python3");
    let listening = listening.args([SCRIPT, "listen", SERVERS[0]]);
    let listening = listening.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut listening = listening.spawn().unwrap();
    assert_eq!(first_line(&mut listening), "ready");
    // Its own firewall is what it likes.
    let mut flush = world.in_relay("nft");
    assert!(flush.args(["flush", "ruleset"]).status().unwrap().success());
    let mut inject = world.in_relay("python3");
    let inject = inject.args([SCRIPT, "inject", ours["addresses"][0].as_str().unwrap()]);
    assert!(inject.status().unwrap().success());
    let mut stdin = listening.stdin.take().unwrap();
    stdin.write_all(b"sent\n").unwrap();
    let output = listening.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(text(&output.stdout).trim(), "");
}

/// Another machine, by a link of its own: 10.73.0.2.
struct Other<'a> {
    world: &'a World,
    ns: String,
}

impl<'a> Other<'a> {
    fn new(world: &'a World) -> Self {
        let ns = format!("{}o", world.client_ns());
        let r = world.relay_ns();
        for line in [
            format!("netns add {ns}"),
            format!("-n {ns} link set lo up"),
            format!("-n {r} link add r9 type veth peer name o1 netns {ns}"),
            format!("-n {r} addr add 10.73.0.1/24 dev r9"),
            format!("-n {ns} addr add 10.73.0.2/24 dev o1"),
            format!("-n {r} link set r9 up"),
            format!("-n {ns} link set o1 up"),
            format!("-n {ns} route add default via 10.73.0.1"),
        ] {
            ip(&line);
        }
        Self { world, ns }
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.ns, program]);
        command.env("TABANE_RUNTIME", self.world.path("other-runtime"));
        command
    }

    fn tabane(&self) -> Command {
        let mut command = self.command(TABANE);
        command.arg("--config").arg(self.world.path("other"));
        command
    }
}

impl Drop for Other<'_> {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.ns]).output();
    }
}

#[test]
fn two_that_ping_the_same_host_by_the_same_number_have_their_own_answers() {
    const COUNT: &str = "20";
    let Some((world, _answering)) = world() else {
        return;
    };
    let _relay = Relay::start(&world, &POOL);
    let other = Other::new(&world);
    let joined = other.tabane().args(["join", &world.join]).output().unwrap();
    assert!(joined.status.success(), "{joined:?}");
    let first = Up::start(&world, &[]);
    first.wait_until(UP);
    packets(|| world.tabane(&[]), "up", |_| true);
    soon(&world, CARRIED);
    let second = Up::start_by(&world, other.tabane(), &[]);
    second.wait_until(UP);
    // What begins before that goes plainly, and goes on so.
    packets(|| other.tabane(), "up", |_| true);
    let carried = |seen: &str| seen.starts_with("203.0.113.1 ");
    within(PATIENCE, "it is carried", || {
        carried(&seen(other.command("python3"), 50, 0))
    });
    let start = |mut command: Command| {
        let command = command.args([SCRIPT, "pings", "7", COUNT, SERVERS[0]]);
        command.stdout(Stdio::piped()).spawn().unwrap()
    };
    let both = [
        start(world.in_client("python3")),
        start(other.command("python3")),
    ];
    for child in both {
        let output = child.wait_with_output().unwrap();
        let answers = text(&output.stdout);
        let (own, foreign) = answers.trim().split_once(' ').unwrap();
        assert_eq!(foreign, "0", "{answers}");
        assert!(own.parse::<u32>().unwrap() > 15, "{answers}");
    }
    let one = packets(|| world.tabane(&[]), "up", |_| true);
    let two = packets(|| other.tabane(), "up", |_| true);
    assert_ne!(one["addresses"][0], two["addresses"][0]);
}

#[test]
fn a_pool_that_cannot_be_is_refused_at_once_and_a_full_one_costs_only_its_use() {
    let Some((world, _answering)) = world() else {
        return;
    };
    let relay = Relay::start(&world, &POOL);
    let refused = |flags: &[&str], word: &str| {
        let mut relay = world.in_relay(TABANE);
        relay.args(["relay", "--listen", "[::]:4511", "--state"]);
        relay.arg(world.path("relay-2")).args(flags);
        let output = relay.output().unwrap();
        let said = text(&output.stderr);
        assert!(matches!(status(&output), Some(1 | 2)), "{flags:?}: {said}");
        let last = said.lines().last().unwrap_or_default();
        assert!(last.contains(word), "{flags:?}: {said}");
    };
    refused(&["--pool", "10.71.0.0/16"], "overlaps 10.71.");
    refused(&["--pool", "100.64.16.0/24"], "overlaps 100.64.16.1/24");
    refused(&["--pool", "10.9.0.0/24"], "another relay with a pool");
    let set = |value: &str| {
        let mut sysctl = world.in_relay("sysctl");
        let set = sysctl.args(["-qw", &format!("net.ipv4.ip_forward={value}")]);
        assert!(set.status().unwrap().success());
    };
    set("0");
    refused(&["--pool", "10.9.0.0/24"], "net.ipv4.ip_forward=1");
    set("1");
    relay.stop();
    let refused = |path: &str, word: &str| {
        let mut relay = world.in_relay("env");
        relay.args([&format!("PATH={path}"), TABANE, "relay", "--state"]);
        relay
            .arg(world.path("relay-2"))
            .args(["--pool", "10.9.0.0/24"]);
        let output = relay.output().unwrap();
        let said = text(&output.stderr);
        assert!(said.contains(word), "{said}");
    };
    refused("/nonexistent", "the package is called nftables");
    ip(&format!(
        "-n {} link add tabane-pool type veth peer name other0",
        world.relay_ns()
    ));
    refused(&std::env::var("PATH").unwrap(), "ip link show tabane-pool");
    ip(&format!("-n {} link del tabane-pool", world.relay_ns()));

    // Room for one.
    let _relay = Relay::start(&world, &["--pool", "100.64.16.0/30"]);
    let other = Other::new(&world);
    assert!(
        other
            .tabane()
            .args(["join", &world.join])
            .status()
            .unwrap()
            .success()
    );
    let first = Up::start_by(&world, other.tabane(), &[]);
    first.wait_until(UP);
    let carried = |seen: &str| seen.starts_with("203.0.113.1 ");
    within(PATIENCE, "it is carried", || {
        carried(&seen(other.command("python3"), 253, 0))
    });
    let second = Up::start(&world, &[]);
    second.wait_until(UP);
    assert_eq!(seen_from_client(&world, 253), PLAIN);
    assert!(!crate::up::is_plain(&crate::up::peer(
        &world,
        "http://203.0.113.2:8000/peer"
    )));
    assert!(crate::up::ping(&world, 10).starts_with("203.0.113.2"));
    let log = std::fs::read_to_string(world.path("up.log")).unwrap();
    assert!(log.contains("pool is full"), "{log}");
}
