//! All sessions of one set of sockets: which datagram belongs to which, and who may begin one.
//!
//! Answers that need no session (Retry, version negotiation, who is here, stateless reset) are made
//! here, from nothing but the datagram that asks for them, and never larger than it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use rustls::{ServerConfig as TlsServerConfig, Side};
use tabane_base::{Duration, Instant, Rng, Seed};
use thiserror::Error;

use crate::config::{ConfigError, RetryPolicy, ServerConfig, SessionConfig};
use crate::drops::{DropReason, Drops};
use crate::handshake::Handshake;
use crate::id::{AttemptId, ConnectionId, FourTuple, SessionHandle};
use crate::identity::{Identity, PublicKey};
use crate::retry::{Proofs, RESET_PREFIX, RESET_TOKEN_LEN};
use crate::session::Session;
use crate::tls;
use crate::transmit::TransmitBatch;
use crate::wire::{
    INQUIRY_VERSION, LongError, LongHeader, LongKind, MIN_INITIAL_SIZE, ShortHeader,
    inquiry_answer, is_long, parse_version_negotiation, version_negotiation,
};

/// Answers without a session per [`ANSWER_WINDOW`]: enough for every client of a restarted relay
/// to learn of it within seconds, too few to be of use against third parties.
const MAX_ANSWERS: u32 = 1_000;
const ANSWER_WINDOW: Duration = Duration::from_secs(1);

/// Why a session cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConnectError {
    /// There is no link to begin on.
    #[error("there is no link to connect over")]
    NoLink,
    /// TLS refused its settings.
    #[error("the handshake cannot begin: {0}")]
    Tls(String),
}

/// What happened outside of sessions.
#[derive(Clone, Debug, Default)]
pub struct EndpointCounters {
    /// Datagrams that belonged to no session, or to none any more.
    pub drops: Drops,
    /// Sessions begun by others.
    pub accepted: u64,
    /// Retry packets sent.
    pub retries: u64,
    /// Stateless resets sent.
    pub resets: u64,
}

struct Server {
    config: ServerConfig,
    tls: Arc<TlsServerConfig>,
    proofs: Proofs,
}

/// The sessions of a client or a relay.
pub struct Endpoint {
    identity: Identity,
    config: SessionConfig,
    server: Option<Server>,
    sessions: Vec<Option<Session>>,
    /// Places in `sessions` that are empty.
    free: Vec<usize>,
    /// Sessions of others that were not admitted when last looked at; a few more than there are.
    strangers: BTreeSet<SessionHandle>,
    by_id: BTreeMap<ConnectionId, SessionHandle>,
    by_attempt: BTreeMap<AttemptId, SessionHandle>,
    attempt_by_handle: BTreeMap<SessionHandle, AttemptId>,
    incoming: VecDeque<SessionHandle>,
    answers: VecDeque<(FourTuple, Vec<u8>)>,
    answers_since: Instant,
    answers_made: u32,
    rng: Rng,
    counters: EndpointCounters,
}

impl Endpoint {
    /// An endpoint that opens sessions. `seed` must be secret and fresh: names on the wire are
    /// drawn from it.
    ///
    /// # Errors
    /// When a setting is out of range.
    pub fn client(
        identity: Identity,
        config: SessionConfig,
        seed: [u8; 32],
    ) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self {
            identity,
            config,
            server: None,
            sessions: Vec::new(),
            free: Vec::new(),
            strangers: BTreeSet::new(),
            by_id: BTreeMap::new(),
            by_attempt: BTreeMap::new(),
            attempt_by_handle: BTreeMap::new(),
            incoming: VecDeque::new(),
            answers: VecDeque::new(),
            answers_since: Instant::EPOCH,
            answers_made: 0,
            rng: fold(seed).rng("endpoint"),
            counters: EndpointCounters::default(),
        })
    }

    /// An endpoint that accepts sessions.
    ///
    /// # Errors
    /// When a setting is out of range or the key cannot be used.
    pub fn server(
        identity: Identity,
        config: SessionConfig,
        server: ServerConfig,
        seed: [u8; 32],
    ) -> Result<Self, ConfigError> {
        let tls = tls::server_config(&identity).map_err(|e| ConfigError::Key(e.to_string()))?;
        let proofs = Proofs::new(&identity);
        let server = Server {
            config: server,
            tls,
            proofs,
        };
        let client = Self::client(identity, config, seed)?;
        Ok(Self {
            server: Some(server),
            ..client
        })
    }

    /// Begins a session with the end that owns `peer`. The handshake goes round `tuples`, one per
    /// link, until one answers.
    ///
    /// # Errors
    /// When there is no link.
    pub fn connect(
        &mut self,
        now: Instant,
        peer: PublicKey,
        token: Option<Vec<u8>>,
        tuples: Vec<FourTuple>,
    ) -> Result<SessionHandle, ConnectError> {
        if tuples.is_empty() {
            return Err(ConnectError::NoLink);
        }
        let failed = |error: rustls::Error| ConnectError::Tls(error.to_string());
        let tls = tls::client_config(&self.identity, peer).map_err(failed)?;
        let parameters = self.config.parameters(None);
        let names = (AttemptId(self.rng.next_u64()), self.fresh_id());
        let timeout = self.config.handshake_timeout;
        let handshake =
            Handshake::client(now, tls, &parameters, names, tuples, timeout).map_err(failed)?;
        let seed = Seed(self.rng.next_u64());
        let side = (Side::Client, names.1);
        let config = self.config.clone();
        let session = Session::new(now, config, &parameters, handshake, side, token, seed);
        Ok(self.insert(names, session))
    }

    fn fresh_id(&mut self) -> ConnectionId {
        loop {
            let id = ConnectionId(self.rng.next_u64() as u32);
            if !self.by_id.contains_key(&id) {
                return id;
            }
        }
    }

    fn insert(
        &mut self,
        (attempt, id): (AttemptId, ConnectionId),
        session: Session,
    ) -> SessionHandle {
        let index = self.free.pop().unwrap_or_else(|| {
            self.sessions.push(None);
            self.sessions.len() - 1
        });
        self.sessions[index] = Some(session);
        let handle = SessionHandle(index);
        self.by_id.insert(id, handle);
        self.by_attempt.insert(attempt, handle);
        self.attempt_by_handle.insert(handle, attempt);
        handle
    }

    /// Takes in one UDP datagram, decrypting it in place. Gives the session it moved, which must
    /// be drained next. What cannot be used is counted.
    pub fn handle_datagram(
        &mut self,
        now: Instant,
        tuple: FourTuple,
        data: &mut [u8],
    ) -> Option<SessionHandle> {
        let result = if is_long(data) {
            self.handle_long(now, tuple, data)
        } else {
            self.handle_short(now, tuple, data)
        };
        result
            .map_err(|reason| self.counters.drops.count(reason))
            .ok()
    }

    fn handle_short(
        &mut self,
        now: Instant,
        tuple: FourTuple,
        data: &mut [u8],
    ) -> Result<SessionHandle, DropReason> {
        let header = ShortHeader::parse(data).map_err(|_| DropReason::Malformed)?;
        let Some(handle) = self.by_id.get(&header.destination).copied() else {
            return self.handle_stray(now, tuple, header, data);
        };
        let session = self.session_mut(handle).ok_or(DropReason::UnknownSession)?;
        // The session counts its own drops; it must be drained only when something changed.
        match session.handle_short(now, tuple, header, data) {
            Ok(()) => Ok(handle),
            Err(reason) => Err(reason),
        }
    }

    /// A packet for a session that we do not know: the answer to one of ours from an end that
    /// forgot it, or one from an end whose session we forgot.
    fn handle_stray(
        &mut self,
        now: Instant,
        tuple: FourTuple,
        header: ShortHeader,
        data: &[u8],
    ) -> Result<SessionHandle, DropReason> {
        // Servers have told the token, so it is clients who look for it.
        if self.server.is_none()
            && let Some((_, token)) = data.split_last_chunk::<RESET_TOKEN_LEN>()
        {
            let same = |session: &Session| session.reset_token().as_ref() == Some(token);
            let sessions = self.sessions.iter_mut().enumerate();
            let mut known = sessions.filter_map(|(i, s)| s.as_mut().map(|s| (i, s)));
            if let Some((index, session)) = known.find(|(_, session)| same(session)) {
                session.end(crate::CloseReason::StatelessReset);
                return Ok(SessionHandle(index));
            }
        }
        if let Some(server) = &self.server
            && data.len() > RESET_PREFIX + RESET_TOKEN_LEN
        {
            let token = server.proofs.reset_token(header.destination);
            let mut reset = vec![0; RESET_PREFIX];
            self.rng.fill(&mut reset);
            reset[0] = 0x40 | reset[0] & 0x3f;
            reset.extend_from_slice(&token);
            if self.may_answer(now) {
                self.counters.resets += 1;
                self.answers.push_back((tuple, reset));
            }
        }
        Err(DropReason::UnknownSession)
    }

    fn may_answer(&mut self, now: Instant) -> bool {
        if now.since(self.answers_since) >= ANSWER_WINDOW {
            (self.answers_since, self.answers_made) = (now, 0);
        }
        self.answers_made += 1;
        self.answers_made <= MAX_ANSWERS
    }

    fn handle_long(
        &mut self,
        now: Instant,
        tuple: FourTuple,
        data: &mut [u8],
    ) -> Result<SessionHandle, DropReason> {
        let (mut rest, size) = (data, 0);
        let size = size + rest.len();
        let mut moved = None;
        // Packets of both handshake levels may share a datagram.
        while is_long(rest) {
            let header = match LongHeader::parse(rest) {
                Ok(header) => header,
                Err(_) if moved.is_some() => break,
                Err(LongError::Malformed) => return Err(DropReason::Malformed),
                Err(LongError::Version { version, attempt }) => {
                    return self.handle_version(now, tuple, (version, attempt), rest);
                }
            };
            let (packet, after) = rest.split_at_mut(header.end);
            let known = self.by_attempt.get(&header.attempt).copied();
            let handle = match known {
                Some(handle) => handle,
                None => self.accept(now, tuple, &header, size)?,
            };
            let session = self.session_mut(handle).ok_or(DropReason::UnknownSession)?;
            match &header.kind {
                LongKind::Retry { token } => session.handle_retry(token),
                LongKind::Initial { .. } | LongKind::Handshake => {
                    session.handle_long(now, tuple, &header, packet);
                }
            }
            if known.is_none() && !session.has_heard() {
                // Shaped like a beginning, and none.
                self.forget(handle);
                return Err(DropReason::NotAuthentic);
            }
            if known.is_none() {
                self.counters.accepted += 1;
                self.incoming.push_back(handle);
            }
            moved = Some(handle);
            rest = after;
        }
        moved.ok_or(DropReason::Malformed)
    }

    fn handle_version(
        &mut self,
        now: Instant,
        tuple: FourTuple,
        (version, attempt): (u32, AttemptId),
        data: &[u8],
    ) -> Result<SessionHandle, DropReason> {
        if version == 0 {
            let theirs = parse_version_negotiation(data).map_err(|_| DropReason::Malformed)?;
            let handle = self.by_attempt.get(&attempt).copied();
            let handle = handle.ok_or(DropReason::UnknownSession)?;
            let session = self.session_mut(handle).ok_or(DropReason::UnknownSession)?;
            session.handle_version_negotiation(theirs);
            return Ok(handle);
        }
        let large_enough = data.len() >= MIN_INITIAL_SIZE;
        let is_open = self.server.as_ref().map(|server| server.config.is_open);
        if let (Some(is_open), true) = (is_open, large_enough && self.may_answer(now)) {
            let answer = match (version, is_open) {
                (INQUIRY_VERSION, true) => inquiry_answer(attempt, self.identity.public_key()),
                _ => version_negotiation(attempt),
            };
            self.answers.push_back((tuple, answer));
        }
        Err(DropReason::UnknownVersion)
    }

    /// A first Initial: proves the address where that is asked for, and begins a session.
    fn accept(
        &mut self,
        now: Instant,
        tuple: FourTuple,
        header: &LongHeader,
        datagram: usize,
    ) -> Result<SessionHandle, DropReason> {
        let LongKind::Initial { token } = &header.kind else {
            return Err(DropReason::UnknownSession);
        };
        if datagram < MIN_INITIAL_SIZE {
            return Err(DropReason::Malformed);
        }
        let strangers = self.count_strangers();
        let server = self.server.as_ref().ok_or(DropReason::UnknownSession)?;
        let ip = tuple.remote.ip();
        let proved = server.proofs.verify(now, ip, header.attempt, token);
        let must_prove = match server.config.retry {
            RetryPolicy::Always => true,
            RetryPolicy::UnderLoad(most) => strangers >= most,
        };
        if must_prove && !proved {
            let had_token = !token.is_empty();
            let retry = LongHeader {
                kind: LongKind::Retry {
                    token: server.proofs.token(now, ip, header.attempt),
                },
                attempt: header.attempt,
                source: ConnectionId(0),
                pn_offset: 0,
                end: 0,
            };
            if self.may_answer(now) {
                let mut out = Vec::new();
                retry.emit(&mut out, 0, 0);
                self.counters.retries += 1;
                self.answers.push_back((tuple, out));
            }
            return Err(if had_token {
                DropReason::BadToken
            } else {
                DropReason::UnknownSession
            });
        }
        if self.by_id.len() >= server.config.max_sessions
            || strangers >= server.config.max_handshakes
        {
            return Err(DropReason::Overloaded);
        }
        self.begin(now, (tuple, proved), header.attempt)
    }

    /// Sessions whose client has not been admitted. Looks at no more than the limit of them.
    fn count_strangers(&mut self) -> usize {
        let sessions = &self.sessions;
        let is_stranger = |handle: &SessionHandle| {
            let session = sessions.get(handle.0).and_then(Option::as_ref);
            session.is_some_and(|session| !session.is_connected() && !session.is_closed())
        };
        let least = self
            .server
            .as_ref()
            .map_or(0, |server| match server.config.retry {
                RetryPolicy::UnderLoad(most) => most.min(server.config.max_handshakes),
                RetryPolicy::Always => server.config.max_handshakes,
            });
        if self.strangers.len() >= least {
            self.strangers.retain(is_stranger);
        }
        self.strangers.len()
    }

    fn begin(
        &mut self,
        now: Instant,
        from: (FourTuple, bool),
        attempt: AttemptId,
    ) -> Result<SessionHandle, DropReason> {
        let id = self.fresh_id();
        let server = self.server.as_ref().ok_or(DropReason::UnknownSession)?;
        let parameters = self.config.parameters(Some(server.proofs.reset_token(id)));
        let (tls, timeout) = (server.tls.clone(), self.config.handshake_timeout);
        let handshake = Handshake::server(now, tls, &parameters, (attempt, id), from, timeout)
            .map_err(|_| DropReason::Malformed)?;
        let seed = Seed(self.rng.next_u64());
        let config = self.config.clone();
        let side = (Side::Server, id);
        let session = Session::new(now, config, &parameters, handshake, side, None, seed);
        let handle = self.insert((attempt, id), session);
        self.strangers.insert(handle);
        Ok(handle)
    }

    /// A session that somebody opened to us; its first event will be `Authorise`.
    pub fn poll_incoming(&mut self) -> Option<SessionHandle> {
        self.incoming.pop_front()
    }

    /// Appends answers that belong to no session. `false` when there are none.
    pub fn poll_transmit(&mut self, _now: Instant, batch: &mut TransmitBatch) -> bool {
        let any = !self.answers.is_empty();
        for (tuple, answer) in self.answers.drain(..) {
            let start = batch.buf.len();
            batch.buf.extend_from_slice(&answer);
            batch.finish(tuple, start);
        }
        any
    }

    /// The session, while it is not reaped.
    #[must_use]
    pub fn session(&self, handle: SessionHandle) -> Option<&Session> {
        self.sessions.get(handle.0)?.as_ref()
    }

    /// The session, while it is not reaped.
    pub fn session_mut(&mut self, handle: SessionHandle) -> Option<&mut Session> {
        self.sessions.get_mut(handle.0)?.as_mut()
    }

    /// All sessions that are not reaped.
    #[must_use]
    pub fn handles(&self) -> Vec<SessionHandle> {
        let taken = self
            .sessions
            .iter()
            .enumerate()
            .filter(|(_, session)| session.is_some());
        taken.map(|(index, _)| SessionHandle(index)).collect()
    }

    /// Forgets a session that is closed and has nothing more to say. `true` when it is gone.
    pub fn reap(&mut self, _now: Instant, handle: SessionHandle) -> bool {
        let Some(session) = self.session(handle) else {
            return true;
        };
        if !session.is_closed() {
            return false;
        }
        self.forget(handle);
        true
    }

    fn forget(&mut self, handle: SessionHandle) {
        let Some(session) = self.sessions[handle.0].take() else {
            return;
        };
        self.free.push(handle.0);
        self.strangers.remove(&handle);
        self.by_id.remove(&session.local_id());
        if let Some(attempt) = self.attempt_by_handle.remove(&handle) {
            self.by_attempt.remove(&attempt);
        }
        self.incoming.retain(|other| *other != handle);
    }

    /// What happened outside of sessions.
    #[must_use]
    pub const fn counters(&self) -> &EndpointCounters {
        &self.counters
    }
}

/// The generator's seed from a secret of full length.
fn fold(seed: [u8; 32]) -> Seed {
    let words = seed
        .chunks_exact(8)
        .map(|c| c.iter().fold(0, |w, b| w << 8 | u64::from(*b)));
    Seed(words.fold(0, |mix: u64, word| mix.rotate_left(17) ^ word))
}
