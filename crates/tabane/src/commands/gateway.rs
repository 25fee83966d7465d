//! `tabane gateway`: better TCP for hosts behind a link that delays.

use std::io::{self, Write};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::builder::PossibleValue;
use clap::{Args, Subcommand, ValueEnum};
use tabane_base::{Bytes, Prefix};
use tabane_control::{Client, Gateway, Kind};
use tabane_gateway::{Config, Mode, UNTOUCHED_PORTS};

use crate::event_loop;
use crate::failure::Failure;
use crate::gateway;
use crate::instance::{ControlArgs, Description, audience};
use crate::output;
use crate::signals;
use tabane_linux::notify;
use tabane_relay::gateway::{Forwarder, QUEUE_FIRST, Splitter};
use tabane_store::{DirectPrefix, Span};

/// How often `top` looks.
const LOOK: Duration = Duration::from_secs(1);
/// Nothing is gained by more.
const POLL_MOST_US: u64 = 10_000;

/// Better TCP for hosts behind a radio link, on the router in front of it
///
/// A link that repeats by itself what it loses (LTE, 5G, many radio bridges) shows trouble as
/// delay. Senders take that for loss, send again what is about to arrive, and slow down. `observe`
/// measures whether that happens and changes nothing; `assist` acknowledges in the mobile hosts'
/// name and stops senders with the window instead; `split` ends connections here and opens others.
/// Only forwarded TCP, from servers to hosts behind IF. Needs root and iptables (split: nft). When
/// it is killed, packets pass as without it.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct GatewayArgs {
    #[command(subcommand)]
    command: Option<GatewayCommand>,
    /// The interface with the hosts behind it
    #[arg(long, value_name = "IF", required = true)]
    radio: Option<String>,
    /// What to do
    #[arg(long, value_enum, default_value = "observe")]
    mode: ModeArg,
    /// Act only on hosts of this range behind the link; repeatable
    #[arg(long, value_name = "PREFIX")]
    subnet: Vec<DirectPrefix>,
    /// Act only on connections to this port; repeatable
    #[arg(long, value_name = "PORT")]
    port: Vec<u16>,
    /// Never act on this port, beside those where a false "received" does harm (179, 514, 601,
    /// 646, 2775, 3868, 9100); repeatable
    #[arg(long, value_name = "PORT")]
    except: Vec<u16>,
    /// Memory for copies of what was acknowledged and has not arrived, in MB
    #[arg(long, value_name = "MB", default_value_t = 256)]
    copies: u32,
    /// First of the two kernel queues, and the log group, to use
    #[arg(long, value_name = "N", default_value_t = QUEUE_FIRST)]
    queue: u16,
    /// After a packet, look out for the next one for this many microseconds before sleeping: less
    /// delay, for up to a whole core
    #[arg(long, value_name = "US", default_value_t = 0,
          value_parser = clap::value_parser!(u64).range(..=POLL_MOST_US))]
    poll: u64,
    /// split: congestion control towards the mobile hosts
    #[arg(long, value_name = "NAME", default_value = "cubic")]
    congestion: String,
    /// At SIGTERM, how long to wait until owed bytes have arrived; a second signal ends it
    #[arg(long, value_name = "TIME", default_value = "30s")]
    drain: Span,
    #[command(flatten)]
    control: ControlArgs,
}

#[derive(Debug, Subcommand)]
enum GatewayCommand {
    Status(StatusArgs),
    Top(TopArgs),
}

/// Show what the gateway does, once
#[derive(Debug, Args)]
struct StatusArgs {
    /// Of this interface's gateway [default: the one that runs]
    #[arg(long, value_name = "IF")]
    radio: Option<String>,
    /// Print it as JSON
    #[arg(long)]
    json: bool,
    /// Print it for Prometheus
    #[arg(long, conflicts_with = "json")]
    metrics: bool,
}

/// Watch the gateway: flows, round trips on both sides, silences, timeouts avoided, bytes held
#[derive(Debug, Args)]
struct TopArgs {
    /// Of this interface's gateway [default: the one that runs]
    #[arg(long, value_name = "IF")]
    radio: Option<String>,
    /// Print a line of JSON each time, as `status --json` does once
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ModeArg {
    /// Measure and change nothing
    Observe,
    /// Acknowledge in the mobile hosts' name
    Assist,
    /// End connections here and open others, from this machine's address
    Split,
}

pub(crate) fn run(args: GatewayArgs) -> Result<ExitCode> {
    match args.command {
        Some(GatewayCommand::Status(status)) => show_once(&status),
        Some(GatewayCommand::Top(top)) => watch(&top),
        None => serve(&args),
    }
}

fn serve(args: &GatewayArgs) -> Result<ExitCode> {
    if !nix::unistd::geteuid().is_root() {
        return Err(Failure::usage("`tabane gateway` needs root").into());
    }
    let radio = args.radio.as_deref().unwrap_or_default();
    if nix::net::if_::if_nametoindex(radio).is_err() {
        let advice = format!("no interface called {radio:?}; `ip link` lists them");
        return Err(Failure::usage(advice).into());
    }
    if args.queue == u16::MAX {
        return Err(Failure::usage("--queue is the first of two: at most 65534").into());
    }
    let mobiles: Vec<Prefix> = args.subnet.iter().map(|prefix| prefix.0).collect();
    let untouched: Vec<u16> = UNTOUCHED_PORTS
        .iter()
        .chain(&args.except)
        .copied()
        .collect();
    hurry();
    let ending = async {
        let signals = signals::catch()?;
        let audience = audience(&args.control, &description(args, radio))?;
        let mode = match args.mode {
            ModeArg::Observe => Mode::Observe,
            ModeArg::Assist => Mode::Assist,
            ModeArg::Split => {
                let (ports, congestion) = (&args.port[..], &args.congestion[..]);
                let starting =
                    Splitter::start(radio, ports, &untouched, &mobiles, congestion, audience);
                let splitter = starting.await?;
                announce(args);
                return splitter.run(&signals, args.drain.0).await;
            }
        };
        let config = Config {
            mode,
            mobiles,
            ports: args.port.clone(),
            untouched: untouched.clone(),
            copies_total: Bytes::mega(u64::from(args.copies)),
            ..Config::default()
        };
        let poll = tabane_base::Duration::from_micros(args.poll);
        let forwarder = Forwarder::start(radio, args.queue, config, audience)?.polling(poll);
        announce(args);
        forwarder.run(&signals, args.drain.0).await
    };
    event_loop::carry(ending).map(|()| ExitCode::SUCCESS)
}

/// Packets wait for this thread, and ordinary programs would let them wait for milliseconds. Where
/// there is one processor, the others must have their turn.
fn hurry() {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    if processors == 1 {
        return;
    }
    if let Err(error) = tabane_linux::raise_priority() {
        tracing::warn!(%error, "packets wait while other programs run");
    }
}

fn announce(args: &GatewayArgs) {
    tracing::info!(radio = args.radio.as_deref(), mode = ?args.mode, "the gateway is in place");
    notify::ready();
}

fn description(args: &GatewayArgs, radio: &str) -> Description {
    let mode = args.mode.to_possible_value();
    let mode = mode.as_ref().map_or("", PossibleValue::get_name);
    Description {
        kind: Kind::Gateway,
        name: gateway::name(radio),
        about: format!("{mode} TCP of the hosts behind {radio}"),
        relays: Vec::new(),
        policy: None,
    }
}

fn show_once(args: &StatusArgs) -> Result<ExitCode> {
    let client = gateway::find(args.radio.as_deref())?;
    if args.metrics {
        let metrics = event_loop::ask(client.metrics())??;
        output::line(metrics.trim_end())?;
        return Ok(ExitCode::SUCCESS);
    }
    let gateway = look(&client)?;
    if args.json {
        output::json(&gateway)?;
    } else {
        output::line(&gateway::screen(&gateway))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn watch(args: &TopArgs) -> Result<ExitCode> {
    let obeys_codes = output::obeys_codes(&io::stdout());
    loop {
        let gateway = look(&gateway::find(args.radio.as_deref())?)?;
        if args.json {
            output::line(&serde_json::to_string(&gateway)?)?;
        } else {
            if obeys_codes {
                // Home, and clear what stood there.
                write!(io::stdout(), "\x1b[H\x1b[2J")?;
            }
            output::line(&gateway::screen(&gateway))?;
        }
        thread::sleep(LOOK);
    }
}

fn look(client: &Client) -> Result<Gateway> {
    let state = event_loop::ask(client.state())??;
    let name = state.instance.name;
    state
        .gateway
        .with_context(|| format!("{name} is no gateway"))
}
