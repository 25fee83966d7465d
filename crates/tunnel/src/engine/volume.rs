//! What a link has carried, counted where it leaves and arrives: no session's end loses any of it.

use std::ops::AddAssign;

use tabane_base::Bytes;

/// UDP payloads that passed the sockets of a link, whatever session they were of and whatever
/// became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    /// Handed to the kernel.
    pub sent: Bytes,
    /// Taken from it.
    pub received: Bytes,
    /// Datagrams of [`sent`](Self::sent).
    pub sent_packets: u64,
    /// Datagrams of [`received`](Self::received).
    pub received_packets: u64,
}

impl Volume {
    /// `contents` went out as datagrams of `segment_size`, the last perhaps shorter.
    pub(super) fn on_sent(&mut self, contents: &[u8], segment_size: usize) {
        self.sent += Bytes::from(contents.len());
        self.sent_packets += contents.len().div_ceil(segment_size.max(1)) as u64;
    }

    /// A datagram came in.
    pub(super) fn on_received(&mut self, datagram: &[u8]) {
        self.received += Bytes::from(datagram.len());
        self.received_packets += 1;
    }
}

impl AddAssign for Volume {
    fn add_assign(&mut self, other: Self) {
        self.sent += other.sent;
        self.received += other.received;
        self.sent_packets += other.sent_packets;
        self.received_packets += other.received_packets;
    }
}
