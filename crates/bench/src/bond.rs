//! The product at work: a relay at the server, joined by the client, all with their defaults.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::process::{Cpu, Running};
use super::scratch::Scratch;
use super::stage::Stage;

/// A relay answers within a second on an idle machine.
const START_WITHIN: Duration = Duration::from_secs(10);

/// How every join string begins.
const JOIN_STRING: &str = "tabane://";

/// A relay, and a client's settings that know it.
#[derive(Debug)]
pub(super) struct Bond {
    binary: PathBuf,
    /// The controller of both ends, if not the default.
    congestion: Option<String>,
    relay: Running,
    // Dropped after the relay, which writes into it.
    scratch: Scratch,
}

impl Bond {
    /// Starts the relay and joins it.
    pub(super) fn up(stage: &Stage, binary: &Path, congestion: Option<&str>) -> Result<Self> {
        Self::up_with(stage, binary, congestion, &[])
    }

    /// The same as a user with these grants, if there are any.
    pub(super) fn up_with(
        stage: &Stage,
        binary: &Path,
        congestion: Option<&str>,
        grants: &[&str],
    ) -> Result<Self> {
        let scratch = Scratch::new()?;
        let (relay, mut join_string) = start_relay(stage, binary, congestion, scratch.path())?;
        let bond = Self {
            binary: binary.to_path_buf(),
            congestion: congestion.map(str::to_owned),
            relay,
            scratch,
        };
        if !grants.is_empty() {
            bond.manage(stage, &[&["user", "add", "bench"], grants].concat())?;
            join_string = bond.manage(stage, &["token", "new", "--user", "bench"])?;
        }
        join(&mut bond.command(stage), &join_string)?;
        Ok(bond)
    }

    /// What `tabane relay` says to these arguments, where the relay is.
    pub(super) fn manage(&self, stage: &Stage, arguments: &[&str]) -> Result<String> {
        let mut command = stage.at_server(&self.binary.to_string_lossy());
        private(&mut command, self.scratch.path());
        command.arg("relay").args(arguments).arg("--state");
        command.arg(self.scratch.path().join("relay"));
        let done = Running::start("tabane relay", &mut command)?.finish(START_WITHIN)?;
        Ok(done.succeeded()?.stdout)
    }

    /// Where the relay listens.
    pub(super) const PORT: u16 = 4_510;

    /// Kills the relay, and starts another with its state at its place.
    pub(super) fn restart_relay(&mut self, stage: &Stage) -> Result<()> {
        self.relay.end_at_once()?;
        let congestion = self.congestion.as_deref();
        let path = self.scratch.path();
        (self.relay, _) = start_relay(stage, &self.binary, congestion, path)?;
        Ok(())
    }

    pub(super) fn relay(&self) -> &Running {
        &self.relay
    }

    /// A command that will run `program` with its traffic over `link` alone, or over all links.
    pub(super) fn run(&self, stage: &Stage, link: Option<&str>, program: &str) -> Command {
        let mut command = self.command(stage);
        command.arg("run").arg("--json").arg(self.report_path());
        if let Some(link) = link {
            command.args(["--link", link]);
        }
        if let Some(name) = &self.congestion {
            command.args(["--congestion", name]);
        }
        command.args(["--", program]);
        command
    }

    /// A command of the client's; its arguments are to follow.
    pub(super) fn command(&self, stage: &Stage) -> Command {
        let mut command = stage.at_client(&self.binary.to_string_lossy());
        private(&mut command, self.scratch.path());
        command
    }

    /// The same whose log comes on stdout.
    pub(super) fn up_command(&self, stage: &Stage) -> Command {
        let mut command = stage.at_client("sh");
        private(&mut command, self.scratch.path());
        command
            .args(["-c", "exec \"$0\" \"$@\" 2>&1"])
            .arg(&self.binary);
        command
    }

    /// What the last run has told of its links, if it came so far.
    pub(super) fn take_report(&self) -> Option<serde_json::Value> {
        let text = std::fs::read_to_string(self.report_path()).ok()?;
        // Not to be taken for the next run's.
        std::fs::remove_file(self.report_path()).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// The client knows none of its networks any more.
    pub(super) fn forget_networks(&self) -> Result<()> {
        let kept = self.scratch.path().join(".config/tabane/networks.toml");
        match std::fs::remove_file(&kept) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).with_context(|| kept.display().to_string())
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Processor time of the relay so far.
    pub(super) fn relay_cpu(&self) -> Cpu {
        self.relay.cpu()
    }

    fn report_path(&self) -> PathBuf {
        self.scratch.path().join("run.json")
    }
}

/// Joins the relay by this line; `command` is a client's, its arguments are to follow.
pub(super) fn join(command: &mut Command, line: &str) -> Result<()> {
    command.args(["join", line.trim()]);
    let joined = Running::start("tabane join", command)?.finish(START_WITHIN)?;
    joined.succeeded().context("tabane join")?;
    Ok(())
}

/// A relay at the server, and the line that joins it.
fn start_relay(
    stage: &Stage,
    binary: &Path,
    congestion: Option<&str>,
    scratch: &Path,
) -> Result<(Running, String)> {
    let mut command = stage.at_server(&binary.to_string_lossy());
    private(&mut command, scratch);
    command.args(["relay", "--allow-private", "--public"]);
    command.arg(stage.service().to_string());
    command.arg("--state").arg(scratch.join("relay"));
    if let Some(name) = congestion {
        command.args(["--congestion", name]);
    }
    let mut relay = Running::start("tabane relay", &mut command)?;
    let join_string = relay.wait_for_line(JOIN_STRING, START_WITHIN)?;
    Ok((relay, join_string))
}

/// Keeps the user's own relays and settings out of it.
pub(super) fn private(command: &mut Command, home: &Path) {
    command.env("HOME", home).current_dir(home);
    command.env("TABANE_RUNTIME", home.join("runtime"));
    for variable in [
        "TABANE_CONFIG",
        "XDG_CONFIG_HOME",
        "XDG_STATE_HOME",
        "RUST_LOG",
    ] {
        command.env_remove(variable);
    }
}
