//! `cargo xtask bench relay`: one relay with a thousand sessions, on this machine.
//!
//! Owns what is asked of it: how fast sessions are set up, what an idle one costs in memory, and
//! what all together carry when all are busy, with the relay's processor time beside it. All are
//! on loopback and share the machine's processors; the clients are the tunnel's example `crowd`.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::scratch::Scratch;

pub(super) const USAGE: &str =
    "cargo xtask bench relay [SESSIONS] [--profile dev|release] [--binary FILE]";

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
    let (sessions, programs) = build(root, arguments, USAGE)?;
    let scratch = Scratch::new()?;
    let relay = Relay::start(&programs, &scratch)?;
    let source = source()?;

    let empty = relay.memory_kb()?;
    let crowd = Crowd {
        sessions,
        busy_s: BUSY_S,
        first: 0,
    };
    let mut crowd = crowd.start(&programs, &relay, source)?;
    let connected_s = crowd.number("connected_s")?;
    let setup_cpu_s = relay.cpu_s()?;
    std::thread::sleep(SETTLE);
    let idle = relay.memory_kb()?;
    let before = relay.cpu_s()?;
    crowd.go()?;
    let bytes = crowd.number("bytes")?;
    let seconds = crowd.number("seconds")?;
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

/// How many sessions are asked for, and what is run.
pub(super) fn build(
    root: &Path,
    arguments: &[&str],
    usage: &'static str,
) -> Result<(u32, Programs)> {
    let (mut sessions, mut profile, mut binary) = (SESSIONS, "release", None);
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().copied().context(usage);
        match *word {
            "--profile" => profile = value()?,
            "--binary" => binary = Some(value()?),
            number => sessions = number.parse().context(usage)?,
        }
    }
    Ok((sessions, Programs::build(root, profile, binary)?))
}

/// What is run, as built for measuring.
pub(super) struct Programs {
    tabane: PathBuf,
    examples: PathBuf,
}

impl Programs {
    /// `binary`: a tabane built elsewhere.
    pub(super) fn build(root: &Path, profile: &str, binary: Option<&str>) -> Result<Self> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let examples = &["--package", "tabane-tunnel", "--examples"][..];
        let product = &["--package", "tabane", "--bin", "tabane"][..];
        let product = binary.is_none().then_some(product);
        for what in product.into_iter().chain([examples]) {
            let mut build = Command::new(&cargo);
            build.args(["build", "--profile", profile]).args(what);
            let built = build.current_dir(root).status()?;
            ensure!(built.success(), "the build failed");
        }
        let name = if profile == "dev" { "debug" } else { profile };
        let target = super::own_directory()?.with_file_name(name);
        Ok(Self {
            tabane: binary.map_or_else(|| target.join("tabane"), PathBuf::from),
            examples: target.join("examples"),
        })
    }
}

/// Many clients.
pub(super) struct Crowd {
    pub(super) sessions: u32,
    /// How long it fetches, in seconds.
    pub(super) busy_s: u64,
    /// The number of its first key.
    pub(super) first: u8,
}

impl Crowd {
    pub(super) fn start(
        &self,
        programs: &Programs,
        relay: &Relay,
        source: SocketAddr,
    ) -> Result<Worker> {
        let mut command = Command::new(programs.examples.join("crowd"));
        command.args([&relay.address, &relay.key, &relay.token]);
        command.args([source.to_string(), self.sessions.to_string()]);
        command.args([self.busy_s.to_string(), self.first.to_string()]);
        Worker::start(&mut command)
    }
}

/// One of the tunnel's examples at work. Ended when dropped.
pub(super) struct Worker {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Worker {
    fn start(command: &mut Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {command:?}"))?;
        let lines = BufReader::new(child.stdout.take().context("no stdout")?);
        Ok(Self { child, lines })
    }

    /// Strangers who send so many of both kinds a second, for so many seconds.
    pub(super) fn flood(
        programs: &Programs,
        relay: &Relay,
        [initials, strays]: [u32; 2],
        seconds: u64,
    ) -> Result<Self> {
        let mut command = Command::new(programs.examples.join("flood"));
        command.args([&relay.address, &relay.key]);
        command.args([
            initials.to_string(),
            strays.to_string(),
            seconds.to_string(),
        ]);
        Self::start(&mut command)
    }

    /// Says that it may go on.
    pub(super) fn go(&mut self) -> Result<()> {
        Ok(writeln!(
            self.child.stdin.as_mut().context("no stdin")?,
            "go"
        )?)
    }

    /// Of the next line, which is `NAME NUMBER`.
    pub(super) fn number(&mut self, name: &str) -> Result<f64> {
        let mut line = String::new();
        self.lines.read_line(&mut line)?;
        let number = line.trim().strip_prefix(name).map(str::trim);
        let number = number.with_context(|| format!("expected {name}, found {line:?}"))?;
        Ok(number.parse()?)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A TCP server that sends to everybody as fast as it is taken.
pub(super) fn source() -> Result<SocketAddr> {
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

/// Processor time of a process or thread so far, in seconds (proc(5)).
fn cpu_s(stat: &str) -> Result<f64> {
    /// `USER_HZ`, which is 100 for every program on every architecture of ours.
    const TICKS_PER_S: f64 = 100.0;
    let text = std::fs::read_to_string(stat)?;
    let (_, after) = text.rsplit_once(')').context("no stat")?;
    let field = |n: usize| {
        let mut words = after.split_whitespace();
        words.nth(n).and_then(|n| n.parse::<f64>().ok())
    };
    let ticks = field(11).zip(field(12)).context("no times")?;
    Ok((ticks.0 + ticks.1) / TICKS_PER_S)
}

/// A relay on loopback.
pub(super) struct Relay {
    child: Child,
    address: String,
    key: String,
    token: String,
}

impl Relay {
    pub(super) fn start(programs: &Programs, scratch: &Scratch) -> Result<Self> {
        Self::start_with(programs, scratch, &[])
    }

    pub(super) fn start_with(
        programs: &Programs,
        scratch: &Scratch,
        flags: &[&str],
    ) -> Result<Self> {
        let tabane = |arguments: &[&str]| {
            let mut command = Command::new(&programs.tabane);
            command.env("HOME", scratch.path());
            command.env("TABANE_RUNTIME", scratch.path().join("runtime"));
            command.args(arguments).args(["--log", "error", "--state"]);
            command.arg(scratch.path().join("relay"));
            command
        };
        let mut command = tabane(&["relay", "--listen", "127.0.0.1:0", "--allow-private"]);
        let mut child = command
            .args(flags)
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", programs.tabane.display()))?;
        let mut line = String::new();
        let stdout = child.stdout.take().context("no stdout")?;
        BufReader::new(stdout).read_line(&mut line)?;
        let parse = |line: &str| {
            let (address, rest) = line.trim().strip_prefix("tabane://")?.split_once("?key=")?;
            let (key, token) = rest.split_once("&token=")?;
            let (key, _sum) = key.split_once('&')?;
            Some([address, key, token].map(str::to_owned))
        };
        let no_line = "the relay printed no join string";
        let [address, key, _] = parse(&line).context(no_line)?;
        let many = tabane(&["relay", "token", "new", "--uses", "many"]).output()?;
        let many = String::from_utf8_lossy(&many.stdout).into_owned();
        let [.., token] = parse(&many).context(no_line)?;
        Ok(Self {
            child,
            address,
            key,
            token,
        })
    }

    /// Memory that is its alone.
    pub(super) fn memory_kb(&self) -> Result<f64> {
        let path = format!("/proc/{}/smaps_rollup", self.child.id());
        let text = std::fs::read_to_string(&path).context(path)?;
        let line = text.lines().find_map(|line| line.strip_prefix("Pss:"));
        let kib = line.and_then(|line| line.trim().strip_suffix("kB"));
        let kib: f64 = kib.context("no Pss")?.trim().parse()?;
        Ok(kib * 1.024)
    }

    /// Processor time so far, of all its threads, in seconds.
    pub(super) fn cpu_s(&self) -> Result<f64> {
        cpu_s(&format!("/proc/{}/stat", self.child.id()))
    }

    /// Of each of its workers, to the nanosecond: the first one is the process's first thread.
    pub(super) fn cpu_s_by_worker(&self) -> Result<Vec<f64>> {
        let mut workers = Vec::new();
        for task in std::fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let task = task?;
            let is_first = task.file_name().to_string_lossy() == self.child.id().to_string();
            let name = std::fs::read_to_string(task.path().join("comm"));
            if is_first || name.is_ok_and(|name| name.starts_with("worker ")) {
                let times = std::fs::read_to_string(task.path().join("schedstat"))?;
                let ran = times.split_whitespace().next().context("no times")?;
                workers.push(ran.parse::<f64>()? / 1e9);
            }
        }
        Ok(workers)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
