//! Connections under way: how many, and when those of a command that has ended are over.
//!
//! A program may write, close and exit at once; the kernel then delivers what it wrote. Through the
//! tunnel that is our duty: what the command has left behind is waited for as long as it makes
//! progress, because a session that ends takes it along.

use std::cell::Cell;
use std::rc::Rc;

use tabane_base::Duration;
use tabane_tunnel::ClientSnapshot;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::far_ends::FarEnds;

/// What the command sent last lies in our sockets already; this is for the event loop to find it.
const FIRST_LOOK: Duration = Duration::from_millis(5);
/// No acknowledgement for so long while connections are open: what is left is the other ends'
/// silence, not data. Several round trips of any link, and hardly noticed by a person.
const PATIENCE: Duration = Duration::from_secs(2);

/// Counts connections under way. Copies count the same.
#[derive(Debug, Clone, Default)]
pub struct Carriage(Rc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    under_way: Cell<usize>,
    one_ended: Notify,
}

/// One connection, until dropped.
#[derive(Debug)]
pub(crate) struct Passenger(Carriage);

impl Carriage {
    /// Counts one more connection.
    pub(crate) fn board(&self) -> Passenger {
        self.0.under_way.set(self.0.under_way.get() + 1);
        Passenger(self.clone())
    }

    /// Waits until all connections have ended, or nothing moves any more.
    pub async fn settle(&self, far_ends: &FarEnds) {
        sleep(FIRST_LOOK).await;
        let mut acknowledged = None;
        loop {
            let snapshots = far_ends.snapshots();
            if self.0.under_way.get() == 0 && queued(&snapshots) == 0 {
                return;
            }
            let before = acknowledged.replace(total_acknowledged(&snapshots));
            if before == acknowledged {
                tracing::debug!(
                    connections = self.0.under_way.get(),
                    "not waited for any longer"
                );
                return;
            }
            let all_ended = async {
                while self.0.under_way.get() > 0 {
                    self.0.one_ended.notified().await;
                }
                // Datagrams leave by themselves; nothing tells when.
                while queued(&far_ends.snapshots()) > 0 {
                    sleep(FIRST_LOOK).await;
                }
            };
            // What came of it is looked at again.
            let _ = timeout(PATIENCE, all_ended).await;
        }
    }
}

impl Drop for Passenger {
    fn drop(&mut self) {
        let inner = &self.0.0;
        inner.under_way.set(inner.under_way.get() - 1);
        inner.one_ended.notify_one();
    }
}

fn queued(snapshots: &[ClientSnapshot]) -> u64 {
    let sessions = snapshots
        .iter()
        .filter_map(|client| client.session.as_ref());
    sessions.map(|session| session.datagrams_queued.get()).sum()
}

/// Sessions count, too: a new one begins at zero.
fn total_acknowledged(snapshots: &[ClientSnapshot]) -> (u64, u64) {
    let sessions = snapshots
        .iter()
        .filter_map(|client| client.session.as_ref());
    // Not of packets: keep-alives of several links come as often as anybody looks.
    let acknowledged = sessions.map(|session| session.streams_acked.get()).sum();
    let so_far = snapshots.iter().map(|client| client.sessions).sum();
    (so_far, acknowledged)
}
