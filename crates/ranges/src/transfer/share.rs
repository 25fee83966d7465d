//! Our way: whoever will have bytes soonest is asked for them.
//!
//! A request is for about a second of its link's rate, so that a link that changes is noticed
//! before it has much. A link takes part only where rate and latency say that the whole is finished
//! earlier with it. What comes late is taken over: the end of what a request has still to bring is
//! asked for elsewhere, so that both are done at the same time; the first request goes on until its
//! own bytes are here. So the last bytes are, where links fail, asked for twice.

use tabane_base::{Bytes, Duration, Instant, Rate};

use super::request::Live;
use super::{Method, Order, Transfer};
use crate::link::{Link, LinkId};
use crate::span::Span;

/// How much of a link's time one request is for.
const HORIZON: Duration = Duration::from_secs(1);
/// The least that is worth a request while there is enough to do.
const LEAST_CHUNK: Bytes = Bytes::kilo(64);
/// In a stream somebody waits for the slowest chunk: the least is less.
const LEAST_STREAM_CHUNK: Bytes = Bytes::kilo(16);
/// The least that is worth taking over near the end.
const LEAST_PIECE: Bytes = Bytes::kilo(4);
/// Requests at a time on one link: while one ends, the next one's answer is on its way.
const MOST_REQUESTS: usize = 2;
/// A link of a higher tier takes part if those below it need longer than this for the rest.
const TIER_PATIENCE: Duration = Duration::from_secs(5);

/// The next request goes out so long before its turn, beyond what its answer needs.
const LOOK_AHEAD: Duration = Duration::from_millis(50);
/// What an answer is taken to need where nothing is known of any link.
const UNKNOWN_LATENCY: Duration = Duration::from_millis(200);
/// Bounds of what is a silence.
const LEAST_SILENCE: Duration = Duration::from_millis(500);
const MOST_SILENCE: Duration = Duration::from_secs(3);

/// A link that could take something.
struct Taker {
    id: LinkId,
    rate: Rate,
    /// When the first byte of a new request can be here, from now on.
    begins: Duration,
    chunk: Bytes,
}

impl Transfer {
    /// Gives links work until none wants more.
    pub(super) fn share(&mut self, now: Instant) {
        while let Some((link, span)) = self.next_share(now) {
            let before = self.live.len();
            self.start(now, link, Method::Get, span);
            if self.live.len() == before {
                return;
            }
        }
    }

    fn next_share(&mut self, now: Instant) -> Option<(LinkId, Span)> {
        let usable = self.usable(now);
        let gaps = self.within_window(self.unassigned());
        let is_stuck = |live: &Live| self.is_silent(now, live) || self.is_held(live);
        if self.live.values().all(is_stuck)
            && let Some(span) = gaps.first()
        {
            // All for the best one; others take their part from the end of it.
            let is_idle = |link: &LinkId| self.on_link(*link).all(|live| self.is_held(live));
            let link = usable.into_iter().find(is_idle)?;
            return Some((link, self.affordable(link, *span)));
        }
        for id in usable {
            let Some(taker) = self.taker(now, id) else {
                continue;
            };
            if let Some(span) = self.rescue(now, &taker) {
                return Some((id, span));
            }
            let span = self.take(now, &taker, &gaps);
            if let Some(span) = span.or_else(|| self.take_over(now, &taker)) {
                return Some((id, span));
            }
        }
        None
    }

    /// What a link could take now, if it is free for more.
    fn taker(&self, now: Instant, id: LinkId) -> Option<Taker> {
        let link = self.links.get(&id)?;
        let (mut requests, mut silent) = (0, 0);
        let mut outstanding = Bytes::ZERO;
        for live in self.on_link(id).filter(|live| !self.is_held(live)) {
            requests += 1;
            if self.is_silent(now, live) {
                silent += 1;
            } else {
                outstanding += live.outstanding();
            }
        }
        // Another connection may get what a silent one does not.
        let most = match link.facts.weight < 1.0 {
            true => 1,
            false => MOST_REQUESTS + silent.min(MOST_REQUESTS),
        };
        if requests >= most {
            return None;
        }
        let rate = link.rate(now).or_else(|| self.guess(now))?;
        if rate == Rate::ZERO {
            return None;
        }
        let busy = rate.time_for(outstanding);
        let latency = self.latency(id);
        let lead = 2 * latency + LOOK_AHEAD;
        if requests > silent && busy > lead {
            return None;
        }
        let chunk = self.chunk(link, rate, outstanding);
        (chunk >= LEAST_PIECE).then(|| Taker {
            id,
            rate,
            begins: busy.max(latency),
            chunk,
        })
    }

    /// A link of which nothing is known is taken for half as fast as the slowest one that is known:
    /// too much asked of it would have to be asked for again.
    fn guess(&self, now: Instant) -> Option<Rate> {
        let known = self.links.values().filter_map(|link| link.rate(now));
        Some(known.min()?.scaled(0.5))
    }

    fn chunk(&self, link: &Link, rate: Rate, outstanding: Bytes) -> Bytes {
        let second = rate.amount_in(HORIZON);
        let chunk = match self.settings.order {
            Order::Any => second.max(LEAST_CHUNK),
            // All of what is on its way must fit the window.
            Order::Stream { window } => {
                let share = Bytes::new(window.get() / (2 * self.links.len().max(1) as u64));
                second.max(LEAST_STREAM_CHUNK).min(share)
            }
        };
        chunk.min(link.allowance(outstanding))
    }

    /// What of the gaps lies close enough to what the reader has consumed.
    fn within_window(&self, gaps: Vec<Span>) -> Vec<Span> {
        let Some(reach) = self.reach() else {
            return gaps;
        };
        let within = gaps.into_iter().map(|gap| gap.within(reach));
        within.filter(|gap| !gap.is_empty()).collect()
    }

    fn reach(&self) -> Option<Span> {
        match self.settings.order {
            Order::Any => None,
            Order::Stream { window } => Some(Span {
                start: self.consumed,
                end: self.consumed.saturating_add(window.get()),
            }),
        }
    }

    fn affordable(&self, id: LinkId, span: Span) -> Span {
        let allowance = self.links.get(&id).map(|link| link.allowance(Bytes::ZERO));
        let most = allowance.unwrap_or(Bytes::ZERO).get();
        let end = span.end.min(span.start.saturating_add(most));
        Span { end, ..span }
    }

    /// A part of what nobody was asked for yet: from its end for a file, where the best link comes
    /// from the front; from its front for a stream.
    fn take(&self, now: Instant, taker: &Taker, gaps: &[Span]) -> Option<Span> {
        // All are done at the same time when each takes no more than it can have by then.
        let finish = self.finish_time(now, gaps);
        let by_then = taker.rate.amount_in(finish.saturating_sub(taker.begins));
        let amount = taker.chunk.min(by_then);
        if amount < LEAST_PIECE {
            return None;
        }
        let amount = amount.get();
        Some(match self.settings.order {
            Order::Any => {
                let gap = *gaps.last()?;
                let start = gap.end.saturating_sub(amount).max(gap.start);
                // No crumb is left for a request of its own.
                let is_crumb = start - gap.start < LEAST_PIECE.get();
                let start = if is_crumb { gap.start } else { start };
                Span { start, ..gap }
            }
            Order::Stream { .. } => {
                let gap = *gaps.first()?;
                let end = gap.start.saturating_add(amount).min(gap.end);
                Span { end, ..gap }
            }
        })
    }

    /// When all links together would have everything, from now on.
    fn finish_time(&self, now: Instant, gaps: &[Span]) -> Duration {
        let rates = self.links.values().filter_map(|link| link.rate(now));
        let sum = Rate::from_bps(rates.map(Rate::as_bps).sum());
        let unassigned: u64 = gaps.iter().map(|gap| gap.len()).sum();
        let outstanding: Bytes = self.live.values().map(Live::outstanding).sum();
        sum.time_for(outstanding + Bytes::new(unassigned))
    }

    /// When a request will have brought its bytes, from now on, and its link's rate.
    fn prediction(&self, now: Instant, live: &Live) -> (Duration, Rate) {
        let Some(link) = self.links.get(&live.link) else {
            return (Duration::MAX, Rate::ZERO);
        };
        let rate = match link.rate(now) {
            _ if self.is_silent(now, live) => Rate::ZERO,
            Some(rate) => rate,
            None => self.guess(now).unwrap_or(Rate::ZERO),
        };
        let outstanding = self.on_link(live.link).map(Live::outstanding).sum();
        let waits = match live.answered_at {
            Some(_) => Duration::ZERO,
            None => self.latency(live.link).saturating_sub(now - live.sent_at),
        };
        (waits.saturating_add(rate.time_for(outstanding)), rate)
    }

    /// In a stream, a request that stands still holds up everything behind it: all it has to bring
    /// is asked for by another link at once.
    fn rescue(&mut self, now: Instant, taker: &Taker) -> Option<Span> {
        let reach = self.reach()?;
        let victim = self.live.iter().find(|(_, live)| {
            let is_silent = self.prediction(now, live).1 == Rate::ZERO;
            live.link != taker.id && !live.rest().is_empty() && is_silent
        });
        let (id, _) = victim?;
        let id = *id;
        let rest = *self
            .received
            .missing(self.live[&id].rest().within(reach))
            .first()?;
        let end = rest.end.min(rest.start.saturating_add(taker.chunk.get()));
        let live = self.live.get_mut(&id)?;
        // What the other one brings all the same is taken, whoever is first.
        live.until = live.position;
        Some(Span { end, ..rest })
    }

    /// The end of what comes latest, so much that both links are done at the same time.
    fn take_over(&mut self, now: Instant, taker: &Taker) -> Option<Span> {
        let others = self.live.iter().filter(|(_, live)| {
            // What was asked for just now is not late, or links would take it from one another.
            let is_new = live.answered_at.is_none()
                && now - live.sent_at < self.latency(live.link).max(LEAST_SILENCE);
            let is_other = live.link != taker.id && !is_new;
            is_other && live.method == Method::Get && !live.rest().is_empty()
        });
        let latest = others.max_by_key(|(_, live)| self.prediction(now, live).0);
        let (id, live) = latest.map(|(id, live)| (*id, live))?;
        let (done, rate) = self.prediction(now, live);
        let late = done.saturating_sub(taker.begins);
        let rest = *self.received.missing(live.rest()).last()?;
        if self.runs_on_into(taker, rest) {
            return None;
        }
        let most = Bytes::new(rest.len());
        let share = if rate == Rate::ZERO {
            most
        } else {
            // late = share/taker's rate + share/victim's rate
            let (a, b) = (taker.rate.as_bps() as f64, rate.as_bps() as f64);
            Rate::from_bps((a * b / (a + b)) as u64).amount_in(late)
        };
        let amount = share.min(taker.chunk).min(most);
        // A small rest is taken whole, or left. What is gained must be more than predictions err.
        let gain = rate.time_for(share.min(most));
        let least_gain = (self.latency(taker.id) / 2).max(done / 8);
        if amount < LEAST_PIECE.min(most) || (rate > Rate::ZERO && gain < least_gain) {
            return None;
        }
        let start = match self.reach() {
            None => rest.end - amount.get(),
            // Where the other one would be when this has come; its own bytes end there.
            Some(reach) => {
                let meanwhile = taker.begins + taker.rate.time_for(amount);
                let ahead = rest.start + rate.amount_in(meanwhile).get();
                let start = ahead.min(rest.end - amount.get());
                if start + amount.get() > reach.end {
                    return None;
                }
                start
            }
        };
        let end = start + amount.get();
        self.live.get_mut(&id)?.until = start;
        self.is_dirty |= end < rest.end;
        Some(Span { start, end })
    }

    /// A request that is out on the link already will come to these bytes by itself, sooner than
    /// the answer to another one could.
    fn runs_on_into(&self, taker: &Taker, rest: Span) -> bool {
        let latency = self.latency(taker.id);
        self.on_link(taker.id).any(|live| {
            let is_before = live.position <= rest.start && live.asked.end >= rest.end;
            let useless = Bytes::new(rest.start.saturating_sub(live.until.max(live.position)));
            is_before && taker.rate.time_for(useless) <= latency
        })
    }

    /// The links that may be used now, the best first: what the policy prefers, then the fastest.
    pub(super) fn usable(&self, now: Instant) -> Vec<LinkId> {
        let is_usable = |(id, link): &(&LinkId, &Link)| {
            let on_its_way = self.on_link(**id).map(Live::outstanding).sum();
            // The first request has all of the file; what its link will bring of it is not known.
            let on_its_way = if self.version.is_some() {
                on_its_way
            } else {
                Bytes::ZERO
            };
            link.rests_until <= now
                && link.allowance(on_its_way) >= Bytes::new(1)
                && self.source_for(now, **id).is_some()
        };
        let mut usable: Vec<(LinkId, &Link)> = self
            .links
            .iter()
            .filter(is_usable)
            .map(|(id, link)| (*id, link))
            .collect();
        let is_reserve = |link: &Link| link.facts.backup || link.facts.weight <= 0.0;
        let is_spared = |link: &Link| !is_reserve(link);
        if self
            .links
            .iter()
            .any(|(id, link)| is_spared(link) && self.works(now, *id))
        {
            usable.retain(|(_, link)| is_spared(link));
        }
        let lowest = self
            .links
            .iter()
            .filter(|(id, link)| is_spared(link) && self.works(now, **id))
            .map(|(_, link)| link.facts.tier)
            .min();
        if let Some(lowest) = lowest
            && !self.is_long(now, lowest)
        {
            usable.retain(|(_, link)| link.facts.tier <= lowest);
        }
        usable.sort_by_key(|(id, link)| {
            let rate = link.rate(now).unwrap_or(Rate::ZERO);
            let rate = rate.scaled(link.facts.weight);
            (link.facts.tier, std::cmp::Reverse(rate), *id)
        });
        usable.into_iter().map(|(id, _)| id).collect()
    }

    /// Whether a link brings, or could bring, anything.
    fn works(&self, now: Instant, id: LinkId) -> bool {
        let Some(link) = self.links.get(&id) else {
            return false;
        };
        let mut live = self.on_link(id).peekable();
        match live.peek() {
            Some(_) => !live.all(|live| self.is_silent(now, live)),
            None => self.source_for(now, id).is_some() && link.allowance(Bytes::ZERO) > Bytes::ZERO,
        }
    }

    /// Whether links up to a tier would need long for what is left.
    fn is_long(&self, now: Instant, tier: u8) -> bool {
        let Some(end) = self.length() else {
            return false;
        };
        let up_to = self.links.values().filter(|link| link.facts.tier <= tier);
        let rates = up_to.filter_map(|link| link.rate(now));
        let sum = Rate::from_bps(rates.map(Rate::as_bps).sum());
        let rest = Bytes::new(end) - self.received.total();
        // Where nothing is measured yet, there is no hurry.
        sum > Rate::ZERO && sum.time_for(rest) > TIER_PATIENCE
    }

    /// Nothing has come for much longer than the link's latency explains: of the request, or of the
    /// whole link. An answer may stand in the link's queue behind what is asked for already, so
    /// while others come, one is waited for longer.
    pub(super) fn is_silent(&self, now: Instant, live: &Live) -> bool {
        let link_heard_at = self.on_link(live.link).map(|live| live.heard_at).max();
        let latency = self.links.get(&live.link).and_then(Link::latency);
        let patience = latency.map_or(MOST_SILENCE, |latency| {
            (2 * latency).clamp(LEAST_SILENCE, MOST_SILENCE)
        });
        link_heard_at.is_none_or(|at| now - at > patience) || now - live.heard_at > 4 * patience
    }

    /// How long an answer takes to begin on a link; where nothing is known, as long as on the
    /// slowest of the others.
    pub(super) fn latency(&self, id: LinkId) -> Duration {
        let known = self.links.get(&id).and_then(Link::latency);
        let others = self.links.values().filter_map(Link::latency).max();
        known.or(others).unwrap_or(UNKNOWN_LATENCY)
    }
}
