//! What one flow shows of itself, whether or not the gateway acts on it.
//!
//! Owns both round trips, silences and repetitions. A *silence* is a time without an
//! acknowledgement, while something is on its way, longer than the retransmission timer of a sender
//! who sees both links. Repetitions that follow each other are one *bout*; one that begins with the
//! first byte on its way, without three duplicate acknowledgements before it, is a timeout. A bout
//! was *needless* if what it repeats had arrived or was arriving. That shows, for whoever stands in
//! the middle: an acknowledgement of it echoes an older timestamp (RFC 3522), or comes sooner than
//! a round trip after it; the mobile host says that it got something twice (DSACK, RFC 2883), or
//! answers each piece of a timeout's bout with an acknowledgement of what lies behind it.

use std::ops::{AddAssign, Sub};

use tabane_base::{Duration, Instant};

use crate::radio::RoundTrip;
use crate::seq::Seq;

/// Figures of one flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Bytes of new data that went on to the mobile host.
    pub forwarded: u64,
    /// Bytes the server sent again.
    pub repeated: u64,
    /// Those of them that had arrived or were arriving.
    pub needless: u64,
    /// Times the server's timer ran out for nothing.
    pub spurious_timeouts: u64,
    /// Times it took reordering or duplicates for a loss.
    pub spurious_retransmits: u64,
    /// Silences of the radio link.
    pub silences: u64,
    /// Their length together.
    pub silent: Duration,
    /// Silences in which the server, acknowledged early, kept still and whole: each would have
    /// been a timeout.
    pub avoided: u64,
    /// Bytes the gateway sent again.
    pub resent: u64,
}

impl AddAssign for Figures {
    fn add_assign(&mut self, other: Self) {
        self.forwarded += other.forwarded;
        self.repeated += other.repeated;
        self.needless += other.needless;
        self.spurious_timeouts += other.spurious_timeouts;
        self.spurious_retransmits += other.spurious_retransmits;
        self.silences += other.silences;
        self.silent += other.silent;
        self.avoided += other.avoided;
        self.resent += other.resent;
    }
}

/// What came to it since an earlier moment of the same flow.
impl Sub for Figures {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            forwarded: self.forwarded - before.forwarded,
            repeated: self.repeated - before.repeated,
            needless: self.needless - before.needless,
            spurious_timeouts: self.spurious_timeouts - before.spurious_timeouts,
            spurious_retransmits: self.spurious_retransmits - before.spurious_retransmits,
            silences: self.silences - before.silences,
            silent: self.silent.saturating_sub(before.silent),
            avoided: self.avoided - before.avoided,
            resent: self.resent - before.resent,
        }
    }
}

/// A repetition of the server's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Repetition {
    pub(crate) start: Seq,
    pub(crate) end: Seq,
    /// The server's timestamp on it.
    pub(crate) stamp: Option<u32>,
    /// The mobile host has everything below.
    pub(crate) base: Seq,
}

/// Repetitions that follow each other.
#[derive(Clone, Copy, Debug)]
struct Bout {
    /// What was repeated first, and its timestamp.
    start: Seq,
    first_end: Seq,
    stamp: Option<u32>,
    /// The highest number repeated.
    end: Seq,
    begun_at: Instant,
    last_at: Instant,
    /// When the mobile host first acknowledged what was repeated first.
    covered_at: Option<Instant>,
    is_timeout: bool,
    is_needless: bool,
    /// Bytes and pieces not judged yet.
    bytes: u64,
    pieces: u64,
}

impl Bout {
    /// Pieces come to the mobile host after what they repeat, as far apart as they were sent.
    fn may_be_answered(&self, now: Instant, within: Duration) -> bool {
        let covered_at = self.covered_at.unwrap_or(now);
        now - covered_at <= within + (self.last_at - self.begun_at)
    }
}

/// Duplicates by which a sender knows of a loss (RFC 5681 §3.2).
const DUPLICATES: u32 = 3;
/// Whatever answers a bout has come after so many of the longest round trips.
const ANSWERED_WITHIN: u32 = 2;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Meter {
    pub(crate) radio: RoundTrip,
    pub(crate) wired: RoundTrip,
    pub(crate) figures: Figures,
    /// The last acknowledgement of something new, or when something was first on its way.
    progress_at: Instant,
    /// The server repeated something during this silence.
    repeated_in_silence: bool,
    bout: Option<Bout>,
    /// Acknowledgements alike since the last of something new.
    duplicates: u32,
    /// What the mobile host sent last and when, until the server acknowledges it.
    upstream: Option<(Seq, Instant)>,
}

impl Meter {
    pub(crate) fn progress_at(&self) -> Instant {
        self.progress_at
    }

    /// The time that a server needs to see a timeout in a silence.
    fn patience(&self) -> Duration {
        self.radio.senders_timeout(&self.wired)
    }

    /// New data went on.
    pub(crate) fn on_forwarded(&mut self, now: Instant, bytes: usize, was_idle: bool) {
        self.figures.forwarded += bytes as u64;
        if was_idle {
            self.progress_at = now;
            self.repeated_in_silence = false;
        }
    }

    /// The server sent something again.
    pub(crate) fn on_repeated(&mut self, now: Instant, repetition: Repetition) {
        let Repetition {
            start,
            end,
            stamp,
            base,
        } = repetition;
        let bytes = u64::from(end.beyond(start));
        self.figures.repeated += bytes;
        self.repeated_in_silence = true;
        let within = self.answered_within();
        let goes_on = |bout: &Bout| {
            let is_behind = !base.is_before(bout.end) && !start.is_before(bout.end);
            !is_behind && bout.may_be_answered(now, within)
        };
        let bout = match &mut self.bout {
            Some(bout) if goes_on(bout) => bout,
            place => place.insert(Bout {
                start,
                first_end: end,
                stamp,
                end,
                begun_at: now,
                last_at: now,
                covered_at: None,
                is_timeout: !start.is_after(base) && self.duplicates < DUPLICATES,
                is_needless: false,
                bytes: 0,
                pieces: 0,
            }),
        };
        bout.end = bout.end.later(end);
        bout.last_at = now;
        bout.bytes += bytes;
        bout.pieces += 1;
        if !end.is_after(base) {
            self.on_needless(1);
        }
    }

    /// How long after the first there may be more answers to a bout.
    fn answered_within(&self) -> Duration {
        (self.radio.longest() * ANSWERED_WITHIN).max(self.patience())
    }

    /// The mobile host acknowledged everything below `ack`, which is new.
    pub(crate) fn on_progress(
        &mut self,
        now: Instant,
        ack: Seq,
        sample: Option<Duration>,
        early: bool,
        echo: Option<u32>,
    ) {
        let silence = now - self.progress_at;
        if silence > self.patience() {
            self.figures.silences += 1;
            self.figures.silent += silence;
            if early && !self.repeated_in_silence {
                self.figures.avoided += 1;
            }
        }
        self.progress_at = now;
        self.repeated_in_silence = false;
        self.duplicates = 0;
        self.judge(now, ack, echo);
        if let Some(sample) = sample {
            self.radio.sample(now, sample);
        }
    }

    /// An acknowledgement of something new may tell what the first repetition was good for.
    fn judge(&mut self, now: Instant, ack: Seq, echo: Option<u32>) {
        let Some(bout) = &mut self.bout else { return };
        if !ack.is_before(bout.first_end) {
            bout.covered_at.get_or_insert(now);
        }
        let bout = *bout;
        if bout.is_needless || !ack.is_after(bout.start) {
            return;
        }
        let is_late = match bout.stamp.zip(echo) {
            Some((stamp, echo)) => (echo.wrapping_sub(stamp) as i32) < 0,
            None => now - bout.begun_at < self.radio.shortest().unwrap_or_default() * 3 / 4,
        };
        if is_late {
            self.on_needless(bout.pieces);
        } else if bout.stamp.is_some() {
            // It was waited for.
            self.bout = None;
        }
    }

    /// The mobile host repeats `ack`, with nothing beside it.
    pub(crate) fn on_duplicate(&mut self, now: Instant, ack: Seq) {
        let within = self.answered_within();
        let answers = |bout: &Bout| {
            let covers = !ack.is_before(bout.first_end);
            bout.is_timeout && covers && bout.may_be_answered(now, within)
        };
        if self.bout.as_ref().is_some_and(answers) {
            self.on_needless(1);
        } else {
            self.duplicates += 1;
        }
    }

    /// The mobile host got something twice, and says so.
    pub(crate) fn on_duplicate_report(&mut self) {
        self.on_needless(1);
    }

    /// So many pieces of the bout were.
    fn on_needless(&mut self, pieces: u64) {
        let Some(bout) = self.bout.as_mut().filter(|bout| bout.pieces > 0) else {
            return;
        };
        let bytes = bout.bytes / bout.pieces * pieces;
        bout.bytes -= bytes;
        bout.pieces -= pieces;
        self.figures.needless += bytes;
        if !std::mem::replace(&mut bout.is_needless, true) {
            if bout.is_timeout {
                self.figures.spurious_timeouts += 1;
            } else {
                self.figures.spurious_retransmits += 1;
            }
        }
    }

    /// The mobile host sends data up to `end`.
    pub(crate) fn on_upstream(&mut self, now: Instant, end: Seq) {
        self.upstream.get_or_insert((end, now));
    }

    /// The mobile host sends data a second time: what it measures would be ambiguous.
    pub(crate) fn on_upstream_repeated(&mut self) {
        self.upstream = None;
    }

    /// The server has everything below `ack`.
    pub(crate) fn on_upstream_ack(&mut self, now: Instant, ack: Seq) {
        if let Some((end, at)) = self.upstream
            && !ack.is_before(end)
        {
            self.wired.sample(now, now - at);
            self.upstream = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Instant {
        Instant::from_millis(ms)
    }

    /// A flow with round trips of 50 ms that has sent 1000..6000 at 1 s.
    fn meter() -> Meter {
        let mut meter = Meter::default();
        meter.radio.sample(ms(900), Duration::from_millis(50));
        meter.on_forwarded(ms(1_000), 5_000, true);
        meter
    }

    fn again(start: u32, stamp: Option<u32>) -> Repetition {
        Repetition {
            start: Seq(start),
            end: Seq(start + 1_000),
            stamp,
            base: Seq(1_000),
        }
    }

    fn counts(meter: &Meter) -> (u64, u64, u64) {
        let figures = meter.figures;
        let timeouts = figures.spurious_timeouts;
        (timeouts, figures.spurious_retransmits, figures.needless)
    }

    #[test]
    fn a_timestamp_tells_which_of_two_has_arrived() {
        for (echo, is_needless) in [(70, true), (99, true), (100, false)] {
            let mut meter = meter();
            meter.on_repeated(ms(1_400), again(1_000, Some(100)));
            meter.on_progress(ms(1_700), Seq(2_000), None, false, Some(echo));
            let expected = u64::from(is_needless);
            assert_eq!(counts(&meter), (expected, 0, 1_000 * expected), "{echo}");
        }
    }

    #[test]
    fn without_timestamps_the_mobile_hosts_answers_tell() {
        let mut meter = meter();
        for start in [1_000, 2_000, 3_000] {
            meter.on_repeated(ms(1_400), again(start, None));
        }
        meter.on_progress(ms(1_700), Seq(6_000), None, false, None);
        assert_eq!(counts(&meter), (0, 0, 0), "nobody knows yet");
        meter.on_duplicate(ms(1_750), Seq(6_000));
        meter.on_duplicate(ms(1_751), Seq(6_000));
        assert_eq!(counts(&meter), (1, 0, 2_000));
    }

    #[test]
    fn a_loss_that_a_timer_found_was_none_for_nothing() {
        let mut meter = meter();
        meter.on_repeated(ms(1_400), again(1_000, None));
        meter.on_progress(ms(1_450), Seq(2_000), None, false, None);
        for now in 1_460..1_463 {
            // A later loss is not an answer to it: it comes before the next piece.
            meter.on_duplicate(ms(now + 500), Seq(2_000));
        }
        assert_eq!(counts(&meter), (0, 0, 0));
        // The three say that 2000 is missing; what follows is no timeout.
        let repetition = Repetition {
            base: Seq(2_000),
            ..again(2_000, None)
        };
        meter.on_repeated(ms(2_000), repetition);
        meter.on_duplicate_report();
        assert_eq!(counts(&meter), (0, 1, 1_000));
    }

    #[test]
    fn what_comes_back_sooner_than_it_can_was_on_its_way() {
        let mut meter = meter();
        meter.on_repeated(ms(1_400), again(1_000, None));
        meter.on_progress(ms(1_420), Seq(2_000), None, false, None);
        assert_eq!(counts(&meter), (1, 0, 1_000));
    }

    #[test]
    fn each_timeout_counts_once() {
        let mut meter = meter();
        meter.on_repeated(ms(1_400), again(1_000, Some(100)));
        meter.on_progress(ms(1_500), Seq(6_000), None, false, Some(50));
        meter.on_duplicate_report();
        assert_eq!(counts(&meter), (1, 0, 1_000), "reported in two ways");
        meter.on_forwarded(ms(3_000), 1_000, true);
        let repetition = Repetition {
            base: Seq(6_000),
            ..again(6_000, Some(200))
        };
        meter.on_repeated(ms(3_400), repetition);
        meter.on_progress(ms(3_500), Seq(7_000), None, false, Some(150));
        assert_eq!(counts(&meter), (2, 0, 2_000));
    }
}
