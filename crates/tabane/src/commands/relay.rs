//! `tabane relay`: the far end of everybody's sessions.
//!
//! Owns the flags and what signals do. Serving, who is let in and which addresses are announced is
//! `tabane-relay`'s affair.

mod clients;
mod token;
pub(super) mod user;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use nix::sys::signal::Signal;
use tabane_base::Duration;
use tabane_control::Kind;
use tabane_core::SessionConfig;
use tabane_linux::{descriptors, notify, signals::Signals};
use tabane_relay::{
    Door, Doors, RelayOrder, RelayService, RelayState, TlsListen, TokenUses, UserName,
};
use tabane_store::{PoolRange, Store, quantity::Lifetime};
use tabane_tunnel::{Access, RelayMonitor};

use crate::instance::{ControlArgs, Description, Instance};
use crate::session_args::SendingArgs;
use crate::{output, signals};
use tabane_client::Sending;

/// A grace time without end.
const FOR_EVER: Duration = Duration::from_secs(86_400 * 365);

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
    /// Listen for UDP at --listen alone, and not at 443 and 4500 as well, which clients try where
    /// their networks drop UDP to other ports. Ports that are taken are left alone; so is 443
    /// where something else has TCP 443
    #[arg(long)]
    listen_only: bool,
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
    #[cfg(feature = "fleet")]
    #[command(flatten)]
    fleet: FleetArgs,
    #[command(flatten)]
    doors: DoorArgs,
    #[command(flatten)]
    sending: SendingArgs,
    /// How long connections may take to finish when the relay is told to go down: 10s, 5min, never
    #[arg(long, value_name = "SPAN", default_value = "10s")]
    drain: Lifetime,
    // Last: its heading holds for every flag that follows.
    #[command(flatten)]
    control: ControlArgs,
}

/// Of which fleet it is.
#[cfg(feature = "fleet")]
#[derive(Debug, Clone, Args)]
struct FleetArgs {
    /// Be one of a fleet's relays, which share users, tokens and clients by this etcd:
    /// etcd://[USER@]HOST[:PORT][,HOST…][/NAME][?ca=FILE&cert=FILE&key=FILE&password-file=FILE].
    /// `tabane fleet init` makes the fleet, `tabane fleet add` lets this relay in
    #[arg(long, value_name = "ETCD", conflicts_with_all = ["peer", "open"])]
    fleet: Option<tabane_relay::FleetAddress>,
    /// What this relay is called in its fleet [default: this machine's name]
    #[arg(long, value_name = "NAME", requires = "fleet")]
    name: Option<String>,
    /// Where it stands, for people and for clients that choose: eu-north
    #[arg(long, value_name = "REGION", requires = "fleet", default_value = "")]
    region: String,
}

#[cfg(feature = "fleet")]
impl FleetArgs {
    fn order(self) -> Result<Option<tabane_relay::FleetOrder>> {
        let Some(etcd) = self.fleet else {
            return Ok(None);
        };
        let hostname = || {
            let read = std::fs::read_to_string("/proc/sys/kernel/hostname");
            read.map(|name| name.trim().to_owned())
        };
        let name = self.name.map_or_else(hostname, Ok);
        let name = name.context("cannot read this machine's name: give one with --name")?;
        tabane_relay::check_fleet_words(&name, &self.region)?;
        Ok(Some(tabane_relay::FleetOrder {
            etcd,
            name,
            region: self.region,
        }))
    }
}

/// How TLS is taken in.
#[derive(Debug, Clone, Args)]
struct DoorArgs {
    /// TCP address to take in TLS on, for clients whose networks drop UDP; they ask at port 443,
    /// and strangers get a web page. Behind a web server that forwards by name (nginx's
    /// ssl_preread), listen elsewhere and give the name with --public. "no": none [default:
    /// [::]:443 where it is to be had]
    #[arg(long, value_name = "ADDR:PORT")]
    tls_listen: Option<TlsListen>,
    /// Certificate chain (PEM) to show there [default: one made up at each start; clients know the
    /// relay by its own key]
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The certificate's private key (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
}

impl From<DoorArgs> for Doors {
    fn from(args: DoorArgs) -> Self {
        Self {
            listen: args.tls_listen,
            certificate: args.tls_cert.zip(args.tls_key),
        }
    }
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
    let mut session = SessionConfig::default();
    Sending::from(args.sending).apply(&mut session);
    let order = RelayOrder {
        listen: args.listen,
        public: args.public,
        access: match (args.peer, args.allow_private) {
            (true, _) => Access::Own,
            (false, true) => Access::Private,
            (false, false) => Access::Public,
        },
        door: args.open.map_or(Door::Shut, Door::Open),
        pool: args.pool,
        token_uses: args.token_uses,
        doors: args.doors.into(),
        listen_only: args.listen_only,
        session,
        #[cfg(feature = "fleet")]
        fleet: args.fleet.order()?,
    };
    // A relay may wait to be let into its fleet.
    let service = tokio::select! {
        service = RelayService::open(order, &state) => service?,
        _ = signals.next() => return Ok(ExitCode::SUCCESS),
    };
    let bound = service.bound();
    tracing::info!(
        listen = %bound,
        state = %state.root().display(),
        private = args.allow_private,
        "{} up; run `tabane {}` with this line on each client",
        if args.peer { "peer" } else { "relay" },
        if args.peer { "peer add" } else { "join" },
    );
    let monitor = service.monitor();
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
    let _instance = Instance::of_relay(&args.control, description, monitor.clone())?;
    if let Some(join) = service.join_string() {
        output::line(&join.to_string())?;
    }
    notify::ready();
    tokio::task::spawn_local(notify::keep_alive());
    let grace = args.drain.0.unwrap_or(FOR_EVER);
    let told = until_told(&signals, &monitor);
    let told_again = until_told(&signals, &monitor);
    service.run(told, grace, told_again).await;
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
