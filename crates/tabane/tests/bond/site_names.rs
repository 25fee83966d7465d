//! `tabane up --route-domain`: names of one site, asked for at another.
//!
//! The world is that of `sites.rs`. Site b's resolver is its LAN's host; the relay and client a
//! have resolvers of their own, which must not hear of b's names.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Instant;

use nix::sys::signal::{Signal, kill};

use crate::process::PATIENCE;
use crate::running::{Running, run};
use crate::site::{Site, offices};
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

/// What the other site's server says to curl, by a proxy that is given the server's name.
fn by_proxy(site: &Site<'_>, proxy: &str, host: &str) -> (Option<i32>, String) {
    let mut curl = site.at_client("curl");
    let url = format!("http://{host}:8000/");
    let output = curl.args(["-sS", "--max-time", "30", "--proxy", proxy, &url]);
    let output = output.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), crate::text(&said))
}

#[test]
fn a_name_that_a_program_gives_to_a_proxy_is_asked_for_at_its_site() {
    let Some(mut world) = World::new(&[]) else {
        return;
    };
    set_resolver(world.relay_ns(), "10.73.1.2");
    world.stop_relay();
    world.start_relay(&[]);
    let (a, mut b) = offices(&world);
    world.manage("user set bob --domains lan-b.example");
    let names = ["nas.lan-b.example=198.51.100.66"];
    let at_relay = Resolver::start(&world, world.in_relay("python3"), "10.73.1.2", &names);
    let names = ["nas.lan-b.example=192.168.20.2"];
    let own = Resolver::start(&world, b.at_host("python3"), "192.168.20.2", &names);
    let page = world.path("page");
    fs::create_dir(&page).unwrap();
    fs::write(page.join("index.html"), "the page of lan b").unwrap();
    let mut server = b.at_host("python3");
    server.args([
        "-m",
        "http.server",
        "--bind",
        "192.168.20.2",
        "8000",
        "--directory",
    ]);
    let server = server
        .arg(&page)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let _server = Running(server.spawn().unwrap());
    b.begin(&[
        "--route=192.168.20.0/24",
        "--route-domain=lan-b.example=192.168.20.2",
    ]);
    b.until_route("lan-b.example", "open");
    let address = "127.0.0.1:1080";
    let mut proxy = a.tabane(&["proxy", "--listen", address]);
    let mut proxy = Running(proxy.stdout(Stdio::piped()).spawn().unwrap());
    first_line(&mut proxy.0);
    let (socks, http) = (format!("socks5h://{address}"), format!("http://{address}"));
    let deadline = Instant::now() + PATIENCE;
    // The proxy hears of the domain a moment after its session is there.
    while by_proxy(&a, &socks, "nas.lan-b.example").1 != "the page of lan b" {
        assert!(
            Instant::now() < deadline,
            "{:?}",
            by_proxy(&a, &socks, "nas.lan-b.example")
        );
    }
    let heard = fs::read_to_string(&at_relay.log).unwrap().len();
    let (_, said) = by_proxy(&a, &http, "NAS.lan-b.example");
    assert_eq!(said, "the page of lan b");
    // There is no such name; and there is nobody to ask.
    let (code, said) = by_proxy(&a, &socks, "none.lan-b.example");
    assert_eq!(code, Some(97), "{said}");
    assert!(own.was_asked("none.lan-b.example"));
    b.end(Signal::SIGTERM);
    let (code, said) = by_proxy(&a, &socks, "nas.lan-b.example");
    assert_eq!(code, Some(97), "{said}");
    assert_eq!(fs::read_to_string(&at_relay.log).unwrap().len(), heard);
}
