//! What one flow shows of itself, whether or not the gateway acts on it.
//!
//! Owns both round trips, silences and repetitions. A *silence* is a time without an
//! acknowledgement, while something is on its way, longer than the retransmission timer of a sender
//! who sees both links. A *needless* repetition is one of bytes that had arrived or were arriving:
//! their acknowledgement comes sooner than a round trip after it, or says so (DSACK, RFC 2883).

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

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Meter {
    pub(crate) radio: RoundTrip,
    pub(crate) wired: RoundTrip,
    pub(crate) figures: Figures,
    /// The last acknowledgement of something new, or when something was first on its way.
    progress_at: Instant,
    /// The server repeated something during this silence.
    repeated_in_silence: bool,
    /// The last repetition: where it ends, how long it is, when, and whether in a silence.
    suspect: Option<(Seq, u64, Instant, bool)>,
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
    pub(crate) fn on_repeated(&mut self, now: Instant, end: Seq, bytes: usize, arrived: bool) {
        self.figures.repeated += bytes as u64;
        let silent = now - self.progress_at > self.patience();
        self.repeated_in_silence = true;
        if arrived {
            self.figures.needless += bytes as u64;
        } else {
            self.suspect = Some((end, bytes as u64, now, silent));
        }
    }

    /// The mobile host acknowledged everything below `ack`, which is new.
    pub(crate) fn on_progress(
        &mut self,
        now: Instant,
        ack: Seq,
        sample: Option<Duration>,
        early: bool,
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
        if let Some((end, bytes, at, silent)) = self.suspect
            && !ack.is_before(end)
        {
            let least = self.radio.shortest().unwrap_or_default();
            if now - at < least / 2 {
                self.on_needless(bytes, silent);
            }
            self.suspect = None;
        }
        if let Some(sample) = sample {
            self.radio.sample(now, sample);
        }
    }

    /// The mobile host got something twice.
    pub(crate) fn on_duplicate_report(&mut self) {
        if let Some((_, bytes, _, silent)) = self.suspect.take() {
            self.on_needless(bytes, silent);
        }
    }

    fn on_needless(&mut self, bytes: u64, silent: bool) {
        self.figures.needless += bytes;
        if silent {
            self.figures.spurious_timeouts += 1;
        } else {
            self.figures.spurious_retransmits += 1;
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
