//! Unreliable datagrams: waiting to leave, and put together again from fragments [P-7].
//!
//! Delivered at once, in the order of arrival. What does not fit into one packet travels in
//! fragments; one lost fragment loses the datagram.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use tabane_base::{Duration, Instant};
use thiserror::Error;

use crate::ranges::RangeSet;
use crate::wire::{
    Frame, datagram_copy_header_len, datagram_header_len, emit_datagram, emit_datagram_copy,
    emit_fragment,
};

/// The largest datagram: what UDP over IPv4 carries.
const MAX_SIZE: usize = 65_507;
/// Bytes waiting to leave. At 100 Mbit/s this is 40 ms; waiting longer, a datagram is better lost.
const MAX_QUEUED: usize = 512 * 1024;
/// Bytes received and not yet taken by the driver, which takes them at every wake-up.
const MAX_RECEIVED: usize = 4 * 1024 * 1024;
/// Datagrams in fragments at once.
const MAX_PARTIAL: usize = 64;
/// Fragments of one datagram come close together, on at most a few paths.
const PARTIAL_LIFETIME: Duration = Duration::from_secs(1);
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

/// The datagrams of one session.
#[derive(Debug, Default)]
pub(crate) struct Datagrams {
    queue: VecDeque<Bytes>,
    queued: usize,
    /// Bytes of the front datagram that left in fragments already.
    front_sent: usize,
    /// Number of the next datagram that needs one: for its fragments or its copies.
    next_number: u64,
    received: VecDeque<Bytes>,
    received_bytes: usize,
    partial: BTreeMap<u64, Partial>,
    delivered: Delivered,
}

impl Datagrams {
    pub(crate) fn send(&mut self, data: &[u8]) -> Result<(), DatagramError> {
        if data.len() > MAX_SIZE {
            return Err(DatagramError::TooLarge);
        }
        if self.queued + data.len() > MAX_QUEUED {
            return Err(DatagramError::QueueFull);
        }
        self.queued += data.len();
        self.queue.push_back(Bytes::copy_from_slice(data));
        Ok(())
    }

    pub(crate) fn has_data(&self) -> bool {
        !self.queue.is_empty()
    }

    pub(crate) const fn queued(&self) -> usize {
        self.queued
    }

    /// Appends what fits into `space`; `whole` is what an empty packet would hold. `true` when
    /// anything was appended.
    pub(crate) fn fill(&mut self, out: &mut Vec<u8>, space: usize, whole: usize) -> bool {
        let end = out.len() + space;
        let before = out.len();
        while let Some(front) = self.queue.front() {
            let room = end - out.len();
            let needed = datagram_header_len(front.len()) + front.len();
            if self.front_sent == 0 && needed <= room {
                emit_datagram(front, out);
            } else if self.front_sent == 0 && needed <= whole {
                break;
            } else if room > FRAGMENT_HEADER {
                let n = (room - FRAGMENT_HEADER).min(front.len() - self.front_sent);
                let part = &front[self.front_sent..self.front_sent + n];
                let (offset, total) = (self.front_sent as u64, front.len() as u64);
                emit_fragment(self.next_number, offset, total, part, out);
                self.front_sent += n;
                if self.front_sent < front.len() {
                    break;
                }
                self.next_number += 1;
            } else {
                break;
            }
            self.front_sent = 0;
            if let Some(gone) = self.queue.pop_front() {
                self.queued -= gone.len();
            }
        }
        out.len() > before
    }

    /// The next datagram, or the next part of it, that a packet with `space` for frames can hold,
    /// numbered so that the receiver knows copies.
    pub(crate) fn take_copy(&mut self, space: usize) -> Option<DatagramCopy> {
        let front = self.queue.front()?.clone();
        let (number, total) = (self.next_number, front.len());
        let whole = datagram_copy_header_len(number, total) + total <= space;
        let most = if whole {
            total
        } else {
            space.saturating_sub(FRAGMENT_HEADER).max(1)
        };
        let offset = self.front_sent;
        let end = total.min(offset + most);
        self.front_sent = end;
        if end == total {
            self.front_sent = 0;
            self.next_number += 1;
            self.queued -= total;
            self.queue.pop_front();
        }
        Some(DatagramCopy {
            number,
            offset,
            total,
            data: front.slice(offset..end),
        })
    }

    /// A copy of a datagram came. `true` when the driver should be told.
    pub(crate) fn on_copy(&mut self, number: u64, data: &[u8]) -> bool {
        if self.delivered.contains(number) {
            return false;
        }
        self.delivered.insert(number);
        self.on_received(Bytes::copy_from_slice(data))
    }

    /// A whole datagram came. `true` when the driver should be told.
    pub(crate) fn on_received(&mut self, data: Bytes) -> bool {
        if self.received_bytes + data.len() > MAX_RECEIVED {
            return false;
        }
        self.received_bytes += data.len();
        self.received.push_back(data);
        self.received.len() == 1
    }

    /// A fragment came. Contradictory ones spoil their datagram and nothing else.
    pub(crate) fn on_fragment(&mut self, now: Instant, frame: &Frame<'_>) -> bool {
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
        if total > MAX_SIZE || data.is_empty() || offset + data.len() > total {
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
        whole.is_some_and(|whole| self.on_received(whole.into()))
    }

    pub(crate) fn poll(&mut self) -> Option<Bytes> {
        let data = self.received.pop_front()?;
        self.received_bytes -= data.len();
        Some(data)
    }

    /// When the oldest incomplete datagram is given up.
    pub(crate) fn expires_at(&self) -> Option<Instant> {
        self.partial
            .first_key_value()
            .map(|(_, partial)| partial.since + PARTIAL_LIFETIME)
    }

    pub(crate) fn expire(&mut self, now: Instant) {
        self.partial
            .retain(|_, partial| partial.since + PARTIAL_LIFETIME > now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Cursor, parse_frame};

    /// Sends through packets of `space` bytes, in the order `shuffle` makes of them.
    fn carry(data: &[u8], space: usize, shuffle: impl FnOnce(&mut Vec<Vec<u8>>)) -> Vec<Bytes> {
        let (mut a, mut b) = (Datagrams::default(), Datagrams::default());
        assert_eq!(a.send(data), Ok(()));
        let mut packets = Vec::new();
        while a.has_data() {
            let mut packet = Vec::new();
            assert!(a.fill(&mut packet, space, space));
            assert!(packet.len() <= space);
            packets.push(packet);
        }
        shuffle(&mut packets);
        for packet in packets {
            match parse_frame(&mut Cursor::new(&packet)) {
                Ok(Frame::Datagram(data)) => drop(b.on_received(Bytes::copy_from_slice(data))),
                Ok(frame) => drop(b.on_fragment(Instant::EPOCH, &frame)),
                Err(_) => panic!("a packet that does not parse"),
            }
        }
        std::iter::from_fn(|| b.poll()).collect()
    }

    #[test]
    fn small_and_large_datagrams_arrive_whole_in_any_order_of_fragments() {
        for len in [0, 1, 1_000, 1_400, 1_472, 9_000, 65_507] {
            let data: Vec<u8> = (0..len).map(|i| i as u8).collect();
            assert_eq!(carry(&data, 1_400, |_| {}), [&data[..]], "{len}");
            assert_eq!(
                carry(&data, 1_400, |packets| packets.reverse()),
                [&data[..]],
                "{len}"
            );
        }
    }

    #[test]
    fn copies_are_delivered_once_in_whatever_order_they_come() {
        let (mut a, mut b) = (Datagrams::default(), Datagrams::default());
        let sent: Vec<Vec<u8>> = [0, 10, 1_390, 1_500, 9_000]
            .map(|len| vec![len as u8; len])
            .to_vec();
        for data in &sent {
            assert_eq!(a.send(data), Ok(()));
        }
        let copies: Vec<_> = std::iter::from_fn(|| a.take_copy(1_400)).collect();
        assert_eq!(a.queued(), 0);
        let mut told = 0;
        for copy in copies.iter().chain(copies.iter().rev()).chain(&copies) {
            let mut packet = Vec::new();
            copy.emit(&mut packet);
            assert!(
                packet.len() <= copy.size() && copy.size() <= 1_400,
                "{}",
                copy.size()
            );
            told += match parse_frame(&mut Cursor::new(&packet)) {
                Ok(Frame::DatagramCopy { number, data }) => u32::from(b.on_copy(number, data)),
                Ok(frame) => u32::from(b.on_fragment(Instant::EPOCH, &frame)),
                Err(_) => panic!("a packet that does not parse"),
            };
        }
        let received: Vec<_> = std::iter::from_fn(|| b.poll()).collect();
        assert_eq!(
            (received, told),
            (sent.into_iter().map(Bytes::from).collect(), 1)
        );
    }

    #[test]
    fn a_number_beyond_all_gaps_does_not_make_memory_grow() {
        let mut b = Datagrams::default();
        for number in 0..10_000 {
            b.on_copy(number * 2, b"x");
        }
        assert_eq!(b.delivered.numbers.len(), MAX_GAPS);
        while b.poll().is_some() {}
        assert!(!b.on_copy(3, b"y"), "too late to tell from a copy");
        assert!(b.on_copy(19_999, b"y"));
        b.on_copy(u64::MAX >> 2, b"y");
    }

    #[test]
    fn a_lost_fragment_loses_its_datagram_and_a_doubled_one_changes_nothing() {
        let data = vec![7; 5_000];
        assert!(carry(&data, 1_400, |packets| drop(packets.remove(1))).is_empty());
        let twice = carry(&data, 1_400, |packets| packets.push(packets[0].clone()));
        assert_eq!(twice, [&data[..]]);
    }
}
