//! Two LANs, each behind a client with two links, joined by the relay.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use serde_json::Value;

use crate::process::{Notices, PATIENCE, UP};
use crate::running::{Running, run};
use crate::world::{TABANE, World, ip, pid, wait_for};

pub(crate) const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bond/expose.py");

/// A client with its LAN.
pub(crate) struct Site<'a> {
    world: &'a World,
    /// The third part of its LAN's addresses.
    number: u8,
    links: [&'static str; 2],
    pub(crate) ns: String,
    pub(crate) lan: String,
    pub(crate) up: Option<(Child, Notices)>,
}

impl<'a> Site<'a> {
    /// The world's own client.
    pub(crate) fn first(world: &'a World) -> Self {
        Self::with_lan(world, 10, ["c1", "c2"], world.client_ns().to_owned())
    }

    pub(crate) fn second(world: &'a World) -> Self {
        let ns = format!("{}b", world.client_ns());
        let r = world.relay_ns();
        ip(&format!("netns add {ns}"));
        ip(&format!("-n {ns} link set lo up"));
        for i in 1..=2 {
            for line in [
                format!("-n {ns} link add b{i} type veth peer name q{i} netns {r}"),
                format!("-n {ns} addr add 10.73.{i}.1/24 dev b{i}"),
                format!("-n {r} addr add 10.73.{i}.2/24 dev q{i}"),
                format!("-n {ns} link set b{i} up"),
                format!("-n {r} link set q{i} up"),
                format!("-n {ns} route add default via 10.73.{i}.2 dev b{i} metric {i}"),
            ] {
                ip(&line);
            }
        }
        Self::with_lan(world, 20, ["b1", "b2"], ns)
    }

    fn with_lan(world: &'a World, number: u8, links: [&'static str; 2], ns: String) -> Self {
        let lan = format!("{ns}l");
        for line in [
            format!("netns add {lan}"),
            format!("-n {lan} link set lo up"),
            format!("-n {ns} link add lan9 type veth peer name l1 netns {lan}"),
            format!("-n {ns} addr add 192.168.{number}.1/24 dev lan9"),
            format!("-n {ns} addr add fd00:{number}::1/64 dev lan9 nodad"),
            format!("-n {lan} addr add 192.168.{number}.2/24 dev l1"),
            format!("-n {lan} addr add fd00:{number}::2/64 dev l1 nodad"),
            format!("-n {ns} link set lan9 up"),
            format!("-n {lan} link set l1 up"),
            format!("-n {lan} route add default via 192.168.{number}.1"),
            format!("-n {lan} -6 route add default via fd00:{number}::1"),
        ] {
            ip(&line);
        }
        let site = Self {
            world,
            number,
            links,
            ns,
            lan,
            up: None,
        };
        for value in ["net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"] {
            let set = site.at_client("sysctl").args(["-qw", value]).status();
            assert!(set.unwrap().success());
        }
        site
    }

    pub(crate) fn directory(&self) -> PathBuf {
        self.world.path(&format!("site{}", self.number))
    }

    pub(crate) fn at_client(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.ns, program]);
        command.env("TABANE_RUNTIME", self.directory().join("runtime"));
        command.env_remove("RUST_LOG");
        command
    }

    pub(crate) fn tabane(&self, arguments: &[&str]) -> Command {
        let mut command = self.at_client(TABANE);
        command.arg("--config").arg(self.directory().join("config"));
        command.args(arguments);
        command
    }

    /// Joins as a device of this user.
    pub(crate) fn join(&self, user: &str) {
        self.join_by(&self.world.manage(&format!("token new --user {user}")));
    }

    pub(crate) fn join_by(&self, line: &str) {
        let join = self.tabane(&["join", "--name", "home", line]).output();
        let output = join.unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    pub(crate) fn begin(&mut self, flags: &[&str]) {
        fs::create_dir_all(self.directory()).unwrap();
        let mut command = self.tabane(&["up", "--log", "debug", "--lan", "lan9"]);
        let notices = Notices::of(&mut command, &self.directory().join("notify"));
        let log = fs::File::create(self.directory().join("up.log")).unwrap();
        let child = command.args(flags).stderr(log).spawn().unwrap();
        let is_up = notices.hear(UP);
        self.up = Some((child, notices));
        assert!(is_up, "{}", self.log());
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.directory().join("up.log")).unwrap()
    }

    pub(crate) fn end(&mut self, signal: Signal) {
        let (mut child, _) = self.up.take().unwrap();
        kill(pid(&child), signal).unwrap();
        wait_for(&mut child, PATIENCE);
    }

    fn state(&self) -> Value {
        let output = self.tabane(&["status", "--json"]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    pub(crate) fn routes(&self) -> Vec<Value> {
        self.state()["routes"].as_array().unwrap().clone()
    }

    /// Waits until the session is with such a relay.
    pub(crate) fn until_relay(&self, is_meant: impl Fn(&str) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let state = self.state();
            let name = state["instance"]["relay"].as_str().unwrap_or_default();
            if !name.is_empty() && is_meant(name) {
                return;
            }
            assert!(Instant::now() < deadline, "{name}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until a route stands so.
    pub(crate) fn until_route(&self, prefix: &str, state: &str) -> Value {
        self.until(prefix, |it| it["state"] == state)
    }

    pub(crate) fn until(&self, prefix: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let routes = self.routes();
            let found = routes.iter().find(|it| it["prefix"] == prefix);
            if let Some(found) = found.filter(|it| is_so(it)) {
                return found.clone();
            }
            assert!(Instant::now() < deadline, "{routes:#?}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub(crate) fn at_host(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.lan, program]);
        command
    }

    /// A server at the LAN's host.
    pub(crate) fn server(&self, arguments: &str) -> Running {
        let mut command = self.at_host("python3");
        Running::ready(command.arg(SCRIPT).args(arguments.split(' ')))
    }

    /// What the LAN's host says that goes to another.
    pub(crate) fn visit(&self, arguments: &str) -> String {
        let mut command = self.at_host("python3");
        run(command.arg(SCRIPT).args(arguments.split(' ')))
    }

    /// What comes back by UDP from this place.
    pub(crate) fn ask_by_udp(&self, address: &str) -> String {
        let script = format!(
            "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
             s.settimeout(20); s.connect(('{address}', 9001)); s.send(b'hello')\n\
             try: print(s.recv(100).decode())\n\
             except ConnectionRefusedError: print('refused')"
        );
        run(self.at_host("python3").args(["-c", &script]))
    }

    pub(crate) fn limit_rates(&self, rate: u64) {
        let [one, two] = self.links;
        let far = |link: &str| link.replace('b', "q").replace('c', "r");
        let r = self.world.relay_ns();
        for link in [one, two] {
            for (ns, end) in [(&*self.ns, link.to_owned()), (r, far(link))] {
                let line = format!("qdisc add dev {end} root tbf rate {rate}mbit");
                let mut tc = Command::new("tc");
                tc.args(["-n", ns]).args(line.split(' '));
                tc.args(["burst", "20000", "latency", "60ms"]);
                assert!(tc.status().unwrap().success());
            }
        }
    }

    /// Bytes that each link has sent and received.
    pub(crate) fn passed(&self) -> [u64; 2] {
        let mut cat = self.at_client("cat");
        for link in self.links {
            for what in ["rx", "tx"] {
                cat.arg(format!("/sys/class/net/{link}/statistics/{what}_bytes"));
            }
        }
        let counts: Vec<u64> = run(&mut cat)
            .lines()
            .map(|it| it.parse().unwrap())
            .collect();
        [counts[0] + counts[1], counts[2] + counts[3]]
    }
}

impl Drop for Site<'_> {
    fn drop(&mut self) {
        if let Some((child, _)) = &mut self.up {
            let _ = child.kill();
            let _ = child.wait();
        }
        for ns in [&self.lan, &self.ns] {
            let _ = Command::new("ip").args(["netns", "del", ns]).output();
        }
    }
}

/// Two offices whose LANs are granted to each other.
pub(crate) fn offices(world: &World) -> (Site<'_>, Site<'_>) {
    world.manage("user add ann --routes 192.168.10.0/24,fd00:10::/64 --group offices");
    world.manage("user add bob --routes 192.168.20.0/24,fd00:20::/64 --group offices");
    let (a, b) = (Site::first(world), Site::second(world));
    a.join("ann");
    b.join("bob");
    (a, b)
}

pub(crate) fn joined(a: &mut Site<'_>, b: &mut Site<'_>) {
    a.begin(&["--route", "192.168.10.0/24", "--route", "fd00:10::/64"]);
    b.begin(&["--route", "192.168.20.0/24", "--route", "fd00:20::/64"]);
    for prefix in ["192.168.10.0/24", "fd00:10::/64"] {
        assert_eq!(a.until_route(prefix, "open")["is_own"], true);
        let seen = b.until_route(prefix, "open");
        assert!(seen["is_own"] == false && seen["user"] == "ann", "{seen}");
    }
    for prefix in ["192.168.20.0/24", "fd00:20::/64"] {
        b.until_route(prefix, "open");
        a.until_route(prefix, "open");
    }
}
