//! Unreliable datagrams: into packets, and put together again from fragments [P-7].
//!
//! What does not fit into one packet travels in fragments; one lost fragment loses the datagram.
//! What waits to leave is the outbox's, the order in which a flow is handed out the resequencer's.

mod label;
mod outbox;
mod resequencer;

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use tabane_base::{Duration, Instant};
use thiserror::Error;

use crate::id::PathId;
use crate::ranges::RangeSet;
use crate::wire::{
    Frame, datagram_copy_header_len, datagram_header_len, emit_datagram, emit_datagram_copy,
    emit_fragment,
};

pub(crate) use label::Label;
pub use label::{Datagram, DatagramOrder, FlowId};
use outbox::Outbox;
use resequencer::Resequencer;

/// The largest datagram: what UDP over IPv4 carries.
const MAX_SIZE: usize = 65_507;
/// Bytes received and not yet taken by the driver, which takes them at every wake-up.
const MAX_RECEIVED: usize = 4 * 1024 * 1024;
/// Datagrams in fragments at once.
const MAX_PARTIAL: usize = 64;
/// Fragments of one datagram come close together, on at most a few paths.
const PARTIAL_LIFETIME: Duration = Duration::from_secs(1);
/// A label as long as they are with flows and numbers below 2^29, and delays below 16 s.
const LABEL: usize = 4 + 4 + 2 + 2;
/// Header of a fragment at the most: type and four variable-length integers.
const FRAGMENT_HEADER: usize = 1 + 8 + 4 + 4 + 4;

/// Gaps remembered among the numbers of datagrams that came, for telling copies from late ones.
const MAX_GAPS: usize = 256;

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

/// A datagram of which some fragments are here.
#[derive(Debug)]
struct Partial {
    data: Vec<u8>,
    missing: usize,
    /// Starts of the fragments that came, for telling copies apart.
    seen: Vec<usize>,
    since: Instant,
}

/// A datagram, or a part of one that does not fit into a packet, for sending more than once.
#[derive(Clone, Debug)]
pub(crate) struct DatagramCopy {
    number: u64,
    offset: usize,
    total: usize,
    data: Bytes,
}

impl DatagramCopy {
    /// Bytes of the application's data.
    pub(crate) fn len(&self) -> usize {
        self.data.len()
    }

    fn is_whole(&self) -> bool {
        self.data.len() == self.total
    }

    /// Bytes in a packet at the most.
    pub(crate) fn size(&self) -> usize {
        let header = match self.is_whole() {
            true => datagram_copy_header_len(self.number, self.total),
            false => FRAGMENT_HEADER,
        };
        header + self.data.len()
    }

    pub(crate) fn emit(&self, out: &mut Vec<u8>) {
        match self.is_whole() {
            true => emit_datagram_copy(self.number, &self.data, out),
            false => {
                let (offset, total) = (self.offset as u64, self.total as u64);
                emit_fragment(self.number, offset, total, &self.data, out);
            }
        }
    }
}

/// Numbers of datagrams that were delivered.
#[derive(Debug, Default)]
struct Delivered {
    numbers: RangeSet,
    /// Everything below counts as delivered.
    floor: u64,
}

impl Delivered {
    fn contains(&self, number: u64) -> bool {
        number < self.floor || self.numbers.contains(number)
    }

    fn insert(&mut self, number: u64) {
        self.numbers.insert(number..number + 1);
        if self.numbers.len() > MAX_GAPS
            && let Some(oldest) = self.numbers.forget_first()
        {
            self.floor = self.floor.max(oldest.end);
        }
    }
}

/// A datagram that leaves in parts.
#[derive(Debug)]
struct Parting {
    number: u64,
    /// Label and data.
    content: Bytes,
    sent: usize,
}

impl Parting {
    fn left(&self) -> usize {
        self.content.len() - self.sent
    }
}

/// The datagrams of one session.
#[derive(Debug)]
pub(crate) struct Datagrams {
    outbox: Outbox,
    /// By lane.
    parting: Vec<Option<Parting>>,
    /// Number of the next datagram that needs one: for its fragments or its copies.
    next_number: u64,
    received: VecDeque<Datagram>,
    received_bytes: usize,
    /// The driver was told of what is here.
    told: bool,
    partial: BTreeMap<u64, Partial>,
    delivered: Delivered,
    resequencer: Resequencer,
    /// Scratch for what the resequencer hands out.
    released: VecDeque<Datagram>,
    /// Scratch for a label.
    scratch: Vec<u8>,
}

impl Datagrams {
    /// Datagrams wait at most `limit` to leave.
    pub(crate) fn new(limit: Duration) -> Self {
        Self {
            outbox: Outbox::new(limit),
            parting: vec![None],
            next_number: 0,
            received: VecDeque::new(),
            received_bytes: 0,
            told: false,
            partial: BTreeMap::new(),
            delivered: Delivered::default(),
            resequencer: Resequencer::default(),
            released: VecDeque::new(),
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
        self.resequencer.forget(flow);
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
        self.resequencer.held_bytes()
    }

    /// Drops what of a lane has waited too long to leave.
    pub(crate) fn drop_stale(&mut self, now: Instant, lane: usize) {
        self.outbox.peek(now, lane);
    }

    /// Whether anything is here for the driver.
    pub(crate) fn has_received(&self) -> bool {
        !self.received.is_empty()
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
        let Parting {
            number,
            content,
            sent,
        } = parting;
        let room = end - out.len();
        if room <= FRAGMENT_HEADER {
            return false;
        }
        let n = (room - FRAGMENT_HEADER).min(content.len() - *sent);
        let part = &content[*sent..*sent + n];
        let (offset, total) = (*sent as u64, content.len() as u64);
        emit_fragment(*number, offset, total, part, out);
        *sent += n;
        let is_done = *sent == content.len();
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
        let Parting {
            number,
            content,
            sent,
        } = parting;
        let (number, total) = (*number, content.len());
        let whole = datagram_copy_header_len(number, total) + total <= space;
        let most = if whole {
            total
        } else {
            space.saturating_sub(FRAGMENT_HEADER).max(1)
        };
        let offset = *sent;
        let end = total.min(offset + most);
        let data = content.slice(offset..end);
        *sent = end;
        if end == total {
            self.parting[lane] = None;
        }
        Some(DatagramCopy {
            number,
            offset,
            total,
            data,
        })
    }

    /// Begins a datagram, of which the label is in the scratch, that leaves in parts.
    fn part(&mut self, lane: usize, data: Bytes) {
        let content = [&self.scratch[..], &data[..]].concat().into();
        self.add_lanes(lane + 1);
        self.parting[lane] = Some(Parting {
            number: self.next_number,
            content,
            sent: 0,
        });
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
        if self.delivered.contains(number) {
            return false;
        }
        self.delivered.insert(number);
        self.on_received(now, path, Bytes::copy_from_slice(content))
    }

    /// A whole datagram came, with its label. `true` when the driver should be told.
    pub(crate) fn on_received(&mut self, now: Instant, path: PathId, mut content: Bytes) -> bool {
        let Ok(Label { flow, place }) = Label::parse(&mut content) else {
            // Of no flow, so it is nobody's.
            return false;
        };
        let order = place.map_or(DatagramOrder::AtOnce, |place| {
            DatagramOrder::Within(place.deadline)
        });
        let datagram = Datagram {
            flow,
            order,
            data: content,
        };
        match place {
            None => self.released.push_back(datagram),
            Some(place) => {
                let released = &mut self.released;
                self.resequencer
                    .handle(now, path, place, datagram, released);
            }
        }
        self.hand_out()
    }

    /// Passes on what may be handed out, as far as there is room.
    fn hand_out(&mut self) -> bool {
        for datagram in self.released.drain(..) {
            let bytes = datagram.data.len();
            if self.received_bytes + bytes <= MAX_RECEIVED {
                self.received_bytes += bytes;
                self.received.push_back(datagram);
            }
        }
        !self.received.is_empty() && !std::mem::replace(&mut self.told, true)
    }

    /// A fragment came. Contradictory ones spoil their datagram and nothing else.
    pub(crate) fn on_fragment(&mut self, now: Instant, path: PathId, frame: &Frame<'_>) -> bool {
        let Frame::DatagramFragment {
            id,
            offset,
            total,
            data,
        } = *frame
        else {
            return false;
        };
        let (offset, total) = (offset.min(1 << 32) as usize, total.min(1 << 32) as usize);
        if total > MAX_SIZE + LABEL || data.is_empty() || offset + data.len() > total {
            return false;
        }
        if self.delivered.contains(id) {
            return false;
        }
        if self.partial.len() >= MAX_PARTIAL && !self.partial.contains_key(&id) {
            self.partial.pop_first();
        }
        let partial = self.partial.entry(id).or_insert_with(|| Partial {
            data: vec![0; total],
            missing: total,
            seen: Vec::new(),
            since: now,
        });
        if partial.data.len() != total
            || partial.missing < data.len()
            || partial.seen.contains(&offset)
        {
            return false;
        }
        partial.data[offset..offset + data.len()].copy_from_slice(data);
        partial.seen.push(offset);
        partial.missing -= data.len();
        if partial.missing > 0 {
            return false;
        }
        self.delivered.insert(id);
        let whole = self.partial.remove(&id).map(|partial| partial.data);
        whole.is_some_and(|whole| self.on_received(now, path, whole.into()))
    }

    pub(crate) fn poll(&mut self) -> Option<Datagram> {
        let Some(datagram) = self.received.pop_front() else {
            self.told = false;
            return None;
        };
        self.received_bytes -= datagram.data.len();
        Some(datagram)
    }

    /// When an incomplete datagram, or the wait for one, is given up.
    pub(crate) fn expires_at(&self) -> Option<Instant> {
        let oldest = self.partial.first_key_value();
        let oldest = oldest.map(|(_, partial)| partial.since + PARTIAL_LIFETIME);
        [oldest, self.resequencer.expires_at()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Gives up what is due. `true` when the driver should be told.
    pub(crate) fn expire(&mut self, now: Instant) -> bool {
        self.partial
            .retain(|_, partial| partial.since + PARTIAL_LIFETIME > now);
        self.resequencer.expire(now, &mut self.released);
        self.hand_out()
    }
}

#[cfg(test)]
mod tests;
