//! The paths of a session: one over every link that has a way to the relay.
//!
//! Owns when a path is opened, what its comings and goings mean for its link, and whether any is
//! left that carries data. Sockets and the patience with a link are the link's.

use tabane_core::{FourTuple, PathDownReason, PathError, PathId, PathSnapshot, PathStatus};
use tokio::time::Instant;

use super::carrier::Carrier;
use super::left;
use super::link::Link;
use super::standing::Shared;
use crate::engine::SessionId;
use crate::journal::Happening;

impl Shared {
    /// The handshake has made a path of the pair of addresses that it succeeded on.
    pub(super) fn recognise_first_path(&self, session: SessionId) {
        let Some(snapshot) = self.engine.snapshot(session) else {
            return;
        };
        for path in snapshot.paths {
            let mut links = self.links.borrow_mut();
            if let Some(link) = links.iter_mut().find(|link| link.owns(path.tuple.socket)) {
                link.on_opened(path.id);
                link.pairs.on_answer(path.tuple);
                self.on_carried(link, path.tuple.socket.is_ordered());
                self.on_link_up(link);
                self.engine.visit(session, |visit| {
                    visit.touch();
                    // It was checked when the link was added.
                    let policy = link.policy();
                    let _ = visit.session.set_path_policy(visit.now, path.id, policy);
                });
            }
        }
    }

    /// Links that are silent where the relay is no longer go where it is now, and what is carried
    /// with them. What still answers at an old address is left alone.
    pub(super) fn follow_relay(&self, session: SessionId) {
        let (Some(relay), Some(snapshot)) =
            (self.relay.get(), self.engine.snapshot_unmeasured(session))
        else {
            return;
        };
        let addrs = self.addrs.borrow();
        for link in self.links.borrow_mut().iter_mut() {
            let mut paths = snapshot.paths.iter();
            let silent =
                paths.find(|path| link.is_path(path.id) && path.status != PathStatus::Active);
            if silent.is_some_and(|it| link.is_left(it.tuple.remote.ip(), &addrs[relay])) {
                link.follow(&self.engine, session);
            }
        }
    }

    /// Opens a path over `link`, used as that may be; `None` where the session is gone.
    pub(super) fn open_path(
        &self,
        session: SessionId,
        link: &Link,
        tuple: FourTuple,
    ) -> Option<Result<PathId, PathError>> {
        self.engine.visit(session, |visit| {
            visit.touch();
            let path = visit.session.open_path(visit.now, tuple)?;
            let policy = link.policy();
            visit.session.set_path_policy(visit.now, path, policy)?;
            Ok(path)
        })
    }

    /// Opens a path over every link that is due for one.
    pub(super) fn open_paths(&self, session: SessionId) {
        let now = Instant::now();
        let Some(relay) = self.relay.get() else {
            return;
        };
        let mut links = self.links.borrow_mut();
        for link in links.iter_mut() {
            self.open_trial(session, link, relay);
            if let Some(path) = link.take_given_up(now) {
                self.close_path(path);
                link.on_failed(now, PathDownReason::NotValidated.to_string());
            }
            if !link.is_due(now) {
                continue;
            }
            link.choice.on_udp_asked(now);
            if !link.choice.uses_udp() {
                continue;
            }
            if let Err(error) = self.prepare(link) {
                tracing::debug!("{error}");
                link.on_failed(now, error.to_string());
                continue;
            }
            let Some(tuple) = link.candidate(relay) else {
                link.on_failed(now, "no address of a family that the relay has".to_owned());
                continue;
            };
            match self.open_path(session, link, tuple) {
                Some(Ok(path)) => link.on_opened(path),
                Some(Err(error)) => link.on_failed(now, error.to_string()),
                None => return,
            }
        }
        self.tell_classes(session, &left::paths(&links));
    }

    fn on_link_up(&self, link: &mut Link) {
        link.on_up();
        self.journal.record(Happening::LinkUp {
            link: link.name().to_owned(),
        });
    }

    /// A path carries data.
    pub(super) fn on_path_up(&self, path: PathId) {
        self.promote(path);
        let mut links = self.links.borrow_mut();
        if let Some(link) = links.iter_mut().find(|link| link.is_path(path)) {
            let carrier = link.choice.carrier();
            tracing::info!(link = link.name(), %path, %carrier, "path up");
            self.on_link_up(link);
        }
        self.update_reach();
    }

    /// Looks whether any path is left that carries data, and the relay wants any.
    pub(super) fn update_reach(&self) {
        let snapshot = self.session().and_then(|id| self.engine.snapshot(id));
        let is_active = |path: &PathSnapshot| path.status == PathStatus::Active;
        let reachable = snapshot.is_some_and(|session| session.paths.iter().any(is_active))
            && !self.forsaken.get();
        self.set_reach(reachable);
    }

    pub(super) fn set_reach(&self, reachable: bool) {
        self.reach.send_if_modified(|reach| {
            let was = std::mem::replace(reach, reachable);
            if was && !reachable {
                let comes_back = !self.forsaken.get();
                self.reach_lost_at.set(comes_back.then(Instant::now));
            }
            was != reachable
        });
    }

    /// A path carries no data, for the time being or for good.
    pub(super) fn on_path_down(&self, path: PathId, reason: PathDownReason) {
        let now = Instant::now();
        let mut links = self.links.borrow_mut();
        if let Some(link) = links.iter_mut().find(|link| link.asked.contains(&path)) {
            self.on_no_answer(link, path);
            return;
        }
        if let Some(link) = links.iter_mut().find(|link| link.trial == Some(path)) {
            self.on_trial_failed(link, path);
            return;
        }
        let Some(link) = links.iter_mut().find(|link| link.is_path(path)) else {
            return;
        };
        tracing::info!(link = link.name(), %path, %reason, "path down");
        self.journal.record(Happening::LinkDown {
            link: link.name().to_owned(),
            reason,
        });
        match reason {
            // Core goes on probing it and tells when it is back.
            PathDownReason::NoAnswer => {
                link.choice.on_silent(now);
                self.carriers_changed.notify_one();
            }
            // The relay may notice the end of a connection first, and closes its path.
            _ if link.choice.carrier() == Carrier::Tls => {
                self.close_path(path);
                link.discard_tls(&self.engine);
                link.choice.on_tls_gone(now);
                link.on_failed(now, "the TLS connection ended".to_owned());
                link.retry_at_once();
                self.links_changed.notify_one();
            }
            PathDownReason::NotValidated
                if self
                    .relay
                    .get()
                    .is_some_and(|relay| link.waits_for_answer(now, relay)) => {}
            PathDownReason::NotValidated | PathDownReason::Closed => {
                // Another is opened in its place.
                self.close_path(path);
                link.on_failed(now, reason.to_string());
            }
            PathDownReason::InterfaceGone => {
                link.discard_sockets(&self.engine);
                link.on_failed(now, reason.to_string());
            }
        }
    }

    /// When the next link is to be tried again.
    pub(super) fn link_retry_at(&self) -> Option<Instant> {
        let links = self.links.borrow();
        links.iter().filter_map(Link::retry_at).min()
    }

    /// Interfaces and addresses may have changed while no handshake succeeded.
    pub(super) fn renew_sockets(&self) {
        for link in self.links.borrow_mut().iter_mut() {
            link.discard_sockets(&self.engine);
            link.discard_tls(&self.engine);
        }
    }
}
