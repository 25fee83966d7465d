//! The links of a scenario, both directions, as an emulator drives them.

use tabane_base::{Duration, Instant, Seed};
use tabane_netem::{Direction, Link, LinkSpec, Scenario};

use crate::control::{Health, LATE, LinkSnapshot, Order, Snapshot};

/// The share of a link's delay that coarse wake-ups may add, as a divisor: 2 %.
const GRANULARITY_SHARE: u32 = 50;

/// Bounds of the time between two wake-ups. Each costs 25 µs on a virtual machine with two cores
/// (context switch and timer): 20,000 a second would be half a core, 5,000 an eighth.
const GRANULARITY_MIN: Duration = Duration::from_micros(50);
const GRANULARITY_MAX: Duration = Duration::from_micros(200);

/// The shortest time between two wake-ups of an emulator for `scenario`.
pub(crate) fn granularity(scenario: &Scenario) -> Duration {
    let delay = |link: &LinkSpec| link.up.delay.min(link.down.delay);
    let links = scenario.links.iter().filter(|link| !link.is_wire());
    let share = links.map(delay).min().unwrap_or_default() / GRANULARITY_SHARE;
    share.clamp(GRANULARITY_MIN, GRANULARITY_MAX)
}

/// All links of a scenario, carrying packets `P`.
#[derive(Debug)]
pub(crate) struct Pairs<P> {
    pairs: Vec<Pair<P>>,
    pub(crate) health: Health,
}

#[derive(Debug)]
struct Pair<P> {
    name: String,
    up: Link<P>,
    down: Link<P>,
}

/// Whether the emulator is to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    GoOn,
    Stop,
}

impl<P> Pairs<P> {
    pub(crate) fn new(scenario: &Scenario, seed: Seed, now: Instant) -> Self {
        let pair = |(index, spec): (usize, &LinkSpec)| {
            let seed = seed.split(&format!("link{}", index + 1));
            Pair {
                name: spec.name.clone(),
                up: Link::new(spec.up.clone(), seed.split("up"), now),
                down: Link::new(spec.down.clone(), seed.split("down"), now),
            }
        };
        Self {
            pairs: scenario.links.iter().enumerate().map(pair).collect(),
            health: Health::default(),
        }
    }

    pub(crate) fn link_mut(&mut self, index: usize, direction: Direction) -> &mut Link<P> {
        let pair = &mut self.pairs[index];
        match direction {
            Direction::Up => &mut pair.up,
            Direction::Down => &mut pair.down,
        }
    }

    /// Hands everything that has arrived by `now` to `deliver`, link by link.
    pub(crate) fn deliver(&mut self, now: Instant, mut deliver: impl FnMut(usize, Direction, P)) {
        for (index, pair) in self.pairs.iter_mut().enumerate() {
            let directions = [
                (Direction::Up, &mut pair.up),
                (Direction::Down, &mut pair.down),
            ];
            for (direction, link) in directions {
                if let Some(due) = link.poll_timeout() {
                    let late = now.since(due);
                    self.health.late_max = self.health.late_max.max(late);
                    self.health.late += u64::from(late > LATE);
                }
                while let Some(packet) = link.poll_output(now) {
                    deliver(index, direction, packet);
                }
            }
        }
    }

    /// When the next packet may arrive.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.pairs
            .iter()
            .flat_map(|pair| [pair.up.poll_timeout(), pair.down.poll_timeout()])
            .flatten()
            .min()
    }

    pub(crate) fn obey(&mut self, now: Instant, order: Order) -> Next {
        match order {
            Order::SetOutage { link, out } => self.each(link, None, |l| l.set_outage(now, out)),
            Order::SetRate {
                link,
                direction,
                rate,
            } => self.each(link, direction, |l| l.set_rate(now, rate)),
            Order::SetDelay {
                link,
                direction,
                delay,
            } => self.each(link, direction, |l| l.set_delay(now, delay)),
            Order::SetLoss {
                link,
                direction,
                loss,
            } => self.each(link, direction, |l| l.set_loss(now, loss)),
            Order::RestartSchedule => {
                for pair in &mut self.pairs {
                    pair.up.restart_schedule(now);
                    pair.down.restart_schedule(now);
                }
                self.health.late_max = Duration::ZERO;
                self.health.late = 0;
            }
            // Whoever asked may have gone away: no harm.
            Order::Snapshot { reply } => drop(reply.send(self.snapshot())),
            Order::Stop => return Next::Stop,
        }
        Next::GoOn
    }

    fn each(
        &mut self,
        link: usize,
        direction: Option<Direction>,
        mut change: impl FnMut(&mut Link<P>),
    ) {
        let Some(pair) = self.pairs.get_mut(link) else {
            return;
        };
        if direction != Some(Direction::Down) {
            change(&mut pair.up);
        }
        if direction != Some(Direction::Up) {
            change(&mut pair.down);
        }
    }

    fn snapshot(&self) -> Snapshot {
        let links = self.pairs.iter().map(|pair| LinkSnapshot {
            name: pair.name.clone(),
            up: pair.up.snapshot(),
            down: pair.down.snapshot(),
            out: pair.up.is_out() && pair.down.is_out(),
        });
        Snapshot {
            links: links.collect(),
            health: self.health,
        }
    }
}
