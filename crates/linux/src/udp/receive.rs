//! A batch of received datagrams and the buffers it lives in.
//!
//! Owns the memory: one slot per message of a `recvmmsg(2)`, each large enough for whatever GRO
//! may coalesce. Splits coalesced buffers back into datagrams. The buffers are reused by the next
//! receive; who wants to keep a payload copies it.

use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use quinn_udp::{BATCH_SIZE, RecvMeta, UdpSockRef, UdpSocketState};
use rustix::time::{ClockId, clock_gettime};
use tabane_base::Duration;

use super::canonical;

/// Bytes per slot: the largest IP packet, which is also the most that GRO coalesces, and a packet
/// more. Slots a power of two apart would share the same few sets of the processor's caches, and a
/// batch of single packets would push itself out of them before it is read.
const SLOT_BYTES: usize = 65_536 + 2_048;

/// A datagram that waited longer than this says that the wall clock was stepped between its
/// arrival and our reading of it; its age is then taken for zero.
const MAX_BELIEVABLE_WAIT: Duration = Duration::from_secs(1);

/// Where a datagram came from and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    /// Who sent it.
    pub remote: SocketAddr,
    /// The local address it was sent to, which the answer should come from.
    pub local_ip: Option<IpAddr>,
    /// How long it lay in the kernel before [`try_recv`](super::UdpSocket::try_recv) took it:
    /// subtract it from the time of reading to get the time of arrival, free of our own delays.
    pub waited: Duration,
}

/// One datagram of a batch. The payload may be decrypted in place.
#[derive(Debug)]
pub struct Datagram<'a> {
    /// The payload.
    pub payload: &'a mut [u8],
    /// Where it came from.
    pub meta: Meta,
}

/// Buffers for one receive and what it brought. Takes 2.1 MiB; share one among all sockets that one
/// task reads.
pub struct RecvBatch {
    storage: Box<[u8]>,
    received: [RecvMeta; BATCH_SIZE],
    filled: usize,
    /// Wall-clock time since the Unix epoch when the batch was read.
    read_at: Duration,
}

impl RecvBatch {
    /// Empty buffers.
    #[must_use]
    pub fn new() -> Self {
        Self {
            storage: vec![0; BATCH_SIZE * SLOT_BYTES].into_boxed_slice(),
            received: [RecvMeta::default(); BATCH_SIZE],
            filled: 0,
            read_at: Duration::ZERO,
        }
    }

    /// Whether the last receive brought as much as there is room for, so that more may be there.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.filled == BATCH_SIZE
    }

    pub(super) fn clear(&mut self) {
        self.filled = 0;
    }

    pub(super) fn fill(&mut self, state: &UdpSocketState, socket: &OwnedFd) -> io::Result<usize> {
        let mut slots = self.storage.chunks_exact_mut(SLOT_BYTES);
        let mut buffers: [IoSliceMut<'_>; BATCH_SIZE] = std::array::from_fn(|_| {
            IoSliceMut::new(slots.next().expect("storage holds BATCH_SIZE slots"))
        });
        self.filled = state.recv(UdpSockRef::from(socket), &mut buffers, &mut self.received)?;
        let now = clock_gettime(ClockId::Realtime);
        self.read_at = Duration::new(
            u64::try_from(now.tv_sec).unwrap_or(0),
            u32::try_from(now.tv_nsec).unwrap_or(0),
        );
        Ok(self.filled)
    }

    /// The datagrams received, in order of arrival.
    pub fn datagrams(&mut self) -> impl Iterator<Item = Datagram<'_>> {
        let read_at = self.read_at;
        let slots = self.storage.chunks_exact_mut(SLOT_BYTES);
        slots
            .zip(&self.received[..self.filled])
            .flat_map(move |(slot, received)| {
                let meta = Meta {
                    remote: canonical(received.addr),
                    local_ip: received.dst_ip.map(|ip| ip.to_canonical()),
                    waited: waited(received.timestamp, read_at),
                };
                let empty = (received.len == 0).then(<&mut [u8]>::default);
                slot[..received.len]
                    .chunks_mut(received.stride.max(1))
                    .chain(empty)
                    .map(move |payload| Datagram { payload, meta })
            })
    }
}

impl Default for RecvBatch {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for RecvBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvBatch")
            .field("received", &&self.received[..self.filled])
            .finish()
    }
}

fn waited(arrived_at: Option<Duration>, read_at: Duration) -> Duration {
    let waited = read_at.saturating_sub(arrived_at.unwrap_or(read_at));
    if waited > MAX_BELIEVABLE_WAIT {
        Duration::ZERO
    } else {
        waited
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stepped_clock_does_not_age_a_datagram() {
        let at = Duration::from_secs(10_000);
        assert_eq!(
            waited(Some(at), at + Duration::from_millis(3)),
            Duration::from_millis(3)
        );
        assert_eq!(
            waited(Some(at), at + Duration::from_secs(3_600)),
            Duration::ZERO
        );
        assert_eq!(
            waited(Some(at), at - Duration::from_secs(3_600)),
            Duration::ZERO
        );
        assert_eq!(waited(None, at), Duration::ZERO);
    }
}
