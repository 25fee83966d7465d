//! A world's run as time series: what an observer writes down who looks at it at a steady pace.
//!
//! Uses only what a [`World`] shows to anyone. Counters are kept as they are at each look; rates
//! are their differences.

use tabane_base::{Bytes, Duration, Instant, Rate};
use tabane_core::PathSnapshot;
use tabane_netem::Direction;

use crate::network::LinkId;
use crate::side::Side;
use crate::world::World;

/// What waits for order changes within a round trip: it is looked at so often per sample, and the
/// most is kept.
const LOOKS_PER_SAMPLE: u32 = 10;

/// One link at one moment, in the direction that carries the data.
#[derive(Clone, Debug)]
pub struct LinkSample {
    /// Came out of the link so far, at IP level.
    pub carried: Bytes,
    /// Waits in the link's queue.
    pub queued: Bytes,
    /// The path on it as the sender sees it, once there is one.
    pub path: Option<PathSnapshot>,
}

/// The world at one moment.
#[derive(Clone, Debug)]
pub struct Sample {
    /// When it was measured.
    pub at: Instant,
    /// Stream data that the reader has, so far.
    pub delivered: Bytes,
    /// The most that waited for order at the reader since the sample before.
    pub held: Bytes,
    /// Every link, in the scenario's order.
    pub links: Vec<LinkSample>,
}

/// A run.
#[derive(Clone, Debug)]
pub struct Series {
    /// The way the data went.
    pub direction: Direction,
    /// Evenly spaced, the first at the beginning.
    pub samples: Vec<Sample>,
}

impl Series {
    /// Runs `world` until `end` and looks at it every `step`.
    pub fn record(world: &mut World, direction: Direction, step: Duration, end: Instant) -> Self {
        let mut series = Self {
            direction,
            samples: vec![look(world, direction, Bytes::ZERO)],
        };
        let reader = series.reader();
        while world.now() < end {
            let mut held = Bytes::ZERO;
            let next = (world.now() + step).min(end);
            for _ in 0..LOOKS_PER_SAMPLE {
                let at = world.now() + step / LOOKS_PER_SAMPLE;
                world.run_until(at.min(next));
                held = held.max(held_at(world, reader));
            }
            world.run_until(next);
            series.samples.push(look(world, direction, held));
        }
        series
    }

    /// Who reads.
    #[must_use]
    pub const fn reader(&self) -> Side {
        match self.direction {
            Direction::Up => Side::Server,
            Direction::Down => Side::Client,
        }
    }

    /// What the reader got by time: the middle of each step in s, and the rate in it.
    #[must_use]
    pub fn goodput(&self) -> Vec<(f64, Rate)> {
        self.rates(|sample| sample.delivered)
    }

    /// What a link carried by time, at IP level.
    #[must_use]
    pub fn carried(&self, link: LinkId) -> Vec<(f64, Rate)> {
        self.rates(|sample| sample.links[link.0].carried)
    }

    fn rates(&self, counter: impl Fn(&Sample) -> Bytes) -> Vec<(f64, Rate)> {
        let rate = |pair: &[Sample]| {
            let middle = (pair[0].at.as_secs_f64() + pair[1].at.as_secs_f64()) / 2.0;
            let amount = counter(&pair[1]) - counter(&pair[0]);
            (middle, Rate::of(amount, pair[1].at - pair[0].at))
        };
        self.samples.windows(2).map(rate).collect()
    }
}

fn look(world: &World, direction: Direction, held: Bytes) -> Sample {
    let (reader, sender) = match direction {
        Direction::Up => (Side::Server, Side::Client),
        Direction::Down => (Side::Client, Side::Server),
    };
    let paths = paths_by_link(world, sender);
    let link = |(index, path)| {
        let counters = world.network().counters(LinkId(index), direction);
        LinkSample {
            carried: counters.delivered.bytes,
            queued: counters.queued,
            path,
        }
    };
    Sample {
        at: world.now(),
        delivered: world.outcome(reader).delivered(),
        held,
        links: paths.into_iter().enumerate().map(link).collect(),
    }
}

/// The sender's view of the path on each link. Only the client knows which link a path is on.
fn paths_by_link(world: &World, sender: Side) -> Vec<Option<PathSnapshot>> {
    let mut by_link = vec![None; world.network().len()];
    let snapshot = |side| {
        world
            .session(side)
            .map(|session| session.snapshot(world.now()))
    };
    let (Some(client), Some(sender)) = (snapshot(Side::Client), snapshot(sender)) else {
        return by_link;
    };
    for path in client.paths {
        let place = by_link.get_mut(path.tuple.socket.0 as usize);
        let seen = sender.paths.iter().find(|other| other.id == path.id);
        if let (Some(place), Some(seen)) = (place, seen) {
            *place = Some(seen.clone());
        }
    }
    by_link
}

fn held_at(world: &World, reader: Side) -> Bytes {
    let session = world.session(reader);
    session.map_or(Bytes::ZERO, |session| {
        session.snapshot(world.now()).receive_memory
    })
}

#[cfg(test)]
mod tests {
    use tabane_base::Seed;
    use tabane_netem::{LinkConfig, LinkSpec, RateModel};

    use super::*;
    use crate::{Setup, Transfer};

    #[test]
    fn the_parts_add_up_to_the_whole() {
        let link = |name: &str, mbps| {
            let config = LinkConfig {
                rate: RateModel::Constant(Rate::from_mbps(mbps)),
                queue: Bytes::kilo(100),
                delay: Duration::from_millis(10),
                ..LinkConfig::wire()
            };
            LinkSpec {
                name: name.to_owned(),
                up: config.clone(),
                down: config,
            }
        };
        let mut world = World::new(Setup::new(Seed(1), vec![link("a", 20), link("b", 10)]));
        world.connect();
        world.add(Transfer::upload());
        let end = Instant::from_millis(3_030);
        let step = Duration::from_millis(100);
        let series = Series::record(&mut world, Direction::Up, step, end);
        assert_eq!(series.samples.len(), 32);
        assert_eq!(series.samples.last().unwrap().at, end);
        let middle = |rates: Vec<(f64, Rate)>| rates[20].1.as_mbps_f64();
        let goodput = middle(series.goodput());
        let [a, b] = [0, 1].map(|link| middle(series.carried(LinkId(link))));
        assert!((a - 20.0).abs() < 0.5 && (b - 10.0).abs() < 0.5, "{a} {b}");
        assert!(
            goodput < a + b && goodput > 0.9 * (a + b),
            "{goodput} of {a} + {b}"
        );
        let last = &series.samples[31];
        for (sample, mbps) in last.links.iter().zip([20, 10]) {
            let path = sample.path.as_ref().unwrap();
            let rate = path.delivery_rate.as_mbps_f64();
            assert!(
                (rate / f64::from(mbps) - 1.0).abs() < 0.2,
                "{rate} of {mbps}"
            );
        }
    }
}
