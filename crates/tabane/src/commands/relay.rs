//! `tabane relay`: the far end of everybody's sessions.
//!
//! Owns the flags and what signals do. Serving, who is let in and which addresses are announced is
//! `tabane-relay`'s affair.

mod clients;
mod token;
pub(super) mod user;

use std::cell::RefCell;
use std::net::SocketAddr;
use std::num::{NonZeroU8, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::process::{self, ExitCode};
use std::str::FromStr;

use anyhow::Result;
use clap::{Args, Subcommand};
use nix::sys::signal::Signal;
use tabane_base::Duration;
use tabane_control::Kind;
use tabane_core::{MAX_WORKERS, SessionConfig};
use tabane_linux::{descriptors, notify, signals::Signals};
use tabane_relay::{
    Door, Doors, Estate, RelayOrder, RelayService, RelayState, RelayView, TlsListen, TokenUses,
    Upgrade, UserName,
};
use tabane_store::{PoolRange, Store, quantity::Lifetime};
use tabane_tunnel::{Access, Parting, RelayMonitor};

use crate::instance::{ControlArgs, Description, Instance};
use crate::session_args::SendingArgs;
use crate::{event_loop, output, signals};
use tabane_client::Sending;

/// How long connections may take at the end.
const DRAIN: Duration = Duration::from_secs(10);
/// The same where another process serves what is new: only one that never rests is ended.
const DRAIN_SUCCEEDED: Duration = Duration::from_secs(3_600);
/// A grace time without end.
const FOR_EVER: Duration = Duration::from_secs(86_400 * 365);

/// Serve sessions: the far end, on a machine with a public address
///
/// Prints a join string to stdout: the line for `tabane join` on every client. Needs no privilege,
/// only an open UDP port. The first start makes the relay's key and a token; both stay the same
/// over restarts. SIGUSR1 logs what it is doing. SIGTERM and Ctrl-C let connections finish first
/// (--drain), the second one ends it at once. SIGHUP (`systemctl reload`) starts this program anew,
/// as it is on disk by then: the new process takes what is new, the old one finishes its sessions.
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
    /// Threads that serve sessions, each its own, 64 at most [default: as many as there are
    /// processors for it]
    #[arg(long, value_name = "N")]
    workers: Option<Workers>,
    #[command(flatten)]
    sending: SendingArgs,
    /// How long connections may take to finish when the relay is told to go down, or another
    /// process has taken over: 10s, 5min, never [default: 10s, and 1h for an upgrade]
    #[arg(long, value_name = "SPAN")]
    drain: Option<Lifetime>,
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
        use anyhow::Context;

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
            event_loop::carry(serving)
        }
    }
}

/// How many threads serve sessions.
#[derive(Debug, Clone, Copy)]
struct Workers(NonZeroU8);

impl FromStr for Workers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.parse::<NonZeroU8>().ok();
        let number = number.filter(|number| number.get() <= MAX_WORKERS);
        number
            .map(Self)
            .ok_or_else(|| format!("expected a number from 1 to {MAX_WORKERS}"))
    }
}

/// As many as there are processors for this process, as its cgroup and affinity have it.
fn usual_workers() -> NonZeroU8 {
    let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let workers = processors.min(MAX_WORKERS.into());
    u8::try_from(workers)
        .ok()
        .and_then(NonZeroU8::new)
        .unwrap_or(NonZeroU8::MIN)
}

/// What the flags ask for.
fn order(args: RelayArgs) -> Result<RelayOrder> {
    let mut session = SessionConfig::default();
    Sending::from(args.sending).apply(&mut session);
    Ok(RelayOrder {
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
        workers: args.workers.map_or_else(usual_workers, |workers| workers.0),
        session,
        #[cfg(feature = "fleet")]
        fleet: args.fleet.order()?,
    })
}

async fn serve(args: RelayArgs, state: RelayState) -> Result<ExitCode> {
    let signals = signals::catch()?;
    // By its name: an upgrade puts another file there. Without /proc it has none, and serves.
    let program = std::env::current_exe().ok();
    if let Err(error) = descriptors::raise_limit() {
        tracing::warn!(%error, "no more descriptors than usual");
    }
    let (control, drain, is_peer) = (args.control.clone(), args.drain, args.peer);
    let is_private = args.allow_private;
    let order = order(args)?;
    let estate = Estate::find()?;
    // A relay may wait to be let into its fleet.
    let mut service = tokio::select! {
        service = RelayService::open(order, &state, estate) => service?,
        _ = signals.next() => return Ok(ExitCode::SUCCESS),
    };
    let bound = service.bound();
    let has_predecessor = service.has_predecessor();
    tracing::info!(
        listen = %bound,
        state = %state.root().display(),
        private = is_private,
        "{} up; run `tabane {}` with this line on each client",
        if is_peer { "peer" } else { "relay" },
        if is_peer { "peer add" } else { "join" },
    );
    let monitor = service.monitor();
    let sight = Sight::new(control, bound, is_peer, Box::new(service.view()));
    sight.show()?;
    // After an upgrade clients have it, and nobody may read it here any more.
    if !has_predecessor && let Some(join) = service.join_string() {
        output::line(&join.to_string())?;
    }
    service.take_over()?;
    notify::ready();
    let alive = monitor.clone();
    tokio::task::spawn_local(async move { notify::keep_alive(async || alive.pulse().await).await });
    let upgrade = service.upgrade();
    let given = drain.map(|drain| drain.0.unwrap_or(FOR_EVER));
    let grace = |parting| {
        given.unwrap_or(match parting {
            Parting::Down => DRAIN,
            Parting::Succeeded => DRAIN_SUCCEEDED,
        })
    };
    let told = until_told(&signals, &monitor, async || {
        succeed(&upgrade, program.as_deref(), &sight).await
    });
    let told_again = async {
        until_told(&signals, &monitor, async || {
            tracing::warn!("another process takes what is new already, or this one goes down");
            false
        })
        .await;
    };
    service.run(told, grace, told_again).await;
    Ok(ExitCode::SUCCESS)
}

/// Has another process go on here; whether it does.
async fn succeed(upgrade: &Upgrade, program: Option<&Path>, sight: &Sight) -> bool {
    let Some(program) = program else {
        tracing::error!("no upgrade, this process goes on: mount /proc and start the relay again");
        return false;
    };
    let mut command = process::Command::new(program);
    command.args(std::env::args_os().skip(1));
    // Its name and its port are the other's.
    sight.hide();
    let started = upgrade.start(&mut command).await;
    let shown = match &started {
        Ok(_) => sight.show_beside(),
        Err(_) => sight.show(),
    };
    if let Err(error) = shown {
        tracing::error!("`tabane status` does not see this process: {error:#}");
    }
    match started {
        Ok(process) => {
            notify::succeeded_by(process);
            tracing::info!(
                process,
                "it serves what is new; this one finishes its sessions"
            );
            true
        }
        Err(error) => {
            tracing::error!("no upgrade, and this process goes on: {error:#}");
            false
        }
    }
}

/// The relay as `tabane status` sees it.
struct Sight {
    control: ControlArgs,
    description: Description,
    view: Box<dyn Fn() -> RelayView>,
    instance: RefCell<Option<Instance>>,
}

impl Sight {
    fn new(
        control: ControlArgs,
        bound: SocketAddr,
        is_peer: bool,
        view: Box<dyn Fn() -> RelayView>,
    ) -> Self {
        let description = Description {
            kind: Kind::Relay,
            name: format!("relay-{}", bound.port()),
            about: match is_peer {
                true => format!("peer on {bound}"),
                false => format!("relay on {bound}"),
            },
            relays: Vec::new(),
            policy: None,
        };
        Self {
            control,
            description,
            view,
            instance: RefCell::default(),
        }
    }

    fn show(&self) -> Result<()> {
        self.show_with(&self.control)
    }

    /// While another process has the port for HTTP.
    fn show_beside(&self) -> Result<()> {
        self.show_with(&ControlArgs::default())
    }

    fn show_with(&self, control: &ControlArgs) -> Result<()> {
        let shown = Instance::of_relay(control, &self.description, (self.view)())?;
        self.instance.replace(Some(shown));
        Ok(())
    }

    fn hide(&self) {
        self.instance.replace(None);
    }
}

/// Returns when the relay should come to its end, and why; `reload` is what SIGHUP asks for, and
/// says whether it is done.
async fn until_told(
    signals: &Signals,
    monitor: &RelayMonitor,
    reload: impl AsyncFn() -> bool,
) -> Parting {
    loop {
        match signals.next().await {
            Ok(arrived) if arrived.signal == Signal::SIGUSR1 => log_status(monitor).await,
            Ok(arrived) if arrived.signal == Signal::SIGUSR2 => {}
            // A terminal that hangs up wants no other process.
            Ok(arrived) if arrived.signal == Signal::SIGHUP && !arrived.from_terminal => {
                if reload().await {
                    return Parting::Succeeded;
                }
            }
            Ok(_) => return Parting::Down,
            Err(error) => {
                tracing::error!(%error, "cannot read signals");
                return Parting::Down;
            }
        }
    }
}

async fn log_status(monitor: &RelayMonitor) {
    let seen = monitor.look().await;
    let streams: usize = seen.guests.iter().map(|guest| guest.session.streams).sum();
    tracing::info!(
        sessions = seen.guests.len(),
        workers = seen.workers,
        streams,
        served = monitor.served(),
        counters = ?seen.counters,
        "status"
    );
}
