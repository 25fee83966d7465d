//! Ports of the relay that lead here [P-T.9]: asking for them, and who comes by them.
//!
//! Owns that a stream of the relay's is nobody's unless this client has asked for visitors. Where
//! they are led to, and asking again in the next session, is left to others.

use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use tabane_base::{Duration, Prefix, Protocol};
use tabane_core::StreamId;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::arrivals::Arrival;
use super::packets::SitePackets;
use super::standing::Shared;
use super::{Client, OpenError, TcpFlow, UdpFlow};
use crate::domain::Domain;
use crate::echo::{Echo, Kind};
use crate::engine::SessionId;
use crate::flow::{Flow, order_for};
use crate::label::Label;
use crate::pingers::Pingers;
use crate::request::{ECHO_BYTE, PACKET_BYTE, PortClaim, Status, Transport, protocol_of};
use crate::stream::{Stream, StreamEnd};
use crate::target::{HostName, Target};
use crate::visitor::{MAX_PREFACE, Preface};

/// Longer than the relay waits for an earlier session of ours, plus a slow link.
const STATUS_WAIT: Duration = Duration::from_secs(30);
/// How long the relay may take to say who has come: it leaves in one packet.
const PREFACE_WAIT: Duration = Duration::from_secs(10);
/// Visitors who wait to be looked at; one more is reset.
const MAX_WAITING: usize = 1_024;

/// Ports of the relay that lead here as long as this is kept.
pub struct Exposure {
    client: Client,
    stream: Stream,
    arrivals: mpsc::Receiver<Arrival>,
}

/// Somebody who has come to such a port. Dropped, the visitor is reset.
pub struct Visitor {
    client: Client,
    stream: Stream,
    /// Where it comes from.
    pub from: SocketAddr,
    /// The address and port that it came to: of the relay, or of a route.
    pub at: SocketAddr,
}

/// What somebody speaks who has come by a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallProtocol {
    /// TCP or UDP, with the address that it came to.
    Carried(Protocol),
    /// Echo requests, as whole packets, to any host of the route.
    Echoes,
    /// Whole packets of other protocols than those, TCP and UDP, to any host of the route.
    Packets,
}

/// What there is to know of an exposure.
pub enum ExposureEvent {
    /// Somebody has come.
    Visitor(Visitor),
    /// Another client has asked the relay for the same, in vain.
    AlsoWanted,
    /// The relay leads nobody here any more: the session ended, or it has taken the port back.
    Over,
}

impl Client {
    /// Has the relay listen at these ports, or for this name at them, and lead whoever comes here.
    ///
    /// # Errors
    /// There is no session, or the relay refused: [`Status::Denied`] what its owner has not
    /// granted, [`Status::PortTaken`] what another client has, [`Status::PortUnavailable`] what its
    /// host does not let it have, [`Status::Malformed`] by a relay that does not know this.
    pub async fn expose(
        &self,
        claim: PortClaim,
        name: Option<HostName>,
    ) -> Result<Exposure, OpenError> {
        let port = claim.ports.first();
        let target = match name {
            Some(name) => Target::Name { name, port },
            None => Target::Anywhere,
        };
        self.have_led(Transport::Exposure(claim), target).await
    }

    /// Has the relay lead here what its group's clients send to these addresses. Whoever comes
    /// says which of them [it came for](Visitor::at), and [what it speaks](Visitor::call_protocol).
    ///
    /// # Errors
    /// There is no session, or the relay refused: [`Status::Denied`] what its owner has not
    /// granted, [`Status::PortTaken`] what overlaps with another's, [`Status::PortUnavailable`]
    /// what has the relay's own addresses in it, [`Status::Malformed`] by a relay that does not
    /// know this.
    pub async fn offer_route(&self, prefix: Prefix) -> Result<Exposure, OpenError> {
        self.have_led(Transport::Route(prefix), Target::Anywhere)
            .await
    }

    /// Has the relay tell the client's group that names of this domain are asked for at `resolver`,
    /// within one of its routes. Nobody comes by it.
    ///
    /// # Errors
    /// As those of [`offer_route`](Self::offer_route); [`Status::PortUnavailable`] where the
    /// resolver is in no route of the client's.
    pub async fn offer_domain(
        &self,
        domain: &Domain,
        resolver: SocketAddr,
    ) -> Result<Exposure, OpenError> {
        let target = Target::Name {
            name: domain.name().clone(),
            port: resolver.port(),
        };
        self.have_led(Transport::Domain(resolver), target).await
    }

    async fn have_led(&self, what: Transport, target: Target) -> Result<Exposure, OpenError> {
        let stream = self.open(what, target).await?;
        let (sender, arrivals) = mpsc::channel(MAX_WAITING);
        // Before the first visitor can come: nothing was received since it was opened.
        self.shared.arrivals.borrow_mut().await_by(&stream, sender);
        let mut exposure = Exposure {
            client: self.clone(),
            stream,
            arrivals,
        };
        let status = poll_fn(|cx| exposure.stream.poll_status(cx));
        match timeout(STATUS_WAIT, status).await {
            Ok(Ok(Status::Open)) => Ok(exposure),
            Ok(Ok(status)) => Err(OpenError::Refused(status)),
            Ok(Err(StreamEnd::SessionLost)) => Err(OpenError::SessionLost),
            Ok(Err(StreamEnd::Reset | StreamEnd::Finished)) => {
                Err(OpenError::Refused(Status::Unreachable))
            }
            Err(_) => Err(OpenError::TimedOut),
        }
    }
}

impl Shared {
    /// The relay has opened a stream: somebody has come.
    pub(super) fn on_stream_opened(self: &Rc<Self>, session: SessionId, id: StreamId) {
        let mut stream = Stream::new(self.engine.clone(), session, id);
        let shared = Rc::downgrade(self);
        tokio::task::spawn_local(async move {
            let preface = stream.read_preface(MAX_PREFACE, Preface::parse);
            let Ok(Ok(Ok(preface))) = timeout(PREFACE_WAIT, preface).await else {
                tracing::debug!("a stream of the relay's says nothing of whom it is for");
                return;
            };
            let Preface { asked_by, from, at } = preface;
            let Some(shared) = shared.upgrade() else {
                return;
            };
            let arrival = Arrival { stream, from, at };
            // What finds no room is reset.
            if !shared.arrivals.borrow().tell(asked_by, arrival) {
                tracing::debug!(%from, %at, "a visitor whom nobody waits for");
            }
        });
    }
}

impl Exposure {
    /// Waits for the next thing that happens.
    pub async fn next(&mut self) -> ExposureEvent {
        let told = tokio::select! {
            arrival = self.arrivals.recv() => match arrival {
                Some(Arrival { stream, from, at }) => {
                    let client = self.client.clone();
                    return ExposureEvent::Visitor(Visitor { client, stream, from, at });
                }
                None => return ExposureEvent::Over,
            },
            told = poll_fn(|cx| self.stream.poll_status(cx)) => told,
        };
        match told {
            Ok(_) => ExposureEvent::AlsoWanted,
            Err(_) => ExposureEvent::Over,
        }
    }
}

impl Drop for Exposure {
    fn drop(&mut self) {
        self.client
            .shared
            .arrivals
            .borrow_mut()
            .forget(&self.stream);
    }
}

impl Visitor {
    /// Has it treated and counted as `label` says, without one as an ordinary one; to be said
    /// before anything else, so that what comes from the visitor keeps to it from here on.
    #[must_use]
    pub fn labelled(mut self, label: Option<Label>) -> Self {
        let (session, id) = (self.stream.session(), self.stream.id());
        let treatment = label.as_ref().map(Label::treatment).unwrap_or_default();
        self.stream.visit(|visit| {
            let class = treatment.class;
            visit.session.set_stream_class(visit.now, id, class);
        });
        if let Some(label) = &label {
            let mut labelled = self.client.shared.labelled.borrow_mut();
            labelled.add(session, id, label);
        }
        self.stream.label = label;
        self
    }

    /// Of one who comes by a route: what it speaks; `None` where it does not say so. To be asked
    /// once, before anything else.
    pub async fn call_protocol(&mut self) -> Option<CallProtocol> {
        let byte = poll_fn(|cx| self.stream.poll_byte(cx));
        match timeout(PREFACE_WAIT, byte).await.ok()?.ok()? {
            ECHO_BYTE => Some(CallProtocol::Echoes),
            PACKET_BYTE => Some(CallProtocol::Packets),
            byte => protocol_of(byte).map(CallProtocol::Carried),
        }
    }

    /// Of one who speaks in echo requests: puts them to their hosts, where `may_ask` allows, by
    /// sockets with this mark, and takes the replies back, until it has gone.
    pub async fn answer_echoes(self, mark: Option<u32>, may_ask: impl Fn(IpAddr) -> bool) {
        let (sender, mut replies) = mpsc::channel(MAX_WAITING);
        let mut pingers = Pingers::new(sender);
        let flow = UdpFlow::new(self.client, Flow::new(self.stream, None));
        loop {
            tokio::select! {
                packet = flow.recv() => {
                    let Ok(packet) = packet else {
                        return;
                    };
                    let echo = Echo::parse(&packet);
                    let is_one = |it: &Echo<'_>| it.kind == Kind::Request;
                    if let Some(echo) = echo.filter(|it| is_one(it) && may_ask(it.destination)) {
                        pingers.send(&echo, |socket| match mark {
                            Some(mark) => socket.set_mark(mark),
                            None => Ok(()),
                        });
                    }
                }
                reply = replies.recv() => if let Some(reply) = reply {
                    // Lost like any packet.
                    let _ = flow.send(&reply);
                },
            }
        }
    }

    /// What one sends who speaks in packets.
    #[must_use]
    pub fn packets(self) -> SitePackets {
        SitePackets::new(UdpFlow::new(self.client, Flow::new(self.stream, None)))
    }

    /// Waits until it has gone.
    pub async fn gone(&self) {
        poll_fn(|cx| self.stream.poll_reset(cx)).await;
    }

    /// Tells it that nobody is there for it, for this reason: it is reset.
    pub async fn refuse(mut self, status: Status) {
        if self.stream.write_all(&[status.emit()]).await.is_ok() {
            self.stream.end();
        }
    }

    /// Says that somebody is there; what follows is the connection.
    ///
    /// # Errors
    /// It has gone, or the session has ended.
    pub async fn connected(self) -> Result<TcpFlow, OpenError> {
        let said = self.stream.write_all(&[Status::Open.emit()]).await;
        said.map_err(|_| OpenError::SessionLost)?;
        Ok(TcpFlow::new(self.client, self.stream))
    }

    /// The same of one who sends datagrams.
    #[must_use]
    pub fn datagrams(self) -> UdpFlow {
        let wanted = self.client.shared.config.udp_order;
        let order = order_for(&Target::Address(self.at), wanted);
        UdpFlow::new(self.client, Flow::new(self.stream, Some(order)))
    }
}
