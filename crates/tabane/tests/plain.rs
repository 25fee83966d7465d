//! Sockets behave as if nothing stood between: the same program runs plainly and through `run` (as
//! root and as an ordinary user), `up`, `up --lan` and proxies, and sees the same. Skipped, with a
//! line that says so, without root.

#![allow(clippy::unwrap_used, missing_docs)]

#[path = "plain/ordinary.rs"]
mod ordinary;
#[path = "bond/process.rs"]
mod process;
#[path = "plain/table.rs"]
mod table;
#[path = "plain/world.rs"]
mod world;

use std::process::Command;

use tabane_base::Seed;
use table::{Cell, Table};
use world::{Place, World};

/// Loss and jitter there are none; what the lab draws it draws from this.
const SEED: Seed = Seed(1);

/// Runs `program.py` and reads its cells: all, or those that have the words of `CELL` in the
/// environment.
fn cells(mut command: Command) -> Vec<Cell> {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(!text.is_empty(), "{complaints}");
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Runs the program in every way.
fn compare(world: &World, table: &mut Table) {
    let program = |place: Place, way: &str| {
        let mut command = world.python(place, "program.py");
        command.arg(way);
        command
    };
    let through = |flags: &[&str], way: &str| {
        let mut command = world.tabane(&["run"]);
        command.args(flags).args(["--", "python3"]);
        command.arg(world::script("program.py")).arg(way);
        command
    };
    table.add("plain", cells(program(Place::Host, "sockets")));
    table.add("run", cells(through(&[], "sockets")));
    let mut unprivileged = world.ordinary_user(&["run", "--", "python3"]);
    unprivileged.arg(world::script("program.py")).arg("sockets");
    table.add("no root", cells(unprivileged));
    table.add("socks", cells(through(&["--proxy"], "socks")));
    table.add("connect", cells(through(&["--proxy"], "connect")));
    let up = world.up();
    table.add("up", cells(program(Place::Host, "sockets")));
    table.add("lan", cells(program(Place::Lan, "sockets")));
    up.down();
}

#[test]
fn sockets_behave_as_plain_ones() {
    let Some(world) = World::new(SEED) else {
        return;
    };
    let mut table = Table::default();
    compare(&world, &mut table);
    table.print();
    table.assert_plain(std::env::var_os("CELL").is_none());
}
