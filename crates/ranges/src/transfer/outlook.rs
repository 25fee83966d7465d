//! What is to be expected of links and requests, from what they have shown.
//!
//! Owns every prediction that the rule decides by; asks for nothing itself. All times are from now
//! on.

use tabane_base::{Bytes, Duration, Instant, Rate};

use super::request::Live;
use super::{Method, RequestId, Transfer};
use crate::link::{Link, LinkId};
use crate::span::ByteRange;

/// What a link of which nothing is known is taken for, of the slowest of the others: too much asked
/// of it would have to be asked for again.
const GUESS: f64 = 0.5;
/// What an answer is taken to need where nothing is known of any link.
const UNKNOWN_LATENCY: Duration = Duration::from_millis(200);
/// What a link's queue may hold: a packet that was lost is sent again after that, and all that
/// follows it waits.
const QUEUED: Bytes = Bytes::kilo(64);
/// The longest that this is waited for.
const QUEUED_TIME: Duration = Duration::from_secs(4);
/// The least that is a silence.
const LEAST_SILENCE: Duration = Duration::from_millis(250);

/// A time that may have turned out below zero, or without end.
pub(super) fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)
}

impl Transfer {
    /// When all links together can have everything, from now on, if each works to the end.
    pub(super) fn finish_time(&self, now: Instant, usable: &[LinkId]) -> Duration {
        let ids = self
            .links
            .keys()
            .filter(|id| usable.contains(id) || self.on_link(**id).next().is_some());
        let mut flows: Vec<(f64, f64)> = ids
            .map(|id| (self.flows_in(now, *id), self.expected_rate(now, *id)))
            .filter(|(_, rate)| *rate > Rate::ZERO)
            .map(|(begins, rate)| (begins, rate.as_bps() as f64 / 8.0))
            .collect();
        flows.sort_by(|a, b| a.0.total_cmp(&b.0));
        let all = ByteRange {
            start: 0,
            end: self.length().unwrap_or(0),
        };
        let missing: u64 = self.received.missing(all).iter().map(|gap| gap.len()).sum();
        // What a link cannot bring because it begins later is as if there were more to do.
        let (mut sum, mut amount) = (0.0, missing as f64);
        let mut end = f64::INFINITY;
        for (begins, rate) in flows {
            if begins >= end {
                break;
            }
            sum += rate;
            amount += rate * begins;
            end = amount / sum;
        }
        seconds(end)
    }

    /// When bytes come over a link, in seconds from now on: of what is out, or of what could be
    /// asked for.
    pub(super) fn flows_in(&self, now: Instant, id: LinkId) -> f64 {
        let bodies = self.on_link(id).filter(|live| live.method == Method::Get);
        let soonest = bodies.map(|live| self.flow_in(now, live));
        let soonest = soonest.min_by(f64::total_cmp);
        soonest.unwrap_or_else(|| self.idle_latency(id).as_secs_f64())
    }

    /// When bytes of a request come, in seconds from now on. In a pause that says nothing they are
    /// on their way; a longer silence is taken to last as long again as it has lasted.
    fn flow_in(&self, now: Instant, live: &Live) -> f64 {
        let pause = self.pause(now, live.link);
        let (silence, is_answered) = match live.answered_at {
            Some(_) => {
                let link = self.links.get(&live.link);
                let heard_at = link.map_or(live.heard_at, |link| link.heard_at);
                (now - heard_at.max(live.heard_at), true)
            }
            None if live.due_at >= now => return (live.due_at - now).as_secs_f64(),
            None => (now - live.due_at, false),
        };
        match silence.checked_sub(pause) {
            Some(longer) => longer.as_secs_f64(),
            None if is_answered => -silence.as_secs_f64(),
            None => 0.0,
        }
    }

    /// A pause that says nothing: a lost packet is sent again after a round trip through the link's
    /// own queue, and all that follows it waits.
    pub(super) fn pause(&self, now: Instant, id: LinkId) -> Duration {
        let queued = self.expected_rate(now, id).time_for(QUEUED);
        2 * self.latency(id) + queued.min(QUEUED_TIME)
    }

    /// When a request will have brought its bytes, from now on, and its link's rate.
    pub(super) fn prediction(&self, now: Instant, live: &Live) -> (Duration, Rate) {
        let rate = match self.is_silent(now, live) {
            true => Rate::ZERO,
            false => self.expected_rate(now, live.link),
        };
        let outstanding = self.on_link(live.link).map(Live::outstanding).sum();
        let done = self.flow_in(now, live) + rate.time_for(outstanding).as_secs_f64();
        (seconds(done), rate)
    }

    /// How fast a link is. One of which nothing is known is taken for half as fast as the slowest
    /// of the others: too much asked of it would have to be asked for again.
    pub(super) fn expected_rate(&self, now: Instant, id: LinkId) -> Rate {
        let link = self.links.get(&id);
        if let Some(pace) = link.and_then(|link| link.pace(now)) {
            return pace;
        }
        let others = self.links.iter().filter(|(other, _)| **other != id);
        let guess = others.filter_map(|(_, link)| link.rate(now)).min();
        let guess = guess.map(|slowest| slowest.scaled(GUESS));
        // The first burst comes as fast as the link can; what follows may not.
        let burst = link.and_then(|link| link.rate(now));
        let least = [guess, burst].into_iter().flatten().min();
        least.unwrap_or(Rate::ZERO)
    }

    /// The last gap that a request is alone to bring: nothing is asked for three times.
    pub(super) fn alone(&self, id: RequestId, live: &Live) -> Option<ByteRange> {
        let mut taken = self.received.clone();
        for (_, other) in self.live.iter().filter(|(other, _)| **other != id) {
            taken.insert(other.rest());
        }
        taken.missing(live.rest()).last().copied()
    }

    /// Who else is to bring the byte at `position`.
    pub(super) fn holder(&self, link: LinkId, position: u64) -> Option<&Live> {
        let mut others = self.live.values().filter(|live| live.link != link);
        others.find(|live| live.position <= position && live.until > position)
    }

    /// How long a request that runs on at `from` brings only what others have brought, until it is
    /// at `to`, which somebody else brings meanwhile.
    pub(super) fn catch_up(&self, now: Instant, link: LinkId, from: u64, to: u64) -> Duration {
        let between = ByteRange {
            start: from,
            end: to,
        };
        let fresh: u64 = self
            .received
            .missing(between)
            .iter()
            .map(|gap| gap.len())
            .sum();
        let useless = Bytes::new(between.len() - fresh);
        if useless == Bytes::ZERO {
            return Duration::ZERO;
        }
        let rate = self.expected_rate(now, link);
        let ahead = self.holder(link, to).map_or(Rate::ZERO, |live| {
            let is_before = rate.time_for(useless).as_secs_f64() < self.flow_in(now, live);
            if is_before {
                Rate::ZERO
            } else {
                self.prediction(now, live).1
            }
        });
        match rate.as_bps().saturating_sub(ahead.as_bps()) {
            0 => Duration::MAX,
            faster => Rate::from_bps(faster).time_for(useless),
        }
    }

    /// Nothing has come for much longer than the link's latency explains: of the request, or of the
    /// whole link. An answer may stand in the link's queue behind what is asked for already, so
    /// while others come, one is waited for longer.
    pub(super) fn is_silent(&self, now: Instant, live: &Live) -> bool {
        let link = self.links.get(&live.link);
        let link_heard_at = self.on_link(live.link).map(|live| live.heard_at).max();
        let link_heard_at = link_heard_at.max(link.map(|link| link.heard_at));
        if live.answered_at.is_none() && now < live.due_at {
            return false;
        }
        let patience = self.pause(now, live.link).max(LEAST_SILENCE);
        link_heard_at.is_none_or(|at| now - at > patience) || now - live.heard_at > 4 * patience
    }

    /// How long an answer takes to begin on a link of which nothing else is asked: in no queue of
    /// our own.
    pub(super) fn idle_latency(&self, id: LinkId) -> Duration {
        let known = self.links.get(&id).and_then(Link::idle_latency);
        known.unwrap_or_else(|| self.latency(id))
    }

    /// How long an answer takes to begin on a link; where nothing is known, as long as on the
    /// slowest of the others.
    pub(super) fn latency(&self, id: LinkId) -> Duration {
        let known = self.links.get(&id).and_then(Link::latency);
        let others = self.links.values().filter_map(Link::latency).max();
        known.or(others).unwrap_or(UNKNOWN_LATENCY)
    }
}
