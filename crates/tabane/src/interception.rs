//! A command whose traffic is captured below it: its own control group, the socket hooks on that
//! group, and what arrives by them, carried through the session.
//!
//! Owns the order of setting up (nothing is left behind if a step fails). Everything here vanishes
//! with the process.

use std::process::Command;

use anyhow::{Context, Result};
use tabane_base::Prefix;
use tabane_linux::capture::Capture;
use tabane_linux::cgroup::{Cgroup, Leftovers};
use tabane_linux::hooks::{HookConfig, Hooks};
use tokio::task::JoinHandle;

use crate::carriage::Carriage;
use crate::carrier::Carrier;
use crate::far_ends::FarEnds;
use crate::rule_book::RuleBook;

/// What to do where this kernel, or this user, cannot have hooks.
const ADVICE: &str = "`tabane run --proxy` needs no privilege and serves programs that know \
                      proxies";

/// Hooks on a group that is still empty.
#[derive(Debug)]
pub(crate) struct Interception {
    // Dropped in this order: without hooks, what is left in the group runs on as it can.
    hooks: Hooks,
    capture: Option<Capture>,
    tasks: Vec<JoinHandle<()>>,
    cgroup: Cgroup,
}

impl Interception {
    /// Makes the group and attaches the hooks; destinations in `direct` are left alone.
    pub(crate) fn set_up(direct: &[Prefix]) -> Result<Self> {
        let cgroup = Cgroup::create()
            .context(ADVICE_PREFIX)
            .map_err(with_advice)?;
        let capture = Capture::open(None).context(ADVICE_PREFIX)?;
        let config = HookConfig {
            port: capture.port,
            capture_tcp: true,
            capture_udp: true,
            capture_udp6: capture.udp.has_v6(),
            exclude: direct.to_vec(),
            bypass_mark: None,
            open: true,
        };
        let hooks = Hooks::attach(&cgroup, &config)
            .context(ADVICE_PREFIX)
            .map_err(with_advice)?;
        Ok(Self {
            hooks,
            capture: Some(capture),
            tasks: Vec::new(),
            cgroup,
        })
    }

    /// Has the child that `command` will start run in the group.
    pub(crate) fn place_child(&self, command: &mut Command) -> Result<()> {
        self.cgroup
            .place_child(command)
            .context("cannot move the command into its group")
    }

    /// Carries from here on what arrives. Must be called within the `LocalSet` of the clients.
    pub(crate) fn serve(&mut self, far_ends: &FarEnds, carriage: &Carriage, rules: &RuleBook) {
        let Some(capture) = self.capture.take() else {
            return;
        };
        let carrier = Carrier::for_command(far_ends.clone(), carriage.clone(), rules.clone());
        let flows = self.hooks.flows();
        let tcp = carrier.clone().serve_tcp(capture.listener, flows.clone());
        let udp = carrier.serve_udp(capture.udp, flows);
        self.tasks.push(tokio::task::spawn_local(tcp));
        self.tasks.push(tokio::task::spawn_local(udp));
    }

    /// Processes that the command has left running in its group.
    pub(crate) fn leftovers(&self) -> usize {
        self.cgroup
            .processes()
            .map_or(0, |processes| processes.len())
    }

    /// Removes everything. Processes that the command has left running go on without tabane.
    pub(crate) fn tear_down(self) {
        let Self {
            hooks,
            capture,
            tasks,
            cgroup,
        } = self;
        drop(hooks);
        drop(capture);
        tasks.iter().for_each(JoinHandle::abort);
        if let Err(error) = cgroup.remove(Leftovers::Release) {
            tracing::warn!(%error, "a control group stays; the next `tabane run` removes it");
        }
    }
}

const ADVICE_PREFIX: &str = "cannot capture the command's traffic";

fn with_advice(error: anyhow::Error) -> anyhow::Error {
    anyhow::anyhow!("{error:#}; {ADVICE}")
}
