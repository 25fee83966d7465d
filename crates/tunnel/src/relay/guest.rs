//! One admitted session at the relay: its streams, and how many of them it and its user may have.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use tabane_base::Duration;
use tabane_core::{CloseReason, PublicKey, StreamId};
use tabane_linux::abortive::AbortiveStream;
use tokio::time::{Instant, timeout};

use super::host::{Host, Leavings, Occupancy, Permit, Seat, refuse};
use super::mapping::Mapping;
use super::members::Member;
use super::packets::Packets;
use super::udp::Destination;
use super::user::{Asker, Counted, Rates, User};
use super::{Shared, destination, exposing, sites, udp};
use crate::access::Access;
use crate::connection::Connection;
use crate::engine::{Engine, SessionId};
use crate::fleet_loads;
use crate::flow::Flow;
use crate::headcount;
use crate::loopback;
use crate::request::{Measure, Request, RequestError, Status, Transport, families_byte};
use crate::routes::emit_named_list;
use crate::stream::{Stream, StreamEnd};
use crate::target::Target;

/// How long a stream may take to say what it wants: its request leaves in one packet, which is
/// repeated when lost.
const REQUEST_WAIT: Duration = Duration::from_secs(10);

pub(super) struct Guest {
    engine: Engine,
    shared: Arc<Shared>,
    session: SessionId,
    key: PublicKey,
    /// Where it was heard from when it was let in.
    from: Option<SocketAddr>,
    since: Instant,
    usage: Rc<Occupancy>,
    membership: Membership,
    _member: Member,
}

/// Whose limits a session has. Counts it as long as it is there.
pub(super) enum Membership {
    OfUser {
        user: User,
        rates: Rc<Rates>,
        _counted: Counted,
    },
    OfNobody {
        _counted: headcount::Counted<PublicKey>,
    },
}

impl Membership {
    fn user(&self) -> Option<&User> {
        match self {
            Self::OfUser { user, .. } => Some(user),
            Self::OfNobody { .. } => None,
        }
    }

    fn rates(&self) -> Option<&Rc<Rates>> {
        match self {
            Self::OfUser { rates, .. } => Some(rates),
            Self::OfNobody { .. } => None,
        }
    }
}

impl Guest {
    pub(super) fn new(
        engine: Engine,
        (shared, leavings): (Arc<Shared>, Leavings),
        session: SessionId,
        key: PublicKey,
        from: Option<SocketAddr>,
        membership: Membership,
    ) -> Self {
        let user = membership.user();
        if shared.is_worth_a_line(user) {
            let (user, session) = (user.map(User::name), session.serial());
            tracing::info!(client = %key, user, ?from, session, "session up");
        }
        let member = shared.members.add(session.serial(), membership.user());
        Self {
            membership,
            _member: member,
            from,
            engine,
            shared,
            session,
            key,
            since: Instant::now(),
            usage: Rc::new(Occupancy::new(session.serial(), leavings)),
        }
    }

    /// Serves a stream that the client opened, in a task of its own.
    pub(super) fn serve(&self, id: StreamId) {
        let stream = Stream::new(self.engine.clone(), self.session, id);
        let host = self.host();
        tokio::task::spawn_local(async move {
            if let Err(end) = serve(stream, &host).await {
                tracing::debug!(?end, "a stream ended before it was served");
            }
        });
    }

    /// What a stream's task has of it.
    pub(super) fn host(&self) -> Host {
        Host {
            shared: self.shared.clone(),
            usage: self.usage.clone(),
            user: self.membership.user().cloned(),
            rates: self.membership.rates().cloned(),
            session: self.session.serial(),
            since: self.since,
            key: self.key,
        }
    }

    pub(super) const fn session(&self) -> SessionId {
        self.session
    }

    pub(super) fn is_of(&self, user: &User) -> bool {
        self.membership.user().is_some_and(|own| own.is(user))
    }

    /// Whether it carries connections, which its end would break.
    pub(super) fn is_busy(&self) -> bool {
        self.usage.is_busy()
    }

    /// Whether UDP flows of programs would be broken by its end.
    pub(super) fn has_flows(&self) -> bool {
        self.usage.has_flows()
    }

    pub(super) const fn key(&self) -> PublicKey {
        self.key
    }

    /// Who breaks the protocol is named so that the owner can revoke or block it.
    pub(super) fn log_closed(&self, reason: &CloseReason) {
        let user = self.membership.user();
        if !self.shared.is_worth_a_line(user) {
            return;
        }
        let user = user.map(User::name);
        if let CloseReason::ProtocolViolation(violation) = reason {
            tracing::warn!(
                client = %self.key,
                user,
                from = ?self.from,
                ?violation,
                "a client broke the protocol and was sent away: it is hostile or very broken",
            );
        }
        tracing::info!(
            client = %self.key,
            user,
            session = self.session.serial(),
            lasted_s = self.since.elapsed().as_secs(),
            %reason,
            "session closed",
        );
    }
}

async fn serve(mut stream: Stream, host: &Host) -> Result<(), StreamEnd> {
    let request = match timeout(REQUEST_WAIT, stream.read_request()).await {
        Ok(request) => request?,
        Err(_) => return refuse(stream, Status::TimedOut).await,
    };
    let request = match request {
        Ok(request) => request,
        Err(error) => return refuse_malformed(stream, error).await,
    };
    if host.user.as_ref().is_some_and(User::is_used_up) {
        return refuse(stream, Status::VolumeUsedUp).await;
    }
    let Some(permit) = Permit::take(host, Seat::of(request.transport)) else {
        return refuse(stream, Status::Limit).await;
    };
    match request.transport {
        Transport::Tcp => serve_tcp(stream, host, &request, None).await?,
        Transport::TcpFrom(from) => serve_tcp(stream, host, &request, Some(from)).await?,
        Transport::Udp => serve_udp(stream, host, &request, None).await?,
        Transport::UdpFrom(from) => serve_udp(stream, host, &request, Some(from)).await?,
        Transport::Mapping => serve_mapping(stream, host, &request).await?,
        Transport::Packets => serve_packets(stream, host, false).await?,
        Transport::LodgedPackets => serve_packets(stream, host, true).await?,
        Transport::Families => tell_families(stream, host).await?,
        Transport::Measure(measure) => serve_measure(stream, host, measure).await?,
        Transport::Relays(known) => tell_relays(stream, host, known).await?,
        Transport::Loads => tell_loads(stream, host).await?,
        Transport::Exposure(claim) => {
            exposing::serve(stream, host, claim, request.target.name()).await?;
        }
        Transport::Route(prefix) => {
            sites::serve(stream, host, sites::Offered::Range(prefix)).await?;
        }
        Transport::Domain(resolver) => {
            match sites::Offered::domain(request.target.name(), resolver) {
                Some(offered) => sites::serve(stream, host, offered).await?,
                None => refuse(stream, Status::Malformed).await?,
            }
        }
        Transport::Routes => sites::tell(stream, host, sites::emit_routes).await?,
        Transport::NamedRoutes => sites::tell(stream, host, emit_named_list).await?,
    }
    drop(permit);
    Ok(())
}

impl Host {
    async fn connect(&self, target: &Target) -> Result<AbortiveStream, Status> {
        destination::connect(&self.shared, self.asker(), target).await
    }

    pub(super) fn asker(&self) -> Asker<'_> {
        Asker {
            key: self.key,
            user: self.user.as_ref(),
        }
    }
}

/// `from`: on whose behalf, as the client says; only sites are told.
async fn serve_tcp(
    stream: Stream,
    host: &Host,
    request: &Request,
    from: Option<SocketAddr>,
) -> Result<(), StreamEnd> {
    if let Some(way) = sites::settled_way(host, &request.target, from).await {
        return sites::connect(stream, host, way).await;
    }
    // A client that gives up meanwhile takes the attempts with it.
    let connected = tokio::select! {
        connected = host.connect(&request.target) => connected,
        end = poll_fn(|cx| stream.poll_reset(cx)) => return Err(end),
    };
    match connected {
        Ok(tcp) => {
            stream.write_all(&[Status::Open.emit()]).await?;
            let connection = Connection::new(stream, tcp);
            connection.metered(host.meter()).carry().await;
            Ok(())
        }
        Err(status) => refuse(stream, status).await,
    }
}

async fn serve_udp(
    stream: Stream,
    host: &Host,
    request: &Request,
    from: Option<SocketAddr>,
) -> Result<(), StreamEnd> {
    // Before anything else: datagrams are on their way already.
    let flow = Flow::new(stream, None);
    if let Some(way) = sites::settled_way(host, &request.target, from).await {
        return sites::pass_flow(flow, host, way).await;
    }
    match destination::bind_udp(&host.shared, host.asker(), &request.target).await {
        Ok(socket) => {
            flow.stream().write_all(&[Status::Open.emit()]).await?;
            let idle = udp::idle_timeout(&request.target);
            udp::serve(flow, Destination { socket, idle }, host.meter()).await;
            Ok(())
        }
        Err(status) => refuse(flow.into_stream(), status).await,
    }
}

async fn serve_mapping(stream: Stream, host: &Host, request: &Request) -> Result<(), StreamEnd> {
    // Before anything else: datagrams are on their way already.
    let flow = Flow::new(stream, None);
    // A peer is spoken to as one address.
    let status = match (&request.target, host.shared.access) {
        (Target::Address(_), Access::Own) => Status::Denied,
        (Target::Address(usual), Access::Public | Access::Private) => {
            flow.stream().write_all(&[Status::Open.emit()]).await?;
            let meter = host.meter();
            Mapping::new(&host.shared, host.asker(), flow, *usual, meter)
                .serve()
                .await;
            return Ok(());
        }
        _ => Status::Malformed,
    };
    refuse(flow.into_stream(), status).await
}

/// Serves packets, with addresses for them where the client has asked for some and there are any.
/// A user whose connections leave by an address of its own has none: what has one of the pool
/// leaves by the relay's.
async fn serve_packets(stream: Stream, host: &Host, lodges: bool) -> Result<(), StreamEnd> {
    let exit = host.shared.exit.as_ref().filter(|_| lodges);
    let has_exits = host.user.as_ref().is_some_and(User::has_exits);
    let lodger = match exit.filter(|_| !has_exits) {
        Some(exit) => exit.lodge(host.key, host.session).await,
        None => None,
    };
    if lodger.is_none() && !crate::pingers::can_ping() {
        return refuse(stream, Status::Denied).await;
    }
    let flow = Flow::new(stream, None);
    let mut answer = vec![Status::Open.emit()];
    if lodges {
        let assignment = exit.map(|exit| exit.assignment(lodger.as_ref()));
        answer.extend(assignment.unwrap_or_default().emit());
    }
    flow.stream().write_all(&answer).await?;
    let packets = Packets::new(host, flow, host.meter(), lodger);
    packets.serve().await;
    Ok(())
}

/// Says by which families this host reaches others; a peer leads to itself alone.
async fn tell_families(mut stream: Stream, host: &Host) -> Result<(), StreamEnd> {
    let families = families_byte(host.shared.own.families());
    stream.write_all(&[Status::Open.emit(), families]).await?;
    stream.end();
    Ok(())
}

/// Gives the fleet's list of relays to who knows none, or an older one.
async fn tell_relays(mut stream: Stream, host: &Host, known: u64) -> Result<(), StreamEnd> {
    let Some(told) = &host.shared.fleet_list else {
        return refuse(stream, Status::Malformed).await;
    };
    let (epoch, list) = told.borrow().clone();
    stream.write_all(&[Status::Open.emit()]).await?;
    if epoch > known {
        stream.write_all(&list).await?;
    }
    stream.end();
    Ok(())
}

async fn tell_loads(mut stream: Stream, host: &Host) -> Result<(), StreamEnd> {
    let Some(told) = &host.shared.fleet_loads else {
        return refuse(stream, Status::Malformed).await;
    };
    let loads = told.borrow().clone();
    stream.write_all(&[Status::Open.emit()]).await?;
    stream.write_all(&fleet_loads::emit(&loads)).await?;
    stream.finish();
    stream.stop();
    Ok(())
}

/// Carries a connection whose other end only counts. Not for a peer's guests, who may be anybody
/// under any number of keys.
async fn serve_measure(stream: Stream, host: &Host, measure: Measure) -> Result<(), StreamEnd> {
    let turn = match host.shared.access {
        Access::Own => return refuse(stream, Status::Denied).await,
        Access::Public | Access::Private => host.shared.measuring.begin(host.key),
    };
    let Some(turn) = turn else {
        return refuse(stream, Status::Limit).await;
    };
    let Ok((near, far)) = loopback::pair().await else {
        return refuse(stream, Status::Limit).await;
    };
    stream.write_all(&[Status::Open.emit()]).await?;
    let connection = Connection::new(stream, near.into()).metered(host.meter());
    tokio::join!(connection.carry(), turn.serve(measure, far));
    Ok(())
}

async fn refuse_malformed(stream: Stream, error: RequestError) -> Result<(), StreamEnd> {
    tracing::debug!(%error, "a request was not understood");
    refuse(stream, Status::Malformed).await
}
