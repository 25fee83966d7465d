//! Keeps a client's session up: sets it up, looks after it, and begins anew, with another relay if
//! need be, when it is lost.
//!
//! Owns which session is the one in use. Its paths are opened and followed by `paths`; when another
//! relay is asked is for the roster and the search to say. One task, the only reader of the
//! engine's notices.

use std::rc::Rc;

use tabane_base::{Rng, Seed};
use tabane_core::{CloseReason, Event};
use tokio::time::Instant;

use super::ConnectError;
use super::backoff::{Backoff, LONGEST, LONGEST_RESTARTING};
use super::handshakes::{Handshakes, Won, is_final};
use super::roster::Roster;
use super::search::Search;
use super::standing::{Shared, Standing};
use crate::engine::{Notice, SessionId, Visit};
use crate::journal::Happening;

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
        let merits = shared.merits.borrow().clone();
        Self {
            roster: Roster::new(merits),
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
                    if let Notice::SocketLost(socket) = &notice {
                        shared.on_socket_lost(*socket);
                    }
                    if let Some(won) = handshakes.handle(&notice) {
                        return Ok(won);
                    }
                }
                dialed = shared.dials.next() => {
                    if let Some((relay, tuple)) = shared.on_dialed(dialed) {
                        handshakes.begin(relay, tuple);
                    }
                }
                () = until(handshakes.next_at()) => {}
                () = shared.recalled.notified() => {}
                () = until(shared.carriers_at()) => handshakes.dial(),
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
        let peer = shared.peer(relay);
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
        self.shared.recognise_first_path(session);
        self.shared.open_paths(session);
        self.warn_of_old_relay(session);
        self.stand(Standing::Connected(session));
        tracing::info!(relay = %peer.key, "session up");
        session
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
        let mut search: Search<Won> = Search::default();
        loop {
            let now = Instant::now();
            self.roster.weigh(now, &shared.merits.borrow());
            let elsewhere = self.is_sent_away || !*shared.reach.borrow();
            if search.turn(now, elsewhere) {
                // What was begun for one purpose does not serve the other.
                handshakes = None;
                let spare = search.take_spare();
                spare.inspect(|spare| shared.say_goodbye(spare.session));
            }
            let spare = search.overdue(now);
            if let Some(spare) = spare.filter(|spare| shared.engine.is_live(spare.session)) {
                return self.replaced(spare);
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
                        handshakes = None;
                        if let Some(end) = self.on_won(session, &mut search, won) {
                            return end;
                        }
                    }
                    if let Some(reason) = self.handle(session, notice) {
                        return self.closed(reason, search.take_spare());
                    }
                }
                () = shared.links_changed.notified() => {
                    self.shared.follow_relay(session);
                    self.shared.open_paths(session);
                    search.renew(Instant::now());
                    self.roster.renew(Instant::now());
                }
                () = until(self.shared.link_retry_at()) => self.shared.open_paths(session),
                dialed = shared.dials.next() => shared.take_up(session, dialed),
                () = shared.recalled.notified() => {}
                () = until(shared.carriers_at()) => shared.tend_carriers(session),
                () = until(begin_at) => {}
            }
        }
    }

    /// Another relay has answered.
    fn on_won(&mut self, session: SessionId, search: &mut Search<Won>, won: Won) -> Option<End> {
        let is_idle = self.is_idle(session);
        if search.is_on() && (self.is_sent_away || is_idle) {
            return Some(self.replaced(won));
        }
        if search.is_on() {
            // What answers may be the network that is back, and this relay with it.
            search.hold(Instant::now(), won);
            self.shared.engine.visit(session, |visit| {
                visit.session.rouse(visit.now);
                visit.touch();
            });
            return None;
        }
        if is_idle {
            return Some(End::Replaced(CloseReason::Finished, won));
        }
        self.shared.say_goodbye(won.session);
        self.roster.on_busy(Instant::now());
        None
    }

    /// The session has ended: another relay that waited for it waits no more.
    fn closed(&self, reason: CloseReason, spare: Option<Won>) -> End {
        let may_follow = !is_final(&reason) && !self.is_sent_away;
        match spare {
            Some(spare) if may_follow && self.shared.engine.is_live(spare.session) => {
                End::Replaced(reason, spare)
            }
            spare => {
                spare.inspect(|spare| self.shared.say_goodbye(spare.session));
                End::Closed(reason)
            }
        }
    }

    fn replaced(&self, by: Won) -> End {
        let reason = match self.is_sent_away {
            true => CloseReason::ShuttingDown,
            false => CloseReason::IdleTimeout,
        };
        End::Replaced(reason, by)
    }

    /// Begins handshakes with other relays where it is time to.
    fn look_elsewhere(&mut self, session: SessionId, search: &Search<Won>) -> Option<Handshakes> {
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
        let waiting = usize::from(self.shared.packets_on.get() == Some(session))
            + usize::from(self.shared.told_on.get() == Some(session))
            + self.shared.arrivals.borrow().count(session);
        snapshot.is_none_or(|session| session.streams <= waiting)
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
            self.shared.update_reach();
        }
    }

    /// Follows a notice; tells why the session ended, where it says that.
    fn handle(&mut self, session: SessionId, notice: Notice) -> Option<CloseReason> {
        match notice {
            Notice::Session(id, event) if id == session => match event {
                Event::Closed(reason) => return Some(reason),
                Event::SentAway => self.on_sent_away(),
                Event::PathUp(path) => self.shared.on_path_up(path),
                Event::PathDown(path, reason) => {
                    self.shared.on_path_down(path, reason);
                    self.shared.update_reach();
                    self.shared.follow_relay(session);
                }
                Event::StreamOpened(stream) => self.shared.on_stream_opened(id, stream),
                // The others are for streams and relays.
                _ => {}
            },
            Notice::SocketLost(socket) => {
                self.shared.on_socket_lost(socket);
                self.shared.engine.visit(session, |visit| {
                    visit.session.handle_socket_lost(visit.now, socket);
                    visit.touch();
                });
            }
            // Who came before a relay's end may still be on the way.
            Notice::Session(id, Event::StreamOpened(stream)) => {
                self.shared.on_stream_opened(id, stream);
            }
            Notice::Session(id, Event::Closed(_)) => {
                let mut left = self.shared.left.borrow_mut();
                left.retain(|left| left.session != id);
            }
            Notice::Session(..) | Notice::Forgotten => {}
        }
        None
    }

    /// Tries again and again, and at once where a link was added meanwhile; fails where trying
    /// again cannot help.
    async fn reestablish(&mut self, mut reason: CloseReason) -> Result<SessionId, CloseReason> {
        let mut backoff = Backoff::default();
        self.roster
            .weigh(Instant::now(), &self.shared.merits.borrow());
        // Another relay need not be given the time to restart.
        let mut at_once = self.roster.has_several();
        while !self.roster.order().is_empty() {
            let longest = match reason {
                CloseReason::ShuttingDown => LONGEST_RESTARTING,
                _ => LONGEST,
            };
            let wait = backoff.next(longest);
            let jitter = 0.75 + 0.5 * self.rng.unit();
            let shared = self.shared.clone();
            tokio::select! {
                () = tokio::time::sleep(tabane_base::scale(wait, jitter)), if !at_once => {}
                () = std::future::ready(()), if at_once => {}
                () = shared.links_changed.notified() => {}
            }
            at_once = false;
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
                    self.shared.renew_sockets();
                    self.stand(Standing::Connecting(reason.clone()));
                }
            }
        }
        Err(reason)
    }

    fn stand(&self, standing: Standing) {
        let connected = matches!(standing, Standing::Connected(_));
        self.shared.standing.send_replace(standing);
        self.shared.set_reach(connected);
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
