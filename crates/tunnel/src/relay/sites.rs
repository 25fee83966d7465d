//! Networks behind clients: connections and flows of their group are led to them, and their names
//! asked for there [P-T.11].
//!
//! Owns that nobody is led but users of one group to routes that were granted, and that what finds
//! nobody is refused at once. The two halves of a connection, or of a flow, are tasks of their own
//! that meet on loopback: each client has its own worker, its own classes, rates and volumes, and
//! either half ends as with any other destination.

mod call;
mod packets;

use std::future::poll_fn;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};

use tabane_base::{Duration, Prefix, Protocol};
use tabane_core::PublicKey;
use tokio::net::TcpStream;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use super::attending::{self, Held, Visits, lock};
use super::grants::Group;
use super::host::{Host, Permit, refuse};
pub(super) use super::site_routes::Offered;
use super::site_routes::{Found, Holder, Routed, SiteRoutes, site_list};
use super::udp::{self, Destination};
use super::user::{Meter, User};
use crate::access::Access;
use crate::connection::Connection;
use crate::flow::Flow;
use crate::request::{Status, protocol_byte};
use crate::routes::{SiteList, emit_list};
use crate::stream::{Stream, StreamEnd};
use crate::target::Target;
use crate::visitor::Preface;

use call::{Bell, Call, FarHalf, udp_at_home};
pub(super) use call::{Way, connect, pass_flow};
pub(super) use packets::SitePackets;

/// How long a client may take to say whether its target is there: what it gives the target, and
/// slow links.
const WORD_WAIT: Duration = Duration::from_secs(30);
/// Nothing has come from it by any link for so long, though it was told of somebody: it is gone.
const SILENCE_WAIT: Duration = Duration::from_secs(3);
/// Groups are the owner's to change, who tells nobody.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// How long after a session's beginning others of the group may begin theirs, who were with the
/// same relay before, and have their networks led to them.
const SETTLING: Duration = Duration::from_secs(2);
/// What changes oftener is told once: whoever offers and takes back without end costs everybody
/// else no more than this.
const TELL_INTERVAL: Duration = Duration::from_millis(100);
/// A flow that is silent for so long both ways is over: later than where it began.
const IDLE_THERE: Duration = Duration::from_secs(125);

/// All routes, at every worker.
pub(super) struct Sites {
    routes: Mutex<SiteRoutes<Bell>>,
    revision: watch::Sender<u64>,
}

/// A route that leads to a client, until this is dropped.
struct Lease {
    sites: Arc<Sites>,
    number: u64,
    is_forgotten: bool,
}

/// A route at one moment.
#[derive(Clone, Debug)]
pub struct RouteSnapshot {
    /// The addresses that lead there, or the names that are asked for there and whom.
    pub what: String,
    /// Whose client it is.
    pub user: String,
    /// The client.
    pub client: PublicKey,
    /// It is there.
    pub is_here: bool,
    /// Connections and flows that are led there.
    pub calls: u64,
    /// The same so far.
    pub calls_so_far: u64,
}

impl Default for Sites {
    fn default() -> Self {
        Self {
            routes: Mutex::default(),
            revision: watch::Sender::new(0),
        }
    }
}

impl Sites {
    fn routes(&self) -> MutexGuard<'_, SiteRoutes<Bell>> {
        lock(&self.routes)
    }

    fn tell_change(&self) {
        self.revision.send_modify(|revision| *revision += 1);
    }

    /// Leads these addresses to a client from now on. Of a user's clients the one that is there
    /// has a route, whatever its key.
    async fn lease(
        self: &Arc<Self>,
        offered: &Offered,
        holder: &Holder,
    ) -> Result<Held<Lease, Call>, Status> {
        let insert = |routes: &mut SiteRoutes<Bell>, bell| {
            let (offered, holder) = (offered.clone(), holder.clone());
            let number = routes.insert(offered, holder, bell, Instant::now())?;
            Ok(Lease {
                sites: self.clone(),
                number,
                is_forgotten: false,
            })
        };
        let other = |routes: &SiteRoutes<Bell>, number| {
            let routed = routes.get(number)?;
            Some((
                routed.bell()?.clone(),
                routed.offer.holder.user == holder.user,
            ))
        };
        let held = attending::lease(&self.routes, insert, other).await?;
        self.tell_change();
        Ok(held)
    }

    /// What leads where.
    pub(super) fn snapshot(&self) -> Vec<RouteSnapshot> {
        let routes = self.routes();
        let of = |it: &Routed<Bell>| RouteSnapshot {
            what: it.offer.offered.to_string(),
            user: it.offer.holder.user.clone(),
            client: it.offer.holder.key,
            is_here: it.bell().is_some(),
            calls: it.last_bell.visits.now(),
            calls_so_far: it.last_bell.visits.so_far(),
        };
        routes.iter().map(of).collect()
    }

    /// Leads nobody any more; who is led stays.
    pub(super) fn close(&self) {
        self.routes().clear();
        self.tell_change();
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        match self.is_forgotten {
            true => self.sites.routes().remove(self.number),
            false => self.sites.routes().leave(self.number, Instant::now()),
        }
        self.sites.tell_change();
    }
}

/// The user of a session that sites are for, and its group.
fn member(host: &Host) -> Option<(&User, Group)> {
    let user = host.user.as_ref();
    let user = user.filter(|_| host.shared.access != Access::Own)?;
    Some((user, user.group()))
}

/// Leads to the client what its group sends to these addresses, or asks for of these names, until
/// it gives them up or is gone.
pub(super) async fn serve(
    mut stream: Stream,
    host: &Host,
    offered: Offered,
) -> Result<(), StreamEnd> {
    let Some((user, group)) = member(host) else {
        return refuse(stream, Status::Denied).await;
    };
    let is_granted = || {
        let granted = match &offered {
            Offered::Range(prefix) => user.is_route_granted(*prefix),
            Offered::Domain(domain, _) => user.is_domain_granted(domain),
        };
        granted && user.group() == group
    };
    if !is_granted() {
        return refuse(stream, Status::Denied).await;
    }
    let is_unavailable = match &offered {
        Offered::Range(prefix) => host.shared.own.is_within(*prefix),
        Offered::Domain(_, resolver) => {
            let routes = host.shared.sites.routes();
            !routes.is_of(&group, host.key, resolver.ip())
        }
    };
    if is_unavailable {
        return refuse(stream, Status::PortUnavailable).await;
    }
    if host.shared.is_draining.load(Ordering::Relaxed) {
        // The relay that comes next may say otherwise.
        return refuse(stream, Status::TimedOut).await;
    }
    let name = user.name();
    let holder = Holder {
        group: group.clone(),
        user: name.to_owned(),
        key: host.key,
    };
    let mut held = match host.shared.sites.lease(&offered, &holder).await {
        Ok(held) => held,
        Err(status) => return refuse(stream, status).await,
    };
    stream.write_all(&[Status::Open.emit()]).await?;
    if host.shared.is_worth_a_line(Some(user)) {
        tracing::info!(client = %host.key, user = name, %offered, "leads to the client");
    }
    let lead = |stream: &Stream, call, visits: &Arc<Visits>| pass_on(stream, call, visits, host);
    held.attend(&mut stream, is_granted, lead).await;
    held.lease_mut().is_forgotten = !is_granted();
    // The route first: who hears that it is over may ask for it at once.
    drop(held);
    stream.end();
    Ok(())
}

/// A stream towards the client for one more; where there are enough, who calls is refused, as
/// nobody hears the call.
fn pass_on(asked: &Stream, Call { at, from, end }: Call, visits: &Arc<Visits>, host: &Host) {
    let is_used_up = host.user.as_ref().is_some_and(User::is_used_up);
    let permit = Permit::take(host, end.seat()).filter(|_| !is_used_up);
    let Some((permit, stream)) = permit.zip(asked.open_beside()) else {
        return;
    };
    let presence = visits.begin();
    // No port is 0.
    let from = from.unwrap_or_else(|| SocketAddr::new(unspecified(at), at.port()));
    let preface = Preface {
        asked_by: asked.id(),
        from,
        at,
    };
    let meter = host.meter();
    tokio::task::spawn_local(async move {
        tokio::select! {
            () = carry(stream, preface.emit(), end, meter) => {}
            () = presence.forsaken() => {}
        }
        drop((permit, presence));
    });
}

/// Carries a call to the client; dropped, it ends as where nobody is any more.
async fn carry(stream: Stream, mut front: Vec<u8>, end: FarHalf, meter: Meter) {
    match end {
        FarHalf::Tcp(tcp, tell) => {
            front.push(protocol_byte(Protocol::Tcp));
            if let Some((stream, tcp)) = answered(stream, &front, tcp, tell).await {
                let connection = Connection::new(stream, tcp.into()).metered(meter);
                connection.carry().await;
            }
        }
        FarHalf::Datagrams(socket, _half, spoken) => {
            front.push(spoken);
            let flow = Flow::new(stream, None);
            if flow.stream().write_all(&front).await.is_ok()
                && let Ok(socket) = udp_at_home(socket)
            {
                let outside = Destination {
                    socket,
                    idle: IDLE_THERE,
                };
                udp::serve(flow, outside, meter).await;
            }
        }
    }
}

/// The client's stream and the caller's half, once the client has said that somebody is there.
async fn answered(
    mut stream: Stream,
    front: &[u8],
    tcp: TcpStream,
    mut tell: oneshot::Sender<Status>,
) -> Option<(Stream, TcpStream)> {
    stream.write_all(front).await.ok()?;
    let tcp = TcpStream::from_std(tcp.into_std().ok()?).ok()?;
    let status = tokio::select! {
        status = timeout(WORD_WAIT, word(&mut stream)) => status.unwrap_or(Status::TimedOut),
        () = tell.closed() => return None,
    };
    tell.send(status).ok()?;
    (status == Status::Open).then_some((stream, tcp))
}

/// What the client says of its target; of a client that is gone, that.
async fn word(stream: &mut Stream) -> Status {
    loop {
        tokio::select! {
            word = poll_fn(|cx| stream.poll_status(cx)) => {
                return word.unwrap_or(Status::HostUnreachable);
            }
            () = sleep(SILENCE_WAIT) => {}
        }
        let silent_for = stream.silent_for();
        if silent_for.is_none_or(|silent_for| silent_for >= SILENCE_WAIT) {
            return Status::HostUnreachable;
        }
    }
}

fn unspecified(at: SocketAddr) -> std::net::IpAddr {
    match at {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// Says what others of the client's group have, as `emit` writes it, now and whenever that changes.
pub(super) async fn tell(
    mut stream: Stream,
    host: &Host,
    emit: impl Fn(&SiteList) -> Vec<u8>,
) -> Result<(), StreamEnd> {
    let Some((user, _)) = member(host) else {
        return refuse(stream, Status::Denied).await;
    };
    let sites = &host.shared.sites;
    let mut revision = sites.revision.subscribe();
    stream.write_all(&[Status::Open.emit()]).await?;
    let mut told = None;
    loop {
        let looked_at = Instant::now();
        revision.mark_unchanged();
        let list = sites.routes().told(&user.group(), host.key);
        if told.as_ref() != Some(&list) {
            stream.write_all(&emit(&site_list(&list))).await?;
            told = Some(list);
        }
        tokio::select! {
            _ = revision.changed() => {}
            () = sleep(LOOK_AGAIN) => {}
            _ = poll_fn(|cx| stream.poll_end(cx)) => return Ok(()),
        }
        sleep_until(looked_at + TELL_INTERVAL).await;
    }
}

/// What of it ends understand that know no names.
pub(super) fn emit_routes(list: &SiteList) -> Vec<u8> {
    emit_list(&list.routes)
}

/// The same, once it is known. Who says on whose behalf it asks knows from an earlier session that
/// a site is there: in a new one both offer their networks in a moment.
pub(super) async fn settled_way(
    host: &Host,
    target: &Target,
    from: Option<SocketAddr>,
) -> Option<Way> {
    let mut revision = host.shared.sites.revision.subscribe();
    while from.is_some_and(|from| !is_settled(host, target, from)) {
        let change = timeout_at(host.since + SETTLING, revision.changed());
        if !change.await.is_ok_and(|changed| changed.is_ok()) {
            break;
        }
    }
    way(host, target, from)
}

/// Whether the destination leads somewhere, and the asker has what it may show.
fn is_settled(host: &Host, target: &Target, from: SocketAddr) -> bool {
    let Some(((user, group), Target::Address(at))) = member(host).zip(Some(target)) else {
        return true;
    };
    let from = from.ip().to_canonical();
    let routes = host.shared.sites.routes();
    let leads = !matches!(routes.find(&group, host.key, at.ip()), Found::Nowhere);
    leads && (!user.is_route_granted(Prefix::host(from)) || routes.is_of(&group, host.key, from))
}

/// Where a destination leads, if that is to a site. Who it is from is told there only where that is
/// of a network of the client's own.
pub(super) fn way(host: &Host, target: &Target, from: Option<SocketAddr>) -> Option<Way> {
    let Target::Address(at) = *target else {
        return None;
    };
    let (user, group) = member(host)?;
    if user.is_denied_by_rule(at) {
        return None;
    }
    let canonical = |addr: SocketAddr| SocketAddr::new(addr.ip().to_canonical(), addr.port());
    let at = canonical(at);
    let from = from.map(canonical);
    let routes = host.shared.sites.routes();
    let (route, bell) = match routes.find(&group, host.key, at.ip()) {
        Found::Here(number, bell) => (Some(number), Some(bell)),
        Found::Away => (None, None),
        Found::Nowhere => return None,
    };
    let is_own = |from: &SocketAddr| {
        from.is_ipv4() == at.is_ipv4() && routes.is_of(&group, host.key, from.ip())
    };
    let from = from.filter(is_own);
    Some(Way {
        at,
        from,
        route,
        bell,
    })
}
