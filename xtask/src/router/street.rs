//! Two links of namespaces' own between a client and a relay with a web server, on which the binary
//! runs as on a machine that has nothing else.
//!
//! ```text
//!   client  a0 10.77.1.1 ─── 10.77.1.2 b0  relay, web server 203.0.113.9
//!           a1 10.77.2.1 ─── 10.77.2.2 b1
//! ```
//!
//! Owns all it sets up, and takes it down.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::tool::said;

/// Where files are fetched from.
pub(super) const SERVER: &str = "203.0.113.9";
/// Of [`Street::fetches_at_once`].
pub(super) const CONNECTIONS: usize = 100;
/// Of a file, in bytes.
const FILE: usize = 1_000_000;
/// Of each end, in bytes.
const MEMORY_MAX: &str = "64000000";
/// Of each link and way: the links of `scenarios/twin.toml`, but for their delay.
const SHAPE: &str = "root tbf rate 50mbit burst 64kb limit 200kb";
/// Logs which addresses ask, and answers hundreds at once.
const WEB_SERVER: &str = "\
import http.server as h
h.ThreadingHTTPServer.request_queue_size = 500
server = h.ThreadingHTTPServer(('203.0.113.9', 8000), h.SimpleHTTPRequestHandler)
print('ready', flush=True)
server.serve_forever()";
/// Goes into a control group, where its file of processes is named: before there is a namespace,
/// from which groups are not seen.
const GROUPED: &str = "[ -z \"$0\" ] || echo $$ > \"$0\"; exec \"$@\"";
/// Mounts what a kernel does, and runs the binary in a directory with nothing else but this machine
/// below `host`, where it looks for nothing.
const ALONE: &str = "\
root=$1; shift
mount -t proc proc $root/proc
mount -t sysfs sysfs $root/sys
mount -t devtmpfs devtmpfs $root/dev
mount -o bind,ro / $root/host
exec chroot $root /tabane \"$@\"";

/// The two ends, and what runs there.
pub(super) struct Street {
    directory: PathBuf,
    /// Of the namespaces and groups.
    name: String,
    children: Vec<Child>,
    /// Its group and number.
    limited: Option<(&'static str, u32)>,
}

impl Street {
    pub(super) fn new(binary: &Path) -> Result<Self> {
        let name = format!("tbx{}", std::process::id());
        let directory = std::env::temp_dir().join(&name);
        let mut street = Self {
            directory,
            name,
            children: Vec::new(),
            limited: None,
        };
        for end in ["a", "b"] {
            for directory in ["dev", "host", "proc", "run", "sys"] {
                fs::create_dir_all(street.root(end).join(directory))?;
            }
            fs::copy(binary, street.root(end).join("tabane"))
                .with_context(|| format!("cannot copy {}", binary.display()))?;
            street.ip(&format!("netns add {}{end}", street.name))?;
            street.ip(&format!("-n {}{end} link set lo up", street.name))?;
        }
        street.link_up()?;
        street.start_web_server()?;
        Ok(street)
    }

    fn link_up(&self) -> Result<()> {
        let name = &self.name;
        for i in 0..2 {
            self.ip(&format!(
                "-n {name}a link add a{i} type veth peer name b{i} netns {name}b"
            ))?;
            for (end, host) in [("a", 1), ("b", 2)] {
                let net = i + 1;
                let at = format!("{name}{end}");
                self.ip(&format!(
                    "-n {at} addr add 10.77.{net}.{host}/24 dev {end}{i}"
                ))?;
                self.ip(&format!("-n {at} link set {end}{i} up"))?;
                let shape = format!("-n {at} qdisc add dev {end}{i} {SHAPE}");
                said(Command::new("tc").args(shape.split(' ')))?;
            }
            let (via, metric) = (i + 1, i + 1);
            self.ip(&format!(
                "-n {name}a route add default via 10.77.{via}.2 dev a{i} metric {metric}"
            ))?;
        }
        self.ip(&format!("-n {name}b addr add {SERVER}/32 dev lo"))
    }

    fn start_web_server(&mut self) -> Result<()> {
        let files = self.directory.join("files");
        fs::create_dir_all(&files)?;
        let bytes: Vec<u8> = (0..FILE).map(|i| (i % 251) as u8).collect();
        fs::write(files.join("file"), bytes)?;
        let log = fs::File::create(self.directory.join("asked"))?;
        let mut command = self.within("b", "python3");
        command.args(["-c", WEB_SERVER]).current_dir(files);
        let (_, ready) = self.start(command.stderr(log))?;
        ensure!(ready == "ready", "the web server says {ready:?}");
        Ok(())
    }

    /// Starts the relay; the line to join by.
    pub(super) fn start_relay(&mut self) -> Result<String> {
        let words = "relay --allow-private --public 203.0.113.9 --log error --state /relay";
        let words: Vec<&str> = words.split(' ').collect();
        let mut command = self.alone("b", None, &words)?;
        let (_, join) = self.start(&mut command)?;
        ensure!(join.starts_with("tabane://"), "the relay says {join:?}");
        Ok(join)
    }

    /// `tabane up` in a group of limited memory, once it carries.
    pub(super) fn start_up(&mut self, group: &'static str) -> Result<()> {
        let mut command = self.alone("a", Some(group), &["up", "--detach"])?;
        said(&mut command)?;
        let processes = fs::read_to_string(self.group(group)?.join("cgroup.procs"))?;
        let process = processes.lines().next().context("it has gone")?;
        self.limited = Some((group, process.parse()?));
        Ok(())
    }

    /// A command of the client's that must succeed.
    pub(super) fn client(&self, words: &[&str]) -> Result<()> {
        said(&mut self.alone("a", None, words)?).map(drop)
    }

    /// Fetches the file by these words of the binary's, whole; whoever asks the server for it has
    /// such an address.
    pub(super) fn fetches(&self, asker: &str, words: &[&str]) -> Result<()> {
        let url = url();
        let words = [words, &[&url, "-o", "/got"]].concat();
        self.asks(asker, self.alone("a", None, &words)?)
    }

    /// The same by a program that knows nothing of the binary, in its `tabane run`.
    pub(super) fn fetches_in_run(&self, asker: &str) -> Result<()> {
        let (curl, url) = (Linked::of("/usr/bin/curl")?, url());
        let mut words = vec!["run", "--", &*curl.loader, "--library-path"];
        words.extend([&*curl.libraries, &*curl.program]);
        words.extend(["-sS", "--fail", &*url, "-o", "/got"]);
        self.asks(asker, self.alone("a", None, &words)?)
    }

    /// The same by a program elsewhere on the client's machine.
    pub(super) fn fetches_by_curl(&self, asker: &str) -> Result<()> {
        let mut curl = self.within("a", "curl");
        curl.args(["-sS", "--fail", &url(), "-o"]);
        curl.arg(self.root("a").join("got"));
        self.asks(asker, curl)
    }

    fn asks(&self, asker: &str, mut command: Command) -> Result<()> {
        let asked = self.directory.join("asked");
        fs::write(&asked, "")?;
        said(&mut command)?;
        let (got, sent) = (
            self.root("a").join("got"),
            self.directory.join("files/file"),
        );
        ensure!(fs::read(&got)? == fs::read(sent)?, "{command:?}: not whole");
        fs::remove_file(got)?;
        let asked = fs::read_to_string(asked)?;
        let askers: Vec<&str> = asked.lines().filter(|line| line.contains("GET")).collect();
        let fits = |line: &&str| line.trim_matches('\0').starts_with(asker);
        ensure!(
            !askers.is_empty() && askers.iter().all(fits),
            "{command:?}: {asker} should have asked, not {askers:?}"
        );
        Ok(())
    }

    /// Fetches the file over that many connections of an ordinary program at the same time.
    pub(super) fn fetches_at_once(&self) -> Result<()> {
        let mut curl = self.within("a", "curl");
        curl.args(["-sS", "--fail", "--parallel", "--parallel-immediate"]);
        // At the links' rate it takes 10 s.
        curl.args(["--max-time", "50"]);
        curl.args([
            "--parallel-max",
            &CONNECTIONS.to_string(),
            "-o",
            "/dev/null",
        ]);
        curl.arg(format!("{}?[1-{CONNECTIONS}]", url()));
        said(&mut curl).map(drop)
    }

    /// What the one with limited memory has had resident at most, in KiB.
    pub(super) fn resident(&self) -> Result<u64> {
        let (group, process) = self.limited.context("none has limited memory")?;
        let status = fs::read_to_string(format!("/proc/{process}/status"));
        let status = status.with_context(|| format!("{group} has gone"))?;
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let peak = peak.and_then(|peak| peak.split_whitespace().next());
        Ok(peak.context("no VmHWM")?.parse()?)
    }

    /// The binary at one end, in its empty directory.
    fn alone(&self, end: &str, group: Option<&str>, words: &[&str]) -> Result<Command> {
        let processes = match group {
            Some(group) => self.limit(group)?.join("cgroup.procs"),
            None => PathBuf::new(),
        };
        let inner = self.within(end, "unshare");
        let mut command = Command::new("sh");
        command.args(["-ec", GROUPED]).arg(processes);
        command.arg(inner.get_program()).args(inner.get_args());
        command.args(["--mount", "sh", "-ec", ALONE, "sh"]);
        command.arg(self.root(end)).args(words);
        settle(&mut command);
        Ok(command)
    }

    fn within(&self, end: &str, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &format!("{}{end}", self.name), program]);
        settle(&mut command);
        command
    }

    fn root(&self, end: &str) -> PathBuf {
        self.directory.join(end)
    }

    /// Starts what lives as long as the street; its number, and its first line.
    fn start(&mut self, command: &mut Command) -> Result<(u32, String)> {
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let (id, output) = (child.id(), child.stdout.take());
        self.children.push(child);
        let mut line = String::new();
        BufReader::new(output.context("its output is a pipe")?).read_line(&mut line)?;
        Ok((id, line.trim().to_owned()))
    }

    /// A group of this name, by either version's hierarchy.
    fn group(&self, group: &str) -> Result<PathBuf> {
        let hierarchies = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"];
        let found = hierarchies.into_iter().map(Path::new);
        let mut found = found.filter(|path| path.join("cgroup.procs").exists());
        let hierarchy = found.next().context("no control groups are mounted")?;
        Ok(hierarchy.join(format!("{}{group}", self.name)))
    }

    fn limit(&self, group: &str) -> Result<PathBuf> {
        let group = self.group(group)?;
        fs::create_dir_all(&group)?;
        let files = ["memory.max", "memory.limit_in_bytes"];
        let limit = files.map(|file| group.join(file));
        let limit = limit.iter().find(|file| file.exists());
        let limit = limit.context("memory cannot be limited here")?;
        fs::write(limit, MEMORY_MAX)?;
        Ok(group)
    }

    fn ip(&self, words: &str) -> Result<()> {
        said(Command::new("ip").args(words.split(' '))).map(drop)
    }
}

impl Drop for Street {
    fn drop(&mut self) {
        // Also what went to the background.
        let _ = self.client(&["down"]);
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        for end in ["a", "b"] {
            let _ = self.ip(&format!("netns del {}{end}", self.name));
        }
        if let Some((group, _)) = &self.limited {
            let _ = self.group(group).map(fs::remove_dir);
        }
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Keeps this machine's settings out of it.
fn settle(command: &mut Command) {
    let path = "/usr/sbin:/usr/bin:/sbin:/bin";
    command.env_clear().env("PATH", path);
    command.env("TABANE_CONFIG", "/config");
}

/// A program of this machine, as it is started from below `host`.
struct Linked {
    program: String,
    loader: String,
    /// Directories, separated by colons.
    libraries: String,
}

impl Linked {
    fn of(program: &str) -> Result<Self> {
        let told = said(Command::new("ldd").arg(program))?;
        let files = told.split_whitespace().filter(|word| word.starts_with('/'));
        // Whole, since links would lead out of `host`.
        let below = files.map(|file| Ok(format!("/host{}", fs::canonicalize(file)?.display())));
        let below = below.collect::<Result<Vec<String>>>()?;
        let loader = below.iter().find(|file| file.contains("/ld-"));
        let loader = loader.with_context(|| format!("{program} has no loader: {told}"))?;
        let mut libraries: Vec<&str> = below
            .iter()
            .filter_map(|file| Some(file.rsplit_once('/')?.0))
            .collect();
        libraries.sort_unstable();
        libraries.dedup();
        Ok(Self {
            program: format!("/host{program}"),
            loader: loader.clone(),
            libraries: libraries.join(":"),
        })
    }
}

fn url() -> String {
    format!("http://{SERVER}:8000/file")
}
