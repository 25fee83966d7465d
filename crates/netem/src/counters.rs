//! What a link has done so far, as values to print and compare.
//!
//! Invariant, held by [`Link`](crate::Link) and tested there: offered = delivered + dropped +
//! inside, in packets and in bytes.

use std::ops::AddAssign;

use tabane_base::Bytes;

/// Why a packet did not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum DropReason {
    /// The drop-tail queue had no room for it.
    #[error("queue full")]
    QueueFull,
    /// The loss model took it.
    #[error("random loss")]
    Loss,
    /// It left the transmitter while the link was dead.
    #[error("outage")]
    Outage,
}

/// A number of packets and their sizes together, at IP level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Packets.
    pub packets: u64,
    /// The sum of their sizes.
    pub bytes: Bytes,
}

impl Count {
    pub(crate) fn add(&mut self, size: Bytes) {
        self.packets += 1;
        self.bytes += size;
    }

    pub(crate) fn take(&mut self, size: Bytes) {
        self.packets -= 1;
        self.bytes -= size;
    }
}

impl AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}

/// A copy of one link direction's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Handed to the link.
    pub offered: Count,
    /// Handed out by the link.
    pub delivered: Count,
    /// Dropped because the queue was full.
    pub queue_full: Count,
    /// Dropped by the loss model.
    pub lost: Count,
    /// Vanished in an outage.
    pub outage: Count,
    /// Waiting, being transmitted, or on their way.
    pub inside: Count,
    /// Waiting behind the packet that is being transmitted.
    pub queued: Bytes,
    /// The most that ever waited.
    pub queued_max: Bytes,
}

impl Counters {
    /// Dropped for any reason.
    #[must_use]
    pub fn dropped(&self) -> Count {
        let mut sum = self.queue_full;
        sum += self.lost;
        sum += self.outage;
        sum
    }

    pub(crate) fn drop_one(&mut self, reason: DropReason, size: Bytes) {
        match reason {
            DropReason::QueueFull => self.queue_full.add(size),
            DropReason::Loss => self.lost.add(size),
            DropReason::Outage => self.outage.add(size),
        }
    }
}
