//! Uploads: how far a program gets ahead of the links that carry what it writes.

use std::process::{Command, Stdio};

use crate::text;
use crate::world::{World, first_line};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bond/ahead.py");
/// Beyond twice what a plain socket has.
const ALLOWANCE: u64 = 64_000;
/// Of each kind, in turn: one upload has one full buffer more or less than the next, plainly too.
const ROUNDS: u64 = 3;

/// Bytes that the program was ahead of the reader at most, and that arrived.
fn upload(mut command: Command) -> (u64, u64) {
    let output = command.stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let line = text(&output.stdout);
    let mut numbers = line.split_whitespace().map(|n| n.parse().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

#[test]
fn a_program_is_no_further_ahead_of_slow_links_than_plainly() {
    let Some(world) = World::new(&[]) else { return };
    for link in ["c1", "c2"] {
        let mut tc = world.in_client("tc");
        let tbf = "root tbf rate 1mbit burst 1600 latency 100ms";
        tc.args(["qdisc", "add", "dev", link]).args(tbf.split(' '));
        assert!(tc.status().unwrap().success());
    }
    world.join();
    let mut sink = world.in_servers("python3");
    let mut sink = sink
        .args([SCRIPT, "sink", "9200"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    assert_eq!(first_line(&mut sink), "ready");
    let source = ["python3", SCRIPT, "source", "203.0.113.2", "9200", "3"];
    let (mut plain, mut ours) = (0, 0);
    for _ in 0..ROUNDS {
        let mut command = world.in_client(source[0]);
        command.args(&source[1..]);
        let plainly = upload(command);
        let mut command = world.tabane(&["run", "--"]);
        command.args(source);
        let bundled = upload(command);
        eprintln!("ahead and arrived: {bundled:?} bytes; plainly {plainly:?}");
        assert!(plainly.1 > 0 && bundled.1 > 0);
        plain += plainly.0 / ROUNDS;
        ours += bundled.0 / ROUNDS;
    }
    sink.kill().unwrap();
    sink.wait().unwrap();
    assert!(
        ours <= 2 * plain + ALLOWANCE,
        "{ours} bytes ahead, plainly {plain}"
    );
}
