//! The client's end: one session to the relay over all links, and what is carried through it.
//!
//! Owns the public face: a [`Client`] is cheap to clone and lives on the thread of its `LocalSet`.
//! Keeping the session alive is the supervisor's affair, sockets and paths of a link are the
//! link's. Invariant: when a call here fails, nothing of it is left in the session.

mod arrivals;
mod backoff;
mod carrier;
mod carriers;
mod comparison;
mod config;
mod dials;
mod exposure;
mod failure;
mod families;
mod fleet_list;
mod handshakes;
mod labelled;
mod left;
mod link;
mod link_bind;
mod links;
mod mapping;
mod opened;
mod packets;
mod pairs;
mod paths;
mod roster;
mod routes;
mod search;
mod snapshot;
mod standing;
mod supervisor;
mod wishes;

use std::net::SocketAddr;
use std::rc::Rc;

use tabane_base::Duration;
use tabane_core::{CloseReason, StreamError};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::flow::{Flow, order_for};
use crate::journal::Journal;
use crate::label::Label;
use crate::request::{Measure, Request, Transport};
use crate::stream::Stream;
use crate::target::Target;
use crate::trace::SessionTrace;

pub use carrier::{
    Carrier, CarrierKind, CarrierMemory, CarrierMemoryError, CarrierWish, PolicedRates,
};
pub use config::{ClientConfig, RelayPeer, SessionNumbers, TlsPeer, UDP_PORTS};
pub use exposure::{CallProtocol, Exposure, ExposureEvent, Visitor};
pub use failure::{ConnectError, OpenError};
pub use link::{LinkError, LinkWish};
pub use link_bind::LinkBind;
pub use mapping::{UdpArrival, UdpMapping};
pub use opened::{TcpFlow, UdpFlow};
pub use packets::{PacketFlow, PacketsCarried, SitePacket, SitePackets};
pub use roster::{RelayLoad, RelayMerit, in_order_of_merit};
pub use snapshot::{ClientSnapshot, ClientState, LinkSnapshot};

use standing::{Shared, Standing};
use supervisor::Supervisor;

/// How long a good-bye is given to arrive. A relay that misses it forgets the session when it
/// has been idle for long; a person waits for the prompt meanwhile.
const GOODBYE_WAIT: Duration = Duration::from_millis(200);

/// A relay that has answered may fall silent for a moment: all links at once are slow, or it is
/// started again. What goes another way for that stays without the bond for all its life, and a
/// first SYN that is lost costs a plain machine as much.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(1);

/// What a new session's relay takes is known about as soon as a connection can be opened by it.
const SOURCES_WAIT: Duration = Duration::from_secs(1);

/// What becomes of a connection that nothing was heard of yet while no link leads to the relay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Silence {
    /// It waits until a link does, or the session is given up.
    #[default]
    Waits,
    /// It is given back once the relay is [given up](Client::is_given_up).
    GivesBack,
}

/// A session to a relay, kept up until [`close`](Self::close) is called or the last clone is
/// dropped.
#[derive(Clone)]
pub struct Client {
    shared: Rc<Shared>,
    guard: Rc<Guard>,
    /// What is opened by this clone bears it.
    label: Option<Label>,
    /// On whose behalf it is opened.
    source: Option<SocketAddr>,
}

/// Ends the session with the last clone.
struct Guard {
    shared: Rc<Shared>,
    supervisor: AbortHandle,
}

impl Client {
    /// Sets up a session over all links and waits until the relay has let us in.
    ///
    /// # Errors
    /// See [`ConnectError`]; each says what to do.
    ///
    /// # Panics
    /// Outside a `LocalSet`; see [`block_on`](crate::block_on).
    pub async fn connect(mut config: ClientConfig) -> Result<Self, ConnectError> {
        if config.links.is_empty() {
            config.links.push(LinkBind::unbound());
        }
        let shared = Shared::new(config)?;
        let mut supervisor = Supervisor::new(shared.clone());
        let won = supervisor.establish().await?;
        let session = supervisor.adopt(won);
        let task = tokio::task::spawn_local(supervisor.run(session));
        Ok(Self::guarded(shared, task.abort_handle()))
    }

    /// Begins to set up a session and goes on trying, over whatever links there are or will be
    /// (none at all to begin with, if there are none), until the relay refuses for good.
    ///
    /// # Errors
    /// A setting that cannot work, or the kernel gave no descriptors.
    ///
    /// # Panics
    /// As [`connect`](Self::connect).
    pub fn start(config: ClientConfig) -> Result<Self, ConnectError> {
        let shared = Shared::new(config)?;
        let supervisor = Supervisor::new(shared.clone());
        let task = tokio::task::spawn_local(supervisor.run_from_nothing());
        Ok(Self::guarded(shared, task.abort_handle()))
    }

    fn guarded(shared: Rc<Shared>, supervisor: AbortHandle) -> Self {
        Self {
            guard: Rc::new(Guard {
                shared: shared.clone(),
                supervisor,
            }),
            shared,
            label: None,
            source: None,
        }
    }

    /// Whether the relay answers: there is a session, and at least one of its paths is active.
    #[must_use]
    pub fn is_reachable(&self) -> bool {
        *self.shared.reach.borrow()
    }

    /// Waits until [`is_reachable`](Self::is_reachable) says `wanted`.
    pub fn until_reachable(&self, wanted: bool) -> impl Future<Output = ()> + use<> {
        let mut reach = self.shared.reach.subscribe();
        async move {
            // Fails with the last clone, whose work is over.
            let _ = reach.wait_for(|reachable| *reachable == wanted).await;
        }
    }

    /// Whether the relay does not answer, and is not expected to within a moment: it has been
    /// silent for a second, never answered, or sent us away.
    #[must_use]
    pub fn is_given_up(&self) -> bool {
        !self.is_reachable() && self.patience_left().is_zero()
    }

    /// Waits until [`is_given_up`](Self::is_given_up).
    pub fn until_given_up(&self) -> impl Future<Output = ()> + use<> {
        let client = self.clone();
        async move {
            loop {
                client.until_reachable(false).await;
                let back = client.until_reachable(true);
                if timeout(client.patience_left(), back).await.is_err() {
                    return;
                }
            }
        }
    }

    fn patience_left(&self) -> Duration {
        let lost_at = self.shared.reach_lost_at.get();
        lost_at.map_or(Duration::ZERO, |at| {
            GIVEN_UP_AFTER.saturating_sub(at.elapsed())
        })
    }

    /// Has the relay connect to `target`. A relay that is silent is waited for as `silence` says.
    ///
    /// # Errors
    /// The relay refused, or there is no session.
    pub async fn open_tcp(&self, target: Target, silence: Silence) -> Result<TcpFlow, OpenError> {
        if silence == Silence::GivesBack && self.is_given_up() {
            return Err(OpenError::SessionLost);
        }
        let opening = async {
            match self.try_open_tcp(target.clone()).await {
                // Nothing was sent yet, so the next session may try.
                Err(OpenError::SessionLost) => self.try_open_tcp(target).await,
                result => result,
            }
        };
        tokio::select! {
            opened = opening => opened,
            () = self.until_given_up(), if silence == Silence::GivesBack => {
                Err(OpenError::SessionLost)
            }
        }
    }

    async fn try_open_tcp(&self, target: Target) -> Result<TcpFlow, OpenError> {
        let stream = match self.told_source(&target).await? {
            Some(source) => self.open(Transport::TcpFrom(source), target).await?,
            None => self.open(Transport::Tcp, target).await?,
        };
        TcpFlow::confirm(self.clone(), stream).await
    }

    /// Has the relay send, take or return bytes, which only show how fast they go: what it does is
    /// the far end of the connection. A way up brings back, now and then, how many bytes have come
    /// (8 bytes each time). It ends after ten seconds.
    ///
    /// # Errors
    /// There is no session, or the relay refused: [`Status::Malformed`] by one that does not know
    /// this, [`Status::Limit`] for who has measured enough, [`Status::Denied`] by a peer.
    pub async fn open_measure(&self, measure: Measure) -> Result<TcpFlow, OpenError> {
        let transport = Transport::Measure(measure);
        let stream = self.open(transport, Target::Anywhere).await?;
        TcpFlow::confirm(self.clone(), stream).await
    }

    /// Begins a UDP flow to `target`. A refusal by the relay shows when receiving.
    ///
    /// # Errors
    /// There is no session, or it takes no more flows.
    pub async fn open_udp(&self, target: Target) -> Result<UdpFlow, OpenError> {
        let order = order_for(&target, self.shared.config.udp_order);
        let stream = match self.told_source(&target).await? {
            Some(source) => self.open(Transport::UdpFrom(source), target).await?,
            None => self.open(Transport::Udp, target).await?,
        };
        Ok(UdpFlow::new(self.clone(), Flow::new(stream, Some(order))))
    }

    /// Has the relay stand in for a UDP socket that speaks with many, by one port of its own for
    /// all of them. What is sent to `usual` has the shortest form. A relay that knows no mappings
    /// says [`Status::Malformed`] when receiving.
    ///
    /// # Errors
    /// There is no session, or it takes no more flows.
    pub async fn open_mapping(&self, usual: SocketAddr) -> Result<UdpMapping, OpenError> {
        let wanted = self.shared.config.udp_order;
        let stream = self.open(Transport::Mapping, usual.into()).await?;
        let flow = Flow::new(stream, None);
        Ok(UdpMapping::new(self.clone(), flow, usual, wanted))
    }

    /// Where a relay is found from here on, by its place in the list; paths that there are stay.
    pub fn set_relay_addrs(&self, relay: usize, addrs: Vec<SocketAddr>) {
        if let Some(known) = self.shared.addrs.borrow_mut().get_mut(relay) {
            *known = addrs;
            self.shared.links_changed.notify_one();
        }
    }

    /// What is known of the relays from here on, by their places in the list, which are for good:
    /// those that are new come last, those that are gone say so. Another relay is gone over to only
    /// while nothing is under way, or where the present one goes down.
    pub fn set_relays(&self, relays: Vec<(RelayPeer, RelayMerit)>) {
        let shared = &self.shared;
        let (peers, merits): (Vec<_>, Vec<_>) = relays.into_iter().unzip();
        let known = shared.relays.borrow().len();
        if peers.len() < known {
            return;
        }
        let mut addrs = shared.addrs.borrow_mut();
        addrs.resize(peers.len(), Vec::new());
        for (known, peer) in addrs.iter_mut().zip(&peers) {
            // A name that cannot be looked up just now leads to where it led.
            if !peer.addrs.is_empty() {
                known.clone_from(&peer.addrs);
            }
        }
        drop(addrs);
        *shared.relays.borrow_mut() = peers;
        *shared.merits.borrow_mut() = merits;
        shared.links_changed.notify_one();
    }

    /// Where each relay is found, by its place in the list.
    #[must_use]
    pub fn relay_addrs(&self) -> Vec<Vec<SocketAddr>> {
        self.shared.addrs.borrow().clone()
    }

    /// What each relay is called, by its place in the list.
    #[must_use]
    pub fn relay_names(&self) -> Vec<String> {
        let relays = self.shared.relays.borrow();
        relays.iter().map(|it| it.name.clone()).collect()
    }

    /// The same client; what is opened through this copy bears `label`.
    #[must_use]
    pub fn labelled(&self, label: Option<Label>) -> Self {
        Self {
            label,
            ..self.clone()
        }
    }

    /// The same client; what is opened through this copy is on behalf of this host, which the
    /// site that it goes to is told.
    #[must_use]
    pub fn on_behalf_of(&self, source: Option<SocketAddr>) -> Self {
        Self {
            source,
            ..self.clone()
        }
    }

    /// The source to tell, where the present session's relay takes it.
    async fn told_source(&self, target: &Target) -> Result<Option<SocketAddr>, OpenError> {
        let Some(source) = self.source.filter(|_| matches!(target, Target::Address(_))) else {
            return Ok(None);
        };
        let session = self.shared.wait_for_session().await?;
        let mut told = self.shared.takes_sources.subscribe();
        let told = told.wait_for(|told| told.is_some_and(|(of, _)| of == session));
        let told = timeout(SOURCES_WAIT, told).await;
        let takes = told.is_ok_and(|told| told.is_ok_and(|told| *told == Some((session, true))));
        Ok(takes.then_some(source))
    }

    /// What happened lately.
    #[must_use]
    pub fn journal(&self) -> Journal {
        self.shared.journal.clone()
    }

    /// Has the session recorded, packet by packet, until the result is dropped. `None` when there
    /// is none, or somebody has it recorded already.
    #[must_use]
    pub fn trace(&self) -> Option<SessionTrace> {
        SessionTrace::start(&self.shared.engine, self.shared.session()?)
    }

    /// Waits until the client is over for good, and says why: it was closed, or the relay does
    /// not want it any more. Lost sessions are replaced and do not count.
    pub fn closed(&self) -> impl Future<Output = CloseReason> + use<> {
        let mut standing = self.shared.standing.subscribe();
        async move {
            let closed = standing
                .wait_for(|standing| matches!(standing, Standing::Closed(_)))
                .await;
            match closed.as_deref() {
                Ok(Standing::Closed(reason)) => reason.clone(),
                // The last clone was dropped.
                Ok(_) | Err(_) => CloseReason::Finished,
            }
        }
    }

    /// Waits until the far end is not who it should be, or will not have us: it is over, or
    /// whoever answers shows another key or version, which may be a stranger on the way.
    pub async fn refused(&self) -> CloseReason {
        let told = |standing: &Standing| match standing {
            Standing::Closed(reason) => Some(reason.clone()),
            Standing::Connecting(
                reason @ (CloseReason::WrongPeerKey | CloseReason::VersionMismatch { .. }),
            ) => Some(reason.clone()),
            _ => None,
        };
        let mut standing = self.shared.standing.subscribe();
        let refused = standing.wait_for(|it| told(it).is_some()).await;
        refused
            .ok()
            .and_then(|it| told(&it))
            .unwrap_or(CloseReason::Finished)
    }

    /// Says good-bye to the relay and ends everything.
    pub async fn close(self) {
        self.guard.supervisor.abort();
        let shared = &self.shared;
        let session = shared.session();
        shared
            .standing
            .send_replace(Standing::Closed(CloseReason::Finished));
        shared.end_left(0);
        let Some(session) = session else {
            return;
        };
        shared.say_goodbye(session);
        let forgotten = async {
            while shared.engine.is_kept(session) {
                shared.engine.notice().await;
            }
        };
        if timeout(GOODBYE_WAIT, forgotten).await.is_err() {
            tracing::debug!("the relay did not confirm the good-bye");
        }
    }

    /// Opens a stream on the present session, or the next one, and writes its request.
    async fn open(&self, transport: Transport, target: Target) -> Result<Stream, OpenError> {
        let shared = &self.shared;
        let session = shared.wait_for_session().await?;
        let id = shared
            .engine
            .visit(session, |visit| {
                let id = visit.session.open_stream(visit.now)?;
                if let Some(label) = &self.label {
                    let class = label.treatment().class;
                    visit.session.set_stream_class(visit.now, id, class);
                }
                Ok::<_, StreamError>(id)
            })
            .ok_or(OpenError::SessionLost)??;
        if let Transport::Packets | Transport::LodgedPackets = transport {
            shared.packets_on.set(Some(session));
        }
        let mut stream = Stream::new(shared.engine.clone(), session, id);
        if let Some(label) = &self.label {
            shared.labelled.borrow_mut().add(session, id, label);
            stream.label = Some(label.clone());
        }
        let mut preface = Vec::new();
        Request { transport, target }.emit(&mut preface);
        stream
            .write_all(&preface)
            .await
            .map_err(|_| OpenError::SessionLost)?;
        Ok(stream)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.supervisor.abort();
        self.shared.end_left(0);
        if let Some(session) = self.shared.session() {
            self.shared.say_goodbye(session);
        }
        self.shared
            .standing
            .send_replace(Standing::Closed(CloseReason::Finished));
    }
}
