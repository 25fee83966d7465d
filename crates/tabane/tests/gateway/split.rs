//! `tabane gateway --mode split`: two connections in the place of one, by the kernel's own TCP.

use std::io::Write;
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;

use super::{SIZE, TABANE, World, first_line};

/// Sends for ever; says when some has gone.
const PUSH: &str = "
import socket, sys
s = socket.create_connection((sys.argv[1], 8081), 30)
for _ in range(100): s.sendall(bytes(65536))
print('first', flush=True)
while True: s.sendall(bytes(65536))
";

/// Connects, and sends when told to.
const LATER: &str = "
import socket, sys
s = socket.create_connection((sys.argv[1], 8081), 30)
print('open', flush=True)
input()
s.sendall(b'x'); s.shutdown(socket.SHUT_WR)
print('whole' if s.recv(1) == b'' else 'what?', flush=True)
";

/// `None`, with a line that says so, where the test cannot run.
fn world() -> Option<World> {
    if Command::new("nft").arg("--version").output().is_err() {
        println!("skipped: split needs nft");
        return None;
    }
    World::new()
}

/// Towards the mobile host a split connection sends as was asked, and not as this machine's others.
#[test]
fn a_split_connection_has_the_congestion_control_that_was_asked_for() {
    let Some(mut world) = world() else { return };
    world.set("r", &["tcp_congestion_control=reno"]);
    world.start("split");
    let mut child = world.fetch("10.1.0.2", 50 * SIZE);
    assert_eq!(first_line(&mut child), "first");
    let both = world.connections("r");
    assert!(
        both.contains(" cubic ") && both.contains(" reno "),
        "{both}"
    );
    let _ = child.kill();
    let _ = child.wait();

    world.signal(nix::sys::signal::Signal::SIGTERM);
    world.gateway.take().unwrap().wait().unwrap();
    let mut command = world.within("r", TABANE);
    command.args(["gateway", "--radio", "r0", "--mode", "split"]);
    let refused = command.args(["--congestion", "none"]).output().unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("tcp_available_congestion_control"), "{said}");
}

#[test]
fn what_was_open_before_it_goes_on() {
    let Some(mut world) = world() else { return };
    let mut open = ["10.1.0.2", "fd01::2"].map(|server| {
        let mut later = world.within("m", "python3");
        later.args(["-c", LATER, server]);
        let later = later.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut later = later.spawn().unwrap();
        assert_eq!(first_line(&mut later), "open");
        later
    });
    world.start("split");
    // By then the rules are there.
    world.fetch_whole("10.1.0.2");
    assert_eq!(world.report()["totals"]["joined"], 1);
    for later in &mut open {
        later.stdin.take().unwrap().write_all(b"\n").unwrap();
        assert_eq!(first_line(later), "whole");
        assert!(later.wait().unwrap().success());
    }
}

/// Half a file must not look whole, at either end.
#[test]
fn killed_it_resets_both_connections() {
    let Some(mut world) = world() else { return };
    world.start("split");
    let mut push = world.within("m", "python3");
    push.args(["-c", PUSH, "fd01::2"]);
    let mut push = push.stdout(Stdio::piped()).spawn().unwrap();
    let mut fetch = world.fetch("10.1.0.2", 50 * SIZE);
    for child in [&mut push, &mut fetch] {
        assert_eq!(first_line(child), "first");
    }
    world.signal(Signal::SIGKILL);
    world.gateway.take().unwrap().wait().unwrap();
    assert_eq!(first_line(world.server.as_mut().unwrap()), "by a reset");
    let fetched = fetch.wait_with_output().unwrap();
    assert!(!fetched.status.success(), "{fetched:?}");
    assert!(!push.wait().unwrap().success());
}
