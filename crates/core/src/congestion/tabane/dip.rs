//! A look at the path without our queue.
//!
//! Sends nothing until little is in flight, keeps it so for a part of a round trip, and listens
//! for what the packets sent then say of the path's length, while sending goes on. Costs the depth
//! of the dip, not a round trip of it. What the answer means is `rival`'s to judge.

use tabane_base::{Bytes, Duration, Instant, Rate};

use crate::congestion::AckEvent;
use crate::congestion::cubic::Cubic;
use crate::congestion::model::shifted;

/// The bottom lasts this part of the shortest round trip, or so long.
const BOTTOM_PART: u32 = 4;
const BOTTOM_MIN: Duration = Duration::from_millis(2);
/// Going down takes so many round trips and so long at most; then the bottom is where we are.
const DOWN_RTTS_MAX: u32 = 8;
const DOWN_MAX: Duration = Duration::from_secs(1);

/// A dip under way.
#[derive(Clone, Debug)]
pub(super) struct Dip {
    /// The rate when it began, and afterwards.
    pub(super) rate: Rate,
    /// The shortest round trip known when it began.
    pub(super) min_rtt: Duration,
    /// Competing until then, and so afterwards if the queue stays.
    pub(super) cubic: Option<Box<Cubic>>,
    window: Bytes,
    window_before: Bytes,
    began_at: Instant,
    /// When the bottom was reached, and until when it is kept.
    bottom: Option<(Instant, Instant)>,
    /// The shortest round trip of packets sent at the bottom.
    found: Option<Duration>,
}

impl Dip {
    /// From `window_before` in flight down to `window`.
    pub(super) fn new(
        now: Instant,
        rate: Rate,
        min_rtt: Duration,
        window: Bytes,
        window_before: Bytes,
    ) -> Self {
        Self {
            rate,
            min_rtt,
            cubic: None,
            window,
            window_before,
            began_at: now,
            bottom: None,
            found: None,
        }
    }

    /// True once the answer is there.
    pub(super) fn advance(&mut self, event: &AckEvent<'_>) -> bool {
        let Some((since, until)) = self.bottom else {
            let down_max = self.min_rtt * DOWN_RTTS_MAX + DOWN_MAX;
            if event.in_flight_after <= self.window || event.now.since(self.began_at) > down_max {
                let span = (self.min_rtt / BOTTOM_PART).max(BOTTOM_MIN);
                self.bottom = Some((event.now, event.now + span));
            }
            return false;
        };
        if event.largest_acked_sent_at >= since
            && let Some(rtt) = event.sample.rtt
        {
            self.found = Some(self.found.map_or(rtt, |found| found.min(rtt)));
        }
        event.largest_acked_sent_at >= until
    }

    /// Round trips are reckoned with a way back that is longer by `nanos` from here on.
    pub(super) fn shift(&mut self, nanos: i64) {
        self.min_rtt = shifted(self.min_rtt, nanos);
        self.found = self.found.map(|found| shifted(found, nanos));
    }

    /// What may be in flight.
    pub(super) fn cwnd(&self, now: Instant) -> Bytes {
        match self.bottom {
            Some((_, until)) if now >= until => self.window_before,
            _ => self.window,
        }
    }

    /// The length of the path without us.
    pub(super) fn found(&self) -> Option<Duration> {
        self.found
    }
}
