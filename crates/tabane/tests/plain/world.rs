//! Where programs are compared, in namespaces of its own:
//!
//! ```text
//!  lan l1 10.72.0.2 ── c9 host link1 ═ lab ═ link1 relay r0 203.0.113.1 ── 203.0.113.2 s0 servers
//!                              link2 ═ lab ═ link2
//! ```
//!
//! The relay's host is a router as well, so that what goes plainly takes the same path: link 1,
//! then the wire to the servers. IPv6 runs beside. The servers' host is the router of ranges where
//! packets end as the cells want it: nobody answers, or an ICMP message does.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use tabane_base::Seed;
use tabane_lab::{Lab, LabOptions, SERVICE};
use tabane_netem::Scenario;

use crate::process::{Notices, PATIENCE, UP, first_line, ip, pid, wait_for};

pub(crate) const TABANE: &str = env!("CARGO_BIN_EXE_tabane");
const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/plain");
const RESOLVER: &str = "203.0.113.2";
/// Two like links, so that it does not matter which of them plain packets take. Their round trip
/// is what `program.py` counts in.
const LINKS: &str = r#"
    name = "plain"
    why = "two like links"
    duration = "60s"
    [[link]]
    name = "first"
    rate = "100mbit"
    delay = "15ms"
    queue = "400kB"
    [[link]]
    name = "second"
    rate = "100mbit"
    delay = "15ms"
    queue = "400kB"
"#;

/// What routers say of packets to addresses that nobody has, and of which they say nothing.
const ENDS: &str = "table inet ends { chain forward { type filter hook forward priority 0; \
    ip daddr 198.51.100.1 reject with icmp host-unreachable; \
    ip daddr 198.51.100.2 reject with icmp admin-prohibited; \
    ip daddr 198.51.100.3 reject with icmp net-unreachable; \
    ip daddr 198.51.100.4 drop; \
    ip6 daddr 2001:db8:bad::1 reject with icmpv6 addr-unreachable; \
    ip6 daddr 2001:db8:bad::2 reject with icmpv6 admin-prohibited; \
    ip6 daddr 2001:db8:bad::3 reject with icmpv6 no-route; \
    ip6 daddr 2001:db8:bad::4 drop; }; }";

/// What daemons show, in the world's directory: a repository, a file, and keys for `ssh`.
const PUBLISH: &str = "git init -q work; cd work; echo hello >README; git add README
    git -c user.name=T -c user.email=t@example commit -qm first; cd ..
    git clone -q --bare work www/repository.git; git -C www/repository.git update-server-info
    cp work/README www/file
    if command -v dropbear >/dev/null; then
        ssh-keygen -q -t ed25519 -N '' -f key; mkdir -m 700 .ssh; cp key.pub .ssh/authorized_keys
        dropbearkey -t ed25519 -f hostkey >/dev/null 2>&1
    fi";
/// The program, where it listens, and its line. Whoever logs in is at home in the world's
/// directory: `ip netns exec` has given the server mounts of its own.
const DAEMONS: [(&str, &str, &str); 3] = [
    (
        "git",
        ":9418 ",
        "exec git daemon --export-all --base-path=www --reuseaddr",
    ),
    ("iperf3", ":5201 ", "exec iperf3 -s"),
    (
        "dropbear",
        ":22 ",
        "mount --bind . ~root; exec dropbear -F -E -s -r hostkey -P dropbear.pid",
    ),
];

/// Most systems let everybody have TUN devices; where this one does not, here it does.
const ORDINARY: &str = "home=$1; shift; test -c tun || mknod -m 666 tun c 10 200
    mkdir -p $home; chown -R ${WHO-nobody} $home; mount --bind ${TUN-tun} /dev/net/tun
    test -z \"$ROOTS\" || { mount -t tmpfs none $ROOTS; touch $ROOTS/a.conf; }
    test ! -e key || test -e $home/key || install -m 600 -o nobody key $home/key
    export HOME=$home TABANE_RUNTIME=$home/runtime SSH_KEY=$home/key
    exec setpriv --reuid ${WHO-nobody} --regid nogroup --clear-groups \"$@\"";

pub(crate) struct World {
    lan: String,
    servers: String,
    directory: PathBuf,
    children: Vec<Child>,
    lab: Lab,
}

/// Where a command runs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    /// The machine that has the links.
    Host,
    /// Behind it.
    Lan,
    Relay,
    Servers,
}

impl World {
    /// `None`, with a line that says so, without the right to make namespaces.
    pub(crate) fn new(seed: Seed) -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            println!("skipped: namespaces need root");
            return None;
        }
        for tool in ["nft", "python3"] {
            if Command::new(tool).arg("--version").output().is_err() {
                println!("skipped: there is no {tool} here; `make test` installs it");
                return None;
            }
        }
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let id = format!("tp{}-{number}", std::process::id());
        let scenario = Scenario::parse(LINKS, None, &mut |name| Err(name.to_owned())).unwrap();
        let directory = std::env::temp_dir().join(format!("tabane-{id}"));
        fs::create_dir_all(directory.join("www")).unwrap();
        let mut world = Self {
            lan: format!("{id}l"),
            servers: format!("{id}s"),
            directory,
            children: Vec::new(),
            lab: Lab::up(&scenario, &LabOptions { seed }).unwrap(),
        };
        world.build();
        world.start_servers();
        world.start_daemons();
        world.start_relay();
        Some(world)
    }

    fn build(&self) {
        let (h, l) = (self.name(Place::Host), self.name(Place::Lan));
        let (r, s) = (self.name(Place::Relay), self.name(Place::Servers));
        for ns in [l, s] {
            ip(&format!("netns add {ns}"));
            ip(&format!("-n {ns} link set lo up"));
        }
        ip(&format!(
            "-n {r} link add r0 type veth peer name s0 netns {s}"
        ));
        ip(&format!(
            "-n {h} link add c9 type veth peer name l1 netns {l}"
        ));
        let addresses = [
            // A relay leads nobody to its neighbours: the servers are beyond a router.
            (r, "r0", "203.0.113.1/32", "2001:db8:ffff::1/128"),
            (s, "s0", "203.0.113.2/24", "2001:db8:ffff::2/64"),
            (h, "c9", "10.72.0.1/24", "2001:db8:72::1/64"),
            (l, "l1", "10.72.0.2/24", "2001:db8:72::2/64"),
        ];
        for (ns, device, v4, v6) in addresses {
            ip(&format!("-n {ns} addr add {v4} dev {device}"));
            ip(&format!("-n {ns} addr add {v6} dev {device} nodad"));
            ip(&format!("-n {ns} link set {device} up"));
        }
        for (range, router) in [
            ("203.0.113.0/24", "203.0.113.2"),
            ("2001:db8:ffff::/64", "2001:db8:ffff::2"),
        ] {
            ip(&format!(
                "-n {r} route add {range} via {router} dev r0 onlink"
            ));
        }
        for i in 1..=2 {
            ip(&format!(
                "-n {h} addr add 2001:db8:{i}::2/64 dev link{i} nodad"
            ));
            ip(&format!(
                "-n {r} addr add 2001:db8:{i}::1/64 dev link{i} nodad"
            ));
        }
        route(l, r, s);
        let ends = self.command(Place::Servers, "nft").arg(ENDS).output();
        assert!(ends.as_ref().unwrap().status.success(), "{ends:?}");
        for (place, settings) in [
            (
                Place::Host,
                "net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1",
            ),
            (
                Place::Relay,
                "net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1",
            ),
            (
                Place::Servers,
                "net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1",
            ),
            // Routers tell everybody, however many ask at once.
            (
                Place::Relay,
                "net.ipv4.icmp_ratelimit=0 net.ipv6.icmp.ratelimit=0",
            ),
            (
                Place::Servers,
                "net.ipv4.icmp_ratelimit=0 net.ipv6.icmp.ratelimit=0",
            ),
            (
                Place::Host,
                "net.ipv4.icmp_ratelimit=0 net.ipv6.icmp.ratelimit=0",
            ),
            // An address that answers nobody costs seconds, not two minutes.
            (Place::Host, "net.ipv4.tcp_syn_retries=1"),
            (Place::Lan, "net.ipv4.tcp_syn_retries=1"),
            (Place::Relay, "net.ipv4.tcp_syn_retries=1"),
        ] {
            let mut sysctl = self.command(place, "sysctl");
            let set = sysctl.arg("-qw").args(settings.split(' ')).output();
            assert!(
                set.as_ref().unwrap().status.success(),
                "{settings}: {set:?}"
            );
        }
        for ns in [h, l, r] {
            let directory = Path::new("/etc/netns").join(ns);
            fs::create_dir_all(&directory).unwrap();
            let text = format!("nameserver {RESOLVER}\noptions timeout:2\n");
            fs::write(directory.join("resolv.conf"), text).unwrap();
        }
    }

    fn start_servers(&mut self) {
        let mut command = self.python(Place::Servers, "server.py");
        command.arg(self.directory.join("www"));
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        assert_eq!(first_line(&mut child), "ready");
        self.children.push(child);
    }

    /// Servers of real programs, and what they show; without a program, its cells are not there.
    fn start_daemons(&mut self) {
        let mut publish = self.command(Place::Servers, "sh");
        let published = publish.args(["-ec", PUBLISH]).output();
        assert!(
            published.as_ref().unwrap().status.success(),
            "{published:?}"
        );
        for (tool, port, line) in DAEMONS {
            if Command::new(tool).arg("--version").output().is_err() {
                println!("there is no {tool} here; `make test` installs it");
                continue;
            }
            let mut command = self.command(Place::Servers, "sh");
            command.args(["-ec", line]).stdout(Stdio::null());
            self.children
                .push(command.stderr(Stdio::null()).spawn().unwrap());
            let deadline = Instant::now() + PATIENCE;
            let listening = || self.command(Place::Servers, "ss").arg("-Hltn").output();
            while !String::from_utf8_lossy(&listening().unwrap().stdout).contains(port) {
                assert!(Instant::now() < deadline, "{line}: does not listen");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }

    fn start_relay(&mut self) {
        let mut command = self.command(Place::Relay, TABANE);
        command.args(["relay", "--log", "warn", "--public"]);
        command.arg(SERVICE.to_string()).arg("--state");
        command.arg(self.directory.join("relay"));
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let join = first_line(&mut child);
        self.children.push(child);
        let joined = self.tabane(&["join", &join]).output().unwrap();
        assert!(joined.status.success(), "{joined:?}");
        let joined = self.ordinary_user(&["join", &join]).output().unwrap();
        assert!(joined.status.success(), "{joined:?}");
    }

    fn name(&self, place: Place) -> &str {
        match place {
            Place::Host => self.lab.client().name(),
            Place::Lan => &self.lan,
            Place::Relay => self.lab.server().name(),
            Place::Servers => &self.servers,
        }
    }

    /// A command there, as `ip netns exec` starts it: with the resolver of the place.
    pub(crate) fn command(&self, place: Place, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", self.name(place), program]);
        command.env("HOME", &self.directory).env_remove("RUST_LOG");
        // Instances of other tests, and of this machine, are out of sight.
        command.env("TABANE_RUNTIME", self.directory.join("runtime"));
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        command.env("SSH_KEY", self.directory.join("key"));
        command.current_dir(&self.directory);
        command
    }

    /// One of the scripts beside this file.
    pub(crate) fn python(&self, place: Place, script: &str) -> Command {
        let mut command = self.command(place, "python3");
        command.arg(self::script(script));
        command
    }

    pub(crate) fn tabane(&self, arguments: &[&str]) -> Command {
        let mut command = self.command(Place::Host, TABANE);
        command.args(arguments);
        command
    }

    /// `tabane`, as one who has no rights, on a system that lets him have a network of his own. He
    /// has joined the relay, and is at home elsewhere.
    pub(crate) fn ordinary_user(&self, arguments: &[&str]) -> Command {
        let mut command = self.command(Place::Host, "sh");
        command.args(["-ec", ORDINARY, "sh"]).arg(self.home());
        command.arg(TABANE).args(arguments);
        command
    }

    /// Where that one is at home.
    pub(crate) fn home(&self) -> PathBuf {
        self.directory.join("home")
    }

    /// `tabane up` for the host and the one behind it.
    pub(crate) fn up(&self) -> Up {
        let mut command = self.tabane(&["up", "--lan", "c9", "--log", "info"]);
        let notices = Notices::of(&mut command, &self.directory.join("notify"));
        let log = self.directory.join("up.log");
        command.stderr(fs::File::create(&log).unwrap());
        let up = Up(command.spawn().unwrap());
        assert!(
            notices.hear(UP),
            "never up; the daemon said:\n{}",
            fs::read_to_string(&log).unwrap()
        );
        up
    }
}

/// Who is where, behind whom.
fn route(l: &str, r: &str, s: &str) {
    for (ns, route) in [
        (l, "default via 10.72.0.1"),
        (l, "default via 2001:db8:72::1"),
        (r, "10.72.0.0/24 via 10.77.1.2"),
        (r, "2001:db8:72::/64 via 2001:db8:1::2"),
        (r, "default via 203.0.113.2 dev r0 onlink"),
        (r, "default via 2001:db8:ffff::2 dev r0 onlink"),
        (s, "10.72.0.0/24 via 203.0.113.1"),
        (s, "10.77.0.0/16 via 203.0.113.1"),
        (s, "2001:db8:72::/64 via 2001:db8:ffff::1"),
        (s, "2001:db8:1::/64 via 2001:db8:ffff::1"),
        (s, "2001:db8:2::/64 via 2001:db8:ffff::1"),
        (s, "fd77::/16 via 2001:db8:ffff::1"),
        // Many hosts at once, and one more.
        (s, "local 203.0.114.0/23 dev lo"),
        (s, "local 203.0.113.3 dev lo"),
        // Where packets end: forwarded, if it were not for `ENDS`.
        (s, "198.51.100.0/24 via 203.0.113.1"),
        (s, "2001:db8:bad::/64 via 2001:db8:ffff::1"),
    ] {
        let family = if route.contains("::") { "-6" } else { "-4" };
        ip(&format!("-n {ns} {family} route add {route}"));
    }
}

/// A script beside this file.
pub(crate) fn script(name: &str) -> PathBuf {
    Path::new(SCRIPTS).join(name)
}

/// A running `tabane up`, killed at the end.
pub(crate) struct Up(Child);

impl Up {
    /// Tells it to go, and waits until its hooks are gone with it.
    pub(crate) fn down(mut self) {
        kill(pid(&self.0), Signal::SIGTERM).unwrap();
        assert!(wait_for(&mut self.0, PATIENCE).success());
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        for place in [Place::Host, Place::Lan, Place::Relay] {
            let _ = fs::remove_dir_all(Path::new("/etc/netns").join(self.name(place)));
        }
        for ns in [&self.lan, &self.servers] {
            let _ = Command::new("ip").args(["netns", "del", ns]).output();
        }
        let _ = fs::remove_dir_all(&self.directory);
    }
}
