//! What strangers and clients can have a relay's log say.

use std::num::NonZeroU8;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tabane_base::Bytes;
use tabane_core::Identity;
use tabane_tunnel::{Client, User, UserLimits};
use tracing::span::{Attributes, Id, Record};
use tracing::{Dispatch, Event, Level, Metadata, Subscriber};

use super::world::{RelayOptions, RunningRelay, client_config, run};

/// Counts lines that are there without being asked for.
struct Lines(Arc<AtomicUsize>);

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn whoever_comes_again_and_again_fills_no_log() {
    run(async {
        let lines = Arc::new(AtomicUsize::new(0));
        // Where there is only one, what other tests' threads want of a line is what counts.
        let _other = Dispatch::new(Lines(Arc::default()));
        let relay = RunningRelay::start(RelayOptions {
            user: Some(User::new("ann", UserLimits::default(), Bytes::ZERO)),
            workers: NonZeroU8::MIN,
            log: Some(Dispatch::new(Lines(lines.clone()))),
            ..RelayOptions::default()
        });
        for number in 0..100 {
            let mut config = client_config(&relay);
            config.identity = Identity::from_seed([100 + number; 32]);
            config.relays[0].token = None;
            assert!(Client::connect(config).await.is_err());
        }
        let of_strangers = lines.swap(0, Ordering::Relaxed);
        for _ in 0..200 {
            let client = Client::connect(client_config(&relay)).await.unwrap();
            client.close().await;
        }
        let of_client = lines.load(Ordering::Relaxed);
        println!("{of_strangers} lines of 100 strangers, {of_client} of 200 sessions");
        assert!((1..70).contains(&of_strangers), "{of_strangers}");
        assert!((1..310).contains(&of_client), "{of_client}");
        relay.stop();
    });
}
