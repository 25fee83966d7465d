//! A relay seen and steered from outside while it runs.
//!
//! Whoever looks is on the first worker's thread. What the others have is asked of them by jobs, so
//! a look costs nothing while nobody looks.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tabane_base::Duration;
use tabane_control::TraceBatch;
use tabane_core::{CloseReason, EndpointCounters, PublicKey, SessionSnapshot};
use tokio::sync::mpsc;

use super::departure::ExitSnapshot;
use super::exit::{Exit, InheritedPool, PacketsSnapshot};
use super::front_doors::ExposureSnapshot;
use super::listening::{Inheritance, Neighbours};
use super::pool::PoolPlace;
use super::sites::RouteSnapshot;
use super::user::Asker;
use super::{Relay, Shared};
use crate::engine::{Engine, SessionId, Volume};
use crate::journal::Journal;
use crate::shown::follow_record;
use crate::trace::SessionTrace;

/// One session at a relay at one moment.
#[derive(Clone, Debug)]
pub struct GuestSnapshot {
    /// Counts the relay's sessions.
    pub number: u64,
    /// The worker that has it, from 0.
    pub worker: usize,
    /// The client's key, once proved.
    pub client: Option<PublicKey>,
    /// Since its first packet.
    pub age: Duration,
    /// What it is doing.
    pub session: SessionSnapshot,
    /// What its packets have come to, where it has addresses for them.
    pub packets: Option<PacketsSnapshot>,
    /// By which addresses its connections leave, where its user was granted some.
    pub exit: Option<ExitSnapshot>,
}

/// A relay at one moment, all workers together.
#[derive(Clone, Debug, Default)]
pub struct RelaySnapshot {
    /// The sessions there are, with whose they are.
    pub guests: Vec<GuestSnapshot>,
    /// What has been carried, sessions that have ended included.
    pub volume: Volume,
    /// Packets that sessions lost which have ended.
    pub lost_packets: u64,
    /// Counters over all sessions, drops by reason among them.
    pub counters: EndpointCounters,
    /// Workers that there are.
    pub workers: usize,
}

/// What a running relay is doing.
#[derive(Clone)]
pub struct RelayMonitor {
    /// Whose thread this is on.
    pub(super) number: usize,
    pub(super) engine: Engine,
    pub(super) shared: Arc<Shared>,
}

impl RelayMonitor {
    /// What it is doing; has the round trips of all paths measured for the next look.
    pub async fn look(&self) -> RelaySnapshot {
        self.gather(true).await
    }

    /// The same without a packet.
    pub async fn count(&self) -> RelaySnapshot {
        self.gather(false).await
    }

    async fn gather(&self, measures: bool) -> RelaySnapshot {
        let mut all = self.look_here(measures);
        for worker in self.others() {
            let look = move |relay: &mut Relay| relay.monitor().look_here(measures);
            if let Some(seen) = self.shared.crew.ask(worker, look).await {
                all.guests.extend(seen.guests);
                all.volume += seen.volume;
                all.lost_packets += seen.lost_packets;
                all.counters += &seen.counters;
            }
        }
        all.guests.sort_by_key(|guest| guest.number);
        all
    }

    /// Sessions that were let in and have not ended. Looks at none of them.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.shared.members.len()
    }

    /// What has been carried, sessions that have ended included. Looks at none of them.
    pub async fn volume(&self) -> Volume {
        let mut all = self.engine.whole_volume();
        for worker in self.others() {
            let look = |relay: &mut Relay| relay.monitor().engine.whole_volume();
            all += self.shared.crew.ask(worker, look).await.unwrap_or_default();
        }
        all
    }

    /// Returns once every worker has had a turn.
    pub async fn pulse(&self) {
        for worker in self.others() {
            self.shared.crew.ask(worker, |_| ()).await;
        }
    }

    /// The sockets, for another process that takes over.
    ///
    /// # Errors
    /// Out of descriptors, or a process before this one is there yet.
    pub fn bequeath(&self) -> io::Result<Inheritance> {
        if self.has_predecessor() {
            let text = "the process before this one has sessions yet: try again when they are over";
            return Err(io::Error::other(text));
        }
        self.shared.bequeath()
    }

    /// Takes what is new from here on, in the place of the process that has left its sockets.
    ///
    /// # Errors
    /// The kernel refuses at one address at least: that process takes all back once this one has
    /// ended.
    pub fn take_over(&self) -> io::Result<()> {
        self.shared.steer(Neighbours::Predecessor)
    }

    /// The process before this one has ended, or the one after it came to nothing: all is for this
    /// one.
    ///
    /// # Errors
    /// The kernel refuses at one address at least, where all is as it was.
    pub fn take_all(&self) -> io::Result<()> {
        self.shared.steer(Neighbours::Nobody)
    }

    /// The device of its pool, if it has one, for the same process.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn bequeath_pool(&self) -> io::Result<Option<InheritedPool>> {
        self.shared.exit.as_ref().map(Exit::bequeath).transpose()
    }

    /// Has that process read the device from here on. Gives the places that are in use here;
    /// `None` where there is no pool.
    #[must_use]
    pub fn leave_pool(&self) -> Option<Vec<PoolPlace>> {
        self.shared.exit.as_ref().map(Exit::leave)
    }

    /// Reads the device from here on, and gives nobody else these places.
    pub fn take_pool(&self, places: &[PoolPlace]) {
        if let Some(exit) = &self.shared.exit {
            exit.take_over(places);
        }
    }

    /// The pool is this process's alone.
    pub fn take_all_of_pool(&self) {
        if let Some(exit) = &self.shared.exit {
            exit.take_all();
        }
    }

    fn has_predecessor(&self) -> bool {
        self.shared.has_neighbour.load(Ordering::Relaxed)
    }

    fn others(&self) -> impl Iterator<Item = usize> {
        let own = self.number;
        (0..self.shared.crew.len()).filter(move |worker| *worker != own)
    }

    fn look_here(&self, measures: bool) -> RelaySnapshot {
        let snapshot = match measures {
            true => Engine::snapshot,
            false => Engine::snapshot_unmeasured,
        };
        let guest = |id: SessionId| {
            let (client, age) = self.engine.guest(id)?;
            let exit = self.shared.exit.as_ref();
            Some(GuestSnapshot {
                number: id.serial(),
                worker: self.number,
                client,
                age,
                session: snapshot(&self.engine, id)?,
                packets: exit.and_then(|exit| exit.tally(id.serial())),
                exit: client.and_then(|key| {
                    let user = self.shared.members.user_of(id.serial());
                    let user = user.as_ref();
                    self.shared.exit_snapshot(Asker { key, user })
                }),
            })
        };
        let sessions = self.engine.sessions();
        RelaySnapshot {
            guests: sessions.into_iter().filter_map(guest).collect(),
            volume: self.engine.whole_volume(),
            lost_packets: self.engine.lost_packets(),
            counters: self.engine.counters(),
            workers: self.shared.crew.len(),
        }
    }

    /// Ends the sessions of keys that `leave` gives a reason for, and tells their clients.
    pub fn turn_out(
        &self,
        leave: impl Fn(PublicKey) -> Option<CloseReason> + Clone + Send + 'static,
    ) {
        let others = leave.clone();
        let turn_out = move |relay: &mut Relay| relay.monitor().turn_out_here(&others);
        self.shared.crew.tell_others(self.number, turn_out);
        self.turn_out_here(&leave);
    }

    fn turn_out_here(&self, leave: &impl Fn(PublicKey) -> Option<CloseReason>) {
        for session in self.engine.sessions() {
            self.engine.visit(session, |visit| {
                let session = &visit.session;
                if let Some(key) = session.peer_key()
                    && session.is_connected()
                    && let Some(reason) = leave(key)
                {
                    visit.session.close(visit.now, reason);
                    visit.touch();
                }
            });
        }
    }

    /// Has a session recorded, by its number, as long as somebody listens. `None` when there is no
    /// such session, or somebody has it recorded already.
    pub async fn record(&self, number: u64) -> Option<mpsc::Receiver<TraceBatch>> {
        if let Some(record) = self.record_here(number) {
            return Some(record);
        }
        for worker in self.others() {
            let record = move |relay: &mut Relay| relay.monitor().record_here(number);
            if let Some(Some(record)) = self.shared.crew.ask(worker, record).await {
                return Some(record);
            }
        }
        None
    }

    fn record_here(&self, number: u64) -> Option<mpsc::Receiver<TraceBatch>> {
        let sessions = self.engine.sessions();
        let session = sessions.into_iter().find(|id| id.serial() == number)?;
        SessionTrace::start(&self.engine, session).map(follow_record)
    }

    /// Which ports lead to which clients.
    #[must_use]
    pub fn exposures(&self) -> Vec<ExposureSnapshot> {
        self.shared.front_doors.snapshot()
    }

    /// Which networks lead to which clients.
    #[must_use]
    pub fn routes(&self) -> Vec<RouteSnapshot> {
        self.shared.sites.snapshot()
    }

    /// Visitors of such ports so far whom nobody was asked about: too many, or for nobody.
    #[must_use]
    pub fn turned_away(&self) -> u64 {
        self.shared.front_doors.turned_away()
    }

    /// What happened lately.
    #[must_use]
    pub fn journal(&self) -> Journal {
        self.shared.journal.clone()
    }

    /// Sessions let in so far.
    #[must_use]
    pub fn served(&self) -> u64 {
        self.shared.served.load(Ordering::Relaxed)
    }
}
