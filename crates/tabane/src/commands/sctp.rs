//! `tabane sctp`: all paths to an SCTP endpoint at once, with only the sender changed.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::builder::RangedU64ValueParser;
use clap::{Args, Subcommand, ValueEnum};
use tabane_base::{Bytes, Duration};
use tabane_control::Kind;

use crate::event_loop;
use crate::failure::Failure;
use crate::instance::{Description, Instance};
use crate::output;
use tabane_sctp::shell::{
    PORT, Scheduler, UDP_PORT,
    forward::{self, Carried},
    receiver,
    report::{Report, megabytes},
    resolve, sender,
};
use tabane_store::{Span, Store};
use tabane_uplinks::{LinksView, PolicyTextFile};

/// Send over all paths to an SCTP endpoint at once; only the sender is changed
///
/// The receiver may be any SCTP endpoint that takes UDP encapsulation (RFC 6951): `tabane sctp
/// recv`, usrsctp, a Linux or FreeBSD kernel. See `tabane doctor sctp`.
#[derive(Debug, Args)]
pub(crate) struct SctpArgs {
    #[command(subcommand)]
    command: SctpCommand,
}

#[derive(Debug, Subcommand)]
enum SctpCommand {
    Send(SendArgs),
    Recv(RecvArgs),
    Forward(ForwardArgs),
}

/// How messages are spread over paths.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Spread {
    /// All paths at once, each as its window allows (CMT); by weights where the policy has some
    Tabane,
    /// ARMS by the letter: cwnd bytes to each path, then all cwnds are read again (CMT off)
    Cwnd,
    /// One message to each path in turn
    RoundRobin,
    /// The primary path alone, as SCTP does by itself; the others when it fails
    Primary,
}

impl From<Spread> for Scheduler {
    fn from(spread: Spread) -> Self {
        match spread {
            Spread::Tabane => Self::Tabane,
            Spread::Cwnd => Self::Cwnd,
            Spread::RoundRobin => Self::RoundRobin,
            Spread::Primary => Self::Primary,
        }
    }
}

/// Send a file, or standard input
///
/// With `tabane sctp recv` at the other end, length and digest are compared before either command
/// ends with status 0. From any other receiver there is only SCTP's word that all was taken.
#[derive(Debug, Args)]
pub(crate) struct SendArgs {
    /// The file; - or nothing is standard input
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    peer: PeerArgs,
    /// How messages are spread over paths
    #[arg(long, value_name = "NAME", default_value = "tabane")]
    scheduler: Spread,
    /// Give up after so long without a sign of life from the other end, 3s at least
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = patience)]
    patience: Span,
    /// Print JSON at the end
    #[arg(long)]
    json: bool,
}

/// Receive one file
///
/// It is called FILE.part until it is complete. Addresses that this host gets meanwhile are told to
/// the sender.
#[derive(Debug, Args)]
pub(crate) struct RecvArgs {
    /// What to call it; - is standard output
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    listen: ListenArgs,
    /// Bytes that may wait to be written; what the sender may have under way [default: 8000000]
    #[arg(long, value_name = "BYTES", value_parser = buffer_range())]
    buffer: Option<u64>,
    /// Give up after so long without a sign of life from the other end, 3s at least
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = patience)]
    patience: Span,
    /// Print JSON at the end
    #[arg(long)]
    json: bool,
}

/// Carry TCP connections over SCTP, so that unmodified programs profit
///
/// At the programs' end, `tabane sctp forward --listen 8080 --to A,B`; at the servers' end, `tabane
/// sctp forward --serve 127.0.0.1:80`. Each connection has an association of its own. What one side
/// resets is reset at the other; what one side only ends, the other may go on answering. Any other
/// SCTP endpoint may stand at either end; there the end of one side's data ends the connection.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("end").required(true))]
pub(crate) struct ForwardArgs {
    /// Take TCP connections here, and carry each to the peer; a port alone is one of 127.0.0.1
    #[arg(long, value_name = "[ADDR:]PORT", group = "end", requires = "to", value_parser = listen)]
    listen: Option<SocketAddr>,
    /// Take associations, and connect each to this TCP server
    #[arg(long, value_name = "HOST:PORT", group = "end", value_parser = server)]
    serve: Option<String>,
    /// Addresses or names of the peer, with :PORT where UDP is not at 9899
    #[arg(
        long,
        value_name = "A,B,…",
        value_delimiter = ',',
        conflicts_with = "serve"
    )]
    to: Vec<String>,
    /// The SCTP port: the peer's, or with --serve our own
    #[arg(long, value_name = "PORT", default_value_t = PORT)]
    port: u16,
    /// The UDP port that carries SCTP, with --serve
    #[arg(long, value_name = "PORT", default_value_t = UDP_PORT, conflicts_with = "listen")]
    udp_port: u16,
    /// Use only this interface; repeat for several [default: every usable one]
    #[arg(long = "link", value_name = "IF", conflicts_with = "serve")]
    links: Vec<String>,
    /// How messages are spread over paths
    #[arg(
        long,
        value_name = "NAME",
        default_value = "tabane",
        conflicts_with = "serve"
    )]
    scheduler: Spread,
    /// How long to wait for the peer's first answer, in seconds
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 10,
        value_parser = timeout_range(),
        conflicts_with = "serve"
    )]
    timeout: u64,
    /// Give up after so long without a sign of life from the other end, 3s at least
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = patience)]
    patience: Span,
    /// Print a line of JSON for every connection that has ended
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct PeerArgs {
    /// Addresses or names of the peer, with :PORT where UDP is not at 9899. Others that it tells of
    /// are used as well
    #[arg(long, value_name = "A,B,…", value_delimiter = ',', required = true)]
    to: Vec<String>,
    /// The peer's SCTP port
    #[arg(long, value_name = "PORT", default_value_t = PORT)]
    port: u16,
    /// Use only this interface; repeat for several [default: every usable one]
    #[arg(long = "link", value_name = "IF")]
    links: Vec<String>,
    /// How long to wait for the peer's first answer, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = timeout_range())]
    timeout: u64,
}

#[derive(Debug, Args)]
struct ListenArgs {
    /// The SCTP port
    #[arg(long, value_name = "PORT", default_value_t = PORT)]
    port: u16,
    /// The UDP port that carries SCTP
    #[arg(long, value_name = "PORT", default_value_t = UDP_PORT)]
    udp_port: u16,
}

/// From two packets on.
fn buffer_range() -> RangedU64ValueParser {
    clap::value_parser!(u64).range(3_000..=1_000_000_000)
}

fn timeout_range() -> RangedU64ValueParser {
    clap::value_parser!(u64).range(1..=600)
}

/// Who lives is heard every two seconds or so; a packet may get lost.
fn patience(text: &str) -> Result<Span, String> {
    let span: Span = text.parse()?;
    match span.0 >= Duration::from_secs(3) {
        true => Ok(span),
        false => Err("3s at least".to_owned()),
    }
}

fn listen(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.parse() {
        return Ok((Ipv4Addr::LOCALHOST, port).into());
    }
    let parsed = text.parse();
    parsed.map_err(|_| "neither ADDRESS:PORT nor a port".to_owned())
}

fn server(text: &str) -> Result<String, String> {
    let port = text.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
    match port {
        Some(Ok(1..)) => Ok(text.to_owned()),
        _ => Err("not HOST:PORT".to_owned()),
    }
}

pub(crate) fn run(args: SctpArgs, store: &Store) -> Result<ExitCode> {
    match args.command {
        SctpCommand::Send(args) => {
            let order = sender::Order {
                file: args.file,
                remotes: resolve(&args.peer.to, UDP_PORT)?,
                port: args.peer.port,
                links: args.peer.links,
                scheduler: args.scheduler.into(),
                timeout: Duration::from_secs(args.peer.timeout),
                patience: args.patience.0,
            };
            let about = format!("tabane sctp send to {}", args.peer.to.join(","));
            let show = |view| show(about, view, store);
            let report = event_loop::carry(sender::send(order, store, show))?;
            tell(&report, args.json, "sent")?;
        }
        SctpCommand::Recv(args) => {
            let order = receiver::Order {
                file: args.file,
                port: args.listen.port,
                udp_port: args.listen.udp_port,
                receive_buffer: args.buffer.map(Bytes::new),
                patience: args.patience.0,
            };
            let ready = || {
                let (port, udp) = (order.port, order.udp_port);
                output::note(format_args!(
                    "tabane: waiting at SCTP port {port}, in UDP port {udp}"
                ));
            };
            let receive = receiver::receive(&order, ready);
            let report = event_loop::carry(receive)?;
            // Standard output is the file's.
            match (args.json, order.file.as_os_str() == "-") {
                (json, false) => tell(&report, json, "received")?,
                (_, true) => output::note(format_args!("tabane: {}", summary(&report, "received"))),
            }
        }
        SctpCommand::Forward(args) => {
            let json = args.json;
            let ready = |place: &str| output::note(format_args!("tabane: taking {place}"));
            let tell = |carried: &Carried| tell_carried(carried, json);
            let about = format!("tabane sctp forward to {}", args.to.join(","));
            let show = |view| show(about, view, store);
            let forward = forward::forward(forward_order(args)?, store, show, ready, tell);
            event_loop::carry(forward)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Has `tabane status` see the links, and pauses them.
fn show(about: String, view: LinksView, store: &Store) -> Result<Instance> {
    let description = Description {
        kind: Kind::Sctp,
        name: format!("sctp-{}", std::process::id()),
        about,
        relays: Vec::new(),
        policy: Some(PolicyTextFile::of(store)),
    };
    Instance::of_links(&description, view)
}

fn forward_order(args: ForwardArgs) -> Result<forward::Order> {
    let patience = args.patience.0;
    let end = match (args.listen, args.serve) {
        (Some(listen), _) => forward::End::Programs {
            listen,
            remotes: resolve(&args.to, UDP_PORT)?,
            links: args.links,
            scheduler: args.scheduler.into(),
            timeout: Duration::from_secs(args.timeout),
        },
        (None, Some(server)) => forward::End::Servers {
            server,
            udp_port: args.udp_port,
        },
        (None, None) => return Err(Failure::usage("name --listen or --serve".to_owned()).into()),
    };
    Ok(forward::Order {
        end,
        port: args.port,
        patience,
    })
}

/// One line per connection: of all as JSON, otherwise of those that did not end well.
fn tell_carried(carried: &Carried, json: bool) -> Result<()> {
    if json {
        return output::line(&serde_json::to_string(carried)?);
    }
    if let Some(why) = &carried.reset {
        let (sent, received) = (carried.sent_bytes, carried.received_bytes);
        let (sent, received) = (megabytes(sent), megabytes(received));
        output::note(format_args!(
            "tabane: a connection was reset after {sent} out and {received} in: {why}"
        ));
    }
    Ok(())
}

fn tell(report: &Report, json: bool, verb: &str) -> Result<()> {
    if json {
        return output::json(report);
    }
    output::line(&summary(report, verb))
}

fn summary(report: &Report, verb: &str) -> String {
    let confirmed = match report.confirmed {
        true => "both ends have the same",
        false => "the other end compares no digest",
    };
    let mut text = format!(
        "{verb} {} in {:.1} s, {:.2} Mbit/s; {confirmed}",
        megabytes(report.bytes),
        report.seconds,
        report.mbit_per_s
    );
    for link in &report.links {
        text += &format!("\n  {} carried {}", link.link, megabytes(link.sent_bytes));
    }
    text
}
