//! The time between being told to go down and the good-bye.
//!
//! Owns who is waited for: sessions that carry TCP connections, whose end would break them; their
//! clients are asked to open nothing new here. The others are ended at once, so that their clients
//! look for the relay that comes next; datagrams flow on in the next session as well.

use tabane_base::Duration;
use tabane_core::CloseReason;
use tokio::time::{Instant, sleep_until};

use super::Relay;

impl Relay {
    /// Lets nobody in, and returns when no session is busy any more, `grace` is over or `hurry` is
    /// ready.
    pub(super) async fn drain(&mut self, grace: Duration, hurry: impl Future<Output = ()>) {
        self.shared.is_draining.set(true);
        // Their clients have them led to them by the relay that comes next.
        self.shared.front_doors.close();
        let deadline = Instant::now() + grace;
        tokio::pin!(hurry);
        let shared = self.shared.clone();
        let mut busy = self.send_away_idle();
        tracing::info!(busy, grace_s = grace.as_secs(), "draining");
        while busy > 0 {
            tokio::select! {
                biased;
                () = &mut hurry => break,
                () = sleep_until(deadline) => break,
                () = shared.stream_ended.notified() => {}
                never = self.serve() => never,
            }
            busy = self.send_away_idle();
        }
    }

    /// Ends the sessions that carry no connection; how many others there are.
    fn send_away_idle(&self) -> usize {
        let (busy, idle): (Vec<_>, Vec<_>) =
            self.guests.values().partition(|guest| guest.is_busy());
        for guest in &busy {
            self.engine.visit(guest.session(), |visit| {
                visit.session.send_away();
                visit.touch();
            });
        }
        for guest in idle {
            self.engine.visit(guest.session(), |visit| {
                visit.session.close(visit.now, CloseReason::ShuttingDown);
                visit.touch();
            });
        }
        busy.len()
    }
}
