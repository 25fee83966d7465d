//! A lab in a process of its own: found by name, taken down on request, and gone when its process
//! is killed.
//!
//! ```text
//!  this test ── starts ──> itself with "hold" (emulate) ── client ═ emulator ═ server
//! ```
//!
//! Without the usual test harness, because the process that holds a lab waits for signals on its
//! main thread. Needs root; skipped with a line otherwise.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::io::stdout;
use std::process::{Command, exit};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};
use tabane_lab::{BackgroundLab, LabOptions, SERVICE, emulate};
use tabane_linux::netns::Netns;
use tabane_netem::Scenario;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, hold, name] = &arguments[..]
        && hold == "hold"
    {
        let text = "name = \"t\"\nwhy = \"test\"\n\
                    link = [{ name = \"a\", rate = \"1mbit\", queue = \"9kB\" }]";
        let scenario = Scenario::parse(text, None, &mut |_| Err(String::new())).unwrap();
        if let Err(error) = emulate(&scenario, name, &LabOptions::default(), &mut stdout()) {
            eprintln!("{error}");
            exit(1);
        }
        return;
    }
    if !geteuid().is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    it_is_found_and_taken_down();
    a_killed_one_is_cleared_away();
    println!("background: ok");
}

fn it_is_found_and_taken_down() {
    let name = format!("test-{}", std::process::id());
    let lab = start(&name).unwrap();
    assert_eq!(lab.state().service, SERVICE);
    assert_eq!(lab.state().links[0].interface, "link1");
    let found = BackgroundLab::find(&name).unwrap();
    assert_eq!(found.state(), lab.state());
    let status = found
        .client()
        .command("ip")
        .args(["link", "show", "link1"])
        .output();
    assert!(status.unwrap().status.success(), "link1 is inside");
    lab_can_be_changed(&found);
    let again = start(&name).unwrap_err().to_string();
    assert!(again.contains("running already"), "{again}");
    found.down().unwrap();
    assert!(BackgroundLab::find(&name).is_err());
    assert!(!Netns::names().contains(&lab.state().client));
}

fn lab_can_be_changed(lab: &BackgroundLab) {
    let state = || {
        let mut ip = lab.client().command("ip");
        let output = ip.args(["-br", "link", "show", "link1"]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let change = |link: &str, text: &str| lab.change(link, &text.parse().unwrap());
    assert!(!state().contains("NO-CARRIER"), "{}", state());
    change("a", "down").unwrap();
    assert!(state().contains("NO-CARRIER"), "{}", state());
    change("link1", "up").unwrap();
    assert!(!state().contains("NO-CARRIER"), "{}", state());
    change("a", "rate=2mbit").unwrap();
    let error = change("b", "up").unwrap_err().to_string();
    assert!(error.contains("it has a"), "{error}");
}

fn a_killed_one_is_cleared_away() {
    let name = format!("test-{}-killed", std::process::id());
    let lab = start(&name).unwrap();
    let pid = i32::try_from(lab.state().pid).unwrap();
    kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    while Netns::names().contains(&lab.state().server) {
        assert!(Instant::now() < deadline, "{:?}", Netns::names());
        thread::sleep(Duration::from_millis(20));
    }
    assert!(
        BackgroundLab::find(&name).is_err(),
        "its file counts no more"
    );
}

fn start(name: &str) -> Result<BackgroundLab, tabane_lab::LabError> {
    BackgroundLab::start(Command::new(std::env::current_exe().unwrap()).args(["hold", name]))
}
