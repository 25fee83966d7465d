//! What can be done to a world: by its application, its user, its links and its enemies.

use tabane_base::{Bytes, Duration, Rate, Rng};
use tabane_core::{ClassId, ClassRule, DatagramOrder, PathId, PathPolicy};
use tabane_netem::{Direction, LossModel};
use tabane_sim::{JobId, LinkId, Pace, Side, Tamper, Transfer, UdpLoad, World};

use super::adversary::{self, Trick};

/// One thing. Links, paths and jobs are numbers, modulo how many there are then.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    Transfer {
        up: u64,
        down: u64,
    },
    Datagrams {
        from: Side,
        count: u64,
        len: usize,
    },
    Flow {
        from: Side,
        size: usize,
        rate: Rate,
        order: DatagramOrder,
    },
    Tamper(u64, Tamper),
    Rebind {
        link: u64,
        other_address: bool,
    },
    /// The same cable in another place: another address, delay and rate.
    Roam {
        link: u64,
        rate: Rate,
        delay: Duration,
    },
    OpenPath(u64),
    ClosePath(Side, u64),
    Outage(u64, bool),
    LoseInterface(u64),
    RestoreInterface(u64),
    Pace(u64, Side, Pace),
    Reset(u64, Side),
    Stop(u64, Side),
    Rate(u64, Rate),
    Policy(Side, u64, PathPolicy),
    /// How a class is sent; over the path of this number alone, or all.
    Class {
        class: u8,
        path: Option<u64>,
        redundant: bool,
    },
    Classify {
        job: u64,
        class: u8,
    },
    Measure(Side, u64),
    Suspend(Side, Duration),
    /// A clock leaps forward.
    Leap(Side, Duration),
    /// Another session between the same hosts.
    Beside,
    /// One of these opens a stream.
    SayBeside {
        number: u64,
        up: usize,
        down: usize,
    },
    Drain,
    Adversary {
        link: u64,
        to: Side,
        trick: Trick,
    },
}

fn side(rng: &mut Rng) -> Side {
    match rng.chance(0.5) {
        true => Side::Client,
        false => Side::Server,
    }
}

fn rate(rng: &mut Rng) -> Rate {
    Rate::from_bps(200_000 + rng.below(20_000_000))
}

fn size(rng: &mut Rng, is_large: bool) -> u64 {
    match (rng.below(4), is_large) {
        (0, _) => 0,
        (1, _) => rng.below(2_000),
        (2, _) | (_, false) => rng.below(60_000),
        (_, true) => rng.below(1_500_000),
    }
}

fn pace(rng: &mut Rng) -> Pace {
    match rng.below(3) {
        0 => Pace::Stalled,
        1 => Pace::Limited(Rate::from_bps(50_000 + rng.below(5_000_000))),
        _ => Pace::Eager,
    }
}

fn tamper(rng: &mut Rng) -> Tamper {
    let mut some = |most: f64| match rng.chance(0.5) {
        true => rng.unit() * most,
        false => 0.0,
    };
    Tamper {
        drop: some(0.2),
        corrupt: some(0.1),
        duplicate: some(0.2),
        reorder: some(0.3),
        reorder_by: Duration::from_millis(1 + rng.below(60)),
        largest: match rng.below(4) {
            0 => 1_200 + rng.below(300) as usize,
            _ => usize::MAX,
        },
    }
}

fn policy(rng: &mut Rng) -> PathPolicy {
    let cap = |rng: &mut Rng| {
        let cap = Rate::from_bps(1_000 + rng.below(10) * rng.below(500_000));
        rng.chance(0.2).then_some(cap)
    };
    PathPolicy {
        weight: [0.0, 0.001, 0.5, 1.0][rng.below(4) as usize],
        backup: rng.chance(0.3),
        metered: rng.chance(0.3),
        priority: [0, 0, 1, 15][rng.below(4) as usize],
        send_cap: cap(rng),
        receive_cap: cap(rng),
    }
}

impl Operation {
    pub(crate) fn draw(rng: &mut Rng, is_large: bool) -> Self {
        let any = rng.next_u64();
        match rng.below(30) {
            0..=5 => Self::Transfer {
                up: size(rng, is_large),
                down: size(rng, is_large),
            },
            6 => Self::Datagrams {
                from: side(rng),
                count: 1 + rng.below(40),
                len: [10, 1_200, 1_445, 9_000][rng.below(4) as usize],
            },
            7 => Self::Flow {
                from: side(rng),
                size: 8 + rng.below(3_000) as usize,
                rate: Rate::from_bps(10_000 + rng.below(3_000_000)),
                order: match rng.below(2) {
                    0 => DatagramOrder::AtOnce,
                    _ => DatagramOrder::Within(Duration::from_millis(rng.below(600))),
                },
            },
            8 | 9 => Self::Tamper(any, tamper(rng)),
            10 => Self::Rebind {
                link: any,
                other_address: rng.chance(0.3),
            },
            11 => Self::Roam {
                link: any,
                rate: rate(rng),
                delay: Duration::from_micros(rng.below(60_000)),
            },
            12 => Self::OpenPath(any),
            13 => Self::ClosePath(side(rng), any),
            14 | 15 => Self::Outage(any, rng.chance(0.5)),
            16 => Self::LoseInterface(any),
            17 => Self::RestoreInterface(any),
            18 => Self::Pace(any, side(rng), pace(rng)),
            19 if rng.chance(0.5) => Self::Reset(any, side(rng)),
            19 => Self::Stop(any, side(rng)),
            20 => Self::Rate(any, rate(rng)),
            21 | 22 => Self::Policy(side(rng), any, policy(rng)),
            23 => Self::Class {
                class: 1 + rng.below(3) as u8,
                path: rng.chance(0.5).then_some(any),
                redundant: rng.chance(0.5),
            },
            24 => Self::Classify {
                job: any,
                class: rng.below(4) as u8,
            },
            25 => Self::Measure(side(rng), any),
            26 => Self::Suspend(side(rng), Duration::from_millis(rng.below(3_000))),
            27 if rng.chance(0.3) => Self::Drain,
            _ => Self::Adversary {
                link: any,
                to: side(rng),
                trick: Trick::draw(rng),
            },
        }
    }
}

/// Sessions beside the first, at most.
const BESIDES: usize = 3;

impl Operation {
    /// What came to the list later, and is drawn apart from the others so that their seeds stay.
    pub(crate) fn draw_more(rng: &mut Rng) -> Self {
        match rng.below(6) {
            0 | 1 => Self::Leap(side(rng), Duration::from_millis(rng.below(5_000))),
            2 => Self::Beside,
            _ => Self::SayBeside {
                number: rng.next_u64(),
                up: size(rng, false) as usize,
                down: size(rng, false) as usize,
            },
        }
    }
}

fn link_of(world: &World, number: u64) -> LinkId {
    LinkId((number % world.network().len() as u64) as usize)
}

fn path_of(world: &World, number: u64) -> Option<PathId> {
    let known: Vec<_> = world.paths_up().keys().copied().collect();
    let place = number.checked_rem(known.len() as u64)?;
    known.get(place as usize).copied()
}

fn job_of(world: &World, number: u64) -> Option<JobId> {
    let place = number.checked_rem(world.jobs().len() as u64)?;
    Some(JobId(place as usize))
}

/// Does it, as far as there is anything to do it to.
pub(crate) fn apply(world: &mut World, operation: &Operation) {
    // A session that loses its only path before it is connected has nothing to go on with, and who
    // was not let in has no say about classes.
    let is_connected = world.connected_at().is_some();
    match operation.clone() {
        Operation::Transfer { up, down } => {
            world.add(Transfer {
                up: Bytes::new(up),
                down: Bytes::new(down),
                starts_at: world.now(),
            });
        }
        Operation::Datagrams { from, count, len } => {
            (0..count).for_each(|_| world.send_datagram(from, len));
        }
        Operation::Flow {
            from,
            size,
            rate,
            order,
        } => world.add_flow(UdpLoad {
            from,
            size,
            rate,
            order,
            starts_at: world.now(),
            ends_at: world.now() + Duration::from_millis(500),
        }),
        Operation::Pace(job, side, pace) => {
            job_of(world, job)
                .into_iter()
                .for_each(|job| world.set_pace(job, side, pace));
        }
        Operation::Reset(job, side) => {
            job_of(world, job)
                .into_iter()
                .for_each(|job| world.reset(job, side, 7));
        }
        Operation::Stop(job, side) => {
            job_of(world, job)
                .into_iter()
                .for_each(|job| world.stop(job, side, 9));
        }
        Operation::Suspend(side, span) => {
            world.suspend(side);
            world.run_for(span);
            world.wake(side);
        }
        Operation::Leap(side, span) => world.leap(side, span),
        Operation::Beside if world.besides() < BESIDES => world.connect_beside(),
        Operation::SayBeside { number, up, down } => {
            if let Some(number) = number.checked_rem(world.besides() as u64) {
                world.say_beside(number as usize, up, down);
            }
        }
        Operation::Drain => world.with_session(Side::Server, |session| session.send_away()),
        Operation::Adversary { link, to, trick } => {
            adversary::act(world, link_of(world, link), to, &trick);
        }
        operation if is_connected => apply_to_session(world, operation),
        operation => apply_to_link(world, operation),
    }
}

/// What a user does to a session that is up; the rest is done to its links.
fn apply_to_session(world: &mut World, operation: Operation) {
    match operation {
        Operation::ClosePath(side, path) => {
            path_of(world, path)
                .into_iter()
                .for_each(|path| world.close_path(side, path));
        }
        Operation::LoseInterface(link) => world.lose_interface(link_of(world, link)),
        Operation::Policy(side, path, policy) => {
            let path = path_of(world, path);
            let now = world.clock(side);
            world.with_session(side, |session| {
                // It may be gone.
                path.into_iter()
                    .for_each(|path| _ = session.set_path_policy(now, path, policy));
            });
        }
        Operation::Class {
            class,
            path,
            redundant,
        } => {
            let paths = path.map(|path| path_of(world, path).into_iter().collect());
            set_class(world, class, ClassRule { paths, redundant });
        }
        Operation::Classify { job, class } => {
            // A class has a rule before anything belongs to it.
            if class > 0 {
                set_class(
                    world,
                    class,
                    ClassRule {
                        paths: None,
                        redundant: true,
                    },
                );
            }
            if let Some((job, class)) = job_of(world, job).zip(ClassId::new(class)) {
                world.classify(job, class);
            }
        }
        Operation::Measure(side, path) => {
            let (path, now) = (path_of(world, path), world.clock(side));
            world.with_session(side, |session| {
                path.into_iter()
                    .for_each(|path| _ = session.measure_path(now, path, 3));
            });
        }
        operation => apply_to_link(world, operation),
    }
}

fn set_class(world: &mut World, class: u8, rule: ClassRule) {
    let now = world.clock(Side::Client);
    let class = ClassId::new(class).expect("few");
    world.with_session(Side::Client, |session| session.set_class(now, class, rule));
}

fn apply_to_link(world: &mut World, operation: Operation) {
    let now = world.now();
    match operation {
        Operation::Tamper(link, mut tamper) => {
            let link = link_of(world, link);
            if world.connected_at().is_none() {
                // A version changed on its way ends a handshake; one after it is a client's to try.
                tamper.corrupt = 0.0;
            }
            world.network_mut().set_tamper(link, tamper);
        }
        Operation::Rebind {
            link,
            other_address,
        } => {
            let link = link_of(world, link);
            world.network_mut().rebind(link, other_address);
        }
        Operation::Roam { link, rate, delay } => {
            let link = link_of(world, link);
            let network = world.network_mut();
            network.rebind(link, true);
            for direction in [Direction::Up, Direction::Down] {
                let way = network.link_mut(link, direction);
                way.set_rate(now, rate);
                way.set_delay(now, delay);
            }
        }
        Operation::OpenPath(link) => {
            // A second path on a link is allowed; too many, or none yet, are refused.
            let link = link_of(world, link);
            if world.network().is_present(link) {
                _ = world.open_path(link);
            }
        }
        Operation::Outage(link, cut) => {
            let link = link_of(world, link);
            world.network_mut().set_outage(now, link, cut);
        }
        Operation::RestoreInterface(link) => {
            let link = link_of(world, link);
            if !world.network().is_present(link) {
                world.network_mut().set_present(link, true);
                _ = world.open_path(link);
            }
        }
        Operation::Rate(link, rate) => {
            let link = link_of(world, link);
            for direction in [Direction::Up, Direction::Down] {
                world
                    .network_mut()
                    .link_mut(link, direction)
                    .set_rate(now, rate);
            }
        }
        // Not for a session that is not up.
        _ => {}
    }
}

/// From here on nothing is in anybody's way. Weights, backups and priorities stay as wished.
pub(crate) fn heal(world: &mut World) {
    let now = world.now();
    for link in (0..world.network().len()).map(LinkId) {
        let network = world.network_mut();
        network.set_present(link, true);
        network.set_outage(now, link, false);
        network.set_tamper(link, Tamper::default());
        for direction in [Direction::Up, Direction::Down] {
            let link = network.link_mut(link, direction);
            link.set_rate(now, Rate::from_mbps(20));
            link.set_loss(now, LossModel::None);
        }
        // As a driver does that sees an interface without a path.
        _ = world.open_path(link);
    }
    world.open_paths_beside();
    for side in [Side::Client, Side::Server] {
        let now = world.clock(side);
        world.with_session(side, |session| {
            for path in session.snapshot(now).paths {
                let policy = PathPolicy {
                    send_cap: None,
                    receive_cap: None,
                    ..path.policy
                };
                _ = session.set_path_policy(now, path.id, policy);
            }
        });
    }
    if world.connected_at().is_some() {
        (1..4).for_each(|class| set_class(world, class, ClassRule::default()));
    }
    for job in (0..world.jobs().len()).map(JobId) {
        for side in [Side::Client, Side::Server] {
            world.set_pace(job, side, Pace::Eager);
        }
    }
}
