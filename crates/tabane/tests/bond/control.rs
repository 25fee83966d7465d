//! Running instances seen and steered by their sockets: status, pausing, what is left by the dead,
//! and the doctor.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use serde_json::Value;

use crate::qlog;
use crate::world::{TABANE, World, first_line, pid, wait_for};
use crate::{complaint, status, text};

pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A download slow enough to be looked at; prints its size at the end.
pub(crate) fn download(world: &World, bytes: usize) -> (Child, String) {
    let line = format!("echo up; curl -sS --limit-rate 4M http://203.0.113.2:8000/{bytes} | wc -c");
    let mut command = world.tabane(&["run", "--", "sh", "-c", &line]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(first_line(&mut child), "up");
    let name = format!("run-{}", child.id());
    (child, name)
}

pub(crate) fn state(world: &World, name: &str) -> Value {
    let mut command = world.tabane(&["status", "--json", "--instance", name]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

pub(crate) fn link<'a>(state: &'a Value, name: &str) -> &'a Value {
    let mut links = state["links"].as_array().unwrap().iter();
    links.find(|link| link["name"] == name).unwrap()
}

fn received(world: &World, instance: &str, name: &str) -> u64 {
    let state = state(world, instance);
    link(&state, name)["traffic"]["received_bytes"]
        .as_u64()
        .unwrap()
}

/// Looks until `is_so`; gives the state that was.
pub(crate) fn until(world: &World, name: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let state = state(world, name);
        if is_so(&state) {
            return state;
        }
        assert!(Instant::now() < deadline, "{state:#}");
    }
}

/// What happens on both links is recorded as qlog has it, frames of both ways too. A second record
/// at the same time is refused, and one after it is not.
#[test]
fn a_session_is_recorded_as_qlog() {
    // Both links in turn, whatever the machine makes of them.
    let Some(world) = World::new(&["--scheduler", "round-robin"]) else {
        return;
    };
    world.limit_rates([40, 40]);
    world.join();
    // Without an end or a limit: a slow reader lets whole seconds pass without a packet.
    let line = "echo up; curl -sS -o /dev/null http://203.0.113.2:8000/100000000000";
    let mut command = world.tabane(&["run", "--", "sh", "-c", line]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(first_line(&mut child), "up");
    let name = format!("run-{}", child.id());
    until(&world, &name, |state| state["totals"]["streams"] == 1);
    let file = world.path("not/there/trace.sqlog");
    let record = |span: &str| {
        let mut command = world.tabane(&["trace", "--instance", &name, "--for", span, "-o"]);
        command
            .arg(&file)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    };
    let mut first = record("1h").spawn().unwrap();
    let mut told = String::new();
    let stderr = first.stderr.take().unwrap();
    BufReader::new(stderr).read_line(&mut told).unwrap();
    assert!(told.contains("Ctrl-C ends it"), "{told}");
    let refused = record("1s").output().unwrap();
    assert!(complaint(&refused).contains("recorded already"));
    kill(pid(&first), Signal::SIGINT).unwrap();
    assert!(first.wait().unwrap().success());
    // The instance learns by its socket that the first has gone.
    let deadline = Instant::now() + PATIENCE;
    let output = loop {
        let output = record("1s").output().unwrap();
        if output.status.success() || Instant::now() > deadline {
            break output;
        }
        assert!(complaint(&output).contains("recorded already"));
    };
    assert!(output.status.success(), "{output:?}");
    let events = qlog::events(&fs::read(&file).unwrap());
    let times: Vec<f64> = events.iter().filter_map(|it| it["time"].as_f64()).collect();
    assert!(times.is_sorted() && times.last().unwrap() < &10_000.0);
    let groups: BTreeSet<&str> = events
        .iter()
        .filter_map(|it| it["group_id"].as_str())
        .collect();
    assert_eq!(groups.len(), 2, "one per path: {groups:?}");
    let frames = |group: Option<&str>, name: &str, frame: &str| {
        let is_wanted =
            |it: &&Value| it["name"] == name && group.is_none_or(|group| it["group_id"] == group);
        let ours = events.iter().filter(is_wanted);
        let frames = ours.flat_map(|it| it["data"]["frames"].as_array().into_iter().flatten());
        frames.filter(|it| it["frame_type"] == frame).count()
    };
    for group in groups {
        let received = frames(Some(group), "quic:packet_received", "stream");
        assert!(received > 50, "{group}: {received}");
    }
    // What both paths brought may be acknowledged on one of them.
    let acked =
        frames(None, "quic:packet_sent", "ack") + frames(None, "quic:packet_sent", "unknown");
    assert!(acked > 0);
    assert!(
        events
            .iter()
            .any(|it| it["name"] == "quic:recovery_metrics_updated")
    );
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Asks an instance's socket as any program would; gives status and body.
fn put(world: &World, instance: &str, path: &str, body: &str) -> (String, String) {
    let socket = world.path("runtime").join(format!("{instance}.sock"));
    let mut command = world.in_client("curl");
    command.args([
        "-sS",
        "-X",
        "PUT",
        "-d",
        body,
        "-w",
        "\n%{http_code}",
        "--unix-socket",
    ]);
    let output = command
        .arg(socket)
        .arg(format!("http://x{path}"))
        .output()
        .unwrap();
    let answer = text(&output.stdout);
    let (body, code) = answer.trim().rsplit_once('\n').unwrap();
    (code.to_owned(), body.to_owned())
}

fn change(world: &World, instance: &str, link: &str, body: &str) {
    let (code, answer) = put(world, instance, &format!("/v1/links/{link}"), body);
    assert_eq!(code, "200", "{answer}");
}

/// What the kernel counts at an interface, both ways.
fn on_the_wire(world: &World, interface: &str) -> u64 {
    let path = format!("/sys/class/net/{interface}/statistics");
    let line = format!("cat {path}/rx_bytes {path}/tx_bytes");
    let output = world.in_client("sh").args(["-c", &line]).output().unwrap();
    let numbers = text(&output.stdout);
    numbers
        .lines()
        .map(|line| line.parse::<u64>().unwrap())
        .sum()
}

#[test]
fn a_paused_link_carries_not_one_byte_until_it_is_wanted_again() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    let (child, name) = download(&world, 60_000_000);
    let is_active = |state: &Value, name: &str| link(state, name)["state"] == "active";
    let seen = until(&world, &name, |state| {
        is_active(state, "c1") && is_active(state, "c2") && link(state, "c1")["share_now"].is_f64()
    });
    assert_eq!(seen["condition"], "up", "{seen:#}");
    assert_eq!(seen["instance"]["kind"], "run");
    assert_eq!(seen["sessions"][0]["state"], "connected");

    change(&world, &name, "c2", r#"{"paused": true}"#);
    // What was on its way arrives.
    std::thread::sleep(Duration::from_millis(100));
    let (before, carried) = (on_the_wire(&world, "c2"), received(&world, &name, "c1"));
    until(&world, &name, |state| {
        let now = link(state, "c1")["traffic"]["received_bytes"]
            .as_u64()
            .unwrap();
        now > carried + 4_000_000
    });
    // Neighbour discovery goes on; a packet of ours would be larger.
    let stray = on_the_wire(&world, "c2") - before;
    assert!(stray < 1_000, "{stray} bytes over a paused link");

    // All paused: nothing is lost, everything waits.
    change(&world, &name, "c1", r#"{"paused": true}"#);
    let seen = until(&world, &name, |state| state["condition"] == "down");
    assert!(
        seen["problems"][0]["what"]
            .as_str()
            .unwrap()
            .contains("paused"),
        "{seen:#}"
    );
    let output = world
        .tabane(&["status", "--instance", &name])
        .output()
        .unwrap();
    assert!(
        text(&output.stdout).contains("every link is paused"),
        "{output:?}"
    );
    change(&world, &name, "c2", r#"{"paused": false, "weight": 0.5}"#);
    let carried = received(&world, &name, "c2");
    until(&world, &name, |state| {
        let link = link(state, "c2");
        let now = link["traffic"]["received_bytes"].as_u64().unwrap();
        now > carried + 1_000_000 && link["path"]["weight"] == 0.5
    });
    change(&world, &name, "c1", r#"{"paused": false}"#);
    let kinds = state(&world, &name)["events"].to_string();
    assert!(
        kinds.contains("link_changed") && kinds.contains("session_up"),
        "{kinds}"
    );
    let output = child.wait_with_output().unwrap();
    assert_eq!(text(&output.stdout).trim(), "60000000", "{output:?}");
    assert!(!world.path("runtime").join(format!("{name}.sock")).exists());
}

#[test]
fn a_weight_outlives_the_session_and_the_interface() {
    let Some(mut world) = World::new(&[]) else {
        return;
    };
    world.join();
    let mut command = world.tabane(&["run", "--", "sh", "-c", "echo up; exec sleep 60"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(first_line(&mut child), "up");
    let name = format!("run-{}", child.id());
    let is_weighted = |state: &Value| link(state, "c2")["path"]["weight"] == 0.5;
    until(&world, &name, |state| {
        link(state, "c2")["state"] == "active"
    });
    change(&world, &name, "c2", r#"{"weight": 0.5}"#);
    until(&world, &name, is_weighted);
    crate::world::ip(&format!("-n {} link set c2 down", world.client_ns()));
    until(&world, &name, |state| {
        !state["links"].to_string().contains("\"c2\"") || !link(state, "c2")["path"].is_object()
    });
    crate::world::ip(&format!("-n {} link set c2 up", world.client_ns()));
    let c2 = world.client_ns();
    crate::world::ip(&format!(
        "-n {c2} route replace default via 10.71.2.2 dev c2 metric 2"
    ));
    until(&world, &name, |state| {
        state["links"].to_string().contains("\"c2\"") && is_weighted(state)
    });
    world.stop_relay();
    world.start_relay(&[]);
    until(&world, &name, |state| {
        state["totals"]["sessions_so_far"] == 2 && is_weighted(state)
    });
    // The policy file's other words leave it alone; another weight there takes its place.
    let policy = |arguments: &str| crate::policy::policy(&world, arguments);
    let weighs = |weight: f64| move |state: &Value| link(state, "c2")["path"]["weight"] == weight;
    assert!(policy("set c2 --use backup").status.success());
    until(&world, &name, |state| {
        link(state, "c2")["path"]["backup"] == true && is_weighted(state)
    });
    assert!(policy("set c2 --weight 0.25").status.success());
    until(&world, &name, weighs(0.25));
    assert!(policy("set c2 --weight 0.75").status.success());
    until(&world, &name, weighs(0.75));
    kill(pid(&child), Signal::SIGTERM).unwrap();
    wait_for(&mut child, Duration::from_secs(5));
}

#[test]
fn instances_are_told_apart_and_dead_ones_leave_nothing() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    let list = |world: &World| {
        let output = world.tabane(&["status", "--list"]).output().unwrap();
        text(&output.stdout)
    };
    assert_eq!(list(&world), "relay-4510\n");
    let output = world.tabane(&["status"]).output().unwrap();
    assert!(text(&output.stdout).contains("relay on"), "{output:?}");

    let (mut first, first_name) = download(&world, 100_000_000);
    let (mut second, second_name) = download(&world, 100_000_000);
    let output = world.tabane(&["status"]).output().unwrap();
    assert_eq!(status(&output), Some(1));
    let words = complaint(&output);
    for name in [&first_name, &second_name, "relay-4510"] {
        assert!(words.contains(name), "{words}");
    }
    let output = world
        .tabane(&["status", "--instance", "up"])
        .output()
        .unwrap();
    assert!(complaint(&output).contains("no instance up"), "{output:?}");
    let seen = until(&world, "relay-4510", |state| {
        let sessions = state["sessions"].as_array().unwrap();
        sessions.len() == 2 && sessions.iter().all(|it| it["traffic"]["sent_bps"] != 0)
    });
    assert_eq!(seen["totals"]["sessions"], 2, "{seen:#}");
    let (code, answer) = put(&world, "relay-4510", "/v1/links/c1", r#"{"paused": true}"#);
    assert!(
        code == "404" && answer.contains("no links"),
        "{code} {answer}"
    );
    let output = world.tabane(&["top"]).output().unwrap();
    assert!(complaint(&output).contains("terminal"), "{output:?}");

    let socket = world.path("runtime").join(format!("{first_name}.sock"));
    kill(pid(&first), Signal::SIGKILL).unwrap();
    first.wait().unwrap();
    assert!(socket.exists(), "nobody was there to remove it");
    assert!(!list(&world).contains(&first_name));
    let output = world
        .tabane(&["status", "--instance", &first_name])
        .output()
        .unwrap();
    assert_eq!(status(&output), Some(1), "{output:?}");
    assert!(world.run(&[], "true").status.success());
    assert!(!socket.exists(), "the next one tidies up");
    kill(pid(&second), Signal::SIGTERM).unwrap();
    wait_for(&mut second, Duration::from_secs(10));
    assert_eq!(list(&world), "relay-4510\n");
}

/// Runs what it is given on a terminal, hangs up as soon as there is something on it, and ends with
/// its status.
const HANG_UP: &str = "
import os, pty, subprocess, sys
near, far = pty.openpty()
child = subprocess.Popen(sys.argv[1:], stdin=far, stdout=far, stderr=far, start_new_session=True)
os.close(far)
os.read(near, 1)
os.close(near)
try:
    sys.exit(child.wait(30))
except subprocess.TimeoutExpired:
    child.kill()
    sys.exit('still there')
";

#[test]
fn top_ends_when_its_terminal_hangs_up() {
    let Some(world) = World::new(&[]) else { return };
    let on = |term| {
        let mut command = world.in_client("python3");
        command.args(["-c", HANG_UP, TABANE, "top", "--instance", "relay-4510"]);
        command.env("TERM", term).output().unwrap()
    };
    let output = on("xterm");
    assert!(output.status.success(), "{output:?}");
    // One that obeys no codes is given none.
    let output = on("dumb");
    assert_eq!(status(&output), Some(2), "{output:?}");
}

#[test]
fn http_is_served_to_those_with_the_token() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    let line = "read token < $TABANE_RUNTIME/run-$PPID.token; \
                url=$(curl -sS --unix-socket $TABANE_RUNTIME/run-$PPID.sock http://x/v1/state | \
                grep -o 'http://127[^\"]*'); \
                curl -sS -o /dev/null -w '%{http_code} ' $url/metrics; \
                curl -sS -H \"Authorization: Bearer $token\" $url/metrics | \
                grep -c ^tabane_link_up";
    let output = world.run(&["--http", "127.0.0.1:0"], line);
    assert_eq!(text(&output.stdout).trim(), "401 2", "{output:?}");
    let output = world.run(&["--http", "0.0.0.0:0"], "echo ran");
    assert!(
        status(&output) == Some(1) && output.stdout.is_empty(),
        "{output:?}"
    );
    assert!(complaint(&output).contains("loopback"), "{output:?}");
}

#[test]
fn the_doctor_names_what_is_missing_and_its_cure() {
    let Some(world) = World::new(&[]) else { return };
    let doctor = |arguments: &[&str]| {
        let mut command = world.tabane(&["doctor", "--json"]);
        let output = command.args(arguments).output().unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        (status(&output), report)
    };
    let (code, report) = doctor(&["run"]);
    assert_eq!(code, Some(1), "{report:#}");
    assert!(report.to_string().contains("tabane join"), "{report:#}");
    let (code, report) = doctor(&["relay"]);
    assert_eq!(code, Some(0), "{report:#}");
    world.join();
    let (code, report) = doctor(&["run"]);
    assert_eq!(code, Some(0), "{report:#}");
    let found = report.to_string();
    assert!(
        found.contains("ms over c1") && found.contains("ms over c2"),
        "{report:#}"
    );
    let output = world.tabane(&["doctor", "--offline"]).output().unwrap();
    let said = text(&output.stdout);
    let mut words = said.lines().map(|line| line.split_whitespace());
    assert!(
        words.any(|mut words| words.next() == Some("run") && words.next() == Some("works")),
        "{said}"
    );
    // A fault in a file of the user's is told as that, with the step that mends it.
    for (file, line, remedy) in [
        ("config.toml", "links = 3\n", "correct that line"),
        ("policy.toml", "[[link]]\nname = 3\n", "tabane policy check"),
    ] {
        let path = world.path(".config/tabane").join(file);
        fs::write(&path, line).unwrap();
        let (code, report) = doctor(&["run"]);
        assert_eq!(code, Some(1), "{report:#}");
        let mut findings = report["findings"].as_array().unwrap().iter();
        let bad = findings.find(|it| it["grade"] == "missing").unwrap();
        assert_eq!(bad["check"], "settings", "{report:#}");
        assert!(bad["what"].as_str().unwrap().contains(file), "{bad:#}");
        assert!(bad["remedy"].as_str().unwrap().contains(remedy), "{bad:#}");
        assert!(!report.to_string().contains("firewall"), "{report:#}");
        fs::remove_file(path).unwrap();
    }
    fs::remove_dir_all(world.path(".config")).unwrap();
    assert_eq!(doctor(&["proxy", "--offline"]).0, Some(1));
}
