//! Congestion control: how much may be in flight on a path, and how fast it may leave.
//!
//! Owns the closed set of algorithms and the events they learn from. Each path has a controller of
//! its own; controllers know nothing of each other, of packets or of timers. Whether a packet is
//! lost is recovery's to say, holding packets to the pacing rate is the pacer's.
//!
//! To the caller every algorithm is two numbers: a window in bytes that in-flight data must not
//! exceed, and a pacing rate. Both are good only until the next event.

mod bbr;
mod cubic;
mod model;
mod rmtcp;
mod tabane;
#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;

use tabane_base::{Bytes, Duration, Instant, Rate, Rng};

use crate::delivery::RateSample;
use crate::forward_delay::Trip;
use crate::rtt::RttEstimator;
use bbr::Bbr;
use cubic::Cubic;
use rmtcp::RmTcp;
use tabane::Tabane;

/// The window before anything is known, in packets (RFC 6928, RFC 9002 §7.2).
const INITIAL_WINDOW_PACKETS: u64 = 10;

/// The congestion control algorithms, by the names users give them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// RFC 9438 with HyStart++ (RFC 9406): fills the queue, backs off at loss.
    Cubic,
    /// After BBRv3: models the path's rate and length, keeps queues short, shrugs off random loss.
    Bbr,
    /// R-M/TCP's rate control as published: backs off when its queue grows, before loss.
    RmTcp,
    /// R-M/TCP's rate control that also looks for more: a short queue, and fair shares.
    #[default]
    Tabane,
}

impl Kind {
    /// Every algorithm, in the order of their names.
    pub const ALL: [Self; 4] = [Self::Bbr, Self::Cubic, Self::RmTcp, Self::Tabane];

    /// All names, for messages.
    fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }

    /// The name used on command lines and in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cubic => "cubic",
            Self::Bbr => "bbr",
            Self::RmTcp => "rmtcp",
            Self::Tabane => "tabane",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// No congestion control algorithm bears this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no congestion control called {0:?}: choose one of {names}", names = Kind::names())]
pub struct UnknownKind(String);

impl FromStr for Kind {
    type Err = UnknownKind;
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.into_iter().find(|kind| kind.name() == name);
        known.ok_or_else(|| UnknownKind(name.to_owned()))
    }
}

/// News of an acknowledgement that newly acknowledged at least one packet in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AckEvent<'a> {
    /// When it arrived.
    pub(crate) now: Instant,
    /// What it says of the path's rate.
    pub(crate) sample: &'a RateSample,
    /// The path's round-trip times, this acknowledgement's included.
    pub(crate) rtt: &'a RttEstimator,
    /// The round-trip time of R-M/TCP, eq. 1: the forward one-way time of its newest packet, and
    /// the least, plus the mean reverse one-way time of all paths. `None` where it does not tell.
    pub(crate) trip: Option<Trip>,
    /// The way back alone, in nanoseconds minus the clocks' offset: only its changes mean anything.
    /// `None` where the acknowledgement does not tell.
    pub(crate) way_back: Option<i64>,
    /// What remains in flight, losses found by this acknowledgement taken off as well.
    pub(crate) in_flight_after: Bytes,
    /// When the largest packet number acknowledged by it was sent.
    pub(crate) largest_acked_sent_at: Instant,
}

/// News of packets declared lost together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LossEvent {
    /// When the loss was found.
    pub(crate) now: Instant,
    /// How much was lost.
    pub(crate) lost: Bytes,
    /// How many runs of packets lost one after the other begin with it.
    pub(crate) runs: u32,
    /// When the newest of the lost packets was sent.
    pub(crate) largest_lost_sent_at: Instant,
    /// What remains in flight.
    pub(crate) in_flight: Bytes,
    /// What was in flight right after the newest lost packet was sent.
    pub(crate) tx_in_flight: Bytes,
    /// Everything sent over a long span was lost (RFC 9002 §7.6).
    pub(crate) persistent: bool,
}

/// What a controller thinks, for display and for schedulers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ControllerSnapshot {
    /// The phase the algorithm is in.
    pub(crate) state: &'static str,
    /// The window.
    pub(crate) cwnd: Bytes,
    /// The pacing rate.
    pub(crate) pacing_rate: Rate,
    /// The rate the path is thought to deliver.
    pub(crate) bandwidth: Rate,
    /// The round-trip time of the path with empty queues; `None` before the first sample.
    pub(crate) min_rtt: Option<Duration>,
}

/// What an algorithm must do. Times never run backwards from call to call.
trait Algorithm {
    fn on_sent(&mut self, now: Instant, bytes: Bytes, in_flight: Bytes);
    fn on_ack(&mut self, event: &AckEvent<'_>);
    fn on_loss(&mut self, event: &LossEvent);
    fn on_spurious_loss(&mut self, now: Instant);
    fn on_path_reset(&mut self, now: Instant);
    /// One-way times are no longer comparable with earlier ones.
    fn on_clock_leap(&mut self) {}
    fn on_mtu(&mut self, mtu: Bytes);
    fn cwnd(&self) -> Bytes;
    fn pacing_rate(&self) -> Rate;
    /// Whether packets leave two at a time however slow the path.
    fn is_sent_in_pairs(&self) -> bool {
        false
    }
    fn snapshot(&self) -> ControllerSnapshot;
}

/// The congestion controller of one path.
#[derive(Clone, Debug)]
pub(crate) struct Controller(AnyAlgorithm);

#[derive(Clone, Debug)]
enum AnyAlgorithm {
    Cubic(Box<Cubic>),
    Bbr(Box<Bbr>),
    RmTcp(Box<RmTcp>),
    Tabane(Box<Tabane>),
    /// Over a byte stream.
    Ordered(Box<Bbr>),
}

impl Controller {
    /// A fresh controller for packets of up to `mtu` bytes. `rng` spreads the times at which
    /// paths probe for more, so that they do not do so in step.
    #[must_use]
    pub(crate) fn new(kind: Kind, mtu: Bytes, now: Instant, rng: Rng) -> Self {
        Self(match kind {
            Kind::Cubic => AnyAlgorithm::Cubic(Box::new(Cubic::new(mtu, now))),
            Kind::Bbr => AnyAlgorithm::Bbr(Box::new(Bbr::new(mtu, now, rng))),
            Kind::RmTcp => AnyAlgorithm::RmTcp(Box::new(RmTcp::new(mtu, now))),
            Kind::Tabane => AnyAlgorithm::Tabane(Box::new(Tabane::new(mtu, now, rng))),
        })
    }

    /// A fresh controller for a path over a byte stream, whose own sender answers to congestion.
    /// All that is left to us is to keep no more in it than fills the path, for what waits in it
    /// can take no other: a model of the path does that, by what is delivered. What counts as
    /// lost there was only given to other paths.
    #[must_use]
    pub(crate) fn ordered(mtu: Bytes, now: Instant, rng: Rng) -> Self {
        Self(AnyAlgorithm::Ordered(Box::new(Bbr::new(mtu, now, rng))))
    }

    /// `bytes` leave while `in_flight` (without them) is in flight.
    pub(crate) fn on_sent(&mut self, now: Instant, bytes: Bytes, in_flight: Bytes) {
        self.algorithm_mut().on_sent(now, bytes, in_flight);
    }

    /// An acknowledgement came. Losses it revealed are told first, by [`Self::on_loss`].
    pub(crate) fn on_ack(&mut self, event: &AckEvent<'_>) {
        self.algorithm_mut().on_ack(event);
    }

    /// Packets are declared lost.
    pub(crate) fn on_loss(&mut self, event: &LossEvent) {
        if let AnyAlgorithm::Ordered(_) = self.0 {
            return;
        }
        self.algorithm_mut().on_loss(event);
    }

    /// The latest loss was none: the packets were late.
    pub(crate) fn on_spurious_loss(&mut self, now: Instant) {
        self.algorithm_mut().on_spurious_loss(now);
    }

    /// The path leads elsewhere or has come back after an outage: start over.
    pub(crate) fn on_path_reset(&mut self, now: Instant) {
        self.algorithm_mut().on_path_reset(now);
    }

    /// One of the clocks has leapt: one-way times are no longer comparable with earlier ones.
    pub(crate) fn on_clock_leap(&mut self) {
        self.algorithm_mut().on_clock_leap();
    }

    /// The path's packet size changed.
    pub(crate) fn on_mtu(&mut self, mtu: Bytes) {
        self.algorithm_mut().on_mtu(mtu);
    }

    /// How much may be in flight.
    #[must_use]
    pub(crate) fn cwnd(&self) -> Bytes {
        self.algorithm().cwnd()
    }

    /// How fast packets may leave.
    #[must_use]
    pub(crate) fn pacing_rate(&self) -> Rate {
        self.algorithm().pacing_rate()
    }

    /// Whether packets are to leave two at a time however slow the path.
    #[must_use]
    pub(crate) fn is_sent_in_pairs(&self) -> bool {
        self.algorithm().is_sent_in_pairs()
    }

    /// What the controller thinks at present.
    #[must_use]
    pub(crate) fn snapshot(&self) -> ControllerSnapshot {
        self.algorithm().snapshot()
    }

    fn algorithm(&self) -> &dyn Algorithm {
        match &self.0 {
            AnyAlgorithm::Cubic(cubic) => cubic.as_ref(),
            AnyAlgorithm::Bbr(bbr) | AnyAlgorithm::Ordered(bbr) => bbr.as_ref(),
            AnyAlgorithm::RmTcp(rmtcp) => rmtcp.as_ref(),
            AnyAlgorithm::Tabane(tabane) => tabane.as_ref(),
        }
    }

    fn algorithm_mut(&mut self) -> &mut dyn Algorithm {
        match &mut self.0 {
            AnyAlgorithm::Cubic(cubic) => cubic.as_mut(),
            AnyAlgorithm::Bbr(bbr) | AnyAlgorithm::Ordered(bbr) => bbr.as_mut(),
            AnyAlgorithm::RmTcp(rmtcp) => rmtcp.as_mut(),
            AnyAlgorithm::Tabane(tabane) => tabane.as_mut(),
        }
    }
}

/// The window before anything is known, for packets of up to `mtu` bytes.
pub(crate) fn initial_window(mtu: Bytes) -> Bytes {
    Bytes::new(mtu.get() * INITIAL_WINDOW_PACKETS)
}

fn scaled(amount: Bytes, factor: f64) -> Bytes {
    Bytes::new((amount.get() as f64 * factor) as u64)
}
