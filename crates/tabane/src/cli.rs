//! The command line as a whole: the commands, and the flags that all of them take.
//!
//! Each command defines its own flags in its own file; here they are only gathered.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::LazyLock;

use anyhow::Result;
use clap::{Args, CommandFactory, Parser, Subcommand};
use tracing_subscriber::filter::LevelFilter;

#[cfg(feature = "demo")]
use crate::commands::demo;
#[cfg(feature = "fleet")]
use crate::commands::fleet;
#[cfg(feature = "lab")]
use crate::commands::lab;
#[cfg(feature = "sctp")]
use crate::commands::sctp;
#[cfg(feature = "sim")]
use crate::commands::sim;
use crate::commands::{
    completion, doctor, down, expose, gateway, get, join, leave, links, manual, open, peer, policy,
    private_network, proxy, relay, relays, run, service, share, speed, status, trace, up, web,
};
#[cfg(feature = "dashboard")]
use crate::commands::{dashboard, top};
use crate::log::{self, LogFormat};
use tabane_store::Store;

/// Makes all links of this machine work as one, for programs that know nothing of it.
///
/// Start `tabane relay` on a machine with a public address, run `tabane join STRING` here with the
/// line it prints, then put `tabane run --` before any command.
#[derive(Debug, Parser)]
#[command(name = "tabane", version = VERSION.as_str(), arg_required_else_help = true)]
#[command(
    infer_subcommands = false,
    disable_help_subcommand = false,
    max_term_width = 100
)]
pub(crate) struct Cli {
    #[command(flatten)]
    global: GlobalArgs,
    #[command(subcommand)]
    command: Command,
}

/// Flags of every command.
#[derive(Debug, Args)]
#[command(next_help_heading = "Everywhere")]
pub(crate) struct GlobalArgs {
    /// Directory of the client's key, relays and settings [default: ~/.config/tabane]
    #[arg(
        long,
        value_name = "DIR",
        env = "TABANE_CONFIG",
        global = true,
        hide_env = true
    )]
    config: Option<PathBuf>,
    /// What to log to stderr: error, warn, info, debug, trace, or per module as RUST_LOG has it
    #[arg(long, value_name = "FILTER", global = true)]
    log: Option<String>,
    /// How log lines look
    #[arg(long, value_name = "FORMAT", default_value = "text", global = true)]
    log_format: LogFormat,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(Box<run::RunArgs>),
    Open(open::OpenArgs),
    Up(Box<up::UpArgs>),
    Down(down::DownArgs),
    Service(service::ServiceArgs),
    Proxy(Box<proxy::ProxyArgs>),
    Expose(Box<expose::ExposeArgs>),
    Get(Box<get::GetArgs>),
    Web(Box<web::WebArgs>),
    Status(status::StatusArgs),
    Doctor(doctor::DoctorArgs),
    #[cfg(feature = "dashboard")]
    Top(top::TopArgs),
    Trace(trace::TraceArgs),
    #[cfg(feature = "dashboard")]
    Dashboard(dashboard::DashboardArgs),
    Links(Box<links::LinksArgs>),
    Speed(speed::SpeedArgs),
    Share(Box<share::ShareArgs>),
    Policy(policy::PolicyArgs),
    Join(join::JoinArgs),
    Leave(leave::LeaveArgs),
    Relays(relays::RelaysArgs),
    Peer(peer::PeerArgs),
    Relay(Box<relay::RelayArgs>),
    #[cfg(feature = "fleet")]
    Fleet(fleet::FleetArgs),
    Gateway(Box<gateway::GatewayArgs>),
    #[cfg(feature = "demo")]
    Demo(demo::DemoArgs),
    #[cfg(feature = "sctp")]
    Sctp(Box<sctp::SctpArgs>),
    #[cfg(feature = "lab")]
    Lab(lab::LabArgs),
    #[cfg(feature = "sim")]
    Sim(sim::SimArgs),
    Completion(completion::CompletionArgs),
    #[command(hide = true)]
    Manual(manual::ManualArgs),
    #[command(hide = true)]
    PrivateNetwork(private_network::PrivateNetworkArgs),
}

impl Cli {
    /// Does what was asked.
    pub(crate) fn run(self) -> Result<ExitCode> {
        // A daemon's log is its only voice; the others share the terminal with a command.
        let level = if matches!(
            self.command,
            Command::Relay(_) | Command::Up(_) | Command::Gateway(_)
        ) {
            LevelFilter::INFO
        } else {
            LevelFilter::WARN
        };
        let (asked, format) = (self.global.log.as_deref(), self.global.log_format);
        log::start(asked, level, format)?;
        let store = || Store::locate(self.global.config.clone());
        match self.command {
            Command::Run(args) => run::run(*args, &store()?),
            Command::Open(args) => open::run(args, &store()?),
            Command::Up(args) => up::run(*args, &store()?),
            Command::Down(args) => down::run(&args),
            Command::Service(args) => service::run(&args),
            Command::Proxy(args) => proxy::run(*args, &store()?),
            Command::Expose(args) => expose::run(*args, &store()?),
            Command::Get(args) => get::run(*args, &store()?),
            Command::Web(args) => web::run(*args, &store()?),
            Command::Status(args) => status::run(&args),
            Command::Doctor(args) => doctor::run(&args, &store()?),
            #[cfg(feature = "dashboard")]
            Command::Top(args) => top::run(args),
            Command::Trace(args) => trace::run(&args),
            #[cfg(feature = "dashboard")]
            Command::Dashboard(args) => dashboard::run(&args),
            Command::Links(args) => links::run(*args, &store()?),
            Command::Speed(args) => speed::run(args, &store()?),
            Command::Relay(args) => relay::run(*args, store),
            #[cfg(feature = "fleet")]
            Command::Fleet(args) => fleet::run(args),
            Command::Gateway(args) => gateway::run(*args),
            Command::Share(args) => share::run(*args, &store()?),
            Command::Policy(args) => policy::run(args, &store()?),
            Command::Join(args) => join::run(args, &store()?),
            Command::Leave(args) => leave::run(&args, &store()?),
            Command::Relays(args) => relays::run(&args, &store()?),
            Command::Peer(args) => peer::run(args, &store()?),
            #[cfg(feature = "demo")]
            Command::Demo(args) => demo::run(args),
            #[cfg(feature = "sctp")]
            Command::Sctp(args) => sctp::run(*args, &store()?),
            #[cfg(feature = "lab")]
            Command::Lab(args) => lab::run(args),
            #[cfg(feature = "sim")]
            Command::Sim(args) => sim::run(args),
            Command::Completion(args) => completion::run(&args, Self::command()),
            Command::Manual(args) => manual::run(&args, Self::command()),
            Command::PrivateNetwork(args) => private_network::run(&args),
        }
    }
}

/// Two programs that differ in the protocol number cannot talk to each other.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    format!(
        "{} (protocol {})",
        env!("CARGO_PKG_VERSION"),
        tabane_core::PROTOCOL_VERSION
    )
});
