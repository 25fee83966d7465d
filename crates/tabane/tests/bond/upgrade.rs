//! A relay that is upgraded while it runs: another process goes on at its addresses.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::download::Download;
use crate::process::{Notices, PATIENCE, pid, wait_for};
use crate::text;
use crate::world::{TABANE, World, first_line};

/// A relay of a program that can be replaced, as packages do.
struct Upgraded {
    world: World,
    program: PathBuf,
    notices: Notices,
    first: Child,
    errors: PathBuf,
    /// The processes that took over.
    others: Vec<Pid>,
}

impl Upgraded {
    fn start(flags: &[&str]) -> Option<Self> {
        let mut world = World::new(&[])?;
        world.stop_relay();
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
        world.join = first_line(&mut first);
        world.join();
        Some(Self {
            world,
            program,
            notices,
            first,
            errors,
            others: Vec::new(),
        })
    }

    /// Has this process succeeded by another, and gives that one.
    fn upgrade(&mut self, process: Pid) -> Pid {
        kill(process, Signal::SIGHUP).unwrap();
        let number = |line: &str| line.strip_prefix("MAINPID=")?.parse().ok();
        let told = self.notices.find(|text| text.lines().find_map(number));
        let next = Pid::from_raw(told.expect("another process"));
        self.others.push(next);
        next
    }

    /// Waits until it carries a connection to the server.
    fn await_connection(&self) {
        let mut ss = self.world.in_relay("ss");
        ss.args(["-Htn", "state", "established", "dport", "=", ":8000"]);
        let deadline = Instant::now() + PATIENCE;
        while ss.output().unwrap().stdout.is_empty() {
            assert!(Instant::now() < deadline, "no connection");
        }
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
        for process in self.others.drain(..) {
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
    let deadline = Instant::now() + PATIENCE;
    while is_there(process) {
        assert!(Instant::now() < deadline, "{process} does not end");
    }
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
    kill(relay.others[0], Signal::SIGTERM).unwrap();
    gone(relay.others[0]);
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
