//! The whole machine's traffic, captured: hooks on the root group and what belongs to them.
//!
//! Owns the order of setting up and what follows the network: which destinations are left alone,
//! and whether anything is captured at all (only while the relay answers). Everything here lives in
//! descriptors of this process, so that its end, by whatever signal, leaves the machine as it was.

mod direct;
mod lock;

use anyhow::{Context, Result};
use tabane_linux::capture::Capture;
use tabane_linux::cgroup::Cgroup;
use tabane_linux::hooks::{HookConfig, Hooks};
use tabane_tunnel::Client;
use tokio::task::JoinHandle;

use crate::carrier::{Carrier, resolver_addresses};
use crate::plain;

pub(crate) use direct::DirectRanges;
pub(crate) use lock::{Lock, Running};

/// A machine with hooks.
pub(crate) struct Machine {
    hooks: Hooks,
    direct: DirectRanges,
    capture: Option<Capture>,
    carrier: Option<Carrier>,
    tasks: Vec<JoinHandle<()>>,
}

impl Machine {
    /// Attaches hooks that leave everything alone until [`set_open`](Self::set_open).
    pub(crate) async fn set_up(direct: DirectRanges) -> Result<Self> {
        const WHAT: &str = "cannot capture this machine's traffic";
        let cgroup = Cgroup::root().context(WHAT)?;
        let capture = Capture::open(Some(plain::MARK)).context(WHAT)?;
        let config = HookConfig {
            port: capture.port,
            capture_tcp: true,
            capture_udp: true,
            capture_udp6: capture.udp.has_v6(),
            exclude: Vec::new(),
            bypass_mark: Some(plain::MARK),
            open: false,
        };
        let mut machine = Self {
            hooks: Hooks::attach(&cgroup, &config).context(WHAT)?,
            direct,
            capture: Some(capture),
            carrier: None,
            tasks: Vec::new(),
        };
        machine.follow_network().await?;
        Ok(machine)
    }

    /// Carries what is captured from here on. Must be called within the `LocalSet` of the client.
    pub(crate) fn serve(&mut self, client: &Client) {
        let Some(capture) = self.capture.take() else {
            return;
        };
        let carrier = Carrier::for_machine(client.clone());
        let flows = self.hooks.flows();
        let tcp = carrier.clone().serve_tcp(capture.listener, flows.clone());
        let udp = carrier.clone().serve_udp(capture.udp, flows);
        self.tasks.push(tokio::task::spawn_local(tcp));
        self.tasks.push(tokio::task::spawn_local(udp));
        self.carrier = Some(carrier);
    }

    /// Captures what is new, or leaves it alone as if we were not there.
    pub(crate) fn set_open(&mut self, open: bool) -> Result<()> {
        self.hooks
            .set_open(open)
            .context("cannot switch the hooks over")
    }

    /// Addresses, routes or resolvers may have changed.
    pub(crate) async fn follow_network(&mut self) -> Result<()> {
        let prefixes = self.direct.prefixes().await?;
        // Questions to a resolver in them are carried all the same: the relay has one, too.
        self.hooks.exclude(&prefixes, &resolver_addresses())?;
        if let Some(carrier) = &self.carrier {
            carrier.renew_resolvers();
        }
        Ok(())
    }

    /// Takes everything away.
    pub(crate) fn tear_down(self) {
        drop(self.hooks);
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}
