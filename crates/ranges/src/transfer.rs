//! A file on its way: requests, what has arrived, and of which version it is.
//!
//! Driven: `handle_*` for what comes from outside, then [`Transfer::poll_event`] and
//! [`Transfer::poll_command`] until both are empty, then [`Transfer::poll_timeout`]. Events come
//! first: after [`Event::Restarted`] nothing that was handed over before counts.
//!
//! Which link is given what is decided in `share` (ours, by what `outlook` predicts) and `equal`
//! (the paper's); what becomes of answers that are not what was hoped for in `trouble`.

use std::collections::{BTreeMap, VecDeque};

use tabane_base::{Bytes, Duration, Instant, Rate};
use thiserror::Error;

use crate::answer::{EntityTag, Version};
use crate::link::{Link, LinkFacts, LinkId};
use crate::rule::Rule;
use crate::span::{Span, Spans};

mod equal;
mod opened;
mod outlook;
mod request;
mod share;
mod trouble;

use request::Live;
use trouble::{Pair, Source};

/// While requests are out, predictions are looked at so often.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// After data, not more often than this: what a look costs must not grow with the rate.
const LOOK_LEAST: Duration = Duration::from_millis(10);
/// A request that is not answered within this has failed.
const ANSWER_TIME: Duration = Duration::from_secs(30);
/// A body that stands still for this has failed.
const SILENCE_TIME: Duration = Duration::from_secs(20);

/// A request, by a number that is never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// One of the places where the file can be had, in the caller's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SourceId(pub u32);

/// In which order bytes are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Any: they go into a file.
    Any,
    /// One after another; what is early waits in `window` bytes of memory. What would not
    /// fit is left in its connection: see [`Transfer::wants`].
    Stream {
        /// How far ahead of what was consumed bytes may be asked for.
        window: Bytes,
    },
}

/// How a transfer is to be done.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How it is divided among links.
    pub rule: Rule,
    /// Where it goes.
    pub order: Order,
    /// Somebody checks the whole file's digest at the end, so equal lengths are enough to take
    /// answers for the same file's.
    pub by_digest: bool,
    /// How many places it can be had from.
    pub sources: u32,
    /// Given up after so long without one byte.
    pub patience: Duration,
}

/// What to ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// The bytes.
    Get,
    /// The head only.
    Head,
}

/// A request to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its number.
    pub id: RequestId,
    /// By which link.
    pub link: LinkId,
    /// Of which source.
    pub source: SourceId,
    /// What to ask for.
    pub method: Method,
    /// Which bytes; `None`: no `Range` header, because this source does not understand it.
    pub range: Option<Span>,
    /// For `If-Range`, where there is a range.
    pub if_range: Option<EntityTag>,
}

/// What the driver is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Make a request.
    Start(Request),
    /// Drop a request: nothing of it is wanted any more.
    Cancel(RequestId),
}

/// What the driver may want to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The first answer came; ranges are of this version from here on.
    Begun(Version),
    /// What was handed over is void: the file has changed, or cannot be told from another. It
    /// begins anew.
    Restarted,
    /// Every byte was handed over.
    Complete,
    /// It comes to nothing.
    Failed(Failure),
}

/// Why a transfer came to nothing.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Failure {
    /// The server said no.
    #[error("the server answered with status {0}")]
    Refused(u16),
    /// The server asks for more patience than there is.
    #[error("the server is busy (status {status}) and asks to come back later")]
    Busy {
        /// 429, 503, …
        status: u16,
    },
    /// The answers contradict themselves.
    #[error("the server's answers contradict each other")]
    Garbled,
    /// The file changed while it was fetched, and what was consumed cannot be taken back.
    #[error("the file changed while it was fetched")]
    Changed,
    /// No connection came to an answer.
    #[error("no link reaches the server")]
    Unreachable,
    /// Nothing came for as long as patience lasts.
    #[error("nothing has come for {} s", .0.as_secs())]
    Silent(Duration),
    /// There was no link for as long as patience lasts.
    #[error("there is no link to fetch by")]
    NoLink,
}

/// Whether to read an answer's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Read it.
    Take,
    /// Drop it; the request is over.
    Drop,
}

/// What went wrong with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The connection failed, or broke.
    Broken,
    /// It will not work another time either: no such name, a certificate that is not valid.
    Hopeless,
}

/// Bytes of a body that are new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where they belong.
    pub offset: u64,
    /// Where they begin in what arrived.
    pub skip: usize,
    /// How many.
    pub len: usize,
}

/// A file on its way.
#[derive(Debug)]
pub struct Transfer {
    settings: Settings,
    links: BTreeMap<LinkId, Link>,
    sources: Vec<Source>,
    pairs: BTreeMap<(LinkId, SourceId), Pair>,
    live: BTreeMap<RequestId, Live>,
    next_request: u64,
    version: Option<Version>,
    /// One request at a time: the server knows no ranges, or its versions cannot be told apart.
    single: bool,
    received: Spans,
    /// Everything below was consumed by whoever reads the stream.
    consumed: u64,
    /// F-H: what HEAD said is known, or it is known to be of no use.
    head_done: bool,
    restarts: u32,
    busy_in_a_row: u32,
    progress_at: Instant,
    looked_at: Instant,
    /// Something happened that decisions depend on.
    is_dirty: bool,
    is_over: bool,
    last_refusal: Option<Failure>,
    commands: VecDeque<Command>,
    events: VecDeque<Event>,
}

impl Transfer {
    /// A transfer from the beginning.
    #[must_use]
    pub fn new(now: Instant, settings: Settings) -> Self {
        let sources = (0..settings.sources.max(1))
            .map(|_| Source::default())
            .collect();
        Self {
            head_done: settings.rule != Rule::FirstHead,
            settings,
            links: BTreeMap::new(),
            sources,
            pairs: BTreeMap::new(),
            live: BTreeMap::new(),
            next_request: 0,
            version: None,
            single: false,
            received: Spans::default(),
            consumed: 0,
            restarts: 0,
            busy_in_a_row: 0,
            progress_at: now,
            looked_at: now,
            is_dirty: true,
            is_over: false,
            last_refusal: None,
            commands: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// A transfer of which something is there already, of a version that can be split. Not for
    /// streams.
    #[must_use]
    pub fn resume(now: Instant, settings: Settings, version: Version, received: Spans) -> Self {
        let mut transfer = Self::new(now, settings);
        if version.can_be_split(transfer.settings.by_digest) {
            transfer.version = Some(version);
            transfer.received = received;
            transfer.head_done = true;
        }
        transfer
    }

    /// A link is there, or is to be used in another way.
    pub fn handle_link(&mut self, _now: Instant, id: LinkId, facts: LinkFacts) {
        match self.links.get_mut(&id) {
            Some(link) => link.set_facts(facts),
            None => {
                self.links.insert(id, Link::new(facts));
            }
        }
        self.is_dirty = true;
    }

    /// A link is gone, and its requests with it.
    pub fn handle_link_gone(&mut self, now: Instant, id: LinkId) {
        self.links.remove(&id);
        self.pairs.retain(|(link, _), _| *link != id);
        let gone = self.live.iter().filter(|(_, live)| live.link == id);
        let gone: Vec<RequestId> = gone.map(|(id, _)| *id).collect();
        for request in gone {
            self.cancel(now, request);
            self.on_interrupted();
        }
        self.is_dirty = true;
    }

    /// Bytes of a body arrived; tells which of them are new, and where they belong.
    pub fn handle_data(&mut self, now: Instant, id: RequestId, len: usize) -> Vec<Piece> {
        let Some(live) = self.live.get_mut(&id) else {
            return Vec::new();
        };
        let start = live.position;
        // A body longer than its head said: the rest is nobody's.
        let end = start.saturating_add(len as u64).min(live.asked.end);
        live.position = end;
        live.heard_at = now;
        let arrived = Span { start, end };
        if let Some(link) = self.links.get_mut(&live.link) {
            link.on_data(now, Bytes::from(len));
        }
        let fresh = self.received.missing(arrived);
        if !fresh.is_empty() {
            self.received.insert(arrived);
            self.on_progress(now, id);
        }
        if self.received.first_missing(end) >= self.live[&id].until {
            self.is_dirty = true;
        }
        let piece = |span: Span| Piece {
            offset: span.start,
            skip: (span.start - start) as usize,
            len: span.len() as usize,
        };
        fresh.into_iter().map(piece).collect()
    }

    /// A body is at its end.
    pub fn handle_end(&mut self, now: Instant, id: RequestId) {
        let Some(live) = self.live.get(&id) else {
            return;
        };
        let end = live.position;
        match (&mut self.version, live.asked.end) {
            // The only one there is told its length by ending.
            (Some(version), u64::MAX) if version.length.is_none() => version.length = Some(end),
            (_, asked) if end < asked => return self.handle_fault(now, id, Fault::Broken),
            _ => {}
        }
        self.remove(now, id);
    }

    /// Everything below `position` was consumed by whoever reads the stream.
    pub fn handle_consumed(&mut self, _now: Instant, position: u64) {
        self.consumed = self.consumed.max(position);
        self.is_dirty = true;
    }

    /// The next command.
    pub fn poll_command(&mut self, now: Instant) -> Option<Command> {
        if self.commands.is_empty() && !self.is_over {
            let is_due = now - self.looked_at >= LOOK_LEAST;
            if self.is_dirty || is_due {
                self.is_dirty = false;
                self.looked_at = now;
                self.look(now);
            }
        }
        self.commands.pop_front()
    }

    /// The next event. Events of a command's making come with the next round.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Whether to read on in a body: not where there is no room for it yet.
    #[must_use]
    pub fn wants(&self, id: RequestId) -> bool {
        self.live.get(&id).is_some_and(|live| !self.is_held(live))
    }

    /// When [`poll_command`](Self::poll_command) has something to do at the latest.
    #[must_use]
    pub fn poll_timeout(&self) -> Instant {
        if self.is_over {
            return Instant::NEVER;
        }
        if !self.live.is_empty() {
            return self.looked_at + LOOK_INTERVAL;
        }
        let pauses = self.pairs.values().map(|pair| pair.blocked_until);
        let pauses = pauses.chain(self.sources.iter().map(|source| source.blocked_until));
        let pauses = pauses.chain(self.links.values().map(|link| link.rests_until));
        let next = pauses.filter(|at| *at > self.looked_at).min();
        next.unwrap_or(Instant::NEVER)
            .min(self.progress_at + self.settings.patience)
    }

    /// What has arrived.
    #[must_use]
    pub fn received(&self) -> &Spans {
        &self.received
    }

    /// Of which version it is.
    #[must_use]
    pub fn version(&self) -> Option<&Version> {
        self.version.as_ref()
    }

    /// Whether what has arrived can be continued after an interruption.
    #[must_use]
    pub fn can_be_resumed(&self) -> bool {
        let version = self.version.as_ref();
        !self.single && version.is_some_and(|version| version.can_be_split(self.settings.by_digest))
    }

    /// How fast a link is, as far as it is known.
    #[must_use]
    pub fn rate(&self, now: Instant, link: LinkId) -> Option<Rate> {
        self.links.get(&link)?.rate(now)
    }

    /// How many requests are out on a link.
    #[must_use]
    pub fn requests(&self, link: LinkId) -> usize {
        self.on_link(link).count()
    }

    fn on_link(&self, link: LinkId) -> impl Iterator<Item = &Live> {
        self.live.values().filter(move |live| live.link == link)
    }

    /// The file's end, where it is known.
    fn length(&self) -> Option<u64> {
        self.version.as_ref()?.length
    }

    fn look(&mut self, now: Instant) {
        let held = self.live.iter().filter(|(_, live)| self.is_held(live));
        let held: Vec<RequestId> = held.map(|(id, _)| *id).collect();
        for id in held {
            if let Some(live) = self.live.get_mut(&id) {
                live.heard_at = now;
            }
        }
        self.check_silence(now);
        if self.has_all() {
            return self.finish(Event::Complete);
        }
        self.drop_useless(now);
        if self.give_up(now) {
            return;
        }
        let is_known = self.version.is_some() && !self.single && self.length().is_some();
        match self.settings.rule {
            _ if !is_known => self.open(now),
            Rule::Tabane => self.share(now),
            Rule::FirstHead | Rule::FirstPartial { .. } => self.divide(now),
        }
    }

    /// A request that waits for the reader: its silence says nothing.
    fn is_held(&self, live: &Live) -> bool {
        match self.settings.order {
            Order::Any => false,
            Order::Stream { window } => live.position >= self.consumed.saturating_add(window.get()),
        }
    }

    fn has_all(&self) -> bool {
        let end = self.length();
        end.is_some_and(|end| self.received.first_missing(0) >= end)
    }

    fn finish(&mut self, event: Event) {
        self.is_over = true;
        let live = std::mem::take(&mut self.live);
        self.commands.extend(live.into_keys().map(Command::Cancel));
        self.events.push_back(event);
    }

    /// The first request, or the only one that there may be at a time.
    fn open(&mut self, now: Instant) {
        let open: Vec<LinkId> = self.live.values().map(|live| live.link).collect();
        let hedge = |live: &Live| {
            let patience = (3 * self.latency(live.link)).max(Duration::from_secs(1));
            live.answered_at.is_none() && now - live.sent_at >= patience
        };
        // A link that does not answer must not be what everything waits for.
        if !open.is_empty() && (self.single || !self.live.values().all(hedge)) {
            return;
        }
        let candidates = self.usable(now);
        let Some(link) = candidates.into_iter().find(|link| !open.contains(link)) else {
            return;
        };
        if !self.head_done {
            self.start(now, link, Method::Head, Span { start: 0, end: 0 });
            return;
        }
        let mut span = Span::from(self.received.first_missing(0));
        if self.version.is_none()
            && let Rule::FirstPartial { threshold } = self.settings.rule
        {
            span.end = threshold.get();
        }
        if let Some(link) = self.links.get(&link) {
            let most = link.allowance(Bytes::ZERO).get();
            span.end = span.end.min(span.start.saturating_add(most));
        }
        self.start(now, link, Method::Get, span);
    }

    fn start(&mut self, now: Instant, link: LinkId, method: Method, span: Span) {
        let Some(source) = self.source_for(now, link) else {
            return;
        };
        let id = RequestId(self.next_request);
        self.next_request += 1;
        let is_plain = self.sources[source.0 as usize].plain || method == Method::Head;
        let asked = if is_plain { Span::from(0) } else { span };
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
    fn cancel(&mut self, now: Instant, id: RequestId) {
        if self.remove(now, id).is_some() {
            self.commands.push_back(Command::Cancel(id));
        }
    }

    fn remove(&mut self, now: Instant, id: RequestId) -> Option<Live> {
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
    fn drop_useless(&mut self, now: Instant) {
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
        let gap = *self.received.missing(Span { start: next, end }).first()?;
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
    fn unassigned(&self) -> Vec<Span> {
        let end = self.length().unwrap_or(0);
        let mut taken = self.received.clone();
        for live in self.live.values() {
            taken.insert(live.rest());
        }
        taken.missing(Span { start: 0, end })
    }
}
