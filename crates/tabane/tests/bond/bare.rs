//! What a user meets on a machine that lacks something: one line that says what, and what to do.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};

use crate::process::{PATIENCE, UP};
use crate::readme::Hosts;
use crate::running::{Running, within};
use crate::up::{Up, is_plain, peer};
use crate::world::{TABANE, World, first_line, ip, pid};
use crate::{complaint, status, text};

/// `tabane` after a shell line that has taken something away, in a mount namespace of its own.
fn lacking(world: &World, taken: &str) -> Command {
    let mut command = world.in_client("unshare");
    let line = format!("{taken} && exec \"$0\" \"$@\"");
    command.args(["--mount", "sh", "-c", &line, TABANE]);
    command
}

const PEER: &str = "http://203.0.113.2:8000/peer";
const NO_RUN: &str = "mount -t tmpfs -o ro none /run";

#[test]
fn where_nothing_can_be_written_another_place_is_named() {
    let Some(world) = World::new(&[]) else { return };
    let read_only = "mount --bind $HOME $HOME && mount -o remount,ro,bind $HOME";
    let mut join = lacking(&world, read_only);
    let refused = join.args(["join", &world.join]).output().unwrap();
    assert_eq!(status(&refused), Some(1));
    let said = complaint(&refused);
    assert!(said.contains("Read-only file system"), "{said}");
    assert!(said.contains("--config DIR"), "{said}");
    let mut relay = lacking(&world, read_only);
    let state = world.path("other");
    relay.args(["relay", "--log", "error", "--public", "192.0.2.1"]);
    let refused = relay.arg("--state").arg(state).output().unwrap();
    let said = complaint(&refused);
    assert!(said.contains("--state DIR"), "{said}");
    // It is as good a place as any.
    let elsewhere = format!("{read_only} && mount -t tmpfs none /mnt");
    let mut join = lacking(&world, &elsewhere);
    let joined = join
        .args(["join", &world.join, "--config", "/mnt"])
        .output();
    assert!(joined.unwrap().status.success());
}

#[test]
fn without_run_a_relay_serves_unseen_and_up_says_what_it_wants() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    let refused = lacking(&world, NO_RUN).arg("up").output().unwrap();
    assert_eq!(status(&refused), Some(1));
    let said = complaint(&refused);
    assert!(said.contains("mount -t tmpfs tmpfs /run"), "{said}");
    let mut relay = lacking(&world, NO_RUN);
    relay.env_remove("TABANE_RUNTIME");
    let said = unseen_relay(&world, relay);
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("TABANE_RUNTIME names another"), "{said}");
}

#[test]
fn without_proc_a_relay_serves() {
    let Some(world) = World::new(&[]) else { return };
    let relay = lacking(&world, "mount -t tmpfs none /proc");
    unseen_relay(&world, relay);
}

/// Has a relay serve, on loopback alone; what it said in its log.
fn unseen_relay(world: &World, mut relay: Command) -> String {
    relay.args(["relay", "--listen", "127.0.0.1:0", "--tls-listen", "no"]);
    relay.args(["--public", "127.0.0.1", "--log", "warn", "--state"]);
    relay.arg(world.path("unseen")).stdout(Stdio::piped());
    let log = world.path("unseen.log");
    let mut relay = relay
        .stderr(fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    assert!(first_line(&mut relay).starts_with("tabane://"));
    relay.kill().unwrap();
    relay.wait().unwrap();
    fs::read_to_string(log).unwrap()
}

#[test]
fn without_tun_all_but_pings_is_carried_and_a_line_says_what_brings_it() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    let up = Up::start_by(&world, lacking(&world, "mount -t tmpfs none /dev/net"), &[]);
    up.wait_until(UP);
    let log = fs::read_to_string(world.path("up.log")).unwrap();
    let line = log.lines().find(|line| line.contains("not carried"));
    let line = line.unwrap_or_else(|| panic!("no word of it:\n{log}"));
    assert!(line.contains("modprobe tun"), "{line}");
    assert_eq!(line.matches("No such file").count(), 1, "{line}");
}

#[test]
fn without_control_groups_up_says_how_to_mount_them() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    // Root of most containers: no control groups, and no right to mount them.
    let taken = "(umount -l -a -t cgroup2 || true) 2>/dev/null";
    let mut up = world.in_client("unshare");
    let line = format!("{taken}; exec setpriv --bounding-set -sys_admin,-bpf \"$0\" up");
    let refused = up.args(["--mount", "sh", "-c", &line, TABANE]).output();
    let refused = refused.unwrap();
    assert_eq!(status(&refused), Some(1), "{refused:?}");
    let said = complaint(&refused);
    assert!(said.contains("mount -t cgroup2"), "{said}");
}

#[test]
fn up_of_a_root_without_rights_names_them() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    let mut up = world.in_client("setpriv");
    up.args(["--bounding-set", "-net_admin", TABANE, "up"]);
    let refused = up.output().unwrap();
    assert_eq!(status(&refused), Some(1), "{refused:?}");
    let said = complaint(&refused);
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(
        said.contains("CAP_NET_ADMIN") && said.contains("--cap-add"),
        "{said}"
    );
}

#[test]
fn without_proc_what_needs_it_says_how_to_mount_it() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    let taken = "mount -t tmpfs none /proc";
    let refused = lacking(&world, taken).arg("up").output().unwrap();
    assert_eq!(status(&refused), Some(1), "{refused:?}");
    let said = complaint(&refused);
    assert!(said.contains("mount -t proc"), "{said}");
    // No hooks either: what is left is a network of its own, which takes our program's name.
    let taken = format!("{taken} && exec setpriv --bounding-set -bpf,-sys_admin \"$0\" \"$@\"");
    let run = lacking(&world, &taken)
        .args(["run", "true"])
        .output()
        .unwrap();
    assert_eq!(status(&run), Some(0), "{run:?}");
    let said = complaint(&run);
    assert!(said.contains("mount -t proc"), "{said}");
}

#[test]
fn that_no_resolver_is_named_anywhere_is_said_once() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    let mut run = lacking(&world, "mount -t tmpfs none /etc");
    let run = run.args(["run", "true"]).output().unwrap();
    assert_eq!(status(&run), Some(0), "{run:?}");
    let said = text(&run.stderr);
    assert_eq!(said.matches("resolv.conf").count(), 1, "{said}");
    assert!(said.contains("nameserver"), "{said}");
}

#[test]
fn without_hooks_and_user_namespaces_there_is_a_proxy_and_the_switch_is_named() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    let line = "echo 0 >/proc/sys/user/max_user_namespaces && \
                exec \"$0\" run -- sh -c 'echo $ALL_PROXY'";
    let mut run = world.in_client("unshare");
    run.args(["--user", "--map-root-user", "sh", "-c", line, TABANE]);
    let output = run.output().unwrap();
    assert_eq!(status(&output), Some(0), "{output:?}");
    assert!(text(&output.stdout).starts_with("socks5"), "{output:?}");
    let said = complaint(&output);
    assert!(said.contains("user.max_user_namespaces=0"), "{said}");
    // Who is root already is told what root lacks.
    assert!(!said.contains("root carries all"), "{said}");
    assert!(said.contains("cannot capture"), "{said}");
}

#[test]
fn where_too_few_files_may_be_open_the_limit_is_named() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    let mut run = world.in_client("prlimit");
    let run = run.args(["--nofile=16", TABANE, "run", "--", "true"]);
    let output = run.output().unwrap();
    assert_eq!(status(&output), Some(1));
    let said = text(&output.stderr);
    let last = said.lines().last().unwrap();
    assert!(
        last.contains("open files") && last.contains("ulimit -n"),
        "{said}"
    );
}

#[test]
fn a_log_that_nobody_reads_any_more_ends_neither_relay_nor_client() {
    let Some(mut world) = World::new(&[]) else {
        return;
    };
    world.join();
    world.stop_relay();
    let state = world.path("relay");
    let mut relay = world.in_relay(TABANE);
    relay.args(["relay", "--public", "203.0.113.1", "--log", "trace"]);
    relay.arg("--state").arg(state).stdout(Stdio::piped());
    let mut relay = relay.stderr(Stdio::piped()).spawn().unwrap();
    first_line(&mut relay);
    drop(relay.stderr.take());
    // What the client says of itself is not read either.
    for _ in 0..2 {
        let mut run = world.tabane(&["--log", "trace", "run", "--stats", "--"]);
        run.args(["curl", "-sS", "--fail", "-o", "/dev/null", PEER]);
        let mut run = run.stderr(Stdio::piped()).spawn().unwrap();
        drop(run.stderr.take());
        assert!(run.wait().unwrap().success());
    }
    assert_eq!(relay.try_wait().unwrap(), None);
    relay.kill().unwrap();
    relay.wait().unwrap();
}

/// More processes than any of these needs.
const MANY: u32 = 1_000;

/// Whoever has no other processes; the limit counts all of a user's. One for each test.
struct Limited<'a> {
    world: &'a World,
    user: u32,
}

impl<'a> Limited<'a> {
    fn new(world: &'a World, user: u32) -> Self {
        let limited = Self { world, user };
        fs::create_dir(limited.home()).unwrap();
        std::os::unix::fs::chown(limited.home(), Some(user), Some(user)).unwrap();
        limited
    }

    fn home(&self) -> PathBuf {
        self.world.path("limited")
    }

    /// A command that this user starts, in a namespace as `enter` says.
    fn command(&self, mut enter: Command, program: &[&str]) -> Command {
        let (user, group) = (
            format!("--reuid={}", self.user),
            format!("--regid={}", self.user),
        );
        enter.args([&user, &group, "--clear-groups"]).args(program);
        enter.env("HOME", self.home()).current_dir("/");
        enter.env_remove("TABANE_RUNTIME");
        enter
    }

    /// The same for `tabane`, with so many processes of this user's at most.
    fn tabane(&self, enter: Command, most: u32) -> Command {
        self.command(enter, &["prlimit", &format!("--nproc={most}"), TABANE])
    }

    /// `tabane relay …` beside the relay, in its state.
    fn manage(&self, line: &str) -> String {
        let mut command = self.tabane(self.world.in_relay("setpriv"), MANY);
        command.arg("relay").args(line.split_whitespace());
        command.arg("--state").arg(self.home().join("relay"));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{line}: {output:?}");
        text(&output.stdout).trim().to_owned()
    }

    /// A relay; what it says is in `relay.log`.
    fn relay(&self, most: u32) -> Running {
        let mut relay = self.tabane(self.world.in_relay("setpriv"), most);
        relay.args([
            "relay",
            "--log",
            "warn",
            "--tls-listen",
            "no",
            "--workers",
            "2",
        ]);
        relay.args(["--listen", "203.0.113.1:4600", "--public", "203.0.113.1"]);
        relay.arg("--state").arg(self.home().join("relay"));
        let log = fs::File::create(self.log()).unwrap();
        Running(relay.stdout(Stdio::piped()).stderr(log).spawn().unwrap())
    }

    fn log(&self) -> PathBuf {
        self.world.path("limited-relay.log")
    }
}

#[test]
fn where_no_more_threads_may_begin_a_line_says_so() {
    let Some(world) = World::new(&[]) else { return };
    let limited = Limited::new(&world, 54_321);
    for most in 1..=3 {
        let mut command = limited.tabane(world.in_client("setpriv"), most);
        let output = command
            .args(["get", "http://127.0.0.1:1/x", "-o", "/dev/null"])
            .output()
            .unwrap();
        let said = text(&output.stderr);
        let told = format!("with {most} processes: {said}");
        assert_eq!(status(&output), Some(1), "{told}");
        // What only shows a download to others may be missing; it goes on to whom it asks.
        let is_shown = !said.contains("will not see this");
        assert_eq!(said.lines().count(), 2 - usize::from(is_shown), "{told}");
        assert!(said.contains("os error 11"), "{told}");
    }
}

#[test]
fn a_relay_serves_or_says_that_no_more_threads_may_begin() {
    let Some(world) = World::new(&[]) else { return };
    let limited = Limited::new(&world, 54_322);
    let mut served = 0;
    for most in 1..=8 {
        let mut relay = limited.relay(most);
        if first_line(&mut relay.0).starts_with("tabane://") {
            served += 1;
            continue;
        }
        let status = relay.0.wait().unwrap();
        let said = fs::read_to_string(limited.log()).unwrap();
        assert_eq!(status.code(), Some(1), "with {most}: {said}");
        assert!(
            said.contains("os error 11") && said.lines().count() <= 2,
            "{said}"
        );
        assert!(most == 1 || said.contains("ulimit -u"), "{said}");
        assert_eq!(served, 0, "with fewer it served: {said}");
    }
    assert!(served > 0);
}

#[test]
fn a_relay_that_may_begin_no_more_threads_goes_on() {
    let Some(world) = World::new(&[]) else { return };
    let _hosts = Hosts::new(world.relay_ns());
    let limited = Limited::new(&world, 54_323);
    let mut relay = limited.relay(MANY);
    assert!(first_line(&mut relay.0).starts_with("tabane://"));
    let own = relay.0.id().to_string();
    let limit = ["prlimit", "--nproc=1", "--pid", &own];
    let mut limit = limited.command(world.in_relay("setpriv"), &limit);
    assert!(limit.status().unwrap().success());
    std::thread::sleep(IDLE);
    // The list is read, and written when the token is used.
    limited.manage("user add ann");
    world.join_with(&limited.manage("token new --user ann"));
    // Each session has one of the workers.
    for _ in 0..4 {
        let by_name = "curl -sS --fail --max-time 20 http://files.example.net:8000/256 | wc -c";
        let got = world.run(&["--proxy"], by_name);
        assert_eq!(text(&got.stdout).trim(), "256", "{got:?}");
    }
    assert_eq!(relay.0.try_wait().unwrap(), None);
    kill(pid(&relay.0), Signal::SIGTERM).unwrap();
    assert!(relay.0.wait().unwrap().success());
    let said = fs::read_to_string(limited.log()).unwrap();
    assert_eq!(said, "");
}

/// For how long threads wait for more of what blocks: after that as few are left as ever.
const IDLE: Duration = Duration::from_secs(11);

/// A control group that limits processes, taken away at the end.
struct Limit(PathBuf);

impl Limit {
    /// `None`, with a line that says so, where there is no such controller for us.
    fn new() -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let mounts = mounts
            .lines()
            .map(|line| line.split(' ').collect::<Vec<_>>());
        let groups = mounts.filter(|mount| mount[2].starts_with("cgroup"));
        let name = format!("tabane-bond-{}", std::process::id());
        let mut limits = groups.map(|mount| Self(Path::new(mount[1]).join(&name)));
        let limit = limits.find(|it| fs::create_dir(&it.0).is_ok() && it.file("pids.max").exists());
        if limit.is_none() {
            println!("skipped: no control group limits processes here");
        }
        limit
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// From here on this process begins no thread.
    fn take(&self, process: u32) {
        fs::write(self.file("cgroup.procs"), process.to_string()).unwrap();
        fs::write(self.file("pids.max"), "1").unwrap();
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn up_that_may_begin_no_more_threads_goes_on() {
    let Some(world) = World::new(&[]) else { return };
    let Some(limit) = Limit::new() else { return };
    world.join();
    let mut up = Up::start(&world, &[]);
    up.wait_until(UP);
    limit.take(up.child.id());
    std::thread::sleep(IDLE);
    let policy = world.path(".config/tabane/policy.toml");
    fs::write(
        &policy,
        "[[rule]]\nname = 'near'\nport = 8000\ndirect = true\n",
    )
    .unwrap();
    within(PATIENCE, "the policy is read", || {
        is_plain(&peer(&world, PEER))
    });
    // Addresses and resolvers are looked at again.
    ip(&format!("-n {} link set c2 down", world.client_ns()));
    fs::write(&policy, "").unwrap();
    within(PATIENCE, "the policy is read", || {
        !is_plain(&peer(&world, PEER))
    });
    let log = || fs::read_to_string(world.path("up.log")).unwrap();
    within(PATIENCE, "the link's end is seen", || {
        log().contains("is down")
    });
    assert_eq!(up.child.try_wait().unwrap(), None);
}
