//! A file on its way: requests, what has arrived, and of which version it is.
//!
//! Driven: `handle_*` for what comes from outside, then [`Transfer::poll_event`] and
//! [`Transfer::poll_command`] until both are empty, then [`Transfer::poll_timeout`]. Events come
//! first: after [`Event::Restarted`] nothing that was handed over before counts.
//!
//! What is said to and by the driver stands in `dialogue`. Which link is given what is decided in
//! `share` (ours, by what `outlook` predicts) and `equal` (the paper's), and carried out in
//! `request`; what becomes of answers that are not what was hoped for in `trouble`.

use std::collections::{BTreeMap, VecDeque};

use tabane_base::{Bytes, Duration, Instant, Rate};

use crate::answer::Version;
use crate::link::{Link, LinkId, LinkLimits};
use crate::rule::Rule;
use crate::span::{ByteRange, Spans};

mod dialogue;
mod equal;
mod opened;
mod outlook;
mod request;
mod share;
mod trouble;

pub use dialogue::{
    BodyUse, Command, Event, Failure, Fault, Method, Order, Piece, Request, RequestId, Settings,
    SourceId,
};
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

    /// A link is there, or is to be used in another way. One that is liked less than before, and
    /// not needed, is left at once.
    pub fn handle_link(&mut self, now: Instant, id: LinkId, facts: LinkLimits) {
        match self.links.get_mut(&id) {
            Some(link) => {
                let before = link.facts.rank();
                link.set_facts(facts);
                let is_worse = link.facts.rank() > before;
                if is_worse && self.can_be_resumed() && !self.usable(now).contains(&id) {
                    self.leave(now, id);
                }
            }
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
        self.leave(now, id);
        self.is_dirty = true;
    }

    /// Drops what is asked of a link.
    fn leave(&mut self, now: Instant, id: LinkId) {
        let asked = self.live.iter().filter(|(_, live)| live.link == id);
        let asked: Vec<RequestId> = asked.map(|(id, _)| *id).collect();
        for request in asked {
            self.cancel(now, request);
            self.on_interrupted();
        }
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
        let arrived = ByteRange { start, end };
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
        let piece = |span: ByteRange| Piece {
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
            self.progress_at = now;
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
            self.start(now, link, Method::Head, ByteRange { start: 0, end: 0 });
            return;
        }
        let mut span = ByteRange::from(self.received.first_missing(0));
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
}
