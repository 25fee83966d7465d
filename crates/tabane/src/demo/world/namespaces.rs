//! The world with privilege: two hosts in network namespaces, the lab's emulator between them.
//!
//! ```text
//!  client namespace                                   server namespace
//!  curl, tabane run ── link1 ═ wifi ═ link1 ──┬── tabane relay
//!                   ── link2 ═ lte  ═ link2 ──┴── web server (our sockets)
//! ```

use std::net::{SocketAddr, TcpListener};
use std::process::Command;

use anyhow::{Context, Result, bail};
use tabane_lab::{Control, Lab, LabError, LabOptions, SERVICE};
use tabane_netem::Scenario;

use super::relay::RelayProcess;
use super::{Fetch, LinkChoice, curl};
use crate::demo::directory::Directory;
use crate::demo::process::Process;
use crate::demo::web_server::WebServer;
use tabane_store::{RelayName, Store};

const WEB_PORT: u16 = 80;
const RELAY_PORT: u16 = 4510;

/// How curl's traffic gets into the session.
#[derive(Debug)]
enum Entrance {
    Hooks,
    /// Where the kernel does not let us have hooks, with its reason.
    Proxy(String),
}

/// Everything there is in this world; gone when dropped.
#[derive(Debug)]
pub(crate) struct Namespaces {
    web: WebServer,
    relay: RelayProcess,
    entrance: Entrance,
    directory: Directory,
    lab: Lab,
}

impl Namespaces {
    /// Sets a relay and a web server up in `lab`.
    pub(super) async fn furnish(lab: Lab) -> Result<Self> {
        let directory = Directory::create()?;
        let listener = lab
            .server()
            .run(|| TcpListener::bind((SERVICE, WEB_PORT)))?;
        let web = WebServer::start(listener.context("cannot start the web server")?)?;
        let program = lab.server().command(super::own_program()?.as_str());
        let listen = SocketAddr::from((SERVICE, RELAY_PORT));
        let relay = RelayProcess::start(program, listen, &directory).await?;
        let store = Store::locate(Some(directory.path().to_owned()))?;
        let name = RelayName::from_host(&relay.entry().addresses[0].host);
        store.put_relay(&name, relay.entry(), false)?;
        let mut world = Self {
            web,
            relay,
            entrance: Entrance::Hooks,
            directory,
            lab,
        };
        world.choose_entrance().await?;
        Ok(world)
    }

    /// Hooks, or a proxy where hooks are not to be had.
    async fn choose_entrance(&mut self) -> Result<()> {
        let Err(reason) = self.try_entrance().await else {
            return Ok(());
        };
        self.entrance = Entrance::Proxy(format!("{reason:#}"));
        match self.try_entrance().await {
            Ok(()) => Ok(()),
            Err(_) => Err(reason.context("`tabane run` does not work here")),
        }
    }

    async fn try_entrance(&self) -> Result<()> {
        let mut command = self.bonded()?;
        command.arg("true");
        let ended = Process::start(command)?.end().await?;
        if !ended.status.success() {
            bail!("{}", ended.reason());
        }
        Ok(())
    }

    /// Why curl is given a proxy, if it is.
    pub(super) fn reservation(&self) -> Option<String> {
        match &self.entrance {
            Entrance::Hooks => None,
            Entrance::Proxy(reason) => {
                // Advice follows; it is taken already.
                let reason = reason.split(';').next().unwrap_or(reason);
                Some(format!("curl is given a proxy ({reason})"))
            }
        }
    }

    pub(super) fn control(&self) -> &Control {
        let control = self.lab.control();
        control.expect("a demonstration has no wires, so there is an emulator")
    }

    pub(super) fn fetch(&self, way: LinkChoice, seconds: u32) -> Result<Fetch> {
        let mut command = match way {
            LinkChoice::Alone(link) => {
                let mut command = self.lab.client().command("curl");
                curl::arguments(&mut command, seconds);
                command.args(["--interface", &self.lab.links()[link].interface]);
                command
            }
            LinkChoice::Together => {
                let mut command = self.bonded()?;
                command.arg("curl");
                curl::arguments(&mut command, seconds);
                command
            }
        };
        command.arg(self.web.url());
        Ok(Fetch::new(command))
    }

    /// `tabane run --` in the client's namespace.
    fn bonded(&self) -> Result<Command> {
        let mut command = self.lab.client().command(super::own_program()?.as_str());
        command.arg("--config").arg(self.directory.path());
        command.args(["--log", "error", "run"]);
        if matches!(self.entrance, Entrance::Proxy(_)) {
            command.arg("--proxy");
        }
        command.arg("--");
        Ok(command)
    }

    pub(super) async fn down(self) {
        // The lab ends what else runs in its namespaces when it is dropped.
        self.relay.stop().await;
    }
}

/// A lab for `scenario`.
pub(super) fn build(scenario: &Scenario) -> Result<Lab, LabError> {
    Lab::up(scenario, &LabOptions::default())
}
