//! A relay that is upgraded while it runs: another process goes on at its addresses.

use std::cell::RefCell;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::download::Download;
use crate::fleet::insist;
use crate::packets::{CARRIED, POOL, answering, packets, seen_from_client, soon};
use crate::process::{Notices, PATIENCE, pid, wait_for};
use crate::running::{Running, within};
use crate::site::{SCRIPT, joined, offices};
use crate::text;
use crate::up::{UP, Up};
use crate::world::{TABANE, World, first_line};

/// A relay of a program that can be replaced, as packages do.
struct Upgraded {
    world: World,
    program: PathBuf,
    notices: Notices,
    first: Child,
    errors: PathBuf,
    /// The processes that took over.
    others: RefCell<Vec<Pid>>,
}

impl Upgraded {
    fn start(flags: &[&str]) -> Option<Self> {
        let mut world = World::new(&[])?;
        world.stop_relay();
        Some(Self::start_in(world, flags, |_| ()))
    }

    /// In a world without a relay; `meanwhile` does what this one waits for.
    fn start_in(mut world: World, flags: &[&str], meanwhile: impl FnOnce(&World)) -> Self {
        let program = world.path("program");
        fs::copy(TABANE, &program).unwrap();
        let errors = world.path("errors");
        let mut command = world.in_relay(program.to_str().unwrap());
        command.args(["relay", "--log", "info", "--public", "203.0.113.1"]);
        command.arg("--state").arg(world.path("relay")).args(flags);
        command.stdout(Stdio::piped());
        command.stderr(fs::File::create(&errors).unwrap());
        let notices = Notices::of(&mut command, &world.path("notices"));
        let mut first = command.spawn().unwrap();
        meanwhile(&world);
        world.join = first_line(&mut first);
        world.join();
        Self {
            world,
            program,
            notices,
            first,
            errors,
            others: RefCell::default(),
        }
    }

    /// Has this process succeeded by another, and gives that one.
    fn upgrade(&self, process: Pid) -> Pid {
        kill(process, Signal::SIGHUP).unwrap();
        let number = |line: &str| line.strip_prefix("MAINPID=")?.parse().ok();
        let told = self.notices.find(|text| text.lines().find_map(number));
        let next = Pid::from_raw(told.expect("another process"));
        self.others.borrow_mut().push(next);
        next
    }

    /// Waits until it carries a connection to the server.
    fn await_connection(&self) {
        let mut ss = self.world.in_relay("ss");
        ss.args(["-Htn", "state", "established", "dport", "=", ":8000"]);
        within(PATIENCE, "there is a connection", || {
            !ss.output().unwrap().stdout.is_empty()
        });
    }

    /// Puts another program in the place of the one that runs.
    fn replace(&self, text: &str) {
        let new = self.world.path("new");
        fs::write(&new, text).unwrap();
        fs::set_permissions(&new, fs::Permissions::from_mode(0o755)).unwrap();
        fs::rename(&new, &self.program).unwrap();
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.errors).unwrap()
    }

    fn await_said(&self, what: &str) {
        let deadline = Instant::now() + PATIENCE;
        while !self.said().contains(what) {
            assert!(Instant::now() < deadline, "never: {what}\n{}", self.said());
        }
    }

    /// Whether a new client is served, by a session of its own.
    fn serves_newcomers(&self) {
        let line = "curl -sS --fail http://203.0.113.2:8000/peer";
        let output = self.world.run(&[], line);
        assert!(output.status.success(), "{output:?}\n{}", self.said());
        assert!(text(&output.stdout).contains("203.0.113.1"), "{output:?}");
    }
}

impl Drop for Upgraded {
    fn drop(&mut self) {
        for process in self.others.take() {
            let _ = kill(process, Signal::SIGKILL);
        }
        let _ = self.first.kill();
        let _ = self.first.wait();
    }
}

fn is_there(process: Pid) -> bool {
    Path::new("/proc").join(process.to_string()).exists()
}

fn gone(process: Pid) {
    within(PATIENCE, &format!("{process} ends"), || !is_there(process));
}

#[test]
fn connections_outlive_upgrades_and_whoever_is_new_meets_the_new_process() {
    for workers in ["1", "2"] {
        let Some(mut relay) = Upgraded::start(&["--workers", workers]) else {
            return;
        };
        let world = &relay.world;
        world.limit_rates([40, 20]);
        let mut run: Command = world.tabane(&["run"]);
        run.arg("--");
        let mut running = Download::start(world, "", run);
        relay.await_connection();
        let first = pid(&relay.first);
        let second = relay.upgrade(first);
        running.assert_under_way();
        for _ in 0..4 {
            relay.serves_newcomers();
        }
        // While two are there, there is no third.
        kill(second, Signal::SIGHUP).unwrap();
        relay.await_said("has sessions yet");
        running.finish();
        assert!(
            wait_for(&mut relay.first, PATIENCE).success(),
            "{}",
            relay.said()
        );
        relay.await_said("the process before this one has ended");
        relay.serves_newcomers();
        // Back to the first half of the sockets, with nobody's session in the way.
        let third = relay.upgrade(second);
        gone(second);
        for _ in 0..4 {
            relay.serves_newcomers();
        }
        kill(third, Signal::SIGTERM).unwrap();
        gone(third);
    }
}

#[test]
fn a_new_program_that_does_not_start_leaves_the_old_one_serving() {
    let Some(relay) = Upgraded::start(&["--workers", "2"]) else {
        return;
    };
    for (text, why) in [
        ("#!/bin/sh\nexit 3\n", "exit status: 3"),
        ("#!/bin/sh\nkill -9 $$\n", "signal: 9"),
        ("no program at all", "cannot start"),
    ] {
        relay.replace(text);
        kill(pid(&relay.first), Signal::SIGHUP).unwrap();
        relay.await_said(why);
        relay.serves_newcomers();
    }
    assert!(relay.said().contains("this process goes on"));
}

#[test]
fn a_process_that_ends_once_it_has_taken_over_leaves_newcomers_to_the_old_one() {
    let Some(relay) = Upgraded::start(&[]) else {
        return;
    };
    // The old process does not hear that it is ready; it is killed then.
    let script = format!(
        "#!/usr/bin/env python3\n\
         import os, re, socket, subprocess, sys\n\
         ours, theirs = socket.socketpair()\n\
         link = re.search(r'link = (\\d+)', os.environ['TABANE_RELAY_INHERITANCE'])\n\
         os.dup2(theirs.fileno(), int(link[1]))\n\
         new = subprocess.Popen(['{TABANE}', *sys.argv[1:]], close_fds=False)\n\
         said = ours.makefile().readline()\n\
         new.kill()\n\
         new.wait()\n\
         sys.exit(said != 'ready\\n')\n"
    );
    relay.replace(&script);
    kill(pid(&relay.first), Signal::SIGHUP).unwrap();
    relay.await_said("the new process ended at once (exit status: 0)");
    relay.serves_newcomers();
}

#[test]
fn what_a_user_has_used_is_one_sum_over_an_upgrade() {
    let Some(mut relay) = Upgraded::start(&["--workers", "2"]) else {
        return;
    };
    relay.world.manage("user add ann --volume 1GB/month");
    relay
        .world
        .join_with(&relay.world.manage("token new --user ann"));
    let line = "curl -sS --fail http://203.0.113.2:8000/6000000 | wc -c";
    let fetch = |relay: &Upgraded| {
        assert_eq!(text(&relay.world.run(&[], line).stdout).trim(), "6000000");
    };
    fetch(&relay);
    let mut run: Command = relay.world.tabane(&["run"]);
    run.arg("--");
    let running = Download::start(&relay.world, "", run);
    relay.await_connection();
    relay.upgrade(pid(&relay.first));
    // Most of it passes the old process while the new one counts.
    let bytes = running.finish() + 2 * 6_000_000;
    fetch(&relay);
    assert!(
        wait_for(&mut relay.first, PATIENCE).success(),
        "{}",
        relay.said()
    );
    let second = relay.others.borrow()[0];
    kill(second, Signal::SIGTERM).unwrap();
    gone(second);
    let shown = relay.world.manage("user show ann --json");
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let used = shown["volume_used_bytes"].as_u64().unwrap();
    assert!(
        (bytes..bytes + bytes / 20).contains(&used),
        "{used} of {bytes}"
    );
}

#[test]
fn connections_between_sites_outlive_an_upgrade_and_new_ones_find_their_way() {
    let Some(relay) = Upgraded::start(&["--workers", "2"]) else {
        return;
    };
    let (mut a, mut b) = offices(&relay.world);
    a.limit_rates(16);
    b.limit_rates(16);
    joined(&mut a, &mut b);
    let _servers = [a.server("serve 8080"), b.server("serve 8080")];
    let _udp = b.server("udp 9001");
    let mut fetch = a.at_host("python3");
    let fetch = fetch.args([SCRIPT, "fetch", "192.168.20.2", "8080", "80000000"]);
    let mut fetching = fetch.stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(first_line(&mut fetching), "from 192.168.10.2");
    let [_, passed] = a.passed();
    within(PATIENCE, "it begins", || {
        a.passed()[1] >= passed + 1_000_000
    });
    relay.upgrade(pid(&relay.first));
    relay.await_said("this one finishes its sessions");
    // Both ways, while it does.
    for (here, there, own) in [
        (&a, "192.168.20.2", "from 192.168.10.2"),
        (&b, "192.168.10.2", "from 192.168.20.2"),
    ] {
        let said = insist("the other site is reached", || {
            let mut visit = here.at_host("python3");
            visit.args([SCRIPT, "end", there, "8080"]);
            visit
        });
        assert!(said.starts_with(own), "{said}");
    }
    let over = fetching.try_wait().unwrap();
    assert!(over.is_none(), "over too soon: {over:?}");
    let output = fetching.wait_with_output().unwrap();
    let told = text(&output.stdout);
    let (bytes, silence) = told.trim().split_once(' ').unwrap();
    assert_eq!(bytes, "80000000");
    println!("silence of {silence} s over the upgrade");
    assert!(silence.parse::<f64>().unwrap() < 3.0, "{silence}");
    // And by the new one, where both are as soon as they carry nothing more.
    relay.await_said("the process before this one has ended");
    let said = insist("the other site is reached again", || {
        let mut visit = a.at_host("python3");
        visit.args([SCRIPT, "end", "192.168.20.2", "8080"]);
        visit
    });
    assert!(said.starts_with("from 192.168.10.2"), "{said}");
    assert_eq!(a.ask_by_udp("192.168.20.2"), "9001 hello");
}

/// Whoever asks while both clients go over is led there, and is shown as who it is.
#[test]
fn hosts_of_other_sites_are_who_they_are_while_clients_go_over_to_the_new_process() {
    let Some(relay) = Upgraded::start(&["--workers", "2"]) else {
        return;
    };
    let (mut a, mut b) = offices(&relay.world);
    joined(&mut a, &mut b);
    let _servers = [a.server("serve 8080"), b.server("serve 8080")];
    let asking = [(&a, "192.168.20.2"), (&b, "192.168.10.2")].map(|(here, there)| {
        let mut often = here.at_host("python3");
        often.args([SCRIPT, "often", there, "8080"]);
        let mut often = often
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        assert_eq!(first_line(&mut often), "ready");
        often
    });
    let mut process = pid(&relay.first);
    for _ in 0..3 {
        let next = relay.upgrade(process);
        if process == pid(&relay.first) {
            relay.await_said("the process before this one has ended");
        } else {
            gone(process);
        }
        process = next;
    }
    for (often, own) in asking.into_iter().zip(["192.168.10.2", "192.168.20.2"]) {
        let seen = text(&often.wait_with_output().unwrap().stdout);
        let mut seen: Vec<_> = seen.trim().split(", ").collect();
        // While one of them has gone over and the other has not.
        seen.retain(|it| !it.ends_with("No route to host"));
        assert_eq!(seen, [format!("from {own}")]);
    }
}

#[test]
fn a_pools_addresses_go_on_over_an_upgrade_under_load() {
    let Some(mut relay) = Upgraded::start(&["--pool", POOL[1], "--pool", POOL[3]]) else {
        return;
    };
    let world = &relay.world;
    let _answering = answering(world);
    let up = Up::start(world, &[]);
    up.wait_until(UP);
    soon(world, CARRIED);
    let at = |process: Pid| {
        let shown = world.in_relay("ls").arg("/sys/class/net").output().unwrap();
        let tables = world.in_relay("nft").args(["list", "tables"]).output();
        let is_there = is_there(process);
        let has = |output: &[u8], word: &str| text(output).contains(word);
        let rules = has(&tables.unwrap().stdout, "tabane-relay");
        (is_there, has(&shown.stdout, "tabane-pool"), rules)
    };
    let addresses = || packets(|| world.tabane(&[]), "up", |_| true)["addresses"].clone();
    let before = addresses();
    let mut running = Download::start(world, "", world.in_client("env"));
    relay.await_connection();
    let first = pid(&relay.first);
    kill(first, Signal::SIGHUP).unwrap();
    let number = |line: &str| line.strip_prefix("MAINPID=")?.parse().ok();
    let told = relay.notices.find(|text| text.lines().find_map(number));
    let second = Pid::from_raw(told.expect("another process"));
    relay.others.borrow_mut().push(second);
    running.assert_under_way();
    // Nothing goes plainly while the old session ends and the next one begins.
    let first = &mut relay.first;
    thread::scope(|scope| {
        let ending = scope.spawn(|| {
            running.finish();
            assert!(wait_for(first, PATIENCE).success());
        });
        while !ending.is_finished() {
            assert_eq!(seen_from_client(world, 253), CARRIED);
        }
    });
    soon(world, CARRIED);
    assert_eq!(addresses(), before);
    assert_eq!(at(second), (true, true, true));
    kill(second, Signal::SIGTERM).unwrap();
    gone(second);
    assert_eq!(at(second), (false, false, false));
}

#[test]
fn a_fleets_relay_keeps_its_place_and_its_volumes_over_an_upgrade_under_load() {
    if Command::new("etcd").arg("--version").output().is_err() {
        println!("skipped: no etcd (apt-get install etcd-server)");
        return;
    }
    let Some(mut world) = World::new(&[]) else {
        return;
    };
    world.stop_relay();
    let mut etcd = world.in_relay("etcd");
    etcd.arg("--data-dir").arg(world.path("etcd"));
    etcd.stdout(Stdio::null()).stderr(Stdio::null());
    let _etcd = Running(etcd.spawn().unwrap());
    let owner = |world: &World, words: &str| {
        let mut command = world.in_relay(TABANE);
        command.arg("fleet").args(words.split(' '));
        command.arg("--state").arg(world.path("owner"));
        command
    };
    let flags = [
        "--fleet",
        "etcd://127.0.0.1/demo",
        "--name",
        "oslo",
        "--workers",
        "2",
    ];
    insist("a fleet", || owner(&world, "init etcd://127.0.0.1/demo"));
    let mut relay = Upgraded::start_in(world, &flags, |world| {
        insist("it is let in", || owner(world, "add oslo"));
    });
    let reported = |relay: &Upgraded| {
        let report = insist("a report", || owner(&relay.world, "status --json"));
        let report: serde_json::Value = serde_json::from_str(&report).unwrap();
        assert_eq!(report["relays"].as_array().unwrap().len(), 1, "{report}");
        assert_eq!(report["relays"][0]["state"], "up", "{report}");
    };
    relay.world.manage("user add ann --volume 4GB/month");
    relay
        .world
        .join_with(&relay.world.manage("token new --user ann"));
    // More than is lent at a time, and slower than it is lent.
    relay.world.limit_rates([40, 20]);
    let mut run: Command = relay.world.tabane(&["run"]);
    run.arg("--");
    let mut running = Download::start(&relay.world, "", run);
    relay.await_connection();
    let first = pid(&relay.first);
    let second = relay.upgrade(first);
    relay.serves_newcomers();
    running.assert_under_way();
    reported(&relay);
    // The old process hears of what is changed, and the new one of whom it admits.
    let token = relay.world.manage("token new --user ann");
    assert!(token.starts_with("tabane://"), "{token}");
    // Longer than the old one's lease: the place is the new one's, or nobody's.
    relay.await_said("the place in the fleet is this process's");
    let bytes = running.finish();
    assert!(wait_for(&mut relay.first, PATIENCE).success());
    reported(&relay);
    relay.serves_newcomers();
    kill(second, Signal::SIGTERM).unwrap();
    gone(second);
    let said = relay.said();
    assert!(!said.contains("another relay runs"), "{said}");
    assert!(!said.contains("another machine"), "{said}");
    let shown = relay.world.manage("user show ann --json");
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let used = shown["volume_used_bytes"].as_u64().unwrap();
    assert!(
        (bytes..bytes + bytes / 20).contains(&used),
        "{used} of {bytes}"
    );
}

/// Runs a command in a terminal until it has printed a join string, and hangs up.
const HANG_UP: &str = "\
import os, pty, sys
child, terminal = pty.fork()
if child == 0: os.execv(sys.argv[1], sys.argv[1:])
said = b''
while b'tabane://' not in said: said += os.read(terminal, 1000)
os.close(terminal)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
";

#[test]
fn a_terminal_that_hangs_up_ends_a_relay_and_starts_none() {
    let Some(mut world) = World::new(&[]) else {
        return;
    };
    world.stop_relay();
    let mut command = world.in_relay("python3");
    command.args(["-c", HANG_UP, TABANE, "relay", "--public", "203.0.113.1"]);
    let output = command.arg("--state").arg(world.path("relay")).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{output:?}");
    let mut ss = world.in_relay("ss");
    let listens = ss.args(["-Hun", "sport", "=", ":4510"]).output().unwrap();
    assert_eq!(text(&listens.stdout), "");
}
