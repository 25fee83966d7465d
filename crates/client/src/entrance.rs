//! How a command's traffic gets into the session: by hooks below it, by a network of its own, or by
//! a proxy it is told of.
//!
//! Owns that order: hooks need root, a network of its own what many systems give to ordinary users,
//! and the proxy nothing but programs that ask for it.

mod ssh_settings;

use std::ffi::OsString;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;

use anyhow::Result;
use tabane_base::{Duration, Prefix};
use tokio::time::{Instant, sleep};

use crate::environment::proxy_variables;
use crate::far_ends::FarEnds;
use crate::interception::Interception;
use crate::open_connections::OpenConnections;
use crate::private_network::PrivateNetwork;
use crate::proxying::ProxyListener;
use crate::rule_book::RuleBook;

/// Helpers (`git`'s) end a moment after the command that started them; who is there later stays.
const FAREWELL: Duration = Duration::from_millis(100);
/// How often is looked meanwhile.
const LOOK: Duration = Duration::from_millis(5);

/// An entrance for one command.
pub struct Entrance {
    kind: Kind,
    connections: OpenConnections,
}

enum Kind {
    Hooks(Box<Interception>),
    Network(Box<PrivateNetwork>),
    /// Taken when it begins to serve.
    Proxy(Option<ProxyListener>),
}

impl Entrance {
    /// The best that this user and this kernel can have; leaves `direct` alone. A command that runs
    /// as `another` user than we do can only have hooks. Where it comes to the proxy, says so: what
    /// does not ask for it is not carried.
    pub async fn best(direct: &[Prefix], another: bool) -> Result<Self> {
        let no_hooks = match Interception::set_up(direct).await {
            Ok(interception) => return Ok(Self::of(Kind::Hooks(Box::new(interception)))),
            Err(error) if another => return Err(error),
            Err(error) => error,
        };
        tracing::info!("a network of its own instead of hooks: {no_hooks:#}");
        match PrivateNetwork::set_up(direct).await {
            Ok(network) => Ok(Self::of(Kind::Network(Box::new(network)))),
            Err(no_network) => {
                let lacking = match nix::unistd::geteuid().is_root() {
                    true => format!("{no_hooks:#}"),
                    false => {
                        "root carries all (sudo tabane run --user \"$USER\" -- CMD)".to_owned()
                    }
                };
                // Not said where nobody reads it.
                let _ = writeln!(
                    std::io::stderr(),
                    "tabane: only programs that know proxies are carried: {no_network}; {lacking}"
                );
                Self::proxy().await
            }
        }
    }

    /// What the user of `command` should know before it starts: it may be in a namespace where no
    /// user has a name but its own, and others' files, root's too, are nobody's to it.
    pub fn advice_for(&self, command: &[OsString]) -> Option<String> {
        let is_alone = matches!(self.kind, Kind::Network(_)) && !nix::unistd::geteuid().is_root();
        is_alone.then(|| ssh_settings::advice(command))?
    }

    fn of(kind: Kind) -> Self {
        Self {
            kind,
            connections: OpenConnections::default(),
        }
    }

    /// A proxy on a port of its own.
    pub async fn proxy() -> Result<Self> {
        let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listener = ProxyListener::bind(loopback).await?;
        Ok(Self::of(Kind::Proxy(Some(listener))))
    }

    /// Carries from here on what the child of `command` sends. Must be called within the `LocalSet`
    /// of the client.
    pub fn admit(
        &mut self,
        command: &mut Command,
        far_ends: &FarEnds,
        rules: &RuleBook,
    ) -> Result<()> {
        match &mut self.kind {
            Kind::Hooks(interception) => {
                interception.place_child(command)?;
                interception.serve(far_ends, &self.connections, rules);
            }
            Kind::Network(network) => {
                network.place_child(command)?;
                network.serve(far_ends, &self.connections, rules);
            }
            Kind::Proxy(listener) => {
                if let Some(listener) = listener.take() {
                    command.envs(proxy_variables(listener.address().port()));
                    let serving =
                        listener.serve(far_ends.clone(), self.connections.clone(), rules.clone());
                    tokio::task::spawn_local(serving);
                }
            }
        }
        Ok(())
    }

    /// Waits for what the command's first look at the network depends on.
    pub async fn ready(&self, far_ends: &FarEnds) {
        if let Kind::Hooks(interception) = &self.kind {
            interception.ready(far_ends).await;
        }
    }

    /// Waits for what the command has sent, unless others of its group may go on for ever.
    pub async fn settle(&self, far_ends: &FarEnds) {
        let deadline = Instant::now() + FAREWELL;
        let mut leftovers = self.leftovers();
        while leftovers > 0 && Instant::now() < deadline {
            // Nobody tells of the end of a network's processes.
            sleep(LOOK).await;
            leftovers = self.leftovers();
        }
        if leftovers > 0 {
            let what = match &self.kind {
                Kind::Hooks(_) => "tabane",
                Kind::Network(_) => "a network",
                Kind::Proxy(_) => "a proxy",
            };
            let run_on = match leftovers {
                1 => "1 process of the command runs on",
                n => &format!("{n} processes of the command run on"),
            };
            tracing::warn!("{run_on}, without {what}");
            return;
        }
        self.connections.settle(far_ends).await;
    }

    /// Processes that the command has left running.
    fn leftovers(&self) -> usize {
        match &self.kind {
            Kind::Hooks(interception) => interception.leftovers(),
            Kind::Network(network) => network.leftovers(),
            Kind::Proxy(_) => 0,
        }
    }

    /// Removes everything.
    pub fn tear_down(self) {
        if let Kind::Hooks(interception) = self.kind {
            interception.tear_down();
        }
    }
}
