//! Which path a message takes.
//!
//! Pure, over the figures that the stack tells.

use std::collections::BTreeMap;
use std::collections::VecDeque;

use crate::{Multipath, PathId, PathState, PathStatus, Settings};

/// How messages are spread over paths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scheduler {
    /// All paths at once, each as its window allows (CMT); by weights where the policy has some.
    #[default]
    Tabane,
    /// ARMS by the letter: cwnd bytes to each path, then all cwnds are read again (CMT off).
    Cwnd,
    /// One message to each path in turn.
    RoundRobin,
    /// The primary path alone, as SCTP does by itself; the others when it fails.
    Primary,
}

/// The send buffer of the paper's FreeBSD 7, in bytes; a round waits while it is full.
const PAPER_SEND_BUFFER: u64 = 233_016;

impl Scheduler {
    /// What the stack has to be set to.
    pub fn settings(self) -> Settings {
        let mut settings = Settings::default();
        match self {
            Self::Tabane | Self::RoundRobin => {}
            Self::Cwnd => {
                settings.rescue = false;
                settings.brake = false;
                settings.multipath = Multipath::Primary;
                settings.send_buffer = tabane_base::Bytes::new(PAPER_SEND_BUFFER);
            }
            Self::Primary => {
                settings.rescue = false;
                settings.brake = false;
                settings.multipath = Multipath::Primary;
            }
        }
        settings
    }
}

/// A choice to be made for every message.
#[derive(Debug)]
pub(crate) struct Distribution {
    scheduler: Scheduler,
    /// What each path is still to get in this round.
    round: VecDeque<(PathId, u64)>,
    /// What each path got, divided by what it should get.
    virtual_time: BTreeMap<PathId, f64>,
    last: Option<PathId>,
}

impl Distribution {
    pub(crate) fn new(scheduler: Scheduler) -> Self {
        Self {
            scheduler,
            round: VecDeque::new(),
            virtual_time: BTreeMap::new(),
            last: None,
        }
    }

    /// The path for a message of `len` bytes, which is then taken for sent; `None` leaves it to the
    /// stack. `paths` with their weights are read only when needed.
    pub(crate) fn choose(
        &mut self,
        len: u64,
        weighted: bool,
        paths: impl FnOnce() -> Vec<(PathStatus, f64)>,
    ) -> Option<PathId> {
        match self.scheduler {
            Scheduler::Primary => None,
            Scheduler::Tabane if !weighted => None,
            Scheduler::Tabane => self.by_weight(len, &active(paths())),
            Scheduler::Cwnd => self.by_round(len, paths),
            Scheduler::RoundRobin => self.in_turn(&active(paths())),
        }
    }

    /// A message was refused for this path: it is no longer counted on.
    pub(crate) fn on_refused(&mut self, path: PathId) {
        self.round.retain(|(other, _)| *other != path);
    }

    /// ARMS section 4, steps (4) and (5).
    fn by_round(
        &mut self,
        len: u64,
        paths: impl FnOnce() -> Vec<(PathStatus, f64)>,
    ) -> Option<PathId> {
        if self.round.is_empty() {
            let shares = active(paths()).into_iter();
            self.round = shares
                .map(|(status, _)| (status.path, status.cwnd.get()))
                .collect();
        }
        let (path, left) = self.round.front_mut()?;
        let path = *path;
        *left = left.saturating_sub(len);
        if *left == 0 {
            self.round.pop_front();
        }
        Some(path)
    }

    fn in_turn(&mut self, paths: &[(PathStatus, f64)]) -> Option<PathId> {
        let after = |status: &&(PathStatus, f64)| Some(status.0.path) > self.last;
        let next = paths.iter().find(after).or_else(|| paths.first())?;
        self.last = Some(next.0.path);
        self.last
    }

    /// In proportion to weight × window / round trip.
    fn by_weight(&mut self, len: u64, paths: &[(PathStatus, f64)]) -> Option<PathId> {
        let rate = |status: &PathStatus| {
            let rtt = status.srtt.as_secs_f64().max(1e-3);
            status.cwnd.get() as f64 / rtt
        };
        let is_here = |path: &PathId| paths.iter().any(|(status, _)| status.path == *path);
        self.virtual_time.retain(|path, _| is_here(path));
        // A path that comes anew begins where the others are.
        let least = self.virtual_time.values().copied().min_by(f64::total_cmp);
        for (status, _) in paths {
            let begin = least.unwrap_or(0.0);
            self.virtual_time.entry(status.path).or_insert(begin);
        }
        let usable = paths.iter().filter(|(_, weight)| *weight > 0.0);
        let (path, end) = usable
            .map(|(status, weight)| {
                let cost = len as f64 / (weight * rate(status)).max(1.0);
                (status.path, self.virtual_time[&status.path] + cost)
            })
            .min_by(|(_, a), (_, b)| a.total_cmp(b))?;
        self.virtual_time.insert(path, end);
        Some(path)
    }
}

fn active(paths: Vec<(PathStatus, f64)>) -> Vec<(PathStatus, f64)> {
    let works = |(status, _): &(PathStatus, f64)| status.state == PathState::Active;
    paths.into_iter().filter(works).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LinkId, PathTuple};
    use std::net::{IpAddr, Ipv4Addr, SocketAddr};
    use std::time::Duration;
    use tabane_base::Bytes;

    fn path(number: u8, cwnd: u64, srtt_ms: u64) -> PathStatus {
        let address = IpAddr::from(Ipv4Addr::new(10, 0, 0, number));
        PathStatus {
            path: PathId(address),
            way: PathTuple {
                link: LinkId(number.into()),
                remote: SocketAddr::new(address, 9899),
            },
            state: PathState::Active,
            cwnd: Bytes::new(cwnd),
            srtt: Duration::from_millis(srtt_ms),
            rto: Duration::from_secs(1),
            mtu: 1_392,
        }
    }

    fn shares(scheduler: Scheduler, paths: &[(PathStatus, f64)], messages: usize) -> Vec<usize> {
        let mut distribution = Distribution::new(scheduler);
        let mut counts = vec![0; paths.len()];
        for _ in 0..messages {
            let chosen = distribution.choose(1_000, true, || paths.to_vec());
            let at = paths.iter().position(|(p, _)| Some(p.path) == chosen);
            counts[at.unwrap()] += 1;
        }
        counts
    }

    #[test]
    fn each_scheduler_spreads_as_its_name_says() {
        let both = [(path(1, 6_000, 10), 1.0), (path(2, 2_000, 20), 1.0)];
        assert_eq!(shares(Scheduler::Cwnd, &both, 16), [12, 4]);
        assert_eq!(shares(Scheduler::RoundRobin, &both, 10), [5, 5]);
        // 600 : 100 by window over round trip; half of the first may be used.
        assert_eq!(shares(Scheduler::Tabane, &both, 700), [600, 100]);
        let halved = [(both[0].0, 0.5), both[1]];
        assert_eq!(shares(Scheduler::Tabane, &halved, 400), [300, 100]);
        // A path that does not work gets nothing.
        let silent = PathStatus {
            state: PathState::Inactive,
            ..both[0].0
        };
        let one = [(silent, 1.0), both[1]];
        for scheduler in [Scheduler::Cwnd, Scheduler::RoundRobin, Scheduler::Tabane] {
            assert_eq!(shares(scheduler, &one, 9), [0, 9]);
        }
    }

    #[test]
    fn a_round_of_the_papers_is_cwnd_bytes_each_one_path_after_the_other() {
        let mut distribution = Distribution::new(Scheduler::Cwnd);
        let paths = || vec![(path(1, 2_500, 10), 1.0), (path(2, 1_000, 10), 1.0)];
        let mut next = || {
            distribution
                .choose(1_000, false, paths)
                .map(|chosen| chosen.0)
        };
        let chosen: Vec<_> = (0..8).filter_map(|_| next()).collect();
        let expected = [1, 1, 1, 2, 1, 1, 1, 2].map(|n| path(n, 0, 0).path.0);
        assert_eq!(chosen, expected);
    }
}
