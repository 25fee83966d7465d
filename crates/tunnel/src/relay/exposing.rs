//! What a client has exposed, from its request to its end: every visitor gets a stream [P-T.9].
//!
//! Owns that no port is led to a client whose user was not granted it, and that a visitor whom
//! nobody wants, or whom nobody answers, is reset. The ports are the front doors'; bytes go the way
//! of every connection's, so classes, rates, volumes and draining hold for them as well.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use tabane_base::Duration;
use tokio::sync::watch;

use super::attending::{Attendant, Ending, attend};
use super::destination::notice_vanished;
use super::exposures::Claimant;
use super::front_doors::{Knock, Lease, Presence};
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
    stream: Stream,
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
    let (lease, mut knocks) = match doors.lease(claim, name, claimant).await {
        Ok(leased) => leased,
        Err(status) => return refuse(stream, status).await,
    };
    stream.write_all(&[Status::Open.emit()]).await?;
    let name = name.map(HostName::as_str);
    let PortClaim { protocol, ports } = claim;
    tracing::info!(client = %key, user, %protocol, %ports, name, "leads to the client");
    let mut exposing = Exposing {
        stream,
        lease,
        is_gone: watch::Sender::new(false),
        host,
    };
    if attend(&mut exposing, &mut knocks, is_granted).await == Ending::Vanished {
        exposing.is_gone.send_replace(true);
    }
    drop(knocks);
    // The ports first: who hears that it is over may ask for them at once.
    let Exposing {
        mut stream, lease, ..
    } = exposing;
    drop(lease);
    if !stream.is_written {
        stream.finish();
    }
    if !stream.is_read {
        stream.stop();
    }
    Ok(())
}

struct Exposing<'a> {
    stream: Stream,
    lease: Lease,
    /// The client is here again without this session: nobody answers those any more who came by it.
    is_gone: watch::Sender<bool>,
    host: &'a Host,
}

impl Attendant for Exposing<'_> {
    type Errand = Knock;

    fn stream(&mut self) -> &mut Stream {
        &mut self.stream
    }

    fn asked(knock: Knock) -> Result<bool, Knock> {
        match knock {
            Knock::Asked { by_the_same } => Ok(by_the_same),
            knock => Err(knock),
        }
    }

    fn serve(&self, knock: Knock) {
        match knock {
            Knock::Visitor(visitor) => self.let_in(visitor, self.host),
            Knock::Datagrams(visitor) => self.let_in_datagrams(visitor, self.host),
            Knock::Asked { .. } => {}
        }
    }
}

impl Exposing<'_> {
    fn let_in(&self, visitor: Visitor, host: &Host) {
        let Some((permit, stream)) = self.open(host, Seat::Visitor) else {
            return;
        };
        let preface = self.preface(visitor.from, visitor.at);
        let visitor = match visitor.at_home() {
            Ok(visitor) => visitor,
            Err(error) => {
                tracing::warn!(%error, "cannot watch a visitor's connection");
                return host.shared.front_doors.turn_away();
            }
        };
        let (ended, meter) = (host.stream_ended.clone(), host.meter());
        let mut is_gone = self.is_gone.subscribe();
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
                // Dropped, it is reset. The sender is dropped with the port, which ends nobody.
                Ok(_) = is_gone.wait_for(|it| *it) => None,
            };
            tracing::debug!(from = %preface.from, at = %preface.at, ?carried, "visitor gone");
            drop(permit);
            ended.notify_one();
        });
    }

    fn let_in_datagrams(&self, visitor: UdpVisitor, host: &Host) {
        let Some((permit, stream)) = self.open(host, Seat::UdpVisitor) else {
            return;
        };
        let preface = self.preface(visitor.from, visitor.at);
        let meter = host.meter();
        tokio::task::spawn_local(async move {
            let flow = Flow::new(stream, None);
            if flow.stream().write_all(&preface.emit()).await.is_ok() {
                udp::serve(flow, visitor, meter).await;
            }
            drop(permit);
        });
    }

    fn preface(&self, from: SocketAddr, at: SocketAddr) -> Preface {
        Preface {
            asked_by: self.stream.id(),
            from,
            at,
        }
    }

    /// A stream towards the client for one more visitor; `None`, which is counted, where there are
    /// enough.
    fn open(&self, host: &Host, seat: Seat) -> Option<((Permit, Presence), Stream)> {
        let is_used_up = host.user.as_ref().is_some_and(User::is_used_up);
        let permit = Permit::take(host, seat).filter(|_| !is_used_up);
        let opened = permit.and_then(|permit| {
            let stream = self.stream.open_beside()?;
            Some(((permit, self.lease.count()), stream))
        });
        if opened.is_none() {
            host.shared.front_doors.turn_away();
        }
        opened
    }
}
