//! What programs expect of their UDP sockets, by every entrance.

use crate::lan::Host;
use crate::text;
use crate::up::{UP, Up};
use crate::world::World;

const BURST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bond/udp_burst.py");
const PLAIN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bond/udp_plain.py");

/// How many of 500 destinations got their datagram, and how many addresses these came from.
fn burst(said: &str) -> (usize, usize) {
    let numbers = said.trim().split_once(' ').expect(said);
    (numbers.0.parse().unwrap(), numbers.1.parse().unwrap())
}

fn assert_arrived(entrance: &str, said: &str) {
    let (arrived, sources) = burst(said);
    assert!(arrived >= 499, "{entrance}: {arrived} of 500");
    assert_eq!(sources, 1, "{entrance}: a socket is one address to all");
}

#[test]
fn a_burst_to_many_destinations_arrives_by_every_entrance() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    for (entrance, options) in [("run", &[][..]), ("proxy", &["--proxy"])] {
        let output = world.run(options, &format!("python3 {BURST} {entrance}"));
        assert!(output.status.success(), "{output:?}");
        assert_arrived(entrance, &text(&output.stdout));
    }
    let host = Host::new(&world);
    let mut up = Up::start(&world, &["--lan", "c9"]);
    up.wait_until(UP);
    let (fine, said) = host.shell(&format!("python3 {BURST} lan"));
    assert!(fine, "{said}");
    assert_arrived("lan", &said);
    up.kill();
}

#[test]
fn answers_from_elsewhere_and_closed_ports_are_as_plainly() {
    let Some(world) = World::new(&[]) else { return };
    world.join();
    let output = world.run(&[], &format!("python3 {PLAIN}"));
    assert_eq!(text(&output.stdout).trim(), "plain", "{output:?}");
    let host = Host::new(&world);
    let mut up = Up::start(&world, &["--lan", "c9"]);
    up.wait_until(UP);
    let (_, said) = host.shell(&format!("python3 {PLAIN}"));
    assert_eq!(said.trim(), "plain");
    up.kill();
}
