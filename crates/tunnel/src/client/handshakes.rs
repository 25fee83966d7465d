//! Handshakes with several relays over several links at once, of which the first that succeeds
//! wins.
//!
//! Each link's handshake is one of its own, up to the relay's word that lets us in: whoever sits on
//! a link can spoil that one and no other [P-1.2]. Owns the sessions that are being set up; those
//! that did not win are given up when it is dropped. Which relay is tried when is the roster's
//! affair.

use std::collections::VecDeque;
use std::rc::Rc;

use tabane_base::Duration;
use tabane_core::{CloseReason, Event, FourTuple};
use tokio::time::Instant;

use super::carrier::UDP_PATIENCE;
use super::link::Link;
use super::roster::Race;
use super::{ConnectError, Shared};
use crate::engine::{Notice, SessionId};

/// A relay, by its place in the list, and the session with it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Won {
    pub(super) relay: usize,
    pub(super) session: SessionId,
}

/// A link's head start over the next; a round trip over the slowest usual link is shorter.
const HEAD_START: Duration = Duration::from_millis(250);
/// The first link's over the second, where neither is to be spared: a session over the farther of
/// two begins much later than one over the nearer, and data with it.
const HEAD_START_FIRST: Duration = Duration::from_millis(50);
/// Another port's over the next, when the relay's own is silent.
const HEAD_START_OTHERS: Duration = Duration::from_millis(50);

/// What a dial and the handshake in it may take.
const TLS_PATIENCE: Duration = Duration::from_secs(12);

/// What is tried at once, what is when that is silent, and the first one's head start.
type Ways = (VecDeque<FourTuple>, VecDeque<FourTuple>, Duration);

/// A relay that is being tried.
struct Trying {
    relay: usize,
    /// Links, and addresses of the relay, that were not tried yet.
    waiting: VecDeque<FourTuple>,
    /// Other ports of the relay's, for when those are silent.
    others: VecDeque<FourTuple>,
    others_at: Instant,
    next_at: Instant,
    /// The latest one's over the next.
    head_start: Duration,
    /// While it may be reached by TLS alone it is waited for until then.
    until: Instant,
    /// What the first handshake told that got any answer.
    reason: Option<CloseReason>,
}

pub(super) struct Handshakes {
    shared: Rc<Shared>,
    race: Race,
    trying: Vec<Trying>,
    begun: Vec<Won>,
    failures: Vec<(usize, ConnectError)>,
}

impl Handshakes {
    /// Nothing is sent before the first [`step`](Self::step).
    pub(super) fn new(shared: Rc<Shared>, order: Vec<usize>) -> Self {
        Self {
            shared,
            race: Race::new(order, Instant::now()),
            trying: Vec::new(),
            begun: Vec::new(),
            failures: Vec::new(),
        }
    }

    /// Begins what is due.
    pub(super) fn step(&mut self) {
        let now = Instant::now();
        while let Some(relay) = self.race.next(now) {
            match self.prepare(relay) {
                Ok((waiting, others, head_start)) => self.trying.push(Trying {
                    relay,
                    waiting,
                    others,
                    others_at: now + UDP_PATIENCE,
                    next_at: now,
                    head_start,
                    until: now + TLS_PATIENCE,
                    reason: None,
                }),
                Err(error) => self.on_failed(relay, error),
            }
        }
        let mut failed = Vec::new();
        for trying in &mut self.trying {
            while let Some(tuple) = trying.next(now) {
                self.shared.on_udp_asked(tuple.socket);
                let relay = trying.relay;
                let peer = self.shared.peer(relay);
                let engine = &self.shared.engine;
                match engine.connect(peer.key, peer.token, vec![tuple]) {
                    Ok(session) => self.begun.push(Won { relay, session }),
                    Err(error) => failed.push((relay, error.into())),
                }
            }
        }
        for (relay, error) in failed {
            self.give_up(relay, error);
        }
        self.give_up_hopeless(now);
    }

    /// Ends with those that only TLS could reach, and did not.
    fn give_up_hopeless(&mut self, now: Instant) {
        let is_begun = |relay: usize| self.begun.iter().any(|it| it.relay == relay);
        let hopeless = self
            .trying
            .iter()
            .filter(|it| it.until <= now && it.begin_at().is_none() && !is_begun(it.relay));
        for relay in hopeless.map(|it| it.relay).collect::<Vec<_>>() {
            self.give_up(relay, self.failure(relay, &CloseReason::HandshakeTimeout));
        }
    }

    /// Dials relays that take in TLS, over links whose UDP is late.
    pub(super) fn dial(&self) {
        self.shared.pass_over_ports();
        let mut relays = self.trying.iter().map(|it| it.relay);
        let has_tls = |relay: &usize| self.shared.peer(*relay).tls.is_some();
        match relays.find(has_tls) {
            Some(relay) => self.shared.dial(relay),
            None => self.shared.dial_in_vain(),
        }
    }

    /// Begins one more, over a connection that has come about.
    pub(super) fn begin(&mut self, relay: usize, tuple: FourTuple) {
        if !self.trying.iter().any(|it| it.relay == relay) {
            return;
        }
        let peer = self.shared.peer(relay);
        let engine = &self.shared.engine;
        match engine.connect(peer.key, peer.token, vec![tuple]) {
            Ok(session) => self.begun.push(Won { relay, session }),
            Err(error) => self.give_up(relay, error.into()),
        }
    }

    /// When [`step`](Self::step) has something to do.
    pub(super) fn next_at(&self) -> Option<Instant> {
        let waiting = self.trying.iter().filter_map(Trying::begin_at);
        let hopeless = self.trying.iter().filter(|it| {
            it.begin_at().is_none() && !self.begun.iter().any(|begun| begun.relay == it.relay)
        });
        waiting
            .chain(hopeless.map(|it| it.until))
            .chain(self.race.next_at())
            .min()
    }

    /// All failed.
    pub(super) fn is_lost(&self) -> bool {
        self.race.is_lost()
    }

    /// Takes note of what a handshake came to; tells who has won.
    pub(super) fn handle(&mut self, notice: &Notice) -> Option<Won> {
        let Notice::Session(id, event) = notice else {
            return None;
        };
        let index = self.begun.iter().position(|it| it.session == *id)?;
        match event {
            Event::Connected => Some(self.begun.swap_remove(index)),
            Event::Closed(reason) => {
                let relay = self.begun.swap_remove(index).relay;
                self.on_closed(relay, reason);
                None
            }
            _ => None,
        }
    }

    /// Relays that will never let us in, so far.
    pub(super) fn refusals(&self) -> impl Iterator<Item = usize> {
        let is_refusal = |error: &ConnectError| match error {
            ConnectError::Refused(reason) => is_final(reason),
            _ => false,
        };
        let refused = self.failures.iter().filter(move |it| is_refusal(&it.1));
        refused.map(|(relay, _)| *relay)
    }

    /// Why there is no session, once all failed.
    pub(super) fn error(mut self) -> ConnectError {
        let mut failures = std::mem::take(&mut self.failures);
        let relays = self.shared.relays.borrow().clone();
        if relays.len() == 1
            && let Some((_, only)) = failures.pop()
        {
            return only;
        }
        // In the order of preference, not of failing.
        failures.sort_by_key(|(relay, _)| *relay);
        let named = failures.into_iter();
        let named = named.map(|(relay, why)| (relays[relay].name.clone(), Box::new(why)));
        ConnectError::NoRelay(named.collect())
    }

    /// One of the handshakes with `relay` failed: the next link's need not wait for it.
    fn on_closed(&mut self, relay: usize, reason: &CloseReason) {
        let others = self.begun.iter().any(|it| it.relay == relay);
        let Some(trying) = self.trying.iter_mut().find(|it| it.relay == relay) else {
            return;
        };
        trying.next_at = Instant::now();
        if *reason != CloseReason::HandshakeTimeout {
            trying.reason.get_or_insert_with(|| reason.clone());
        }
        let told = trying.reason.as_ref().unwrap_or(reason).clone();
        if is_final(reason) {
            self.give_up(relay, self.failure(relay, reason));
        } else if !others && trying.begin_at().is_none() {
            self.give_up(relay, self.failure(relay, &told));
        }
    }

    /// Nothing more is hoped for of `relay`.
    fn give_up(&mut self, relay: usize, error: ConnectError) {
        self.trying.retain(|it| it.relay != relay);
        let shared = &self.shared;
        self.begun.retain(|it| {
            if it.relay == relay {
                shared.say_goodbye(it.session);
            }
            it.relay != relay
        });
        self.on_failed(relay, error);
    }

    fn on_failed(&mut self, relay: usize, error: ConnectError) {
        if self.shared.has_several() {
            let name = self.shared.peer(relay).name;
            tracing::debug!("relay {name}: {error}");
        }
        self.race.on_failed(Instant::now(), relay);
        self.failures.push((relay, error));
    }

    /// The ways to a relay, in the order in which they are tried, those by other ports, and the
    /// first one's head start.
    fn prepare(&self, relay: usize) -> Result<Ways, ConnectError> {
        let shared = &self.shared;
        let addrs = shared.addrs.borrow();
        let mut links = shared.links.borrow_mut();
        let mut failure = None;
        let mut may_dial = false;
        for link in links.iter_mut() {
            if !link.choice.uses_udp() {
                link.choice.on_udp_asked(Instant::now());
                may_dial = shared.peer(relay).tls.is_some();
                continue;
            }
            if let Err(error) = shared.prepare(link) {
                tracing::warn!("{error}");
                failure.get_or_insert(error);
            }
        }
        // Turns over the links first and the relay's addresses second: a link is more often dead
        // than an address. Links to be spared come last.
        let mut links: Vec<&Link> = links.iter().collect();
        links.sort_by_key(|link| link.rank());
        let tuples = in_turns(links.iter().map(|link| link.candidates(relay).collect()));
        let others = in_turns(links.iter().map(|link| link.others(relay).collect()));
        if tuples.is_empty() && !may_dial {
            return Err(failure.map_or_else(
                || ConnectError::NoUsableLink {
                    relay: addrs[relay].clone(),
                    links: links.iter().map(|link| link.name().to_owned()).collect(),
                },
                ConnectError::Link,
            ));
        }
        let mut ranks = links.iter().map(|link| link.rank());
        let head_start = match (ranks.next(), ranks.next()) {
            (Some(first), Some(second)) if first == second => HEAD_START_FIRST,
            _ => HEAD_START,
        };
        Ok((tuples, others, head_start))
    }

    fn failure(&self, relay: usize, reason: &CloseReason) -> ConnectError {
        if *reason != CloseReason::HandshakeTimeout {
            return ConnectError::Refused(reason.clone());
        }
        let links = self.shared.links.borrow();
        ConnectError::NoAnswer {
            relay: self.shared.addrs.borrow()[relay].clone(),
            links: links.iter().map(|link| link.name().to_owned()).collect(),
        }
    }
}

impl Trying {
    /// When the next handshake is to begin, if there is one.
    fn begin_at(&self) -> Option<Instant> {
        match (self.waiting.is_empty(), self.others.is_empty()) {
            (false, _) => Some(self.next_at),
            (true, false) => Some(self.next_at.max(self.others_at)),
            (true, true) => None,
        }
    }

    /// What is due to be tried.
    fn next(&mut self, now: Instant) -> Option<FourTuple> {
        self.begin_at().filter(|at| *at <= now)?;
        let (tuple, wait) = match self.waiting.pop_front() {
            Some(tuple) => (tuple, std::mem::replace(&mut self.head_start, HEAD_START)),
            None => (self.others.pop_front()?, HEAD_START_OTHERS),
        };
        self.next_at = now + wait;
        Some(tuple)
    }
}

/// By turns: the first of each, the second of each, and so on.
fn in_turns(lists: impl Iterator<Item = Vec<FourTuple>>) -> VecDeque<FourTuple> {
    let lists: Vec<_> = lists.collect();
    let longest = lists.iter().map(Vec::len).max().unwrap_or(0);
    (0..longest)
        .flat_map(|i| lists.iter().filter_map(move |list| list.get(i)))
        .copied()
        .collect()
}

impl Drop for Handshakes {
    fn drop(&mut self) {
        for other in &self.begun {
            self.shared.say_goodbye(other.session);
        }
    }
}

/// Whether the relay itself said, by the key that is pinned, that it will not have us. Another key
/// or version is what anybody on the way can show us.
pub(super) fn is_final(reason: &CloseReason) -> bool {
    matches!(reason, CloseReason::Unauthorised | CloseReason::Revoked)
}
