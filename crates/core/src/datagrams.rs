//! Unreliable datagrams: into packets, and put together again from fragments [P-7].
//!
//! What does not fit into one packet travels in fragments; one lost fragment loses the datagram.
//! Owns how datagrams get into packets. What waits to leave is the outbox's, what came the inbox's,
//! the order in which a flow is handed out the resequencer's.

mod inbox;
mod label;
mod outbox;
mod parting;
mod resequencer;

use bytes::Bytes;
use tabane_base::{Duration, Instant};
use thiserror::Error;

use crate::class::{ByClass, ClassId};
use crate::id::PathId;
use crate::memory_pool::Part;
use crate::wire::{Frame, datagram_header_len, emit_datagram};

use inbox::Inbox;
pub(crate) use label::Label;
pub use label::{Datagram, DatagramOrder, FlowId};
use outbox::Outbox;
pub(crate) use parting::DatagramCopy;
use parting::Parting;

/// The longest datagram: what UDP over IPv4 carries, and the address that a relay puts before it
/// [P-T.7].
const MAX_SIZE: usize = 65_507 + 28;
/// A label as long as they are with flows and numbers below 2^29, and delays below 16 s.
const LABEL: usize = 4 + 4 + 2 + 2;

/// What keeping a datagram costs besides its bytes: its place, and a block of the heap.
const OVERHEAD: usize = 128;

/// Bytes of memory that a datagram of this `data` occupies while it waits anywhere: empty ones are
/// not free.
#[must_use]
pub const fn datagram_memory(data: &Bytes) -> usize {
    data.len() + OVERHEAD
}

/// Why a datagram cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DatagramError {
    /// Larger than UDP allows.
    #[error("a datagram has at most 65507 bytes")]
    TooLarge,
    /// More is waiting already than would still be of use when its turn comes.
    #[error("too many datagrams are waiting")]
    QueueFull,
    /// The session is not connected, or closed.
    #[error("the session is not connected")]
    NotConnected,
}

/// The datagrams of one session.
#[derive(Debug)]
pub(crate) struct Datagrams {
    outbox: Outbox,
    parting: ByClass<Option<Parting>>,
    /// Number of the next datagram that needs one: for its fragments or its copies.
    next_number: u64,
    inbox: Inbox,
    /// Scratch for a label.
    scratch: Vec<u8>,
}

impl Datagrams {
    /// Datagrams wait at most `limit` to leave; what came is held in `part` of a pool.
    pub(crate) fn new(limit: Duration, part: Part) -> Self {
        Self {
            outbox: Outbox::new(limit),
            parting: ByClass::default(),
            next_number: 0,
            inbox: Inbox::new(part),
            scratch: Vec::new(),
        }
    }

    pub(crate) fn send(
        &mut self,
        now: Instant,
        (flow, class): (FlowId, ClassId),
        order: DatagramOrder,
        data: &[u8],
    ) -> Result<(), DatagramError> {
        if data.len() > MAX_SIZE || flow.0 > FlowId::MAX {
            return Err(DatagramError::TooLarge);
        }
        if self.outbox.push(now, (flow, class), order, data) {
            Ok(())
        } else {
            Err(DatagramError::QueueFull)
        }
    }

    /// The flow is over, in both directions.
    pub(crate) fn forget(&mut self, flow: FlowId) {
        self.outbox.forget(flow);
        self.inbox.forget(flow);
    }

    /// A flow goes over from one class to another, with what waits of it. What has left in part
    /// may have been its, and is given up.
    pub(crate) fn set_class(&mut self, flow: FlowId, from: ClassId, class: ClassId) {
        *self.parting.get_mut(from) = None;
        self.outbox.set_class(flow, class);
    }

    /// Whether anything of a class waits to leave.
    pub(crate) fn has_data(&self, class: ClassId) -> bool {
        self.parting(class).is_some() || !self.outbox.is_empty(class)
    }

    /// Bytes waiting to leave.
    pub(crate) fn queued(&self) -> usize {
        let parting: usize = self.parting.iter().flatten().map(Parting::left).sum();
        self.outbox.bytes() + parting
    }

    /// The same for one class.
    pub(crate) fn queued_in(&self, class: ClassId) -> usize {
        self.outbox.bytes_in(class) + self.parting(class).map_or(0, Parting::left)
    }

    fn parting(&self, class: ClassId) -> Option<&Parting> {
        self.parting.get(class)?.as_ref()
    }

    /// Datagrams that had waited too long to leave.
    pub(crate) const fn dropped(&self) -> u64 {
        self.outbox.dropped()
    }

    /// Bytes received that wait for their order.
    pub(crate) fn held(&self) -> usize {
        self.inbox.held()
    }

    /// Drops what of a class has waited too long to leave.
    pub(crate) fn drop_stale(&mut self, now: Instant, class: ClassId) {
        self.outbox.peek(now, class);
    }

    /// Whether anything is here for the driver.
    pub(crate) fn has_received(&self) -> bool {
        self.inbox.has_received()
    }

    /// Appends what of a class fits into `space`; `whole` is what an empty packet would hold,
    /// `lead` how much sooner the packet arrives than one on the slowest path in use. `true` when
    /// anything was appended.
    pub(crate) fn fill(
        &mut self,
        now: Instant,
        class: ClassId,
        lead: Duration,
        out: &mut Vec<u8>,
        (space, whole): (usize, usize),
    ) -> bool {
        let (before, end) = (out.len(), out.len() + space);
        loop {
            if !self.fill_parting(class, out, end) {
                break;
            }
            let Some((flow, size)) = self.outbox.peek(now, class) else {
                break;
            };
            let most = datagram_header_len(size + LABEL) + LABEL + size;
            if most > end - out.len() && most <= whole {
                break;
            }
            let Some((label, data)) = self.outbox.take(flow, lead) else {
                break;
            };
            self.scratch.clear();
            label.emit(&mut self.scratch);
            let content = self.scratch.len() + data.len();
            if datagram_header_len(content) + content <= end - out.len() {
                emit_datagram(&self.scratch, &data, out);
            } else {
                self.part(class, data);
            }
        }
        out.len() > before
    }

    /// Appends the next part of what leaves in parts. `false` while more of it is left.
    fn fill_parting(&mut self, class: ClassId, out: &mut Vec<u8>, end: usize) -> bool {
        let place = self.parting.get_mut(class);
        let Some(parting) = place else {
            return true;
        };
        parting.fill(out, end);
        place.take_if(|parting| parting.left() == 0).is_some()
    }

    /// The next datagram, or the next part of it, that a packet with `space` for frames can hold,
    /// numbered so that the receiver knows copies. `lead` is by how much the fastest of its paths
    /// is ahead of the slowest.
    pub(crate) fn take_copy(
        &mut self,
        now: Instant,
        class: ClassId,
        lead: Duration,
        space: usize,
    ) -> Option<DatagramCopy> {
        if self.parting(class).is_none() {
            let (flow, _) = self.outbox.peek(now, class)?;
            let (label, data) = self.outbox.take(flow, lead)?;
            self.scratch.clear();
            label.emit(&mut self.scratch);
            self.part(class, data);
        }
        let place = self.parting.get_mut(class);
        let copy = place.as_mut()?.next_copy(space);
        place.take_if(|parting| parting.left() == 0);
        Some(copy)
    }

    /// Begins a datagram, of which the label is in the scratch, that leaves in parts.
    fn part(&mut self, class: ClassId, data: Bytes) {
        let content = [&self.scratch[..], &data[..]].concat().into();
        *self.parting.get_mut(class) = Some(Parting::new(self.next_number, content));
        self.next_number += 1;
    }

    /// A copy of a datagram came. `true` when the driver should be told.
    pub(crate) fn on_copy(
        &mut self,
        now: Instant,
        path: PathId,
        number: u64,
        content: &[u8],
    ) -> bool {
        self.inbox.on_copy(now, path, number, content)
    }

    /// A whole datagram came, with its label. `true` when the driver should be told.
    pub(crate) fn on_received(&mut self, now: Instant, path: PathId, content: Bytes) -> bool {
        self.inbox.on_received(now, path, content)
    }

    /// A fragment came. `true` when the driver should be told.
    pub(crate) fn on_fragment(&mut self, now: Instant, path: PathId, frame: &Frame<'_>) -> bool {
        self.inbox.on_fragment(now, path, frame)
    }

    /// The next datagram for the driver.
    pub(crate) fn poll(&mut self) -> Option<Datagram> {
        self.inbox.poll()
    }

    /// When an incomplete datagram, or the wait for one, is given up.
    pub(crate) fn expires_at(&self) -> Option<Instant> {
        self.inbox.expires_at()
    }

    /// Gives up what is due. `true` when the driver should be told.
    pub(crate) fn expire(&mut self, now: Instant) -> bool {
        self.inbox.expire(now)
    }
}

#[cfg(test)]
mod tests;
