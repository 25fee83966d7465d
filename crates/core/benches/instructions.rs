//! What packets cost, for counting instructions: `cargo xtask instructions` runs it under callgrind
//! and compares with `instructions.txt`. By itself it says only how many packets there were.
//!
//! A bulk over two links of 400 and 200 Mbit/s, as the default sends it; then decisions alone; then
//! what sessions cost a server that begin and end, and of that the cryptography that no TLS with
//! keys at both ends can leave out.
#![allow(missing_docs, reason = "it is a program")]
#![expect(
    clippy::disallowed_methods,
    reason = "keys that last no longer than a handshake are the library's to draw"
)]

use std::hint::black_box;

use aws_lc_rs::agreement::{
    EphemeralPrivateKey, UnparsedPublicKey as Share, X25519, agree_ephemeral,
};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use newcomers::{Host, Newcomers, Step};
use tabane_base::{Duration, Instant, Rate};
use tabane_core::{SchedulerKind, Session};
use world::{Counted, World};

#[path = "support/newcomers.rs"]
mod newcomers;
#[path = "support/world.rs"]
mod world;

/// Milliseconds until the windows are what they stay.
const WARM_UP: u64 = 1_500;
/// Milliseconds that are counted.
const COUNTED: u64 = 200;
/// Packets per decision, as a turn of the driver's loop would send.
const BATCH: usize = 64;
/// Sessions that begin and end. Checking a signature takes a varying time: this many even it out.
const SESSIONS: u64 = 200;

fn main() {
    let links = [
        (Rate::from_mbps(400), Duration::from_millis(4)),
        (Rate::from_mbps(200), Duration::from_millis(9)),
    ];
    let mut world = World::connected(SchedulerKind::Tabane, &links);
    let now = world.now;
    let id = world.session().open_stream(now).expect("connected");
    let data = vec![7; 65_536];
    for ms in 0..WARM_UP + COUNTED {
        if ms == WARM_UP {
            world.counted = Some(Counted::default());
        }
        world.write(id, &data);
        world.tick();
    }
    let counted = world.counted.take().unwrap_or_default();
    // All is acknowledged, so that windows leave the choice to the scheduler.
    (0..1_000).for_each(|_| world.tick());
    world.write(id, &data);
    let mut now = world.now;
    let mut decided = 0;
    for _ in 0..COUNTED {
        now += Duration::from_millis(1);
        decided += counted_decide(world.session(), now);
    }
    println!("data {}", counted.data);
    println!("answers {}", counted.answers);
    println!("decisions {decided}");
    begin_and_end();
    println!("sessions {SESSIONS}");
}

#[inline(never)]
fn counted_decide(session: &mut Session, now: Instant) -> usize {
    black_box(session.decide(now, BATCH))
}

/// Sessions with a server, one after the other; and what is agreed and signed for as many.
fn begin_and_end() {
    let mut newcomers = Newcomers::new();
    // What the libraries set up once.
    (0..3).for_each(|_| newcomers.one(Host::carry_out));
    (0..SESSIONS).for_each(|_| newcomers.one(counted_session));
    let own = Ed25519KeyPair::from_seed_unchecked(&[1; 32]).expect("a seed");
    let random = SystemRandom::new();
    let fresh = || EphemeralPrivateKey::generate(&X25519, &random).expect("random numbers");
    let share = fresh().compute_public_key().expect("a key");
    for n in 0..SESSIONS {
        let message = [n as u8; 146];
        let signature = own.sign(&message);
        counted_cryptography(&own, share.as_ref(), &message, signature.as_ref());
    }
}

#[inline(never)]
fn counted_session(host: &mut Host, now: Instant, step: Step) {
    host.carry_out(now, step);
}

/// A fresh key, an agreement, a signature made and one checked.
#[inline(never)]
fn counted_cryptography(own: &Ed25519KeyPair, share: &[u8], message: &[u8], signature: &[u8]) {
    let fresh = EphemeralPrivateKey::generate(&X25519, &SystemRandom::new());
    let fresh = fresh.expect("random numbers");
    black_box(fresh.compute_public_key().expect("a key"));
    let agreed = agree_ephemeral(
        fresh,
        Share::new(&X25519, share),
        (),
        |secret| Ok(secret[0]),
    );
    black_box(agreed.expect("a sound key"));
    black_box(own.sign(message));
    let theirs = UnparsedPublicKey::new(&ED25519, own.public_key());
    black_box(theirs.verify(message, signature)).expect("it is theirs");
}
