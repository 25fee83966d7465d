//! Bytes in order, in at one end and out at the other: a ring that its writer fills in place.
//!
//! What a program's socket gives is read into it directly: a copy less for every byte. Owns the
//! memory, which is always initialised, and how it grows; how much may be held is its owner's.

/// The first bytes take this much, and so much at least is offered to be filled in place.
const LEAST: usize = 4 * 1024;

/// A queue of bytes.
#[derive(Default)]
pub(super) struct Ring {
    /// What was ever written to of the ring, from its beginning on; it has room for all of it.
    memory: Vec<u8>,
    width: usize,
    /// Where the first byte stands.
    head: usize,
    len: usize,
}

impl Ring {
    pub(super) const fn new() -> Self {
        Self {
            memory: Vec::new(),
            width: 0,
            head: 0,
            len: 0,
        }
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of memory.
    pub(super) const fn capacity(&self) -> usize {
        self.width
    }

    /// Appends `data`.
    pub(super) fn extend(&mut self, data: &[u8]) {
        self.reserve(data.len());
        let at = self.wrap(self.head + self.len);
        let (first, second) = data.split_at(data.len().min(self.width - at));
        self.put(at, first);
        self.put(0, second);
        self.len += data.len();
    }

    fn put(&mut self, at: usize, data: &[u8]) {
        let (over, behind) = data.split_at(data.len().min(self.memory.len() - at));
        self.memory[at..at + over.len()].copy_from_slice(over);
        self.memory.extend_from_slice(behind);
    }

    /// Room behind the last byte, all in one piece: at least one byte and at most `most`, which is
    /// not zero. What is put there counts from [`filled`](Self::filled) on.
    pub(super) fn room(&mut self, most: usize) -> &mut [u8] {
        if self.width - self.len < LEAST.min(most) {
            // Twofold at most, so that what trickles in takes no more memory than it needs.
            self.reserve(most.min(self.len.max(LEAST)));
        }
        let at = self.wrap(self.head + self.len);
        let end = at + most.min(self.width - self.len).min(self.width - at);
        if self.memory.len() < end {
            self.memory.resize(end, 0);
        }
        &mut self.memory[at..end]
    }

    /// The first `n` bytes of [`room`](Self::room) are there now.
    pub(super) fn filled(&mut self, n: usize) {
        let room = self.width - self.len;
        assert!(n <= room, "more than there is room for");
        self.len += n;
    }

    /// The bytes from `from` on up to `to`, counted from the first; in two pieces where they go
    /// round the end of the memory.
    pub(super) fn slices(&self, from: usize, to: usize) -> (&[u8], &[u8]) {
        assert!(from <= to && to <= self.len, "no such bytes");
        let (start, len) = (self.wrap(self.head + from), to - from);
        let first = len.min(self.width - start);
        (
            &self.memory[start..start + first],
            &self.memory[..len - first],
        )
    }

    /// Forgets the first `n` bytes.
    pub(super) fn consume(&mut self, n: usize) {
        assert!(n <= self.len, "no such bytes");
        self.len -= n;
        // From the beginning again where nothing is left: memory used of late is near.
        self.head = match self.len {
            0 => 0,
            _ => self.wrap(self.head + n),
        };
    }

    /// Forgets all but the first `n` bytes.
    pub(super) fn truncate(&mut self, n: usize) {
        self.len = self.len.min(n);
    }

    /// Where the byte at `at` stands, which is less than two rings away from the beginning.
    const fn wrap(&self, at: usize) -> usize {
        match at < self.width {
            true => at,
            false => at - self.width,
        }
    }

    fn reserve(&mut self, more: usize) {
        let wanted = self.len + more;
        if wanted <= self.width {
            return;
        }
        // By a quarter: twofold would hold up to twice what its owner allows.
        let width = wanted.max(self.width + self.width / 4);
        let width = width.next_multiple_of(LEAST);
        self.memory.reserve_exact(width - self.memory.len());
        // What went round the end stands behind it now, as far as there is room, and the rest at
        // the beginning. All of the old ring was written to then.
        let round = (self.head + self.len).saturating_sub(self.width);
        let behind = round.min(width - self.width);
        self.memory.extend_from_within(..behind);
        self.memory.copy_within(behind..round, 0);
        self.width = width;
    }
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;
    use tabane_base::Seed;

    #[test]
    fn it_is_a_queue_of_bytes_however_it_is_filled_and_emptied() {
        for seed in 0..200 {
            let mut rng = Seed(seed).rng("ring");
            let (mut ring, mut model) = (Ring::new(), VecDeque::new());
            let mut next = 0_u8;
            for step in 0..200 {
                let n = rng.below(3 * LEAST as u64) as usize;
                match rng.below(5) {
                    0 => {
                        let data: Vec<u8> = (0..n).map(|i| next.wrapping_add(i as u8)).collect();
                        next = next.wrapping_add(n as u8);
                        ring.extend(&data);
                        model.extend(&data);
                    }
                    1 if n > 0 => {
                        let room = ring.room(n);
                        assert!(!room.is_empty() && room.len() <= n, "seed {seed}, {step}");
                        let n = room.len().min(1 + rng.below(2 * n as u64) as usize);
                        for byte in &mut room[..n] {
                            *byte = next;
                            model.push_back(next);
                            next = next.wrapping_add(1);
                        }
                        ring.filled(n);
                    }
                    2 => {
                        let kept = model.len().saturating_sub(n / 8);
                        ring.truncate(kept);
                        model.truncate(kept);
                    }
                    _ => {
                        let n = n.min(model.len());
                        ring.consume(n);
                        model.drain(..n);
                    }
                }
                let from = rng.below(model.len() as u64 + 1) as usize;
                let to = from + rng.below((model.len() - from) as u64 + 1) as usize;
                let (front, back) = ring.slices(from, to);
                let read = front.iter().chain(back);
                assert!(
                    read.eq(model.range(from..to)) && ring.len() == model.len(),
                    "seed {seed}, step {step}"
                );
            }
        }
    }

    #[test]
    fn memory_grows_with_what_comes_and_not_with_what_could() {
        let mut ring = Ring::new();
        assert_eq!(ring.room(1 << 20).len(), LEAST);
        ring.filled(100);
        assert_eq!((ring.len(), ring.capacity()), (100, LEAST));
        while ring.len() < 100_000 {
            let n = ring.room(1 << 20).len();
            ring.filled(n);
        }
        assert!(ring.capacity() <= 4 * 100_000);
    }
}
