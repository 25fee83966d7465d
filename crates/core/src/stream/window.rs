//! How far a stream's sender may go beyond its reader [P-6.4].
//!
//! Begins small, so that a stream nobody reads holds little memory, and grows while its reader
//! keeps pace and the network uses it up within a few round trips: then it is the window that
//! limits. It never shrinks.

use tabane_base::{Duration, Instant};

/// A window used up within so many round trips doubles: unequal paths need what the fast ones
/// deliver during the slow ones' round trip and a repetition, and acknowledgements batch.
const GROWS_WITHIN_RTTS: u32 = 4;
/// On short links it is the other end's processor that uses a window up in bursts.
const GROWS_WITHIN_AT_LEAST: Duration = Duration::from_millis(20);

/// The credit of one stream.
#[derive(Debug)]
pub(crate) struct Window {
    size: u64,
    most: u64,
    /// Offsets below this were granted.
    credit: u64,
    granted_at: Option<Instant>,
}

impl Window {
    /// Grants `size` bytes, and later up to `most` beyond the reader.
    pub(crate) fn new(size: u64, most: u64) -> Self {
        Self {
            size,
            most: most.max(size),
            credit: size,
            granted_at: None,
        }
    }

    /// How far the sender may go beyond the reader.
    pub(crate) const fn size(&self) -> u64 {
        self.size
    }

    /// Offsets below this were granted.
    pub(crate) const fn credit(&self) -> u64 {
        self.credit
    }

    /// The reader has come to `read_to`. Renews the credit once half of the window is used up;
    /// `true` when it should be told.
    pub(crate) fn on_read(&mut self, now: Instant, rtt: Duration, read_to: u64) -> bool {
        let used = (read_to + self.size).saturating_sub(self.credit);
        if used < self.size / 2 {
            return false;
        }
        let soon = (GROWS_WITHIN_RTTS * rtt).max(GROWS_WITHIN_AT_LEAST) / 2;
        if self.granted_at.is_some_and(|at| now.since(at) <= soon) {
            self.size = (2 * self.size).min(self.most);
        }
        self.granted_at = Some(now);
        self.credit = read_to + self.size;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(50);

    /// Reads `rate` bytes per millisecond for two seconds; the window at the end.
    fn read(rate: u64) -> u64 {
        let mut window = Window::new(1_000, 64_000);
        let mut read_to = 0;
        for ms in 0..2_000 {
            read_to = (read_to + rate).min(window.credit());
            window.on_read(Instant::from_millis(ms), RTT, read_to);
            assert!(
                window.credit() >= read_to + window.size / 2,
                "credit runs dry"
            );
        }
        window.size
    }

    #[test]
    fn the_window_grows_to_what_the_reader_needs_and_no_further() {
        assert_eq!(read(1), 1_000);
        // Four round trips' worth is 4,000 and 20,000 bytes.
        assert!((2_000..=8_000).contains(&read(20)));
        assert!((10_000..=40_000).contains(&read(100)));
        assert_eq!(read(10_000), 64_000);
    }
}
