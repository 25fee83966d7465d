//! A machine that runs tabane itself is reached straight: 203.0.113.2, whose server tells whom it
//! sees. That is itself for what comes straight, 203.0.113.1 for what comes by the relay, and
//! 10.71… for what comes plainly.

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::relays::until;
use crate::running::Running;
use crate::up::{Up, shell};
use crate::world::{TABANE, World, first_line};
use crate::{FETCH, SIZE, is_pattern, status, text};

pub(crate) const SELF: &str = "203.0.113.2";
pub(crate) const RELAY: &str = "203.0.113.1";
pub(crate) const WHO: &str = "curl -sS --max-time 20 http://203.0.113.2:8000/peer";
/// The same through the proxy.
pub(crate) const PROXIED: &str = "curl -sS --max-time 20 --proxy socks5h://127.0.0.1:1080 \
                       http://203.0.113.2:8000/peer";
/// How long a change may take to be seen.
const PATIENCE: Duration = Duration::from_secs(60);

/// A peer beside the servers, and the line to add it.
pub(crate) fn start_peer(world: &World) -> (Running, String) {
    start_peer_with(world, "peer", &[])
}

/// The same with its key in another place, and further flags.
pub(crate) fn start_peer_with(world: &World, state: &str, flags: &[&str]) -> (Running, String) {
    let mut command = world.in_servers(TABANE);
    command.args(["relay", "--peer", "--log", "warn", "--public", SELF]);
    let command = command.args(flags).arg("--state").arg(world.path(state));
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let join = first_line(&mut child);
    assert!(join.starts_with("tabane://"), "{join}");
    (Running(child), join)
}

pub(crate) fn add(world: &World, join: &str) {
    let added = world.tabane(&["peer", "add", "--name", "files", join]);
    let added = { added }.output().unwrap();
    assert!(added.status.success(), "{added:?}");
}

/// Asks again and again until the server sees `whom`; gives how long that took.
pub(crate) fn until_seen(world: &World, line: &str, whom: &str) -> Duration {
    let begin = Instant::now();
    loop {
        let output = world.in_client("sh").args(["-c", line]).output().unwrap();
        let seen = text(&output.stdout);
        if seen.trim() == whom {
            return begin.elapsed();
        }
        assert!(
            begin.elapsed() < PATIENCE,
            "{seen:?} and not {whom}: {output:?}"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn what_is_for_a_peer_goes_straight_over_both_links() {
    let Some(world) = World::new(&[]) else { return };
    world.limit_rates([100, 100]);
    let (_peer, join) = start_peer(&world);
    world.join();
    add(&world, &join);
    let explained = world
        .tabane(&["policy", "explain", "203.0.113.2:8000"])
        .output();
    let explained = text(&explained.unwrap().stdout);
    assert!(explained.contains("straight to peer files"), "{explained}");
    let json = world.path("stats.json");
    let udp = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bond/udp_client.py");
    let line = format!(
        "cd {} && {WHO} && {FETCH} && python3 {udp} && \
         curl -sS --max-time 20 http://10.71.1.2:8000/peer; {TABANE} peer list",
        world.path("").display()
    );
    let output = world.run(&["--json", json.to_str().unwrap()], &line);
    let lines = text(&output.stdout);
    let lines: Vec<&str> = lines.lines().collect();
    // What is another machine's goes to the relay, which refuses this one, and so plainly.
    assert_eq!(lines[..3], [SELF, "udp ok", "10.71.1.1"], "{output:?}");
    let is_listed = |line: &&str| line.contains("files  run-");
    assert!(lines[3..].iter().any(is_listed), "{output:?}");
    let got = fs::read(world.path("got")).unwrap();
    assert!(got.len() == SIZE && is_pattern(&got));
    let stats: Value = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
    for link in stats["links"].as_array().unwrap() {
        let received = link["received_bytes"].as_u64().unwrap();
        assert!(received > SIZE as u64 / 20, "{stats}");
    }
    // The relay has seen next to nothing of it.
    let mut seen = world.in_relay(TABANE);
    let seen = seen
        .args(["status", "--json", "--instance", "relay-4510"])
        .output();
    let seen: Value = serde_json::from_slice(&seen.unwrap().stdout).unwrap();
    let sent = seen["totals"]["traffic"]["sent_bytes"].as_u64().unwrap();
    assert!(sent < SIZE as u64 / 20, "{seen:#}");
}

#[test]
fn a_peer_that_is_gone_is_reached_by_the_relay_and_straight_when_it_is_back() {
    let Some(world) = World::new(&[]) else { return };
    let (mut peer, join) = start_peer(&world);
    world.join();
    add(&world, &join);
    let mut proxy = world.tabane(&["proxy", "--log", "info"]);
    let mut proxy = Running(proxy.stdout(Stdio::piped()).spawn().unwrap());
    first_line(&mut proxy.0);
    assert_eq!(shell(&world, PROXIED).trim(), SELF);
    let straight = |session: &Value| session["straight_to"] == "files";
    until(&world, &proxy, |state| {
        let sessions = state["sessions"].as_array();
        sessions.is_some_and(|sessions| sessions.iter().any(straight))
    });
    peer.kill();
    let took = until_seen(&world, PROXIED, RELAY);
    println!("by the relay after {} ms", took.as_millis());
    let (_peer, _) = start_peer(&world);
    let took = until_seen(&world, PROXIED, SELF);
    println!("straight again after {} ms", took.as_millis());
}

#[test]
fn a_stranger_in_a_peer_s_place_is_not_spoken_with_and_nobody_there_costs_no_time_twice() {
    let Some(world) = World::new(&[]) else { return };
    let (mut peer, join) = start_peer(&world);
    world.join();
    // The relay's key, which is a good key, but another.
    let key = |join: &str| {
        let at = join.find("key=").unwrap() + 4;
        join[at..at + 43].to_owned()
    };
    // Without its checksum, as older versions print it: the key would not match.
    let sum = &join[join.find("sum=").unwrap()..join.find("token=").unwrap()];
    add(
        &world,
        &join
            .replace(&key(&join), &key(&world.join))
            .replace(sum, ""),
    );
    let output = world.run(&[], WHO);
    assert_eq!(text(&output.stdout).trim(), RELAY, "{output:?}");
    let complaint = text(&output.stderr);
    assert!(
        complaint.contains("another key") && complaint.contains("peer files"),
        "{complaint}"
    );
    let again = world.tabane(&["peer", "add", "--name", "files", &join]);
    let again = { again }.output().unwrap();
    assert_eq!(status(&again), Some(1), "{again:?}");
    let removed = world.tabane(&["peer", "remove", "files"]).output().unwrap();
    assert!(removed.status.success(), "{removed:?}");
    peer.kill();
    add(&world, &join);
    // Long enough for the first to be known as silent.
    let output = world.run(&[], &format!("{WHO}; sleep 6; {WHO}"));
    assert_eq!(
        text(&output.stdout),
        format!("{RELAY}\n{RELAY}\n"),
        "{output:?}"
    );
    let notes = fs::read_to_string(world.path(".local/state/tabane/peers.json")).unwrap();
    assert!(notes.contains(&key(&join)), "{notes}");
    // The next command knows that from this one, and does not even ask.
    let output = world.run(&["--log", "info"], WHO);
    assert_eq!(text(&output.stdout).trim(), RELAY, "{output:?}");
}

#[test]
fn without_any_relay_peers_are_reached_straight_and_the_rest_plainly() {
    let Some(world) = World::new(&[]) else { return };
    let (mut peer, join) = start_peer(&world);
    add(&world, &join);
    let near = "curl -sS --max-time 20 http://10.71.1.2:8000/peer";
    let output = world.run(&[], &format!("{WHO}; {near}"));
    assert_eq!(
        text(&output.stdout),
        format!("{SELF}\n10.71.1.1\n"),
        "{output:?}"
    );
    let up = Up::start(&world, &[]);
    until_seen(&world, WHO, SELF);
    assert_eq!(shell(&world, near).trim(), "10.71.1.1");
    peer.kill();
    // Plainly, as if there were no tabane.
    until_seen(&world, WHO, "10.71.1.1");
    drop(up);
}
