//! What the log tells its reader only so often a minute: a client, or a stranger, can bring it
//! about as often as it likes, and would fill the disk.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const INTERVAL: Duration = Duration::from_secs(60);

/// Lines of one kind.
#[derive(Debug)]
pub struct Seldom {
    /// In a minute.
    most: u32,
    /// What it is of which there are so many; empty where one of them says it all.
    what: &'static str,
    /// Since when lines are counted, and how many were asked for.
    asked: Mutex<Option<(Instant, u32)>>,
}

impl Default for Seldom {
    fn default() -> Self {
        Self::of(1, "")
    }
}

impl Seldom {
    /// So many lines a minute; once there would be more, one says what there is more of.
    #[must_use]
    pub const fn of(most: u32, what: &'static str) -> Self {
        let asked = Mutex::new(None);
        Self { most, what, asked }
    }

    /// Whether one more is to be told now; then it counts as told.
    pub fn is_due(&self) -> bool {
        let now = Instant::now();
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, before) = asked
            .filter(|(since, _)| now - *since < INTERVAL)
            .unwrap_or((now, 0));
        *asked = Some((since, before.saturating_add(1)));
        if before == self.most && !self.what.is_empty() {
            let (what, most) = (self.what, self.most);
            tracing::warn!("{what}, more than {most} in a minute: the rest is not told");
        }
        before < self.most
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Level, Metadata, Subscriber};

    /// Counts what is told at this level.
    struct Lines(Arc<AtomicUsize>, Level);

    impl Subscriber for Lines {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            *metadata.level() == self.1
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

    /// How often the log tells something at this level while that is done.
    pub(crate) fn lines<T>(level: Level, done: impl FnOnce() -> T) -> (usize, T) {
        let count = Arc::new(AtomicUsize::new(0));
        let subscriber = Lines(count.clone(), level);
        let outcome = tracing::subscriber::with_default(subscriber, done);
        (count.load(Ordering::Relaxed), outcome)
    }

    /// How often the log warns of what is done here.
    pub(crate) fn warnings(done: impl FnOnce()) -> usize {
        lines(Level::WARN, done).0
    }

    #[test]
    fn so_many_are_told_and_then_that_there_are_more() {
        let told = |seldom: &Seldom| (0..100).filter(|_| seldom.is_due()).count();
        let few = Seldom::of(5, "guests come");
        assert_eq!(lines(Level::WARN, || told(&few)), (1, 5));
        assert_eq!(lines(Level::WARN, || told(&few)), (0, 0));
        assert_eq!(lines(Level::WARN, || told(&Seldom::default())), (0, 1));
    }
}
