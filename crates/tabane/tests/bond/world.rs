//! The topology of these tests, in namespaces of their own:
//!
//! ```text
//!   client  c1 10.71.1.1 ─── 10.71.1.2 r1  relay  r0 203.0.113.1 ─── 203.0.113.2 s0  servers
//!           c2 10.71.2.1 ─── 10.71.2.2 r2
//! ```
//!
//! Both links have default routes; 2001:db8:1::/64 and 2001:db8:2::/64 run beside the IPv4 ranges,
//! [2001:db8:ffff::1] and [2001:db8:ffff::2] beside relay and servers.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

pub(crate) use crate::process::{first_line, ip, pid, wait_for};
use crate::text;

/// What the relay reaches by the servers' host.
const INTERNET: [(&str, &str); 2] = [
    ("203.0.113.0/24", "203.0.113.2"),
    ("2001:db8:ffff::/64", "2001:db8:ffff::2"),
];

pub(crate) const TABANE: &str = env!("CARGO_BIN_EXE_tabane");

pub(crate) struct World {
    client_ns: String,
    relay_ns: String,
    servers_ns: String,
    directory: PathBuf,
    servers: Vec<Child>,
    pub(crate) relay: Option<Child>,
    pub(crate) join: String,
}

impl World {
    /// `None`, with a line that says so, without the right to make namespaces.
    pub(crate) fn new(relay_flags: &[&str]) -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            println!("skipped: namespaces need root");
            return None;
        }
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let id = format!(
            "{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let directory = std::env::temp_dir().join(format!("tabane-bond-{id}"));
        fs::create_dir(&directory).unwrap();
        let mut world = Self {
            client_ns: format!("tb{id}c"),
            relay_ns: format!("tb{id}r"),
            servers_ns: format!("tb{id}s"),
            directory,
            servers: Vec::new(),
            relay: None,
            join: String::new(),
        };
        world.build();
        world.start_servers();
        world.start_relay(relay_flags);
        Some(world)
    }

    fn build(&self) {
        let (c, r, s) = (&self.client_ns, &self.relay_ns, &self.servers_ns);
        for ns in [c, r, s] {
            ip(&format!("netns add {ns}"));
            ip(&format!("-n {ns} link set lo up"));
        }
        ip(&format!(
            "-n {r} link add r0 type veth peer name s0 netns {s}"
        ));
        // The servers are no neighbours of the relay's, which it would lead nobody to: to them goes
        // what goes to a router.
        for (ns, end, v4, v6) in [(r, "r0", "1/32", "1/128"), (s, "s0", "2/24", "2/64")] {
            ip(&format!("-n {ns} addr add 203.0.113.{v4} dev {end}"));
            ip(&format!(
                "-n {ns} addr add 2001:db8:ffff::{v6} dev {end} nodad"
            ));
            ip(&format!("-n {ns} link set {end} up"));
        }
        for (range, router) in INTERNET {
            self.route(range, router);
        }
        // The bare machine reaches the servers as well, through the relay's host as a router.
        ip(&format!("-n {s} route add default via 203.0.113.1"));
        ip(&format!("-n {s} -6 route add default via 2001:db8:ffff::1"));
        for key in ["ipv4.ip_forward", "ipv6.conf.all.forwarding"] {
            let mut sysctl = self.in_relay("sysctl");
            let set = sysctl.args(["-qw", &format!("net.{key}=1")]).output();
            assert!(set.unwrap().status.success());
        }
        for i in 1..=2 {
            ip(&format!(
                "-n {c} link add c{i} type veth peer name r{i} netns {r}"
            ));
            for (ns, end, n) in [(c, "c", 1), (r, "r", 2)] {
                ip(&format!("-n {ns} addr add 10.71.{i}.{n}/24 dev {end}{i}"));
                ip(&format!(
                    "-n {ns} addr add 2001:db8:{i}::{n}/64 dev {end}{i} nodad"
                ));
                ip(&format!("-n {ns} link set {end}{i} up"));
            }
            ip(&format!(
                "-n {c} route add default via 10.71.{i}.2 dev c{i} metric {i}"
            ));
            ip(&format!(
                "-n {c} -6 route add default via 2001:db8:{i}::2 dev c{i} metric {i}"
            ));
        }
    }

    /// Gives the links these rates, both ways, in Mbit/s: without one the first link may carry all
    /// of a download before the second is up, or for ever.
    pub(crate) fn limit_rates(&self, rates: [u64; 2]) {
        for (rate, number) in rates.iter().zip(1..) {
            for (mut tc, end) in [(self.in_client("tc"), "c"), (self.in_relay("tc"), "r")] {
                let device = format!("{end}{number}");
                let tbf = format!("root tbf rate {rate}mbit burst 20000 latency 60ms");
                tc.args(["qdisc", "add", "dev", &device]);
                assert!(tc.args(tbf.split(' ')).status().unwrap().success());
            }
        }
    }

    /// The relay's way to a range.
    pub(crate) fn route(&self, range: &str, router: &str) {
        let r = &self.relay_ns;
        ip(&format!(
            "-n {r} route add {range} via {router} dev r0 onlink"
        ));
    }

    pub(crate) fn servers_ns(&self) -> &str {
        &self.servers_ns
    }

    fn start_servers(&mut self) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bond/servers.py");
        // The relay's own host has a server as well, at a private address.
        let private = (&self.relay_ns, "private");
        for (ns, which) in [(&self.servers_ns, "public"), private] {
            let mut child = self
                .within(ns, "python3")
                .arg(&script)
                .arg(which)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            assert_eq!(first_line(&mut child), "ready");
            self.servers.push(child);
        }
    }

    /// Starts the relay, again with the same state if there was one.
    pub(crate) fn start_relay(&mut self, flags: &[&str]) {
        let mut child = self.spawn_relay(flags);
        self.join = first_line(&mut child);
        assert!(self.join.starts_with("tabane://"), "{}", self.join);
        self.relay = Some(child);
    }

    /// The same; its first line is the string to join by.
    pub(crate) fn spawn_relay(&self, flags: &[&str]) -> Child {
        self.in_relay(TABANE)
            .args([
                "relay",
                "--log",
                "warn",
                "--public",
                "203.0.113.1",
                "--state",
            ])
            .arg(self.directory.join("relay"))
            .args(flags)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    }

    pub(crate) fn stop_relay(&mut self) {
        let mut child = self.relay.take().unwrap();
        nix::sys::signal::kill(pid(&child), nix::sys::signal::SIGTERM).unwrap();
        assert!(child.wait().unwrap().success());
    }

    /// A command where the internet's servers are.
    pub(crate) fn in_servers(&self, program: &str) -> Command {
        self.within(&self.servers_ns, program)
    }

    /// A command in the relay's namespace.
    pub(crate) fn in_relay(&self, program: &str) -> Command {
        self.within(&self.relay_ns, program)
    }

    /// A command in the client's namespace, as `ip netns exec` starts it.
    pub(crate) fn in_client(&self, program: &str) -> Command {
        self.within(&self.client_ns, program)
    }

    fn within(&self, ns: &str, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", ns, program]);
        command.env("HOME", &self.directory).env_remove("RUST_LOG");
        // Instances of other tests, and of this machine, are out of sight.
        command.env("TABANE_RUNTIME", self.directory.join("runtime"));
        command
    }

    pub(crate) fn tabane(&self, arguments: &[&str]) -> Command {
        let mut command = self.in_client(TABANE);
        command.args(arguments);
        command
    }

    pub(crate) fn join(&self) {
        let output = self.tabane(&["join", &self.join]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    /// `tabane relay …` on the relay's state, beside the running relay; what it prints.
    pub(crate) fn manage(&self, line: &str) -> String {
        let mut command = self.in_relay(TABANE);
        command.arg("relay").args(line.split_whitespace());
        command.arg("--state").arg(self.directory.join("relay"));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{line}: {output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Makes the client join with this string.
    pub(crate) fn join_with(&self, join: &str) {
        let output = self.tabane(&["join", join]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    pub(crate) fn relay_pid(&self) -> nix::unistd::Pid {
        pid(self.relay.as_ref().unwrap())
    }

    /// The end of a relay that was told to go down.
    pub(crate) fn await_relay(&mut self, patience: Duration) -> ExitStatus {
        wait_for(&mut self.relay.take().unwrap(), patience)
    }

    /// `tabane run` with a shell line.
    pub(crate) fn run(&self, flags: &[&str], line: &str) -> Output {
        let mut command = self.tabane(&["run"]);
        command.args(flags).args(["--", "sh", "-c", line]);
        command.output().unwrap()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    pub(crate) fn relay_ns(&self) -> &str {
        &self.relay_ns
    }

    pub(crate) fn client_ns(&self) -> &str {
        &self.client_ns
    }
}

/// Prints the last lines of what processes have written below this directory.
fn show_logs(directory: &Path) {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    for path in entries.map(|entry| entry.path()) {
        let name = path.file_name().unwrap_or_default();
        if path.is_dir() {
            show_logs(&path);
        } else if name == "errors" || path.extension().is_some_and(|it| it == "log") {
            let log = fs::read(&path).unwrap_or_default();
            let log = text(&log);
            let skipped = log.lines().count().saturating_sub(300);
            println!("--- {}", path.display());
            log.lines()
                .skip(skipped)
                .for_each(|line| println!("{line}"));
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            show_logs(&self.directory);
        }
        for child in self.relay.iter_mut().chain(&mut self.servers) {
            let _ = child.kill();
            let _ = child.wait();
        }
        for ns in [&self.client_ns, &self.relay_ns, &self.servers_ns] {
            let _ = fs::remove_dir_all(Path::new("/etc/netns").join(ns));
            let _ = Command::new("ip").args(["netns", "del", ns]).output();
        }
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// A join string as it may be written by hand: without the sum that finds mistypings.
pub(crate) fn without_sum(join: &str) -> String {
    let (before, after) = join.split_once("&sum=").expect("relays print it");
    let (_, rest) = after.split_once('&').expect("the token is last");
    format!("{before}&{rest}")
}
