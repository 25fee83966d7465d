//! What happened lately to a client or a relay, for display.
//!
//! Owns a bounded list of numbered happenings and who waits for the next one. Nothing is decided
//! by it. A relay's workers write to one, seldom and for a moment.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tabane_control::ClockInstant;
use tabane_core::{CloseReason, PathDownReason, PublicKey};
use tokio::sync::Notify;

/// How many happenings are kept; older ones are forgotten. A screen or two.
const MAX_ENTRIES: usize = 64;

/// Something that a person at the display wants to know.
#[derive(Clone, Debug, PartialEq)]
pub enum Happening {
    /// A session is up.
    SessionUp {
        /// Which, counted from the start.
        session: u64,
        /// At a relay: whose.
        client: Option<PublicKey>,
    },
    /// A session ended.
    SessionEnded {
        /// The session's number.
        session: u64,
        /// At a relay: whose.
        client: Option<PublicKey>,
        /// The cause.
        reason: CloseReason,
    },
    /// At a client that knows several relays: another one is used from here on.
    RelayChosen {
        /// Its name.
        relay: String,
    },
    /// At a client: destinations at a peer are reached straight from here on.
    PeerUp {
        /// Its name.
        peer: String,
    },
    /// They are not any more.
    PeerDown {
        /// Its name.
        peer: String,
        /// The cause, as people read it.
        why: String,
    },
    /// At a relay: somebody was not let in.
    Refused {
        /// The client's key.
        client: PublicKey,
    },
    /// A link is to be used from here on.
    LinkAdded {
        /// Its name.
        link: String,
    },
    /// A link is gone, or not wanted any more.
    LinkRemoved {
        /// Its name.
        link: String,
        /// The cause, as people read it.
        why: String,
    },
    /// A link's path carries data (again).
    LinkUp {
        /// Its name.
        link: String,
    },
    /// A link's path carries no data at present.
    LinkDown {
        /// Its name.
        link: String,
        /// The cause.
        reason: PathDownReason,
    },
    /// The user wishes a link to be used in another way.
    LinkPolicy {
        /// Its name.
        link: String,
        /// The share of it that may be used.
        weight: f64,
        /// Not used at all.
        paused: bool,
    },
}

/// A happening with its place in the list.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Counts from 1, without a gap.
    pub number: u64,
    /// When it happened.
    pub at: ClockInstant,
    /// What happened.
    pub happening: Happening,
}

/// The list. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Journal(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    entries: Mutex<VecDeque<Entry>>,
    news: Notify,
}

impl Journal {
    /// Adds one to the list.
    pub fn record(&self, happening: Happening) {
        let mut entries = self.entries();
        let number = entries.back().map_or(1, |last| last.number + 1);
        if entries.len() == MAX_ENTRIES {
            entries.pop_front();
        }
        entries.push_back(Entry {
            number,
            at: ClockInstant::now(),
            happening,
        });
        drop(entries);
        self.0.news.notify_one();
    }

    /// What happened after entry `number`, oldest first, as far as it is kept.
    #[must_use]
    pub fn since(&self, number: u64) -> Vec<Entry> {
        let entries = self.entries();
        let newer = entries.iter().filter(|entry| entry.number > number);
        newer.cloned().collect()
    }

    /// Waits until something was recorded since the last call. For one waiter.
    pub async fn changed(&self) {
        self.0.news.notified().await;
    }

    fn entries(&self) -> MutexGuard<'_, VecDeque<Entry>> {
        let entries = self.0.entries.lock();
        entries.unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_are_forgotten_and_numbers_go_on() {
        let journal = Journal::default();
        for i in 0..MAX_ENTRIES as u64 + 3 {
            journal.record(Happening::LinkUp {
                link: i.to_string(),
            });
        }
        let all = journal.since(0);
        assert_eq!(all.len(), MAX_ENTRIES);
        assert_eq!(all[0].number, 4);
        let last = journal.since(MAX_ENTRIES as u64 + 2);
        assert_eq!(last.len(), 1);
        assert_eq!(last[0].number, MAX_ENTRIES as u64 + 3);
    }
}
