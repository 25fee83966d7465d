//! One session: a coordinator that owns components, calls them in a fixed order, and passes
//! values between them. It computes nothing itself; see the modules it names.

mod admission;
mod application;
mod classes;
mod contact;
mod data;
mod deal;
mod decision;
mod fill;
mod frames;
mod paths;
mod receive;
mod retired;
mod settle;
mod timers;
mod transmit;

use std::collections::VecDeque;
use std::net::SocketAddr;

use rustls::Side;
use tabane_base::{Bytes, Instant};

use crate::close::CloseReason;
use crate::config::{MAX_PATHS, SessionConfig};
use crate::datagrams::Datagrams;
use crate::drops::Drops;
use crate::event::{Event, TimerReason};
use crate::handshake::{Agreed, Handshake};
use crate::id::{ConnectionId, PathId};
use crate::identity::PublicKey;
use crate::lane::Lanes;
use crate::memory_pool::{Part, SessionPool};
use crate::overflow::Overflow;
use crate::parameters::Parameters;
use crate::path::{News, Path, Paths};
use crate::reading::Reading;
use crate::rest::Shedding;
use crate::scheduler::PathView;
use crate::secret_rng::SecretRng;
use crate::snapshot::{ClosedPaths, SessionSnapshot, SessionStatus};
use crate::stream::Streams;
use crate::trace::{Trace, TraceLog};
use crate::transmit::TransmitBatch;

use admission::Admission;
use contact::Contact;
pub use paths::PathError;
use retired::Retired;

/// What a stream may hold unacknowledged beside what its paths can use. No more: programs take for
/// sent what lies here.
const SEND_FLOOR: Bytes = Bytes::kilo(32);

/// How far the session's end has got.
#[derive(Debug)]
enum Ending {
    /// The good-bye has still to leave.
    Closing(CloseReason),
    Closed,
}

/// Session-level frames that are due.
#[derive(Debug, Default)]
struct Due {
    hello: bool,
    admitted: bool,
    go_away: bool,
    abandon: VecDeque<PathId>,
}

/// A session with one other end. See the crate's documentation for how to drive it.
pub struct Session {
    side: Side,
    config: SessionConfig,
    rng: SecretRng,
    contact: Contact,
    admission: Admission,
    /// The client has been asked to open nothing new [P-9.5]; it may hear so before it is let in.
    sent_away: bool,
    /// `None` while it lives.
    ending: Option<Ending>,
    local: ConnectionId,
    peer: Parameters,
    paths: Paths,
    next_path: u32,
    retired: Retired,
    closed_paths: ClosedPaths,
    streams: Streams,
    datagrams: Datagrams,
    lanes: Lanes,
    overflow: Overflow,
    /// Scratch for the scheduler's views of paths, kept for its memory.
    views: Vec<PathView>,
    due: Due,
    events: VecDeque<Event>,
    started_at: Instant,
    last_received_at: Instant,
    /// When data of the application last left or came.
    data_at: Instant,
    /// When everything had left that window, pacer and scheduler let out.
    drained_at: Instant,
    /// What streams may hold follows the paths' windows, which may have moved since it was set.
    windows_moved: bool,
    /// A stream packet last went in this poll's turn; datagrams and streams alternate.
    datagram_turn: bool,
    shedding: Shedding,
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
            lanes: Lanes::new(config.scheduler),
            overflow: Overflow::new(now),
            views: Vec::with_capacity(MAX_PATHS),
            config,
            rng: SecretRng::new(seed),
            contact: Contact::Handshaking(Box::new(handshake)),
            admission: Admission::Applying { token },
            sent_away: false,
            ending: None,
            local,
            peer: Parameters::default(),
            paths: Paths::default(),
            next_path: 0,
            retired: Retired::default(),
            closed_paths: ClosedPaths::default(),
            due: Due::default(),
            events: VecDeque::new(),
            started_at: now,
            last_received_at: now,
            data_at: now,
            drained_at: now,
            windows_moved: false,
            datagram_turn: false,
            shedding: Shedding::new(now),
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
        if self.side == Side::Server && self.is_established() && self.admission.grant() {
            self.due.admitted = true;
            self.events.push_back(Event::Connected);
            self.last_received_at = now;
        }
    }

    /// Server: asks the client to open nothing new here, because this end is about to go down;
    /// what is open goes on [P-9.5]. Clients that do not understand it are left in peace.
    pub fn send_away(&mut self) {
        let is_understood = self.side == Side::Server && self.peer.go_away;
        if is_understood && self.is_connected() && !std::mem::replace(&mut self.sent_away, true) {
            self.due.go_away = true;
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
        let is_admitted = self.admission.is_granted();
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
        self.is_established() && self.admission.is_granted()
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
        let open: u64 = self.paths.iter().map(Path::lost_for_good).sum();
        open + self.closed_paths.lost_packets
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
            closed_paths: self.closed_paths,
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
        self.ending.is_none() && self.contact.agreement().is_some()
    }

    pub(crate) const fn reset_token(&self) -> Option<[u8; 16]> {
        self.peer.reset_token
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
        self.peer = agreed.parameters.clone();
        self.contact.agree(agreed, self.side == Side::Client);
        let index = self.add_path(now, PathId(0), tuple);
        self.next_path = 1;
        self.paths[index].ask_sign_of_life();
        self.due.hello = self.side == Side::Client;
        if validated {
            self.paths[index].activate(now, rtt);
            self.events.push_back(Event::PathUp(PathId(0)));
        } else {
            self.challenge(now, index, tuple);
        }
        self.review_send_limit();
    }

    /// Whether paths are measured by packets of their own [P-10.1].
    fn takes_probes(&self) -> bool {
        self.is_connected() && self.config.probes && self.peer.probes > 0
    }

    /// A stream may hold what all paths together can have on their way, twice, and what the near
    /// ones deliver while the farthest one's is under way.
    fn review_send_limit(&mut self) {
        let windows: Bytes = self.paths.iter().map(Path::cwnd).sum();
        let farthest = self.paths.iter().map(|path| path.rtt().smoothed()).max();
        let farthest = farthest.unwrap_or_default();
        self.streams.set_rtt(farthest);
        // A fresh path's rate is a guess: none has more to show than what was acknowledged of it
        // and what it may have in flight.
        let delivered = |path: &Path| {
            let most = path.totals().acked + path.cwnd();
            path.rate().amount_in(farthest).min(most)
        };
        let delivered: Bytes = self.paths.iter().map(delivered).sum();
        let wanted = windows + windows + delivered + SEND_FLOOR;
        self.streams
            .set_send_limit(wanted.min(self.config.send_memory));
    }
}
