//! Programs that people use, as they are: a VPN of somebody else's (WireGuard) through an exposed
//! port and between two sites, and a browser at a web server of another site.
//!
//! The world is that of `sites.rs`.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::process::PATIENCE;
use crate::running::{Running, run, within};
use crate::site::{SCRIPT, Site, joined, offices};
use crate::text;
use crate::world::{World, first_line, ip};

/// Where the VPN's server listens.
const PORT: &str = "51820";

/// One end of a WireGuard tunnel, by its implementation in user space.
struct WireGuard {
    /// Unlike those of other tests that run meanwhile: its control socket is not of the namespace.
    device: String,
    namespace: String,
    public_key: String,
    daemon: Running,
}

impl WireGuard {
    /// Up, with this address, and without the other end.
    fn start(namespace: &str, name: &str, address: &str) -> Self {
        let device = format!("{name}{}", std::process::id());
        let inside = |program: &str| {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", namespace, program]);
            command
        };
        let mut daemon = inside("wireguard-go");
        let daemon = daemon.args(["-f", &device]).stdout(Stdio::null());
        let daemon = Running(daemon.stderr(Stdio::null()).spawn().unwrap());
        let private = run(Command::new("wg").arg("genkey"));
        let deadline = Instant::now() + PATIENCE;
        loop {
            let set = [
                "set",
                &device,
                "listen-port",
                PORT,
                "private-key",
                "/dev/stdin",
            ];
            if fed(inside("wg").args(set), &private) {
                break;
            }
            assert!(Instant::now() < deadline, "{device} does not come up");
        }
        ip(&format!(
            "-n {namespace} addr add {address}/24 dev {device}"
        ));
        ip(&format!("-n {namespace} link set {device} mtu 1280 up"));
        let public_key = run(inside("wg").args(["show", &device, "public-key"]));
        Self {
            device,
            namespace: namespace.to_owned(),
            public_key,
            daemon,
        }
    }

    /// Knows the other end, and where it is, if that is to be known.
    fn meet(&self, other: &Self, address: &str, endpoint: Option<&str>) {
        let mut set = Command::new("ip");
        set.args(["netns", "exec", &self.namespace, "wg", "set", &self.device]);
        set.args(["peer", &other.public_key, "allowed-ips", address]);
        if let Some(endpoint) = endpoint {
            set.args(["endpoint", endpoint]);
        }
        run(&mut set);
    }

    /// As the other end has been seen last.
    fn endpoint(&self) -> String {
        let mut show = Command::new("ip");
        show.args(["netns", "exec", &self.namespace, "wg", "show", &self.device]);
        let shown = run(show.arg("endpoints"));
        shown.split_whitespace().nth(1).unwrap().to_owned()
    }

    fn is_running(&mut self) -> bool {
        self.daemon.0.try_wait().unwrap().is_none()
    }
}

/// Whether a command takes this.
fn fed(command: &mut Command, input: &str) -> bool {
    let command = command.stdin(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    child.wait().unwrap().success()
}

fn is_there(program: &str, package: &str) -> bool {
    let is_there = Command::new(program).arg("--version").output().is_ok();
    if !is_there {
        println!("skipped: there is no {program} here (Debian: {package})");
    }
    is_there
}

fn has_wireguard() -> bool {
    is_there("wireguard-go", "wireguard-go") && is_there("wg", "wireguard-tools")
}

/// Reads so many bytes of a server within the VPN; its silence, in seconds.
fn fetched(command: &mut Command, bytes: &str) -> f64 {
    let fetch = [SCRIPT, "fetch", "10.99.0.2", "8080", bytes];
    let said = run(command.args(fetch));
    let (from, told) = said.split_once('\n').unwrap();
    assert_eq!(from, "from 10.99.0.1");
    let (got, silence) = told.split_once(' ').unwrap();
    assert_eq!(got, bytes);
    silence.parse().unwrap()
}

#[test]
fn a_vpn_between_two_sites_has_their_links_and_outlives_one() {
    if !has_wireguard() {
        return;
    }
    let Some(world) = World::new(&[]) else {
        return;
    };
    let (mut a, mut b) = offices(&world);
    a.limit_rates(16);
    b.limit_rates(16);
    joined(&mut a, &mut b);
    let mut near = WireGuard::start(&a.lan, "wa", "10.99.0.1");
    let mut far = WireGuard::start(&b.lan, "wb", "10.99.0.2");
    near.meet(&far, "10.99.0.2/32", Some("192.168.20.2:51820"));
    far.meet(&near, "10.99.0.1/32", None);
    let _server = b.server("serve 8080");
    let before = [a.passed(), b.passed()];
    fetched(&mut a.at_host("python3"), "10000000");
    // It sees where the other is, and all four links have carried it.
    assert_eq!(far.endpoint(), "192.168.10.2:51820");
    for (now, before) in [a.passed(), b.passed()]
        .iter()
        .flatten()
        .zip(before.iter().flatten())
    {
        assert!(*now > before + 1_000_000, "{now} {before}");
    }
    // A link ends under way, and what was begun goes on.
    let mut command = a.at_host("python3");
    let command = command.args([SCRIPT, "fetch", "10.99.0.2", "8080", "20000000"]);
    let mut visitor = command.stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(first_line(&mut visitor), "from 10.99.0.1");
    let [_, by_second] = a.passed();
    within(PATIENCE, "it begins", || {
        a.passed()[1] >= by_second + 1_000_000
    });
    ip(&format!("-n {} link set c1 down", a.ns));
    let output = visitor.wait_with_output().unwrap();
    let told = text(&output.stdout);
    let (got, silence) = told.trim().split_once(' ').unwrap();
    println!("the VPN's connection was silent for {silence} s at the cut");
    assert!(
        got == "20000000" && silence.parse::<f64>().unwrap() < 5.0,
        "{told}"
    );
    assert!(near.is_running() && far.is_running());
}

#[test]
fn a_vpn_s_server_is_reached_at_an_exposed_port() {
    if !has_wireguard() {
        return;
    }
    let Some(world) = World::new(&[]) else {
        return;
    };
    world.manage(&format!("user add bob --port {PORT}"));
    let b = Site::second(&world);
    b.join("bob");
    b.limit_rates(20);
    let ports = ["expose", "udp:51820=192.168.20.2"];
    let mut exposing = b.tabane(&ports);
    let mut exposing = Running(exposing.stdout(Stdio::piped()).spawn().unwrap());
    assert!(first_line(&mut exposing.0).contains("leads to 192.168.20.2:51820"));
    let mut near = WireGuard::start(world.servers_ns(), "we", "10.99.0.1");
    let mut far = WireGuard::start(&b.lan, "wf", "10.99.0.2");
    near.meet(&far, "10.99.0.2/32", Some("203.0.113.1:51820"));
    far.meet(&near, "10.99.0.1/32", None);
    let _server = b.server("serve 8080");
    let before = b.passed();
    fetched(&mut world.in_servers("python3"), "10000000");
    let after = b.passed();
    for (now, before) in after.iter().zip(before) {
        assert!(
            *now > before + 1_000_000,
            "one link alone: {after:?} {before:?}"
        );
    }
    assert!(near.is_running() && far.is_running());
}

/// What a browser at the LAN's host makes of an address.
fn browsed(site: &Site<'_>, profile: &str, url: &str) -> String {
    let mut browser = site.at_host("chromium");
    browser.args(["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]);
    browser.args([
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--virtual-time-budget=20000",
    ]);
    browser.arg(format!("--user-data-dir={profile}")).arg(url);
    let output = browser.stderr(Stdio::null()).output().unwrap();
    text(&output.stdout)
}

#[test]
fn a_browser_opens_a_page_of_another_site_with_all_that_belongs_to_it() {
    if !is_there("chromium", "chromium") {
        return;
    }
    let Some(world) = World::new(&[]) else {
        return;
    };
    let (mut a, mut b) = offices(&world);
    a.limit_rates(20);
    b.limit_rates(20);
    joined(&mut a, &mut b);
    // A page whose script asks for thirty files at once, and says when it has them.
    let page = world.path("page");
    fs::create_dir(&page).unwrap();
    for number in 0..30 {
        fs::write(page.join(format!("part{number}")), vec![b'x'; 100_000]).unwrap();
    }
    let script = "<body id='b'>loading</body><script>\n\
        Promise.all([...Array(30).keys()].map(i => fetch('part' + i).then(r => r.text())))\n\
        .then(all => document.getElementById('b').textContent =\n\
        'bytes ' + all.reduce((sum, it) => sum + it.length, 0))\n\
        .catch(error => document.getElementById('b').textContent = error);</script>";
    fs::write(page.join("index.html"), script).unwrap();
    let mut server = b.at_host("python3");
    server.args(["-m", "http.server", "8000", "--directory"]);
    let server = server
        .arg(&page)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let _server = Running(server.spawn().unwrap());
    let profile = world.path("profile");
    let deadline = Instant::now() + PATIENCE;
    loop {
        let shown = browsed(&a, profile.to_str().unwrap(), "http://192.168.20.2:8000/");
        if shown.contains("bytes 3000000") {
            break;
        }
        assert!(Instant::now() < deadline, "{shown}\n{}", a.log());
        std::thread::sleep(Duration::from_millis(100));
    }
    b.end(Signal::SIGTERM);
    a.until_route("192.168.20.0/24", "away");
    let shown = browsed(&a, profile.to_str().unwrap(), "http://192.168.20.2:8000/");
    assert!(!shown.contains("bytes 3000000"), "{shown}");
}
