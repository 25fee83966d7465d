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
pub struct OpenConnections(Rc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    under_way: Cell<usize>,
    one_ended: Notify,
}

/// One connection, until dropped.
#[derive(Debug)]
pub(crate) struct OpenConnection(OpenConnections);

impl OpenConnections {
    /// Counts one more connection.
    pub(crate) fn begin(&self) -> OpenConnection {
        self.0.under_way.set(self.0.under_way.get() + 1);
        OpenConnection(self.clone())
    }

    /// Waits until all connections have ended, or nothing moves any more.
    pub async fn settle(&self, far_ends: &FarEnds) {
        self.settle_by(|| Progress::of(&far_ends.snapshots())).await;
    }

    async fn settle_by(&self, look: impl Fn() -> Progress) {
        sleep(FIRST_LOOK).await;
        let mut acknowledged = None;
        loop {
            let progress = look();
            if self.0.under_way.get() == 0 && progress.queued == 0 {
                return;
            }
            let before = acknowledged.replace(progress.acknowledged);
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
                while look().queued > 0 {
                    sleep(FIRST_LOOK).await;
                }
            };
            // What came of it is looked at again.
            let _ = timeout(PATIENCE, all_ended).await;
        }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        let inner = &self.0.0;
        inner.under_way.set(inner.under_way.get() - 1);
        inner.one_ended.notify_one();
    }
}

/// What of all sessions has left and come.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    /// Bytes of datagrams that wait to leave.
    queued: u64,
    /// Sessions so far, and bytes of streams acknowledged in those there are: a new one begins at
    /// zero. Not of packets: keep-alives of several links come as often as anybody looks.
    acknowledged: (u64, u64),
}

impl Progress {
    fn of(snapshots: &[ClientSnapshot]) -> Self {
        let mut progress = Self::default();
        for client in snapshots {
            progress.acknowledged.0 += client.sessions;
            if let Some(session) = &client.session {
                progress.queued += session.datagrams_queued.get();
                progress.acknowledged.1 += session.streams_acked.get();
            }
        }
        progress
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::Instant;

    /// How long a command's end waits with `count` connections under way, the first of which end
    /// after so many seconds each, while every look finds `step` bytes more acknowledged.
    async fn waited(count: usize, ends_after_s: &[u64], step: u64) -> Duration {
        let connections = OpenConnections::default();
        let mut open: Vec<_> = (0..count).map(|_| connections.begin()).collect();
        let acknowledged = Cell::new(0);
        let begun_at = Instant::now();
        let ending = async {
            for seconds in ends_after_s {
                sleep(Duration::from_secs(*seconds)).await;
                open.pop();
            }
            std::future::pending::<()>().await;
        };
        let look = || {
            acknowledged.set(acknowledged.get() + step);
            Progress {
                queued: 0,
                acknowledged: (1, acknowledged.get()),
            }
        };
        tokio::select! {
            () = connections.settle_by(look) => {}
            () = ending => {}
        }
        begun_at.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_connection_ends_the_waiting() {
        assert!(waited(0, &[], 0).await < Duration::from_millis(10));
        let waited = waited(2, &[1, 5], 1_000).await;
        let expected = Duration::from_secs(6);
        assert!(waited >= expected && waited < expected + Duration::from_millis(20));
    }

    #[tokio::test(start_paused = true)]
    async fn what_makes_no_progress_is_left_after_two_seconds() {
        let waited = waited(1, &[], 0).await;
        assert!(waited >= PATIENCE && waited < PATIENCE + Duration::from_millis(20));
    }

    #[tokio::test(start_paused = true)]
    async fn datagrams_leave_before_a_command_ends() {
        let begun_at = Instant::now();
        let queued_for = Duration::from_millis(300);
        let look = || Progress {
            queued: u64::from(begun_at.elapsed() < queued_for),
            acknowledged: (1, 0),
        };
        OpenConnections::default().settle_by(look).await;
        let waited = begun_at.elapsed();
        assert!(waited >= queued_for && waited < queued_for + FIRST_LOOK * 2);
    }
}
