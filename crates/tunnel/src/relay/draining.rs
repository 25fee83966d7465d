//! The time between being told to go down and the good-bye.
//!
//! Owns who is waited for: sessions that carry TCP connections, whose end would break them; their
//! clients are asked to open nothing new here. The others are ended at once, so that their clients
//! look for the relay that comes next; datagrams flow on in the next session as well. Where another
//! process is that relay, at the same addresses, nobody is asked to go anywhere: a session ends
//! once it carries nothing, flows included, and its client has the next one at once.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use tabane_base::Duration;
use tabane_core::CloseReason;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::Relay;

impl Relay {
    /// Lets nobody in, and returns when no session of any worker is busy any more, `grace` is over
    /// or `hurry` is ready.
    pub(super) async fn drain(&mut self, grace: Duration, hurry: impl Future<Output = ()>) {
        self.shared.is_draining.store(true, Ordering::Relaxed);
        // Their clients have them led to them by the relay that comes next.
        self.shared.front_doors.close();
        // Of those whose sessions go on here, new connections go on as well.
        if !self.shared.crew.is_succeeded() {
            self.shared.sites.close();
        }
        let deadline = Instant::now() + grace;
        let (tell, mut left) = mpsc::unbounded_channel();
        self.leavings.set(tell).expect("a relay drains once");
        // All are looked at once; from then on those alone of which something has ended.
        let sessions = self.guests.keys().copied();
        let mut busy: BTreeSet<u64> = sessions.filter(|it| !self.end_idle(*it)).collect();
        tracing::info!(busy = busy.len(), grace_s = grace.as_secs(), "draining");
        let drained = async {
            while !busy.is_empty() {
                let session = tokio::select! {
                    biased;
                    Some(session) = left.recv() => session,
                    () = self.serve() => continue,
                };
                if self.end_idle(session) {
                    busy.remove(&session);
                }
            }
            // Whoever is new is led to any worker, and is refused by it until the last has done.
            let shared = self.shared.clone();
            tokio::select! {
                () = shared.crew.drained() => {}
                () = self.serve() => {}
            }
        };
        tokio::select! {
            biased;
            () = hurry => {}
            () = sleep_until(deadline) => {}
            () = drained => {}
        }
    }

    /// Ends the session if it carries nothing that is waited for, and says whether it is over. The
    /// client of another is asked to open nothing new here.
    fn end_idle(&self, session: u64) -> bool {
        let Some(guest) = self.guests.get(&session) else {
            return true;
        };
        let is_succeeded = self.shared.crew.is_succeeded();
        let is_busy = guest.is_busy() || (is_succeeded && guest.has_flows());
        self.engine.visit(guest.session(), |visit| {
            match is_busy {
                true if is_succeeded => {}
                true => visit.session.send_away(),
                false => visit.session.close(visit.now, CloseReason::ShuttingDown),
            }
            visit.touch();
        });
        !is_busy
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU8;
    use std::rc::Rc;

    use tabane_core::{FourTuple, Identity, PublicKey, ServerConfig, SessionConfig};
    use tabane_linux::UdpBind;

    use super::super::guest::{Guest, Membership};
    use super::super::host::{Permit, Seat};
    use super::super::{RelayConfig, RelayLimits};
    use super::*;
    use crate::access::Access;
    use crate::monitor::HostMonitor;

    fn relay() -> Relay {
        let config = RelayConfig {
            identity: Identity::from_seed([1; 32]),
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            access: Access::Private,
            own_addresses: Vec::new(),
            limits: RelayLimits::default(),
            server: ServerConfig::default(),
            session: SessionConfig::default(),
            authorise: Box::new(drop),
            resolvers: Vec::new(),
            monitor: HostMonitor::default(),
            seed: [2; 32],
            mark: None,
            exit: None,
            workers: NonZeroU8::MIN,
            inheritance: None,
            fleet_list: None,
            fleet_loads: None,
            web_doors: Vec::new(),
        };
        Relay::bind(config).unwrap()
    }

    /// With a look at each for each, they would outlast the grace.
    #[test]
    fn the_connections_of_a_full_relay_end_one_by_one_without_a_look_at_all_sessions() {
        const SESSIONS: u64 = 10_000;
        crate::block_on(async {
            let mut relay = relay();
            let key = PublicKey([3; 32]);
            let local = "127.0.0.1:0".parse().unwrap();
            let interface = None;
            let bind = UdpBind { interface, local };
            let socket = relay.engine.bind("lo", bind, None, false).unwrap();
            let remote = "127.0.0.1:9".parse().unwrap();
            let tuple = FourTuple {
                socket,
                local_ip: None,
                remote,
            };
            let id = relay.engine.connect(key, None, vec![tuple]).unwrap();
            let mut permits = Vec::new();
            for number in 0..SESSIONS {
                let guest = Guest::new(
                    relay.engine.clone(),
                    (relay.shared.clone(), relay.leavings.clone()),
                    id.renumbered(number),
                    key,
                    None,
                    Membership::OfNobody {
                        _counted: relay.shared.headcount.count(key, usize::MAX).unwrap(),
                    },
                );
                permits.push(Permit::take(&guest.host(), Seat::Connection).unwrap());
                relay.guests.insert(number, guest);
            }
            let left = Rc::new(std::cell::Cell::new(SESSIONS));
            let counted = left.clone();
            tokio::task::spawn_local(async move {
                for permit in permits {
                    drop(permit);
                    counted.set(counted.get() - 1);
                    tokio::task::yield_now().await;
                }
            });
            relay
                .drain(Duration::from_secs(4), std::future::pending())
                .await;
            assert_eq!(left.get(), 0, "left when the grace was over");
        })
        .unwrap();
    }
}
