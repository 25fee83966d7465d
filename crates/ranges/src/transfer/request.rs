//! Requests that are out: how one is made, how far it is let run, and when nothing of it is wanted
//! any more.

use tabane_base::{Bytes, Duration, Instant};

use super::{Command, Method, Request, RequestId, SourceId, Transfer};
use crate::link::LinkId;
use crate::rule::Rule;
use crate::span::ByteRange;

/// A request that is out.
#[derive(Clone, Debug)]
pub(super) struct Live {
    pub(super) link: LinkId,
    pub(super) source: SourceId,
    pub(super) method: Method,
    /// What the server was asked to send, or said it would.
    pub(super) asked: ByteRange,
    /// Where the next byte belongs.
    pub(super) position: u64,
    /// What lies from here on is left to others; the server does not know and sends on.
    pub(super) until: u64,
    pub(super) sent_at: Instant,
    /// When the answer was expected.
    pub(super) due_at: Instant,
    /// The last sign of it.
    pub(super) heard_at: Instant,
    pub(super) answered_at: Option<Instant>,
}

impl Live {
    /// What it still has to bring.
    pub(super) fn rest(&self) -> ByteRange {
        ByteRange {
            start: self.position,
            end: self.until,
        }
    }

    /// How much that is.
    pub(super) fn outstanding(&self) -> Bytes {
        Bytes::new(self.rest().len())
    }
}

impl Transfer {
    pub(super) fn on_link(&self, link: LinkId) -> impl Iterator<Item = &Live> {
        self.live.values().filter(move |live| live.link == link)
    }

    pub(super) fn start(&mut self, now: Instant, link: LinkId, method: Method, span: ByteRange) {
        let Some(source) = self.source_for(now, link) else {
            return;
        };
        let id = RequestId(self.next_request);
        self.next_request += 1;
        let is_plain = self.sources[source.0 as usize].plain || method == Method::Head;
        let asked = if is_plain { ByteRange::from(0) } else { span };
        // Sources have tags of their own, so where a digest tells, no tag is asked for.
        let version = self.version.as_ref().filter(|_| !self.settings.by_digest);
        let tag = version.and_then(|version| version.tag.as_ref());
        let request = Request {
            id,
            link,
            source,
            method,
            range: (!is_plain).then_some(asked),
            if_range: tag.filter(|_| !is_plain).cloned(),
        };
        let until = self.length().map_or(asked.end, |end| asked.end.min(end));
        let ahead = self.on_link(link).map(Live::outstanding).sum();
        let known = self.links.get(&link).and_then(|link| link.rate(now));
        let ahead = known.map_or(Duration::ZERO, |rate| rate.time_for(ahead));
        let due_at = now + ahead.max(self.latency(link));
        self.live.insert(
            id,
            Live {
                link,
                source,
                method,
                asked,
                position: asked.start,
                until,
                sent_at: now,
                due_at,
                heard_at: now,
                answered_at: None,
            },
        );
        self.commands.push_back(Command::Start(request));
    }

    /// Drops a request of which nothing is wanted any more.
    pub(super) fn cancel(&mut self, now: Instant, id: RequestId) {
        if self.remove(now, id).is_some() {
            self.commands.push_back(Command::Cancel(id));
        }
    }

    pub(super) fn remove(&mut self, now: Instant, id: RequestId) -> Option<Live> {
        let live = self.live.remove(&id)?;
        self.is_dirty = true;
        // To wait for an answer says nothing of a rate.
        let is_idle = self
            .on_link(live.link)
            .all(|live| live.answered_at.is_none());
        if let Some(link) = self.links.get_mut(&live.link) {
            if is_idle {
                link.on_idle();
            }
            let weight = link.facts.weight;
            if weight > 0.0 && weight < 1.0 {
                let rest = tabane_base::scale(now - live.sent_at, 1.0 / weight - 1.0);
                link.rests_until = now + rest;
            }
        }
        Some(live)
    }

    /// Requests whose bytes are all here, or on their way elsewhere.
    pub(super) fn drop_useless(&mut self, now: Instant) {
        let bodies = self.live.iter().filter(|(_, live)| {
            live.method == Method::Get
                && live.position < live.asked.end
                && self.received.first_missing(live.position) >= live.until
        });
        let reached: Vec<RequestId> = bodies.map(|(id, _)| *id).collect();
        for id in reached {
            match self.run_on(now, id) {
                Some(until) => {
                    if let Some(live) = self.live.get_mut(&id) {
                        live.until = until;
                    }
                }
                None => self.cancel(now, id),
            }
        }
    }

    /// A request has come to where its own bytes end, but goes on. How far that is worth while: the
    /// bytes that follow may be late where they were asked for, and to stop costs a connection.
    fn run_on(&self, now: Instant, id: RequestId) -> Option<u64> {
        let live = self.live.get(&id)?;
        let link = self.links.get(&live.link)?;
        link.rate(now)?;
        let end = live.asked.end.min(self.length().unwrap_or(u64::MAX));
        let next = self.received.first_missing(live.position);
        let others = self
            .on_link(live.link)
            .filter(|other| other.answered_at.is_some() && other.asked != live.asked);
        let busy: Bytes = others.map(Live::outstanding).sum();
        if next >= end || link.facts.metered || self.settings.rule != Rule::Tabane {
            return None;
        }
        let gap = *self
            .received
            .missing(ByteRange { start: next, end })
            .first()?;
        let catch_up = self.catch_up(now, live.link, live.position, next);
        let is_worth = if busy == Bytes::ZERO {
            catch_up <= self.pause(now, live.link)
        } else {
            // What else is asked of the link has to wait meanwhile.
            let rate = link.pace(now)?;
            let done = catch_up.saturating_add(rate.time_for(busy + Bytes::new(gap.len())));
            let holder = self.holder(live.link, next);
            holder.is_none_or(|holder| self.prediction(now, holder).0 > done)
        };
        is_worth.then_some(gap.end)
    }

    /// Bytes that are neither here nor asked for.
    pub(super) fn unassigned(&self) -> Vec<ByteRange> {
        let end = self.length().unwrap_or(0);
        let mut taken = self.received.clone();
        for live in self.live.values() {
            taken.insert(live.rest());
        }
        taken.missing(ByteRange { start: 0, end })
    }
}
