//! What a client has exposed, from its request to its end: every visitor gets a stream [P-T.9].
//!
//! Owns that no port is led to a client whose user was not granted it, and that a visitor whom
//! nobody wants, or whom nobody answers, is reset. The ports are the front doors'; bytes go the way
//! of every connection's, so classes, rates, volumes and draining hold for them as well.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tabane_base::Duration;

use super::attending::{Presence, Visits};
use super::destination::notice_vanished;
use super::exposures::Claimant;
use super::front_doors::Arrival;
use super::host::{Host, Permit, Seat, refuse};
use super::udp;
use super::udp_door::UdpVisitor;
use super::user::User;
use super::visitor::Visitor;
use crate::access::Access;
use crate::connection::Connection;
use crate::flow::Flow;
use crate::request::{PortClaim, Status};
use crate::stream::{Stream, StreamEnd};
use crate::target::HostName;
use crate::visitor::Preface;

/// How long the client may take to say whether its target is there: what it gives the target, and
/// slow links.
const WORD_WAIT: Duration = Duration::from_secs(30);

/// Leads visitors to the client until it gives the port up, or is gone.
pub(super) async fn serve(
    mut stream: Stream,
    host: &Host,
    claim: PortClaim,
    name: Option<&HostName>,
) -> Result<(), StreamEnd> {
    let user = host.user.as_ref();
    let Some(user) = user.filter(|_| host.shared.access != Access::Own) else {
        return refuse(stream, Status::Denied).await;
    };
    let is_granted = || user.is_granted(claim, name);
    if !is_granted() {
        return refuse(stream, Status::Denied).await;
    }
    if host.shared.is_draining.load(Ordering::Relaxed) {
        // The relay that comes next may say otherwise.
        return refuse(stream, Status::TimedOut).await;
    }
    let doors = &host.shared.front_doors;
    let (key, user) = (host.key, user.name());
    let claimant = Claimant { key, user };
    let mut held = match doors.lease(claim, name, claimant).await {
        Ok(held) => held,
        Err(status) => return refuse(stream, status).await,
    };
    stream.write_all(&[Status::Open.emit()]).await?;
    let name = name.map(HostName::as_str);
    let PortClaim { protocol, ports } = claim;
    if host.shared.is_worth_a_line(host.user.as_ref()) {
        tracing::info!(client = %key, user, %protocol, %ports, name, "leads to the client");
    }
    let lead = |stream: &Stream, arrival, visits: &Arc<Visits>| match arrival {
        Arrival::Visitor(visitor) => let_in(stream, visitor, visits, host),
        Arrival::Datagrams(visitor) => let_in_datagrams(stream, visitor, visits, host),
    };
    held.attend(&mut stream, is_granted, lead).await;
    // The ports first: who hears that it is over may ask for them at once.
    drop(held);
    stream.end();
    Ok(())
}

fn let_in(asked: &Stream, visitor: Visitor, visits: &Arc<Visits>, host: &Host) {
    let Some((permit, presence, stream)) = open(asked, visits, host, Seat::Visitor) else {
        return;
    };
    let preface = preface(asked, visitor.from, visitor.at);
    let visitor = match visitor.at_home() {
        Ok(visitor) => visitor,
        Err(error) => {
            tracing::warn!(%error, "cannot watch a visitor's connection");
            return host.shared.front_doors.turn_away();
        }
    };
    let meter = host.meter();
    tokio::task::spawn_local(async move {
        notice_vanished(&visitor.tcp);
        let front = [preface.emit(), visitor.front.into_bytes()].concat();
        let carrying = async {
            stream.write_all(&front).await.ok()?;
            let connection = Connection::new(stream, visitor.tcp.into());
            let connection = connection.metered(meter).awaiting_word(WORD_WAIT);
            Some(connection.carry().await)
        };
        let carried = tokio::select! {
            carried = carrying => carried,
            // Dropped, it is reset.
            () = presence.forsaken() => None,
        };
        tracing::debug!(from = %preface.from, at = %preface.at, ?carried, "visitor gone");
        drop((permit, presence));
    });
}

fn let_in_datagrams(asked: &Stream, visitor: UdpVisitor, visits: &Arc<Visits>, host: &Host) {
    let Some((permit, presence, stream)) = open(asked, visits, host, Seat::UdpVisitor) else {
        return;
    };
    let preface = preface(asked, visitor.from, visitor.at);
    let meter = host.meter();
    tokio::task::spawn_local(async move {
        let flow = Flow::new(stream, None);
        if flow.stream().write_all(&preface.emit()).await.is_ok() {
            udp::serve(flow, visitor, meter).await;
        }
        drop((permit, presence));
    });
}

fn preface(asked: &Stream, from: SocketAddr, at: SocketAddr) -> Preface {
    Preface {
        asked_by: asked.id(),
        from,
        at,
    }
}

/// A stream towards the client for one more visitor; `None`, which is counted, where there are
/// enough.
fn open(
    asked: &Stream,
    visits: &Arc<Visits>,
    host: &Host,
    seat: Seat,
) -> Option<(Permit, Presence, Stream)> {
    let is_used_up = host.user.as_ref().is_some_and(User::is_used_up);
    let permit = Permit::take(host, seat).filter(|_| !is_used_up);
    let opened = permit.and_then(|permit| {
        let stream = asked.open_beside()?;
        Some((permit, visits.begin(), stream))
    });
    if opened.is_none() {
        host.shared.front_doors.turn_away();
    }
    opened
}
