//! Where the demonstration takes place: hosts and links of its own making.
//!
//! Owns the choice of world (namespaces where the machine allows, else loopback) and what the two
//! have in common: links that count what they carry, and ways to download over them.

pub(crate) mod curl;
mod loopback;
mod namespaces;
mod relay;

use std::process::Command;

use anyhow::{Context, Result, bail};
use tabane_lab::Control;
use tabane_netem::{LinkSpec, Scenario};

use crate::failure::Failure;
use loopback::{LoopbackWorld, ProxySession};
use namespaces::Namespaces;

/// Which links a download may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkChoice {
    /// One, counted from 0.
    Alone(usize),
    /// All of them.
    Together,
}

/// Everything a demonstration sets up.
pub(crate) struct World {
    kind: Kind,
    /// Why it is not the better kind of world.
    reservation: Option<String>,
}

enum Kind {
    Namespaces(Box<Namespaces>),
    Loopback(Box<LoopbackWorld>),
}

/// A download that is ready to begin.
pub(crate) struct Fetch {
    command: Command,
    session: Option<ProxySession>,
}

impl World {
    /// The best that this machine allows.
    pub(crate) async fn build(scenario: &Scenario) -> Result<Self> {
        check(scenario)?;
        if !nix::unistd::geteuid().is_root() {
            let reason = "not root (`sudo tabane demo` needs no proxy and plays links that carry \
                          any packet)";
            return Self::on_loopback(scenario, reason.to_owned()).await;
        }
        match namespaces::build(scenario) {
            Ok(lab) => {
                let world = Namespaces::furnish(lab).await?;
                Ok(Self {
                    reservation: world.reservation(),
                    kind: Kind::Namespaces(Box::new(world)),
                })
            }
            Err(error) => Self::on_loopback(scenario, format!("no namespaces: {error}")).await,
        }
    }

    async fn on_loopback(scenario: &Scenario, reason: String) -> Result<Self> {
        let world = LoopbackWorld::build(scenario).await?;
        Ok(Self {
            kind: Kind::Loopback(Box::new(world)),
            reservation: Some(format!("on loopback, because {reason}")),
        })
    }

    /// Why it is not the better kind of world, in one line.
    pub(crate) fn reservation(&self) -> Option<&str> {
        self.reservation.as_deref()
    }

    /// How the links are emulated, for people.
    pub(crate) fn description(&self) -> &'static str {
        match self.kind {
            Kind::Namespaces(_) => "emulated between two network namespaces",
            Kind::Loopback(_) => "emulated by UDP relays on loopback",
        }
    }

    /// The same for machines.
    pub(crate) fn name(&self) -> &'static str {
        match self.kind {
            Kind::Namespaces(_) => "namespaces",
            Kind::Loopback(_) => "loopback",
        }
    }

    /// What a download over one link goes through.
    pub(crate) fn single_transport(&self) -> &'static str {
        match self.kind {
            Kind::Namespaces(_) => "plain TCP",
            Kind::Loopback(_) => "tabane with that link only",
        }
    }

    /// The handle on the links.
    pub(crate) fn control(&self) -> &Control {
        match &self.kind {
            Kind::Namespaces(world) => world.control(),
            Kind::Loopback(world) => world.control(),
        }
    }

    /// Gets a download ready that lasts `seconds`.
    pub(crate) async fn fetch(&self, way: LinkChoice, seconds: u32) -> Result<Fetch> {
        match &self.kind {
            Kind::Namespaces(world) => world.fetch(way, seconds),
            Kind::Loopback(world) => world.fetch(way, seconds).await,
        }
    }

    /// Ends all processes in it. What else there is goes with the value.
    pub(crate) async fn down(self) {
        match self.kind {
            Kind::Namespaces(world) => world.down().await,
            Kind::Loopback(world) => world.down().await,
        }
    }
}

impl Fetch {
    fn new(command: Command) -> Self {
        Self {
            command,
            session: None,
        }
    }

    fn through(command: Command, session: ProxySession) -> Self {
        Self {
            command,
            session: Some(session),
        }
    }

    /// The command to run, and what to close after it.
    pub(crate) fn into_parts(self) -> (Command, Session) {
        (self.command, Session(self.session))
    }
}

/// What a download needed beside its command.
pub(crate) struct Session(Option<ProxySession>);

impl Session {
    /// Says good-bye, if there is anybody to say it to.
    pub(crate) async fn close(self) {
        if let Some(session) = self.0 {
            session.close().await;
        }
    }
}

fn check(scenario: &Scenario) -> Result<()> {
    if scenario.links.iter().any(LinkSpec::is_wire) {
        return Err(Failure::usage(format!(
            "scenario {}: a link without rate, delay or loss has nothing to show",
            scenario.name
        ))
        .into());
    }
    Ok(())
}

/// The path of this very program.
fn own_program() -> Result<String> {
    let path = std::env::current_exe().context("cannot tell where this program is")?;
    let Some(path) = path.to_str() else {
        bail!("the path of this program is not UTF-8: {}", path.display());
    };
    Ok(path.to_owned())
}
