//! The flags of every command that sets up a session.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use tabane_core::{ControllerKind, SchedulerKind};
use tabane_store::RelayName;

use tabane_client::{Sending, SessionOrder, UdpOrder};

/// Flags of every command that sets up a session.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Session")]
pub(crate) struct SessionArgs {
    /// Use only this interface; repeat for several [default: every usable one, see `tabane links`]
    #[arg(long = "link", value_name = "IF")]
    links: Vec<String>,
    /// Borrow this neighbour's link as well; repeat for several [default: all that were paired by
    /// `tabane share pair`, unless links are chosen by --link or in config.toml]
    #[arg(long = "neighbour", value_name = "NAME")]
    neighbours: Vec<RelayName>,
    /// Use only this relay; repeat for several, the preferred first [default: every one that was
    /// joined, in the order of `tabane relays`]
    #[arg(long = "relay", value_name = "NAME")]
    relays: Vec<String>,
    #[command(flatten)]
    sending: SendingArgs,
    /// How UDP flows come out at the other end, both ways: at-once, or in the order in which they
    /// were sent, waiting at most so many milliseconds longer than the slowest link takes.
    /// Questions and answers (DNS, NTP) and flows on one link are never held up [default: 25]
    #[arg(long, value_name = "at-once|MS")]
    udp_order: Option<UdpOrder>,
    /// Ask destinations in the background whether they speak tabane and let anybody in (UDP port
    /// 4510), and reach those that do straight. The key that one shows when it is met first is
    /// trusted and kept, as `tabane peer list` shows; another one later is not. Metered links are
    /// not asked over
    #[arg(long)]
    trust_first_use: bool,
}

/// How this end sends; the other end has its own say on what it sends.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct SendingArgs {
    /// How packets are spread over links: tabane, arrival, weighted, cwnd, min-rtt, round-robin,
    /// redundant or backup [default: tabane]
    #[arg(long, value_name = "NAME", value_parser = schedulers(), hide_possible_values = true)]
    scheduler: Option<SchedulerKind>,
    /// How fast each link is used: bbr, cubic, rmtcp or tabane [default: tabane]
    #[arg(long, value_name = "NAME", value_parser = controllers(), hide_possible_values = true)]
    congestion: Option<ControllerKind>,
}

/// Schedulers by their names, which shells complete.
pub(crate) fn schedulers() -> impl TypedValueParser<Value = SchedulerKind> {
    let names = PossibleValuesParser::new(SchedulerKind::ALL.map(SchedulerKind::name));
    names.try_map(|name| name.parse::<SchedulerKind>())
}

/// The same of what decides how fast each link is used.
pub(crate) fn controllers() -> impl TypedValueParser<Value = ControllerKind> {
    let names = PossibleValuesParser::new(ControllerKind::ALL.map(ControllerKind::name));
    names.try_map(|name| name.parse::<ControllerKind>())
}

impl From<SendingArgs> for Sending {
    fn from(args: SendingArgs) -> Self {
        Self {
            scheduler: args.scheduler,
            congestion: args.congestion,
        }
    }
}

impl From<SessionArgs> for SessionOrder {
    fn from(args: SessionArgs) -> Self {
        Self {
            links: args.links,
            neighbours: args.neighbours,
            relays: args.relays,
            sending: args.sending.into(),
            udp_order: args.udp_order,
            trust_first_use: args.trust_first_use,
        }
    }
}
