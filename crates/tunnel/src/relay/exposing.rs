//! What a client has exposed, from its request to its end: every visitor gets a stream [P-T.9].
//!
//! Owns that no port is led to a client whose user was not granted it, and that a visitor whom
//! nobody wants, or whom nobody answers, is reset. The ports are the front doors'; bytes go the way
//! of every connection's, so classes, rates, volumes and draining hold for them as well.

use std::sync::atomic::Ordering;

use tabane_base::Duration;

use super::attending::{Attendant, attend};
use super::destination::notice_vanished;
use super::front_doors::{Knock, Lease, Presence, Visitor};
use super::host::{Host, Permit, Seat, refuse};
use super::udp_door::UdpVisitor;
use super::user::User;
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
    let is_granted = || {
        let of = |user: &User| user.is_granted(claim, name);
        host.shared.access != Access::Own && host.user.as_ref().is_some_and(of)
    };
    if !is_granted() {
        return refuse(stream, Status::Denied).await;
    }
    if host.shared.is_draining.load(Ordering::Relaxed) {
        // The relay that comes next may say otherwise.
        return refuse(stream, Status::TimedOut).await;
    }
    let doors = &host.shared.front_doors;
    let (lease, mut knocks) = match doors.lease(claim, name, host.key).await {
        Ok(leased) => leased,
        Err(status) => return refuse(stream, status).await,
    };
    stream.write_all(&[Status::Open.emit()]).await?;
    let name = name.map(HostName::as_str);
    let user = host.user.as_ref().map(User::name);
    let PortClaim { protocol, ports } = claim;
    tracing::info!(client = %host.key, user, %protocol, %ports, name, "leads to the client");
    let mut exposing = Exposing {
        stream,
        lease,
        host,
    };
    attend(&mut exposing, &mut knocks, is_granted).await;
    drop(knocks);
    // The ports first: who hears that it is over may ask for them at once.
    let Exposing { mut stream, .. } = exposing;
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
        let Some((permit, stream)) = self.open(host) else {
            return;
        };
        let preface = Preface {
            asked_by: self.stream.id(),
            from: visitor.from,
            at: visitor.at,
        };
        let visitor = match visitor.at_home() {
            Ok(visitor) => visitor,
            Err(error) => {
                tracing::warn!(%error, "cannot watch a visitor's connection");
                return host.shared.front_doors.turn_away();
            }
        };
        let (ended, meter) = (host.stream_ended.clone(), host.meter());
        tokio::task::spawn_local(async move {
            notice_vanished(&visitor.tcp);
            let front = [preface.emit(), visitor.front].concat();
            if stream.write_all(&front).await.is_ok() {
                let connection = Connection::new(stream, visitor.tcp.into());
                let connection = connection.metered(meter).awaiting_word(WORD_WAIT);
                let carried = connection.carry().await;
                tracing::debug!(from = %visitor.from, at = %visitor.at, ?carried, "visitor gone");
            }
            drop(permit);
            ended.notify_one();
        });
    }

    fn let_in_datagrams(&self, visitor: UdpVisitor, host: &Host) {
        let Some((permit, stream)) = self.open(host) else {
            return;
        };
        let preface = Preface {
            asked_by: self.stream.id(),
            from: visitor.from,
            at: visitor.at,
        };
        let meter = host.meter();
        tokio::task::spawn_local(async move {
            let flow = Flow::new(stream, None);
            if flow.stream().write_all(&preface.emit()).await.is_ok() {
                visitor.serve(flow, meter).await;
            }
            drop(permit);
        });
    }

    /// A stream towards the client for one more visitor; `None`, which is counted, where there are
    /// enough.
    fn open(&self, host: &Host) -> Option<((Permit, Presence), Stream)> {
        let is_used_up = host.user.as_ref().is_some_and(User::is_used_up);
        let permit = Permit::take(host, Seat::Visitor).filter(|_| !is_used_up);
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
