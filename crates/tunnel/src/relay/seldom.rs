//! What the log tells its reader at most once a minute: an admitted client can bring it about as
//! often as it likes, and would fill the disk.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const INTERVAL: Duration = Duration::from_secs(60);

/// When it was told last.
#[derive(Debug, Default)]
pub(super) struct Seldom(Mutex<Option<Instant>>);

impl Seldom {
    /// Whether it is to be told now; then it counts as told.
    pub(super) fn is_due(&self) -> bool {
        let now = Instant::now();
        let mut told_at = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if told_at.is_some_and(|at| now - at < INTERVAL) {
            return false;
        }
        *told_at = Some(now);
        true
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Level, Metadata, Subscriber};

    /// Counts warnings.
    #[derive(Default)]
    struct Warnings(Arc<AtomicUsize>);

    impl Subscriber for Warnings {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            *metadata.level() == Level::WARN
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

    /// How often the log warns of what is done here.
    pub(crate) fn warnings(done: impl FnOnce()) -> usize {
        let warnings = Warnings::default();
        let count = warnings.0.clone();
        tracing::subscriber::with_default(warnings, done);
        count.load(Ordering::Relaxed)
    }
}
