//! The hosts of a test: mobile, router and server, with what runs on them.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::{SIZE, TABANE};

/// Prints the sum of what it gets, then the sum of what it should have got.
pub(super) const CLIENT: &str = "
import hashlib, socket, sys
host, size = sys.argv[1], int(sys.argv[2])
s = socket.create_connection((host, 8080), 30)
s.settimeout(60)
s.sendall(b'%d\\n' % size)
h, n = hashlib.sha256(), 0
while True:
    d = s.recv(1 << 16)
    if not d: break
    if n == 0: print('first', flush=True)
    h.update(d); n += len(d)
want = hashlib.sha256((bytes(range(256)) * (size // 256 + 1))[:size])
print(n, h.hexdigest() == want.hexdigest(), flush=True)
";
pub(super) const SERVER: &str = "
import socket, threading
s = socket.socket(socket.AF_INET6)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(('::', 8080)); s.listen(50)
def serve(c):
    size = int(c.makefile('rb').readline())
    c.sendall((bytes(range(256)) * (size // 256 + 1))[:size])
    c.close()
def hear(c):
    try:
        while c.recv(1 << 16): pass
        print('in order', flush=True)
    except ConnectionResetError: print('by a reset', flush=True)
def listen(s, action):
    while True: threading.Thread(target=action, args=(s.accept()[0],), daemon=True).start()
sink = socket.create_server(('::', 8081), family=socket.AF_INET6, dualstack_ipv6=True)
threading.Thread(target=listen, args=(sink, hear), daemon=True).start()
print('ready', flush=True)
listen(s, serve)
";
/// Segments of connections that there are not, more of them than the queue takes.
pub(super) const FLOOD: &str = "
import socket, struct, sys
s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP)
for n in range(6000):
    head = struct.pack('!HHIIHHHH', 9, 1024 + n, n, 1, 0x5010, 99, 0, 0)
    s.sendto(head + bytes(int(sys.argv[2])), (sys.argv[1], 0))
";
/// The gateway's queues of packets to mobile hosts and from them, and what the kernel keeps in each
/// of them, at most.
pub(super) const TO_MOBILE: &str = "10620";
pub(super) const FROM_MOBILE: &str = "10621";
pub(super) const QUEUE_LENGTH: u64 = 4_096;
pub(super) const BARE: [&str; 6] = [
    "tcp_frto=0",
    "tcp_timestamps=0",
    "tcp_sack=0",
    "tcp_dsack=0",
    "tcp_early_retrans=0",
    "tcp_recovery=0",
];

pub(super) struct World {
    pub(super) id: String,
    pub(super) server: Option<Child>,
    pub(super) gateway: Option<Child>,
}

impl World {
    /// `None`, with a line that says so, where the test cannot run.
    pub(super) fn new() -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            println!("skipped: namespaces need root");
            return None;
        }
        if Command::new("iptables").arg("--version").output().is_err() {
            println!("skipped: there is no iptables");
            return None;
        }
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut world = Self {
            id: format!("tg{}-{number}", std::process::id()),
            server: None,
            gateway: None,
        };
        world.build();
        Some(world)
    }

    pub(super) fn name(&self, host: &str) -> String {
        format!("{}{host}", self.id)
    }

    pub(super) fn build(&mut self) {
        let [mobile, router, server] = ["m", "r", "s"].map(|host| self.name(host));
        for ns in [&mobile, &router, &server] {
            ip(&format!("netns add {ns}"));
            ip(&format!("-n {ns} link set lo up"));
        }
        for (near, host, n) in [("s0", &server, 1), ("r0", &mobile, 2)] {
            ip(&format!(
                "-n {router} link add {near} type veth peer name e0 netns {host}"
            ));
            for (ns, end, last) in [(&router, near, 1), (host, "e0", 2)] {
                ip(&format!("-n {ns} addr add 10.{n}.0.{last}/24 dev {end}"));
                ip(&format!(
                    "-n {ns} addr add fd0{n}::{last}/64 dev {end} nodad"
                ));
                ip(&format!("-n {ns} link set {end} up"));
            }
            ip(&format!("-n {host} route add default via 10.{n}.0.1"));
            ip(&format!("-n {host} -6 route add default via fd0{n}::1"));
        }
        self.set("r", &["ip_forward=1"]);
        let mut forwarding = self.within("r", "sysctl");
        forwarding.args(["-qw", "net.ipv6.conf.all.forwarding=1"]);
        assert!(forwarding.status().unwrap().success());
        let mut child = self
            .within("s", "python3")
            .args(["-c", SERVER])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        assert_eq!(first_line(&mut child), "ready");
        self.server = Some(child);
    }

    /// A cable from the mobile host to the server, which nothing uses yet.
    pub(super) fn build_bypass(&self) {
        let [mobile, server] = ["m", "s"].map(|host| self.name(host));
        ip(&format!(
            "-n {mobile} link add e1 type veth peer name e1 netns {server}"
        ));
        for (host, ns, own) in [("m", &mobile, "10.2.0.2"), ("s", &server, "10.1.0.2")] {
            // Each answers for its address on either side.
            self.set(host, &["conf.all.rp_filter=0", "conf.e1.rp_filter=0"]);
            ip(&format!("-n {ns} addr add {own}/32 dev e1"));
            ip(&format!("-n {ns} link set e1 up"));
        }
    }

    /// Packets that wait for the gateway in `queue`.
    pub(super) fn queued(&self, queue: &str) -> u64 {
        let mut cat = self.within("r", "cat");
        let output = cat.arg("/proc/net/netfilter/nfnetlink_queue").output();
        let text = String::from_utf8(output.unwrap().stdout).unwrap();
        let mut lines = text.lines().map(str::split_whitespace);
        let mut line = lines.find_map(|mut words| (words.next() == Some(queue)).then_some(words));
        line.as_mut()
            .and_then(|words| words.nth(1))
            .unwrap()
            .parse()
            .unwrap()
    }

    pub(super) fn within(&self, host: &str, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name(host), program]);
        command.env("TABANE_RUNTIME", self.runtime());
        command
    }

    /// Where its gateways have their sockets: interfaces are called alike in all worlds.
    pub(super) fn runtime(&self) -> PathBuf {
        std::env::temp_dir().join(&self.id)
    }

    pub(super) fn set(&self, host: &str, keys: &[&str]) {
        for key in keys {
            let mut sysctl = self.within(host, "sysctl");
            let set = sysctl.args(["-qw", &format!("net.ipv4.{key}")]).status();
            assert!(set.unwrap().success(), "{key}");
        }
    }

    pub(super) fn start(&mut self, mode: &str) {
        self.start_with(mode, &[]);
    }

    pub(super) fn start_with(&mut self, mode: &str, flags: &[&str]) {
        let mut command = self.within("r", TABANE);
        command.args(["gateway", "--radio", "r0", "--mode", mode]);
        command.args(flags);
        self.gateway = Some(command.stderr(Stdio::null()).spawn().unwrap());
        self.wait_for("the gateway answers", |world| {
            world.status(&["--json"]).status.success()
        });
    }

    pub(super) fn status(&self, flags: &[&str]) -> Output {
        self.tabane(&[&["gateway", "status"], flags].concat())
    }

    pub(super) fn tabane(&self, arguments: &[&str]) -> Output {
        let mut command = self.within("r", TABANE);
        command.args(arguments).output().unwrap()
    }

    /// What shows every instance shows this one.
    pub(super) fn is_an_instance(&self, mode: &str) {
        let state = self.tabane(&["status", "--json"]).stdout;
        let state: serde_json::Value = serde_json::from_slice(&state).unwrap();
        assert_eq!(state["instance"]["name"], "gateway-r0");
        assert_eq!(state["gateway"]["mode"], mode);
        let carried = state["totals"]["traffic"]["received_bytes"].as_u64();
        assert!(carried >= Some(2 * SIZE as u64), "{state}");
        let shown = self.tabane(&["status", "--instance", "gateway-r0"]).stdout;
        let shown = String::from_utf8(shown).unwrap();
        let heading = format!("gateway on r0, mode {mode}: ");
        assert!(
            shown.contains(&heading) && shown.contains(" MB; now "),
            "{shown}"
        );
        assert!(
            shown.contains("10.2.0.2:"),
            "the connections are shown: {shown}"
        );
    }

    pub(super) fn report(&self) -> serde_json::Value {
        serde_json::from_slice(&self.status(&["--json"]).stdout).unwrap()
    }

    pub(super) fn wait_for(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let end = Instant::now() + Duration::from_secs(60);
        while !is_so(self) {
            assert!(Instant::now() < end, "waited in vain: {what}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Begins a download; its first line says that bytes come.
    pub(super) fn fetch(&self, host: &str, size: usize) -> Child {
        let mut command = self.within("m", "python3");
        command.args(["-c", CLIENT, host, &size.to_string()]);
        command.stderr(Stdio::null());
        command.stdout(Stdio::piped()).spawn().unwrap()
    }

    pub(super) fn fetch_whole(&self, host: &str) {
        assert_whole(self.fetch(host, SIZE), SIZE);
    }

    pub(super) fn signal(&mut self, signal: nix::sys::signal::Signal) {
        let child = self.gateway.as_ref().unwrap();
        // `ip netns exec` becomes the program.
        let pid = nix::unistd::Pid::from_raw(child.id() as i32);
        nix::sys::signal::kill(pid, signal).unwrap();
    }

    /// Appends or deletes the rule by which nothing reaches the mobile host.
    pub(super) fn deafen(&self, action: &str) {
        let mut rule = self.within("m", "iptables");
        rule.args([action, "INPUT", "-j", "DROP"]);
        assert!(rule.status().unwrap().success());
    }

    /// From here on one of `one_of` packets for the mobile host is lost behind the gateway.
    pub(super) fn lose(&self, one_of: u32) {
        for rule in [
            "add table ip loss".to_owned(),
            "add chain ip loss in { type filter hook prerouting priority -300 ; }".to_owned(),
            format!("add rule ip loss in numgen random mod {one_of} 0 drop"),
        ] {
            let status = self.within("m", "nft").arg(rule).status();
            assert!(status.unwrap().success());
        }
    }

    /// What the host's kernel says of its connections.
    pub(super) fn connections(&self, host: &str) -> String {
        let filter = [
            "-tinoHO",
            "state",
            "established",
            "( sport = :8080 or dport = :8080 )",
        ];
        let output = self.within(host, "ss").args(filter).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    /// A count of the host's kernel about its one connection.
    pub(super) fn of_connection(&self, host: &str, name: &str) -> u64 {
        count_of(&self.connections(host), name)
    }

    /// Which of its connections the server cannot go on with: the gateway has acknowledged in the
    /// mobile host's name what did not arrive there, and shut the window.
    pub(super) fn stalled(&self) -> usize {
        let mobile = self.connections("m");
        let port = |end: &str| end.rsplit(':').next().unwrap().to_owned();
        let ends = |line: &str, at| port(line.split_whitespace().nth(at).unwrap());
        let server = self.connections("s");
        let is_stalled = |line: &&str| {
            let theirs = mobile.lines().find(|it| ends(it, 2) == ends(line, 3));
            // SYN and FIN count with the sender.
            let received = theirs.map_or(u64::MAX / 2, |it| count_of(it, "bytes_received"));
            line.contains("timer:(persist") && count_of(line, "bytes_acked") > received + 2
        };
        server.lines().filter(is_stalled).count()
    }

    pub(super) fn rules(&self) -> String {
        let output = self
            .within("r", "iptables")
            .args(["-t", "mangle", "-S"])
            .output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for child in [&mut self.server, &mut self.gateway].into_iter().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
        for host in ["m", "r", "s"] {
            let _ = Command::new("ip")
                .args(["netns", "del", &self.name(host)])
                .status();
        }
        let _ = std::fs::remove_dir_all(self.runtime());
    }
}

/// A count in what `ss` says of a connection.
pub(super) fn count_of(line: &str, name: &str) -> u64 {
    let mut words = line.split_whitespace();
    let found = words.find_map(|word| word.strip_prefix(name)?.strip_prefix(':'));
    found.map_or(0, |count| count.parse().unwrap())
}

pub(super) fn ip(arguments: &str) {
    let status = Command::new("ip")
        .args(arguments.split_whitespace())
        .status();
    assert!(status.unwrap().success(), "ip {arguments}");
}

pub(super) fn first_line(child: &mut Child) -> String {
    let mut line = String::new();
    let output = child.stdout.as_mut().unwrap();
    BufReader::with_capacity(1, output)
        .read_line(&mut line)
        .unwrap();
    line.trim().to_owned()
}

pub(super) fn assert_whole(child: Child, size: usize) {
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        text.lines().last(),
        Some(&*format!("{size} True")),
        "{text}"
    );
}
