//! Carries out what a link's choice of carriers asks for: dials TLS, opens paths by the other
//! carrier beside the one in use, and moves the link there when they answer.
//!
//! Where UDP is suspected both paths carry for a while, and the choice is told what passes by them.
//! The path that carried a link before is closed once the other one is up; what it had in flight
//! goes by the others at once, so nothing waits.

use std::net::SocketAddr;

use crate::carrier::Dial;
use tabane_core::{FourTuple, PathId, PathSnapshot, SocketId};
use tokio::time::Instant;

use super::carrier::{Carrier, Change};
use super::comparison::Sample;
use super::dials::{self, Dialed};
use super::left;
use super::link::{Link, Tls};
use super::standing::Shared;
use crate::engine::SessionId;

impl Shared {
    /// When there is something to do for a link.
    pub(super) fn carriers_at(&self) -> Option<Instant> {
        let links = self.links.borrow();
        let used = links.iter().filter(|link| !link.is_paused());
        let at = used.flat_map(|link| {
            let choice = &link.choice;
            let ports_at = choice.ports_at();
            [
                choice.dial_at(),
                choice.ask_at(),
                choice.look_at(),
                ports_at,
            ]
        });
        at.flatten().min()
    }

    /// Does what is due while there is a session.
    pub(super) fn tend_carriers(&self, session: SessionId) {
        let Some(relay) = self.relay.get() else {
            return;
        };
        match self.peer(relay).tls {
            Some(_) => self.dial(relay),
            None => self.dial_in_vain(),
        }
        self.look_at_carriers(session);
        let now = Instant::now();
        for link in self.links.borrow_mut().iter_mut() {
            if link.choice.ports_at().is_some_and(|at| at <= now) {
                link.choice.on_ports_asked(now);
                let others: Vec<_> = link.others(relay).collect();
                self.ask(session, link, others);
            }
            if link.choice.ask_at().is_none_or(|at| at > now) {
                continue;
            }
            let tls = self.sample(session, link.path(), now);
            if !link.choice.may_ask(now, tls) {
                continue;
            }
            link.choice.on_ask();
            // The socket may be one of a session that is over.
            let _ = self.prepare(link);
            let asked: Vec<_> = match link.choice.carrier() {
                Carrier::Tls => {
                    let first = link.candidate(relay).into_iter();
                    first.chain(link.others(relay)).collect()
                }
                Carrier::Udp => link.pairs.own(relay).collect(),
            };
            self.ask(session, link, asked);
            if link.asked.is_empty() {
                link.choice.on_ask_failed(now);
            }
        }
    }

    /// Other ports are asked by handshakes while there is no session.
    pub(super) fn pass_over_ports(&self) {
        let now = Instant::now();
        for link in self.links.borrow_mut().iter_mut() {
            if link.choice.ports_at().is_some_and(|at| at <= now) {
                link.choice.on_ports_asked(now);
            }
        }
    }

    /// Asks at several ports side by side, if that is not under way.
    fn ask(&self, session: SessionId, link: &mut Link, tuples: Vec<FourTuple>) {
        if link.asked.is_empty() && !link.choice.is_comparing() {
            let opened = tuples.into_iter();
            let opened = opened.filter_map(|tuple| self.open_beside(session, link, tuple));
            link.asked = opened.collect();
        }
    }

    /// A port that was asked is silent.
    pub(super) fn on_no_answer(&self, link: &mut Link, path: PathId) {
        self.close_path(path);
        link.asked.retain(|asked| *asked != path);
        if link.asked.is_empty() && link.choice.is_asking() {
            link.choice.on_ask_failed(Instant::now());
        }
    }

    /// One of the ports that were asked has answered: the others are left, and TLS that has not.
    fn on_answer(&self, link: &mut Link, path: PathId) {
        let others = std::mem::take(&mut link.asked).into_iter();
        let others = others
            .filter(|other| *other != path)
            .chain(link.trial.take());
        others.for_each(|other| self.close_path(other));
        link.trial = Some(path);
    }

    /// Looks at what the carriers of links carry, where it is time to.
    fn look_at_carriers(&self, session: SessionId) {
        let now = Instant::now();
        let mut moved = Vec::new();
        for link in self.links.borrow_mut().iter_mut() {
            if link.choice.look_at().is_none_or(|at| at > now) {
                continue;
            }
            let used = self.sample(session, link.path(), now);
            let beside = self.sample(session, link.trial, now);
            match (link.choice.on_look(now, used, beside), link.trial) {
                (Some(Change::Over), Some(trial)) => moved.push(trial),
                (Some(Change::Over | Change::Stay), _) => self.give_up_trial(link),
                (None, _) => {}
            }
        }
        for trial in moved {
            self.promote(trial);
        }
    }

    fn sample(&self, session: SessionId, path: Option<PathId>, now: Instant) -> Option<Sample> {
        Some(Sample::of(&self.path(session, path?)?, now))
    }

    fn tuple(&self, session: SessionId, path: PathId) -> Option<FourTuple> {
        Some(self.path(session, path)?.tuple)
    }

    /// Without measuring anything, as a look by a person would.
    fn path(&self, session: SessionId, path: PathId) -> Option<PathSnapshot> {
        let paths = self
            .engine
            .visit(session, |visit| visit.session.snapshot(visit.now).paths)?;
        paths.into_iter().find(|it| it.id == path)
    }

    /// Dials a relay over every link that is due for it.
    pub(super) fn dial(&self, relay: usize) {
        let now = Instant::now();
        let peer = self.peer(relay);
        let Some(tls) = &peer.tls else {
            return;
        };
        let addrs = self.addrs.borrow();
        for link in self.links.borrow_mut().iter_mut() {
            if link.is_paused() || link.choice.dial_at().is_none_or(|at| at > now) {
                continue;
            }
            let ways: Vec<_> = addrs[relay]
                .iter()
                .filter_map(|at| link.dials(*at))
                .collect();
            let own = link.bind.carrier.proxy.as_ref();
            let failures = link.choice.dial_failures() as usize;
            let (proxy, turn) = dials::way(own, self.config.proxy.as_ref(), failures);
            let Some((to, local)) = ways.get(turn % ways.len().max(1)).copied() else {
                let why = "no address of a family that the relay has".to_owned();
                link.choice.on_dial_failed(now, Some(why));
                continue;
            };
            let relay_udp = to;
            let to = SocketAddr::new(to.ip(), tls.port);
            let dial = Dial {
                interface: link.bind.egress.as_ref().map(|it| it.interface.clone()),
                local: Some(local.ip()).filter(|ip| !ip.is_unspecified()),
                mark: link.bind.mark(self.config.mark),
                relay: to,
                relay_udp,
                name: tls.name.clone(),
                relay_key: peer.key.0,
                proxy,
            };
            tracing::debug!(link = link.name(), %to, "dialing TLS");
            link.choice.on_dial();
            let (dials, name) = (self.dials.clone(), link.name().to_owned());
            let task = tokio::task::spawn_local(async move {
                let result = dial.connect().await;
                dials.push(Dialed {
                    link: name,
                    relay,
                    to,
                    result,
                });
            });
            link.dialing = Some(task.abort_handle());
        }
    }

    /// There is no relay that takes in TLS.
    pub(super) fn dial_in_vain(&self) {
        let now = Instant::now();
        for link in self.links.borrow_mut().iter_mut() {
            if link.choice.dial_at().is_some_and(|at| at <= now) {
                let why = "the relay takes none in".to_owned();
                link.choice.on_dial_failed(now, Some(why));
            }
        }
    }

    /// The session's paths are opened over what was dialed.
    pub(super) fn take_up(&self, session: SessionId, dialed: Dialed) {
        self.on_dialed(dialed);
        self.open_paths(session);
    }

    /// Follows a dial; gives the way there is now.
    pub(super) fn on_dialed(&self, dialed: Dialed) -> Option<(usize, FourTuple)> {
        let now = Instant::now();
        let mut links = self.links.borrow_mut();
        let link = links.iter_mut().find(|link| link.name() == dialed.link)?;
        // Whoever was given up meanwhile is not waited for.
        link.dialing.take()?;
        match dialed.result {
            Ok(stream) => {
                let socket = self.engine.attach(link.name(), stream, dialed.to);
                let tuple = FourTuple {
                    socket,
                    local_ip: None,
                    remote: dialed.to,
                };
                let relay = dialed.relay;
                if let Some(old) = link.tls.replace(Tls { tuple, relay }) {
                    self.engine.unbind(old.tuple.socket);
                }
                Some((relay, tuple))
            }
            Err(error) => {
                // Once is enough: what shows the client's state says it as long as it is so.
                match link.choice.dial_failures() {
                    0 => tracing::info!(link = link.name(), "UDP is silent, and no TLS: {error}"),
                    _ => tracing::debug!(link = link.name(), "no TLS: {error}"),
                }
                link.choice.on_dial_failed(now, Some(error.to_string()));
                None
            }
        }
    }

    /// A connection has ended; what it carried is told of apart.
    pub(super) fn on_socket_lost(&self, socket: SocketId) {
        let mut links = self.links.borrow_mut();
        let is_its = |link: &&mut Link| link.tls.is_some_and(|tls| tls.tuple.socket == socket);
        let Some(link) = links.iter_mut().find(is_its) else {
            return;
        };
        link.tls = None;
        if link.choice.carrier() == Carrier::Udp {
            let why = "the connection ended before anything was carried".to_owned();
            link.choice.on_dial_failed(Instant::now(), Some(why));
        }
    }

    /// A handshake is begun by this socket.
    pub(super) fn on_udp_asked(&self, socket: SocketId) {
        let mut links = self.links.borrow_mut();
        if let Some(link) = links.iter_mut().find(|link| link.owns(socket)) {
            link.choice.on_udp_asked(Instant::now());
        }
    }

    /// Opens a path over a link's TLS connection, if that has none.
    pub(super) fn open_trial(&self, session: SessionId, link: &mut Link, relay: usize) {
        let tls = link.tls.filter(|tls| tls.relay == relay);
        let is_free = link.trial.is_none() && link.choice.carrier() == Carrier::Udp;
        if let Some(tls) = tls.filter(|_| is_free && !link.is_paused()) {
            link.trial = self.open_beside(session, link, tls.tuple);
            if link.trial.is_none() {
                self.fail_dial(link, "no path could be opened");
            }
        }
    }

    fn open_beside(&self, session: SessionId, link: &Link, tuple: FourTuple) -> Option<PathId> {
        self.open_path(session, link, tuple)?.ok()
    }

    /// A path is up: where it was opened beside the one in use, the link goes by it from here on,
    /// unless both are to be compared first.
    pub(super) fn promote(&self, path: PathId) {
        let Some(session) = self.session() else {
            return;
        };
        let mut links = self.links.borrow_mut();
        let is_its = |link: &&mut Link| {
            link.trial == Some(path) || link.is_path(path) || link.asked.contains(&path)
        };
        let Some(link) = links.iter_mut().find(is_its) else {
            return;
        };
        if link.asked.contains(&path) {
            self.on_answer(link, path);
        }
        let tuple = self.tuple(session, path);
        let by_tls = tuple.is_some_and(|tuple| tuple.socket.is_ordered());
        let carrier = link.choice.carrier();
        if link.trial != Some(path) {
            if carrier == Carrier::Udp || !link.choice.is_comparing() {
                self.on_carried(link, carrier == Carrier::Tls);
            }
            return;
        }
        let is_other = by_tls != (carrier == Carrier::Tls);
        if is_other && link.choice.on_beside(Instant::now()) {
            self.tell_classes(session, &left::paths(&links));
            return;
        }
        link.trial = None;
        let old = link.replace_path(path);
        if let Some(tuple) = tuple.filter(|_| !by_tls) {
            link.pairs.on_answer(tuple);
        }
        self.on_carried(link, by_tls);
        let (name, carrier) = (link.name().to_owned(), link.choice.carrier());
        // Before the old one goes, so that classes which name their links have one throughout.
        self.tell_classes(session, &left::paths(&links));
        if let Some(old) = old {
            self.close_path(old);
        }
        tracing::info!(link = name, %carrier, "carried otherwise from here on");
    }

    /// A link is carried by TLS, or by UDP; what the other one had under way is given up.
    pub(super) fn on_carried(&self, link: &mut Link, by_tls: bool) {
        let now = Instant::now();
        let port = link.pairs.port();
        // Once it has been followed.
        self.carriers_changed.notify_one();
        if by_tls {
            link.asked.drain(..).for_each(|path| self.close_path(path));
            link.choice.on_tls_up(now);
            return;
        }
        if link.choice.carrier() == Carrier::Udp && link.choice.is_suspected() {
            link.asked.drain(..).for_each(|path| self.close_path(path));
            // It was silent for a moment, and TLS is to be compared with it.
            link.choice.on_udp_up(now, port);
            return;
        }
        let beside = link.trial.take().into_iter().chain(link.asked.drain(..));
        beside.for_each(|path| self.close_path(path));
        link.choice.on_udp_up(now, port);
        link.discard_tls(&self.engine);
    }

    /// The path by the other carrier does not work.
    pub(super) fn on_trial_failed(&self, link: &mut Link, path: PathId) {
        self.close_path(path);
        link.trial = None;
        match link.choice.carrier() {
            Carrier::Tls => link.choice.on_ask_failed(Instant::now()),
            Carrier::Udp => self.fail_dial(link, "the relay does not answer through it"),
        }
    }

    /// The other carrier is no better.
    fn give_up_trial(&self, link: &mut Link) {
        if let Some(trial) = link.trial.take() {
            self.close_path(trial);
        }
        if link.choice.carrier() == Carrier::Udp {
            link.discard_tls(&self.engine);
        }
    }

    fn fail_dial(&self, link: &mut Link, why: &str) {
        link.discard_tls(&self.engine);
        link.choice
            .on_dial_failed(Instant::now(), Some(why.to_owned()));
    }

    pub(super) fn close_path(&self, path: PathId) {
        if let Some(session) = self.session() {
            self.engine.visit(session, |visit| {
                // One that core has given up needs no closing.
                let _ = visit.session.close_path(visit.now, path);
                visit.touch();
            });
        }
    }
}
