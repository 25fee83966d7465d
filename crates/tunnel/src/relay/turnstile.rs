//! How many may come in a second: a bucket of turns that fills again (RFC 2697 has the idea).

use tabane_base::Duration;
use tokio::time::Instant;

/// Turns in a second, without end: more than servers at home see, and a scan is no more work than
/// this.
const PER_SECOND: u32 = 500;
/// Turns at once: a browser's burst, of many visitors.
const BURST: u32 = 2_000;

pub(super) struct Turnstile {
    /// When the bucket is full again; what is left of it follows from that.
    full_at: Instant,
}

impl Turnstile {
    pub(super) fn new(now: Instant) -> Self {
        Self { full_at: now }
    }

    /// Lets one through, or says when one may come.
    pub(super) fn pass(&mut self, now: Instant) -> Result<(), Instant> {
        let turn = Duration::from_secs(1) / PER_SECOND;
        let full_at = self.full_at.max(now) + turn;
        let may_at = full_at - turn * BURST;
        if may_at > now {
            return Err(may_at);
        }
        self.full_at = full_at;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_pass_at_once_and_then_so_many_in_a_second() {
        let start = Instant::now();
        let mut turnstile = Turnstile::new(start);
        let mut passed = 0;
        while turnstile.pass(start).is_ok() {
            passed += 1;
        }
        assert_eq!(passed, BURST);
        let again_at = turnstile.pass(start).unwrap_err();
        let turn = Duration::from_secs(1) / PER_SECOND;
        assert_eq!(again_at - start, turn);
        assert!(turnstile.pass(again_at).is_ok() && turnstile.pass(again_at).is_err());
        let later = start + Duration::from_secs(1);
        let passed = std::iter::from_fn(|| turnstile.pass(later).ok()).count();
        assert_eq!(passed, PER_SECOND as usize - 1);
        // Who was away for long finds a full bucket, and no fuller.
        let much_later = start + Duration::from_secs(3_600);
        let passed = std::iter::from_fn(|| turnstile.pass(much_later).ok()).count();
        assert_eq!(passed, BURST as usize);
    }
}
