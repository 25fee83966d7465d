//! The topology of these tests, in namespaces of their own, with nginx on the internet:
//!
//! ```text
//!  client  c1 10.72.1.1 ───────────────── s1 10.72.1.2 ┐
//!          c2 10.72.2.1 ───────────────── s2 10.72.2.2 ┤ nginx 11.0.0.1, ports 80 and 443
//!          c9 10.72.9.1 ── n9 friend n3 ─ s3 10.72.3.2 ┘
//! ```
//!
//! nginx has a certificate of its own for its address and two names ([`NAMES`]); a third leads to
//! it as well. Links have the rates that the client's policy gives them: 24 and 12 Mbit/s.

use std::fs;
use std::io::{BufRead, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

pub(crate) const TABANE: &str = env!("CARGO_BIN_EXE_tabane");
/// The web server's address: one that could be anybody's.
pub(crate) const SERVER: &str = "11.0.0.1";
/// What its certificate is for.
pub(crate) const NAMES: [&str; 2] = ["files.example.org", "other.example.net"];
/// A name of the server's that its certificate is not for.
pub(crate) const WRONG: &str = "wrong.example.org";
pub(crate) const SIZE: usize = 6_000_000;

pub(crate) struct Street {
    id: String,
    pub(crate) directory: PathBuf,
    nginx: Child,
}

impl Street {
    /// `None`, with a line that says so, without root or nginx.
    pub(crate) fn new() -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            println!("skipped: namespaces need root");
            return None;
        }
        for tool in ["nginx", "openssl", "curl", "nft"] {
            if Command::new(tool).arg("--version").output().is_err() {
                println!("skipped: there is no {tool} here; `make test` installs it");
                return None;
            }
        }
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let id = format!("tw{}-{number}", std::process::id());
        let directory = std::env::temp_dir().join(format!("tabane-{id}"));
        fs::create_dir(&directory).unwrap();
        build(&id);
        // Where `ip netns exec` looks for them.
        let hosts = format!(
            "127.0.0.1 localhost\n{SERVER} {} {} {WRONG}\n",
            NAMES[0], NAMES[1]
        );
        fs::create_dir_all(hosts_of(&id)).unwrap();
        fs::write(hosts_of(&id).join("hosts"), hosts).unwrap();
        publish(&directory);
        let mut nginx = within(&id, "s", "nginx");
        nginx.arg("-p").arg(&directory);
        nginx.arg("-c").arg(directory.join("nginx.conf"));
        nginx.stderr(Stdio::null());
        let street = Self {
            nginx: nginx.spawn().unwrap(),
            id,
            directory,
        };
        street.await_nginx();
        for (link, rate) in [("c1", "24mbit"), ("c2", "12mbit")] {
            let set = street
                .tabane(&["policy", "set", link, "--down", rate])
                .output();
            assert!(set.as_ref().unwrap().status.success(), "{set:?}");
        }
        Some(street)
    }

    fn await_nginx(&self) {
        let url = format!("http://{SERVER}/small");
        let ready = || {
            let mut curl = self.client("curl");
            curl.args(["-s", "-o", "/dev/null", &url]);
            curl.status().unwrap().success()
        };
        while !ready() {
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// A command at the client's.
    pub(crate) fn client(&self, program: &str) -> Command {
        let mut command = within(&self.id, "c", program);
        self.settle(&mut command, "client");
        command
    }

    /// `tabane` at the client's.
    pub(crate) fn tabane(&self, arguments: &[&str]) -> Command {
        let mut command = self.client(TABANE);
        command.args(arguments);
        command
    }

    /// `tabane` where the web server is.
    pub(crate) fn server(&self, arguments: &[&str]) -> Command {
        let mut command = within(&self.id, "s", TABANE);
        self.settle(&mut command, "server");
        command.args(arguments);
        command
    }

    /// The friend's link lent to the client at 12 Mbit/s, for as long as this runs. The client
    /// finds the friend by itself.
    pub(crate) fn lend(&self) -> Running {
        self.lend_by(&["--link", "n3"])
    }

    /// As `lend`, by this way out of the friend's.
    pub(crate) fn lend_by(&self, flags: &[&str]) -> Running {
        let share = [&["share", "--name", "nextdoor"], flags].concat();
        let mut lending = Running::start(self.friend(&share));
        assert!(lending.line().contains("on port 4511"));
        let mut offering = Running::start(self.friend(&["share", "pair", "--rate", "12mbit"]));
        let line = offering.line();
        let code = line.strip_prefix("code: ").unwrap();
        let paired = self
            .tabane(&["share", "pair", code, "--name", "client"])
            .output();
        assert!(paired.as_ref().unwrap().status.success(), "{paired:?}");
        assert!(offering.wait());
        lending
    }

    /// A relay where the web server is, which the client has joined.
    pub(crate) fn join_relay(&self) -> Running {
        let state = self.directory.join("relay");
        let mut relay = vec!["relay", "--public", SERVER, "--allow-private", "--state"];
        relay.push(state.to_str().unwrap());
        let mut relay = Running::start(self.server(&relay));
        let joined = self.tabane(&["join", &relay.line()]).output();
        assert!(joined.as_ref().unwrap().status.success(), "{joined:?}");
        relay
    }

    /// The friend gets another address on the client's network.
    pub(crate) fn move_friend(&self, from: u8, to: u8) {
        // The other order would take both: one of the same network lasts as long as the first.
        self.ip("n", &format!("addr del 10.72.9.{from}/24 dev n9"));
        self.ip("n", &format!("addr add 10.72.9.{to}/24 dev n9"));
    }

    /// The friend's machine takes the server's place for whom it lends to, and changes a byte of
    /// what each connection brings; says so with a line each time.
    pub(crate) fn corrupt(&self) -> Running {
        // To an address of its own it would lead nobody.
        let mut divert = within(&self.id, "n", "nft");
        let divert = divert.arg(format!(
            "table ip corrupt {{ chain out {{ type nat hook output priority -100;
             ip daddr {SERVER} tcp dport 443 redirect; }}; }}"
        ));
        assert!(divert.status().unwrap().success());
        let mut relay = within(&self.id, "n", "python3");
        let corrupt = include_str!("corrupt.py");
        relay.args(["-u", "-c", corrupt, "127.0.0.1", "10.72.3.2"]);
        let mut relay = Running::start(relay);
        assert_eq!(relay.line(), "ready");
        relay
    }

    /// `tabane` at the friend's.
    pub(crate) fn friend(&self, arguments: &[&str]) -> Command {
        let mut command = within(&self.id, "n", TABANE);
        self.settle(&mut command, "friend");
        command.args(arguments);
        command
    }

    fn settle(&self, command: &mut Command, who: &str) {
        let home = self.directory.join(who);
        fs::create_dir_all(&home).unwrap();
        command.env("HOME", home).env_remove("RUST_LOG");
        command.env("SSL_CERT_FILE", self.directory.join("cert.pem"));
        command.env_remove("CURL_CA_BUNDLE");
        command.env("TABANE_RUNTIME", self.directory.join("runtime"));
    }

    /// curl at the client's, with words as in a shell; what it wrote and how it ended.
    pub(crate) fn curl(&self, words: &str) -> Output {
        let mut curl = self.client("curl");
        let output = curl
            .args(["-sS", "--max-time", "60"])
            .args(words.split(' '));
        output.output().unwrap()
    }

    /// nginx has a file of this many zeros.
    pub(crate) fn publish(&self, name: &str, len: u64) {
        let file = fs::File::create(self.directory.join("site").join(name)).unwrap();
        file.set_len(len).unwrap();
    }

    pub(crate) fn ip(&self, who: &str, words: &str) {
        ip(&format!("-n {}{who} {words}", self.id));
    }

    /// Comes back when so much more has come in over these links of the client's than `before`.
    pub(crate) fn await_bytes(&self, links: &[&str], before: u64, more: u64) {
        let deadline = Instant::now() + Duration::from_secs(60);
        let sum = || links.iter().map(|link| self.received(link)).sum::<u64>();
        while sum() < before + more {
            assert!(Instant::now() < deadline, "nothing comes");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// What has come in over a link of the client's.
    pub(crate) fn received(&self, link: &str) -> u64 {
        let path = format!("/sys/class/net/{link}/statistics/rx_bytes");
        // As `ip netns exec` mounts it.
        let output = self.client("cat").arg(path).output().unwrap();
        String::from_utf8(output.stdout)
            .unwrap()
            .trim()
            .parse()
            .unwrap()
    }
}

impl Drop for Street {
    fn drop(&mut self) {
        let _ = self.nginx.kill();
        let _ = self.nginx.wait();
        for who in ["c", "n", "s"] {
            let name = format!("{}{who}", self.id);
            let _ = Command::new("ip").args(["netns", "del", &name]).output();
        }
        let _ = fs::remove_dir_all(&self.directory);
        let _ = fs::remove_dir_all(hosts_of(&self.id));
        // Only when nobody else has hosts there.
        let _ = fs::remove_dir("/etc/netns");
    }
}

/// Something that goes on and prints lines; ended when dropped.
pub(crate) struct Running {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Running {
    /// Starts it.
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The next line.
    pub(crate) fn line(&mut self) -> String {
        self.lines.next().unwrap().unwrap()
    }

    /// The next line, which is JSON.
    pub(crate) fn record(&mut self) -> Value {
        serde_json::from_str(&self.line()).unwrap()
    }

    /// Its end, when it comes by itself.
    pub(crate) fn wait(&mut self) -> bool {
        self.child.wait().unwrap().success()
    }

    /// SIGKILL: no time to write anything down.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The client's names of hosts.
fn hosts_of(id: &str) -> PathBuf {
    Path::new("/etc/netns").join(format!("{id}c"))
}

fn build(id: &str) {
    for who in ["c", "n", "s"] {
        ip(&format!("netns add {id}{who}"));
        ip(&format!("-n {id}{who} link set lo up"));
    }
    ip(&format!("-n {id}s addr add {SERVER}/32 dev lo"));
    let ends = [("c", "c1", "s", "s1", 1), ("c", "c2", "s", "s2", 2)];
    let ends = ends
        .into_iter()
        .chain([("n", "n3", "s", "s3", 3), ("c", "c9", "n", "n9", 9)]);
    for (near, a, far, b, net) in ends {
        ip(&format!(
            "-n {id}{near} link add {a} type veth peer name {b} netns {id}{far}"
        ));
        for (who, end, host) in [(near, a, 1), (far, b, 2)] {
            ip(&format!(
                "-n {id}{who} addr add 10.72.{net}.{host}/24 dev {end}"
            ));
            ip(&format!("-n {id}{who} link set {end} up"));
        }
        if net < 9 {
            let route = format!("default via 10.72.{net}.2 dev {a} metric {net}");
            ip(&format!("-n {id}{near} route add {route}"));
        }
    }
}

fn publish(directory: &Path) {
    let site = directory.join("site");
    fs::create_dir(&site).unwrap();
    fs::write(site.join("big.bin"), content()).unwrap();
    fs::write(site.join("small"), "small\n").unwrap();
    let at = directory.display();
    let config = format!(
        "daemon off; master_process off; pid {at}/nginx.pid; error_log {at}/error.log;
         events {{ worker_connections 512; }}
         http {{
           access_log off; client_body_temp_path {at}/body; proxy_temp_path {at}/proxy;
           fastcgi_temp_path {at}/fastcgi; uwsgi_temp_path {at}/uwsgi; scgi_temp_path {at}/scgi;
           server {{
             listen {SERVER}:80;
             listen {SERVER}:443 ssl;
             listen 10.72.3.2:443 ssl;
             ssl_certificate {at}/cert.pem;
             ssl_certificate_key {at}/key.pem;
             root {at}/site;
             location /moved/ {{ return 302 https://{SERVER}:443/big.bin; }}
             location /away/ {{ return 301 http://{SERVER}/small; }}
           }}
         }}"
    );
    fs::write(directory.join("nginx.conf"), config).unwrap();
    let mut openssl = Command::new("openssl");
    openssl.current_dir(directory);
    openssl.args([
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
    ]);
    openssl.args([
        "-nodes", "-days", "2", "-keyout", "key.pem", "-out", "cert.pem",
    ]);
    let [one, other] = NAMES;
    let name = format!("subjectAltName=IP:{SERVER},DNS:{one},DNS:{other}");
    openssl.args(["-subj", "/CN=test", "-addext", &name]);
    openssl.args(["-addext", "basicConstraints=critical,CA:FALSE"]);
    let made = openssl.output().unwrap();
    assert!(made.status.success(), "{made:?}");
}

/// What `big.bin` holds.
pub(crate) fn content() -> Vec<u8> {
    let mut state = 1_u64;
    let mut next = || {
        // Knuth's, for bytes that no two places share.
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) as u8
    };
    (0..SIZE).map(|_| next()).collect()
}

fn within(id: &str, who: &str, program: &str) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &format!("{id}{who}"), program]);
    command
}

fn ip(words: &str) {
    let output = Command::new("ip").args(words.split_whitespace()).output();
    let output = output.unwrap();
    assert!(output.status.success(), "ip {words}: {output:?}");
}
