//! A connection on its way out: straight to a peer, else by the relay, else plainly.
//!
//! Owns that order, and whose word counts where none of them gets through: the destination's own,
//! by whichever way it was heard. How a program is told is its entrance's affair.

use std::io;

use tabane_linux::abortive::AbortiveStream;
use tabane_proxy::Refusal;
use tabane_tunnel::{OpenError, Status, Target, TcpFlow};

use crate::associations::Route;
use crate::far_ends::FarEnds;
use crate::plain::Far;

/// The far half of a connection: the destination has said yes.
pub(crate) enum Opened {
    Session(TcpFlow),
    Plain(Far),
}

impl Opened {
    /// Carries `program`, of which `early` has been read, until both directions have ended.
    pub(crate) async fn carry(self, program: AbortiveStream, early: Vec<u8>, target: &Target) {
        match self {
            Self::Session(flow) => {
                let carried = flow.carry_after(&early, program).await;
                tracing::debug!(%target, ?carried, "connection over");
            }
            Self::Plain(far) => {
                if let Err(error) = far.carry(program, early).await {
                    tracing::debug!(%target, %error, "ended without the session");
                }
            }
        }
    }
}

/// Connects as `route` says; by `plain` where no session serves it.
pub(crate) async fn open(
    far_ends: &FarEnds,
    route: &Route,
    plain: impl Future<Output = Result<Far, Refusal>>,
) -> Result<Opened, Refusal> {
    let said = match open_by_session(far_ends, route).await {
        Ok(flow) => return Ok(Opened::Session(flow)),
        Err(Some(Refusal::Refused)) => return Err(Refusal::Refused),
        Err(said) => said,
    };
    match plain.await {
        Ok(far) => {
            if !route.stays_here {
                far_ends.bypass().on_connection();
            }
            Ok(Opened::Plain(far))
        }
        Err(own) => Err(said.unwrap_or(own)),
    }
}

/// What the destination said, if it was asked and said anything.
async fn open_by_session(far_ends: &FarEnds, route: &Route) -> Result<TcpFlow, Option<Refusal>> {
    let Route { target, label, .. } = route;
    if route.stays_here {
        return Err(None);
    }
    if let Some((peer, own)) = far_ends.straight(target, label.as_ref()).await {
        let peer = peer.labelled(label.clone());
        match peer.open_tcp(own, tabane_tunnel::Silence::GivesBack).await {
            Ok(flow) => return Ok(flow),
            Err(error) => {
                far_ends.bypass().report(target, &error);
                // It is the destination.
                if let Some(Refusal::Refused) = word_of(&error) {
                    return Err(Some(Refusal::Refused));
                }
            }
        }
    }
    let Some(relay) = far_ends.relay() else {
        return Err(None);
    };
    let relay = relay.labelled(label.clone());
    match relay.open_tcp(target.clone(), route.silence).await {
        Ok(flow) => Ok(flow),
        Err(error) => {
            far_ends.bypass().report(target, &error);
            Err(word_of(&error))
        }
    }
}

/// The destination's word in what a relay reports; `None` where the relay speaks for itself.
fn word_of(error: &OpenError) -> Option<Refusal> {
    match error {
        OpenError::Refused(Status::Refused) => Some(Refusal::Refused),
        OpenError::Refused(Status::HostUnreachable) => Some(Refusal::HostUnreachable),
        OpenError::Refused(Status::TimedOut) => Some(Refusal::TimedOut),
        OpenError::Refused(Status::NameNotFound) => Some(Refusal::NameNotFound),
        OpenError::Refused(
            Status::Open
            | Status::Unreachable
            | Status::Denied
            | Status::Limit
            | Status::Malformed
            | Status::VolumeUsedUp,
        )
        | OpenError::NoSession(_)
        | OpenError::SessionLost
        | OpenError::TimedOut
        | OpenError::Limit(_) => None,
    }
}

/// What a failure to connect from here says.
pub(crate) fn refusal_of(error: &io::Error) -> Refusal {
    match error.kind() {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset => Refusal::Refused,
        io::ErrorKind::TimedOut => Refusal::TimedOut,
        io::ErrorKind::HostUnreachable => Refusal::HostUnreachable,
        _ => Refusal::NetworkUnreachable,
    }
}
