//! `tabane sctp` over emulated links, against itself and against a receiver that is not ours.
//!
//! ```text
//!  sender  link1 10.77.1.2 ═══ 20 Mbit/s, 10 ms ═══ 10.77.1.1  receiver (also 10.78.0.1)
//!          link2 10.77.2.2 ═══ 10 Mbit/s, 20 ms ═══ 10.77.2.1
//! ```

#![allow(clippy::unwrap_used, missing_docs)]

#[path = "../bond/asking.rs"]
mod asking;
mod forward;
mod ipv6;
#[path = "../bond/leaving.rs"]
mod leaving;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use tabane_lab::{Lab, LabOptions};
use tabane_linux::netns::Netns;
use tabane_netem::Scenario;

const TABANE: &str = env!("CARGO_BIN_EXE_tabane");
const LINKS: &str = r#"
name = "sctp"
why = "two unequal links"
duration = "600s"

[[link]]
name = "fast"
rate = "20mbit"
delay = "5ms"
queue = "100kB"

[[link]]
name = "slow"
rate = "10mbit"
delay = "10ms"
queue = "100kB"
"#;
/// The receiver, by either of its links' addresses.
const BOTH: &str = "10.77.1.1,10.77.2.1";
/// The receiver, by one of them, which the other link leads to as well.
const SINGLE: &str = "10.77.1.1";
/// The receiver, by the address that both links lead to.
const ONE: &str = "10.78.0.1";

struct World {
    lab: Lab,
    directory: PathBuf,
}

impl World {
    /// `None`, with a line that says so, without the right to make namespaces.
    fn new() -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            println!("skipped: namespaces need root");
            return None;
        }
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tabane-sctp-{}-{number}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir(&directory).unwrap();
        let mut no_trace = |name: &str| Err(format!("no trace {name}"));
        let scenario = Scenario::parse(LINKS, None, &mut no_trace).unwrap();
        let lab = Lab::up(&scenario, &LabOptions::default()).unwrap();
        Some(Self { lab, directory })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// A file of bytes that do not repeat.
    fn file(&self, len: usize) -> PathBuf {
        let mut state = 7_u64;
        let next = |_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 56) as u8
        };
        let bytes: Vec<u8> = (0..len).map(next).collect();
        let path = self.path("file");
        fs::write(&path, bytes).unwrap();
        path
    }

    fn tabane(&self, host: &Netns, arguments: &[&str]) -> Command {
        let mut command = host.command(TABANE);
        command.arg("sctp").args(arguments);
        command.env("TABANE_CONFIG", self.path("config"));
        command.env("TABANE_RUNTIME", self.path("runtime"));
        command.env_remove("RUST_LOG");
        command.stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Starts `tabane sctp recv`, and waits until it listens.
    fn receive(&self, flags: &[&str]) -> Receiver {
        let mut command = self.tabane(self.lab.server(), &["recv", "--json"]);
        let mut child = command.args(flags).arg(self.path("got")).spawn().unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        assert!(line.contains("waiting"), "{line}");
        Receiver { child, said }
    }

    fn sender(&self, to: &str, flags: &[&str]) -> Child {
        let mut command = self.tabane(self.lab.client(), &["send", "--json", "--to", to]);
        command.args(flags).spawn().unwrap()
    }

    /// Sends `file`, and gives what both said.
    fn transfer(&self, to: &str, file: &Path, flags: &[&str]) -> (Value, Value) {
        let receiver = self.receive(&[]);
        let sender = self.sender(to, &[&[file.to_str().unwrap()], flags].concat());
        let sent = success(sender.wait_with_output().unwrap());
        let received = success(receiver.end());
        self.assert_same(file);
        (sent, received)
    }

    fn assert_same(&self, file: &Path) {
        let (sent, got) = (fs::read(file).unwrap(), fs::read(self.path("got")).unwrap());
        assert!(sent == got, "{} bytes sent, {} got", sent.len(), got.len());
    }

    /// Waits until so many bytes have arrived, though not yet under the file's name.
    fn await_bytes(&self, bytes: u64) {
        let part = self.path("got.part");
        await_that("bytes arrive", || {
            fs::metadata(&part).is_ok_and(|metadata| metadata.len() >= bytes)
        });
        assert!(!self.path("got").exists(), "not complete, but called so");
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

struct Receiver {
    child: Child,
    said: BufReader<std::process::ChildStderr>,
}

impl Receiver {
    fn end(mut self) -> Output {
        let mut stderr = Vec::new();
        self.said.read_to_end(&mut stderr).unwrap();
        let output = self.child.wait_with_output().unwrap();
        Output { stderr, ..output }
    }
}

fn success(output: Output) -> Value {
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// What a command that must fail says.
fn failure(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn await_that(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn carried(report: &Value, link: &str) -> u64 {
    let links = report["links"].as_array().unwrap();
    let found = links.iter().find(|entry| entry["link"] == link);
    found.map_or(0, |entry| entry["sent_bytes"].as_u64().unwrap())
}

/// Builds the receiver that is not ours; gives what starts it with flags, and waits until it
/// listens.
fn foreign_receiver(world: &World) -> impl Fn(&[&str]) -> Child {
    let program = world.path("receiver");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sctp/receiver.c");
    let compiled = Command::new("cc")
        .arg("-o")
        .args([&program, &source])
        .args(["-lusrsctp", "-lpthread"])
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{compiled:?}");
    move |limit: &[&str]| {
        let mut command = world.lab.server().command(program.to_str().unwrap());
        command.arg("5555").arg(world.path("got")).args(limit);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        said.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        child
    }
}

#[test]
fn all_links_carry_whichever_addresses_are_named() {
    let Some(world) = World::new() else { return };
    let file = world.file(4_000_000);
    // Of an address that does not answer, another one is tried after a moment.
    let strange = "10.78.0.1,10.99.0.9,10.78.0.1";
    for (to, least) in [(BOTH, 400_000), (ONE, 400_000), (strange, 50_000)] {
        let (sent, received) = world.transfer(to, &file, &[]);
        assert_eq!(sent["confirmed"], true);
        assert_eq!(sent["sha256"], received["sha256"]);
        assert_eq!(received["bytes"], 4_000_000);
        for link in ["link1", "link2"] {
            assert!(carried(&sent, link) > least, "{to}: {sent}");
        }
    }
    let (sent, _) = world.transfer(BOTH, &file, &["--link", "link2"]);
    assert!(carried(&sent, "link2") >= 4_000_000, "{sent}");
    for scheduler in ["cwnd", "round-robin", "primary"] {
        world.transfer(BOTH, &file, &["--scheduler", scheduler]);
    }
}

#[test]
fn a_cut_link_costs_a_moment_and_no_byte() {
    let Some(world) = World::new() else { return };
    let file = world.file(8_000_000);
    let receiver = world.receive(&[]);
    let sender = world.sender(BOTH, &[file.to_str().unwrap()]);
    world.await_bytes(1_000_000);
    world.lab.set_outage(0, true);
    success(sender.wait_with_output().unwrap());
    let received = success(receiver.end());
    world.assert_same(&file);
    // The figure is 2 s; machines that run tests may be busy.
    let silence = received["longest_silence_ms"].as_u64().unwrap();
    assert!(silence < 5_000, "{received}");
}

#[test]
fn a_link_that_comes_is_used() {
    let Some(world) = World::new() else { return };
    let file = world.file(8_000_000);
    world.lab.set_carrier(1, false).unwrap();
    let receiver = world.receive(&[]);
    let sender = world.sender(ONE, &[file.to_str().unwrap()]);
    world.await_bytes(500_000);
    world.lab.set_carrier(1, true).unwrap();
    let sent = success(sender.wait_with_output().unwrap());
    success(receiver.end());
    world.assert_same(&file);
    assert!(carried(&sent, "link2") > 100_000, "{sent}");
}

/// By policy, a budget's end, a pause, an address that goes, and a cable. `tabane links` says why,
/// and so does the transfer itself.
#[test]
fn a_transfer_leaves_a_link_within_200_ms() {
    let Some(world) = World::new() else { return };
    let file = world.path("file");
    let endless = fs::File::create(&file).unwrap();
    endless.set_len(100_000_000_000).unwrap();
    fs::create_dir(world.path("config")).unwrap();
    let mut receiver = world.receive(&[]);
    let mut sender = world.sender(BOTH, &[file.to_str().unwrap()]);
    let list = || {
        let mut links = world.lab.client().command(TABANE);
        links
            .arg("links")
            .env("TABANE_CONFIG", world.path("config"))
            .env("TABANE_RUNTIME", world.path("runtime"));
        links
    };
    let leaving = leaving::Leaving {
        pid: sender.id(),
        links: ["link2", "link1"],
        settings: world.path("config"),
        policy: String::new(),
        list: &list,
    };
    let runtime = world.path("runtime");
    let socket = runtime.join(format!("sctp-{}.sock", sender.id()));
    await_that("a control socket", || socket.exists());
    let told = |word: &str| {
        asking::await_told(&socket, "link2", word);
    };
    leaving.try_entries(&leaving::ENTRIES, told, || {});
    leaving.try_pause(&socket);
    let client = |words: &str| {
        let mut ip = world.lab.client().command("ip");
        let output = ip.args(words.split(' ')).output().unwrap();
        assert!(output.status.success(), "{words}: {output:?}");
    };
    let left = || {
        let at = leaving.await_left("no address", "no global address");
        told("no global address");
        at
    };
    let restore = || {
        client("addr add 10.77.2.2/24 dev link2");
        client("route add default via 10.77.2.1 dev link2 metric 102");
    };
    leaving.try_to(
        "no address",
        || client("addr flush dev link2"),
        left,
        restore,
    );
    // Nothing can be carried any more: what counts is that the other link goes on, and the word.
    let left = || leaving.await_left("down", "is down");
    let mend = || {
        client("link set link2 up");
        client("route add default via 10.77.2.1 dev link2 metric 102");
    };
    leaving.try_to("down", || client("link set link2 down"), left, mend);
    for child in [&mut sender, &mut receiver.child] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

/// The only address that the receiver knows is gone before another comes.
#[test]
fn all_links_are_replaced_at_once() {
    let Some(world) = World::new() else { return };
    let file = world.file(4_000_000);
    world.lab.set_carrier(1, false).unwrap();
    let receiver = world.receive(&[]);
    let sender = world.sender(ONE, &[file.to_str().unwrap()]);
    world.await_bytes(500_000);
    world.lab.set_carrier(0, false).unwrap();
    world.lab.set_carrier(1, true).unwrap();
    let sent = success(sender.wait_with_output().unwrap());
    success(receiver.end());
    world.assert_same(&file);
    assert!(carried(&sent, "link2") > 2_000_000, "{sent}");
}

#[test]
fn policies_are_respected() {
    let Some(world) = World::new() else { return };
    let file = world.file(2_000_000);
    let config = world.path("config");
    fs::create_dir(&config).unwrap();
    let policy = |text: &str| fs::write(config.join("policy.toml"), text).unwrap();
    policy("[[link]]\nname = \"link1\"\nuse = \"never\"\n");
    let (sent, _) = world.transfer(BOTH, &file, &[]);
    assert_eq!(carried(&sent, "link1"), 0, "{sent}");
    policy("[[link]]\nname = \"link2\"\nuse = \"backup\"\n");
    let (sent, _) = world.transfer(BOTH, &file, &[]);
    assert_eq!(carried(&sent, "link2"), 0, "{sent}");
    // With the first one silent from the beginning, it is taken.
    world.lab.set_outage(0, true);
    let (sent, _) = world.transfer(BOTH, &file, &[]);
    assert!(carried(&sent, "link2") >= 2_000_000, "{sent}");
    world.lab.set_outage(0, false);
    let capped = "[[link]]\nname = \"link1\"\nup = \"4mbit\"\n";
    policy(&format!(
        "{capped}[[link]]\nname = \"link2\"\nuse = \"never\"\n"
    ));
    let (_, received) = world.transfer(BOTH, &file, &[]);
    assert!(received["mbit_per_s"].as_f64().unwrap() < 4.0, "{received}");
    // Changed in mid-transfer.
    fs::remove_file(world.path("got")).unwrap();
    let slow = "[[link]]\nname = \"link1\"\nup = \"1mbit\"\n";
    policy(&format!(
        "{slow}[[link]]\nname = \"link2\"\nuse = \"never\"\n"
    ));
    let receiver = world.receive(&[]);
    let sender = world.sender(BOTH, &[file.to_str().unwrap()]);
    world.await_bytes(100_000);
    policy(slow);
    let sent = success(sender.wait_with_output().unwrap());
    success(receiver.end());
    assert!(carried(&sent, "link2") > 1_000_000, "{sent}");
    // Used up in mid-transfer, and remembered.
    policy("[[link]]\nname = \"link1\"\nbudget = \"500kB/month\"\n");
    let (sent, _) = world.transfer(BOTH, &file, &[]);
    let first = carried(&sent, "link1");
    assert!(first > 200_000 && first < 1_600_000, "{sent}");
    let usage = fs::read_to_string(config.join("usage.toml")).unwrap();
    assert!(usage.contains("link1"), "{usage}");
    let (sent, _) = world.transfer(BOTH, &file, &[]);
    assert_eq!(carried(&sent, "link1"), 0, "{sent}");
}

#[test]
fn what_network_manager_calls_metered_waits() {
    let Some(world) = World::new() else { return };
    let file = world.file(2_000_000);
    let receiver = world.receive(&[]);
    let flags = ["send", "--json", "--to", BOTH, file.to_str().unwrap()];
    let mut sender = world.tabane(world.lab.client(), &flags);
    let nmcli = world.path("nmcli");
    let says = "GENERAL.DEVICE:link2\\nGENERAL.METERED:yes\\n";
    fs::write(&nmcli, format!("#!/bin/sh\nprintf '{says}'\n")).unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&nmcli, executable).unwrap();
    let directory = nmcli.parent().unwrap().display();
    sender.env("PATH", format!("{directory}:{}", env!("PATH")));
    let sent = success(sender.output().unwrap());
    success(receiver.end());
    world.assert_same(&file);
    assert_eq!(carried(&sent, "link2"), 0, "{sent}");
}

#[test]
fn a_receiver_that_is_not_ours_gets_the_bytes_and_nothing_else() {
    let Some(world) = World::new() else { return };
    let file = world.file(4_000_000);
    let start = foreign_receiver(&world);
    let flags = [file.to_str().unwrap(), "--port", "5555"];
    // One that knows all its addresses, and one that has a single one.
    for (to, limit) in [(BOTH, &[][..]), (SINGLE, &["-1", SINGLE][..])] {
        let mut receiver = start(limit);
        let sender = world.sender(to, &flags);
        let sent = success(sender.wait_with_output().unwrap());
        assert!(receiver.wait().unwrap().success());
        world.assert_same(&file);
        assert_eq!(sent["confirmed"], false);
        for link in ["link1", "link2"] {
            assert!(carried(&sent, link) > 400_000, "{to}: {sent}");
        }
    }
    // One that aborts.
    let mut receiver = start(&["500000"]);
    let sender = world.sender(BOTH, &flags);
    let said = failure(&sender.wait_with_output().unwrap());
    assert!(said.contains("aborted"), "{said}");
    receiver.wait().unwrap();
}

#[test]
fn whoever_does_not_answer_is_told_of() {
    let Some(world) = World::new() else { return };
    let file = world.file(1_000);
    let send = |flags: &[&str]| {
        let flags = [&[file.to_str().unwrap(), "--timeout", "2"], flags].concat();
        let sender = world.sender(ONE, &flags);
        failure(&sender.wait_with_output().unwrap())
    };
    // Nobody there, as with a firewall on the way.
    let said = send(&[]);
    assert!(
        said.contains("no SCTP answer from 10.78.0.1:9899 over link1, link2"),
        "{said}"
    );
    // Somebody who speaks something else.
    let echo = world
        .lab
        .server()
        .run(|| std::net::UdpSocket::bind("10.78.0.1:9899").unwrap());
    let echo = echo.unwrap();
    echo.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
    let echoing = std::thread::spawn(move || {
        let mut buffer = [0; 2_048];
        // Until nobody asks any more; the one before may have left a packet on its way.
        while let Ok((_, from)) = echo.recv_from(&mut buffer) {
            echo.send_to(b"hello, who is there", from).unwrap();
        }
    });
    let said = send(&[]);
    echoing.join().unwrap();
    assert!(said.contains("datagrams came that are no SCTP"), "{said}");
    // SCTP, but nobody at that port.
    let mut receiver = world.receive(&[]);
    let said = send(&["--port", "4000"]);
    assert!(said.contains("refused the association"), "{said}");
    receiver.child.kill().unwrap();
    receiver.end();
    for to in ["0.0.0.0", "nowhere.invalid", "10.78.0.1:x", "[fd78::1]:x"] {
        let output = world
            .sender(to, &[file.to_str().unwrap()])
            .wait_with_output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
    }
}

/// Whoever is killed says nothing; the other end gives up after as long as it was told.
#[test]
fn a_dead_end_is_noticed_in_time() {
    let Some(world) = World::new() else { return };
    let file = world.file(40_000_000);
    let patience = ["--patience", "3s"];
    let sending = [&[file.to_str().unwrap()], &patience[..]].concat();
    // Far less than the stack's own counter of repetitions takes.
    let most = Duration::from_secs(15);
    for dies_first in ["receiver", "sender"] {
        let mut receiver = world.receive(&patience);
        let mut sender = world.sender(BOTH, &sending);
        world.await_bytes(100_000);
        let begun_at = Instant::now();
        let said = if dies_first == "receiver" {
            receiver.child.kill().unwrap();
            receiver.end();
            failure(&sender.wait_with_output().unwrap())
        } else {
            sender.kill().unwrap();
            sender.wait().unwrap();
            failure(&receiver.end())
        };
        assert!(begun_at.elapsed() < most, "{:?}", begun_at.elapsed());
        assert!(said.contains("nothing was heard of"), "{said}");
        assert!(said.contains("for 3 s"), "{said}");
        println!("dead {dies_first} noticed after {:?}", begun_at.elapsed());
    }
}

#[test]
fn a_tiny_window_takes_longer_and_loses_nothing() {
    let Some(world) = World::new() else { return };
    let file = world.file(300_000);
    let receiver = world.receive(&["--buffer", "6000"]);
    let sender = world.sender(BOTH, &[file.to_str().unwrap()]);
    success(sender.wait_with_output().unwrap());
    success(receiver.end());
    world.assert_same(&file);
}

#[test]
fn a_file_that_shrinks_while_it_is_sent_is_not_called_complete() {
    let Some(world) = World::new() else { return };
    let file = world.path("file");
    let sparse = fs::File::create(&file).unwrap();
    sparse.set_len(40_000_000).unwrap();
    let receiver = world.receive(&[]);
    let sender = world.sender(BOTH, &[file.to_str().unwrap()]);
    world.await_bytes(100_000);
    sparse.set_len(15_000_000).unwrap();
    let said = failure(&sender.wait_with_output().unwrap());
    assert!(said.contains("was changed while it was sent"), "{said}");
    let said = failure(&receiver.end());
    assert!(said.contains("the sender gave up"), "{said}");
    assert!(!world.path("got").exists() && world.path("got.part").exists());
}
