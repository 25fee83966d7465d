//! The product end to end: relay, client and unmodified programs in namespaces, the real kernel
//! between them. Skipped, with a line that says so, without root.

#![allow(clippy::unwrap_used, missing_docs)]

mod ahead;
mod asking;
mod bare;
mod carriers;
mod command;
mod control;
mod datagrams;
mod discovery;
mod download;
mod draining;
mod endings;
mod events;
mod exits;
mod expose;
mod exposure;
mod fleet;
mod fleet_loads;
mod fleet_volumes;
mod gateways;
mod lan;
mod lan_hosts;
mod leaving;
mod leaving_links;
mod mptcp;
mod nat64;
mod near;
mod packets;
mod payloads;
mod peers;
mod policy;
mod portal;
mod process;
mod qlog;
mod readme;
mod relays;
mod rules;
mod running;
mod screens;
mod service;
mod site;
mod site_names;
mod site_packets;
mod site_sources;
mod sites;
mod speed;
mod strange;
mod strict;
mod up;
mod upgrade;
mod users;
mod visitor_endings;
mod visitors;
mod workers;
mod world;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use world::{World, first_line, ip, pid, wait_for};

const SIZE: usize = 20_000_000;
const FETCH: &str = "curl -sS --fail -o got http://203.0.113.2:8000/20000000";

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn status(output: &Output) -> Option<i32> {
    output.status.code()
}

/// The one line that says what went wrong.
fn complaint(output: &Output) -> String {
    let text = text(&output.stderr);
    assert_eq!(text.lines().count(), 1, "one line: {text:?}");
    assert!(text.starts_with("tabane: "), "{text}");
    text
}

fn is_pattern(bytes: &[u8]) -> bool {
    bytes
        .iter()
        .enumerate()
        .all(|(i, byte)| *byte == (i % 256) as u8)
}

/// The control group that this process is in.
fn own_group() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let mount = mounts
        .lines()
        .find(|line| line.split(' ').nth(2) == Some("cgroup2"))?;
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap();
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(Path::new(mount.split(' ').nth(1)?).join(own))
}

/// The groups that runs have left in it.
fn leftover_groups() -> Vec<String> {
    let Some(entries) = own_group().and_then(|own| fs::read_dir(own.join("tabane")).ok()) else {
        return Vec::new();
    };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter(|name| name.starts_with("run-")).collect()
}

#[test]
fn one_download_uses_both_links_and_arrives_whole() {
    let Some(world) = World::new(&[]) else { return };
    world.limit_rates([100, 100]);
    world.join();
    let json = world.path("stats.json");
    let line = format!("cd {} && {FETCH}", world.path("").display());
    let output = world.run(&["--stats", "--json", json.to_str().unwrap()], &line);
    assert!(output.status.success(), "{output:?}");
    let got = fs::read(world.path("got")).unwrap();
    assert!(got.len() == SIZE && is_pattern(&got));
    let stats: serde_json::Value = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
    let links = stats["links"].as_array().unwrap();
    assert_eq!(links.len(), 2, "{stats}");
    for link in links {
        assert!(
            link["received_bytes"].as_u64().unwrap() > SIZE as u64 / 20,
            "{stats}"
        );
    }
    assert!(text(&output.stderr).contains("Mbit/s in"), "{output:?}");
}

#[test]
fn tcp_udp_and_dns_of_both_families() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    let output = world.run(
        &[],
        "curl -sS 'http://[2001:db8:ffff::2]:8000/256' | od -An -tu1 | tail -1",
    );
    assert!(text(&output.stdout).trim().ends_with("255"), "{output:?}");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bond/udp_client.py");
    let output = world.run(&[], &format!("python3 {script}"));
    assert_eq!(text(&output.stdout).trim(), "udp ok", "{output:?}");
    let dig = world.run(&[], "dig +short +tries=1 @203.0.113.2 name.example");
    if status(&dig) == Some(127) {
        println!("skipped: no dig");
    } else {
        assert_eq!(text(&dig.stdout).trim(), "192.0.2.99", "{dig:?}");
    }
    let upload = "head -c 3000000 /dev/zero | tr '\\0' '\\1' | \
                  curl -sS --data-binary @- http://203.0.113.2:8000/";
    let output = world.run(&[], upload);
    assert_eq!(text(&output.stdout).trim(), "3000000", "{output:?}");
}

#[test]
fn the_command_s_end_is_tabane_s_end() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    assert_eq!(status(&world.run(&[], "exit 7")), Some(7));
    let output = world.tabane(&["run", "no-such-command"]).output().unwrap();
    assert_eq!(status(&output), Some(127), "{output:?}");
    let output = world.run(&["--user", "nobody"], "id -un; id -Gn; echo $USER");
    let words = text(&output.stdout);
    assert!(
        words.starts_with("nobody\n") && words.ends_with("nobody\n"),
        "{output:?}"
    );
    let output = world.run(
        &["--user", "nobody"],
        "curl -sS http://203.0.113.2:8000/5 | wc -c",
    );
    assert_eq!(text(&output.stdout).trim(), "5", "{output:?}");

    // A signal sent to tabane reaches the command, whose own end it then is.
    let line = "trap 'exit 9' TERM; echo up; while :; do sleep 0.05; done";
    let mut command = world.tabane(&["run", "--", "sh", "-c", line]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(first_line(&mut child), "up");
    kill(pid(&child), Signal::SIGTERM).unwrap();
    assert_eq!(wait_for(&mut child, Duration::from_secs(5)).code(), Some(9));
}

#[test]
fn a_command_ignores_the_signals_that_it_would_have_ignored() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    // systemd starts services with the second of these.
    for ignored in ["HUP INT", "PIPE", "HUP PIPE"] {
        let seen = ["", &format!("{} run --", world::TABANE)].map(|before| {
            let grep = "grep SigIgn /proc/self/status";
            let line = format!("trap '' {ignored}; exec {before} {grep}");
            let output = world.in_client("sh").args(["-c", &line]).output();
            let said = text(&output.unwrap().stdout);
            let (_, mask) = said.trim().split_once('\t').unwrap();
            // From 32 on they are the C library's.
            u64::from_str_radix(mask, 16).unwrap() & 0x7fff_ffff
        });
        assert_eq!(seen[0], seen[1], "{ignored}");
    }
}

#[test]
fn killed_it_takes_the_command_along_and_leaves_nothing_that_stays() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    let mark = world.path("alive");
    let line = format!(
        "cd {} && date +%N > alive; echo up; while :; do date +%N > alive; sleep 0.02; done",
        world.path("").display()
    );
    let mut command = world.tabane(&["run", "--", "sh", "-c", &line]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(first_line(&mut child), "up");
    let group = format!("run-{}-", child.id());
    kill(pid(&child), Signal::SIGKILL).unwrap();
    child.wait().unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let before = fs::read_to_string(&mark).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(
        fs::read_to_string(&mark).unwrap(),
        before,
        "the command lives on"
    );
    // Hooks that had stayed would send this into the void.
    assert!(
        world
            .run(&[], "curl -sS -o /dev/null http://203.0.113.2:8000/9")
            .status
            .success()
    );
    assert!(
        !leftover_groups()
            .iter()
            .any(|name| name.starts_with(&group))
    );
}

#[test]
fn strangers_are_refused_in_one_line_and_nothing_is_run() {
    let Some(mut world) = World::new(&["--token-uses", "one"]) else {
        return;
    };
    let good = world.join.clone();
    let good = world::without_sum(&good);
    let forged = good[..good.len() - 22].to_owned() + "ABCDEFGHIJKLMNOPQRSTUV";
    let run = |world: &World| world.run(&[], "echo ran");
    assert!(world.tabane(&["join", &forged]).status().unwrap().success());
    let output = run(&world);
    assert!(
        status(&output) == Some(1) && output.stdout.is_empty(),
        "{output:?}"
    );
    assert!(complaint(&output).contains("token"), "{output:?}");

    // The right token admits one client; then it is worthless, and the client is known.
    world.join();
    assert_eq!(text(&run(&world).stdout).trim(), "ran");
    assert!(world.tabane(&["join", &forged]).status().unwrap().success());
    assert_eq!(text(&run(&world).stdout).trim(), "ran");
    let other = world.path("other");
    let with = |world: &World, arguments: &[&str]| {
        let mut command = world.tabane(&["--config", other.to_str().unwrap()]);
        command.args(arguments).output().unwrap()
    };
    assert!(with(&world, &["join", &good]).status.success());
    let output = with(&world, &["run", "true"]);
    assert!(complaint(&output).contains("token"), "{output:?}");

    // Another relay at the same address.
    world.stop_relay();
    fs::remove_dir_all(world.path("relay")).unwrap();
    world.start_relay(&[]);
    let output = run(&world);
    assert!(complaint(&output).contains("another key"), "{output:?}");
}

#[test]
fn a_relay_that_is_down_is_named_and_one_that_returns_is_used_again() {
    let Some(mut world) = World::new(&[]) else {
        return;
    };
    world.join();
    // One program, two downloads, the relay restarted in between.
    let go = world.path("go");
    let line = format!(
        "curl -sS -o /dev/null http://203.0.113.2:8000/1000 && echo first; \
         while [ ! -e {} ]; do sleep 0.05; done; \
         curl -sS --retry 3 --retry-all-errors http://203.0.113.2:8000/1000 | wc -c",
        go.display()
    );
    let mut command = world.tabane(&["run", "--", "sh", "-c", &line]);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    assert_eq!(first_line(&mut child), "first");
    world.stop_relay();
    world.start_relay(&[]);
    fs::write(&go, "").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(text(&output.stdout).trim(), "1000", "{output:?}");

    world.stop_relay();
    let output = world.run(&[], "echo ran");
    assert!(
        status(&output) == Some(1) && output.stdout.is_empty(),
        "{output:?}"
    );
    assert!(
        complaint(&output).contains("no answer from the relay"),
        "{output:?}"
    );
}

#[test]
fn an_ordinary_user_may_ask_for_the_proxy() {
    let Some(world) = World::new(&[]) else { return };
    let home = world.path("nobody");
    fs::create_dir(&home).unwrap();
    std::os::unix::fs::chown(&home, Some(65534), Some(65534)).unwrap();
    let as_nobody = |arguments: &[&str]| {
        let mut command = world.in_client("setpriv");
        command.args([
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            world::TABANE,
        ]);
        command
            .args(arguments)
            .env("HOME", &home)
            .current_dir("/")
            .output()
            .unwrap()
    };
    let output = as_nobody(&["join", &world.join]);
    assert!(output.status.success(), "{output:?}");
    for line in [
        "curl -sS http://203.0.113.2:8000/77 | wc -c",
        "curl -sS --proxytunnel http://203.0.113.2:8000/77 | wc -c",
        "curl -sS --proxy $ALL_PROXY http://203.0.113.2:8000/77 | wc -c",
        "curl -sS --proxy $ALL_PROXY 'http://[2001:db8:ffff::2]:8000/77' | wc -c",
    ] {
        let output = as_nobody(&["run", "--proxy", "--", "sh", "-c", line]);
        assert_eq!(text(&output.stdout).trim(), "77", "{line}: {output:?}");
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bond/socks_udp.py");
    let output = as_nobody(&["run", "--proxy", "--", "python3", script]);
    assert_eq!(text(&output.stdout).trim(), "socks udp ok", "{output:?}");
    // Names are the relay's to resolve, and its policy applies to what they mean.
    let line = "curl -sS -o /dev/null -w '%{http_code}' --noproxy '' http://localhost:1/";
    let output = as_nobody(&["run", "--proxy", "--", "sh", "-c", line]);
    assert_eq!(text(&output.stdout).trim(), "403", "{output:?}");
}

#[test]
fn what_the_relay_does_not_serve_goes_as_it_would_without_tabane() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    let line = "curl -sS --max-time 5 http://10.71.1.2:8000/peer";
    let output = world.run(&[], line);
    assert_eq!(text(&output.stdout), "10.71.1.1\n", "{output:?}");
    let output = world.run(&["--direct", "10.71.0.0/16"], line);
    assert_eq!(text(&output.stdout), "10.71.1.1\n", "{output:?}");
    // By the links that may be used, whatever the routing table says.
    let output = world.run(&["--link", "c2"], line);
    assert_eq!(text(&output.stdout), "10.71.2.1\n", "{output:?}");
    let ask = "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); \
               s.settimeout(5); \
               s.sendto(bytes(12) + b'\\4name\\7example\\0\\0\\1\\0\\1', ('10.71.1.2', 53)); \
               print(*s.recv(100)[-4:])";
    let output = world.run(&[], &format!("python3 -c \"{ask}\""));
    assert_eq!(text(&output.stdout), "192 0 2 77\n", "{output:?}");
    // What a destination itself refuses stays refused.
    let ask = "import socket; socket.create_connection(('203.0.113.2', 1)).recv(1)";
    let output = world.run(&[], &format!("python3 -c \"{ask}\""));
    let trace = text(&output.stderr);
    let last = trace.lines().last().unwrap_or_default();
    assert!(last.starts_with("ConnectionRefusedError"), "{output:?}");
}

#[test]
fn links_are_shown_measured_and_followed() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    let output = world
        .tabane(&["links", "--measure", "--json"])
        .output()
        .unwrap();
    let rows: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    for row in rows.as_array().unwrap() {
        let is_link = row["interface"].as_str().unwrap().starts_with('c');
        assert_eq!(row["usable"].as_bool(), Some(is_link), "{row}");
        assert_eq!(row["rtt_ms"].is_number(), is_link, "{row}");
        assert_eq!(row["jitter_ms"].is_number(), is_link, "{row}");
        let share = row["loss"].as_f64();
        let is_share = share.is_some_and(|share| (0.0..=1.0).contains(&share));
        assert_eq!(is_share, is_link, "{row}");
    }
    let output = world
        .tabane(&["run", "--link", "c9", "true"])
        .output()
        .unwrap();
    assert!(
        status(&output) == Some(2) && complaint(&output).contains("c1, c2"),
        "{output:?}"
    );

    // The first link is cut under a program, and it never notices.
    let line = "curl -sS http://203.0.113.2:8000/30000000 --limit-rate 20M | wc -c";
    let mut command = world.tabane(&["run", "--", "sh", "-c", line]);
    let child = command.stdout(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(700));
    ip(&format!("-n {} link set c1 down", world.client_ns()));
    let output = child.wait_with_output().unwrap();
    assert_eq!(text(&output.stdout).trim(), "30000000", "{output:?}");

    // What it carried is remembered.
    let output = world.tabane(&["links", "--json"]).output().unwrap();
    let rows: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let row = rows
        .as_array()
        .unwrap()
        .iter()
        .find(|row| row["interface"] == "c2");
    assert!(
        row.unwrap()["received_peak_bps"].as_u64() > Some(1_000_000),
        "{rows}"
    );

    ip(&format!("-n {} link set c2 down", world.client_ns()));
    let output = world.run(&[], "true");
    assert!(
        complaint(&output).contains("c1 is down, c2 is down"),
        "{output:?}"
    );
}

#[test]
fn what_the_command_sent_last_arrives_although_it_is_gone() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    let sink = world.path("sink");
    let script = "import socket, sys\n\
                  s = socket.socket(); s.bind(('203.0.113.2', 7000)); s.listen()\n\
                  print('ready', flush=True)\n\
                  c = s.accept()[0]; f = open(sys.argv[1], 'wb')\n\
                  while d := c.recv(65536): f.write(d)\n\
                  f.close(); c.close()\n";
    let mut server = world.in_servers("python3");
    let server = server
        .args(["-c", script])
        .arg(&sink)
        .stdout(Stdio::piped());
    let mut server = server.spawn().unwrap();
    assert_eq!(first_line(&mut server), "ready");
    let script = "import socket; s = socket.create_connection(('203.0.113.2', 7000)); \
                  s.sendall(bytes(range(256)) * 20000); s.close()";
    let output = world
        .tabane(&["run", "python3", "-c", script])
        .output()
        .unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
    wait_for(&mut server, Duration::from_secs(5));
    let got = fs::read(&sink).unwrap();
    assert!(got.len() == 5_120_000 && is_pattern(&got), "{}", got.len());
}
