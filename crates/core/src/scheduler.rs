//! Which path the next packets take. A closed set, chosen by name.
//!
//! A scheduler sees values only: what each path could take now, how fast and how far it is, and
//! how much waits. It never sees data, and it is asked anew after each grant.

mod earliest;

use std::fmt;
use std::str::FromStr;

use tabane_base::{Bytes, Duration, Instant, Rate};
use thiserror::Error;

/// The schedulers there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchedulerKind {
    /// The paths in turn, a packet each: the papers' baseline.
    RoundRobin,
    /// The path with the least round-trip time that has room: the field's baseline.
    MinRtt,
    /// The path on which the data arrives earliest, or none while waiting is earlier.
    Tabane,
}

impl SchedulerKind {
    /// All of them, the default first.
    pub const ALL: [Self; 3] = [Self::Tabane, Self::MinRtt, Self::RoundRobin];

    /// The name users choose it by.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RoundRobin => "round-robin",
            Self::MinRtt => "min-rtt",
            Self::Tabane => "tabane",
        }
    }
}

impl fmt::Display for SchedulerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that no scheduler has.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("no scheduler called {0:?}: choose tabane, min-rtt or round-robin")]
pub struct UnknownScheduler(String);

impl FromStr for SchedulerKind {
    type Err = UnknownScheduler;
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.into_iter().find(|kind| kind.name() == name);
        known.ok_or_else(|| UnknownScheduler(name.to_owned()))
    }
}

/// What a scheduler knows of an active path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathView {
    /// Its place in the session's list.
    pub(crate) index: usize,
    /// What may leave now, by window and pacer.
    pub(crate) room: Bytes,
    /// How long until a full packet may leave; zero when it may now.
    pub(crate) wait: Duration,
    pub(crate) rate: Rate,
    /// Round-trip time, smoothed.
    pub(crate) rtt: Duration,
    /// One-way delay towards the peer; only differences between paths are exact.
    pub(crate) delay: Duration,
    /// A full packet.
    pub(crate) packet: Bytes,
}

impl PathView {
    fn has_room(&self) -> bool {
        self.room >= self.packet
    }

    fn packets(&self) -> usize {
        (self.room.get() / self.packet.get().max(1)).max(1) as usize
    }
}

/// Permission to send on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) index: usize,
    pub(crate) packets: usize,
}

/// A scheduler with what it remembers between packets.
#[derive(Debug)]
pub(crate) struct Scheduler {
    kind: SchedulerKind,
    /// Round robin: the path after the last one.
    next: usize,
}

impl Scheduler {
    pub(crate) const fn new(kind: SchedulerKind) -> Self {
        Self { kind, next: 0 }
    }

    /// Whether what sits on a slow path may be repeated on an idle faster one.
    pub(crate) fn reinjects(&self) -> bool {
        self.kind == SchedulerKind::Tabane
    }

    /// Where the next packets go; `None`: wait. `backlog` is what wants to be sent.
    pub(crate) fn choose(&mut self, paths: &[PathView], backlog: Bytes) -> Option<Grant> {
        match self.kind {
            SchedulerKind::RoundRobin => self.take_turn(paths),
            SchedulerKind::MinRtt => min_rtt(paths),
            SchedulerKind::Tabane => earliest::choose(paths, backlog),
        }
    }

    fn take_turn(&mut self, paths: &[PathView]) -> Option<Grant> {
        let with_room = || paths.iter().filter(|path| path.has_room());
        let path = with_room()
            .find(|path| path.index >= self.next)
            .or_else(|| with_room().next())?;
        self.next = path.index + 1;
        Some(Grant {
            index: path.index,
            packets: 1,
        })
    }
}

fn min_rtt(paths: &[PathView]) -> Option<Grant> {
    let path = paths
        .iter()
        .filter(|path| path.has_room())
        .min_by_key(|path| path.rtt)?;
    Some(Grant {
        index: path.index,
        packets: path.packets(),
    })
}

/// The time from now to when a packet that waits for the path arrives by it.
fn arrival(path: &PathView) -> Duration {
    let on_link = path.rate.time_for(path.packet);
    path.wait.saturating_add(path.delay).saturating_add(on_link)
}

/// A moment as the wait from `now`.
pub(crate) fn wait_until(now: Instant, at: Instant) -> Duration {
    at.since(now)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn path(index: usize, room: u64, rate: u64, delay_ms: u64) -> PathView {
        let rate = Rate::from_mbps(rate);
        let packet = Bytes::new(1_000);
        PathView {
            index,
            room: Bytes::new(room),
            wait: if room >= 1_000 {
                Duration::ZERO
            } else {
                rate.time_for(packet)
            },
            rate,
            rtt: Duration::from_millis(2 * delay_ms),
            delay: Duration::from_millis(delay_ms),
            packet,
        }
    }

    #[test]
    fn round_robin_takes_turns_and_skips_the_full() {
        let mut scheduler = Scheduler::new(SchedulerKind::RoundRobin);
        let paths = [
            path(0, 9_000, 10, 1),
            path(1, 0, 10, 1),
            path(2, 9_000, 10, 1),
        ];
        let order: Vec<_> = (0..4)
            .filter_map(|_| scheduler.choose(&paths, Bytes::MAX))
            .map(|grant| (grant.index, grant.packets))
            .collect();
        assert_eq!(order, [(0, 1), (2, 1), (0, 1), (2, 1)]);
    }

    #[test]
    fn min_rtt_fills_the_nearest_path_with_room() {
        let mut scheduler = Scheduler::new(SchedulerKind::MinRtt);
        let paths = [
            path(0, 9_000, 10, 30),
            path(1, 4_500, 10, 10),
            path(2, 0, 10, 1),
        ];
        let grant = scheduler.choose(&paths, Bytes::MAX);
        assert_eq!(
            grant,
            Some(Grant {
                index: 1,
                packets: 4
            })
        );
    }
}
