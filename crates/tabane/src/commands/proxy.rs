//! `tabane proxy`: the session for programs that know proxies, until it is stopped.

use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use tabane_control::Kind;
use tabane_linux::descriptors;

use crate::event_loop;
use crate::instance::{ControlArgs, Description, Instance};
use crate::output;
use crate::program;
use crate::session_args::SessionArgs;
use crate::signals;
use tabane_client::{OpenConnections, ProxyListener, SessionPlan};
use tabane_store::Store;
use tabane_uplinks::PolicyTextFile;

/// Serve SOCKS5 and HTTP proxy requests on one port, without privilege, until stopped
///
/// Speaks SOCKS5 (TCP and UDP), HTTP CONNECT and plain HTTP on the same port. Names are resolved at
/// the relay. Whoever can connect to the port can use it: keep it on loopback.
#[derive(Debug, Args)]
pub(crate) struct ProxyArgs {
    /// Where to listen
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:1080")]
    listen: SocketAddr,
    #[command(flatten)]
    control: ControlArgs,
    #[command(flatten)]
    session: SessionArgs,
}

pub(crate) fn run(args: ProxyArgs, store: &Store) -> Result<ExitCode> {
    let plan = SessionPlan::new(args.session.clone().into(), store)?;
    event_loop::carry(serve(args.listen, &args.control, &plan, store))
}

async fn serve(
    listen: SocketAddr,
    control: &ControlArgs,
    plan: &SessionPlan,
    store: &Store,
) -> Result<ExitCode> {
    if let Err(error) = descriptors::raise_limit() {
        tracing::warn!(%error, "no more descriptors than usual");
    }
    let signals = signals::catch()?;
    let listener = ProxyListener::bind(listen).await?;
    let description = Description {
        kind: Kind::Proxy,
        name: format!("proxy-{}", std::process::id()),
        about: format!("proxy on {}", listener.address()),
        relays: plan.relays(),
        policy: Some(PolicyTextFile::of(store)),
    };
    let (instance, far_ends) = tokio::select! {
        visible = Instance::connect(control, &description, plan, store) => visible?,
        arrived = signals.next() => return Ok(program::signal_code(arrived?.signal)),
    };
    output::line(&format!("SOCKS5 and HTTP proxy on {}", listener.address()))?;
    let (rules, connections) = (plan.rules.clone(), OpenConnections::default());
    let stopped = tokio::select! {
        () = listener.serve(far_ends.clone(), connections, rules) => Ok(ExitCode::SUCCESS),
        arrived = signals.next() => arrived.map(|_| ExitCode::SUCCESS).context("signals"),
        reason = far_ends.closed() => Err(anyhow::anyhow!("{reason}")),
    };
    drop(instance);
    far_ends.close().await;
    stopped
}
