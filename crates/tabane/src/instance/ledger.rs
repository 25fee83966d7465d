//! What was carried over all paths that something had, although core counts per path. Pure.

use std::collections::BTreeMap;

use tabane_control::Traffic;
use tabane_core::PathSnapshot;

/// Which session and path.
pub(super) type Source = (u64, u32);

/// Adds up.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// Of paths that are gone.
    past: Traffic,
    /// Of those there are.
    present: BTreeMap<Source, Traffic>,
}

impl Ledger {
    /// Takes note of the paths there are. Those that are not among them any more are gone.
    pub(super) fn count(&mut self, paths: impl IntoIterator<Item = (Source, Traffic)>) {
        let mut before = std::mem::take(&mut self.present);
        for (source, traffic) in paths {
            before.remove(&source);
            self.present.insert(source, traffic);
        }
        before.values().for_each(|gone| add(&mut self.past, gone));
    }

    /// Everything so far.
    pub(super) fn traffic(&self) -> Traffic {
        let mut all = self.past;
        self.present.values().for_each(|it| add(&mut all, it));
        all
    }
}

/// What a path has carried.
pub(super) fn traffic(path: &PathSnapshot) -> Traffic {
    Traffic {
        sent_bytes: path.sent.get(),
        received_bytes: path.received.get(),
        sent_packets: path.sent_packets,
        lost_packets: path.lost_packets.saturating_sub(path.spurious_losses),
        ..Traffic::default()
    }
}

/// Adds what was carried; rates are for others to take.
pub(super) fn add(all: &mut Traffic, one: &Traffic) {
    let add = |all: &mut u64, one: u64| *all = all.saturating_add(one);
    add(&mut all.sent_bytes, one.sent_bytes);
    add(&mut all.received_bytes, one.received_bytes);
    add(&mut all.sent_packets, one.sent_packets);
    add(&mut all.lost_packets, one.lost_packets);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_gone_paths_carried_is_kept() {
        let sent = |sent_bytes| Traffic {
            sent_bytes,
            ..Traffic::default()
        };
        let mut ledger = Ledger::default();
        ledger.count([((1, 0), sent(10)), ((1, 1), sent(5))]);
        ledger.count([((1, 0), sent(20)), ((1, 1), sent(6))]);
        assert_eq!(ledger.traffic().sent_bytes, 26);
        ledger.count([((1, 0), sent(30))]);
        assert_eq!(ledger.traffic().sent_bytes, 36);
        ledger.count([((2, 0), sent(1))]);
        ledger.count([]);
        ledger.count([((2, 1), sent(2))]);
        assert_eq!(ledger.traffic().sent_bytes, 39);
    }
}
