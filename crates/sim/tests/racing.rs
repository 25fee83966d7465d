//! Handshakes of a client that begins one per link, raced by somebody who sits on one of the links.
//!
//! He hears both ends as soon as they speak, and says at once whatever can be said without their
//! keys: refusals, versions, proofs of address, another relay's own answers, frames and TLS of his
//! own under the keys of first packets, which are anybody's [P-3.1], to both ends; he lets packets
//! pass or swallows them. What he does costs his link [P-1.2]: over the others the session is set
//! up at most a second later than without him, and stays.
//!
//! `TABANE_SEEDS=0..100000 cargo test -p tabane-sim --test racing -- --nocapture`

use std::net::SocketAddr;

use tabane_base::{Bytes, Duration, Instant, Rate, Rng, Seed};
use tabane_core::{
    Endpoint, FIRST_SIZE, Identity, ServerConfig, SessionConfig, TransmitBatch, forge_first_packet,
};
use tabane_netem::{LinkConfig, LinkSpec, RateModel};
use tabane_sim::{Captured, LinkId, SERVER, Setup, Side, Tamper, Transfer, World};

/// How often he has his say.
const TURN: Duration = Duration::from_millis(1);
/// How much later than without him.
const MOST_DELAY: Duration = Duration::from_secs(1);
/// For the set-up, and for a transfer after it.
const PATIENCE: Duration = Duration::from_secs(10);
const ATTEMPT: std::ops::Range<usize> = 5..13;
const CRYPTO: u8 = 0x06;
const CLOSE: u8 = 0x1c;
/// What he has heard and may say again.
const MEMORY: usize = 40;

/// Seeds of every run.
const FIXED: std::ops::Range<u64> = 0..400;

#[test]
#[expect(clippy::disallowed_methods, reason = "how fast it goes is of interest")]
fn whoever_races_the_handshakes_on_one_link_costs_that_link() {
    let seeds = seeds().unwrap_or(FIXED);
    let (began, first) = (clock(), seeds.start);
    let mut slowest = Duration::ZERO;
    for seed in seeds.clone() {
        let delay = run(seed);
        assert!(
            delay <= MOST_DELAY,
            "seed {seed}: {delay:?} later than without him"
        );
        slowest = slowest.max(delay);
        let done = seed + 1 - first;
        if done.is_multiple_of(10_000) || seed + 1 == seeds.end {
            let speed = done as f64 / began.elapsed().as_secs_f64();
            println!("{done} seeds, at most {slowest:?} later, {speed:.0} a second");
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "how seeds are chosen")]
fn seeds() -> Option<std::ops::Range<u64>> {
    let text = std::env::var("TABANE_SEEDS").ok()?;
    let (from, to) = text.split_once("..").expect("from..to");
    let number = |text: &str| text.parse().expect("a number");
    Some(number(from)..number(to))
}

#[expect(clippy::disallowed_methods, reason = "how fast it goes is of interest")]
fn clock() -> std::time::Instant {
    std::time::Instant::now()
}

/// Sets a session up with him and without; by how much later it stands.
fn run(seed: u64) -> Duration {
    let mut rng = Seed(seed).rng("racing");
    let specs = links(&mut rng);
    let link = LinkId(rng.below(specs.len() as u64) as usize);
    let mut alone = World::new(setup(seed, &specs));
    let without = connect(&mut alone, None, seed);
    let mut world = World::new(setup(seed, &specs));
    let mut adversary = Adversary::new(link, seed, rng);
    let with = connect(&mut world, Some(&mut adversary), seed);
    carry_on(&mut world, &mut adversary, seed);
    with.since(without)
}

fn links(rng: &mut Rng) -> Vec<LinkSpec> {
    let count = 2 + rng.below(2);
    let link = |index| {
        let config = LinkConfig {
            rate: RateModel::Constant(Rate::from_bps(2_000_000 + rng.below(50_000_000))),
            queue: Bytes::kilo(100),
            delay: Duration::from_micros(1_000 + rng.below(60_000)),
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

fn setup(seed: u64, specs: &[LinkSpec]) -> Setup {
    Setup::new(Seed(seed), specs.to_vec())
}

/// When the client is in.
fn connect(world: &mut World, mut adversary: Option<&mut Adversary>, seed: u64) -> Instant {
    if let Some(adversary) = &adversary {
        world.network_mut().tap(adversary.link);
    }
    world.connect_by_each_link();
    loop {
        if let Some(at) = world.connected_at() {
            return at;
        }
        assert!(!world.is_refused(), "seed {seed}: given up for good");
        let now = world.now();
        assert!(now < Instant::EPOCH + PATIENCE, "seed {seed}: not let in");
        match &mut adversary {
            Some(adversary) => adversary.turn(world),
            None => world.run_for(TURN),
        }
    }
}

/// The session stays, and carries data whatever he does.
fn carry_on(world: &mut World, adversary: &mut Adversary, seed: u64) {
    let (up, down) = (Bytes::kilo(10), Bytes::kilo(20));
    let job = world.add(Transfer {
        up,
        down,
        starts_at: world.now(),
    });
    let session = world.handle(Side::Client).expect("connected");
    let end = world.now() + PATIENCE;
    while !world.job(job).is_over() {
        let now = world.now();
        assert!(now < end, "seed {seed}: nothing is carried any more");
        adversary.turn(world);
        let reason = world.host(Side::Client).close_reason(session);
        assert_eq!(reason, None, "seed {seed}: the session was lost");
    }
    assert!(!world.job(job).was_disturbed());
}

/// What becomes of packets on his link.
#[derive(Clone, Copy, Debug)]
enum Passage {
    Open,
    Shut,
    /// From some moment on.
    ShutAt(Instant),
}

struct Adversary {
    link: LinkId,
    rng: Rng,
    /// Tricks that he plays in this world, one bit each.
    tricks: u64,
    passage: Passage,
    /// A relay of his own.
    relay: Endpoint,
    heard: Vec<Captured>,
    number: u32,
}

impl Adversary {
    fn new(link: LinkId, seed: u64, mut rng: Rng) -> Self {
        let mut secret = [0; 32];
        rng.fill(&mut secret);
        let identity = Identity::from_seed(secret);
        let (config, accept) = (SessionConfig::default(), ServerConfig::default());
        let relay = Endpoint::server(identity, config, accept, [7; 32]);
        let passage = match rng.below(3) {
            0 => Passage::Shut,
            1 => Passage::ShutAt(Instant::from_millis(rng.below(500))),
            _ => Passage::Open,
        };
        // One in four plays one trick alone, which others would hide.
        let tricks = match seed % 4 {
            0 => 1 << rng.below(11),
            _ => rng.next_u64(),
        };
        Self {
            link,
            rng,
            tricks,
            passage,
            relay: relay.expect("valid"),
            heard: Vec::new(),
            number: 0,
        }
    }

    fn turn(&mut self, world: &mut World) {
        world.run_for(TURN);
        let shut = match self.passage {
            Passage::Open => false,
            Passage::Shut => true,
            Passage::ShutAt(at) => world.now() >= at,
        };
        let tamper = Tamper {
            drop: if shut { 1.0 } else { 0.0 },
            ..Tamper::default()
        };
        world.network_mut().set_tamper(self.link, tamper);
        for packet in world.network_mut().take_tapped() {
            if self.heard.len() < MEMORY {
                self.heard.push(packet.clone());
            }
            for trick in 0..11 {
                if self.tricks & 1 << trick != 0 && self.rng.chance(0.5) {
                    self.play(trick, world, &packet);
                }
            }
        }
    }

    fn play(&mut self, trick: u8, world: &mut World, packet: &Captured) {
        let is_first = packet.data.len() > ATTEMPT.end && packet.data[0] & 0x80 != 0;
        let attempt = is_first.then(|| <[u8; 8]>::try_from(&packet.data[ATTEMPT]).expect("eight"));
        match (trick, attempt) {
            (0, Some(attempt)) => self.close(world, attempt),
            (1, Some(attempt)) => self.versions(world, attempt),
            (2, Some(attempt)) => self.retry(world, attempt),
            (3, _) if packet.to == Side::Server => self.answer(world, packet),
            (4, Some(attempt)) => self.frames(world, attempt, true),
            (5, Some(attempt)) => self.frames(world, attempt, false),
            (6, _) => self.reset(world, packet),
            (7, _) => self.again(world),
            (8, _) => self.again_from_elsewhere(world),
            (9, _) => self.change(world, packet),
            (10, _) => self.strangers(world),
            _ => {}
        }
    }

    fn tell(&self, world: &mut World, to: Side, data: Vec<u8>) {
        let tuple = match to {
            Side::Client => world.network().client_tuple(self.link),
            Side::Server => world.network().server_tuple(self.link),
        };
        world.inject(to, tuple, data);
    }

    fn forge(&mut self, attempt: [u8; 8], by: Side, frames: &[u8]) -> Vec<u8> {
        self.number += 1;
        let by_server = by == Side::Server;
        forge_first_packet(attempt, by_server, self.number, frames, FIRST_SIZE)
    }

    /// That one is not wanted, or anything else that ends a session.
    fn close(&mut self, world: &mut World, attempt: [u8; 8]) {
        let code = self.rng.below(32) as u8;
        let frame = [&[CLOSE, code, 5][..], b"\x1b[2Jx"].concat();
        for (by, to) in [(Side::Server, Side::Client), (Side::Client, Side::Server)] {
            let forged = self.forge(attempt, by, &frame);
            self.tell(world, to, forged);
        }
    }

    fn versions(&mut self, world: &mut World, attempt: [u8; 8]) {
        let mut packet = vec![0xc0, 0, 0, 0, 0];
        packet.extend(attempt);
        let count = self.rng.below(3);
        (0..count).for_each(|_| packet.extend((2 + self.rng.below(9) as u32).to_be_bytes()));
        self.tell(world, Side::Client, packet);
    }

    fn retry(&mut self, world: &mut World, attempt: [u8; 8]) {
        let token = [0, 1, 60, 256, 257, 1_100, 60_000][self.rng.below(7) as usize];
        let mut packet = vec![0xe3, 0, 0, 0, 1];
        packet.extend(attempt);
        packet.extend([9; 4]);
        packet.resize(packet.len() + token, 0xaa);
        self.tell(world, Side::Client, packet);
    }

    /// His own relay, with a key of its own.
    fn answer(&mut self, world: &mut World, packet: &Captured) {
        let (now, mut data) = (world.now(), packet.data.clone());
        self.relay.handle_datagram(now, packet.tuple, &mut data);
        let mut batch = TransmitBatch::new(20_000);
        self.relay.poll_transmit(now, &mut batch);
        for handle in self.relay.handles() {
            if let Some(session) = self.relay.session_mut(handle) {
                session.handle_timeout(now);
                while session.poll_transmit(now, &mut batch) {}
            }
        }
        let datagrams = batch
            .iter()
            .flat_map(|transmit| transmit.contents.chunks(transmit.segment_size));
        let datagrams: Vec<_> = datagrams.map(<[u8]>::to_vec).collect();
        for datagram in datagrams {
            self.tell(world, Side::Client, datagram);
        }
    }

    /// TLS that is none, or frames that nobody expects there, to either end.
    fn frames(&mut self, world: &mut World, attempt: [u8; 8], is_tls: bool) {
        let mut said = vec![0; 1 + self.rng.below(200) as usize];
        self.rng.fill(&mut said);
        let offset = [0, 0, 1, 60][self.rng.below(4) as usize];
        let frames = match is_tls {
            true => {
                let length = (said.len() as u16 | 0x4000).to_be_bytes();
                [&[CRYPTO, offset][..], &length, &said].concat()
            }
            false => said,
        };
        let (by, to) = match self.rng.chance(0.7) {
            true => (Side::Server, Side::Client),
            false => (Side::Client, Side::Server),
        };
        let forged = self.forge(attempt, by, &frames);
        self.tell(world, to, forged);
    }

    /// What looks like a stateless reset, under the name that stands there.
    fn reset(&mut self, world: &mut World, packet: &Captured) {
        let mut data = vec![0; 21 + self.rng.below(40) as usize];
        self.rng.fill(&mut data);
        data[0] = 0x40 | data[0] & 0x3f;
        let name = packet.data.len().clamp(1, 5);
        data[1..name].copy_from_slice(&packet.data[1..name]);
        self.tell(world, packet.to, data);
    }

    fn again(&mut self, world: &mut World) {
        let chosen = self.rng.below(self.heard.len() as u64) as usize;
        let packet = self.heard[chosen].clone();
        world.inject(packet.to, packet.tuple, packet.data);
    }

    fn again_from_elsewhere(&mut self, world: &mut World) {
        let chosen = self.rng.below(self.heard.len() as u64) as usize;
        let mut packet = self.heard[chosen].clone();
        packet.tuple.remote = match packet.to {
            Side::Server => SocketAddr::from(([203, 0, 113, self.rng.below(9) as u8], 666)),
            Side::Client => SocketAddr::from(([203, 0, 113, 9], SERVER.port())),
        };
        world.inject(packet.to, packet.tuple, packet.data);
    }

    fn change(&mut self, world: &mut World, packet: &Captured) {
        let mut data = packet.data.clone();
        for _ in 0..=self.rng.below(3) {
            let at = self.rng.below(data.len() as u64) as usize;
            data[at] ^= 1 + self.rng.below(255) as u8;
        }
        self.tell(world, packet.to, data);
    }

    /// Many that seem to begin at the relay at once: it asks everybody for proof then.
    fn strangers(&mut self, world: &mut World) {
        if !self.rng.chance(0.1) {
            return;
        }
        for _ in 0..70 {
            let mut attempt = [0; 8];
            self.rng.fill(&mut attempt);
            let forged = self.forge(attempt, Side::Client, &[CRYPTO, 0, 1, 1]);
            let mut tuple = world.network().server_tuple(self.link);
            let [a, b] = [self.rng.below(250) as u8, self.rng.below(250) as u8];
            tuple.remote = SocketAddr::from(([198, 51, a, b], 4_000));
            world.inject(Side::Server, tuple, forged);
        }
    }
}
