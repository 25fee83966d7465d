//! Keeps a client's session up: sets it up, opens a path over every link, and begins anew when
//! the session is lost.
//!
//! Owns the patience: how long to wait before trying a link or the relay again. One task, the
//! only reader of the engine's notices.

use std::rc::Rc;

use tabane_base::{Duration, Rng, Seed};
use tabane_core::{
    CloseReason, Event, PathDownReason, PathError, PathId, PathSnapshot, PathStatus,
};
use tokio::time::Instant;

use super::handshakes::{Handshakes, Won, is_final};
use super::link::Link;
use super::roster::Roster;
use super::standing::{Shared, Standing};
use super::{ConnectError, left};
use crate::engine::{Notice, SessionId, Visit};
use crate::journal::Happening;

/// Waits before the relay is tried again: first and longest. A restarting relay is back within a
/// second; a dead one should not be knocked at by all its clients all the time.
const FIRST_BACKOFF: Duration = Duration::from_millis(100);
const LAST_BACKOFF: Duration = Duration::from_secs(5);
/// The longest while the relay says that it is going down: another is about to take its place.
const LAST_BACKOFF_RESTARTING: Duration = Duration::from_secs(1);

pub(super) struct Supervisor {
    shared: Rc<Shared>,
    rng: Rng,
    roster: Roster,
    /// The present session's relay goes down.
    is_sent_away: bool,
}

/// How a session came to its end.
enum End {
    /// By itself.
    Closed(CloseReason),
    /// Another relay takes its place.
    Replaced(CloseReason, Won),
}

impl Supervisor {
    pub(super) fn new(shared: Rc<Shared>) -> Self {
        let word = shared.config.seed.first_chunk::<8>().copied();
        let seed = Seed(u64::from_le_bytes(word.unwrap_or_default()));
        Self {
            roster: Roster::new(shared.config.relays.len()),
            is_sent_away: false,
            shared,
            rng: seed.rng("back-off"),
        }
    }

    /// Sets up a session however long that takes, then as [`run`](Self::run).
    pub(super) async fn run_from_nothing(mut self) {
        match self.reestablish(CloseReason::Finished).await {
            Ok(session) => self.run(session).await,
            Err(reason) => {
                tracing::error!(%reason, "there will be no session");
                self.stand(Standing::Closed(reason));
            }
        }
    }

    /// Looks after `session` and its successors until there can be none.
    pub(super) async fn run(mut self, mut session: SessionId) {
        loop {
            let (reason, next) = match self.attend(session).await {
                End::Closed(reason) => (reason, None),
                End::Replaced(reason, won) => (reason, Some(won)),
            };
            let is_left = next.is_some() && self.is_sent_away;
            if is_left {
                // Before the links forget its paths.
                self.shared.leave(session);
                tracing::info!("what is open goes on by the relay that goes down");
            } else {
                tracing::warn!(%reason, "the session ended");
            }
            self.shared.journal.record(Happening::SessionEnded {
                session: self.shared.number.get(),
                client: None,
                reason: reason.clone(),
            });
            self.shared
                .links
                .borrow_mut()
                .iter_mut()
                .for_each(|link| link.on_session_ended());
            if let Some(won) = next {
                if !is_left {
                    self.shared.say_goodbye(session);
                }
                session = self.adopt(won);
                continue;
            }
            if let (true, Some(relay)) = (is_final(&reason), self.roster.current()) {
                self.roster.on_refused(relay);
            }
            self.stand(Standing::Connecting(reason.clone()));
            match self.reestablish(reason).await {
                Ok(next) => session = next,
                Err(reason) => {
                    tracing::error!(%reason, "there will be no other session");
                    self.stand(Standing::Closed(reason));
                    return;
                }
            }
        }
    }

    /// Sets up a session over every link at once, with the first relay that answers.
    pub(super) async fn establish(&mut self) -> Result<Won, ConnectError> {
        let shared = self.shared.clone();
        let mut handshakes = Handshakes::new(shared.clone(), self.roster.order());
        loop {
            handshakes.step();
            handshakes
                .refusals()
                .for_each(|relay| self.roster.on_refused(relay));
            if handshakes.is_lost() {
                return Err(handshakes.error());
            }
            tokio::select! {
                notice = shared.engine.notice() => {
                    if let Some(won) = handshakes.handle(&notice) {
                        return Ok(won);
                    }
                }
                () = until(handshakes.next_at()) => {}
            }
        }
    }

    /// Makes a session that was set up the one in use.
    pub(super) fn adopt(&mut self, won: Won) -> SessionId {
        let Won { relay, session } = won;
        let shared = &self.shared;
        shared.sessions.set(shared.sessions.get() + 1);
        shared.number.set(shared.config.numbers.next());
        shared.relay.set(Some(relay));
        shared.journal.record(Happening::SessionUp {
            session: shared.number.get(),
            client: None,
        });
        let peer = &shared.config.relays[relay];
        if self.roster.has_several() && self.roster.current() != Some(relay) {
            shared.journal.record(Happening::RelayChosen {
                relay: peer.name.clone(),
            });
            if self.roster.current().is_some() || relay > 0 {
                tracing::warn!("relay {} is used from here on", peer.name);
            }
        }
        self.roster.on_session(Instant::now(), relay);
        self.is_sent_away = false;
        shared.forsaken.set(false);
        self.recognise_first_path(session);
        self.open_paths(session);
        self.warn_of_old_relay(session);
        self.stand(Standing::Connected(session));
        tracing::info!(relay = %peer.key, "session up");
        session
    }

    /// The handshake has made a path of the pair of addresses that it succeeded on.
    fn recognise_first_path(&self, session: SessionId) {
        let Some(snapshot) = self.shared.engine.snapshot(session) else {
            return;
        };
        for path in snapshot.paths {
            let mut links = self.shared.links.borrow_mut();
            if let Some(link) = links.iter_mut().find(|link| link.owns(path.tuple.socket)) {
                link.on_opened(path.id);
                self.on_link_up(link);
                self.shared.engine.visit(session, |visit| {
                    visit.touch();
                    // It was checked when the link was added.
                    let policy = link.policy();
                    let _ = visit.session.set_path_policy(visit.now, path.id, policy);
                });
            }
        }
    }

    /// Opens a path over every link that is due for one.
    fn open_paths(&self, session: SessionId) {
        let shared = &self.shared;
        let config = &shared.config;
        let now = Instant::now();
        let Some(relay) = shared.relay.get() else {
            return;
        };
        let addrs = shared.addrs.borrow();
        let mut links = shared.links.borrow_mut();
        for link in links.iter_mut() {
            if !link.is_due(now) {
                continue;
            }
            if let Err(error) = link.prepare(&shared.engine, &addrs, config.mark) {
                tracing::debug!("{error}");
                link.on_failed(now, error.to_string());
                continue;
            }
            let Some(tuple) = link.candidate(relay) else {
                link.on_failed(now, "no address of a family that the relay has".to_owned());
                continue;
            };
            let opened = shared.engine.visit(session, |visit| {
                visit.touch();
                let path = visit.session.open_path(visit.now, tuple)?;
                let policy = link.policy();
                visit.session.set_path_policy(visit.now, path, policy)?;
                Ok::<_, PathError>(path)
            });
            match opened {
                Some(Ok(path)) => link.on_opened(path),
                Some(Err(error)) => link.on_failed(now, error.to_string()),
                None => return,
            }
        }
        shared.tell_classes(session, &left::paths(&links));
    }

    fn warn_of_old_relay(&self, session: SessionId) {
        let follows = |visit: &mut Visit<'_>| visit.session.follows_classes();
        let follows = self.shared.engine.visit(session, follows);
        if follows == Some(false) && !self.shared.classes.borrow().is_empty() {
            tracing::warn!("the relay is too old for rules: what it sends takes any link");
        }
    }

    /// Looks after the session's paths until it ends, or another relay is to be used: any while
    /// this one is silent on every path, a better one while nothing is under way.
    async fn attend(&mut self, session: SessionId) -> End {
        let shared = self.shared.clone();
        let mut handshakes: Option<Handshakes> = None;
        let mut search = Search::default();
        loop {
            let now = Instant::now();
            let elsewhere = self.is_sent_away || !*shared.reach.borrow();
            if search.turn(now, elsewhere) {
                // What was begun for one purpose does not serve the other.
                handshakes = None;
            }
            if handshakes.is_none() {
                handshakes = self.look_elsewhere(session, &search);
            }
            if let Some(trying) = &mut handshakes {
                trying.step();
                trying
                    .refusals()
                    .for_each(|relay| self.roster.on_refused(relay));
                if trying.is_lost() {
                    handshakes = None;
                    match search.is_on() {
                        true => {
                            search.on_failed(Instant::now());
                            self.forsake();
                        }
                        false => self.roster.on_knock_failed(Instant::now()),
                    }
                }
            }
            let begin_at = match (&handshakes, search.is_on()) {
                (Some(trying), _) => trying.next_at(),
                (None, true) => search.next_at().filter(|_| self.roster.has_several()),
                (None, false) => self.roster.knock_at(),
            };
            tokio::select! {
                notice = shared.engine.notice() => {
                    if let Some(won) = handshakes.as_mut().and_then(|it| it.handle(&notice)) {
                        if search.is_on() {
                            let reason = match self.is_sent_away {
                                true => CloseReason::ShuttingDown,
                                false => CloseReason::IdleTimeout,
                            };
                            return End::Replaced(reason, won);
                        }
                        if self.is_idle(session) {
                            return End::Replaced(CloseReason::Finished, won);
                        }
                        shared.say_goodbye(won.session);
                        handshakes = None;
                        self.roster.on_busy(Instant::now());
                    }
                    if let Some(reason) = self.handle(session, notice) {
                        return End::Closed(reason);
                    }
                }
                () = shared.links_changed.notified() => {
                    self.open_paths(session);
                    search.renew();
                    self.roster.renew(Instant::now());
                }
                () = until(self.link_retry_at()) => self.open_paths(session),
                () = until(begin_at) => {}
            }
        }
    }

    /// Begins handshakes with other relays where it is time to.
    fn look_elsewhere(&mut self, session: SessionId, search: &Search) -> Option<Handshakes> {
        let now = Instant::now();
        let order = match search.is_on() {
            true if search.next_at().is_some_and(|at| at <= now) => self.roster.others(),
            false if self.roster.knock_at().is_some_and(|at| at <= now) => {
                if self.is_idle(session) {
                    self.roster.better()
                } else {
                    self.roster.on_busy(now);
                    Vec::new()
                }
            }
            _ => Vec::new(),
        };
        (!order.is_empty()).then(|| Handshakes::new(self.shared.clone(), order))
    }

    /// Nothing is under way by the session.
    fn is_idle(&self, session: SessionId) -> bool {
        let snapshot = self.shared.engine.snapshot(session);
        let waiting = usize::from(self.shared.packets_on.get() == Some(session));
        snapshot.is_none_or(|session| session.streams <= waiting)
    }

    fn link_retry_at(&self) -> Option<Instant> {
        let links = self.shared.links.borrow();
        links.iter().filter_map(Link::retry_at).min()
    }

    /// The relay wants nothing new: another is looked for, and where there is none, nothing new
    /// goes by this one but what has no other way.
    fn on_sent_away(&mut self) {
        tracing::info!("the relay is going down: what is new goes elsewhere");
        self.is_sent_away = true;
        if self.roster.others().is_empty() {
            self.forsake();
        }
    }

    fn forsake(&self) {
        if self.is_sent_away {
            self.shared.forsaken.set(true);
            self.update_reach();
        }
    }

    /// Follows a notice; tells why the session ended, where it says that.
    fn handle(&mut self, session: SessionId, notice: Notice) -> Option<CloseReason> {
        match notice {
            Notice::Session(id, event) if id == session => match event {
                Event::Closed(reason) => return Some(reason),
                Event::SentAway => self.on_sent_away(),
                Event::PathUp(path) => self.on_path_up(path),
                Event::PathDown(path, reason) => {
                    self.on_path_down(path, reason);
                    self.update_reach();
                }
                // A relay opens no streams; the others are for streams and relays.
                _ => {}
            },
            Notice::SocketLost(socket) => {
                self.shared.engine.visit(session, |visit| {
                    visit.session.handle_socket_lost(visit.now, socket);
                    visit.touch();
                });
            }
            Notice::Session(id, Event::Closed(_)) => {
                let mut left = self.shared.left.borrow_mut();
                left.retain(|left| left.session != id);
            }
            Notice::Session(..) | Notice::Forgotten => {}
        }
        None
    }

    fn on_link_up(&self, link: &mut Link) {
        link.on_up();
        self.shared.journal.record(Happening::LinkUp {
            link: link.name().to_owned(),
        });
    }

    fn on_path_up(&self, path: PathId) {
        let mut links = self.shared.links.borrow_mut();
        if let Some(link) = links.iter_mut().find(|link| link.is_path(path)) {
            tracing::info!(link = link.name(), %path, "path up");
            self.on_link_up(link);
        }
        self.update_reach();
    }

    /// Looks whether any path is left that carries data, and the relay wants any.
    fn update_reach(&self) {
        let shared = &self.shared;
        let snapshot = shared.session().and_then(|id| shared.engine.snapshot(id));
        let is_active = |path: &PathSnapshot| path.status == PathStatus::Active;
        let reachable = snapshot.is_some_and(|session| session.paths.iter().any(is_active))
            && !shared.forsaken.get();
        shared.reach.send_if_modified(|reach| {
            let was = std::mem::replace(reach, reachable);
            was != reachable
        });
    }

    fn on_path_down(&self, path: PathId, reason: PathDownReason) {
        let mut links = self.shared.links.borrow_mut();
        let Some(link) = links.iter_mut().find(|link| link.is_path(path)) else {
            return;
        };
        tracing::info!(link = link.name(), %path, %reason, "path down");
        self.shared.journal.record(Happening::LinkDown {
            link: link.name().to_owned(),
            reason,
        });
        match reason {
            // Core goes on probing it and tells when it is back.
            PathDownReason::NoAnswer => {}
            PathDownReason::NotValidated | PathDownReason::Closed => {
                link.on_failed(Instant::now(), reason.to_string());
            }
            PathDownReason::InterfaceGone => {
                link.discard_sockets(&self.shared.engine);
                link.on_failed(Instant::now(), reason.to_string());
            }
        }
    }

    /// Tries again and again, and at once where a link was added meanwhile; fails where trying
    /// again cannot help.
    async fn reestablish(&mut self, mut reason: CloseReason) -> Result<SessionId, CloseReason> {
        let mut backoff = FIRST_BACKOFF;
        // Another relay need not be given the time to restart.
        let mut at_once = self.roster.has_several();
        while !self.roster.order().is_empty() {
            let jitter = 0.75 + 0.5 * self.rng.unit();
            let shared = self.shared.clone();
            tokio::select! {
                () = tokio::time::sleep(tabane_base::scale(backoff, jitter)), if !at_once => {}
                () = std::future::ready(()), if at_once => {}
                () = shared.links_changed.notified() => {}
            }
            at_once = false;
            backoff = (backoff * 2).min(match reason {
                CloseReason::ShuttingDown => LAST_BACKOFF_RESTARTING,
                _ => LAST_BACKOFF,
            });
            let established = tokio::select! {
                established = self.establish() => established,
                () = shared.links_changed.notified() => {
                    // A handshake does not take up new links; another one does.
                    shared.links_changed.notify_one();
                    continue;
                }
            };
            match established {
                Ok(won) => return Ok(self.adopt(won)),
                Err(error) => {
                    tracing::debug!(%error, "no session");
                    reason = match error {
                        ConnectError::Refused(reason) => reason,
                        _ => CloseReason::HandshakeTimeout,
                    };
                    self.renew_sockets();
                    self.stand(Standing::Connecting(reason.clone()));
                }
            }
        }
        Err(reason)
    }

    /// Interfaces and addresses may have changed while no handshake succeeded.
    fn renew_sockets(&self) {
        for link in self.shared.links.borrow_mut().iter_mut() {
            link.discard_sockets(&self.shared.engine);
        }
    }

    fn stand(&self, standing: Standing) {
        let connected = matches!(standing, Standing::Connected(_));
        self.shared.standing.send_replace(standing);
        self.shared.reach.send_replace(connected);
    }
}

/// The search for another relay while the present one is silent.
#[derive(Default)]
struct Search {
    /// `None` while there is no need.
    next_at: Option<Instant>,
    backoff: Duration,
}

impl Search {
    /// Begins or ends with the silence; true if that has changed.
    fn turn(&mut self, now: Instant, silent: bool) -> bool {
        if silent == self.is_on() {
            return false;
        }
        self.next_at = silent.then_some(now);
        self.backoff = FIRST_BACKOFF;
        true
    }

    const fn is_on(&self) -> bool {
        self.next_at.is_some()
    }

    const fn next_at(&self) -> Option<Instant> {
        self.next_at
    }

    /// No other relay answered.
    fn on_failed(&mut self, now: Instant) {
        self.next_at = Some(now + self.backoff);
        self.backoff = (self.backoff * 2).min(LAST_BACKOFF);
    }

    /// There are other links: what failed may work now.
    fn renew(&mut self) {
        if self.is_on() {
            self.next_at = Some(Instant::now());
            self.backoff = FIRST_BACKOFF;
        }
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
