//! Where a gateway tells others of itself: an abstract socket, one per interface and network
//! namespace, which is gone with the process. Who connects is sent one report.

use std::io::{self, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener as StdListener, UnixStream};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::net::UnixListener;

use super::Report;

const PREFIX: &str = "tabane-gateway/";
/// A report comes at once, or its gateway is stuck.
const PATIENCE: Duration = Duration::from_secs(5);

fn address(radio: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("{PREFIX}{radio}"))
}

/// Listens for questions about the gateway on `radio`.
pub(super) fn open(radio: &str) -> Result<UnixListener> {
    let listener = StdListener::bind_addr(&address(radio)?).with_context(|| {
        format!("a gateway runs on {radio} already, or nobody may ask this one")
    })?;
    listener.set_nonblocking(true)?;
    Ok(UnixListener::from_std(listener)?)
}

/// Answers who has connected, if it is root or our own user.
pub(super) fn answer(stream: tokio::net::UnixStream, report: &Report) -> io::Result<()> {
    let user = stream.peer_cred()?.uid();
    if user != 0 && user != nix::unistd::geteuid().as_raw() {
        return Ok(());
    }
    let text = serde_json::to_vec(report)?;
    let mut stream = stream.into_std()?;
    // Written by a thread: a reader that stops reading must not hold up packets.
    std::thread::spawn(move || {
        let sent = stream
            .set_nonblocking(false)
            .and_then(|()| stream.set_write_timeout(Some(PATIENCE)))
            .and_then(|()| stream.write_all(&text));
        if let Err(error) = sent {
            tracing::debug!(%error, "a report was not read");
        }
    });
    Ok(())
}

/// Asks the gateway on `radio`.
pub(crate) fn ask(radio: &str) -> Result<Report> {
    let mut stream = UnixStream::connect_addr(&address(radio)?)
        .with_context(|| format!("no gateway runs on {radio}"))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut text = Vec::new();
    stream.read_to_end(&mut text)?;
    serde_json::from_slice(&text).context("the gateway's answer is none; run this as its user")
}

/// The interfaces that gateways of this network namespace run on.
pub(crate) fn running() -> Vec<String> {
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let mut found: Vec<String> = sockets
        .lines()
        .filter_map(|line| line.split_once(&format!("@{PREFIX}")))
        .map(|(_, radio)| radio.trim().to_owned())
        .collect();
    found.sort();
    found.dedup();
    found
}
