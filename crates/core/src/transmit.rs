//! Datagrams on their way out, laid out so that the kernel can take many at once (UDP GSO).

use crate::id::FourTuple;

/// Datagrams in one [`Transmit`]; Linux takes at most 128 segments, older ones 64.
const MAX_SEGMENTS: usize = 64;
/// Bytes in one [`Transmit`]: a UDP payload over IPv4 cannot be larger, segmented or not.
const MAX_CONTENTS: usize = 65_507;

/// A buffer that sessions append datagrams to and the driver sends from.
#[derive(Debug)]
pub struct TransmitBatch {
    pub(crate) buf: Vec<u8>,
    entries: Vec<Entry>,
    capacity: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    tuple: FourTuple,
    start: usize,
    end: usize,
    segment_size: usize,
}

/// One or more datagrams to one place.
#[derive(Clone, Copy, Debug)]
pub struct Transmit<'a> {
    /// From where to where.
    pub tuple: FourTuple,
    /// Every datagram but the last has this many bytes; the last may be shorter.
    pub segment_size: usize,
    /// The datagrams, one after another.
    pub contents: &'a [u8],
}

impl TransmitBatch {
    /// A batch that sessions stop filling once it holds `capacity` bytes.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self {
            buf: Vec::with_capacity(capacity + 2 * MAX_CONTENTS),
            entries: Vec::new(),
            capacity,
        }
    }

    /// Empties it, keeping its memory.
    pub fn clear(&mut self) {
        self.buf.clear();
        self.entries.clear();
    }

    /// Whether it holds nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// What to send, in order.
    pub fn iter(&self) -> impl Iterator<Item = Transmit<'_>> {
        self.entries.iter().map(|entry| Transmit {
            tuple: entry.tuple,
            segment_size: entry.segment_size,
            contents: &self.buf[entry.start..entry.end],
        })
    }

    pub(crate) fn is_full(&self) -> bool {
        self.buf.len() >= self.capacity
    }

    /// Declares `buf[start..]` to be one datagram, joined to the last entry where that can grow.
    pub(crate) fn finish(&mut self, tuple: FourTuple, start: usize) {
        let (end, size) = (self.buf.len(), self.buf.len() - start);
        if let Some(last) = self.entries.last_mut() {
            let used = last.end - last.start;
            let joins = last.tuple == tuple
                && used % last.segment_size == 0
                && size <= last.segment_size
                && used / last.segment_size < MAX_SEGMENTS
                && used + size <= MAX_CONTENTS;
            if joins {
                last.end = end;
                return;
            }
        }
        self.entries.push(Entry {
            tuple,
            start,
            end,
            segment_size: size,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SocketId;

    fn tuple(socket: u32) -> FourTuple {
        FourTuple {
            socket: SocketId(socket),
            local_ip: None,
            remote: "192.0.2.1:1".parse().expect("an address"),
        }
    }

    fn push(batch: &mut TransmitBatch, socket: u32, size: usize) {
        let start = batch.buf.len();
        batch.buf.resize(start + size, 0);
        batch.finish(tuple(socket), start);
    }

    #[test]
    fn equal_datagrams_join_and_a_short_one_ends_the_run() {
        let mut batch = TransmitBatch::new(10_000);
        for (socket, size) in [(0, 100), (0, 100), (0, 40), (0, 40), (1, 40), (0, 200)] {
            push(&mut batch, socket, size);
        }
        let runs: Vec<_> = batch
            .iter()
            .map(|t| (t.tuple.socket.0, t.segment_size, t.contents.len()))
            .collect();
        assert_eq!(
            runs,
            [(0, 100, 240), (0, 40, 40), (1, 40, 40), (0, 200, 200)]
        );
    }

    #[test]
    fn a_run_stays_below_what_the_kernel_takes() {
        let mut batch = TransmitBatch::new(1 << 20);
        (0..130).for_each(|_| push(&mut batch, 0, 1_000));
        assert!(batch.iter().all(|t| t.contents.len() <= 64_000));
        assert_eq!(
            batch.iter().map(|t| t.contents.len()).sum::<usize>(),
            130_000
        );
    }
}
