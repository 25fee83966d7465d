//! What the tasks of one session at the relay have in common: whose it is, and how much of what
//! there is of it at once.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use tabane_core::PublicKey;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::Shared;
use super::user::{Counted, Meter, Rates, User, What};
use crate::request::{Status, Transport};
use crate::stream::{Stream, StreamEnd};

/// What a session has at present.
#[derive(Default)]
pub(super) struct Occupancy {
    connections: Cell<usize>,
    flows: Cell<usize>,
    udp: Cell<usize>,
    visitors: Cell<usize>,
    udp_visitors: Cell<usize>,
}

/// What is counted by itself, since each has its limit.
#[derive(Clone, Copy)]
pub(super) enum Seat {
    Connection,
    Flow,
    /// A flow of a program's UDP.
    Udp,
    /// Somebody who has come to a port that leads to the client.
    Visitor,
    /// The same by UDP, where addresses may be made up: they keep no others out.
    UdpVisitor,
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
    /// Rung when a stream has ended.
    pub(super) stream_ended: Rc<Notify>,
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
    /// Whether there are connections, which the session's end would break.
    pub(super) fn is_busy(&self) -> bool {
        self.connections.get() + self.visitors.get() > 0
    }

    /// Whether there are UDP flows of programs, which have no other way of going on.
    pub(super) fn has_flows(&self) -> bool {
        self.udp.get() > 0
    }

    fn of(&self, seat: Seat) -> &Cell<usize> {
        match seat {
            Seat::Connection => &self.connections,
            Seat::Flow => &self.flows,
            Seat::Udp => &self.udp,
            Seat::Visitor => &self.visitors,
            Seat::UdpVisitor => &self.udp_visitors,
        }
    }
}

impl Seat {
    pub(super) const fn of(transport: Transport) -> Self {
        match transport {
            Transport::Tcp | Transport::TcpFrom(_) | Transport::Measure(_) => Self::Connection,
            Transport::Udp | Transport::UdpFrom(_) | Transport::Mapping => Self::Udp,
            Transport::Packets
            | Transport::Route(_)
            | Transport::Routes
            | Transport::NamedRoutes
            | Transport::Domain(_)
            | Transport::LodgedPackets
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
            Seat::Flow => limits.flows.saturating_sub(usage.udp.get()),
            Seat::Udp => limits.flows.saturating_sub(usage.flows.get()),
            Seat::Visitor | Seat::UdpVisitor => limits.visitors,
        };
        let taken = usage.of(seat).get();
        if taken >= limit {
            return None;
        }
        let counted = match &host.user {
            Some(user) => Some(user.count(What::Stream)?),
            None => None,
        };
        usage.of(seat).set(taken + 1);
        Some(Self {
            usage,
            seat,
            _counted: counted,
        })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let taken = self.usage.of(self.seat);
        taken.set(taken.get() - 1);
    }
}

/// Ends a stream by saying why it is not served.
pub(super) async fn refuse(mut stream: Stream, status: Status) -> Result<(), StreamEnd> {
    stream.write_all(&[status.emit()]).await?;
    stream.end();
    Ok(())
}
