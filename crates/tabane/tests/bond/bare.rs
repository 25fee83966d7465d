//! What a user meets on a machine that lacks something: one line that says what, and what to do.

use std::fs;
use std::process::{Command, Stdio};

use crate::process::UP;
use crate::up::Up;
use crate::world::{TABANE, World, first_line};
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

#[test]
fn where_no_more_threads_may_begin_a_line_says_so() {
    let Some(world) = World::new(&[]) else { return };
    // Whoever has no other processes; the limit counts all of a user's.
    const USER: u32 = 54_321;
    let home = world.path("limited");
    fs::create_dir(&home).unwrap();
    std::os::unix::fs::chown(&home, Some(USER), Some(USER)).unwrap();
    for most in 1..=3 {
        let mut command = world.in_client("setpriv");
        let (user, group) = (format!("--reuid={USER}"), format!("--regid={USER}"));
        command
            .args([&user, &group, "--clear-groups", "prlimit"])
            .args([&format!("--nproc={most}"), TABANE])
            .args(["get", "http://127.0.0.1:1/x", "-o", "/dev/null"])
            .env("HOME", &home)
            .env_remove("TABANE_RUNTIME")
            .current_dir("/");
        let output = command.output().unwrap();
        let said = text(&output.stderr);
        let told = format!("with {most} processes: {said}");
        assert_eq!(status(&output), Some(1), "{told}");
        // What only shows a download to others may be missing; it goes on to whom it asks.
        let is_shown = !said.contains("will not see this");
        assert_eq!(said.lines().count(), 2 - usize::from(is_shown), "{told}");
        assert!(said.contains("os error 11"), "{told}");
    }
}
