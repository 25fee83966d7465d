//! `tabane demo` and `tabane lab` as a user meets them: figures, pictures, and nothing left behind.
//!
//! What needs namespaces is skipped without root, with a line that says so; what needs no privilege
//! runs as `nobody` where the tests run as root.

#![allow(clippy::unwrap_used, missing_docs)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};
use serde_json::Value;
use tabane_linux::netns::Netns;

/// Rates are measured: one test at a time.
static MACHINE: Mutex<()> = Mutex::new(());
const NOBODY: &str = "65534";
/// Demonstrations, at most, until one had the machine to itself.
const ATTEMPTS: u32 = 4;

/// A directory of a test's own, with a copy of the program that anybody may start.
struct Place {
    path: PathBuf,
    _machine: MutexGuard<'static, ()>,
}

impl Place {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tabane-show-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        fs::copy(env!("CARGO_BIN_EXE_tabane"), path.join("tabane")).unwrap();
        fs::create_dir(path.join("tmp")).unwrap();
        for directory in [path.clone(), path.join("tmp")] {
            fs::set_permissions(directory, fs::Permissions::from_mode(0o777)).unwrap();
        }
        Self {
            path,
            _machine: machine,
        }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.path.join("tabane"));
        command.args(arguments);
        self.settle(command)
    }

    /// The same without privilege.
    fn command_as_nobody(&self, arguments: &[&str]) -> Command {
        if !geteuid().is_root() {
            return self.command(arguments);
        }
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"])
            .arg(self.path.join("tabane"))
            .args(arguments);
        self.settle(command)
    }

    fn settle(&self, mut command: Command) -> Command {
        let path = std::env::var("PATH").unwrap_or_default();
        command
            .current_dir(&self.path)
            .env_clear()
            .env("PATH", format!("{path}:/usr/sbin:/sbin:/usr/bin:/bin"))
            .env("TMPDIR", self.path.join("tmp"))
            .stdin(Stdio::null());
        command
    }

    /// Files that a demonstration should have removed.
    fn leftovers(&self) -> usize {
        fs::read_dir(self.path.join("tmp")).unwrap().count()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs a demonstration to its end; its process id tells its namespaces.
fn finish(mut command: Command) -> (u32, Output) {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    (child.id(), child.wait_with_output().unwrap())
}

/// The namespaces of labs that the process built.
fn namespaces_of(pid: u32) -> Vec<String> {
    let prefix = format!("tabane-{pid}-");
    let names = Netns::names().into_iter();
    names.filter(|name| name.starts_with(&prefix)).collect()
}

/// Processes that were started from the place's copy of the program.
fn processes_of(place: &Place) -> Vec<String> {
    let program = place.path.join("tabane");
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        if fs::read_link(entry.path().join("exe")).is_ok_and(|exe| exe == program) {
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            found.push(text(&line).replace('\0', " "));
        }
    }
    found
}

fn wait_until(what: &str, mut is_true: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(15);
    while !is_true() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn assert_nothing_is_left(place: &Place, pid: u32) {
    assert_eq!(place.leftovers(), 0);
    assert_eq!(namespaces_of(pid), [""; 0]);
    assert_eq!(processes_of(place), [""; 0]);
}

fn has_curl() -> bool {
    Command::new("curl").arg("--version").output().is_ok()
}

fn skipped() -> bool {
    let reason = match (geteuid().is_root(), has_curl()) {
        (false, _) => "needs root",
        (_, false) => "needs curl",
        _ => return false,
    };
    eprintln!("skipped: {reason}");
    true
}

fn assert_is_picture(path: &Path) {
    let svg = fs::read_to_string(path).unwrap();
    assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"));
    assert!(svg.contains("<polygon ") && svg.contains("Mbit/s"), "{svg}");
}

/// Demonstrates until the emulator has kept its times, as the report itself tells: where other work
/// makes it late, its links are none of the speeds that they are said to be.
fn demonstrate(place: &Place, command: impl Fn() -> Command) -> (Output, Value) {
    let mut attempt = 0;
    loop {
        attempt += 1;
        let (pid, output) = finish(command());
        assert!(output.status.success(), "{output:?}");
        assert_nothing_is_left(place, pid);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        if attempt == ATTEMPTS || emulator_kept_up(&report) {
            return (output, report);
        }
        eprintln!("again, since other work made the links late: {report:#}");
    }
}

/// As the program itself judges its figures.
fn emulator_kept_up(report: &Value) -> bool {
    let number = |key: &str| report["emulator"][key].as_u64().unwrap();
    number("dropped") == 0 && number("late") * 20 <= number("packets")
}

fn assert_bond_pays(report: &Value, world: &str) {
    assert_eq!(report["world"], world, "{report:#}");
    let number = |value: &Value| value.as_f64().unwrap();
    let links = report["links"].as_array().unwrap();
    assert_eq!(links.len(), 2);
    assert!(
        report["bond_bytes"].as_u64().unwrap() > 1_000_000,
        "{report:#}"
    );
    if !emulator_kept_up(report) {
        eprintln!("skipped: rates, since other work made the links late {ATTEMPTS} times");
        return;
    }
    let best = links.iter().map(|link| number(&link["alone_bps"]));
    let best = best.fold(0.0, f64::max);
    let (sum, bond) = (number(&report["sum_bps"]), number(&report["bond_bps"]));
    assert!(sum > best && best > 0.0, "{report:#}");
    assert!(bond >= 0.85 * sum && bond > best, "{report:#}");
    for link in links {
        assert!(
            number(&link["in_bond_bps"]) > 0.5 * number(&link["alone_bps"]),
            "{report:#}"
        );
    }
}

#[test]
fn in_namespaces_the_bond_reaches_the_sum() {
    if skipped() {
        return;
    }
    let place = Place::new();
    let arguments = ["demo", "twin", "--seconds", "3", "--json"];
    let (output, report) = demonstrate(&place, || place.command(&arguments));
    assert_bond_pays(&report, "namespaces");
    assert_eq!(report["reservation"], Value::Null, "{report:#}");
    assert_is_picture(&place.path.join("tabane-demo.svg"));
    assert!(text(&output.stderr).contains("alone, 1 s: "), "{output:?}");
}

#[test]
fn without_privilege_too() {
    if !has_curl() {
        eprintln!("skipped: needs curl");
        return;
    }
    let place = Place::new();
    let arguments = [
        "demo",
        "sbam.toml",
        "--seconds",
        "3",
        "--json",
        "--svg",
        "p.svg",
    ];
    let scenario = "name = \"sbam\"\nwhy = \"test\"\nlink = [\n\
                    { name = \"a\", rate = \"11mbit\", delay = \"5ms\", queue = \"100kB\" },\n\
                    { name = \"b\", rate = \"5.5mbit\", delay = \"20ms\", queue = \"100kB\" }]";
    fs::write(place.path.join("sbam.toml"), scenario).unwrap();
    let (output, report) = demonstrate(&place, || place.command_as_nobody(&arguments));
    assert_bond_pays(&report, "loopback");
    let reservation = report["reservation"].as_str().unwrap();
    assert!(reservation.contains("not root"), "{reservation}");
    assert!(text(&output.stderr).contains(reservation), "{output:?}");
    assert_is_picture(&place.path.join("p.svg"));
}

/// Starts a long demonstration and waits until its first download runs.
fn begun(mut command: Command) -> Child {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let stdout = child.stdout.take().unwrap();
    let mut lines = BufReader::new(stdout).lines();
    let running = lines.any(|line| line.unwrap().contains(" alone, 1 s: "));
    assert!(running, "the first download runs");
    // Reads on, so that the demonstration never writes to nobody.
    std::thread::spawn(move || lines.for_each(drop));
    child
}

fn tell(child: &Child, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), signal).unwrap();
}

#[test]
fn an_interrupted_demonstration_leaves_nothing() {
    if !has_curl() {
        eprintln!("skipped: needs curl");
        return;
    }
    let place = Place::new();
    let arguments = ["demo", "--seconds", "60", "--plain"];
    let mut demos = vec![begun(place.command_as_nobody(&arguments))];
    if !skipped() {
        demos.push(begun(place.command(&arguments)));
    }
    for child in &mut demos {
        tell(child, Signal::SIGINT);
        assert_eq!(child.wait().unwrap().code(), Some(130));
    }
    for child in &demos {
        assert_nothing_is_left(&place, child.id());
    }
    assert!(!place.path.join("tabane-demo.svg").exists());
}

#[test]
fn a_killed_demonstration_is_cleared_away() {
    if skipped() {
        return;
    }
    let place = Place::new();
    let mut child = begun(place.command(&["demo", "--seconds", "60"]));
    tell(&child, Signal::SIGKILL);
    child.wait().unwrap();
    wait_until("its namespaces are gone", || {
        namespaces_of(child.id()).is_empty()
    });
    wait_until("its processes are gone", || processes_of(&place).is_empty());
    // Its files are removed by the next one.
    assert_eq!(place.leftovers(), 1);
    let (pid, output) = finish(place.command(&["demo", "twin", "--seconds", "1"]));
    assert!(output.status.success(), "{output:?}");
    let table = text(&output.stdout);
    assert!(table.contains("% of the sum"), "{table}");
    assert_nothing_is_left(&place, pid);
}

/// The one line of a failure, and its status.
fn failure(mut command: Command) -> (i32, String) {
    let output = command.output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(said.lines().count(), 1, "one line: {said:?}");
    assert!(said.starts_with("tabane: "), "{said}");
    (output.status.code().unwrap(), said)
}

#[test]
fn what_cannot_work_is_said_at_once() {
    let place = Place::new();
    fs::write(
        place.path.join("wire.toml"),
        "name='w'\nwhy='w'\nlink=[{name='a'}]\n",
    )
    .unwrap();
    fs::write(
        place.path.join("bad.toml"),
        "name='w'\nwhy='w'\nlink=[{nam='a'}]\n",
    )
    .unwrap();
    for (status, arguments, reason) in [
        (2, &["demo", "nowhere"][..], "home, twin"),
        (2, &["demo", "--seconds", "0"], "--seconds"),
        (1, &["demo", "./missing.toml"], "missing.toml"),
        (1, &["demo", "bad.toml"], "nam"),
        (2, &["demo", "wire.toml"], "nothing to show"),
        (1, &["demo", "--svg", "/nonexistent/a.svg"], "--svg"),
        (2, &["lab", "run", "twin"], "CMD"),
        (2, &["lab", "set", "wifi", "rate=fast"], "rate=5mbit"),
        (
            127,
            &["lab", "run", "twin", "--", "no-such-command"],
            "no-such-command",
        ),
        (1, &["lab", "down", "no-such-lab"], "no-such-lab"),
        (2, &["lab", "up", "twin", "--name", "../x"], "--name"),
    ] {
        let (actual, said) = failure(place.command_as_nobody(arguments));
        assert!(
            actual == status && said.contains(reason),
            "{arguments:?}: {actual} {said}"
        );
    }
    let mut without_curl = place.command(&["demo"]);
    without_curl.env("PATH", "/nonexistent");
    let (status, said) = failure(without_curl);
    assert!(status == 1 && said.contains("install it"), "{said}");
    let (status, said) = failure(place.command_as_nobody(&["lab", "up", "twin"]));
    assert!(status == 1 && said.contains("root"), "{said}");
    assert_eq!(place.leftovers(), 0);
}

#[test]
fn a_lab_stays_until_it_is_taken_down() {
    if skipped() {
        return;
    }
    let place = Place::new();
    let name = format!("test-{}", std::process::id());
    let lab = |arguments: &[&str]| {
        let output = place
            .command(&[&["lab"], arguments].concat())
            .output()
            .unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        text(&output.stdout)
    };
    let told = lab(&["up", "unequal", "--name", &name]);
    let enter = told
        .lines()
        .find_map(|line| line.strip_prefix("in the client: "));
    let enter: Vec<&str> = enter.unwrap().trim_end_matches(" sh").split(' ').collect();
    let mut inside = Command::new(enter[0]);
    inside
        .args(&enter[1..])
        .args(["ip", "route", "get", "10.78.0.1"]);
    let route = text(&inside.output().unwrap().stdout);
    assert!(route.contains("dev link1"), "{route}");
    let (status, said) = failure(place.command(&["lab", "up", "twin", "--name", &name]));
    assert!(status == 1 && said.contains("running already"), "{said}");
    let listed: Value = serde_json::from_str(&lab(&["list", "--json"])).unwrap();
    let listed = listed
        .as_array()
        .unwrap()
        .iter()
        .find(|lab| lab["name"] == name.as_str());
    let client = listed.unwrap()["client"].as_str().unwrap().to_owned();
    assert!(Netns::names().contains(&client));
    lab(&["set", "lte", "rate=1mbit", "down", "--lab", &name]);
    let mut inside = Command::new(enter[0]);
    inside
        .args(&enter[1..])
        .args(["ip", "-br", "link", "show", "link2"]);
    let state = text(&inside.output().unwrap().stdout);
    assert!(state.contains("NO-CARRIER"), "{state}");
    let (status, said) = failure(place.command(&["lab", "set", "dsl", "up", "--lab", &name]));
    assert!(status == 1 && said.contains("wifi, lte"), "{said}");
    lab(&["down", &name]);
    assert!(!Netns::names().contains(&client));
    assert_eq!(processes_of(&place), [""; 0]);
    let (status, _) = failure(place.command(&["lab", "down", &name]));
    assert_eq!(status, 1);
}

#[test]
fn a_command_runs_on_the_client_of_its_lab() {
    if skipped() {
        return;
    }
    let place = Place::new();
    let script = "echo $TABANE_LAB_SERVER; for link in $TABANE_LAB_LINKS; do \
                  ip -br addr show $link; done; sleep 60 & exit 7";
    let (pid, output) = finish(place.command(&["lab", "run", "twin", "--", "sh", "-c", script]));
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    let said = text(&output.stdout);
    for part in ["10.78.0.1", "link1@", "10.77.1.2", "link2@"] {
        assert!(said.contains(part), "{said}");
    }
    assert_nothing_is_left(&place, pid);
    let mut child = place
        .command(&["lab", "run", "twin", "--", "sleep", "60"])
        .spawn()
        .unwrap();
    wait_until("the lab is up", || {
        let client = format!("tabane-{}-0-client", child.id());
        let netns = Netns::open(&client).ok();
        netns.is_some_and(|netns| netns.processes().is_ok_and(|found| !found.is_empty()))
    });
    tell(&child, Signal::SIGTERM);
    assert_eq!(child.wait().unwrap().code(), Some(143));
    assert_nothing_is_left(&place, child.id());
}
