//! A command whose traffic is captured below it: its own control group, the socket hooks on that
//! group, and what arrives by them, carried through the session.
//!
//! Owns the order of setting up (nothing is left behind if a step fails) and the choice of where a
//! captured question to a resolver goes. Everything here vanishes with the process.

use std::net::{IpAddr, SocketAddr};
use std::process::Command;

use anyhow::{Context, Result};
use tabane_base::Duration;
use tabane_linux::capture::{Capture, CaptureListener, CaptureUdp};
use tabane_linux::cgroup::{Cgroup, Leftovers};
use tabane_linux::hooks::{FlowTable, HookConfig, Hooks, Original, Prefix};
use tabane_tunnel::{Carried, Client, Ending, Status, Target, system_resolvers};
use tokio::task::JoinHandle;

use crate::associations::Associations;
use crate::carriage::Carriage;

const DNS_PORT: u16 = 53;
/// Pause after `accept` failed for want of descriptors: some close meanwhile.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
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
        let capture = Capture::open().context(ADVICE_PREFIX)?;
        let config = HookConfig {
            port: capture.port,
            capture_tcp: true,
            capture_udp: true,
            capture_udp6: capture.udp.has_v6(),
            exclude: direct.to_vec(),
            bypass_mark: None,
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

    /// Carries from here on what arrives. Must be called within the `LocalSet` of the client.
    pub(crate) fn serve(&mut self, client: &Client, carriage: &Carriage) {
        let Some(capture) = self.capture.take() else {
            return;
        };
        let router = Router {
            client: client.clone(),
            resolvers: resolver_addresses(),
        };
        let flows = self.hooks.flows();
        let tcp = serve_tcp(
            capture.listener,
            flows.clone(),
            router.clone(),
            carriage.clone(),
        );
        let udp = serve_udp(capture.udp, flows, router);
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

/// Where captured traffic goes.
#[derive(Clone)]
struct Router {
    client: Client,
    /// The resolvers of this host: a question to them is one to the relay's.
    resolvers: Vec<IpAddr>,
}

impl Router {
    /// A resolver of this host, or of the network a link is in, is often unreachable from the
    /// relay, and knows the way from here instead of from there.
    fn target(&self, original: Original) -> Target {
        let is_resolver =
            original.dest.port() == DNS_PORT && self.resolvers.contains(&original.dest.ip());
        if original.captured_dns || is_resolver {
            Target::Resolver
        } else {
            Target::Address(original.dest)
        }
    }
}

fn resolver_addresses() -> Vec<IpAddr> {
    system_resolvers().iter().map(SocketAddr::ip).collect()
}

async fn serve_tcp(
    listener: CaptureListener,
    flows: FlowTable,
    router: Router,
    carriage: Carriage,
) {
    loop {
        match listener.accept(&flows).await {
            Ok(captured) => {
                let target = router.target(captured.original);
                let name = target.to_string();
                let passenger = carriage.board();
                let carrying = router.client.carry_tcp(captured.stream, target);
                tokio::task::spawn_local(async move {
                    match carrying.await {
                        Ok(carried) => report(&name, carried),
                        Err(error) => tracing::warn!("{name}: {error}"),
                    }
                    drop(passenger);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a captured connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// A program only sees a reset; why it was reset is worth a line where the user can do something.
fn report(target: &str, carried: Carried) {
    match carried.ending {
        Ending::Refused(Status::Denied) => tracing::warn!(
            "{target}: {}; `--direct PREFIX` goes there without the relay",
            Status::Denied
        ),
        Ending::Refused(status) => tracing::info!("{target}: {status}"),
        // That the session was lost has been told.
        Ending::SessionLost => tracing::info!("{target}: ended with the session"),
        Ending::Finished | Ending::ResetHere | Ending::ResetThere => {
            tracing::debug!(target, ?carried, "connection over");
        }
    }
}

async fn serve_udp(mut capture: CaptureUdp, flows: FlowTable, router: Router) {
    let sender = capture.sender();
    let associations = Associations::new(router.client.clone());
    loop {
        let received = capture.recv(&flows, |datagram| {
            associations.send(&datagram.flow, datagram.payload, || {
                let (sender, flow) = (sender.clone(), datagram.flow);
                let deliver = move |answer: &[u8]| {
                    // Lost like any datagram where the program's socket is full.
                    let _ = sender.try_send(flow, answer, None);
                };
                (router.target(datagram.original), Box::new(deliver))
            });
        });
        if let Err(error) = received.await {
            tracing::warn!(%error, "cannot receive captured datagrams");
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
    }
}
