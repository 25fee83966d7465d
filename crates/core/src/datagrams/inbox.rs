//! Datagrams that came: put together from fragments, told from copies, and kept for the driver.
//!
//! Owns what of them is remembered, within limits that whoever sends cannot move. In which order
//! those of a flow are handed out is the resequencer's.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use tabane_base::{Duration, Instant};

use super::label::{Datagram, DatagramOrder, FlowId, Label};
use super::resequencer::Resequencer;
use super::{LABEL, MAX_SIZE, datagram_memory};
use crate::id::PathId;
use crate::memory_pool::{Part, take_off};
use crate::ranges::RangeSet;
use crate::wire::Frame;

/// Memory of what was received and not yet taken by the driver, which takes it at every wake-up.
const MAX_RECEIVED: usize = 4 * 1024 * 1024;
/// Datagrams in fragments at once.
const MAX_PARTIAL: usize = 64;
/// Fragments of one datagram come close together, on at most a few paths.
const PARTIAL_LIFETIME: Duration = Duration::from_secs(1);
/// Fragments of one datagram: several times what the largest has in packets of the least size.
const MAX_FRAGMENTS: usize = 256;
/// Gaps remembered among the numbers of datagrams that came, for telling copies from late ones.
const MAX_GAPS: usize = 256;

/// A datagram of which some fragments are here.
#[derive(Debug)]
struct Partial {
    total: usize,
    missing: usize,
    /// The fragments that came, by their starts. Put together when all are here: memory for the
    /// whole would have to be cleared for the first of one byte.
    fragments: BTreeMap<usize, Vec<u8>>,
    since: Instant,
}

impl Partial {
    fn whole(self) -> Vec<u8> {
        let mut whole = vec![0; self.total];
        for (start, data) in self.fragments {
            whole[start..start + data.len()].copy_from_slice(&data);
        }
        whole
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

/// What came and was not yet taken.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    received: VecDeque<Datagram>,
    received_bytes: usize,
    /// The driver was told of what is here.
    told: bool,
    partial: BTreeMap<u64, Partial>,
    delivered: Delivered,
    resequencer: Resequencer,
    /// Scratch for what the resequencer hands out.
    released: VecDeque<Datagram>,
}

impl Inbox {
    /// Holds what waits for its order in `part` of a pool.
    pub(super) fn new(part: Part) -> Self {
        Self {
            resequencer: Resequencer::new(part),
            ..Self::default()
        }
    }

    /// The flow is over.
    pub(super) fn forget(&mut self, flow: FlowId) {
        self.resequencer.forget(flow);
    }

    /// Bytes that wait for their order.
    pub(super) fn held(&self) -> usize {
        self.resequencer.held_bytes()
    }

    /// Whether anything is here for the driver.
    pub(super) fn has_received(&self) -> bool {
        !self.received.is_empty()
    }

    /// A copy of a datagram came. `true` when the driver should be told.
    pub(super) fn on_copy(
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
    pub(super) fn on_received(&mut self, now: Instant, path: PathId, mut content: Bytes) -> bool {
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
            let bytes = datagram_memory(&datagram.data);
            if self.received_bytes + bytes <= MAX_RECEIVED {
                self.received_bytes += bytes;
                self.received.push_back(datagram);
            }
        }
        !self.received.is_empty() && !std::mem::replace(&mut self.told, true)
    }

    /// A fragment came. Contradictory ones spoil their datagram and nothing else.
    pub(super) fn on_fragment(&mut self, now: Instant, path: PathId, frame: &Frame<'_>) -> bool {
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
            total,
            missing: total,
            fragments: BTreeMap::new(),
            since: now,
        });
        if partial.total != total
            || partial.missing < data.len()
            || partial.fragments.len() >= MAX_FRAGMENTS
            || partial.fragments.contains_key(&offset)
        {
            return false;
        }
        partial.fragments.insert(offset, data.to_vec());
        partial.missing -= data.len();
        if partial.missing > 0 {
            return false;
        }
        self.delivered.insert(id);
        let whole = self.partial.remove(&id).map(Partial::whole);
        whole.is_some_and(|whole| self.on_received(now, path, whole.into()))
    }

    /// The next datagram that may be handed out.
    pub(super) fn poll(&mut self) -> Option<Datagram> {
        let Some(datagram) = self.received.pop_front() else {
            self.told = false;
            return None;
        };
        take_off(&mut self.received_bytes, datagram_memory(&datagram.data));
        Some(datagram)
    }

    /// When an incomplete datagram, or the wait for one, is given up.
    pub(super) fn expires_at(&self) -> Option<Instant> {
        let oldest = self.partial.first_key_value();
        let oldest = oldest.map(|(_, partial)| partial.since + PARTIAL_LIFETIME);
        [oldest, self.resequencer.expires_at()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Gives up what is due. `true` when the driver should be told.
    pub(super) fn expire(&mut self, now: Instant) -> bool {
        self.partial
            .retain(|_, partial| partial.since + PARTIAL_LIFETIME > now);
        self.resequencer.expire(now, &mut self.released);
        self.hand_out()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::EPOCH;
    const PATH: PathId = PathId(0);

    #[test]
    fn a_number_beyond_all_gaps_does_not_make_memory_grow() {
        let mut b = Inbox::default();
        for number in 0..10_000 {
            b.on_copy(NOW, PATH, number * 2, b"\x08");
        }
        assert_eq!(b.delivered.numbers.len(), MAX_GAPS);
        while b.poll().is_some() {}
        assert!(
            !b.on_copy(NOW, PATH, 3, b"\x08"),
            "too late to tell from a copy"
        );
        assert!(b.on_copy(NOW, PATH, 19_999, b"\x08"));
        b.on_copy(NOW, PATH, u64::MAX >> 2, b"\x08");
    }

    /// A hostile relay sends them before it lets a client in, who takes none before that.
    #[test]
    fn datagrams_of_nothing_that_nobody_takes_are_bounded() {
        let mut inbox = Inbox::default();
        for _ in 0..200_000 {
            inbox.on_received(NOW, PATH, Bytes::from_static(b"\x00"));
        }
        let kept = inbox.received.len();
        assert!((1_000..50_000).contains(&kept), "{kept}");
        while inbox.poll().is_some() {}
        assert_eq!(inbox.received_bytes, 0);
    }

    /// Memory of the whole for a fragment of one byte was 64 kB to be cleared for ten bytes.
    #[test]
    fn a_fragment_takes_no_more_memory_than_it_brings() {
        let mut inbox = Inbox::default();
        for id in 0..MAX_PARTIAL as u64 {
            let frame = Frame::DatagramFragment {
                id,
                offset: 60_000,
                total: 65_000,
                data: &[8],
            };
            assert!(!inbox.on_fragment(NOW, PATH, &frame));
        }
        let fragments = inbox.partial.values().flat_map(|it| it.fragments.values());
        assert_eq!(fragments.map(Vec::capacity).sum::<usize>(), MAX_PARTIAL);
    }

    /// Every fragment takes memory besides its bytes, so there is a limit to how many.
    #[test]
    fn a_datagram_in_crumbs_is_given_up() {
        let arrives = |size: usize| {
            let mut inbox = Inbox::default();
            let data = vec![8; 1_200];
            let told = (0..data.len()).step_by(size).any(|offset| {
                let frame = Frame::DatagramFragment {
                    id: 1,
                    offset: offset as u64,
                    total: data.len() as u64,
                    data: &data[offset..(offset + size).min(data.len())],
                };
                inbox.on_fragment(NOW, PATH, &frame)
            });
            (told, inbox.poll().is_some())
        };
        assert_eq!(arrives(1_200 / MAX_FRAGMENTS + 1), (true, true));
        assert_eq!(arrives(1), (false, false));
    }
}
