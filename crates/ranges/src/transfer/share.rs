//! Our way: whoever will have bytes soonest is asked for them.
//!
//! The best link begins with the whole file. The others take so much of what comes latest that, by
//! what is known of them, all are done at the same time (`outlook`); a link that would not be
//! earlier takes nothing. One request is for about a second of its link's rate, or for a third of
//! the time that is left, so that a link that changes is noticed before it has much. The first
//! request goes on until its own bytes are here. What stands still is asked for again by links that
//! have nothing else to do, so the last bytes may come twice.

use tabane_base::{Bytes, Duration, Instant, Rate};

use super::outlook::seconds;
use super::request::Live;
use super::{Method, Order, Transfer};
use crate::link::{Link, LinkId};
use crate::span::ByteRange;

/// How much of a link's time one request is for, of a file that is done soon.
const HORIZON: Duration = Duration::from_secs(1);
/// A link that is far needs so many times its latency to come to its rate.
const RAMPS: u32 = 8;
/// Of a file that takes longer, a request is for one part in so many of the time left: servers
/// begin slowly with each. What a link that fails has then is little beside the whole.
const PARTS: u32 = 3;
const MOST_HORIZON: Duration = Duration::from_secs(10);
/// The least that is worth a request while there is enough to do.
const LEAST_CHUNK: Bytes = Bytes::kilo(64);
/// In a stream somebody waits for the slowest chunk: the least is less.
const LEAST_STREAM_CHUNK: Bytes = Bytes::kilo(16);
/// The least that is worth taking over near the end: more than what a request costs in headers.
const LEAST_PIECE: Bytes = Bytes::kilo(2);
/// Requests at a time on one link: while one ends, the next one's answer is on its way.
const MOST_REQUESTS: usize = 2;
/// A link of a higher tier takes part if those below it need longer than this for the rest.
const TIER_PATIENCE: Duration = Duration::from_secs(5);
/// The next request goes out so long before its turn, beyond what its answer needs, and earlier by
/// what stands in the link's queue before the answer.
const LOOK_AHEAD: Duration = Duration::from_millis(50);
const AHEAD: Bytes = Bytes::kilo(4);
/// Where a link's rate is a guess it is given so much of its share, while at least so many times
/// its latency is left: what is too much has to be asked for again, what is too little only sooner.
const GUESSED_SHARE: f64 = 0.75;
const GUESSED_ROUNDS: u32 = 5;
/// What it costs to go on behind what another link has brought, in times of the latency.
const SKIP_ROUNDS: u32 = 4;

/// A link that could take something.
struct Taker {
    id: LinkId,
    rate: Rate,
    /// When the first byte of a new request can be here, from now on.
    begins: Duration,
    chunk: Bytes,
    /// Nothing came over it yet.
    is_guess: bool,
}

impl Taker {
    /// What it can bring until `end`, from now on.
    fn by(&self, end: Duration) -> Bytes {
        let amount = self.rate.amount_in(end.saturating_sub(self.begins));
        let has_time = end > GUESSED_ROUNDS * self.begins;
        match self.is_guess && has_time {
            true => Bytes::new((amount.get() as f64 * GUESSED_SHARE) as u64),
            false => amount,
        }
    }
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

    fn next_share(&mut self, now: Instant) -> Option<(LinkId, ByteRange)> {
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
        let end = self.finish_time(now, &usable);
        for id in usable {
            let Some(taker) = self.taker(now, id, end) else {
                continue;
            };
            if let Some(span) = self.rescue(now, &taker) {
                return Some((id, span));
            }
            let span = self.take(&taker, &gaps, end);
            let span = span.or_else(|| self.take_over(now, &taker, end));
            if let Some(span) = span.or_else(|| self.duplicate(now, &taker)) {
                return Some((id, span));
            }
        }
        None
    }

    /// What a link could take now, if it is free for more.
    fn taker(&self, now: Instant, id: LinkId, end: Duration) -> Option<Taker> {
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
        let is_guess = link.pace(now).is_none();
        let rate = self.expected_rate(now, id);
        if rate == Rate::ZERO || (is_guess && requests > 0) {
            return None;
        }
        let busy = match requests > silent {
            true => rate.time_for(outstanding).as_secs_f64() + self.flows_in(now, id).min(0.0),
            false => 0.0,
        };
        let busy = seconds(busy);
        let latency = match requests {
            0 => self.idle_latency(id),
            _ => self.latency(id),
        };
        let lead = latency + latency / 2 + LOOK_AHEAD + rate.time_for(AHEAD);
        if busy > lead {
            return None;
        }
        let chunk = self.chunk(link, rate, outstanding, end);
        (chunk >= LEAST_PIECE).then(|| Taker {
            id,
            rate,
            begins: busy.max(latency),
            chunk,
            is_guess,
        })
    }

    fn chunk(&self, link: &Link, rate: Rate, outstanding: Bytes, end: Duration) -> Bytes {
        let ramps = link.latency().map_or(HORIZON, |latency| RAMPS * latency);
        let part = (end / PARTS).min(MOST_HORIZON);
        let chunk = match self.reach() {
            None => rate
                .amount_in(HORIZON.max(ramps).max(part))
                .max(LEAST_CHUNK),
            // All of what is on its way must fit the window.
            Some(reach) => {
                let share = Bytes::new(reach.len() / (2 * self.links.len().max(1) as u64));
                rate.amount_in(HORIZON).max(LEAST_STREAM_CHUNK).min(share)
            }
        };
        chunk.min(link.allowance(outstanding))
    }

    /// What of the gaps lies close enough to what the reader has consumed.
    fn within_window(&self, gaps: Vec<ByteRange>) -> Vec<ByteRange> {
        let Some(reach) = self.reach() else {
            return gaps;
        };
        let within = gaps.into_iter().map(|gap| gap.within(reach));
        within.filter(|gap| !gap.is_empty()).collect()
    }

    /// How far ahead may be asked for; none where that is no question: in a file, and in a stream
    /// of which all that is left fits its window. The best link comes from the front, so the reader
    /// has no less than from that link alone.
    fn reach(&self) -> Option<ByteRange> {
        let Order::Stream { window } = self.settings.order else {
            return None;
        };
        let end = self.consumed.saturating_add(window.get());
        let is_short = self.length().is_some_and(|length| length <= end);
        (!is_short).then_some(ByteRange {
            start: self.consumed,
            end,
        })
    }

    fn affordable(&self, id: LinkId, span: ByteRange) -> ByteRange {
        let allowance = self.links.get(&id).map(|link| link.allowance(Bytes::ZERO));
        let most = allowance.unwrap_or(Bytes::ZERO).get();
        let end = span.end.min(span.start.saturating_add(most));
        ByteRange { end, ..span }
    }

    /// A part of what nobody was asked for yet: from its end for a file, where the best link comes
    /// from the front; from its front for a stream.
    fn take(&self, taker: &Taker, gaps: &[ByteRange], end: Duration) -> Option<ByteRange> {
        // All are done at the same time when each takes no more than it can have by then.
        let amount = taker.chunk.min(taker.by(end));
        if amount < LEAST_PIECE {
            return None;
        }
        let amount = amount.get();
        Some(match self.reach() {
            None => {
                let gap = *gaps.last()?;
                let start = gap.end.saturating_sub(amount).max(gap.start);
                // No crumb is left for a request of its own.
                let is_crumb = start - gap.start < LEAST_PIECE.get();
                let start = if is_crumb { gap.start } else { start };
                ByteRange { start, ..gap }
            }
            Some(_) => {
                let gap = *gaps.first()?;
                let end = gap.start.saturating_add(amount).min(gap.end);
                ByteRange { end, ..gap }
            }
        })
    }

    /// In a stream, a request that stands still holds up everything behind it: all it has to bring
    /// is asked for by another link at once.
    fn rescue(&mut self, now: Instant, taker: &Taker) -> Option<ByteRange> {
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
        Some(ByteRange { end, ..rest })
    }

    /// The end of what comes latest, so much that all links are done at the same time.
    fn take_over(&mut self, now: Instant, taker: &Taker, end: Duration) -> Option<ByteRange> {
        let others = self.live.iter().filter(|(_, live)| {
            // What was asked for just now is not late, or links would take it from one another.
            let is_new = live.answered_at.is_none() && now < live.due_at;
            let is_other = live.link != taker.id && !is_new;
            is_other && live.method == Method::Get && !live.rest().is_empty()
        });
        let alone = others.filter_map(|(id, live)| Some((*id, live, self.alone(*id, live)?)));
        let latest =
            alone.max_by_key(|(_, live, _)| (self.prediction(now, live).0, live.rest().len()));
        let (id, live, rest) = latest?;
        let (done, rate) = self.prediction(now, live);
        if self.runs_on_into(now, taker, rest) {
            return None;
        }
        let most = Bytes::new(rest.len());
        let (excess, by_then) = match rate {
            Rate::ZERO => (most, most),
            rate => (rate.amount_in(done.saturating_sub(end)), taker.by(end)),
        };
        let share = excess.min(by_then);
        let amount = share.min(taker.chunk).min(most);
        // What is gained must be more than predictions err.
        let latency = self.latency(taker.id);
        let (gain, least_gain) = match self.reach() {
            None if share >= most => {
                let at = taker.begins + taker.rate.time_for(most);
                (done.saturating_sub(at), (latency / 8).max(done / 32))
            }
            None => (rate.time_for(share), (latency / 8).max(done / 32)),
            // The other one comes to these bytes and has to ask anew behind them.
            Some(_) => (rate.time_for(amount), SKIP_ROUNDS * self.latency(live.link)),
        };
        // A small rest is taken whole, or left.
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
        Some(ByteRange { start, end })
    }

    /// What stands still, for a link that has nothing else to do and will have it sooner if the
    /// silence lasts as long again as it has lasted. Both may bring it.
    fn duplicate(&self, now: Instant, taker: &Taker) -> Option<ByteRange> {
        let is_metered = self.links.get(&taker.id)?.facts.metered;
        if is_metered || self.on_link(taker.id).next().is_some() {
            return None;
        }
        let others = self.live.iter().filter(|(_, live)| {
            live.link != taker.id && live.method == Method::Get && now > live.due_at
        });
        let silences = others.filter_map(|(id, live)| {
            let silence = now - live.heard_at.max(live.due_at);
            Some((silence, self.alone(*id, live)?))
        });
        let (silence, rest) = silences.max_by_key(|(silence, _)| *silence)?;
        let end = rest.end.min(rest.start.saturating_add(taker.chunk.get()));
        let span = ByteRange { end, ..rest };
        let done = taker.begins + taker.rate.time_for(Bytes::new(span.len()));
        (silence > done).then_some(span)
    }

    /// A request that is out on the link already will come to these bytes by itself, sooner than
    /// the answer to another one could.
    fn runs_on_into(&self, now: Instant, taker: &Taker, rest: ByteRange) -> bool {
        let pause = self.pause(now, taker.id);
        self.on_link(taker.id).any(|live| {
            let from = live.until.max(live.position);
            let is_before = from <= rest.start && live.asked.end >= rest.end;
            is_before && self.catch_up(now, taker.id, from, rest.start) <= pause
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
        let is_spared = |link: &Link| !link.facts.is_reserve();
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
}
