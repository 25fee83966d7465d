//! A command whose traffic is captured below it: its own control group, the socket hooks on that
//! group, and what arrives by them, carried through the session.
//!
//! Owns the order of setting up (nothing is left behind if a step fails). Everything here vanishes
//! with the process.

use std::cell::RefCell;
use std::net::IpAddr;
use std::process::Command;
use std::rc::Rc;

use anyhow::{Context, Result};
use tabane_base::Prefix;
use tabane_linux::{
    capture::Capture,
    cgroup::{Cgroup, Leftovers},
    hooks::{HookConfig, Hooks},
};
use tokio::task::JoinHandle;

use crate::dead_families::dead_families;
use crate::dispatcher::{Dispatcher, resolver_addresses};
use crate::far_ends::FarEnds;
use crate::open_connections::OpenConnections;
use crate::rule_book::RuleBook;
use tabane_tunnel::RELEASE_MARK;

/// What to do where this kernel, or this user, cannot have hooks.
const ADVICE: &str = "`tabane run --proxy` needs no privilege and serves programs that know \
                      proxies";

/// Hooks on a group that is still empty.
#[derive(Debug)]
pub(crate) struct Interception {
    // Dropped in this order: without hooks, what is left in the group runs on as it can.
    hooks: Rc<RefCell<Hooks>>,
    /// What the user leaves alone.
    direct: Vec<Prefix>,
    capture: Option<Capture>,
    tasks: Vec<JoinHandle<()>>,
    cgroup: Cgroup,
}

impl Interception {
    /// Makes the group and attaches the hooks; destinations in `direct` are left alone.
    pub(crate) async fn set_up(direct: &[Prefix]) -> Result<Self> {
        let cgroup = Cgroup::create()
            .context(ADVICE_PREFIX)
            .map_err(with_advice)?;
        let mut capture = Capture::open(None).context(ADVICE_PREFIX)?;
        hold_requests(&mut capture);
        let config = HookConfig {
            port: capture.port,
            capture_tcp: true,
            capture_udp: true,
            capture_udp6: capture.udp.has_v6(),
            exclude: direct.to_vec(),
            bypass_mark: None,
            leave_few_hops: true,
            open: true,
        };
        let mut hooks = Hooks::attach(&cgroup, &config)
            .context(ADVICE_PREFIX)
            .map_err(with_advice)?;
        show_plain_names(&mut hooks).await;
        Ok(Self {
            hooks: Rc::new(RefCell::new(hooks)),
            direct: direct.to_vec(),
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
    pub(crate) fn serve(
        &mut self,
        far_ends: &FarEnds,
        connections: &OpenConnections,
        rules: &RuleBook,
    ) {
        let Some(capture) = self.capture.take() else {
            return;
        };
        let dispatcher =
            Dispatcher::for_command(far_ends.clone(), connections.clone(), rules.clone());
        let flows = self.hooks.borrow().flows();
        let tcp = dispatcher
            .clone()
            .serve_tcp(capture.listener, flows.clone());
        let udp = dispatcher.serve_udp(capture.udp, flows);
        self.tasks.push(tokio::task::spawn_local(tcp));
        self.tasks.push(tokio::task::spawn_local(udp));
        let (hooks, direct) = (Rc::downgrade(&self.hooks), self.direct.clone());
        let far_ends = far_ends.clone();
        let following = async move {
            loop {
                far_ends.moved().await;
                let dead = dead_families(&far_ends).await;
                let Some(hooks) = hooks.upgrade() else {
                    return;
                };
                leave_alone(&hooks, &direct, &dead, &far_ends);
            }
        };
        self.tasks.push(tokio::task::spawn_local(following));
    }

    /// Waits for what the programs' first look at the network depends on.
    pub(crate) async fn ready(&self, far_ends: &FarEnds) {
        far_ends.families_known().await;
        let dead = dead_families(far_ends).await;
        leave_alone(&self.hooks, &self.direct, &dead, far_ends);
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
            direct: _,
            capture,
            tasks,
            cgroup,
        } = self;
        tasks.iter().for_each(JoinHandle::abort);
        drop(tasks);
        drop(hooks);
        drop(capture);
        if let Err(error) = cgroup.remove(Leftovers::Release) {
            tracing::warn!(%error, "a control group stays; the next `tabane run` removes it");
        }
    }
}

/// Sockets of captured programs are called what they would be called without us. Less than that is
/// better than nothing.
pub(crate) async fn show_plain_names(hooks: &mut Hooks) {
    if let Err(error) = hooks.follow_routes().await {
        tracing::warn!("programs are told a loopback address of their own: {error}");
    }
}

/// Leaves alone what the user wants left alone, and families that lead nowhere.
fn leave_alone(hooks: &RefCell<Hooks>, direct: &[Prefix], dead: &[Prefix], far_ends: &FarEnds) {
    let is_dead = |address: &IpAddr| dead.iter().any(|prefix| prefix.contains(*address));
    let is_direct = |address: &IpAddr| direct.iter().any(|prefix| prefix.contains(*address));
    // The relay has a resolver, by whatever family it is asked here.
    let mut resolvers = resolver_addresses();
    resolvers.retain(|address| is_dead(address) && !is_direct(address));
    let spared = far_ends.sites().spared();
    let left: Vec<_> = direct.iter().chain(dead).chain(&spared).copied().collect();
    let mut captured = far_ends.captured();
    captured.retain(|range| !is_direct(&range.address));
    if let Err(error) = hooks.borrow_mut().exclude(&left, &resolvers, &captured) {
        tracing::warn!("what is captured stays as it was: {error}");
    }
}

/// Has programs wait in `connect()` for their destination's answer, where the kernel lets them.
pub(crate) fn hold_requests(capture: &mut Capture) {
    if let Err(error) = capture.listener.hold_requests(RELEASE_MARK) {
        tracing::info!("programs are connected before their destination has answered: {error}");
    }
}

const ADVICE_PREFIX: &str = "cannot capture the command's traffic";

fn with_advice(error: anyhow::Error) -> anyhow::Error {
    anyhow::anyhow!("{error:#}; {ADVICE}")
}
