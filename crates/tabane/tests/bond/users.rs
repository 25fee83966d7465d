//! Users of a relay and their limits, with the relay running all the time.

use std::fs;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::control::until;
use crate::running::within;
use crate::up::is_plain;
use crate::world::{World, first_line, wait_for};
use crate::{complaint, status, text};

/// Long beside what is promised (100 ms), for a busy machine; what takes effect at a restart only
/// would miss it all the same.
const PATIENCE: Duration = Duration::from_secs(5);

/// A world whose client is a device of the user ann.
fn world_of_ann(limits: &str) -> Option<World> {
    let world = World::new(&[])?;
    world.manage(&format!("user add ann {limits}"));
    world.join_with(&world.manage("token new --user ann"));
    Some(world)
}

fn fetch(world: &World, bytes: usize) -> Output {
    let line = format!("curl -sS --fail http://203.0.113.2:8000/{bytes} | wc -c");
    world.run(&[], &line)
}

fn arrived(output: &Output) -> usize {
    text(&output.stdout).trim().parse().unwrap()
}

/// Whether the relay serves this client: else its connections go plainly.
fn is_served(world: &World) -> bool {
    let output = world.run(&[], "curl -sS --fail http://203.0.113.2:8000/peer");
    let seen = text(&output.stdout);
    assert!(output.status.success() && !seen.is_empty(), "{output:?}");
    !is_plain(seen.trim())
}

#[test]
fn a_rate_holds_in_both_directions_and_changes_at_once() {
    const BYTES: usize = 1_500_000;
    let Some(world) = world_of_ann("--rate 8Mbit/s") else {
        return;
    };
    // Two programs share what is one user's: 3 MB at 1 MB/s, less what is let through at first.
    let begin = Instant::now();
    let url = format!("http://203.0.113.2:8000/{BYTES}");
    let line = format!("curl -sS {url} | wc -c & curl -sS {url} | wc -c; wait");
    let output = world.run(&[], &line);
    let sum: usize = text(&output.stdout)
        .lines()
        .map(|line| line.trim().parse::<usize>().unwrap())
        .sum();
    assert_eq!(sum, 2 * BYTES, "{output:?}");
    assert!(
        begin.elapsed() > Duration::from_millis(2_700),
        "{:?}",
        begin.elapsed()
    );

    let line =
        format!("head -c {BYTES} /dev/zero | curl -sS --data-binary @- http://203.0.113.2:8000/");
    let begin = Instant::now();
    assert!(world.run(&[], &line).status.success());
    assert!(
        begin.elapsed() > Duration::from_millis(1_300),
        "{:?}",
        begin.elapsed()
    );

    // 100 MB would take 100 s; the running download has the new limit.
    let line = "echo up; curl -sS http://203.0.113.2:8000/100000000 | wc -c";
    let mut command = world.tabane(&["run", "--", "sh", "-c", line]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(first_line(&mut child), "up");
    world.manage("user set ann --rate none");
    assert!(wait_for(&mut child, Duration::from_secs(40)).success());
}

#[test]
fn a_volume_that_is_used_up_stays_so_over_a_restart_until_it_is_raised() {
    let Some(mut world) = world_of_ann("--volume 3MB/month") else {
        return;
    };
    assert_eq!(arrived(&fetch(&world, 2_000_000)), 2_000_000);
    let cut = fetch(&world, 2_000_000);
    assert!(arrived(&cut) < 1_300_000, "{cut:?}");
    assert!(!is_served(&world));
    world.stop_relay();
    world.start_relay(&[]);
    let shown: serde_json::Value =
        serde_json::from_str(&world.manage("user show ann --json")).unwrap();
    // One read goes beyond it.
    let used = shown["volume_used_bytes"].as_u64().unwrap();
    assert!((3_000_000..3_300_000).contains(&used), "{shown}");
    assert!(!is_served(&world));
    world.manage("user set ann --volume 1GB/month");
    within(PATIENCE, "a larger volume", || is_served(&world));
}

#[test]
fn a_revoked_client_is_told_so_at_once_and_does_not_come_back() {
    let Some(world) = world_of_ann("") else {
        return;
    };
    let mut command = world.tabane(&[
        "run",
        "--",
        "sh",
        "-c",
        "curl -sS http://203.0.113.2:8000/9000000000 | (head -c 1 >/dev/null; echo up; wc -c)",
    ]);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    assert_eq!(first_line(&mut child), "up");
    assert!(world.manage("user remove ann").contains("revoked: 1"));
    // 9 GB are far from over, and curl does not wait for what will never come.
    wait_for(&mut child, PATIENCE);
    let output = child.wait_with_output().unwrap();
    assert!(
        text(&output.stderr).contains("has revoked this client"),
        "{output:?}"
    );
    assert!(
        text(&output.stderr).contains("no other session"),
        "{output:?}"
    );

    let output = world.run(&[], "echo ran");
    assert!(
        output.stdout.is_empty() && complaint(&output).contains("revoked"),
        "{output:?}"
    );
    let clients: serde_json::Value = serde_json::from_str(&world.manage("clients --json")).unwrap();
    assert_eq!(clients[0]["user"], "ann");
    assert_eq!(clients[0]["revoked"], true);
}

#[test]
fn tokens_expire_and_are_worth_so_many_clients() {
    let Some(world) = World::new(&[]) else { return };
    let brief = world.manage("token new --for 1s");
    let two = world.manage("token new --uses 2");
    let run_as = |who: &str, join: &str| {
        let home = world.path(who);
        let with = |arguments: &[&str]| {
            let mut command = world.tabane(&["--config", home.to_str().unwrap()]);
            command.args(arguments).output().unwrap()
        };
        assert!(with(&["join", join]).status.success());
        with(&["run", "echo", "ran"])
    };
    within(PATIENCE, "the token's end", || {
        let list = world.manage("token list");
        !list
            .lines()
            .any(|line| line.ends_with("in 0 s") || line.ends_with("in 1 s"))
    });
    let output = run_as("late", &brief);
    assert!(complaint(&output).contains("expired"), "{output:?}");
    for (who, is_let_in) in [("a", true), ("b", true), ("c", false), ("a", true)] {
        let output = run_as(who, &two);
        assert_eq!(output.status.success(), is_let_in, "{who}: {output:?}");
    }
    let output = world
        .in_relay(crate::world::TABANE)
        .args(["relay", "token", "new", "--user", "eve", "--state"])
        .arg(world.path("relay"))
        .output()
        .unwrap();
    assert!(status(&output) == Some(1) && complaint(&output).contains("no user 'eve'"));
}

#[test]
fn destinations_and_numbers_are_limited_for_the_user_alone() {
    let Some(world) = world_of_ann("--allow *:80 --sessions 1") else {
        return;
    };
    assert!(!is_served(&world));
    world.manage("user set ann --allow *:8000 --allow 192.0.2.0/24");
    within(PATIENCE, "the new rule", || is_served(&world));
    world.manage("user set ann --deny 203.0.113.2");
    within(PATIENCE, "the denial", || !is_served(&world));
    world.manage("user set ann --deny none --streams 0");
    within(PATIENCE, "no streams", || !is_served(&world));

    let mut command = world.tabane(&["run", "--", "sh", "-c", "echo up; cat"]);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut first = command.spawn().unwrap();
    assert_eq!(first_line(&mut first), "up");
    let output = world.run(&[], "echo ran");
    assert!(
        complaint(&output).contains("as many sessions"),
        "{output:?}"
    );
    drop(first.stdin.take());
    assert!(wait_for(&mut first, PATIENCE).success());
    within(PATIENCE, "room for a session", || {
        world.run(&[], "true").status.success()
    });
}

#[test]
fn a_limit_is_told_once_and_what_it_sends_past_the_relay_is_counted() {
    let Some(world) = world_of_ann("--streams 0") else {
        return;
    };
    let fetches = "for i in 1 2 3; do curl -sS -o /dev/null http://203.0.113.2:8000/1; done";
    let mut command = world.tabane(&["run", "--", "sh", "-c", &format!("{fetches}; echo up; cat")]);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut run = command.stderr(Stdio::piped()).spawn().unwrap();
    assert_eq!(first_line(&mut run), "up");
    let name = format!("run-{}", run.id());
    let state = until(&world, &name, |state| {
        state["totals"]["bypassing_connections"] == 3
    });
    assert!(state["limit"].is_string(), "{state:#}");
    let mut command = world.tabane(&["status", "--instance", &name]);
    let screen = command.output().unwrap().stdout;
    let counted = "without the relay  3 TCP connections";
    assert!(text(&screen).contains(counted), "{}", text(&screen));
    drop(run.stdin.take());
    let output = run.wait_with_output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(said.matches("goes without the relay").count(), 1, "{said}");
}

#[test]
fn the_relay_s_own_services_are_not_for_clients() {
    let Some(world) = world_of_ann("") else {
        return;
    };
    let serve = "import socket\n\
                 s = socket.create_server(('0.0.0.0', 8080))\n\
                 print('ready', flush=True)\n\
                 while True:\n\
                 \x20 c, peer = s.accept()\n\
                 \x20 c.sendall(peer[0].encode()); c.close()";
    let mut server = world.in_relay("python3");
    let server = server.args(["-c", serve]).stdout(Stdio::piped());
    let mut server = server.stderr(Stdio::null()).spawn().unwrap();
    assert_eq!(first_line(&mut server), "ready");
    let ask = "import socket; s = socket.create_connection(('203.0.113.1', 8080)); \
               print(s.recv(100).decode())";
    let is_served = || {
        let output = world.run(&[], &format!("python3 -c \"{ask}\""));
        let seen = text(&output.stdout);
        assert!(output.status.success() && !seen.is_empty(), "{output:?}");
        !is_plain(seen.trim())
    };
    assert!(!is_served());
    world.manage("user set ann --private yes");
    within(PATIENCE, "leave", is_served);
    server.kill().unwrap();
    server.wait().unwrap();
}

#[test]
fn damage_and_a_full_disk_cost_nobody_who_is_in_anything() {
    let Some(mut world) = World::new(&[]) else {
        return;
    };
    world.stop_relay();
    let state = world.path("relay");
    let mount = |arguments: &[&str]| {
        assert!(
            Command::new("mount")
                .args(arguments)
                .arg(&state)
                .status()
                .unwrap()
                .success()
        );
    };
    mount(&["-t", "tmpfs", "-o", "size=64k", "none"]);
    world.start_relay(&[]);
    world.join();
    assert_eq!(arrived(&fetch(&world, 5)), 5);

    let stranger = world.path("stranger");
    let as_stranger = |arguments: &[&str]| {
        let mut command = world.tabane(&["--config", stranger.to_str().unwrap()]);
        command.args(arguments).output().unwrap()
    };
    assert!(as_stranger(&["join", &world.join]).status.success());
    let filler = state.join("filler");
    let _ = fs::write(&filler, vec![1; 100_000]);
    let output = as_stranger(&["run", "true"]);
    assert!(complaint(&output).contains("full"), "{output:?}");
    assert_eq!(arrived(&fetch(&world, 5)), 5, "who is known needs no disk");
    fs::remove_file(&filler).unwrap();
    assert!(as_stranger(&["run", "true"]).status.success());

    // A list that makes no sense is not put in force; nobody who is in loses anything.
    let list = state.join("access.toml");
    let good = fs::read_to_string(&list).unwrap();
    fs::write(&list, &good[..good.len() / 2]).unwrap();
    assert_eq!(arrived(&fetch(&world, 5)), 5);
    fs::write(&list, good).unwrap();
    assert!(as_stranger(&["run", "true"]).status.success());

    let _ = fs::write(&filler, vec![1; 100_000]);
    world.stop_relay();
    world.start_relay(&[]);
    assert_eq!(
        arrived(&fetch(&world, 5)),
        5,
        "nor does a relay that was up"
    );
    drop(world);
    assert!(
        Command::new("umount")
            .arg(&state)
            .status()
            .unwrap()
            .success()
    );
    fs::remove_dir_all(state.parent().unwrap()).unwrap();
}
