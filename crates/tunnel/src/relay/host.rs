//! What the tasks of one session at the relay have in common: whose it is, and how much of what
//! there is of it at once.

use std::cell::{Cell, OnceCell};
use std::rc::Rc;
use std::sync::Arc;

use tabane_core::PublicKey;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::Shared;
use super::user::{Counted, Meter, Rates, User, What};
use crate::request::{Status, Transport};
use crate::stream::{Stream, StreamEnd};

/// Streams of a session of which one does all: the end of the one before may arrive after the
/// beginning of the next. One more is refused.
const MOST_OF_A_KIND: usize = 2;

/// Where a worker's sessions are told of, each time that one has given up a seat; nobody is told
/// before somebody waits for that.
pub(super) type Leavings = Rc<OnceCell<mpsc::UnboundedSender<u64>>>;

/// What a session has at present.
pub(super) struct Occupancy {
    session: u64,
    leavings: Leavings,
    taken: [Cell<usize>; Seat::KINDS],
}

/// What is counted by itself, since each has its limit.
#[derive(Clone, Copy)]
pub(super) enum Seat {
    Connection,
    Flow,
    /// A flow of packets, behind which may be many sockets.
    Packets,
    /// A list of the group's routes, kept as it was told.
    Routes,
    /// A flow of a program's UDP.
    Udp,
    /// Somebody who has come by TCP to a port that leads to the client.
    Visitor,
    /// The same by UDP, where addresses may be made up: they keep no others out.
    UdpVisitor,
    /// A connection of another client's program with the client's network: strangers at a port
    /// keep out none of those.
    SiteTcp,
    /// A flow of UDP of another client's program with the client's network.
    SiteUdp,
    /// Pings and other packets from another client to the client's network.
    SitePackets,
}

/// One connection or flow, counted while it lives.
pub(super) struct Permit {
    usage: Rc<Occupancy>,
    seat: Seat,
    _counted: Option<Counted>,
}

/// What a stream's task has of its session.
#[derive(Clone)]
pub(super) struct Host {
    pub(super) shared: Arc<Shared>,
    pub(super) usage: Rc<Occupancy>,
    pub(super) user: Option<User>,
    pub(super) rates: Option<Rc<Rates>>,
    pub(super) session: u64,
    /// When it began.
    pub(super) since: Instant,
    pub(super) key: PublicKey,
}

impl Host {
    pub(super) fn meter(&self) -> Meter {
        Meter::new(self.user.clone().zip(self.rates.clone()), self.session)
    }
}

impl Occupancy {
    pub(super) fn new(session: u64, leavings: Leavings) -> Self {
        Self {
            session,
            leavings,
            taken: Default::default(),
        }
    }

    /// Whether there are connections, which the session's end would break.
    pub(super) fn is_busy(&self) -> bool {
        self.of(Seat::Connection) + self.of(Seat::Visitor) + self.of(Seat::SiteTcp) > 0
    }

    /// Whether there are UDP flows of programs, which have no other way of going on.
    pub(super) fn has_flows(&self) -> bool {
        self.of(Seat::Udp) + self.of(Seat::SiteUdp) > 0
    }

    fn of(&self, seat: Seat) -> usize {
        self.taken[seat as usize].get()
    }
}

impl Seat {
    const KINDS: usize = Self::SitePackets as usize + 1;

    pub(super) const fn of(transport: Transport) -> Self {
        match transport {
            Transport::Tcp | Transport::TcpFrom(_) | Transport::Measure(_) => Self::Connection,
            Transport::Udp | Transport::UdpFrom(_) | Transport::Mapping => Self::Udp,
            Transport::Packets | Transport::LodgedPackets => Self::Packets,
            Transport::Routes | Transport::NamedRoutes => Self::Routes,
            Transport::Route(_)
            | Transport::Domain(_)
            | Transport::Families
            | Transport::Relays(_)
            | Transport::Loads
            | Transport::Exposure(_) => Self::Flow,
        }
    }
}

impl Permit {
    pub(super) fn take(host: &Host, seat: Seat) -> Option<Self> {
        let (usage, limits) = (host.usage.clone(), &host.shared.limits);
        let limit = match seat {
            Seat::Connection => limits.connections,
            Seat::Flow => limits.flows.saturating_sub(usage.of(Seat::Udp)),
            Seat::Udp => limits.flows.saturating_sub(usage.of(Seat::Flow)),
            Seat::Packets | Seat::Routes => MOST_OF_A_KIND,
            Seat::Visitor
            | Seat::UdpVisitor
            | Seat::SiteTcp
            | Seat::SiteUdp
            | Seat::SitePackets => limits.visitors,
        };
        let taken = usage.of(seat);
        if taken >= limit {
            return None;
        }
        let counted = match &host.user {
            Some(user) => Some(user.count(What::Stream)?),
            None => None,
        };
        usage.taken[seat as usize].set(taken + 1);
        Some(Self {
            usage,
            seat,
            _counted: counted,
        })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let taken = &self.usage.taken[self.seat as usize];
        taken.set(taken.get() - 1);
        if let Some(tell) = self.usage.leavings.get() {
            // Nobody waits any more where it fails.
            let _ = tell.send(self.usage.session);
        }
    }
}

/// Ends a stream by saying why it is not served.
pub(super) async fn refuse(mut stream: Stream, status: Status) -> Result<(), StreamEnd> {
    stream.write_all(&[status.emit()]).await?;
    stream.end();
    Ok(())
}
