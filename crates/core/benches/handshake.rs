//! What a session's beginning costs the server: `cargo bench -p tabane-core --bench handshake`.
//!
//! All that core does for it, from the first Initial until the client knows that it is let in; and
//! beside it the cryptography that no TLS with keys at both ends can leave out: a fresh key, an
//! agreement, a signature made and one checked. The rest is what there is to gain.
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
use tabane_base::{Duration, Instant};
use tabane_core::{
    CloseReason, Endpoint, Event, FourTuple, Identity, ServerConfig, SessionConfig, SessionHandle,
    SocketId, TransmitBatch,
};

/// A server, and the time that it has had.
struct Timed {
    endpoint: Endpoint,
    batch: TransmitBatch,
    spent: WallDuration,
}

fn tuple() -> FourTuple {
    FourTuple {
        socket: SocketId(0),
        local_ip: None,
        remote: ([10, 78, 0, 1], 4_510).into(),
    }
}

fn datagrams(batch: &TransmitBatch) -> Vec<Vec<u8>> {
    let each = batch.iter();
    each.flat_map(|it| it.contents.chunks(it.segment_size))
        .map(<[u8]>::to_vec)
        .collect()
}

impl Timed {
    /// Takes datagrams in, and gives what it answers.
    fn take(&mut self, now: Instant, handle: &mut Option<SessionHandle>, data: Vec<Vec<u8>>) {
        let begin = WallInstant::now();
        for mut datagram in data {
            self.endpoint.handle_datagram(now, tuple(), &mut datagram);
        }
        *handle = handle.or_else(|| self.endpoint.poll_incoming());
        self.batch.clear();
        while self.endpoint.poll_transmit(now, &mut self.batch) {}
        if let Some(session) = handle.and_then(|handle| self.endpoint.session_mut(handle)) {
            while let Some(event) = session.poll_event() {
                if let Event::Authorise { .. } = event {
                    session.admit(now);
                }
            }
            while session.poll_transmit(now, &mut self.batch) {}
            black_box(session.poll_timeout());
        }
        self.spent += begin.elapsed();
    }

    /// A client comes, is let in, and is gone.
    fn serve(&mut self, now: Instant, client: &mut Endpoint, key: tabane_core::PublicKey) {
        let ours = client
            .connect(now, key, None, vec![tuple()])
            .expect("a link");
        let (mut handle, mut batch, mut is_up) = (None, TransmitBatch::new(65_000), false);
        while !is_up {
            let session = client.session_mut(ours).expect("it lives");
            batch.clear();
            while session.poll_transmit(now, &mut batch) {}
            self.take(now, &mut handle, datagrams(&batch));
            for mut datagram in datagrams(&self.batch) {
                client.handle_datagram(now, tuple(), &mut datagram);
            }
            let session = client.session_mut(ours).expect("it lives");
            while let Some(event) = session.poll_event() {
                is_up |= event == Event::Connected;
            }
        }
        let (handle, begin) = (handle.expect("it came"), WallInstant::now());
        if let Some(session) = self.endpoint.session_mut(handle) {
            session.close(now, CloseReason::ShuttingDown);
            self.batch.clear();
            while session.poll_transmit(now, &mut self.batch) {}
        }
        assert!(self.endpoint.reap(now, handle));
        self.spent += begin.elapsed();
        if let Some(session) = client.session_mut(ours) {
            session.close(now, CloseReason::ShuttingDown);
            while session.poll_transmit(now, &mut batch) {}
        }
        assert!(client.reap(now, ours));
    }
}

fn handshake(criterion: &mut Criterion) {
    let identity = Identity::from_seed([1; 32]);
    let key = identity.public_key();
    let (config, accept) = (SessionConfig::default(), ServerConfig::default());
    let mut server = Timed {
        endpoint: Endpoint::server(identity, config.clone(), accept, [2; 32]).expect("valid"),
        batch: TransmitBatch::new(262_028),
        spent: WallDuration::ZERO,
    };
    let me = Identity::from_seed([3; 32]);
    let mut client = Endpoint::client(me, config, [4; 32]).expect("valid");
    let mut now = Instant::from_millis(1_000);
    criterion.bench_function("a server's part of a session's life", |bench| {
        bench.iter_custom(|times| {
            server.spent = WallDuration::ZERO;
            for _ in 0..times {
                now += Duration::from_millis(1);
                server.serve(now, &mut client, key);
            }
            server.spent
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
