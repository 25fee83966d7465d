//! A client whose user may expose ports, and visitors of them.

use std::process::{Command, Output};

use crate::running::{Running, run};
use crate::world::World;
use crate::{complaint, text};

pub(crate) const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bond/expose.py");
/// Where visitors find the relay.
pub(crate) const RELAY: &str = "203.0.113.1";

/// A world whose client is ann's, to whom this is granted.
pub(crate) fn world_of_ann(grants: &str) -> Option<World> {
    world_with(&[], grants)
}

/// The same with these flags of the relay's.
pub(crate) fn world_with(flags: &[&str], grants: &str) -> Option<World> {
    let world = World::new(flags)?;
    world.manage(&format!("user add ann {grants}"));
    world.join_with(&world.manage("token new --user ann"));
    Some(world)
}

pub(crate) fn script(mut command: Command, arguments: &str) -> Command {
    command.arg(SCRIPT).args(arguments.split(' '));
    command
}

/// A server behind the client.
pub(crate) fn server(world: &World, arguments: &str) -> Running {
    Running::ready(&mut script(world.in_client("python3"), arguments))
}

/// `tabane expose`, once it has said where.
pub(crate) fn expose(world: &World, arguments: &str) -> (Running, String) {
    let mut command = world.tabane(&["expose"]);
    Running::start(command.args(arguments.split(' ')))
}

/// A second client of the relay, of this user: what gives its commands.
pub(crate) fn another_client<'a>(world: &'a World, user: &str) -> impl Fn(&[&str]) -> Command + 'a {
    let home = world.path("other");
    let client = move |arguments: &[&str]| {
        let mut command = world.tabane(&["--config", home.to_str().unwrap()]);
        command.args(arguments);
        command
    };
    let join = world.manage(&format!("token new --user {user}"));
    assert!(client(&["join", &join]).output().unwrap().status.success());
    client
}

/// A visitor who does what a program in Python says.
pub(crate) fn visitor(world: &World, program: &str) -> Command {
    let mut command = world.in_servers("python3");
    command.args(["-c", program]);
    command
}

/// What a visitor says who comes from the internet.
pub(crate) fn visit(world: &World, arguments: &str) -> String {
    run(&mut script(world.in_servers("python3"), arguments))
}

pub(crate) fn end_at(world: &World, port: u16) -> String {
    visit(world, &format!("end {RELAY} {port}"))
}

pub(crate) fn refusal(world: &World, arguments: &str) -> String {
    let mut command = world.tabane(&["expose"]);
    let output: Output = command.args(arguments.split(' ')).output().unwrap();
    assert!(
        !output.status.success() && output.stdout.is_empty(),
        "{output:?}"
    );
    complaint(&output)
}

/// Bytes that each link of the client has sent.
pub(crate) fn sent_by_links(world: &World) -> [u64; 2] {
    ["c1", "c2"].map(|link| {
        let path = format!("/sys/class/net/{link}/statistics/tx_bytes");
        let output = world.in_client("cat").arg(path).output().unwrap();
        text(&output.stdout).trim().parse().unwrap()
    })
}
