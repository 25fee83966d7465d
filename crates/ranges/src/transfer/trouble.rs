//! Answers, and what becomes of a transfer where they are not what was hoped for.
//!
//! A link and a source that do not get along are left alone together, for a while or for good; what
//! one edge of a network of servers says must not spoil what another has. Where all have turned
//! out to have another version than the one begun with, the transfer begins anew.

use tabane_base::{Duration, Instant};

use super::{
    ANSWER_TIME, BodyUse, Event, Failure, Fault, Live, Method, Order, RequestId, SILENCE_TIME,
    SourceId, Transfer,
};
use crate::answer::{Answer, EntityTag, Version};
use crate::link::LinkId;
use crate::rule::Rule;
use crate::span::Spans;

/// After a failure a link waits, twice as long each time.
const BACKOFF: Duration = Duration::from_millis(250);
const BACKOFF_MOST: Duration = Duration::from_secs(10);
/// Where nothing was ever answered, so many failures in a row of every link are enough.
const MOST_FAILURES: u32 = 4;
/// A file that changes faster than it can be fetched.
const MOST_RESTARTS: u32 = 5;
/// A server that never has time.
const MOST_BUSY: u32 = 12;
/// Parts shorter than this that were to be longer cost more than they bring.
const LEAST_PART: u64 = 16 * 1024;
/// So many of them in a row, and a source is asked without ranges.
const MOST_SHORT: u32 = 4;

/// A place to have the file from.
#[derive(Clone, Debug)]
pub(super) struct Source {
    /// It does not understand `Range`: it is asked without.
    pub(super) plain: bool,
    pub(super) blocked_until: Instant,
    /// Requests that it wants at a time.
    most: usize,
    /// Parts in a row that were much shorter than asked for.
    short: u32,
}

impl Default for Source {
    fn default() -> Self {
        Self {
            plain: false,
            blocked_until: Instant::EPOCH,
            most: usize::MAX,
            short: 0,
        }
    }
}

/// What a link has seen of a source.
#[derive(Clone, Debug, Default)]
pub(super) struct Pair {
    failures: u32,
    pub(super) blocked_until: Instant,
    /// No more requests, and why.
    ban: Option<Ban>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ban {
    /// Another version than the one begun with, or nonsense: may be mended by beginning anew.
    OtherVersion,
    Refused(u16),
    Garbled,
    Hopeless,
}

impl Transfer {
    /// A request was answered; the body is to be read or not.
    pub fn handle_answer(&mut self, now: Instant, id: RequestId, answer: Answer) -> BodyUse {
        let Some(live) = self.live.get_mut(&id) else {
            return BodyUse::Drop;
        };
        live.heard_at = now;
        live.answered_at = Some(now);
        let latency = now - live.sent_at;
        let (link, source, method) = (live.link, live.source, live.method);
        if let Some(link) = self.links.get_mut(&link) {
            link.on_answer(now, latency);
        }
        self.is_dirty = true;
        if method == Method::Head {
            self.on_head(now, id, answer);
            return BodyUse::Drop;
        }
        let is_taken = match answer {
            Answer::Part {
                first,
                last,
                total,
                tag,
            } => self.on_part(now, id, [first, last, total], tag),
            Answer::Whole { length, tag } => self.on_whole(now, id, length, tag),
            Answer::Outside { total } => self.on_outside(total, id),
            Answer::Busy {
                status,
                retry_after,
            } => {
                self.on_busy(now, link, source, status, retry_after);
                Err(None)
            }
            Answer::Refused { status } => Err(Some(Ban::Refused(status))),
            Answer::Garbled => Err(self.on_garbled(link, source)),
        };
        match is_taken {
            Ok(()) => BodyUse::Take,
            Err(ban) => {
                self.remove(now, id);
                if let Some(ban) = ban {
                    self.ban(link, source, ban);
                }
                BodyUse::Drop
            }
        }
    }

    /// A request failed.
    pub fn handle_fault(&mut self, now: Instant, id: RequestId, fault: Fault) {
        let Some(live) = self.remove(now, id) else {
            return;
        };
        self.on_fault(now, &live, fault);
    }

    fn on_fault(&mut self, now: Instant, live: &Live, fault: Fault) {
        match fault {
            Fault::Hopeless => self.ban(live.link, live.source, Ban::Hopeless),
            Fault::Broken => {
                let pair = self.pairs.entry((live.link, live.source)).or_default();
                pair.failures += 1;
                // The first one after bytes have come may be a server that ends connections.
                let doublings = pair.failures.saturating_sub(1).min(8);
                let pause = BACKOFF.saturating_mul(1 << doublings).min(BACKOFF_MOST);
                pair.blocked_until = now + pause;
            }
        }
        if live.method == Method::Get && live.answered_at.is_some() {
            self.on_interrupted();
        }
    }

    /// Bytes came to an end before their time. Where they cannot be continued, all begins anew.
    pub(super) fn on_interrupted(&mut self) {
        let by_digest = self.settings.by_digest;
        let is_alone = self.single && self.live.is_empty();
        let can_be_matched = self
            .version
            .as_ref()
            .is_some_and(|version| version.tag.is_some() || version.can_be_split(by_digest));
        if is_alone && !can_be_matched && self.version.is_some() {
            self.restart(Failure::Cut);
        }
    }

    /// New bytes: whatever failed before is forgotten.
    pub(super) fn on_progress(&mut self, now: Instant, id: RequestId) {
        self.progress_at = now;
        self.busy_in_a_row = 0;
        let live = &self.live[&id];
        if let Some(pair) = self.pairs.get_mut(&(live.link, live.source)) {
            pair.failures = 0;
        }
    }

    /// Requests that have been silent for too long.
    pub(super) fn check_silence(&mut self, now: Instant) {
        let is_dead = |live: &Live| {
            let limit = match live.answered_at {
                Some(_) => SILENCE_TIME,
                None => ANSWER_TIME,
            };
            now - live.heard_at >= limit
        };
        let dead = self.live.iter().filter(|(_, live)| is_dead(live));
        let dead: Vec<RequestId> = dead.map(|(id, _)| *id).collect();
        for id in dead {
            if let Some(live) = self.live.get(&id).cloned() {
                self.cancel(now, id);
                self.on_fault(now, &live, Fault::Broken);
            }
        }
    }

    /// Ends what leads nowhere, or begins anew; `true`: there is nothing else to do now.
    pub(super) fn give_up(&mut self, now: Instant) -> bool {
        if now - self.progress_at >= self.settings.patience {
            let failure = if self.links.is_empty() {
                Failure::NoLink
            } else {
                Failure::Silent(self.settings.patience)
            };
            self.finish(Event::Failed(failure));
            return true;
        }
        if !self.live.is_empty() {
            return false;
        }
        let ids: Vec<(LinkId, SourceId)> = self
            .links
            .keys()
            .flat_map(|link| (0..self.sources.len()).map(|s| (*link, SourceId(s as u32))))
            .collect();
        let bans: Vec<Option<Ban>> = ids
            .iter()
            .map(|id| self.pairs.get(id).and_then(|pair| pair.ban))
            .collect();
        if !bans.is_empty() && bans.iter().all(Option::is_some) {
            let may_mend = bans.contains(&Some(Ban::OtherVersion));
            if may_mend && self.version.is_some() {
                self.restart(Failure::Changed);
                return self.is_over;
            }
            let failure = self.last_refusal.take().unwrap_or(Failure::Unreachable);
            self.finish(Event::Failed(failure));
            return true;
        }
        let failures = |id: &(LinkId, SourceId)| {
            let pair = self.pairs.get(id);
            pair.is_some_and(|pair| pair.ban.is_some() || pair.failures >= MOST_FAILURES)
        };
        let never_answered = self.version.is_none() && self.busy_in_a_row == 0;
        if never_answered && !ids.is_empty() && ids.iter().all(failures) {
            self.finish(Event::Failed(Failure::Unreachable));
            return true;
        }
        false
    }

    /// The source that a link would ask next, if there is one.
    pub(super) fn source_for(&self, now: Instant, link: LinkId) -> Option<SourceId> {
        let ids = (0..self.sources.len()).map(|index| SourceId(index as u32));
        let usable = ids.filter_map(|id| {
            let source = &self.sources[id.0 as usize];
            let live = self.live.values().filter(|live| live.source == id).count();
            let pair = self.pairs.get(&(link, id));
            let is_free = pair.is_none_or(|p| p.ban.is_none() && p.blocked_until <= now);
            let is_open = source.blocked_until <= now && live < source.most;
            (is_free && is_open).then_some((live, id))
        });
        // Others than the first only where they are sure to have the same file, or fail over.
        let by_digest = self.settings.by_digest;
        let next = if by_digest {
            usable.min()
        } else {
            usable.min_by_key(|(_, id)| *id)
        };
        next.map(|(_, id)| id)
    }

    fn on_head(&mut self, now: Instant, id: RequestId, answer: Answer) {
        let Some(live) = self.remove(now, id) else {
            return;
        };
        self.head_done = true;
        match answer {
            Answer::Whole { length, tag } if length.is_some() => {
                self.begin(Version { length, tag });
            }
            Answer::Busy {
                status,
                retry_after,
            } => {
                self.head_done = false;
                self.on_busy(now, live.link, live.source, status, retry_after);
            }
            // HEAD may be forbidden where GET is not.
            _ => {}
        }
    }

    pub(super) fn begin(&mut self, version: Version) {
        self.single |= !version.can_be_split(self.settings.by_digest);
        self.events.push_back(Event::Begun(version.clone()));
        self.version = Some(version);
    }

    /// The first answer has come: other requests for the beginning are of no use.
    fn cancel_others(&mut self, now: Instant, id: RequestId) {
        let others = self.live.keys().filter(|other| **other != id);
        let others: Vec<RequestId> = others.copied().collect();
        for other in others {
            self.cancel(now, other);
        }
    }

    fn on_part(
        &mut self,
        now: Instant,
        id: RequestId,
        [first, last, total]: [u64; 3],
        tag: Option<EntityTag>,
    ) -> Result<(), Option<Ban>> {
        let live = &self.live[&id];
        let (link, source, asked) = (live.link, live.source, live.asked);
        if first != asked.start || last >= asked.end || last >= total {
            return Err(self.on_garbled(link, source));
        }
        match &self.version {
            None => {
                let length = Some(total);
                self.begin(Version { length, tag });
                self.cancel_others(now, id);
            }
            Some(version) => {
                if !version.is(Some(total), tag.as_ref(), self.settings.by_digest) {
                    return Err(Some(Ban::OtherVersion));
                }
            }
        }
        self.on_part_length(source, last + 1 - first, asked.end.min(total) - first);
        if let Some(live) = self.live.get_mut(&id) {
            live.asked.end = last + 1;
            live.until = live.until.min(last + 1);
        }
        Ok(())
    }

    /// Parts of a few bytes, again and again, would never come to an end.
    fn on_part_length(&mut self, source: SourceId, came: u64, asked: u64) {
        let source = &mut self.sources[source.0 as usize];
        source.short = match came < asked.min(LEAST_PART) {
            true => source.short + 1,
            false => 0,
        };
        source.plain |= source.short >= MOST_SHORT;
        // The whole comes by one request.
        self.single |= self.sources.iter().all(|source| source.plain);
    }

    fn on_whole(
        &mut self,
        now: Instant,
        id: RequestId,
        length: Option<u64>,
        tag: Option<EntityTag>,
    ) -> Result<(), Option<Ban>> {
        match &self.version {
            None => {
                self.single = true;
                self.begin(Version { length, tag });
                self.cancel_others(now, id);
            }
            Some(version) => {
                let is_same = version.is(length, tag.as_ref(), self.settings.by_digest);
                if !is_same || self.live.len() > 1 {
                    return Err(Some(Ban::OtherVersion));
                }
                // The same file, from its beginning: what is here already is passed over.
                self.single = true;
            }
        }
        if let Some(live) = self.live.get_mut(&id) {
            live.asked.start = 0;
            live.asked.end = length.unwrap_or(u64::MAX);
            live.position = 0;
            live.until = live.asked.end;
        }
        Ok(())
    }

    /// There is no such range: of an empty file none.
    fn on_outside(&mut self, total: Option<u64>, id: RequestId) -> Result<(), Option<Ban>> {
        let live = &self.live[&id];
        let (link, source) = (live.link, live.source);
        match (&self.version, total) {
            (None, Some(0)) => {
                let length = Some(0);
                self.begin(Version { length, tag: None });
                Err(None)
            }
            (Some(version), Some(total)) if version.length != Some(total) => {
                Err(Some(Ban::OtherVersion))
            }
            _ => Err(self.on_garbled(link, source)),
        }
    }

    /// What makes no sense with a range may make sense without.
    fn on_garbled(&mut self, link: LinkId, source: SourceId) -> Option<Ban> {
        let is_plain = std::mem::replace(&mut self.sources[source.0 as usize].plain, true);
        let pair = self.pairs.entry((link, source)).or_default();
        pair.failures += 1;
        match (&self.version, is_plain) {
            (None, false) => None,
            (Some(_), false) => Some(Ban::OtherVersion),
            (_, true) => Some(Ban::Garbled),
        }
    }

    fn on_busy(
        &mut self,
        now: Instant,
        link: LinkId,
        id: SourceId,
        status: u16,
        retry_after: Option<Duration>,
    ) {
        let live = self.live.values().filter(|live| live.source == id).count();
        self.busy_in_a_row += 1;
        let failure = Failure::Busy { status };
        let doublings = self.busy_in_a_row.min(6);
        let pause = retry_after.unwrap_or_else(|| BACKOFF.saturating_mul(1 << doublings));
        let source = &mut self.sources[id.0 as usize];
        source.most = live.saturating_sub(1).max(1);
        // Those that are being answered go on; it is the newcomer that has to wait.
        source.blocked_until = now + pause;
        if pause > self.settings.patience || self.busy_in_a_row > MOST_BUSY {
            source.blocked_until = now;
            self.pairs.entry((link, id)).or_default();
            for (_, pair) in self.pairs.iter_mut().filter(|((_, s), _)| *s == id) {
                pair.ban = Some(Ban::Refused(status));
            }
            let links: Vec<LinkId> = self.links.keys().copied().collect();
            for link in links {
                self.pairs.entry((link, id)).or_default().ban = Some(Ban::Refused(status));
            }
        } else {
            self.progress_at = self.progress_at.max(now + pause);
        }
        self.last_refusal = Some(failure);
    }

    fn ban(&mut self, link: LinkId, source: SourceId, ban: Ban) {
        self.pairs.entry((link, source)).or_default().ban = Some(ban);
        let failure = match ban {
            Ban::Refused(status) => Failure::Refused(status),
            Ban::OtherVersion => Failure::Changed,
            Ban::Garbled => Failure::Garbled,
            Ban::Hopeless => Failure::Unreachable,
        };
        self.last_refusal = Some(failure);
    }

    /// Everything from the beginning, of whatever version there is now; `why` is told where that is
    /// not possible.
    fn restart(&mut self, why: Failure) {
        let is_consumed = matches!(self.settings.order, Order::Stream { .. })
            && self.received.first_missing(0) > 0;
        self.restarts += 1;
        if is_consumed || self.restarts > MOST_RESTARTS {
            self.finish(Event::Failed(why));
            return;
        }
        for pair in self.pairs.values_mut() {
            if pair.ban == Some(Ban::OtherVersion) {
                pair.ban = None;
            }
        }
        self.version = None;
        self.single = false;
        self.received = Spans::default();
        self.head_done = self.settings.rule != Rule::FirstHead;
        self.is_dirty = true;
        self.events.push_back(Event::Restarted);
    }
}
