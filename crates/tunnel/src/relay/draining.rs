//! The time between being told to go down and the good-bye.
//!
//! Owns who is waited for: sessions that carry TCP connections, whose end would break them; their
//! clients are asked to open nothing new here. The others are ended at once, so that their clients
//! look for the relay that comes next; datagrams flow on in the next session as well. Where another
//! process is that relay, at the same addresses, nobody is asked to go anywhere: a session ends
//! once it carries nothing, flows included, and its client has the next one at once.

use std::sync::atomic::Ordering;

use tabane_base::Duration;
use tabane_core::CloseReason;
use tokio::time::{Instant, sleep_until};

use super::Relay;
use super::guest::Guest;

impl Relay {
    /// Lets nobody in, and returns when no session is busy any more, `grace` is over or `hurry` is
    /// ready.
    pub(super) async fn drain(&mut self, grace: Duration, hurry: impl Future<Output = ()>) {
        self.shared.is_draining.store(true, Ordering::Relaxed);
        // Their clients have them led to them by the relay that comes next.
        self.shared.front_doors.close();
        // Of those whose sessions go on here, new connections go on as well.
        if !self.shared.crew.is_succeeded() {
            self.shared.sites.close();
        }
        let deadline = Instant::now() + grace;
        tokio::pin!(hurry);
        let stream_ended = self.stream_ended.clone();
        let mut busy = self.send_away_idle();
        tracing::info!(busy, grace_s = grace.as_secs(), "draining");
        while busy > 0 {
            tokio::select! {
                biased;
                () = &mut hurry => break,
                () = sleep_until(deadline) => break,
                () = stream_ended.notified() => {}
                never = self.serve() => never,
            }
            busy = self.send_away_idle();
        }
    }

    /// Ends the sessions that carry no connection; how many others there are.
    fn send_away_idle(&self) -> usize {
        let is_succeeded = self.shared.crew.is_succeeded();
        let is_busy = |guest: &&Guest| guest.is_busy() || (is_succeeded && guest.has_flows());
        let (busy, idle): (Vec<_>, Vec<_>) = self.guests.values().partition(is_busy);
        for guest in busy.iter().filter(|_| !is_succeeded) {
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
