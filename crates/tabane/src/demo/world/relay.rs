//! The relay of a demonstration: the shipped program, in a process of its own.

use std::net::SocketAddr;
use std::process::Command;

use anyhow::{Context, Result, bail};
use tabane_base::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::time::timeout;

use crate::demo::directory::Directory;
use crate::demo::process::Process;
use tabane_store::{JoinString, RelayEntry};

/// How long it may take to listen; it takes some 20 ms.
const START_WAIT: Duration = Duration::from_secs(10);

/// A relay that listens.
#[derive(Debug)]
pub(super) struct RelayProcess {
    process: Process,
    entry: RelayEntry,
}

impl RelayProcess {
    /// Starts it; `command` is this program, in the place where the relay is to be.
    pub(super) async fn start(
        mut command: Command,
        listen: SocketAddr,
        directory: &Directory,
    ) -> Result<Self> {
        command
            .args(["--log", "warn", "relay", "--allow-private"])
            .args(["--listen", &listen.to_string()])
            .arg("--state")
            .arg(directory.path().join("relay"));
        let mut process = Process::start(command)?;
        let mut lines = BufReader::new(process.output()).lines();
        let line = timeout(START_WAIT, lines.next_line()).await;
        let line = line.context("the relay does not start")?.ok().flatten();
        let Some(line) = line else {
            let ended = process.end().await?;
            bail!("the relay does not start: {}", ended.reason());
        };
        let join: JoinString = line.parse().context("the relay's join string")?;
        Ok(Self {
            process,
            entry: join.into(),
        })
    }

    /// What its join string says.
    pub(super) fn entry(&self) -> &RelayEntry {
        &self.entry
    }

    /// Ends it.
    pub(super) async fn stop(self) {
        self.process.stop().await;
    }
}
