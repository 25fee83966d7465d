//! SBAM (Sakakibara et al.): tables 2 and 4, figures 7 to 9.
//!
//! A notebook with two 802.11b cards sends 5.5 MB over UDP. The paper's own rows are an
//! application that gives packets to the cards in turn (APP1, and SBAM's prototype, which does the
//! same in the kernel) and one that follows equations 1 and 2 (APP3).
//!
//! What the radios deliver is the papers' measurement, not a model of their MAC: a card alone
//! delivers 9.2 Mbit/s in 11 Mbit/s mode, 6.1 in 5.5 Mbit/s mode. Two in one machine deliver less
//! each, and by the rows of the alternating sender one can tell how much: 15.4 in turn is twice
//! 7.7, 9.6 in turn is twice 4.8. The experiments take these rates. That the two 11 Mbit/s cards
//! differ by 4 % is chosen to give the drift of figure 7.

use tabane_base::{Bytes, Duration, Instant, Rate, Seed};
use tabane_core::{DatagramOrder, SchedulerKind, SessionConfig};
use tabane_netem::{LinkConfig, LinkSpec, RateModel};

use super::arena::{self, Load, Plan};
use super::open_loop::{self, INTERFACE_QUEUE, Interface};
use super::sequence::Sequence;

mod report;

pub(super) use report::{figure, table2, table4};

/// Payload of a packet: as in the paper's measurement of `sbam_send`.
pub const PAYLOAD: u64 = 1_400;
/// A full packet of the interfaces' MTU.
const FULL_PACKET: u64 = 1_500;
/// Media data sent.
pub const MEDIA: Bytes = Bytes::new(5_500_000);
/// How `tabane run` and `tabane up` have datagrams handed out when nothing is said: in the order
/// in which they were written, for 25 ms beyond what the slowest path in use takes.
pub const AS_SHIPPED: DatagramOrder = DatagramOrder::Within(Duration::from_millis(25));
/// No run takes so long.
const DURATION: Duration = Duration::from_secs(30);

/// The networks of table 5 (and of tables 2 and 4, which have the same cards).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Environment {
    /// 11 Mbit/s twice, without delay.
    Equal,
    /// 11 Mbit/s twice, 50 ms on the first.
    Delayed,
    /// 11 and 5.5 Mbit/s.
    Unequal,
    /// A card in 11 Mbit/s mode alone.
    Only11,
    /// A card in 5.5 Mbit/s mode alone.
    Only5,
}

impl Environment {
    /// What the cards deliver.
    fn interfaces(self) -> Vec<Interface> {
        let interface = |kbps: u64, delay_ms| Interface {
            goodput: Rate::from_bps(kbps * 1_000),
            delay: Duration::from_millis(delay_ms),
        };
        match self {
            Self::Equal => vec![interface(7_700, 0), interface(8_030, 0)],
            Self::Delayed => vec![interface(7_700, 50), interface(8_030, 0)],
            Self::Unequal => vec![interface(8_030, 0), interface(4_800, 0)],
            Self::Only11 => vec![interface(9_200, 0)],
            Self::Only5 => vec![interface(6_100, 0)],
        }
    }

    /// What the cards deliver together.
    #[must_use]
    pub fn sum(self) -> Rate {
        let cards = self.interfaces();
        Rate::from_bps(cards.iter().map(|card| card.goodput.as_bps()).sum())
    }

    fn links(self) -> Vec<LinkSpec> {
        let link = |(index, interface): (usize, Interface)| {
            let config = LinkConfig {
                rate: RateModel::Constant(interface.link_rate(PAYLOAD)),
                queue: Bytes::new(INTERFACE_QUEUE * FULL_PACKET),
                delay: interface.delay,
                ..LinkConfig::wire()
            };
            LinkSpec {
                name: format!("card {}", index + 1),
                up: config.clone(),
                down: config,
            }
        };
        self.interfaces()
            .into_iter()
            .enumerate()
            .map(link)
            .collect()
    }
}

/// The paper's own senders, which have no feedback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenLoop {
    /// APP1 and SBAM's prototype: a packet to each card in turn.
    InTurn,
    /// APP3: shares by equation 2 on what each card delivers alone, as the paper measured it.
    ByBandwidth,
}

/// What the paper's own senders come to.
#[must_use]
pub fn open_loop(environment: Environment, sender: OpenLoop, media: Bytes) -> Sequence {
    let count = media.get().div_ceil(PAYLOAD);
    let interfaces = environment.interfaces();
    let weights = match (sender, environment) {
        // gcd(9.2, 6.1) Mbit/s is 0.1 Mbit/s, the MTUs are equal.
        (OpenLoop::ByBandwidth, Environment::Unequal) => vec![92, 61],
        _ => vec![1; interfaces.len()],
    };
    let arrivals = open_loop::send(&interfaces, &weights, count, PAYLOAD);
    Sequence::new(arrivals, Instant::EPOCH, PAYLOAD)
}

/// The shipped engine with its settings as they are, but for the scheduler, and datagrams handed
/// out in `order`.
#[must_use]
pub fn ours(
    environment: Environment,
    scheduler: SchedulerKind,
    order: DatagramOrder,
    seed: Seed,
) -> Sequence {
    let client = SessionConfig {
        scheduler,
        // As long as it takes: the paper's sender is a file.
        datagram_wait: Duration::from_secs(60),
        ..SessionConfig::default()
    };
    let record = arena::run(Plan {
        seed,
        links: environment.links(),
        server: client.clone(),
        client,
        sessions: 1,
        load: Load::Datagrams {
            count: MEDIA.get().div_ceil(PAYLOAD),
            size: PAYLOAD as usize,
            order,
        },
        cross: None,
        duration: DURATION,
        sample_interval: DURATION,
    });
    Sequence::new(record.arrivals, record.started_at, PAYLOAD)
}
