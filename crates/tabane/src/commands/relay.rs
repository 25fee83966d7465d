//! `tabane relay`: the far end of everybody's sessions.
//!
//! Owns the flags, the choice of the addresses that join strings announce, and what signals do.
//! Who is let in is the gatekeeper's affair, serving is the tunnel's.

mod clients;
mod token;
mod user;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use nix::sys::signal::Signal;
use tabane_base::{Destination, Duration, Host};
use tabane_control::Kind;
use tabane_core::{ServerConfig, SessionConfig};
use tabane_linux::{
    descriptors,
    interfaces::{self, Interface},
    signals::Signals,
};
use tabane_tunnel::{
    Access, HostMonitor, Relay, RelayConfig, RelayError, RelayLimits, RelayMonitor,
    system_resolvers,
};

use crate::access::{TokenUses, UserName};
use crate::client_session::SendingArgs;
use crate::failure::Failure;
use crate::gatekeeper::{Door, Gatekeeper};
use crate::instance::{ControlArgs, Description, Instance};
use crate::notify;
use crate::output;
use crate::plain;
use crate::relay_doors::DoorArgs;
use crate::relay_exit;
use crate::relay_state::RelayState;
use crate::signals;
use tabane_store::{PoolRange, Store, quantity::Span, secret};

/// A grace time without end.
const FOR_EVER: Duration = Duration::from_secs(86_400 * 365);

/// "45" + "10": unassigned by IANA, easy to remember, not below 1024.
pub(crate) const DEFAULT_PORT: u16 = 4510;

/// Serve sessions: the far end, on a machine with a public address
///
/// Prints a join string to stdout: the line for `tabane join` on every client. Needs no privilege,
/// only an open UDP port. The first start makes the relay's key and a token; both stay the same
/// over restarts. SIGUSR1 logs what it is doing. SIGTERM and Ctrl-C let connections finish first
/// (--drain), the second one ends it at once.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct RelayArgs {
    #[command(subcommand)]
    command: Option<RelayCommand>,
    /// UDP address to listen on [default: [::]:4510, which is IPv4 as well]
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Option<SocketAddr>,
    /// Address or name under which clients reach it, where that is another one (NAT); repeatable
    /// [default: the addresses of this machine]
    #[arg(long, value_name = "ADDR[:PORT]")]
    public: Vec<String>,
    /// Directory of key, tokens and clients [default: /var/lib/tabane for root, else
    /// ~/.local/state/tabane]
    #[arg(long, value_name = "DIR", global = true)]
    state: Option<PathBuf>,
    /// Let clients reach private, link-local and loopback addresses, and those of this machine
    #[arg(long)]
    allow_private: bool,
    /// Let clients reach this machine and nothing else: what its services serve goes straight
    /// between here and clients that `tabane peer add` the join string. Services listening on
    /// loopback are not reached; they see connections coming from this machine's own address
    #[arg(long, conflicts_with = "allow_private")]
    peer: bool,
    /// Let anybody in who comes, with no token and unknown, and tell who asks; all of them share
    /// the limits of this user, if one is named. Clients with --trust-first-use find this machine
    /// by themselves, and reach whatever it serves on its own addresses, past a firewall on the
    /// way
    #[arg(long, value_name = "USER", num_args = 0..=1, require_equals = true, requires = "peer")]
    open: Option<Option<UserName>>,
    /// Give clients addresses of this private range, and let what they send beside TCP and UDP
    /// (ESP, GRE, ICMP, …) out under this machine's address; one range of each family, like
    /// 100.64.16.0/20 and fd00:1::/64. Needs root, nft and forwarding [default: pings alone are
    /// served]
    #[arg(long, value_name = "PREFIX", conflicts_with = "peer")]
    pool: Vec<PoolRange>,
    /// How many clients the token in the join string admits: one, many or a number
    #[arg(long, value_name = "USES", default_value = "many")]
    token_uses: TokenUses,
    #[command(flatten)]
    doors: DoorArgs,
    #[command(flatten)]
    sending: SendingArgs,
    /// How long connections may take to finish when the relay is told to go down: 10s, 5min, never
    #[arg(long, value_name = "SPAN", default_value = "10s")]
    drain: Span,
    // Last: its heading holds for every flag that follows.
    #[command(flatten)]
    control: ControlArgs,
}

#[derive(Debug, Subcommand)]
enum RelayCommand {
    User(Box<user::UserArgs>),
    Token(token::TokenArgs),
    Clients(clients::ClientsArgs),
}

pub(crate) fn run(mut args: RelayArgs, store: impl Fn() -> Result<Store>) -> Result<ExitCode> {
    let state = RelayState::locate(args.state.clone())?;
    match args.command {
        Some(RelayCommand::User(user)) => user::run(*user, &state),
        Some(RelayCommand::Token(token)) => token::run(token, &state),
        Some(RelayCommand::Clients(clients)) => clients::run(clients, &state),
        None => {
            if args.pool.is_empty() && !args.peer {
                // A service without a home has no settings.
                let settings = store().ok().map(|store| store.settings()).transpose()?;
                args.pool = settings.unwrap_or_default().relay_pool;
            }
            let serving = serve(args, state);
            tabane_tunnel::block_on(serving).context("cannot set up the event loop")?
        }
    }
}

async fn serve(args: RelayArgs, state: RelayState) -> Result<ExitCode> {
    let signals = signals::catch()?;
    if let Err(error) = descriptors::raise_limit() {
        tracing::warn!(%error, "no more descriptors than usual");
    }
    let listen = args.listen.unwrap_or_else(default_listen);
    let access = match (args.peer, args.allow_private) {
        (true, _) => Access::Own,
        (false, true) => Access::Private,
        (false, false) => Access::Public,
    };
    let identity = state.identity()?;
    let mut session = SessionConfig::default();
    args.sending.apply(&mut session);
    let door = args.open.clone().map_or(Door::Shut, Door::Open);
    let is_open = door != Door::Shut;
    let (gatekeeper, newcomers) = Gatekeeper::open(&state, door)?;
    let considering = gatekeeper.clone();
    let (exit, exit_rules) = relay_exit::set_up(&args.pool).await?.unzip();
    let name = public_name(&args.public);
    let web_doors = args
        .doors
        .open(identity.public_key(), name.as_deref())
        .await?;
    let relay = Relay::bind(RelayConfig {
        identity: identity.clone(),
        listen: vec![listen],
        access,
        limits: RelayLimits::default(),
        server: ServerConfig {
            is_open,
            ..ServerConfig::default()
        },
        session,
        own_addresses: public_ips(&args.public),
        authorise: Box::new(move |applicant| considering.consider(applicant)),
        resolvers: system_resolvers(),
        monitor: HostMonitor::default(),
        seed: secret::random(),
        // On a machine that is up itself, the relay's sockets are not for its hooks.
        mark: plain::may_mark().then_some(plain::MARK),
        exit,
        web_doors,
    })
    .map_err(|error| match error {
        RelayError::Listen(_) => anyhow::Error::new(error)
            .context("the relay cannot start (is one running? --listen chooses another address)"),
        error => error.into(),
    })?;
    let bound = relay.local_addrs().first().copied().unwrap_or(listen);
    let addresses = public_addresses(&args.public, bound).await?;
    state.announce(&addresses)?;
    let token = state.current_token(args.token_uses)?;
    tracing::info!(
        listen = %bound,
        state = %state.root().display(),
        private = args.allow_private,
        "{} up; run `tabane {}` with this line on each client",
        if args.peer { "peer" } else { "relay" },
        if args.peer { "peer add" } else { "join" },
    );
    let monitor = relay.monitor();
    let description = Description {
        kind: Kind::Relay,
        name: format!("relay-{}", bound.port()),
        about: match args.peer {
            true => format!("peer on {bound}"),
            false => format!("relay on {bound}"),
        },
        relays: Vec::new(),
        policy: None,
    };
    let instance = Instance::of_relay(&args.control, description, monitor.clone())?;
    output::line(&state.join_string(addresses, token)?.to_string())?;
    notify::ready();
    tokio::task::spawn_local(notify::keep_alive());
    let grace = args.drain.0.unwrap_or(FOR_EVER);
    let told = until_told(&signals, &monitor);
    let told_again = until_told(&signals, &monitor);
    tokio::select! {
        () = relay.run_and_drain(told, grace, told_again) => {}
        never = gatekeeper.work(newcomers, monitor.clone()) => never,
    }
    drop(instance);
    drop(exit_rules);
    gatekeeper.save_now();
    Ok(ExitCode::SUCCESS)
}

/// Returns when the relay should go down.
async fn until_told(signals: &Signals, monitor: &RelayMonitor) {
    loop {
        match signals.next().await {
            Ok(arrived) if arrived.signal == Signal::SIGUSR1 => log_status(monitor),
            Ok(arrived) if arrived.signal == Signal::SIGUSR2 => {}
            Ok(_) => return,
            Err(error) => {
                tracing::error!(%error, "cannot read signals");
                return;
            }
        }
    }
}

fn log_status(monitor: &RelayMonitor) {
    let sessions = monitor.sessions();
    let streams: usize = sessions.iter().map(|session| session.streams).sum();
    let counters = monitor.counters();
    tracing::info!(
        sessions = sessions.len(),
        streams,
        served = monitor.served(),
        ?counters,
        "status"
    );
}

/// `[::]` takes IPv4 as well, but is not to be had where IPv6 is switched off.
fn default_listen() -> SocketAddr {
    let any_v6 = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    let any = match UdpSocket::bind((any_v6, 0)) {
        Ok(_) => any_v6,
        Err(_) => Ipv4Addr::UNSPECIFIED.into(),
    };
    SocketAddr::new(any, DEFAULT_PORT)
}

/// The literal addresses among what `--public` says: they lead here.
fn public_ips(given: &[String]) -> Vec<IpAddr> {
    let parsed = given
        .iter()
        .filter_map(|text| parse_public(text, DEFAULT_PORT).ok());
    let ip = |destination: Destination| match destination.host {
        Host::Ip(ip) => Some(ip.to_canonical()),
        Host::Name(_) => None,
    };
    parsed.filter_map(ip).collect()
}

/// The first name among what `--public` says.
fn public_name(given: &[String]) -> Option<String> {
    given
        .iter()
        .find_map(|text| match parse_public(text, DEFAULT_PORT).ok()?.host {
            Host::Name(name) => Some(name),
            Host::Ip(_) => None,
        })
}

/// What join strings announce: what was given, else what can be seen from here.
async fn public_addresses(given: &[String], bound: SocketAddr) -> Result<Vec<Destination>> {
    if !given.is_empty() {
        let parse = |text: &String| {
            parse_public(text, bound.port())
                .map_err(|error| Failure::usage(format!("--public {text}: {error}")).into())
        };
        return given.iter().map(parse).collect();
    }
    if !bound.ip().is_unspecified() {
        return Ok(vec![bound.into()]);
    }
    let interfaces = interfaces::list()
        .await
        .context("cannot list the interfaces")?;
    let guessed = guess_addresses(&interfaces, bound.ip().is_ipv4());
    let is_private = guessed.iter().all(|ip| !Access::Public.allows(*ip));
    if guessed.is_empty() {
        return Err(Failure::usage(
            "this machine has no address that clients could reach: give one with --public",
        )
        .into());
    }
    if is_private {
        tracing::warn!(
            "only private addresses here: clients elsewhere need --public ADDR, and a port \
             forwarded to this machine"
        );
    } else {
        tracing::info!("announcing the addresses of this machine; --public ADDR names others");
    }
    Ok(guessed
        .into_iter()
        .map(|ip| SocketAddr::new(ip, bound.port()).into())
        .collect())
}

/// `ADDR` or `ADDR:PORT`, IPv6 with or without brackets.
fn parse_public(text: &str, port: u16) -> Result<Destination, tabane_base::DestinationError> {
    match text.parse::<Ipv6Addr>() {
        Ok(ip) => Ok(Destination {
            host: Host::Ip(ip.into()),
            port,
        }),
        Err(_) => Destination::parse(text, Some(port)),
    }
}

/// The addresses of this machine by which others may reach it: public ones, else private ones;
/// those of links first, then any other (servers carry public addresses on `lo`, too).
fn guess_addresses(interfaces: &[Interface], only_v4: bool) -> Vec<IpAddr> {
    /// Of each kind; a join string should stay one line.
    const MOST: usize = 4;
    let of = |links_only: bool, public_only: bool| -> Vec<IpAddr> {
        interfaces
            .iter()
            .filter(|interface| interface.usable().is_ok() || !links_only)
            .flat_map(Interface::global_addresses)
            .filter(|ip| ip.is_ipv4() || !only_v4)
            .filter(|ip| !ip.is_loopback())
            .filter(|ip| Access::Public.allows(*ip) || !public_only)
            .take(MOST)
            .collect()
    };
    let tiers = [(true, true), (false, true), (true, false), (false, false)];
    let mut guesses = tiers.into_iter().map(|(links, public)| of(links, public));
    guesses.find(|guess| !guess.is_empty()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_addresses_may_have_a_port() {
        let of = |text| parse_public(text, 4510).map(|destination| destination.to_string());
        assert_eq!(of("192.0.2.1").as_deref(), Ok("192.0.2.1:4510"));
        assert_eq!(of("192.0.2.1:99").as_deref(), Ok("192.0.2.1:99"));
        assert_eq!(of("2001:db8::1").as_deref(), Ok("[2001:db8::1]:4510"));
        assert_eq!(of("[2001:db8::1]:99").as_deref(), Ok("[2001:db8::1]:99"));
        assert_eq!(of("relay.example").as_deref(), Ok("relay.example:4510"));
        assert!(of("relay.example:x").is_err());
    }
}
