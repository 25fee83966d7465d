//! `tabane up --route-domain`: names of one site, asked for at another.
//!
//! The world is that of `sites.rs`. Site b's resolver is its LAN's host; the relay and client a
//! have resolvers of their own, which must not hear of b's names.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Instant;

use nix::sys::signal::{Signal, kill};

use crate::process::PATIENCE;
use crate::sites::{Running, Site, offices, run};
use crate::up::{LOST, set_resolver};
use crate::world::{World, first_line};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bond/dns.py");
/// Asked by hosts of the LAN, who need not know of us.
const ANYBODY: &str = "192.0.2.53";
const DOMAIN: &str = "lan-b.example (192.168.20.2)";

/// A resolver, and what it was asked.
struct Resolver {
    log: std::path::PathBuf,
    _server: Running,
}

impl Resolver {
    fn start(world: &World, mut command: Command, address: &str, names: &[&str]) -> Self {
        let log = world.path(&format!("asked-{address}"));
        fs::write(&log, "").unwrap();
        command.args([SCRIPT, "serve", address]).arg(&log);
        let mut child = command.args(names).stdout(Stdio::piped()).spawn().unwrap();
        assert_eq!(first_line(&mut child), "ready");
        let _server = Running(child);
        Self { log, _server }
    }

    fn was_asked(&self, word: &str) -> bool {
        fs::read_to_string(&self.log).unwrap().contains(word)
    }
}

/// What a resolver says to the LAN's host, and after how many seconds.
fn ask(site: &Site<'_>, how: &str, name: &str) -> String {
    let mut python = site.at_host("python3");
    run(python.args([SCRIPT, "ask", how, ANYBODY, name]))
}

#[test]
fn names_of_a_site_are_asked_for_there_and_nowhere_else() {
    let Some(mut world) = World::new(&[]) else {
        return;
    };
    let relay_resolver = "10.73.1.2";
    set_resolver(world.client_ns(), "10.71.2.2");
    set_resolver(world.relay_ns(), relay_resolver);
    let other_names = [
        "www.example.org=198.51.100.7",
        "nas.lan-b.example=198.51.100.66",
    ];
    world.stop_relay();
    world.start_relay(&[]);
    let (mut a, mut b) = offices(&world);
    let ordinary = [
        Resolver::start(
            &world,
            world.in_relay("python3"),
            relay_resolver,
            &other_names,
        ),
        Resolver::start(&world, world.in_relay("python3"), "10.71.2.2", &other_names),
    ];
    let names = ["nas.lan-b.example=192.168.20.2"];
    let own = Resolver::start(&world, b.at_host("python3"), "192.168.20.2", &names);
    a.begin(&["--route", "192.168.10.0/24"]);
    let flags = [
        "--route=192.168.20.0/24",
        "--route-domain=lan-b.example=192.168.20.2",
        "--route-domain=bank.example",
    ];
    b.begin(&flags);
    // Nothing unless it is granted.
    let refused = b.until_route("lan-b.example", "refused");
    let problem = refused["problem"].as_str().unwrap();
    assert!(
        problem.contains("user set NAME --domains lan-b.example"),
        "{problem}"
    );
    world.manage("user set bob --domains lan-b.example");
    b.until_route("lan-b.example", "open");
    b.until_route("bank.example", "refused");
    a.until_route(DOMAIN, "open");
    // Programs of the machine and hosts behind it know nothing of it.
    let found = |name: &str| run(a.at_client("getent").args(["ahostsv4", name]));
    assert!(found("nas.LAN-b.example").starts_with("192.168.20.2 "));
    assert!(found("www.example.org").starts_with("198.51.100.7 "));
    let of_address = run(a.at_client("getent").args(["hosts", "192.168.20.2"]));
    assert!(of_address.ends_with("nas.lan-b.example"), "{of_address}");
    for how in ["udp", "tcp"] {
        assert_eq!(ask(&a, how, "nas.lan-b.example"), "192.168.20.2 0", "{how}");
        assert_eq!(ask(&a, how, "none.lan-b.example"), "nxdomain 0", "{how}");
        assert_eq!(ask(&a, how, "192.168.20.2"), "nas.lan-b.example 0", "{how}");
    }
    assert!(own.was_asked("none.lan-b.example") && !own.was_asked("example.org"));
    // The site goes away, then the relay: that is said at once, and nobody else is asked.
    b.end(Signal::SIGTERM);
    a.until_route(DOMAIN, "away");
    for how in ["udp", "tcp"] {
        assert_eq!(ask(&a, how, "nas.lan-b.example"), "servfail 0", "{how}");
    }
    kill(world.relay_pid(), Signal::SIGKILL).unwrap();
    let (_, notices) = a.up.as_ref().unwrap();
    assert!(notices.hear(LOST));
    for how in ["udp", "tcp"] {
        assert_eq!(ask(&a, how, "nas.lan-b.example"), "servfail 0", "{how}");
    }
    let mut getent = a.at_client("getent");
    let begun = Instant::now();
    let output = getent.args(["ahostsv4", "nas.lan-b.example"]).output();
    assert!(!output.unwrap().status.success() && begun.elapsed() < PATIENCE);
    for resolver in &ordinary {
        assert!(!resolver.was_asked("lan-b"), "{:?}", resolver.log);
    }
    assert!(ordinary[0].was_asked("www.example.org"));
    assert!(found("www.example.org").starts_with("198.51.100.7 "));
}
