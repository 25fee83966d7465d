//! A connection on its way out, by way of whoever serves it first.
//!
//! Owns whose word counts where nobody does: the destination's own, by whichever way it was heard.
//! In which order they are tried is `via`'s, how a program is told its entrance's affair.

use std::io;

use crate::proxy::Refusal;
use tabane_base::Duration;
use tabane_linux::abortive::AbortiveStream;
use tabane_tunnel::{Counted, OpenError, Silence, Status, Target, TcpFlow};
use tokio::time::Instant;

use crate::far_ends::FarEnds;
use crate::lan_hosts::{Holder, Part};
use crate::plain::{self, Far};
use crate::route::Route;
use crate::via::Via;

/// A host that is said to be unreachable after so long was searched for by the router before it
/// (ARP and neighbour discovery: three times, a second each), in vain; whoever asks by another way
/// waits as long for the same. What is said sooner may be meant for the relay alone (a filter).
const SEARCH: Duration = Duration::from_secs(2);

/// The far half of a connection: the destination has said yes.
pub(crate) enum Opened {
    /// With its place among those of a host behind this machine, where it is for one.
    Session(TcpFlow, Option<Counted<Holder>>),
    Plain(Far),
}

impl Opened {
    /// Carries `program`, of which `early` has been read, until both directions have ended.
    pub(crate) async fn carry(self, program: AbortiveStream, early: Vec<u8>, target: &Target) {
        match self {
            Self::Session(flow, place) => {
                let carried = flow.carry_after(&early, program).await;
                tracing::debug!(%target, ?carried, "connection over");
                drop(place);
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
    let Route { target, label, .. } = route;
    let peer = route.peer(far_ends).await;
    let part = route.part.as_ref().filter(|_| !route.stays_here);
    let mut place = part.and_then(Part::take);
    let is_beyond_part = part.is_some() && place.is_none();
    if is_beyond_part {
        far_ends.bypass().report_host(route.source);
    }
    let mut said = None;
    let mut last = None;
    // A name has a plain way as well: `plain` looks it up.
    while let Some(via) = route.known(far_ends, peer.is_some(), true).next(last) {
        last = Some(via);
        let (client, target, silence) = match (via, &peer, far_ends.relay()) {
            (Via::Peer | Via::Relay, ..) if is_beyond_part => continue,
            (Via::Peer, Some((peer, own)), _) => {
                (peer.labelled(label.clone()), own, Silence::GivesBack)
            }
            (Via::Relay, _, Some(relay)) => {
                (route.by_relay(relay, far_ends), target, route.silence)
            }
            (Via::Peer | Via::Relay, ..) => continue,
            (Via::Plain, ..) => match plain.await {
                Ok(far) => {
                    if !route.stays_here {
                        far_ends.bypass().on_connection();
                    }
                    return Ok(Opened::Plain(far));
                }
                Err(own) => return Err(said.unwrap_or(own)),
            },
        };
        let asked_at = Instant::now();
        match client.open_tcp(target.clone(), silence).await {
            Ok(flow) => return Ok(Opened::Session(flow, place.take())),
            // Nobody else leads there, and a relay that knows of no such site just now says so of a
            // private address.
            Err(error) if route.is_to_site(far_ends) => {
                tracing::debug!(%target, %error, "another site is not reached");
                said = Some(word_of(&error).unwrap_or(Refusal::HostUnreachable));
            }
            Err(error) => {
                match word_of(&error) {
                    Some(Refusal::Refused) => return Err(Refusal::Refused),
                    Some(Refusal::HostUnreachable)
                        if via == Via::Relay
                            && route.is_public()
                            && asked_at.elapsed() >= SEARCH =>
                    {
                        return Err(Refusal::HostUnreachable);
                    }
                    // What a peer says of itself otherwise, the relay may know better.
                    word if via == Via::Relay => said = word,
                    _ => {}
                }
                far_ends.bypass().report(target, &error);
            }
        }
    }
    Err(said.unwrap_or(Refusal::NetworkUnreachable))
}

/// As the program would have done by itself.
pub(crate) async fn connect_plainly(far_ends: &FarEnds, route: &Route) -> Result<Far, Refusal> {
    let dest = route.plain.ok_or(Refusal::NetworkUnreachable)?;
    let metered = far_ends.plain_way(dest, route.label.as_ref()).await;
    let metered = metered.map_err(|error| {
        if far_ends.bypass().is_worth_a_line() {
            tracing::warn!("{dest}: {error}");
        }
        Refusal::NetworkUnreachable
    })?;
    let connected = plain::connect(dest, metered).await;
    connected.map_err(|error| refusal_of(&error))
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
            | Status::VolumeUsedUp
            | Status::PortTaken
            | Status::PortUnavailable,
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
