//! `cargo xtask bench relay`: one relay with a thousand sessions, on this machine.
//!
//! Owns what is asked of it: how fast sessions are set up, what an idle one costs in memory, and
//! what all together carry when all are busy, with the relay's processor time beside it. All are
//! on loopback and share the machine's processors; the clients are the tunnel's example `crowd`.

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::scratch::Scratch;

pub(super) const USAGE: &str = "cargo xtask bench relay [SESSIONS] [--profile dev|release]";

const SESSIONS: u32 = 1_000;
/// How long all are busy.
const BUSY_S: u64 = 10;
/// Path MTU discovery and the like are over by then.
const SETTLE: Duration = Duration::from_secs(5);
/// What the kernel keeps of each connection at the source, in bytes.
const SOURCE_BUFFER: usize = 16 * 1024;
/// The promise for an idle session (issue 4).
const PROMISED_KB: f64 = 32.0;

/// Measures and prints; `false` where a session costs more than was promised.
pub(super) fn run(root: &Path, arguments: &[&str]) -> Result<bool> {
    let (sessions, profile) = match arguments {
        [] => (SESSIONS, "release"),
        ["--profile", profile] => (SESSIONS, *profile),
        [sessions] => (sessions.parse().context(USAGE)?, "release"),
        [sessions, "--profile", profile] => (sessions.parse().context(USAGE)?, *profile),
        _ => anyhow::bail!("usage: {USAGE}"),
    };
    let (binary, crowd) = build(root, profile)?;
    let scratch = Scratch::new()?;
    let mut relay = Relay::start(&binary, &scratch)?;
    let source = source()?;

    let empty = relay.memory_kb()?;
    let mut crowd = Command::new(crowd);
    crowd.args([&relay.address, &relay.key, &relay.token]);
    crowd.args([source.to_string(), sessions.to_string(), BUSY_S.to_string()]);
    let mut crowd = crowd
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start the crowd")?;
    let outcome = measure(&mut crowd, &relay, sessions, empty);
    let _ = crowd.kill();
    crowd.wait()?;
    relay.stop();
    outcome
}

fn measure(crowd: &mut Child, relay: &Relay, sessions: u32, empty: f64) -> Result<bool> {
    let mut lines = Lines(std::io::BufReader::new(
        crowd.stdout.take().context("no stdout")?,
    ));
    let connected_s = lines.number("connected_s")?;
    let setup_cpu_s = relay.cpu_s()?;
    std::thread::sleep(SETTLE);
    let idle = relay.memory_kb()?;
    let before = relay.cpu_s()?;
    writeln!(crowd.stdin.as_mut().context("no stdin")?, "go")?;
    let bytes = lines.number("bytes")?;
    let seconds = lines.number("seconds")?;
    let cpu_s = relay.cpu_s()? - before;
    let busy = relay.memory_kb()?;

    let n = f64::from(sessions);
    let each = (idle - empty) / n;
    let mbps = bytes * 8.0 / seconds / 1e6;
    // The crowd's first second is not in its figures, but in the relay's time.
    let load = cpu_s / (seconds + 1.0);
    println!("sessions            {sessions}");
    println!(
        "set up              {:.0} a second ({:.0} of the relay's processor)",
        n / connected_s,
        n / setup_cpu_s.max(0.01)
    );
    println!("memory, idle        {each:.1} kB each (promised: {PROMISED_KB} kB)");
    println!("memory, busy        {:.1} kB each", (busy - empty) / n);
    println!("goodput, all busy   {mbps:.0} Mbit/s");
    println!(
        "the relay's thread  {:.0} % of a processor: {:.0} Mbit/s if it had one alone",
        load * 100.0,
        mbps / load.max(0.01)
    );
    Ok(each <= PROMISED_KB)
}

/// The relay and the crowd, as built for measuring.
fn build(root: &Path, profile: &str) -> Result<(PathBuf, PathBuf)> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    for what in [
        ["--package", "tabane", "--bin", "tabane"],
        ["--package", "tabane-tunnel", "--example", "crowd"],
    ] {
        let mut build = Command::new(&cargo);
        build.args(["build", "--profile", profile]).args(what);
        let built = build.current_dir(root).status()?;
        ensure!(built.success(), "the build failed");
    }
    let name = if profile == "dev" { "debug" } else { profile };
    let target = super::own_directory()?.with_file_name(name);
    Ok((target.join("tabane"), target.join("examples/crowd")))
}

/// A TCP server that sends to everybody as fast as it is taken.
fn source() -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            // A thousand threads that fill megabytes each would leave the relay no time.
            let _ = rustix::net::sockopt::set_socket_send_buffer_size(&stream, SOURCE_BUFFER);
            let small = std::thread::Builder::new().stack_size(64 * 1024);
            let feed = move || {
                let block = [5; 16 * 1024];
                while stream.write_all(&block).is_ok() {}
            };
            // Fails only beyond the machine's threads, and then figures would show it.
            drop(small.spawn(feed));
        }
    });
    Ok(address)
}

/// Lines of `NAME NUMBER`.
struct Lines<R>(R);

impl<R: std::io::BufRead> Lines<R> {
    fn number(&mut self, name: &str) -> Result<f64> {
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        let number = line.trim().strip_prefix(name).map(str::trim);
        let number = number.with_context(|| format!("expected {name}, found {line:?}"))?;
        Ok(number.parse()?)
    }
}

/// A relay on loopback.
struct Relay {
    child: Child,
    address: String,
    key: String,
    token: String,
}

impl Relay {
    fn start(binary: &Path, scratch: &Scratch) -> Result<Self> {
        let mut command = Command::new(binary);
        command.args(["relay", "--log", "error", "--listen", "127.0.0.1:0"]);
        command.arg("--allow-private").arg("--state");
        command.arg(scratch.path().join("relay"));
        let mut child = command
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", binary.display()))?;
        let mut line = String::new();
        let stdout = child.stdout.take().context("no stdout")?;
        std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line)?;
        let parse = || {
            let (address, rest) = line.trim().strip_prefix("tabane://")?.split_once("?key=")?;
            let (key, token) = rest.split_once("&token=")?;
            let (key, _sum) = key.split_once('&')?;
            Some([address, key, token].map(str::to_owned))
        };
        let [address, key, token] = parse().context("the relay printed no join string")?;
        Ok(Self {
            child,
            address,
            key,
            token,
        })
    }

    /// Memory that is its alone.
    fn memory_kb(&self) -> Result<f64> {
        let path = format!("/proc/{}/smaps_rollup", self.child.id());
        let text = std::fs::read_to_string(&path).context(path)?;
        let line = text.lines().find_map(|line| line.strip_prefix("Pss:"));
        let kib = line.and_then(|line| line.trim().strip_suffix("kB"));
        let kib: f64 = kib.context("no Pss")?.trim().parse()?;
        Ok(kib * 1.024)
    }

    /// Processor time so far, of all its threads, in seconds.
    fn cpu_s(&self) -> Result<f64> {
        /// `USER_HZ`, which is 100 for every program on every architecture of ours.
        const TICKS_PER_S: f64 = 100.0;
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let (_, after) = text.rsplit_once(')').context("no stat")?;
        let field = |n: usize| {
            after
                .split_whitespace()
                .nth(n)
                .and_then(|n| n.parse::<f64>().ok())
        };
        let ticks = field(11).zip(field(12)).context("no times")?;
        Ok((ticks.0 + ticks.1) / TICKS_PER_S)
    }

    fn stop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop();
    }
}
