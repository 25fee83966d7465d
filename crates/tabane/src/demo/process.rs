//! A program that the demonstration runs: relay, `tabane run`, curl.
//!
//! Each is told to end when its value is dropped, and ends with us even if we are killed. The
//! terminal's Ctrl-C does not reach them, so that we decide the order.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tabane_base::Duration;
use tabane_linux::child;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, ChildStdout};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use tabane_client::environment::proxy_variables;

/// What is kept of a program's complaints, from their beginning, in bytes.
const COMPLAINTS_MAX: usize = 16 * 1024;
/// How long a program is given to end when told to; all of ours need less than a second.
const STOP_WAIT: Duration = Duration::from_secs(3);

/// A running program.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    child: Child,
    complaints: JoinHandle<String>,
}

/// How a program ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    /// What it wrote to stderr.
    pub(crate) complaints: String,
}

impl Process {
    /// Starts it, with its output to be read from here.
    pub(crate) fn start(mut command: Command) -> Result<Self> {
        let name = command.get_program().display().to_string();
        // The user's own proxies would lead elsewhere.
        for (variable, _) in proxy_variables(0) {
            command.env_remove(variable);
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        child::prepare(&mut command, Signal::SIGTERM, None);
        let spawned = tokio::process::Command::from(command).spawn();
        let mut child = spawned.with_context(|| format!("cannot run {name}"))?;
        let stderr = child.stderr.take().expect("stderr is a pipe");
        Ok(Self {
            name,
            child,
            complaints: tokio::task::spawn_local(read_complaints(stderr)),
        })
    }

    /// What it writes to stdout; to be taken once.
    pub(crate) fn output(&mut self) -> ChildStdout {
        self.child.stdout.take().expect("stdout is a pipe")
    }

    /// Waits for its end.
    pub(crate) async fn end(&mut self) -> Result<Ended> {
        let status = self.child.wait().await;
        let status = status.with_context(|| format!("cannot wait for {}", self.name))?;
        let complaints = (&mut self.complaints).await.unwrap_or_default();
        Ok(Ended { status, complaints })
    }

    /// Tells it to end, and waits until it has.
    pub(crate) async fn stop(mut self) {
        self.tell(Signal::SIGTERM);
        if timeout(STOP_WAIT, self.child.wait()).await.is_err() {
            tracing::warn!("{} does not end and is killed", self.name);
            self.tell(Signal::SIGKILL);
        }
    }

    fn tell(&self, signal: Signal) {
        // No id: it has ended and was waited for.
        if let Some(pid) = self.child.id().and_then(|pid| i32::try_from(pid).ok()) {
            let _ = kill(Pid::from_raw(pid), signal);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.tell(Signal::SIGTERM);
    }
}

impl Ended {
    /// The last thing it said, without our own name before it, or its status.
    pub(crate) fn reason(&self) -> String {
        let last = self
            .complaints
            .lines()
            .rev()
            .find(|line| !line.trim().is_empty());
        last.map_or_else(
            || self.status.to_string(),
            |line| line.trim().trim_start_matches("tabane: ").to_owned(),
        )
    }
}

/// Reads to the end, so that the program never waits for us.
async fn read_complaints(mut stderr: impl AsyncRead + Unpin) -> String {
    let mut kept = Vec::new();
    let mut buffer = [0; 4_096];
    while let Ok(count @ 1..) = stderr.read(&mut buffer).await {
        let room = COMPLAINTS_MAX.saturating_sub(kept.len());
        kept.extend_from_slice(&buffer[..count.min(room)]);
    }
    String::from_utf8_lossy(&kept).into_owned()
}
