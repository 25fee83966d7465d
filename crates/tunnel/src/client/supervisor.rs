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

use super::link::Link;
use super::{ConnectError, Shared, Standing};
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
}

impl Supervisor {
    pub(super) fn new(shared: Rc<Shared>) -> Self {
        let word = shared.config.seed.first_chunk::<8>().copied();
        let seed = Seed(u64::from_le_bytes(word.unwrap_or_default()));
        Self {
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
            let reason = self.attend(session).await;
            tracing::warn!(%reason, "the session ended");
            self.shared.journal.record(Happening::SessionEnded {
                session: self.shared.sessions.get(),
                client: None,
                reason: reason.clone(),
            });
            self.shared
                .links
                .borrow_mut()
                .iter_mut()
                .for_each(|link| link.on_session_ended());
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

    /// Sets up a session over every link at once.
    pub(super) async fn establish(&mut self) -> Result<SessionId, ConnectError> {
        let session = self.begin()?;
        loop {
            match self.shared.engine.notice().await {
                Notice::Session(id, Event::Connected) if id == session => break,
                Notice::Session(id, Event::Closed(reason)) if id == session => {
                    return Err(self.failure(reason));
                }
                Notice::Session(..) | Notice::Forgotten | Notice::SocketLost(_) => {}
            }
        }
        let shared = &self.shared;
        shared.sessions.set(shared.sessions.get() + 1);
        shared.journal.record(Happening::SessionUp {
            session: shared.sessions.get(),
            client: None,
        });
        self.recognise_first_path(session);
        self.open_paths(session);
        self.warn_of_old_relay(session);
        self.stand(Standing::Connected(session));
        tracing::info!(relay = %shared.config.relay_key, "session up");
        Ok(session)
    }

    /// Sends the first packets of a handshake.
    fn begin(&self) -> Result<SessionId, ConnectError> {
        let shared = &self.shared;
        let config = &shared.config;
        let mut links = shared.links.borrow_mut();
        let mut failure = None;
        for link in links.iter_mut() {
            if let Err(error) = link.prepare(&shared.engine, &config.relay_addrs, config.mark) {
                tracing::warn!("{error}");
                failure.get_or_insert(error);
            }
        }
        // Turns over the links first and the relay's addresses second: a link is more often dead
        // than an address. Links to be spared come last.
        let mut links: Vec<&Link> = links.iter().collect();
        links.sort_by_key(|link| link.rank());
        let longest = links.iter().map(|link| link.candidates().len()).max();
        let tuples: Vec<_> = (0..longest.unwrap_or(0))
            .flat_map(|i| {
                links
                    .iter()
                    .filter_map(move |link| link.candidates().get(i))
            })
            .copied()
            .collect();
        if tuples.is_empty() {
            return Err(failure.map_or_else(
                || ConnectError::NoUsableLink {
                    relay: config.relay_addrs.clone(),
                    links: links.iter().map(|link| link.name().to_owned()).collect(),
                },
                ConnectError::Link,
            ));
        }
        let token = config.token.clone();
        Ok(shared.engine.connect(config.relay_key, token, tuples)?)
    }

    fn failure(&self, reason: CloseReason) -> ConnectError {
        if reason != CloseReason::HandshakeTimeout {
            return ConnectError::Refused(reason);
        }
        let links = self.shared.links.borrow();
        ConnectError::NoAnswer {
            relay: self.shared.config.relay_addrs.clone(),
            links: links.iter().map(|link| link.name().to_owned()).collect(),
        }
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
        let mut links = shared.links.borrow_mut();
        for link in links.iter_mut() {
            if !link.is_due(now) {
                continue;
            }
            if let Err(error) = link.prepare(&shared.engine, &config.relay_addrs, config.mark) {
                tracing::debug!("{error}");
                link.on_failed(now, error.to_string());
                continue;
            }
            let Some(tuple) = link.candidate() else {
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
        shared.tell_classes(session, &links);
    }

    fn warn_of_old_relay(&self, session: SessionId) {
        let follows = |visit: &mut Visit<'_>| visit.session.follows_classes();
        let follows = self.shared.engine.visit(session, follows);
        if follows == Some(false) && !self.shared.classes.borrow().is_empty() {
            tracing::warn!("the relay is too old for rules: what it sends takes any link");
        }
    }

    /// Looks after the session's paths until it ends.
    async fn attend(&self, session: SessionId) -> CloseReason {
        let shared = &self.shared;
        loop {
            let retry_at = shared
                .links
                .borrow()
                .iter()
                .filter_map(|link| link.retry_at())
                .min();
            tokio::select! {
                notice = shared.engine.notice() => match notice {
                    Notice::Session(id, event) if id == session => match event {
                        Event::Closed(reason) => return reason,
                        Event::PathUp(path) => self.on_path_up(path),
                        Event::PathDown(path, reason) => {
                            self.on_path_down(path, reason);
                            self.update_reach();
                        }
                        // A relay opens no streams; the others are for streams and relays.
                        _ => {}
                    },
                    Notice::SocketLost(socket) => {
                        shared.engine.visit(session, |visit| {
                            visit.session.handle_socket_lost(visit.now, socket);
                            visit.touch();
                        });
                    }
                    Notice::Session(..) | Notice::Forgotten => {}
                },
                () = shared.links_changed.notified() => self.open_paths(session),
                () = until(retry_at) => self.open_paths(session),
            }
        }
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
        self.shared.reach.send_replace(true);
    }

    /// Looks whether any path is left that carries data.
    fn update_reach(&self) {
        let shared = &self.shared;
        let snapshot = shared.session().and_then(|id| shared.engine.snapshot(id));
        let is_active = |path: &PathSnapshot| path.status == PathStatus::Active;
        let reachable = snapshot.is_some_and(|session| session.paths.iter().any(is_active));
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
        while !is_final(&reason) {
            let jitter = 0.75 + 0.5 * self.rng.unit();
            let shared = self.shared.clone();
            tokio::select! {
                () = tokio::time::sleep(tabane_base::scale(backoff, jitter)) => {}
                () = shared.links_changed.notified() => {}
            }
            backoff = (backoff * 2).min(match reason {
                CloseReason::ShuttingDown => LAST_BACKOFF_RESTARTING,
                _ => LAST_BACKOFF,
            });
            let established = tokio::select! {
                established = self.establish() => established,
                () = shared.links_changed.notified() => {
                    // A handshake does not take up new links; another one does.
                    self.give_up_handshakes();
                    shared.links_changed.notify_one();
                    continue;
                }
            };
            match established {
                Ok(session) => return Ok(session),
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

    fn give_up_handshakes(&self) {
        for session in self.shared.engine.sessions() {
            self.shared.say_goodbye(session);
        }
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

/// Whether another handshake would end the same way.
fn is_final(reason: &CloseReason) -> bool {
    matches!(
        reason,
        CloseReason::Unauthorised
            | CloseReason::Revoked
            | CloseReason::WrongPeerKey
            | CloseReason::VersionMismatch { .. }
    )
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
