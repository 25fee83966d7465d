//! Transfers: how far whoever writes gets ahead of the links that carry it, in both directions and
//! wherever the program is.

use std::cell::RefCell;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

use crate::lan::Host;
use crate::text;
use crate::up::{UP, Up};
use crate::world::World;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bond/ahead.py");
/// Beyond twice what a plain socket has.
const ALLOWANCE: u64 = 64_000;
/// Of each kind: one transfer has one full buffer more or less than the next, plainly too; and on a
/// busy machine one in some ten has its kernel make room for 2.7 MB, as for a connection that may
/// send more than ten segments at once.
const ROUNDS: usize = 3;
const SERVER: [&str; 2] = ["203.0.113.2", "9200"];
const WAYS: [&str; 2] = ["up", "down"];
const SECONDS: &str = "3";

/// Bytes that were written and not read at most, and how many of them the writer's kernel had got
/// rid of.
#[derive(Clone, Copy, Debug)]
struct Ahead {
    written: u64,
    held: u64,
}

impl Ahead {
    /// The middle one of [`ROUNDS`], each figure by itself.
    fn middle(measure: impl FnMut() -> Self) -> Self {
        let rounds: Vec<Self> = std::iter::repeat_with(measure).take(ROUNDS).collect();
        eprintln!("{rounds:?}");
        let middle = |of: fn(&Self) -> u64| {
            let mut figures: Vec<u64> = rounds.iter().map(of).collect();
            figures.sort_unstable();
            figures[ROUNDS / 2]
        };
        Self {
            written: middle(|ahead| ahead.written),
            held: middle(|ahead| ahead.held),
        }
    }
}

/// Two links of 1 Mbit/s, and whoever answers beyond them.
struct Slow {
    far: Child,
    /// What the far end says of what it has written.
    said: RefCell<BufReader<ChildStdout>>,
    world: World,
}

impl Drop for Slow {
    fn drop(&mut self) {
        let _ = self.far.kill();
        let _ = self.far.wait();
    }
}

impl Slow {
    fn new() -> Option<Self> {
        let world = World::new(&[])?;
        let tbf = "root tbf rate 1mbit burst 1600 latency 100ms";
        for (device, at_client) in [("c1", true), ("c2", true), ("r1", false), ("r2", false)] {
            let mut tc = match at_client {
                true => world.in_client("tc"),
                false => world.in_relay("tc"),
            };
            tc.args(["qdisc", "add", "dev", device])
                .args(tbf.split(' '));
            assert!(tc.status().unwrap().success());
        }
        let mut far = world.in_servers("python3");
        far.args([SCRIPT, "serve", SERVER[1]])
            .stdout(Stdio::piped());
        let mut far = far.spawn().unwrap();
        let mut said = BufReader::new(far.stdout.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        let said = RefCell::new(said);
        Some(Self { far, said, world })
    }

    /// How far whoever writes was ahead of the reader.
    fn ahead(&self, mut command: Command, way: &str) -> Ahead {
        command.args(arguments(way)).stderr(Stdio::inherit());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let mut line = text(&output.stdout).to_owned();
        if way == "down" {
            self.said.borrow_mut().read_line(&mut line).unwrap();
        }
        let numbers: Vec<u64> = line.split(' ').map(|n| n.trim().parse().unwrap()).collect();
        let &[written, held, arrived] = numbers.as_slice() else {
            panic!("{line}");
        };
        assert!(arrived > 0);
        Ahead { written, held }
    }
}

fn arguments(way: &str) -> [&str; 5] {
    [SCRIPT, way, SERVER[0], SERVER[1], SECONDS]
}

/// What is judged: all of it, where the program's own kernel is ours to tell; else, what others
/// than that kernel hold.
fn judge(what: &str, plain: Ahead, ours: u64) {
    eprintln!("{what}: {ours} bytes, plainly {plain:?}");
    assert!(
        ours <= 2 * plain.written + ALLOWANCE,
        "{what}: {ours} bytes, plainly {plain:?}"
    );
}

#[test]
fn who_writes_is_no_further_ahead_of_slow_links_than_plainly() {
    let Some(slow) = Slow::new() else { return };
    slow.world.join();
    for way in WAYS {
        let plain = Ahead::middle(|| slow.ahead(slow.world.in_client("python3"), way));
        let run = ["run", "--", "python3"];
        let ours = Ahead::middle(|| slow.ahead(slow.world.tabane(&run), way));
        match way {
            "up" => judge("a program ahead", plain, ours.written),
            _ => judge("kept of a server's", plain, ours.held),
        }
    }
}

#[test]
fn hosts_behind_are_no_further_ahead_either() {
    let Some(slow) = Slow::new() else { return };
    slow.world.join();
    let host = Host::new(&slow.world);
    let measure = || Ahead::middle(|| slow.ahead(host.command("python3"), "up"));
    let plain = measure();
    let up = Up::start(&slow.world, &["--lan", "c9"]);
    up.wait_until(UP);
    judge("kept of a host's", plain, measure().held);
}
