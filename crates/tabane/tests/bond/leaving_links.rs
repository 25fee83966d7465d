//! A session, and what goes plainly beside it, leave a link that is not to be used any more.

use std::process::Stdio;

use crate::asking::await_told;
use crate::leaving::{ENTRIES, Leaving};
use crate::world::{World, first_line, ip};

/// Gives the link its address and route again.
fn restore(world: &World, number: u8) {
    let ns = world.client_ns();
    ip(&format!(
        "-n {ns} addr add 10.71.{number}.1/24 dev c{number}"
    ));
    ip(&format!(
        "-n {ns} route add default via 10.71.{number}.2 dev c{number} metric {number}"
    ));
}

/// A link that has lost its address has no other then.
pub(crate) fn only_v4(world: &World) {
    for number in 1..=2 {
        ip(&format!(
            "-n {} -6 addr flush dev c{number}",
            world.client_ns()
        ));
    }
}

/// By policy, a budget's end, and a pause.
pub(crate) fn leaves_what_is_not_to_be_used(world: &World, leaving: &Leaving<'_>, instance: &str) {
    let socket = world.path("runtime").join(format!("{instance}.sock"));
    let [link, _] = leaving.links;
    let await_told = |word: &str| await_told(&socket, link, word);
    let told = |word: &str| {
        await_told(word);
    };
    leaving.try_entries(&ENTRIES, told, || {});
    leaving.try_pause(&socket);
}

/// By an address and an interface that go.
pub(crate) fn leaves_what_goes(world: &World, leaving: &Leaving<'_>, instance: &str) {
    let socket = world.path("runtime").join(format!("{instance}.sock"));
    let [link, _] = leaving.links;
    let await_told = |word: &str| await_told(&socket, link, word);
    let number = link.as_bytes()[1] - b'0';
    let ns = world.client_ns();
    let lose = || ip(&format!("-n {ns} addr del 10.71.{number}.1/24 dev {link}"));
    let none = "no global address";
    let left = || {
        let at = leaving.await_left(none, none);
        await_told(none);
        at
    };
    leaving.try_to(none, lose, left, || restore(world, number));
    let cut = || ip(&format!("-n {ns} link set {link} down"));
    let mend = || {
        ip(&format!("-n {ns} link set {link} up"));
        ip(&format!(
            "-n {ns} route add default via 10.71.{number}.2 dev {link} metric {number}"
        ));
    };
    // Nothing can be carried any more: what is waited for is the word.
    let left = || {
        let at = await_told("is down");
        leaving.await_left("down", "is down");
        at
    };
    leaving.try_to("down", cut, left, mend);
}

#[test]
fn a_session_leaves_a_link_within_200_ms() {
    let Some(world) = World::new(&[]) else { return };
    only_v4(&world);
    world.limit_rates([40, 20]);
    world.join();
    let line =
        "echo up; curl -sS --limit-rate 3M -o /dev/null http://203.0.113.2:8000/100000000000";
    let mut command = world.tabane(&["run", "--", "sh", "-c", line]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(first_line(&mut child), "up");
    let leaving = Leaving {
        pid: child.id(),
        links: ["c2", "c1"],
        settings: world.path(".config/tabane"),
        policy: String::new(),
        list: &|| world.tabane(&["links"]),
    };
    let name = format!("run-{}", child.id());
    leaves_what_is_not_to_be_used(&world, &leaving, &name);
    leaves_what_goes(&world, &leaving, &name);
    child.kill().unwrap();
    child.wait().unwrap();
}
