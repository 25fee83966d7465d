//! Unreliable datagrams: waiting to leave, and put together again from fragments [P-7].
//!
//! Delivered at once, in the order of arrival. What does not fit into one packet travels in
//! fragments; one lost fragment loses the datagram.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use tabane_base::{Duration, Instant};
use thiserror::Error;

use crate::wire::{Frame, datagram_header_len, emit_datagram, emit_fragment};

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

/// The datagrams of one session.
#[derive(Debug, Default)]
pub(crate) struct Datagrams {
    queue: VecDeque<Bytes>,
    queued: usize,
    /// Bytes of the front datagram that left in fragments already.
    front_sent: usize,
    next_id: u64,
    received: VecDeque<Bytes>,
    received_bytes: usize,
    partial: BTreeMap<u64, Partial>,
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
                emit_fragment(self.next_id, offset, total, part, out);
                self.front_sent += n;
                if self.front_sent < front.len() {
                    break;
                }
                self.next_id += 1;
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
    fn a_lost_fragment_loses_its_datagram_and_a_doubled_one_changes_nothing() {
        let data = vec![7; 5_000];
        assert!(carry(&data, 1_400, |packets| drop(packets.remove(1))).is_empty());
        let twice = carry(&data, 1_400, |packets| packets.push(packets[0].clone()));
        assert_eq!(twice, [&data[..]]);
    }
}
