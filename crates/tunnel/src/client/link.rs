//! One link of a client: its sockets, and the path over it.
//!
//! Owns which addresses of ours and of the relay go together on this link. A link whose sockets
//! or path fail is tried again with other sockets and the next pair of addresses, ever more
//! slowly; whether data takes it is core's decision.

use std::net::{IpAddr, SocketAddr};

use tabane_base::Duration;
use tabane_core::{
    FourTuple, PathError, PathId, PathPolicy, PathSnapshot, SessionSnapshot, SocketId,
};
use tabane_linux::{UdpBind, UdpError};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::LinkSnapshot;
use super::carrier::{Carrier, CarrierMemory, Choice};
use super::link_bind::LinkBind;
use super::pairs::Pairs;
use crate::engine::{Engine, SessionId};
use crate::monitor::HostMonitor;

/// Waits before a link that failed is tried again: first and longest. An interface that comes
/// back is used within a second; one that stays dead costs a packet now and then.
const FIRST_RETRY: Duration = Duration::from_millis(500);
const LAST_RETRY: Duration = Duration::from_secs(10);

/// A path that is late to answer is waited for so much longer before it makes room for the next
/// pair of addresses: when several have failed, and longest. Where there is no other pair, it is
/// asked on by core all the while.
const FIRST_PATIENCE: Duration = Duration::from_secs(1);
const LAST_PATIENCE: Duration = Duration::from_secs(8);
const ONLY_PATIENCE: Duration = Duration::from_secs(30);
/// What the user is told meanwhile.
const WAITED_FOR: &str = "no answer so far; it is still asked";

/// What the user wishes of a link while it is used. What is left out stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LinkWish {
    /// What share of it may be used, 0 to 1 (SBAM's α); at 0 it carries data only while no other
    /// link works.
    pub weight: Option<f64>,
    /// Not used at all, not even probed.
    pub paused: Option<bool>,
}

/// Why a link cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// There is one of this name.
    #[error("link {name} is in use already")]
    InUse {
        /// The name.
        name: String,
    },
    /// There is none of this name.
    #[error("there is no link called {name}")]
    Unknown {
        /// The name.
        name: String,
    },
    /// It cannot be used in this way.
    #[error("link {name}: {source}")]
    Policy {
        /// The name.
        name: String,
        /// What is wrong.
        source: PathError,
    },
    /// No socket could be had on it.
    #[error("link {name} cannot be used: {source}")]
    Socket {
        /// The name.
        name: String,
        /// What the kernel said.
        source: UdpError,
    },
}

/// A TLS connection over a link.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tls {
    pub(super) tuple: FourTuple,
    /// To which relay.
    pub(super) relay: usize,
}

pub(super) struct Link {
    pub(super) bind: LinkBind,
    /// For IPv4 and IPv6.
    sockets: [Option<SocketId>; 2],
    /// By relay: where it is found, as it was when the sockets were opened.
    remotes: Vec<Vec<SocketAddr>>,
    pub(super) pairs: Pairs,
    path: Option<PathId>,
    pub(super) choice: Choice,
    /// The path beside it, by the other carrier, that has not answered yet, or is compared.
    pub(super) trial: Option<PathId>,
    /// Paths beside it by UDP, of which the first that answers counts.
    pub(super) asked: Vec<PathId>,
    pub(super) tls: Option<Tls>,
    /// A TLS connection in the making.
    pub(super) dialing: Option<AbortHandle>,
    /// When to try again. `None` while a path is open; links without one are always due at once
    /// or later.
    retry_at: Option<Instant>,
    /// When the path is given up, which is late to answer.
    give_up_at: Option<Instant>,
    failures: u32,
    problem: Option<String>,
    paused: bool,
}

impl Link {
    pub(super) fn new(bind: LinkBind) -> Self {
        let choice = Choice::new(bind.carrier.kind, bind.memory);
        Self {
            sockets: [None; 2],
            remotes: Vec::new(),
            pairs: Pairs::beginning_with(choice.port()),
            bind,
            path: None,
            choice,
            trial: None,
            asked: Vec::new(),
            tls: None,
            dialing: None,
            retry_at: None,
            give_up_at: None,
            failures: 0,
            problem: None,
            paused: false,
        }
    }

    /// What the network taught before; tells whether that is news.
    pub(super) fn recall(&mut self, memory: CarrierMemory) -> bool {
        self.bind.memory = Some(memory);
        self.choice.recall(memory)
    }

    pub(super) const fn policy(&self) -> PathPolicy {
        self.bind.policy
    }

    /// Where it stands among links for a handshake: the ones that cost least first.
    pub(super) fn rank(&self) -> (bool, bool, u8) {
        let policy = &self.bind.policy;
        (policy.weight <= 0.0, policy.backup, policy.priority)
    }

    /// Changes how it may be used.
    ///
    /// # Errors
    /// The policy is out of range; it stays as it was.
    pub(super) fn set_policy(
        &mut self,
        engine: &Engine,
        session: Option<SessionId>,
        policy: PathPolicy,
    ) -> Result<(), PathError> {
        if let (Some(session), Some(path)) = (session, self.path) {
            let set = engine.visit(session, |visit| {
                visit.touch();
                visit.session.set_path_policy(visit.now, path, policy)
            });
            match set {
                // A path that core has given up takes it when it is opened anew.
                None | Some(Ok(()) | Err(PathError::Unknown)) => {}
                Some(Err(error)) => return Err(error),
            }
        }
        self.bind.policy = policy;
        Ok(())
    }

    pub(super) fn with_pause(self, paused: bool) -> Self {
        Self { paused, ..self }
    }

    pub(super) fn name(&self) -> &str {
        &self.bind.name
    }

    /// Opens sockets where there are none, for relays at these addresses and, beside their own,
    /// these ports.
    pub(super) fn prepare(
        &mut self,
        engine: &Engine,
        relays: &[Vec<SocketAddr>],
        ports: &[&[u16]],
        mark: Option<u32>,
    ) -> Result<(), LinkError> {
        if self.paused || (!self.pairs.is_empty() && self.remotes == relays) {
            return Ok(());
        }
        self.remotes = relays.to_vec();
        let Self {
            bind,
            sockets,
            pairs,
            ..
        } = self;
        let remotes = |(relay, addrs): (usize, &Vec<SocketAddr>)| match &bind.relay_addrs {
            Some(own) => own.get(relay).cloned().unwrap_or_default(),
            None => addrs.clone(),
        };
        let remotes: Vec<Vec<SocketAddr>> = relays.iter().enumerate().map(remotes).collect();
        pairs.clear(relays.len());
        let each = remotes.iter().enumerate();
        let each = each.flat_map(|(relay, list)| list.iter().map(move |remote| (relay, remote)));
        let each = each.flat_map(|(relay, remote)| {
            let ways = bind.ways_to(*remote).into_iter();
            ways.map(move |(remote, local)| (relay, remote, local))
        });
        let mut failure = None;
        for (relay, remote, local) in each {
            let family = &mut sockets[usize::from(remote.is_ipv6())];
            if family.is_none() {
                let interface = bind.egress.as_ref().map(|it| it.interface.as_str());
                let mark = bind.mark(mark);
                match engine.bind(&bind.name, UdpBind { interface, local }, mark, false) {
                    Ok(socket) => *family = Some(socket),
                    Err(error) => failure = Some(error),
                }
            }
            if let Some(socket) = *family {
                // Others pass on what is sent to one port.
                let others = match &bind.relay_addrs {
                    Some(_) => &[],
                    None => ports[relay],
                };
                pairs.add(relay, socket, remote, others);
            }
        }
        self.problem = match (&failure, !self.pairs.is_empty()) {
            (_, true) => None,
            (Some(error), false) => Some(error.to_string()),
            (None, false) => Some("no address of a family that the relay has".to_owned()),
        };
        match failure {
            Some(source) if self.pairs.is_empty() => Err(LinkError::Socket {
                name: self.bind.name.clone(),
                source,
            }),
            _ => Ok(()),
        }
    }

    /// The next address pair to try for a relay.
    pub(super) fn candidate(&self, relay: usize) -> Option<FourTuple> {
        let count = self.candidates(relay).count().max(1);
        let turn = self.failures as usize % count;
        self.candidates(relay).nth(turn)
    }

    /// The address pairs for a relay that are tried at once.
    pub(super) fn candidates(&self, relay: usize) -> impl Iterator<Item = FourTuple> {
        let pairs = self.pairs.first(relay);
        pairs.filter(|_| self.choice.uses_udp())
    }

    /// The others, for when those are silent.
    pub(super) fn others(&self, relay: usize) -> impl Iterator<Item = FourTuple> {
        let pairs = self.pairs.others(relay);
        pairs.filter(|_| self.choice.uses_udp())
    }

    /// How a relay that is found here is dialed: its address, and ours.
    pub(super) fn dials(&self, relay: SocketAddr) -> Option<(SocketAddr, SocketAddr)> {
        // Others pass on datagrams alone.
        let way = self.bind.ways_to(relay).into_iter().next()?;
        self.bind.relay_addrs.is_none().then_some(way)
    }

    /// A relay is here no longer, which is found at `addrs` now. Neighbours' ways follow by
    /// themselves, and a relay whose addresses are not known may be where it was.
    pub(super) fn is_left(&self, here: IpAddr, addrs: &[SocketAddr]) -> bool {
        let mut ways = addrs.iter().flat_map(|addr| self.bind.ways_to(*addr));
        let is_here = ways.any(|(to, _)| to.ip() == here);
        self.bind.relay_addrs.is_none() && !addrs.is_empty() && !is_here
    }

    /// Begins anew, at the addresses that the relay has now.
    pub(super) fn follow(&mut self, engine: &Engine, session: SessionId) {
        self.withdraw(engine, Some(session));
        self.retry_at = None;
        self.failures = 0;
    }

    pub(super) fn owns(&self, socket: SocketId) -> bool {
        self.tls.is_some_and(|tls| tls.tuple.socket == socket)
            || self.sockets.contains(&Some(socket))
    }

    pub(super) const fn path(&self) -> Option<PathId> {
        self.path
    }

    /// All that carry data.
    pub(super) fn paths(&self) -> impl Iterator<Item = PathId> {
        let beside = self.trial.filter(|_| self.choice.is_comparing());
        self.path.into_iter().chain(beside)
    }

    pub(super) const fn is_paused(&self) -> bool {
        self.paused
    }

    /// The path that carries it from here on is another; gives the one that did.
    pub(super) fn replace_path(&mut self, path: PathId) -> Option<PathId> {
        self.retry_at = None;
        self.give_up_at = None;
        self.path.replace(path)
    }

    pub(super) fn is_path(&self, path: PathId) -> bool {
        self.path == Some(path)
    }

    /// Whether it is time to open a path over it.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        !self.paused && self.path.is_none() && self.retry_at.is_none_or(|at| at <= now)
    }

    pub(super) fn retry_at(&self) -> Option<Instant> {
        match self.path {
            Some(_) => self.give_up_at,
            None => self.retry_at.filter(|_| !self.paused),
        }
    }

    /// The path to `relay` is late to answer, as over a full queue: whether it is waited for.
    pub(super) fn waits_for_answer(&mut self, now: Instant, relay: usize) -> bool {
        let patience = match self.candidates(relay).count() {
            0 | 1 => ONLY_PATIENCE,
            _ if self.failures == 0 => return false,
            _ => (FIRST_PATIENCE * 2_u32.saturating_pow(self.failures)).min(LAST_PATIENCE),
        };
        self.give_up_at = Some(now + patience);
        self.problem = Some(WAITED_FOR.to_owned());
        true
    }

    /// The path that was waited for in vain.
    pub(super) fn take_given_up(&mut self, now: Instant) -> Option<PathId> {
        self.give_up_at.take_if(|at| *at <= now)?;
        self.path
    }

    pub(super) fn on_opened(&mut self, path: PathId) {
        self.path = Some(path);
        self.retry_at = None;
        self.give_up_at = None;
    }

    pub(super) fn on_up(&mut self) {
        self.give_up_at = None;
        self.failures = 0;
        self.problem = None;
    }

    /// The path is gone, or could not be opened.
    pub(super) fn on_failed(&mut self, now: Instant, problem: String) {
        let wait = FIRST_RETRY * 2_u32.saturating_pow(self.failures);
        self.path = None;
        self.retry_at = Some(now + wait.min(LAST_RETRY));
        self.failures = self.failures.saturating_add(1).min(16);
        self.problem = Some(problem);
    }

    /// The session is gone, and every path with it.
    pub(super) fn on_session_ended(&mut self) {
        self.path = None;
        self.trial = None;
        self.asked.clear();
        self.retry_at = None;
        self.failures = 0;
        self.choice.on_session_ended();
    }

    /// It may be tried at once.
    pub(super) fn retry_at_once(&mut self) {
        self.retry_at = None;
    }

    /// Gives the sockets back; the next [`prepare`](Self::prepare) opens others.
    pub(super) fn discard_sockets(&mut self, engine: &Engine) {
        for socket in self.sockets.iter_mut().filter_map(Option::take) {
            engine.unbind(socket);
        }
        self.pairs.clear(0);
    }

    /// Gives up TLS, be it in the making.
    pub(super) fn discard_tls(&mut self, engine: &Engine) {
        if let Some(tls) = self.tls.take() {
            engine.unbind(tls.tuple.socket);
            // It may be dialed anew.
            self.choice.on_dial_dropped();
        }
        if let Some(dialing) = self.dialing.take() {
            dialing.abort();
            self.choice.on_dial_dropped();
        }
    }

    /// Ends the link: its path is closed and its sockets with it.
    pub(super) fn release(mut self, engine: &Engine, session: Option<SessionId>) {
        self.withdraw(engine, session);
    }

    /// Has it not used at all, or used again.
    pub(super) fn pause(&mut self, paused: bool, engine: &Engine, session: Option<SessionId>) {
        if std::mem::replace(&mut self.paused, paused) || !paused {
            return;
        }
        self.withdraw(engine, session);
        // What was wrong before is no concern of a link that is not used.
        self.on_session_ended();
        self.problem = None;
    }

    /// Closes the path and the sockets.
    fn withdraw(&mut self, engine: &Engine, session: Option<SessionId>) {
        if let Some(session) = session {
            engine.visit(session, |visit| {
                for path in self
                    .path
                    .into_iter()
                    .chain(self.trial)
                    .chain(self.asked.drain(..))
                {
                    // A path that core has given up already needs no closing.
                    let _ = visit.session.close_path(visit.now, path);
                }
                let tls = self.tls.map(|tls| tls.tuple.socket);
                for socket in self.sockets.iter().copied().flatten().chain(tls) {
                    visit.session.handle_socket_lost(visit.now, socket);
                }
                visit.touch();
            });
        }
        self.path = None;
        self.trial = None;
        self.discard_sockets(engine);
        self.discard_tls(engine);
        self.choice = Choice::new(self.bind.carrier.kind, self.bind.memory);
    }

    pub(super) fn snapshot(
        &self,
        session: Option<&SessionSnapshot>,
        engine: &Engine,
        monitor: &HostMonitor,
    ) -> LinkSnapshot {
        let path = |session: &SessionSnapshot| -> Option<PathSnapshot> {
            session
                .paths
                .iter()
                .find(|path| self.is_path(path.id))
                .cloned()
        };
        let carrier = self.choice.carrier();
        let port = self.pairs.port().filter(|_| carrier == Carrier::Udp);
        LinkSnapshot {
            name: self.bind.name.clone(),
            policy: self.bind.policy,
            carrier,
            carrier_port: port,
            carrier_why: self.choice.why(Instant::now(), port),
            memory: self.choice.memory(),
            // One that is late to answer is down to whoever looks.
            path: session.and_then(path).filter(|_| self.give_up_at.is_none()),
            volume: engine.volume(&self.bind.name),
            estimate: monitor.link(&self.bind.name),
            problem: self.problem.clone(),
            paused: self.paused,
        }
    }
}
