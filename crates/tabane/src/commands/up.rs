//! `tabane up`: everything this machine sends, over all links.
//!
//! Owns the flags and the daemon's life: hooks first, shut; the session as soon as there can be
//! one; the hooks open while the relay answers. Nothing here may ever cut the machine off: when in
//! doubt, traffic goes the way it would have gone without us.

use std::fs::File;
use std::net::SocketAddr;
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;
use nix::sys::signal::Signal;
use tabane_base::Duration;
use tabane_control::Kind;
use tabane_linux::{
    descriptors,
    interfaces::Watch,
    notify::{self, Heard},
    signals::Signals,
};

use crate::event_loop;
use crate::failure::Failure;
use crate::instance::{ControlArgs, Description, Instance};
use crate::output;
use crate::session_args::SessionArgs;
use crate::signals;
use tabane_client::{
    Behind, FarEnds, SessionPlan, check_domains, check_routes,
    machine::{CARRYING, DirectRanges, Extent, Lock, Machine, PEERS_ALONE},
};
use tabane_store::{DirectPrefix, RouteDomain, RoutePrefix, Span, Store};
use tabane_tunnel::{Domain, OWN_MARK};
use tabane_uplinks::PolicyTextFile;

/// Where a daemon in the background writes what it has to say.
const LOG: &str = "/run/tabane/up.log";
/// How long `--detach` waits for the relay: a handshake over a slow link, and one more over a
/// neighbour's.
const DETACH_PATIENCE: Duration = Duration::from_secs(15);

/// Carry everything this machine sends over all links, until `tabane down`
///
/// TCP, UDP, DNS and pings of every program go through the session, and every other protocol (ESP,
/// GRE, …) where the relay has an address pool; connections that exist stay as they are. This
/// machine's own networks and private ranges are left alone. While the relay does not answer,
/// everything new goes as it would without tabane; when the process ends, by whatever signal, the
/// kernel takes its hooks away with it. Needs root; runs in the foreground and tells systemd when
/// it is ready.
#[derive(Debug, Args)]
pub(crate) struct UpArgs {
    /// Leave these destinations to this machine's own network too, e.g. 192.0.2.0/24; repeatable
    #[arg(long, value_name = "PREFIX")]
    direct: Vec<DirectPrefix>,
    /// Carry private ranges and the networks this machine is in as well
    #[arg(long)]
    all: bool,
    /// Carry what hosts behind this interface send through this machine, too; repeatable
    #[arg(long, value_name = "IF")]
    lan: Vec<String>,
    /// Lead other clients of this machine's group to this network behind it, over all links, e.g.
    /// 192.168.20.0/24; the relay's owner grants it (`tabane relay user set NAME --routes`);
    /// repeatable
    #[arg(long, value_name = "PREFIX")]
    route: Vec<RoutePrefix>,
    /// Have others of the group ask for names of this domain, and below, here: at this resolver in
    /// a --route, e.g. lan-b.example=192.168.20.53, or at this machine; the relay's owner grants it
    /// (`tabane relay user set NAME --domains`); repeatable
    #[arg(long, value_name = "DOMAIN[=RESOLVER]")]
    route_domain: Vec<RouteDomain>,
    /// Have hosts of --route see this machine's address as the source of what others send them. By
    /// default those behind --lan, whose router this machine is, see the senders' own addresses
    #[arg(long)]
    snat: bool,
    /// Leave pings, and every protocol but TCP and UDP, alone
    #[arg(long)]
    no_ping: bool,
    /// Let nothing go without the relay: while it does not answer, new connections wait for it, but
    /// for what --direct, a rule of the policy or this machine's own networks leave alone
    #[arg(long)]
    strict: bool,
    /// How long connections wait for a relay that does not answer [default: 5m, the relay's own
    /// limit]
    #[arg(long, value_name = "TIME")]
    wait: Option<Span>,
    /// Go to the background, and return once new connections go over all links. Where the relay
    /// does not answer within 15 s, the status is 1; it is then tried further in the background
    #[arg(long)]
    detach: bool,
    #[command(flatten)]
    control: ControlArgs,
    #[command(flatten)]
    session: SessionArgs,
}

pub(crate) fn run(args: UpArgs, store: &Store) -> Result<ExitCode> {
    if !nix::unistd::geteuid().is_root() {
        return Err(Failure::usage(
            "`tabane up` needs root; `tabane run --proxy` and `tabane proxy` need no privilege",
        )
        .into());
    }
    let settings = store.settings()?;
    let names_probe = settings.portal_probe.is_some();
    let settings = settings.up;
    let mut plan = SessionPlan::new(args.session.clone().into(), store)?;
    if !plan.has_relays() && plan.peers.is_empty() {
        return Err(Failure::usage(
            "neither a relay nor a peer is known: run `tabane join STRING` or `tabane peer add \
             STRING` first",
        )
        .into());
    }
    let all = args.all || settings.all;
    // What is not carried is nobody's to ask about.
    plan.discovers = plan.discovers.map(|_| all);
    if let Some(wait) = args.wait.or(settings.wait) {
        plan.wait_at_most(wait.0);
    }
    let is_strict = args.strict || settings.strict;
    // Only what the user named goes without the relay then.
    if is_strict && !names_probe {
        plan.ask_no_portals();
    }
    plan.plain_by_several &= !is_strict;
    if args.detach {
        let lan = given_or(args.lan, settings.lan);
        if let Some(missing) = event_loop::ask(plan.missing(&lan, store))?? {
            output::note(format_args!("tabane: {missing}"));
        }
        return detach(is_strict);
    }
    let _lock = Lock::acquire()?;
    if let Err(error) = descriptors::raise_limit() {
        tracing::warn!(%error, "no more descriptors than usual");
    }
    let given: Vec<DirectPrefix> = args.direct.iter().chain(&plan.direct).copied().collect();
    let direct = DirectRanges::new(&given, all);
    let extent = Extent {
        ping: !args.no_ping && settings.ping.unwrap_or(true),
        lan: given_or(args.lan, settings.lan),
        strict: is_strict,
    };
    check_names(&extent.lan)?;
    let routes = given_or(args.route, settings.route);
    let domains = given_or(args.route_domain, settings.route_domain);
    let behind = Behind {
        routes: routes.iter().map(|route| route.0).collect(),
        domains: domains.iter().map(domain_of).collect::<Result<_, _>>()?,
        lan: extent.lan.clone(),
        snat: args.snat || settings.snat,
    };
    check_routes(&behind.routes).map_err(Failure::usage)?;
    check_domains(&behind.domains, &behind.routes).map_err(Failure::usage)?;
    if !routes.is_empty() && !plan.has_relays() {
        return Err(Failure::usage("--route needs a relay, which leads others here").into());
    }
    let serving = serve(direct, extent, &behind, &args.control, &plan, store);
    event_loop::carry(serving)
}

fn given_or<T>(given: Vec<T>, kept: Vec<T>) -> Vec<T> {
    match given.is_empty() {
        true => kept,
        false => given,
    }
}

fn domain_of(given: &RouteDomain) -> Result<(Domain, Option<SocketAddr>), Failure> {
    let domain = given.domain.parse();
    let domain = domain.map_err(|error| Failure::usage(format!("{}: {error}", given.domain)))?;
    Ok((domain, given.resolver))
}

/// Names go into packet filter rules.
fn check_names(interfaces: &[String]) -> Result<()> {
    let is_bad = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '"' | '/' | '*');
    match interfaces
        .iter()
        .find(|name| name.is_empty() || name.contains(is_bad))
    {
        Some(name) => Err(Failure::usage(format!("'{name}' is no name of an interface")).into()),
        None => Ok(()),
    }
}

async fn serve(
    direct: DirectRanges,
    extent: Extent,
    behind: &Behind,
    control: &ControlArgs,
    plan: &SessionPlan,
    store: &Store,
) -> Result<ExitCode> {
    let signals = signals::catch()?;
    let watch = Watch::start().context("cannot watch the interfaces")?;
    let mut machine = Machine::set_up(direct, extent).await?;
    tokio::task::spawn_local(notify::keep_alive(async || {}));
    match machine.is_strict() {
        true => tracing::info!("up; new connections wait until the relay answers (--strict)"),
        false => tracing::info!("up; new connections go as without tabane until the relay answers"),
    }
    let far_ends = tokio::select! {
        far_ends = FarEnds::start(plan, store, OWN_MARK) => Some(far_ends?),
        () = until_told(&signals) => None,
    };
    let instance = far_ends.as_ref().map(|far_ends| {
        let description = Description {
            kind: Kind::Up,
            name: "up".to_owned(),
            about: "tabane up, for the whole machine".to_owned(),
            relays: plan.relays(),
            policy: Some(PolicyTextFile::of(store)),
        };
        Instance::of_client(control, &description, far_ends)
    });
    let _instance = instance.transpose().unwrap_or_else(|error| {
        // Carrying traffic matters more than being looked at.
        tracing::error!("{error:#}");
        None
    });
    let ended = match &far_ends {
        Some(far_ends) => {
            machine.serve(far_ends, &plan.rules);
            far_ends.expose_kept(store);
            far_ends.offer_routes(behind);
            machine.attend(far_ends, watch, until_told(&signals)).await
        }
        None => Ok(()),
    };
    notify::stopping();
    if let Err(error) = machine.tear_down().await {
        tracing::warn!("{error:#}; the next `tabane up` or `tabane down` tries again");
    }
    if let Some(far_ends) = far_ends {
        far_ends.close().await;
    }
    tracing::info!("down");
    ended.map(|()| ExitCode::SUCCESS)
}

/// Returns when the daemon should end.
async fn until_told(signals: &Signals) {
    loop {
        match signals.next().await {
            Ok(arrived) if matches!(arrived.signal, Signal::SIGUSR1 | Signal::SIGUSR2) => {}
            Ok(_) => return,
            Err(error) => {
                tracing::error!(%error, "cannot read signals");
                return;
            }
        }
    }
}

/// Starts the same command in the background and waits until it carries what is new.
fn detach(is_strict: bool) -> Result<ExitCode> {
    use std::os::unix::process::CommandExt;

    /// One line of a failure is enough.
    const WAIT: &str = "cannot wait for the background process";
    std::fs::create_dir_all("/run/tabane").context("cannot make /run/tabane")?;
    let log = File::create(LOG).with_context(|| format!("cannot write {LOG}"))?;
    let listener = notify::Listener::open().context(WAIT)?;
    let program = std::env::current_exe().context("cannot find this program's file")?;
    let arguments = std::env::args_os().skip(1);
    let mut child = Command::new(program)
        .args(arguments.filter(|argument| argument != "--detach"))
        .env(notify::VARIABLE, listener.value())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        // Out of the terminal's foreground group: Ctrl-C is not meant for it.
        .process_group(0)
        .spawn()
        .context("cannot start the background process")?;
    let carrying = [CARRYING, PEERS_ALONE].map(notify::status_line);
    let carrying = carrying.each_ref().map(String::as_str);
    // Names of the relay may have to be looked up before there is anything to wait for.
    let mut heard = listener.wait(&mut child, &[notify::READY], None);
    if let Ok(Heard::Told) = heard {
        let deadline = Instant::now() + DETACH_PATIENCE;
        heard = listener.wait(&mut child, &carrying, Some(deadline));
    }
    match heard.context(WAIT)? {
        Heard::Told => Ok(ExitCode::SUCCESS),
        Heard::Nothing => bail!(
            "the relay does not answer: new connections {} until it does; it is tried further in \
             the background (`tabane doctor` looks at every link, `tabane down` ends it, {LOG} has \
             what it says)",
            match is_strict {
                true => "wait",
                false => "go as without tabane",
            }
        ),
        Heard::Ended(status) => {
            output::note(std::fs::read_to_string(LOG).unwrap_or_default().trim_end());
            let code = status.code().and_then(|code| u8::try_from(code).ok());
            Ok(ExitCode::from(code.unwrap_or(1)))
        }
    }
}

/// What `tabane down` waits for an end: good-byes, and a busy machine.
pub(crate) const END_PATIENCE: Duration = Duration::from_secs(10);
