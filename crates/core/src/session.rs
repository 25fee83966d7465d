//! One session: a coordinator that owns components, calls them in a fixed order, and passes
//! values between them. It computes nothing itself; see the modules it names.

mod admission;
mod application;
mod classes;
mod contact;
mod data;
mod decision;
mod due;
mod fill;
mod frames;
mod paths;
mod receive;
mod settle;
mod timers;
mod transmit;

use std::collections::VecDeque;
use std::net::SocketAddr;

use rustls::Side;
use tabane_base::{Bytes, Instant};

use crate::close::CloseReason;
use crate::config::SessionConfig;
use crate::datagrams::Datagrams;
use crate::drops::Drops;
use crate::event::{Event, TimerReason};
use crate::handshake::{Agreed, Handshake};
use crate::id::ConnectionId;
use crate::identity::PublicKey;
use crate::lane::Lanes;
use crate::memory_pool::{Part, SessionPool};
use crate::parameters::Parameters;
use crate::path::{News, Path, Paths};
use crate::reading::Reading;
use crate::snapshot::{SessionSnapshot, SessionStatus};
use crate::stream::Streams;
use crate::trace::{Trace, TraceLog};
use crate::transmit::TransmitBatch;

use contact::{Agreement, Contact};
use due::Due;
pub use paths::PathError;

/// How far the session's end has got.
#[derive(Debug)]
enum Ending {
    /// The good-bye has still to leave.
    Closing(CloseReason),
    Closed,
}

/// A session with one other end. See the crate's documentation for how to drive it.
pub struct Session {
    side: Side,
    config: SessionConfig,
    contact: Contact,
    /// `None` while it lives.
    ending: Option<Ending>,
    local: ConnectionId,
    paths: Paths,
    streams: Streams,
    datagrams: Datagrams,
    lanes: Lanes,
    due: Due,
    events: VecDeque<Event>,
    last_received_at: Instant,
    drops: Drops,
    news: News,
    trace: Option<Box<Trace>>,
}

impl Session {
    pub(crate) fn new(
        now: Instant,
        config: SessionConfig,
        own: &Parameters,
        handshake: Handshake,
        (side, local): (Side, ConnectionId),
        token: Option<Vec<u8>>,
        seed: [u8; 32],
    ) -> Self {
        Self {
            side,
            streams: Streams::new(
                side == Side::Client,
                own,
                (config.receive_memory, Part::none_of(&config.receive_pool)),
                config.credit(),
                SessionPool::new(config.send_pool.clone()),
            ),
            datagrams: Datagrams::new(config.datagram_wait, Part::none_of(&config.receive_pool)),
            lanes: Lanes::new(now, config.scheduler),
            config,
            contact: Contact::Handshaking {
                handshake: Box::new(handshake),
                token,
                since: now,
            },
            ending: None,
            local,
            paths: Paths::new(now, seed),
            due: Due::default(),
            events: VecDeque::new(),
            last_received_at: now,
            drops: Drops::default(),
            news: News::default(),
            trace: None,
        }
    }

    // Commands.

    /// Records what happens from here on, packet by packet; of more than `events` between two
    /// calls of [`take_trace`](Self::take_trace) the latest.
    pub fn start_trace(&mut self, events: usize) {
        self.trace = Some(Box::new(Trace::new(events)));
    }

    /// What was recorded since the last call; nothing where nothing is recorded.
    pub fn take_trace(&mut self) -> TraceLog {
        self.trace
            .as_mut()
            .map(|trace| trace.take())
            .unwrap_or_default()
    }

    /// Whether somebody has this recorded.
    #[must_use]
    pub fn is_traced(&self) -> bool {
        self.trace.is_some()
    }

    /// Records no more.
    pub fn stop_trace(&mut self) {
        self.trace = None;
    }

    /// Server: lets the client in, in answer to [`Event::Authorise`].
    pub fn admit(&mut self, now: Instant) {
        let is_established = self.side == Side::Server && self.is_established();
        let agreement = self.contact.agreement_mut().filter(|_| is_established);
        if agreement.is_some_and(|agreement| agreement.admission.grant()) {
            self.due.admitted();
            self.events.push_back(Event::Connected);
            self.last_received_at = now;
        }
    }

    /// Server: asks the client to open nothing new here, because this end is about to go down;
    /// what is open goes on [P-9.5]. Clients that do not understand it are left in peace.
    pub fn send_away(&mut self) {
        let may_say_so = self.side == Side::Server && self.is_connected();
        let agreement = self.contact.agreement_mut().filter(|_| may_say_so);
        if agreement.is_some_and(|agreement| agreement.peer.go_away && agreement.send_away()) {
            self.due.go_away();
        }
    }

    /// Ends the session; the other end is told on every path.
    pub fn close(&mut self, _now: Instant, reason: CloseReason) {
        if self.ending.is_none() {
            self.events.push_back(Event::Closed(reason.clone()));
            self.ending = Some(Ending::Closing(reason));
        }
    }

    // Outputs.

    /// Appends datagrams that may leave now. `false` when there are none (any more) for now.
    pub fn poll_transmit(&mut self, now: Instant, batch: &mut TransmitBatch) -> bool {
        transmit::poll(self, now, batch)
    }

    /// What happened.
    pub fn poll_event(&mut self) -> Option<Event> {
        if let Some(event) = self.events.pop_front() {
            return Some(event);
        }
        // A stranger's streams are not the application's business.
        let is_admitted = self.contact.is_admitted();
        is_admitted.then(|| self.streams.poll_event()).flatten()
    }

    /// What was measured on a path since its last reading; of each path at most one in 10 ms.
    pub fn poll_reading(&mut self, now: Instant) -> Option<Reading> {
        self.paths
            .iter_mut()
            .find_map(|path| path.take_reading(now))
    }

    /// The driver was not run until `now` although it should have been: what nobody could hear
    /// meanwhile is no path's silence.
    pub fn handle_stall(&mut self, now: Instant) {
        self.paths.iter_mut().for_each(|path| path.on_stall(now));
    }

    /// When [`handle_timeout`](Self::handle_timeout) or
    /// [`poll_transmit`](Self::poll_transmit) has something to do, and what.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<(Instant, TimerReason)> {
        timers::next(self)
    }

    /// Carries out what the time has come for.
    pub fn handle_timeout(&mut self, now: Instant) {
        timers::handle(self, now);
    }

    // Getters.

    /// Whether streams and datagrams flow.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.ending.is_none() && self.contact.is_admitted()
    }

    /// Whether it is over and everything has been said.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        matches!(self.ending, Some(Ending::Closed))
    }

    /// Whose session it is, once proved.
    #[must_use]
    pub fn peer_key(&self) -> Option<PublicKey> {
        self.contact.agreement().map(|agreement| agreement.peer_key)
    }

    /// Where its first path leads to.
    #[must_use]
    pub fn remote(&self) -> Option<SocketAddr> {
        self.paths.first().map(|path| path.tuple().remote)
    }

    /// Has the round trips of paths in use measured, each at most once a second, for whoever looks
    /// at [`Self::snapshot`] next. `true` where that makes something to send.
    pub fn measure_round_trips(&mut self, now: Instant) -> bool {
        let due = self.paths.iter_mut().map(|it| it.measure_round_trip(now));
        due.fold(false, |any, is_due| any | is_due)
    }

    /// Packets that were lost, but for those that arrived after all, over all paths it has had.
    #[must_use]
    pub fn lost_packets(&self) -> u64 {
        self.paths.lost_packets()
    }

    /// What it is doing.
    #[must_use]
    pub fn snapshot(&self, now: Instant) -> SessionSnapshot {
        SessionSnapshot {
            at: now,
            silent_for: now.since(self.last_received_at),
            status: match &self.ending {
                None if self.is_connected() => SessionStatus::Connected,
                None => SessionStatus::Connecting,
                Some(_) => SessionStatus::Closed,
            },
            paths: self.paths.iter().map(Path::snapshot).collect(),
            closed_paths: self.paths.closed(),
            streams: self.streams.len(),
            streams_acked: self.streams.acked(),
            receive_memory: Bytes::from(self.streams.memory()),
            datagrams_queued: Bytes::from(self.datagrams.queued()),
            datagrams_dropped: self.datagrams.dropped(),
            datagrams_held: Bytes::from(self.datagrams.held()),
            key_changes: (self.contact.agreement()).map_or(0, |it| it.keys.generation()),
            drops: self.drops.clone(),
        }
    }

    pub(crate) const fn local_id(&self) -> ConnectionId {
        self.local
    }

    pub(crate) fn is_established(&self) -> bool {
        self.established().is_some()
    }

    /// What the ends have agreed on, while it lives.
    fn established(&self) -> Option<&Agreement> {
        self.contact.agreement().filter(|_| self.ending.is_none())
    }

    pub(crate) fn reset_token(&self) -> Option<[u8; 16]> {
        self.contact.peer()?.reset_token
    }

    /// Ends it without a word: the other end has said so, or does not know it any more.
    pub(crate) fn end(&mut self, reason: CloseReason) {
        if self.ending.replace(Ending::Closed).is_none() {
            self.events.push_back(Event::Closed(reason));
        }
    }

    // What the parts have in common.

    fn establish(&mut self, now: Instant, agreed: Agreed) {
        let (tuple, rtt, validated) = (agreed.tuple, agreed.rtt, agreed.validated);
        self.streams.on_parameters(&agreed.parameters);
        self.contact.agree(agreed, self.side == Side::Client);
        let id = self.paths.next_id();
        let index = self.add_path(now, id, tuple);
        self.paths[index].ask_sign_of_life();
        if self.side == Side::Client {
            self.due.hello();
        }
        if validated {
            self.paths[index].activate(now, rtt);
            self.events.push_back(Event::PathUp(id));
        } else {
            self.paths.challenge(now, index, tuple);
        }
        self.review_send_limit();
    }

    /// Whether paths are measured by packets of their own [P-10.1].
    fn takes_probes(&self) -> bool {
        let takes = |it: &Agreement| it.admission.is_granted() && it.peer.probes > 0;
        self.config.probes && self.established().is_some_and(takes)
    }

    /// What streams may hold follows the paths' windows.
    fn review_send_limit(&mut self) {
        let (farthest, wanted) = self.paths.send_limit();
        self.streams.set_rtt(farthest);
        self.streams
            .set_send_limit(wanted.min(self.config.send_memory));
    }
}
