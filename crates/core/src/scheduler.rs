//! Which path the next packets take. A closed set, chosen by name.
//!
//! A scheduler sees values only: what each path could take now, how fast and how far it is, what
//! its owner wishes, and how much waits. It never sees data, and it is asked anew after each grant.
//! Two of them deal data out before it can leave; what they set aside is held by `distribution`.

mod arrival;
mod backup;
mod cwnd;
mod min_rtt;
mod redundant;
mod round_robin;
mod tabane;
#[cfg(test)]
mod tests;
mod weighted;

use std::fmt;
use std::str::FromStr;

use tabane_base::{Bytes, Duration, Rate};
use thiserror::Error;

use crate::id::{PathId, PathIndex};
use arrival::Arrival;
use cwnd::Cwnd;
use round_robin::RoundRobin;
use weighted::Weighted;

/// A share that a path cannot use for so long is forfeited: rounds must not wait for a path whose
/// rate has fallen to nothing.
const STUCK_AFTER: Duration = Duration::from_secs(1);

/// The schedulers there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchedulerKind {
    /// Earliest arrival in order, or none while waiting is earlier.
    Tabane,
    /// R-M/TCP: data is dealt out ahead of time, so that it arrives in order.
    Arrival,
    /// SBAM: rounds in proportion to rate and weight.
    Weighted,
    /// ARMS: a congestion window's worth to each path in turn.
    Cwnd,
    /// The path with the least round-trip time that has room: the field's baseline.
    MinRtt,
    /// The paths in turn, a packet each: the papers' baseline.
    RoundRobin,
    /// Everything on every path: the least delay, for the most bytes.
    Redundant,
    /// Everything on the most preferred path that works.
    Backup,
}

impl SchedulerKind {
    /// All of them, the default first.
    pub const ALL: [Self; 8] = [
        Self::Tabane,
        Self::Arrival,
        Self::Weighted,
        Self::Cwnd,
        Self::MinRtt,
        Self::RoundRobin,
        Self::Redundant,
        Self::Backup,
    ];

    /// The name users choose it by.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tabane => "tabane",
            Self::Arrival => "arrival",
            Self::Weighted => "weighted",
            Self::Cwnd => "cwnd",
            Self::MinRtt => "min-rtt",
            Self::RoundRobin => "round-robin",
            Self::Redundant => "redundant",
            Self::Backup => "backup",
        }
    }
}

impl fmt::Display for SchedulerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that no scheduler has.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("no scheduler called {0:?}: choose one of {names}", names = names())]
pub struct UnknownScheduler(String);

fn names() -> String {
    SchedulerKind::ALL.map(SchedulerKind::name).join(", ")
}

impl FromStr for SchedulerKind {
    type Err = UnknownScheduler;
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.into_iter().find(|kind| kind.name() == name);
        known.ok_or_else(|| UnknownScheduler(name.to_owned()))
    }
}

/// What a scheduler knows of a path that may be used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathView {
    pub(crate) id: PathId,
    /// Its place in the session's list.
    pub(crate) index: PathIndex,
    /// What may leave now, by window and pacer.
    pub(crate) room: Bytes,
    /// How long until a full packet may leave; zero when it may now.
    pub(crate) wait: Duration,
    /// How fast the path may be used, before its weight.
    pub(crate) rate: Rate,
    /// What share of the path its owner lets us use, 0 to 1 (SBAM's α).
    pub(crate) weight: f64,
    pub(crate) cwnd: Bytes,
    /// Round-trip time, smoothed.
    pub(crate) rtt: Duration,
    /// One-way delay towards the peer; only differences between paths are exact.
    pub(crate) delay: Duration,
    /// By how much later than `delay` says it may be: nothing once its rate is measured.
    pub(crate) late: Duration,
    /// A full packet.
    pub(crate) packet: Bytes,
    /// How long ago the last packet left.
    pub(crate) sent_ago: Duration,
    /// Pieces that were set aside for the path.
    pub(crate) listed: usize,
}

impl PathView {
    fn has_room(&self) -> bool {
        self.room >= self.packet
    }

    fn packets(&self) -> usize {
        (self.room.get() / self.packet.get().max(1)).max(1) as usize
    }

    /// How fast the path may be used.
    fn allowed(&self) -> Rate {
        if self.weight < 1.0 {
            self.rate.scaled(self.weight)
        } else {
            self.rate
        }
    }

    /// The time from now to when a packet that waits for the path arrives by it.
    fn arrival(&self) -> Duration {
        let on_link = self.rate.time_for(self.packet);
        self.wait.saturating_add(self.delay).saturating_add(on_link)
    }

    /// As many packets as there is room for, of what is next.
    fn grant(&self) -> Grant {
        Grant {
            index: self.index,
            packets: self.packets(),
            ahead: Bytes::ZERO,
            arrival: Some(self.arrival()),
            carries: Carries::Both,
        }
    }

    fn grant_packets(&self, most: u64) -> Grant {
        let packets = self
            .packets()
            .min(usize::try_from(most).unwrap_or(usize::MAX));
        Grant {
            packets,
            ..self.grant()
        }
    }
}

/// Permission to send on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) index: PathIndex,
    pub(crate) packets: usize,
    /// The packets carry what stands behind so many unsent bytes: others bring those sooner.
    pub(crate) ahead: Bytes,
    /// How long from now until the first arrives, where that is known.
    pub(crate) arrival: Option<Duration>,
    pub(crate) carries: Carries,
}

impl Grant {
    /// A packet of whatever is next, as a probe.
    pub(crate) const fn probe(index: PathIndex) -> Self {
        Self {
            index,
            packets: 1,
            ahead: Bytes::ZERO,
            arrival: None,
            carries: Carries::Both,
        }
    }
}

/// Of what waits, what a path is the right one for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carries {
    Both,
    Streams,
    Datagrams,
}

/// What wants to be sent, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Backlog {
    /// Of streams, and not dealt out.
    pub(crate) streams: Bytes,
    /// Of streams as well, when their first credit is renewed.
    pub(crate) beyond: Bytes,
    /// Of `streams`, what stands in the latter half of a first credit that will be renewed.
    pub(crate) latter: Bytes,
    pub(crate) datagrams: Bytes,
}

/// Whether data is dealt out to paths before it can leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dealing {
    /// No: a packet takes what is next when it leaves.
    AtOnce,
    /// Each piece to one path.
    Ahead,
    /// Each piece to every path.
    Everywhere,
}

/// A scheduler with what it remembers between packets.
#[derive(Debug)]
pub(crate) struct Scheduler(State);

#[derive(Debug)]
enum State {
    Tabane,
    Arrival(Arrival),
    Weighted(Weighted),
    Cwnd(Cwnd),
    MinRtt,
    RoundRobin(RoundRobin),
    Redundant,
    Backup,
}

impl Scheduler {
    pub(crate) fn new(kind: SchedulerKind) -> Self {
        Self(match kind {
            SchedulerKind::Tabane => State::Tabane,
            SchedulerKind::Arrival => State::Arrival(Arrival::default()),
            SchedulerKind::Weighted => State::Weighted(Weighted::default()),
            SchedulerKind::Cwnd => State::Cwnd(Cwnd::default()),
            SchedulerKind::MinRtt => State::MinRtt,
            SchedulerKind::RoundRobin => State::RoundRobin(RoundRobin::default()),
            SchedulerKind::Redundant => State::Redundant,
            SchedulerKind::Backup => State::Backup,
        })
    }

    /// Whether what sits on a slow path may be repeated on an idle faster one.
    pub(crate) const fn reinjects(&self) -> bool {
        matches!(self.0, State::Tabane)
    }

    pub(crate) const fn dealing(&self) -> Dealing {
        match self.0 {
            State::Arrival(_) => Dealing::Ahead,
            State::Redundant => Dealing::Everywhere,
            _ => Dealing::AtOnce,
        }
    }

    /// Where the next packets go; `None`: wait.
    pub(crate) fn choose(&mut self, paths: &[PathView], backlog: Backlog) -> Option<Grant> {
        match &mut self.0 {
            State::Tabane => tabane::choose(paths, backlog),
            State::Arrival(_) => arrival::choose(paths),
            State::Weighted(weighted) => weighted.choose(paths),
            State::Cwnd(cwnd) => cwnd.choose(paths),
            State::MinRtt => min_rtt::choose(paths),
            State::RoundRobin(turns) => turns.choose(paths),
            State::Redundant => redundant::choose(paths),
            State::Backup => backup::choose(paths),
        }
    }

    /// Whether everything set aside should be dealt out again, because paths have changed.
    pub(crate) fn must_deal_again(&mut self, paths: &[PathView]) -> bool {
        match &mut self.0 {
            State::Arrival(arrival) => arrival.must_deal_again(paths),
            _ => false,
        }
    }

    /// For which path the next piece is set aside; `None`: enough is. The index is one of `paths`.
    pub(crate) fn deal(&self, paths: &[PathView]) -> Option<usize> {
        match &self.0 {
            State::Arrival(_) => arrival::deal(paths),
            _ => None,
        }
    }
}
