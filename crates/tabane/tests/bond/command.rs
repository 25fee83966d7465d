//! What a command meets that has nothing to do with its network: as it is without tabane.

use std::fs;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};

use crate::control::PATIENCE;
use crate::process::{pid, wait_for};
use crate::running::{Running, run, within};
use crate::up::forbid_plain_pings;
use crate::world::{TABANE, World};
use crate::{status, text};

/// What a command line that starts with nothing or with `tabane run` says, and how it ends.
fn both(world: &World, line: impl Fn(&str) -> String) -> [(String, Option<i32>); 2] {
    ["", &format!("{TABANE} run --")].map(|before| {
        let mut command = world.in_client("bash");
        let output = command.args(["-c", &line(before)]).output().unwrap();
        (text(&output.stdout), output.status.code())
    })
}

#[test]
fn a_command_is_scheduled_as_without_tabane() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    let show = "cat /proc/self/timerslack_ns; cut -d' ' -f 18,19,40,41 /proc/self/stat";
    let [plain, ours] = both(&world, |before| format!("{before} sh -c \"{show}\""));
    assert_eq!(ours, plain);
}

/// A service's limits hold for it, and who ends all of a group ends it.
#[test]
fn a_command_stays_within_the_control_group_that_tabane_is_in() {
    let Some(world) = World::new(&[]) else { return };
    let Some(own) = crate::own_group() else {
        println!("skipped: no cgroup-v2 is mounted");
        return;
    };
    world.join();
    let name = format!("tabane-test-{}", std::process::id());
    let group = own.join(&name);
    fs::create_dir(&group).unwrap();
    let line = format!("read go; exec {TABANE} run -- grep ^0:: /proc/self/cgroup");
    let mut shell = world.in_client("sh");
    shell.args(["-c", &line]);
    shell.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut shell = shell.spawn().unwrap();
    fs::write(group.join("cgroup.procs"), shell.id().to_string()).unwrap();
    shell.stdin.take().unwrap().write_all(b"go\n").unwrap();
    let output = shell.wait_with_output().unwrap();
    let said = text(&output.stdout);
    assert!(said.contains(&format!("/{name}/tabane/run-")), "{said}");
    // Refused where anything is left in it.
    fs::remove_dir(&group).unwrap();
}

#[test]
fn a_command_dies_of_its_signal_for_whoever_started_tabane() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    for signal in [Signal::SIGINT, Signal::SIGSEGV, Signal::SIGKILL] {
        for flags in [&[][..], &["--proxy"]] {
            let output = world.run(flags, &format!("kill -{} $$", signal as i32));
            assert_eq!(output.status.signal(), Some(signal as i32), "{output:?}");
            assert!(!output.status.core_dumped(), "{output:?}");
        }
    }
}

#[test]
fn ctrl_c_ends_the_loop_of_a_shell_around_it() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    let line = format!(
        "for i in 1 2; do {TABANE} run -- sh -c 'echo up; exec sleep 20'; done; echo goes on"
    );
    let script = "import os, pty, sys\n\
                  pid, terminal = pty.fork()\n\
                  if pid == 0: os.execvp('bash', ['bash', '-c', sys.argv[1]])\n\
                  while b'up' not in os.read(terminal, 99): pass\n\
                  os.write(terminal, b'\\x03')\n\
                  try:\n while said := os.read(terminal, 99): os.write(1, said)\n\
                  except OSError: pass\n\
                  print('ended by', os.WTERMSIG(os.waitpid(pid, 0)[1]))";
    let mut python = world.in_client("timeout");
    python.args(["30", "python3", "-c", script, &line]);
    let output = python.output().unwrap();
    let said = text(&output.stdout);
    assert!(said.ends_with("ended by 2\n"), "{output:?}");
    assert!(!said.contains("up") && !said.contains("goes on"), "{said}");
}

#[test]
fn a_command_s_status_is_known_where_ends_of_children_are_ignored() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    let [plain, ours] = both(&world, |before| {
        let show = "grep SigIgn /proc/self/status | tail -c 9; exit 5";
        format!("exec env --ignore-signal=CHLD {before} sh -c '{show}'")
    });
    assert_eq!(ours, plain);
}

#[test]
fn a_command_begins_with_the_signals_blocked_that_tabane_began_with() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    let [plain, ours] = both(&world, |before| {
        let show = "grep SigBlk /proc/self/status";
        format!("exec env --block-signal=TERM,WINCH {before} {show}")
    });
    assert_eq!(ours, plain);
}

#[test]
fn closed_standard_descriptors_stay_closed() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    for line in ["cat <&-", "echo hi >&-", "sh -c 'ls /proc/$$/fd' 2>&-"] {
        let [plain, ours] = both(&world, |before| format!("{before} {line}"));
        assert_eq!(ours, plain, "{line}");
    }
}

#[test]
fn what_is_sent_to_tabane_reaches_the_command() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    for name in ["ALRM", "VTALRM", "IO", "PWR", "USR1"] {
        let line = format!("trap 'exit 9' {name}; echo up; while :; do sleep 0.05; done");
        let mut command = world.tabane(&["run", "--", "bash", "-c", &line]);
        let (mut running, said) = Running::start(&mut command);
        assert_eq!(said, "up");
        kill(
            pid(&running.0),
            format!("SIG{name}").parse::<Signal>().unwrap(),
        )
        .unwrap();
        let status = wait_for(&mut running.0, Duration::from_secs(20));
        assert_eq!(status.code(), Some(9), "{name}");
    }
}

/// A terminal's end is told to the leader of its session alone.
#[test]
fn who_ends_a_moment_after_the_command_is_not_left_running() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    for (left, is_told) in [("sleep 0.03", false), ("sleep 2", true)] {
        let output = world.run(&[], &format!("{left} >/dev/null 2>&1 & exit 7"));
        assert_eq!(status(&output), Some(7), "{output:?}");
        let told = text(&output.stderr).contains("1 process of the command runs on");
        assert_eq!(told, is_told, "{left}: {output:?}");
    }
}

#[test]
fn a_terminal_that_goes_away_ends_the_command_of_its_session_s_leader() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    let said = world.path("hangup");
    let command = format!(
        "trap 'echo told > {}; exit' HUP; echo up; while :; do sleep 0.05; done",
        said.display()
    );
    let script = "import os, pty, sys\n\
                  pid, terminal = pty.fork()\n\
                  if pid == 0: os.execv(sys.argv[1], sys.argv[1:])\n\
                  while b'up' not in os.read(terminal, 99): pass\n\
                  os.close(terminal)\n\
                  os.waitpid(pid, 0)";
    let mut python: Command = world.in_client("timeout");
    python.args(["20", "python3", "-c", script, TABANE, "run", "--"]);
    let output = python.args(["bash", "-c", &command]).output().unwrap();
    assert!(said.exists(), "{output:?}");
}

#[test]
fn a_host_that_is_not_there_is_searched_for_once() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    // A router before it asks for it in vain.
    let wire = "sysctl -qw net.ipv4.ip_forward=1; ip link add d0 type veth peer name d1; \
                ip link set d0 up; ip link set d1 up; ip route add 203.0.113.77 dev d0";
    run(world.in_servers("sh").args(["-ec", wire]));
    let [plain, ours] = both(&world, |before| {
        let curl = "curl -sS -m 30 -o /dev/null -w '%{time_total}' http://203.0.113.77:8000/";
        format!("{before} {curl}")
    });
    let seconds = |said: &str| said.parse::<f64>().unwrap();
    assert_eq!(ours.1, plain.1);
    let (plain, ours) = (seconds(&plain.0), seconds(&ours.0));
    assert!(ours < plain + 2.0, "{ours} s, plainly {plain} s");
}

#[test]
fn a_command_that_waits_for_its_relay_is_seen() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    kill(world.relay_pid(), Signal::SIGSTOP).unwrap();
    let mut command = world.tabane(&["run", "--", "true"]);
    let mut running = Running(command.stderr(Stdio::null()).spawn().unwrap());
    let name = format!("run-{}", running.0.id());
    let shown = || {
        let mut status = world.tabane(&["status", "--json", "--instance", &name]);
        status.output().unwrap()
    };
    // Until the socket is there, before which nobody could tell of it.
    let socket = world.path("runtime").join(format!("{name}.sock"));
    within(PATIENCE, "the socket", || socket.exists());
    let mut state = serde_json::Value::Null;
    within(PATIENCE, "both links", || {
        state = serde_json::from_slice(&shown().stdout).unwrap();
        state["links"]
            .as_array()
            .is_some_and(|links| links.len() == 2)
    });
    assert_eq!(state["links"][0]["state"], "opening", "{state:#}");
    assert_eq!(state["instance"]["relay"], "203.0.113.1", "{state:#}");
    let problem = state["problems"][0]["what"].as_str().unwrap();
    assert!(problem.contains("no session to the relay"), "{problem}");
    assert!(
        running.0.try_wait().unwrap().is_none(),
        "it was seen afterwards"
    );
}

/// Most systems let everybody have TUN devices; where this one does not, here it does.
const WITH_TUN: &str = "test -c $0 || mknod -m 666 $0 c 10 200; mount --bind $0 /dev/net/tun
    exec setpriv --reuid=65534 --regid=65534 --clear-groups \"$@\"";

/// As an ordinary user, whose command has a network of its own.
fn as_nobody(world: &World) -> impl Fn(&[&str]) -> Command {
    let (home, tun) = (world.path("nobody"), world.path("tun"));
    fs::create_dir(&home).unwrap();
    std::os::unix::fs::chown(&home, Some(65534), Some(65534)).unwrap();
    move |arguments| {
        let mut command = world.in_client("sh");
        command.args(["-c", WITH_TUN]).arg(&tun).arg(TABANE);
        command.args(arguments).current_dir("/");
        command.env("HOME", &home).env("TABANE_RUNTIME", &home);
        command
    }
}

#[test]
fn without_root_pings_to_near_hosts_and_direct_ones_go_as_without_tabane() {
    let Some(world) = World::new(&[]) else { return };
    let open = ["-qw", "net.ipv4.ping_group_range=0 2147483647"];
    run(world.in_client("sysctl").args(open));
    run(world.in_relay("sysctl").args(open));
    if !forbid_plain_pings(&world) {
        println!("skipped: no nft");
        return;
    }
    let as_nobody = as_nobody(&world);
    run(&mut as_nobody(&["join", &world.join]));
    let answers = |flags: &[&str], host: &str, hops: &str| {
        let ping = ["--", "ping", "-c1", "-W3", "-t", hops, host];
        let arguments = [&["run"], flags, &ping].concat();
        let output = as_nobody(&arguments).output().unwrap();
        text(&output.stdout).contains(&format!("bytes from {host}"))
    };
    // The server hears none that come plainly.
    assert!(answers(&[], "203.0.113.2", "64"));
    assert!(!answers(
        &["--direct", "203.0.113.2/32"],
        "203.0.113.2",
        "64"
    ));
    run(world.in_servers("nft").args(["flush", "ruleset"]));
    assert!(answers(
        &["--direct", "203.0.113.2/32"],
        "203.0.113.2",
        "64"
    ));
    // A router beside us, by either link and with no hop between, and the relay.
    for near in ["10.71.1.2", "10.71.2.2", "2001:db8:2::2", "203.0.113.1"] {
        assert!(answers(&[], near, "1"), "{near}");
    }
}
