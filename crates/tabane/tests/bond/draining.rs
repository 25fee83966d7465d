//! A relay that goes down: connections finish, others are told, and clients are back at once.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use serde_json::Value;

use crate::download::Download;
use crate::policy::{policy, received};
use crate::relays::{await_relay, fetch, start_proxy, start_relay, until};
use crate::text;
use crate::up::{LOST, UP, Up, is_plain, peer};
use crate::world::{World, first_line, pid, wait_for};

/// One download of so many bytes at 2 MB/s, as `tabane run` carries it.
fn downloading(world: &World, bytes: usize) -> std::process::Child {
    let line = format!("echo up; curl -sS --limit-rate 2M http://203.0.113.2:8000/{bytes} | wc -c");
    let mut command = world.tabane(&["run", "--", "sh", "-c", &line]);
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    assert_eq!(first_line(&mut child), "up");
    child
}

/// Waits until the relay carries a connection to the server.
fn wait_for_connection(world: &World) {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let mut ss = world.in_relay("ss");
        let output = ss.args(["-Htn", "state", "established", "dport", "=", ":8000"]);
        if !output.output().unwrap().stdout.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "no connection");
    }
}

#[test]
fn connections_finish_before_the_relay_does_and_nobody_else_is_let_in() {
    let Some(mut world) = World::new(&["--drain", "30s"]) else {
        return;
    };
    world.join();
    let script = "import socket; s = socket.create_connection(('203.0.113.2', 8000))\n\
                  print('up', flush=True); input()\n\
                  s.sendall(b'GET /4000000 HTTP/1.0\\r\\n\\r\\n')\n\
                  n = 0\n\
                  while d := s.recv(65536): n += len(d)\n\
                  print(n > 4000000)";
    let mut command = world.tabane(&["run", "python3", "-c", script]);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    assert_eq!(first_line(&mut child), "up");
    wait_for_connection(&world);
    kill(world.relay_pid(), Signal::SIGTERM).unwrap();
    // To whichever worker they are led: the one without a connection as well.
    for _ in 0..6 {
        let asked = Instant::now();
        let refused = world.run(&[], "echo ran");
        assert!(refused.stdout.is_empty(), "{refused:?}");
        let said = text(&refused.stderr);
        assert!(said.contains("shutting down"), "{refused:?}");
        let took = asked.elapsed();
        assert!(took < Duration::from_secs(4), "refused after {took:?}");
    }
    child.stdin.take().unwrap().write_all(b"go on\n").unwrap();
    assert_eq!(first_line(&mut child), "True");
    assert!(child.wait().unwrap().success());
    assert!(world.await_relay(Duration::from_secs(5)).success());
}

#[test]
fn what_is_new_goes_to_another_relay_while_what_is_open_finishes() {
    let Some(mut world) = World::new(&["--drain", "never"]) else {
        return;
    };
    let (_second, join) = start_relay(&world, "second", "4601");
    let proxy = start_proxy(&world, &join);
    let through = "--proxy socks5h://127.0.0.1:1080";
    let mut running = Download::start(&world, through, world.in_client("env"));
    wait_for_connection(&world);
    kill(world.relay_pid(), Signal::SIGTERM).unwrap();
    let took = await_relay(&world, &proxy, "b");
    println!("new connections go elsewhere after {} ms", took.as_millis());
    running.assert_under_way();
    // Both sessions are seen, and what goes by the one that is left counts.
    let sessions = |state: &Value| state["sessions"].as_array().map_or(0, Vec::len);
    until(&world, &proxy, |state| sessions(state) == 2);
    let new = fetch(&world, "20000").output().unwrap();
    assert!(new.status.success(), "{}", text(&new.stderr));
    let bytes = running.finish();
    assert!(world.await_relay(Duration::from_secs(10)).success());
    until(&world, &proxy, |state| sessions(state) == 1);
    until(&world, &proxy, |state| {
        let received = state["totals"]["traffic"]["received_bytes"].as_u64();
        received.is_some_and(|received| received > bytes)
    });
}

#[test]
fn with_no_other_relay_what_is_new_goes_plainly_while_what_is_open_finishes() {
    let Some(mut world) = World::new(&["--drain", "never"]) else {
        return;
    };
    world.join();
    let mut relay = world.relay.take().unwrap();
    let weigh = |link: &str, weight: &str| {
        let set = policy(&world, &format!("set {link} --weight {weight}"));
        assert!(set.status.success(), "{set:?}");
    };
    let (c1, c2) = (|| received(&world, "c1"), || received(&world, "c2"));
    weigh("c1", "0");
    let up = Up::start(&world, &[]);
    up.wait_until(UP);
    let mut running = Download::start(&world, "", world.in_client("env"));
    wait_for_connection(&world);
    kill(pid(&relay), Signal::SIGTERM).unwrap();
    up.wait_until(LOST);
    assert!(is_plain(&peer(&world, "http://203.0.113.2:8000/peer")));
    // What is wished of links holds there as well.
    running.await_quiet(c2, c1);
    weigh("c1", "1");
    weigh("c2", "0");
    running.await_quiet(c1, c2);
    running.finish();
    assert!(wait_for(&mut relay, Duration::from_secs(10)).success());
    drop(up);
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let Some(mut world) = World::new(&["--drain", "never"]) else {
        return;
    };
    world.join();
    let mut child = downloading(&world, 100_000_000);
    wait_for_connection(&world);
    kill(world.relay_pid(), Signal::SIGTERM).unwrap();
    // It is draining once it refuses.
    assert!(!world.run(&[], "true").status.success());
    let begin = Instant::now();
    kill(world.relay_pid(), Signal::SIGTERM).unwrap();
    assert!(world.await_relay(Duration::from_secs(3)).success());
    assert!(begin.elapsed() < Duration::from_secs(3));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn after_a_restart_under_load_clients_are_back_within_a_second() {
    let Some(mut world) = World::new(&[]) else {
        return;
    };
    world.join();
    let stop = world.path("stop");
    // Fetches in a loop over one session, and notes when each was done.
    let line = format!(
        "echo up; while [ ! -e {} ]; do curl -sS --max-time 20 -o /dev/null \
         http://203.0.113.2:8000/20000 && date +%s%N; done",
        stop.display()
    );
    let mut command = world.tabane(&["run", "--", "sh", "-c", &line]);
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    assert_eq!(first_line(&mut child), "up");
    wait_for_connection(&world);
    kill(world.relay_pid(), Signal::SIGTERM).unwrap();
    assert!(world.await_relay(Duration::from_secs(15)).success());
    world.start_relay(&[]);
    let up_at = std::time::SystemTime::now();
    let up_at = up_at
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_nanos();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let first = lines.find_map(|line| line.unwrap().parse::<u128>().ok().filter(|at| *at > up_at));
    let first = first.expect("back at some time");
    fs::write(&stop, "").unwrap();
    wait_for(&mut child, Duration::from_secs(25));
    let output = child.wait_with_output().unwrap();
    println!("back after {} ms", (first - up_at) / 1_000_000);
    assert!(
        first - up_at < 1_500_000_000,
        "{} ms",
        (first - up_at) / 1_000_000
    );
    assert!(text(&output.stderr).contains("shutting down"), "{output:?}");
}
