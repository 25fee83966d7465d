//! What a seed stands for: a world and what is done to it, one thing after the other.
//!
//! Operations are drawn before the world exists and name links, paths and jobs by numbers that are
//! taken modulo what there is, so that a list without some of them still means something.

use std::fmt;

use tabane_base::{Bytes, Duration, Rate, Rng, Seed};
use tabane_core::{ControllerKind, SchedulerKind, SessionConfig};
use tabane_netem::{LinkConfig, LinkSpec, LossModel, Probability, RateModel};
use tabane_sim::{Setup, World};

use super::checks::{self, HEALING};
use super::operations::{Operation, apply, heal};

/// Every so many worlds one is large.
const LARGE: u64 = 16;

/// A seed's world and operations.
#[derive(Clone)]
pub(crate) struct Plan {
    seed: u64,
    is_large: bool,
    /// Each with how long the world runs after it.
    steps: Vec<(Operation, Duration)>,
}

impl Plan {
    pub(crate) fn draw(seed: u64) -> Self {
        let mut rng = Seed(seed).rng("operations");
        let is_large = seed % LARGE == LARGE - 1;
        let (count, pause) = match is_large {
            true => (40, 300_000),
            false => (4 + rng.below(12), 80_000),
        };
        let step = |_| {
            let operation = Operation::draw(&mut rng, is_large);
            (operation, Duration::from_micros(rng.below(pause)))
        };
        Self {
            seed,
            is_large,
            steps: (0..count).map(step).collect(),
        }
    }

    /// With some of what came to the list later, at places of its own.
    pub(crate) fn with_more(mut self) -> Self {
        let mut rng = Seed(self.seed).rng("more operations");
        for _ in 0..rng.below(5) {
            let at = rng.below(self.steps.len() as u64 + 1) as usize;
            let pause = Duration::from_micros(rng.below(80_000));
            self.steps
                .insert(at, (Operation::draw_more(&mut rng), pause));
        }
        self
    }

    /// The shortest list that still fails, found by leaving out ever smaller parts (delta
    /// debugging, Zeller and Hildebrandt 2002).
    pub(crate) fn shrink(&self, fails: impl Fn(&Self) -> bool) -> Self {
        let mut least = self.clone();
        let mut size = least.steps.len().div_ceil(2);
        while size > 0 {
            let mut at = 0;
            while at < least.steps.len() {
                let mut fewer = least.clone();
                let end = (at + size).min(fewer.steps.len());
                fewer.steps.drain(at..end);
                match fails(&fewer) {
                    true => least = fewer,
                    false => at += size,
                }
            }
            size /= 2;
        }
        least
    }

    fn setup(&self) -> Setup {
        let mut rng = Seed(self.seed).rng("world");
        let mut setup = Setup::new(Seed(self.seed), links(&mut rng, self.is_large));
        setup.client = config(&mut rng);
        setup.server = config(&mut rng);
        setup.sample_interval = match self.is_large {
            true => Duration::from_micros(500),
            false => Duration::from_millis(5),
        };
        setup
    }

    /// Runs it.
    ///
    /// # Panics
    /// When anything is not as it must be.
    pub(crate) fn play(&self, loud: bool) {
        let setup = self.setup();
        let limits = [setup.client.receive_memory, setup.server.receive_memory];
        if loud {
            println!("{setup:#?}\n{self}");
        }
        let mut world = World::new(setup);
        world.network_mut().capture();
        world.connect();
        for (operation, pause) in &self.steps {
            if loud {
                println!("{} {operation:?}", world.now());
            }
            apply(&mut world, operation);
            world.run_for(*pause);
            checks::check(&world, limits);
        }
        heal(&mut world);
        let healed_at = world.now();
        if loud {
            println!("{healed_at} healed\n{}", checks::describe(&world));
        }
        let done = world.run_while(healed_at + HEALING, |world| !world.all_over());
        if loud {
            println!("over {:?} after healing", world.now() - healed_at);
        }
        checks::check(&world, limits);
        let text = || checks::describe(&world);
        assert!(done, "not over {HEALING:?} after healing:\n{}", text());
        checks::check_jobs(&world);
        checks::check_end(world);
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (operation, pause) in &self.steps {
            writeln!(f, "  {operation:?}, then {pause:?}")?;
        }
        Ok(())
    }
}

fn links(rng: &mut Rng, is_large: bool) -> Vec<LinkSpec> {
    let count = 1 + rng.below(if is_large { 4 } else { 3 });
    let delay = if is_large { 90_000 } else { 30_000 };
    let link = |index| {
        let config = LinkConfig {
            rate: RateModel::Constant(Rate::from_bps(500_000 + rng.below(30_000_000))),
            queue: Bytes::kilo(8 + rng.below(200)),
            delay: Duration::from_micros(rng.below(delay)),
            jitter: Duration::from_micros(rng.below(2) * rng.below(10_000)),
            loss: match rng.below(3) {
                0 => LossModel::Random(Probability::new(rng.unit() * 0.03).expect("below one")),
                _ => LossModel::None,
            },
            ..LinkConfig::wire()
        };
        LinkSpec {
            name: format!("link {index}"),
            up: config.clone(),
            down: config,
        }
    };
    (0..count).map(link).collect()
}

/// Everything that ships; the default controller half of the time.
fn config(rng: &mut Rng) -> SessionConfig {
    let memory = [64, 256, 1_000, 16_000][rng.below(4) as usize];
    let (controllers, schedulers) = (ControllerKind::ALL, SchedulerKind::ALL);
    SessionConfig {
        scheduler: schedulers[rng.below(schedulers.len() as u64) as usize],
        controller: match rng.chance(0.5) {
            true => ControllerKind::Tabane,
            false => controllers[rng.below(controllers.len() as u64) as usize],
        },
        receive_memory: Bytes::kilo(memory),
        send_memory: Bytes::kilo([64, 1_000, 16_000][rng.below(3) as usize]),
        keep_alive: Duration::from_millis(500 + rng.below(5_000)),
        handshake_timeout: Duration::from_secs(60),
        packets_per_key: [16, 100, 1_000, 1 << 22][rng.below(4) as usize],
        probe_metered: rng.chance(0.5),
        max_udp_payload: [1_200, 1_472, 9_000][rng.below(3) as usize],
        ..SessionConfig::default()
    }
}
