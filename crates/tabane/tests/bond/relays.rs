//! Two relays: one is killed under a download, and comes back.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::text;
use crate::world::{TABANE, World, first_line, wait_for};

/// A relay on a port of its own beside the one of the world, and its join string.
fn start_relay(world: &World, state: &str, port: &str) -> (Child, String) {
    let mut command = world.in_relay(TABANE);
    command.args(["relay", "--log", "warn", "--public", "203.0.113.1"]);
    command.args(["--listen", &format!("0.0.0.0:{port}"), "--state"]);
    let command = command.arg(world.path(state)).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let join = first_line(&mut child);
    assert!(join.starts_with("tabane://"), "{join}");
    (child, join)
}

/// What the client's namespace fetches through the proxy.
fn fetch(world: &World, path: &str) -> Command {
    let mut curl = world.in_client("curl");
    curl.args(["-sS", "--max-time", "20", "-o", "/dev/null"]);
    curl.args(["--proxy", "socks5h://127.0.0.1:1080"]);
    curl.arg(format!("http://203.0.113.2:8000/{path}"));
    curl.stdout(Stdio::piped()).stderr(Stdio::piped());
    curl
}

/// Waits until the proxy's status names this relay; gives how long that took.
fn await_relay(world: &World, name: &str) -> Duration {
    let begin = Instant::now();
    loop {
        let output = world.tabane(&["status", "--json"]).output().unwrap();
        let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        if status["instance"]["relay"] == name {
            return begin.elapsed();
        }
        assert!(
            begin.elapsed() < Duration::from_secs(20),
            "{name} is not used: {status}"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
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
    let mut proxy = proxy.stdout(Stdio::piped()).spawn().unwrap();
    assert!(first_line(&mut proxy).contains("proxy on"));
    await_relay(&world, "first");
    let mut curl = fetch(&world, "400000000");
    let running = curl.args(["--limit-rate", "2M"]).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(1));
    first.kill().unwrap();
    first.wait().unwrap();
    let begin = Instant::now();
    let next = fetch(&world, "20000").output().unwrap();
    let took = begin.elapsed();
    println!("new connection after {} ms", took.as_millis());
    assert!(next.status.success(), "{}", text(&next.stderr));
    assert!(took < Duration::from_secs(5), "{took:?}");
    await_relay(&world, "second");
    let cut = running.wait_with_output().unwrap();
    println!("the download under way: {}", text(&cut.stderr));
    assert!(!cut.status.success());
    let listed = world.tabane(&["relays"]).output().unwrap();
    let listed = text(&listed.stdout);
    let line = listed.lines().find(|line| line.contains("second")).unwrap();
    assert!(line.contains("proxy"), "{listed}");
    let (mut first, _) = start_relay(&world, "first", "4601");
    println!("back after {} ms", await_relay(&world, "first").as_millis());
    let again = fetch(&world, "20000").output().unwrap();
    assert!(again.status.success(), "{}", text(&again.stderr));
    nix::sys::signal::kill(crate::world::pid(&proxy), nix::sys::signal::SIGTERM).unwrap();
    wait_for(&mut proxy, Duration::from_secs(5));
    first.kill().unwrap();
    first.wait().unwrap();
}
