//! This host's monitor, shared by everything that uses links.
//!
//! Owns one [`LinkTable`] and reads the clock for whoever asks it. Which link a reading is about is
//! told by the socket it came over. Engines on several threads share it, so there is a lock; it is
//! taken at most once per path in 10 ms, for less than a microsecond, and never between packets.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tabane_core::{
    Reading,
    monitor::{ClockId, LinkEstimate, LinkTable, MonitorSettings, PathKey},
};
use tabane_linux::HostClock;

/// A handle on the one monitor of a host; clones share it.
#[derive(Clone, Debug, Default)]
pub struct HostMonitor(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    clock: HostClock,
    table: Mutex<LinkTable>,
    next_clock: AtomicU64,
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            clock: HostClock::new(),
            table: Mutex::new(LinkTable::new(MonitorSettings::default())),
            next_clock: AtomicU64::new(0),
        }
    }
}

impl HostMonitor {
    /// What is believed of every link that was ever used, by name.
    #[must_use]
    pub fn links(&self) -> Vec<LinkEstimate> {
        self.table().snapshot(self.0.clock.now())
    }

    /// What is believed of the link called `name`.
    #[must_use]
    pub fn link(&self, name: &str) -> Option<LinkEstimate> {
        self.table().link(self.0.clock.now(), name)
    }

    /// A link is used from here on.
    pub(crate) fn on_link(&self, name: &str, metered: bool) {
        let now = self.0.clock.now();
        self.table().on_link(now, name, metered);
    }

    /// A link is not used any more.
    pub(crate) fn on_link_gone(&self, name: &str) {
        let now = self.0.clock.now();
        self.table().on_link_gone(now, name);
    }

    /// A name for the two clocks of a session, whose one-way delays compare with no other's.
    pub(crate) fn next_clock(&self) -> ClockId {
        ClockId(self.0.next_clock.fetch_add(1, Ordering::Relaxed))
    }

    /// A session measured something over `link`.
    pub(crate) fn on_reading(&self, link: &str, clock: ClockId, reading: &Reading) {
        let now = self.0.clock.now();
        let mut table = self.table();
        let remote = reading.tuple.remote;
        let path = PathKey { link, remote };
        if let Some((latest, least)) = reading.round_trip {
            table.on_rtt(now, path, latest, least);
        }
        if let Some(times) = reading.one_way {
            table.on_one_way(now, path, clock, times);
        }
        for (direction, train) in &reading.trains {
            table.on_train(now, path, *direction, *train);
        }
        table.on_delivered(now, path, reading.delivered);
        table.on_packets(now, path, reading.sent, reading.lost);
    }

    /// What a panic elsewhere left is as good as any other set of estimates.
    fn table(&self) -> MutexGuard<'_, LinkTable> {
        let table = self.0.table.lock();
        table.unwrap_or_else(PoisonError::into_inner)
    }
}
