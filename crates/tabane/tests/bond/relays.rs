//! Relays that come and go: one of two is killed under a download and comes back, one moves.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use serde_json::Value;

use crate::download::Download;
use crate::readme::Hosts;
use crate::running::Running;
use crate::text;
use crate::world::{TABANE, World, first_line, pid, wait_for, without_sum};

/// How long a change may take to be seen.
const PATIENCE: Duration = Duration::from_secs(70);

/// What leads `curl` through the proxy.
const PROXY: &str = "--proxy socks5h://127.0.0.1:1080";

/// A relay on a port of its own beside the one of the world, and its join string.
pub(crate) fn start_relay(world: &World, state: &str, port: &str) -> (Running, String) {
    let mut command = world.in_relay(TABANE);
    command.args(["relay", "--log", "warn", "--public", "203.0.113.1"]);
    command.args(["--listen", &format!("0.0.0.0:{port}"), "--state"]);
    let command = command.arg(world.path(state)).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let join = first_line(&mut child);
    assert!(join.starts_with("tabane://"), "{join}");
    (Running(child), join)
}

/// A client of both relays, which prefers the world's.
pub(crate) fn start_proxy(world: &World, second: &str) -> Running {
    for (name, join) in [("a", &world.join[..]), ("b", second)] {
        let joined = world.tabane(&["join", "--name", name, join]).output();
        assert!(joined.unwrap().status.success());
    }
    let mut proxy = world.tabane(&["proxy", "--log", "info"]);
    let mut proxy = Running(proxy.stdout(Stdio::piped()).spawn().unwrap());
    first_line(&mut proxy.0);
    await_relay(world, &proxy, "a");
    proxy
}

/// What the client's namespace fetches through the proxy.
pub(crate) fn fetch(world: &World, path: &str) -> Command {
    let mut curl = world.in_client("curl");
    curl.args(["-sS", "--max-time", "20", "-o", "/dev/null"]);
    curl.args(PROXY.split(' '));
    curl.arg(format!("http://203.0.113.2:8000/{path}"));
    curl.stdout(Stdio::piped()).stderr(Stdio::piped());
    curl
}

/// The proxy as it is seen from outside; null before it can be.
fn state(world: &World, proxy: &Running) -> Value {
    let name = format!("proxy-{}", proxy.0.id());
    let mut status = world.tabane(&["status", "--json", "--instance", &name]);
    serde_json::from_slice(&status.output().unwrap().stdout).unwrap_or_default()
}

/// Looks at the proxy until `is_so`; gives how long that took.
pub(crate) fn until(
    world: &World,
    proxy: &Running,
    mut is_so: impl FnMut(&Value) -> bool,
) -> Duration {
    let begin = Instant::now();
    loop {
        let state = state(world, proxy);
        if is_so(&state) {
            return begin.elapsed();
        }
        assert!(begin.elapsed() < PATIENCE, "{state:#}");
    }
}

pub(crate) fn await_relay(world: &World, proxy: &Running, name: &str) -> Duration {
    until(world, proxy, |state| state["instance"]["relay"] == name)
}

#[test]
fn a_relay_whose_name_is_not_known_at_first_is_used_when_it_is() {
    let Some(world) = World::new(&[]) else {
        return;
    };
    let hosts = Hosts::new(world.client_ns());
    let (_first, join) = start_relay(&world, "first", "4601");
    let join = without_sum(&join).replace("203.0.113.1:", "late.example.net:");
    for (name, join) in [("second", &world.join), ("first", &join)] {
        let joined = world.tabane(&["join", "--name", name, join]).output();
        assert!(joined.unwrap().status.success());
    }
    let mut proxy = world.tabane(&["proxy", "--log", "info"]);
    let mut proxy = Running(proxy.stdout(Stdio::piped()).spawn().unwrap());
    first_line(&mut proxy.0);
    await_relay(&world, &proxy, "second");
    hosts.add("203.0.113.1 late.example.net");
    let took = await_relay(&world, &proxy, "first");
    println!("found after {} ms", took.as_millis());
    let again = fetch(&world, "20000").output().unwrap();
    assert!(again.status.success(), "{}", text(&again.stderr));
}

/// As where the relay's address is another each night, and its name follows (dynamic DNS).
#[test]
fn a_relay_that_moves_is_followed_by_its_name_and_nothing_is_cut() {
    let Some(world) = World::new(&[]) else {
        return;
    };
    let hosts = Hosts::new(world.client_ns());
    hosts.add("203.0.113.1 moving.example.net");
    let join = without_sum(&world.join).replace("203.0.113.1:", "moving.example.net:");
    world.join_with(&join);
    let mut proxy = world.tabane(&["proxy", "--log", "info"]);
    let mut proxy = Running(proxy.stdout(Stdio::piped()).spawn().unwrap());
    first_line(&mut proxy.0);
    until(&world, &proxy, |state| state["condition"] == "up");
    let mut download = Download::start(&world, PROXY, world.in_client("env"));
    let received = |state: &Value| state["totals"]["traffic"]["received_bytes"].as_u64();
    until(&world, &proxy, |state| received(state) > Some(500_000));

    let run = |mut command: Command, arguments: &str| {
        let done = command.args(arguments.split(' ')).status();
        assert!(done.unwrap().success(), "{arguments}");
    };
    run(world.in_relay("ip"), "addr add 203.0.113.9/32 dev r0");
    let rules = "add table ip old; \
                 add chain ip old in { type filter hook prerouting priority 0; }; \
                 add rule ip old in iifname { r1, r2 } ip daddr 203.0.113.1 drop";
    let mut nft = world.in_relay("nft");
    assert!(nft.arg(rules).status().unwrap().success());
    until(&world, &proxy, |state| state["condition"] == "down");
    hosts.put("203.0.113.9 moving.example.net");
    let took = until(&world, &proxy, |state| state["condition"] == "up");
    println!("followed after {} ms", took.as_millis());
    assert!(took < Duration::from_secs(20), "{took:?}");
    download.assert_under_way();
    download.finish();
}

#[test]
fn when_a_relay_is_killed_the_next_takes_over_until_it_is_back() {
    let Some(world) = World::new(&[]) else {
        return;
    };
    let (mut first, join) = start_relay(&world, "first", "4601");
    for (name, join) in [("second", &world.join), ("first", &join)] {
        let joined = world.tabane(&["join", "--name", name, join]).output();
        assert!(joined.unwrap().status.success());
    }
    // Joined later and first by name: the order is by name where none is preferred.
    let mut proxy = world.tabane(&["proxy", "--log", "info"]);
    let mut proxy = Running(proxy.stdout(Stdio::piped()).spawn().unwrap());
    first_line(&mut proxy.0);
    await_relay(&world, &proxy, "first");
    let mut curl = fetch(&world, "400000000");
    let running = curl.args(["--limit-rate", "2M"]).spawn().unwrap();
    let is_under_way = |state: &Value| {
        let received = state["totals"]["traffic"]["received_bytes"].as_u64();
        received.is_some_and(|bytes| bytes > 500_000)
    };
    until(&world, &proxy, is_under_way);
    first.kill();
    let begin = Instant::now();
    let next = fetch(&world, "20000").output().unwrap();
    let took = begin.elapsed();
    println!("new connection after {} ms", took.as_millis());
    assert!(next.status.success(), "{}", text(&next.stderr));
    assert!(took < Duration::from_secs(5), "{took:?}");
    await_relay(&world, &proxy, "second");
    let cut = running.wait_with_output().unwrap();
    println!("the download under way: {}", text(&cut.stderr));
    assert!(!cut.status.success());
    let listed = world.tabane(&["relays"]).output().unwrap();
    let listed = text(&listed.stdout);
    let line = listed.lines().find(|line| line.contains("second")).unwrap();
    assert!(line.contains("proxy"), "{listed}");
    let (_first, _) = start_relay(&world, "first", "4601");
    let back = await_relay(&world, &proxy, "first");
    println!("back after {} ms", back.as_millis());
    let again = fetch(&world, "20000").output().unwrap();
    assert!(again.status.success(), "{}", text(&again.stderr));
    kill(pid(&proxy.0), Signal::SIGTERM).unwrap();
    wait_for(&mut proxy.0, Duration::from_secs(5));
}
