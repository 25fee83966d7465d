//! The host's links and the paths over them, by name.
//!
//! Owns which of them are known, and for how long. Every call is cheap and total: unknown names
//! make entries. When there are too many, the link that was longest without news goes; paths stay
//! while they have news, and then nothing is learnt of others.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use tabane_base::{Bytes, Duration, Instant, Rate};

use super::estimates::{ClockId, Direction, Estimates, MonitorSettings};
use super::pair::Train;
use super::snapshot::{LinkEstimate, PathEstimate};
use super::traffic::share;

/// Links remembered, those that are gone included: several times what a machine has.
pub const MAX_LINKS: usize = 64;
/// Paths remembered per link. A relay's one link has a path per client's link; each takes some
/// 2 kB.
pub const MAX_PATHS: usize = 1_024;
/// A path without news for so long makes room for another where there is none.
const SILENT: Duration = Duration::from_secs(20);
/// How often such ones are looked for: that goes through all of a link's paths.
const LOOK: Duration = Duration::from_secs(1);
/// A link that comes back sooner than this still leads where it did; later, what was known of it
/// is forgotten: the same interface may have joined another network.
const REMEMBERED_FOR: Duration = Duration::from_secs(60);
/// One-way delays older than this compare with nothing: clocks drift apart by up to 100 ppm, some
/// 3 ms in this time.
const COMPARABLE_FOR: Duration = Duration::from_secs(30);

/// Names a path: link and far end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathKey<'a> {
    /// The link's name.
    pub link: &'a str,
    /// The far end's address.
    pub remote: SocketAddr,
}

#[derive(Debug)]
struct Link {
    metered: bool,
    /// When its interface vanished; `None` while it is there.
    gone_at: Option<Instant>,
    paths: BTreeMap<SocketAddr, Estimates>,
    /// Until then there is no room for another path.
    full_until: Option<Instant>,
    touched_at: Instant,
}

impl Link {
    /// What is known of the path to `remote`; `None` where there is no room for it.
    fn path_mut(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        settings: &MonitorSettings,
    ) -> Option<&mut Estimates> {
        if self.paths.len() >= MAX_PATHS && !self.paths.contains_key(&remote) {
            if self.full_until.is_some_and(|until| now < until) {
                return None;
            }
            self.paths
                .retain(|_, path| now.since(path.measured_at) < SILENT);
            if self.paths.len() >= MAX_PATHS {
                self.full_until = Some(now + LOOK);
                return None;
            }
        }
        let path = self.paths.entry(remote);
        let path = path.or_insert_with(|| Estimates::new(now, settings));
        path.measured_at = now;
        Some(path)
    }
}

/// What is known of this host's links. See the crate's documentation.
#[derive(Debug, Default)]
pub struct LinkTable {
    settings: MonitorSettings,
    links: BTreeMap<String, Link>,
}

impl LinkTable {
    /// Knows nothing yet.
    #[must_use]
    pub fn new(settings: MonitorSettings) -> Self {
        Self {
            settings,
            links: BTreeMap::new(),
        }
    }

    /// A link is there, for the first time or again.
    pub fn on_link(&mut self, now: Instant, name: &str, metered: bool) {
        let link = self.link_mut(now, name);
        link.metered = metered;
        if let Some(gone_at) = link.gone_at.take()
            && now.since(gone_at) > REMEMBERED_FOR
        {
            link.paths.clear();
        }
    }

    /// A link's interface vanished. What is known of it is kept in case it comes back soon.
    pub fn on_link_gone(&mut self, now: Instant, name: &str) {
        if let Some(link) = self.links.get_mut(name) {
            link.gone_at.get_or_insert(now);
        }
    }

    /// A round trip took `latest`, and the least since the news before was `least`.
    pub fn on_rtt(&mut self, now: Instant, path: PathKey<'_>, latest: Duration, least: Duration) {
        if let Some(path) = self.path_mut(now, path) {
            path.round_trip.on_sample(now, latest, least);
        }
    }

    /// A packet left at `sent_at` by our clock and arrived at `arrived_at` by the far end's, which
    /// is called `clock`.
    pub fn on_one_way(
        &mut self,
        now: Instant,
        path: PathKey<'_>,
        clock: ClockId,
        (sent_at, arrived_at): (Instant, Instant),
    ) {
        if let Some(path) = self.path_mut(now, path) {
            path.on_one_way(clock, sent_at, arrived_at);
        }
    }

    /// Packets sent back to back arrived.
    pub fn on_train(
        &mut self,
        now: Instant,
        path: PathKey<'_>,
        direction: Direction,
        train: Train,
    ) {
        if let Some(path) = self.path_mut(now, path) {
            path.on_train(now, direction, train);
        }
    }

    /// So much more was acknowledged.
    pub fn on_delivered(&mut self, now: Instant, path: PathKey<'_>, amount: Bytes) {
        if let Some(path) = self.path_mut(now, path) {
            path.traffic.on_delivered(now, amount);
        }
    }

    /// So many more packets were sent and lost.
    pub fn on_packets(&mut self, now: Instant, path: PathKey<'_>, sent: u64, lost: u64) {
        if let Some(path) = self.path_mut(now, path) {
            path.traffic.on_packets(now, sent, lost);
        }
    }

    /// What is believed of the link called `name`.
    #[must_use]
    pub fn link(&self, now: Instant, name: &str) -> Option<LinkEstimate> {
        let (name, link) = self.links.get_key_value(name)?;
        Some(estimate(now, name, link, &self.best_forwards(now)))
    }

    /// What is believed of every link, by name.
    #[must_use]
    pub fn snapshot(&self, now: Instant) -> Vec<LinkEstimate> {
        let best = self.best_forwards(now);
        let links = self.links.iter();
        let links = links.map(|(name, link)| estimate(now, name, link, &best));
        links.collect()
    }

    /// The least forward delay of any path to each clock, offset included.
    fn best_forwards(&self, now: Instant) -> BestForwards {
        let paths = self.links.values().flat_map(|link| link.paths.values());
        let recent = paths.filter(|path| now.since(path.measured_at) <= COMPARABLE_FOR);
        let mut best = BestForwards::new();
        for forward in recent.filter_map(Estimates::forward) {
            let least = best.entry(forward.clock).or_insert(forward.nanos);
            *least = forward.nanos.min(*least);
        }
        best
    }

    fn link_mut(&mut self, now: Instant, name: &str) -> &mut Link {
        if !self.links.contains_key(name) {
            if self.links.len() >= MAX_LINKS {
                let oldest = self.links.iter();
                let oldest =
                    oldest.min_by_key(|(_, link)| (link.gone_at.is_none(), link.touched_at));
                if let Some(oldest) = oldest.map(|(name, _)| name.clone()) {
                    self.links.remove(&oldest);
                }
            }
            let link = Link {
                metered: false,
                gone_at: None,
                paths: BTreeMap::new(),
                full_until: None,
                touched_at: now,
            };
            self.links.insert(name.to_owned(), link);
        }
        let link = self.links.get_mut(name).expect("it was put there above");
        link.touched_at = now;
        link
    }

    fn path_mut(&mut self, now: Instant, key: PathKey<'_>) -> Option<&mut Estimates> {
        let settings = self.settings;
        let link = self.link_mut(now, key.link);
        link.path_mut(now, key.remote, &settings)
    }
}

/// By clock.
type BestForwards = BTreeMap<ClockId, i64>;

fn estimate(now: Instant, name: &str, link: &Link, best: &BestForwards) -> LinkEstimate {
    let paths: Vec<PathEstimate> = link
        .paths
        .iter()
        .map(|(remote, path)| path_estimate(now, *remote, path, best))
        .collect();
    let nearest = paths.iter().filter(|path| path.rtt_min.is_some());
    let nearest = nearest.min_by_key(|path| path.rtt_min);
    let delivered = paths.iter().map(|path| path.delivery_rate.as_bps());
    let packets = paths.iter().fold((0_u64, 0_u64), |(sent, lost), path| {
        (
            sent.saturating_add(path.sent_packets),
            lost.saturating_add(path.lost_packets),
        )
    });
    LinkEstimate {
        name: name.to_owned(),
        present: link.gone_at.is_none(),
        metered: link.metered,
        rtt_smoothed: nearest.and_then(|path| path.rtt_smoothed),
        rtt_min: nearest.and_then(|path| path.rtt_min),
        jitter: nearest.map(|path| path.jitter),
        pair_out: paths.iter().filter_map(|path| path.pair_out).max(),
        pair_in: paths.iter().filter_map(|path| path.pair_in).max(),
        delivery_rate: Rate::from_bps(delivered.fold(0, u64::saturating_add)),
        loss: share(packets),
        queue: paths
            .iter()
            .map(|path| path.queue)
            .max()
            .unwrap_or_default(),
        paths,
    }
}

fn path_estimate(
    now: Instant,
    remote: SocketAddr,
    path: &Estimates,
    best: &BestForwards,
) -> PathEstimate {
    let (sent_packets, lost_packets) = path.traffic.packets(now);
    let beyond = path.forward().and_then(|own| {
        let best = best.get(&own.clock)?;
        Some(own.nanos.saturating_sub(*best).max(0))
    });
    PathEstimate {
        remote,
        rtt_smoothed: path.round_trip.smoothed(),
        rtt_min: path.round_trip.least(now),
        jitter: path.round_trip.jitter(),
        forward_beyond_best: beyond.map(|nanos| Duration::from_nanos(nanos.unsigned_abs())),
        pair_out: path.pair_bandwidth(Direction::Out),
        pair_in: path.pair_bandwidth(Direction::In),
        trains_out: path.trains(Direction::Out),
        trains_in: path.trains(Direction::In),
        bandwidth_out: path.bandwidth(now),
        delivery_rate: path.traffic.delivery_rate(now),
        sent_packets,
        lost_packets,
        loss: share((sent_packets, lost_packets)),
        queue: path.queue(now),
        measured_at: path.measured_at,
    }
}

#[cfg(test)]
mod tests;
