//! A neighbour's host beside the lab: one of the client's links, moved there and lent to it.
//!
//! ```text
//!  client ── lan of 1 Gbit/s and more ── neighbour ── the link ── server
//! ```

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use tabane_linux::netns::Netns;

use crate::process::{Running, ip};
use crate::stage::Stage;

const WITHIN: Duration = Duration::from_secs(10);

/// Lends as long as it lives.
pub(super) struct Neighbour {
    /// Ended when dropped, before its host is.
    _lending: Running,
    host: Host,
}

impl Neighbour {
    /// Moves a link of the client's to a host of its own, and makes the two friends. Both keep
    /// their settings in folders of `scratch`.
    pub(super) fn lend(
        stage: &mut Stage,
        link: usize,
        scratch: &Path,
        binary: &str,
    ) -> Result<Self> {
        let netns = Netns::create(&format!("tabane-web-{}-{link}", std::process::id()))?;
        let own = Host(netns.clone());
        let name = format!("friend{link}");
        let host = |arguments: &[&str]| {
            let mut command = netns.command(binary);
            command.args(arguments);
            settle(&mut command, scratch, &name);
            command
        };
        let interface = stage.links()[link].interface.clone();
        stage.move_link(link, &netns)?;
        let (client, there) = (stage.client().name(), netns.name());
        ip(&format!(
            "-n {client} link add lan{link} type veth peer name lan netns {there}"
        ))?;
        for (netns, port, last) in [(client, format!("lan{link}"), 1), (there, "lan".into(), 2)] {
            ip(&format!(
                "-n {netns} addr add 10.79.{link}.{last}/24 dev {port}"
            ))?;
            ip(&format!("-n {netns} link set {port} up"))?;
        }
        let arguments = ["share", "--link", &interface, "--name", &name];
        let mut lending = Running::start("tabane share", &mut host(&arguments))?;
        lending.wait_for_line("lending", WITHIN)?;
        let mut offering = Running::start("tabane share pair", &mut host(&["share", "pair"]))?;
        let line = offering.wait_for_line("code: ", WITHIN)?;
        let code = line.trim_start_matches("code: ");
        let mut pairing = stage.at_client(binary);
        settle(&mut pairing, scratch, "client");
        pairing.args(["share", "pair", code, &format!("10.79.{link}.2")]);
        let pairing = Running::start("tabane share pair", &mut pairing)?;
        pairing.finish(WITHIN)?.succeeded().context("no pairing")?;
        offering.finish(WITHIN)?.succeeded()?;
        Ok(Self {
            _lending: lending,
            host: own,
        })
    }

    /// A command at the neighbour's, where the link is.
    pub(super) fn command(&self, program: &str) -> Command {
        self.host.0.command(program)
    }
}

/// The neighbour's host, removed when dropped.
struct Host(Netns);

impl Drop for Host {
    fn drop(&mut self) {
        // A name that stays behind is ugly, and harms nobody.
        let _ = Netns::remove(self.0.name());
    }
}

/// Has `command` keep its settings in a folder called `name`.
pub(super) fn settle(command: &mut Command, scratch: &Path, name: &str) {
    command.env("TABANE_CONFIG", scratch.join(name));
    command.env("TABANE_RUNTIME", scratch.join(format!("{name}-runtime")));
}
