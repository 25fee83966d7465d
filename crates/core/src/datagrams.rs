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
    /// By lane.
    parting: Vec<Option<Parting>>,
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
            parting: vec![None],
            next_number: 0,
            inbox: Inbox::new(part),
            scratch: Vec::new(),
        }
    }

    pub(crate) fn send(
        &mut self,
        now: Instant,
        (flow, lane): (FlowId, usize),
        order: DatagramOrder,
        data: &[u8],
    ) -> Result<(), DatagramError> {
        if data.len() > MAX_SIZE || flow.0 > FlowId::MAX {
            return Err(DatagramError::TooLarge);
        }
        if self.outbox.push(now, (flow, lane), order, data) {
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

    /// There are so many lanes from here on.
    pub(crate) fn add_lanes(&mut self, count: usize) {
        self.outbox.add_lanes(count);
        let count = count.max(self.parting.len());
        self.parting.resize_with(count, || None);
    }

    /// A flow goes over from one lane to another, with what waits of it. What has left in part
    /// may have been its, and is given up.
    pub(crate) fn set_lane(&mut self, flow: FlowId, from: usize, lane: usize) {
        self.add_lanes(lane.max(from) + 1);
        self.parting[from] = None;
        self.outbox.set_lane(flow, lane);
    }

    /// Whether anything of a lane waits to leave.
    pub(crate) fn has_data(&self, lane: usize) -> bool {
        self.parting.get(lane).is_some_and(Option::is_some) || !self.outbox.is_empty(lane)
    }

    /// Bytes waiting to leave.
    pub(crate) fn queued(&self) -> usize {
        let parting: usize = self.parting.iter().flatten().map(Parting::left).sum();
        self.outbox.bytes() + parting
    }

    /// The same for one lane.
    pub(crate) fn queued_in(&self, lane: usize) -> usize {
        let parting = self.parting.get(lane).and_then(Option::as_ref);
        self.outbox.bytes_in(lane) + parting.map_or(0, Parting::left)
    }

    /// Datagrams that had waited too long to leave.
    pub(crate) const fn dropped(&self) -> u64 {
        self.outbox.dropped()
    }

    /// Bytes received that wait for their order.
    pub(crate) fn held(&self) -> usize {
        self.inbox.held()
    }

    /// Drops what of a lane has waited too long to leave.
    pub(crate) fn drop_stale(&mut self, now: Instant, lane: usize) {
        self.outbox.peek(now, lane);
    }

    /// Whether anything is here for the driver.
    pub(crate) fn has_received(&self) -> bool {
        self.inbox.has_received()
    }

    /// Appends what of a lane fits into `space`; `whole` is what an empty packet would hold, `lead`
    /// how much sooner the packet arrives than one on the slowest path in use. `true` when anything
    /// was appended.
    pub(crate) fn fill(
        &mut self,
        now: Instant,
        lane: usize,
        lead: Duration,
        out: &mut Vec<u8>,
        (space, whole): (usize, usize),
    ) -> bool {
        let (before, end) = (out.len(), out.len() + space);
        loop {
            if !self.fill_parting(lane, out, end) {
                break;
            }
            let Some((flow, size)) = self.outbox.peek(now, lane) else {
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
                self.part(lane, data);
            }
        }
        out.len() > before
    }

    /// Appends the next part of what leaves in parts. `false` while more of it is left.
    fn fill_parting(&mut self, lane: usize, out: &mut Vec<u8>, end: usize) -> bool {
        let Some(Some(parting)) = self.parting.get_mut(lane) else {
            return true;
        };
        parting.fill(out, end);
        let is_done = parting.left() == 0;
        if is_done {
            self.parting[lane] = None;
        }
        is_done
    }

    /// The next datagram, or the next part of it, that a packet with `space` for frames can hold,
    /// numbered so that the receiver knows copies. `lead` is by how much the fastest of its paths
    /// is ahead of the slowest.
    pub(crate) fn take_copy(
        &mut self,
        now: Instant,
        lane: usize,
        lead: Duration,
        space: usize,
    ) -> Option<DatagramCopy> {
        if self.parting.get(lane).is_none_or(Option::is_none) {
            let (flow, _) = self.outbox.peek(now, lane)?;
            let (label, data) = self.outbox.take(flow, lead)?;
            self.scratch.clear();
            label.emit(&mut self.scratch);
            self.part(lane, data);
        }
        let parting = self.parting[lane].as_mut()?;
        let copy = parting.next_copy(space);
        if parting.left() == 0 {
            self.parting[lane] = None;
        }
        Some(copy)
    }

    /// Begins a datagram, of which the label is in the scratch, that leaves in parts.
    fn part(&mut self, lane: usize, data: Bytes) {
        let content = [&self.scratch[..], &data[..]].concat().into();
        self.add_lanes(lane + 1);
        self.parting[lane] = Some(Parting::new(self.next_number, content));
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
