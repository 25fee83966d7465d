//! What a session's beginning costs the server: `cargo bench -p tabane-core --bench handshake`.
//!
//! All that core does for it, from the first Initial until the client knows that it is let in; and
//! beside it the cryptography that no TLS with keys at both ends can leave out: a fresh key, an
//! agreement, a signature made and one checked. The rest is what there is to gain. The same once
//! more at a server that is nearly full: a session costs the same whoever is there already.
#![allow(missing_docs, reason = "criterion's macros write functions")]
#![expect(
    clippy::disallowed_methods,
    reason = "what takes time is measured by the clock"
)]

use std::hint::black_box;
use std::time::{Duration as WallDuration, Instant as WallInstant};

use aws_lc_rs::agreement::{
    EphemeralPrivateKey, UnparsedPublicKey as Share, X25519, agree_ephemeral,
};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use criterion::{Criterion, criterion_group, criterion_main};
use newcomers::Newcomers;

#[path = "support/newcomers.rs"]
mod newcomers;

/// With so many sessions a server is full, but for those that are looked at.
const OTHERS: usize = 9_990;

fn handshake(criterion: &mut Criterion) {
    let mut newcomers = Newcomers::new();
    measure(
        criterion,
        "a server's part of a session's life",
        &mut newcomers,
    );
    (0..OTHERS).for_each(|_| newcomers.one_that_stays());
    measure(criterion, "the same, beside 9,990 others", &mut newcomers);
}

fn measure(criterion: &mut Criterion, name: &str, newcomers: &mut Newcomers) {
    criterion.bench_function(name, |bench| {
        bench.iter_custom(|times| {
            let mut spent = WallDuration::ZERO;
            for _ in 0..times {
                newcomers.one(|host, now, step| {
                    let begin = WallInstant::now();
                    host.carry_out(now, step);
                    spent += begin.elapsed();
                });
            }
            spent
        });
    });
}

fn cryptography(criterion: &mut Criterion) {
    let random = SystemRandom::new();
    let fresh = || EphemeralPrivateKey::generate(&X25519, &random).expect("random numbers");
    let theirs = fresh().compute_public_key().expect("a key");
    let pair = Ed25519KeyPair::from_seed_unchecked(&[1; 32]).expect("a seed");
    let public = UnparsedPublicKey::new(&ED25519, pair.public_key().as_ref().to_vec());
    let message = [7; 146];
    let signature = pair.sign(&message);
    let agree = |own: EphemeralPrivateKey| {
        let theirs = Share::new(&X25519, theirs.as_ref());
        agree_ephemeral(own, theirs, (), |secret| Ok(secret[0])).expect("a sound key")
    };
    criterion.bench_function("X25519: a key and its public half", |bench| {
        bench.iter(|| fresh().compute_public_key().expect("a key"));
    });
    criterion.bench_function("X25519: an agreement", |bench| {
        bench.iter_batched(&fresh, agree, criterion::BatchSize::SmallInput);
    });
    criterion.bench_function("Ed25519: a signature", |bench| {
        bench.iter(|| pair.sign(black_box(&message)));
    });
    criterion.bench_function("Ed25519: one checked", |bench| {
        bench.iter(|| public.verify(black_box(&message), signature.as_ref()));
    });
}

criterion_group!(all, handshake, cryptography);
criterion_main!(all);
