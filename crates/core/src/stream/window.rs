//! How far a stream's sender may go beyond its reader [P-6.4].
//!
//! Begins small, so that a stream nobody reads draws and holds little, and grows while its reader
//! keeps pace and the network uses it up within a few round trips: then it is the window that
//! limits. It never shrinks.

use tabane_base::{Duration, Instant};

/// A window used up within so many round trips doubles: unequal paths need what the fast ones
/// deliver during the slow ones' round trip and a repetition, and acknowledgements batch.
const GROWS_WITHIN_RTTS: u32 = 4;
/// On short links it is the other end's processor that uses a window up in bursts.
const GROWS_WITHIN_AT_LEAST: Duration = Duration::from_millis(20);

/// What the two sockets of a program's connection take in although the program never reads: 165 to
/// 181 kB on loopback, Linux 6.18. Who has come beyond that is a reader.
const TAKEN_UNREAD: u64 = 215_000;
/// The window of readers to begin with: 25 Mbit/s over the round trip of a satellite. Of those that
/// stop reading the sender keeps the rest [P-6.9].
pub(crate) const STEADY: u64 = 1_000_000;
/// What a stream may bring before anybody is known to read it, where a reader gets [`STEADY`]: with
/// headers less than 256 kB, and as much as plain TCP has on its way after four round trips.
pub(crate) const UNPROVED: u64 = 230_000;

/// The credit of one stream.
#[derive(Debug)]
pub(crate) struct Window {
    size: u64,
    most: u64,
    /// Offsets below this were granted.
    credit: u64,
    granted_at: Option<Instant>,
    /// Nobody is known to read.
    is_unproved: bool,
}

impl Window {
    /// Grants `size` bytes, and later up to `most` beyond the reader. Where that is enough for
    /// [`STEADY`] and `size` is not, no more before somebody is known to read.
    pub(crate) fn new(size: u64, most: u64) -> Self {
        Self {
            size,
            most: most.max(size),
            credit: size,
            granted_at: None,
            is_unproved: size < STEADY && STEADY <= most,
        }
    }

    /// How far the sender may go beyond the reader.
    pub(crate) const fn size(&self) -> u64 {
        self.size
    }

    /// Nobody is known to read, and no more is granted before.
    pub(crate) const fn is_unproved(&self) -> bool {
        self.is_unproved
    }

    /// Somebody reads: the next time that they do, more is granted.
    pub(crate) fn prove(&mut self) {
        if self.is_unproved {
            (self.is_unproved, self.size) = (false, STEADY);
        }
    }

    /// Offsets below this were granted.
    pub(crate) const fn credit(&self) -> u64 {
        self.credit
    }

    /// The reader has come to `read_to`. Renews the credit once half of the window is used up;
    /// `true` when it should be told.
    pub(crate) fn on_read(&mut self, now: Instant, rtt: Duration, read_to: u64) -> bool {
        if self.is_unproved {
            if read_to < TAKEN_UNREAD {
                return false;
            }
            self.prove();
        }
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
    fn who_never_reads_gets_no_more_than_the_first_grant() {
        let mut window = Window::new(UNPROVED, 16 * STEADY);
        let at = Instant::from_millis;
        // The program's socket and ours.
        for (ms, read_to) in [(0, 50_000), (1, 120_000), (2, 181_000)] {
            assert!(!window.on_read(at(ms), RTT, read_to));
        }
        assert_eq!(window.credit(), UNPROVED);
        assert!(window.on_read(at(3), RTT, 216_000));
        assert_eq!(window.credit(), 216_000 + STEADY);
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
