//! What something has carried over its whole life, although paths, sessions and clients come and
//! go. Pure.

use std::collections::BTreeMap;

use tabane_control::Traffic;
use tabane_core::{PathSnapshot, SessionSnapshot};

use crate::engine::Volume;

/// Who counts, each from its own beginning.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// A path, by the number of its session and its own.
    Path(u64, u32),
    /// The sockets that a client has over a link; the peer it is for, or none: the relay.
    Client(Option<String>),
}

/// Adds up.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Of paths that are gone.
    past: Traffic,
    /// Of those there are.
    present: BTreeMap<Source, Traffic>,
}

impl Ledger {
    /// Takes note of the paths there are. Those that are not among them any more are gone.
    pub fn count(&mut self, paths: impl IntoIterator<Item = (Source, Traffic)>) {
        let mut before = std::mem::take(&mut self.present);
        for (source, traffic) in paths {
            if let Some(old) = before.remove(&source)
                && is_less(&traffic, &old)
            {
                // Another client of that name, which counts from nothing.
                add(&mut self.past, &old);
            }
            self.present.insert(source, traffic);
        }
        for (source, gone) in before {
            match source {
                Source::Path(..) => add(&mut self.past, &gone),
                // Its sockets go on counting when the link is back.
                Source::Client(_) => drop(self.present.insert(source, gone)),
            }
        }
    }

    /// Everything so far.
    pub fn traffic(&self) -> Traffic {
        let mut all = self.past;
        self.present.values().for_each(|it| add(&mut all, it));
        all
    }
}

/// What sockets have carried.
pub fn of_volume(volume: &Volume) -> Traffic {
    Traffic {
        sent_bytes: volume.sent.get(),
        received_bytes: volume.received.get(),
        sent_packets: volume.sent_packets,
        ..Traffic::default()
    }
}

/// What a path has carried.
pub fn of_path(path: &PathSnapshot) -> Traffic {
    Traffic {
        sent_bytes: path.sent.get(),
        received_bytes: path.received.get(),
        sent_packets: path.sent_packets,
        lost_packets: path.lost_for_good(),
        ..Traffic::default()
    }
}

/// What a session has carried, over all paths that it has had.
pub fn of_session(session: &SessionSnapshot) -> Traffic {
    let closed = session.closed_paths;
    let mut all = Traffic {
        sent_bytes: closed.sent.get(),
        received_bytes: closed.received.get(),
        sent_packets: closed.sent_packets,
        lost_packets: closed.lost_packets,
        ..Traffic::default()
    };
    let paths = session.paths.iter().map(of_path);
    paths.for_each(|path| add(&mut all, &path));
    all
}

fn is_less(one: &Traffic, other: &Traffic) -> bool {
    one.sent_bytes < other.sent_bytes || one.received_bytes < other.received_bytes
}

/// Adds what was carried; rates are for others to take.
pub fn add(all: &mut Traffic, one: &Traffic) {
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
        let path = Source::Path;
        ledger.count([(path(1, 0), sent(10)), (path(1, 1), sent(5))]);
        ledger.count([(path(1, 0), sent(20)), (path(1, 1), sent(6))]);
        assert_eq!(ledger.traffic().sent_bytes, 26);
        ledger.count([(path(1, 0), sent(30))]);
        assert_eq!(ledger.traffic().sent_bytes, 36);
        ledger.count([(path(2, 0), sent(1))]);
        ledger.count([]);
        ledger.count([(path(2, 1), sent(2))]);
        assert_eq!(ledger.traffic().sent_bytes, 39);
    }

    #[test]
    fn a_link_that_comes_back_counts_once_and_another_client_anew() {
        let sent = |sent_bytes| Traffic {
            sent_bytes,
            ..Traffic::default()
        };
        let relay = || Source::Client(None);
        let mut ledger = Ledger::default();
        ledger.count([(relay(), sent(100))]);
        ledger.count([]);
        assert_eq!(ledger.traffic().sent_bytes, 100);
        ledger.count([(relay(), sent(130))]);
        assert_eq!(ledger.traffic().sent_bytes, 130);
        ledger.count([(relay(), sent(5))]);
        assert_eq!(ledger.traffic().sent_bytes, 135);
    }
}
