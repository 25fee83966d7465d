//! All sessions of one set of sockets: which datagram belongs to which.
//!
//! Answers that need no session (Retry, version negotiation, who is here, stateless reset) are made
//! here, from nothing but the datagram that asks for them, and never larger than it; how many there
//! may be is for `answers` to say, who may begin a session for `accept`.

mod accept;
mod answers;
mod sessions;
mod strangers;

use std::collections::VecDeque;
use std::ops::AddAssign;

use rustls::Side;
use tabane_base::Instant;
use thiserror::Error;

use crate::close::CloseReason;
use crate::config::{ConfigError, ServerConfig, SessionConfig};
use crate::drops::{DropReason, Drops};
use crate::handshake::Handshake;
use crate::id::{AttemptId, ConnectionId, FourTuple, SessionHandle};
use crate::identity::{Identity, PublicKey};
use crate::memory_pool::MemoryPool;
use crate::retry::{Proofs, RESET_PREFIX, RESET_TOKEN_LEN};
use crate::secret_rng::SecretRng;
use crate::session::Session;
use crate::tls;
use crate::transmit::TransmitBatch;
use crate::wire::{
    INQUIRY_VERSION, LongError, LongHeader, LongKind, MIN_INITIAL_SIZE, ShortHeader,
    inquiry_answer, is_long, parse_version_negotiation, version_negotiation,
};
use accept::Server;
use answers::{Answers, Window};
use sessions::Sessions;
pub(crate) use strangers::{Strangers, site};

/// Bytes of a token that admits a client: less than half of the smallest packet. Those of join
/// strings have 22.
const MAX_TOKEN: usize = 512;

/// Why a session cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConnectError {
    /// There is no link to begin on.
    #[error("there is no link to connect over")]
    NoLink,
    /// It shares its packet with other frames, on the smallest paths as well.
    #[error("a token has at most {MAX_TOKEN} bytes")]
    TokenTooLong,
    /// TLS refused its settings.
    #[error("the handshake cannot begin: {0}")]
    Tls(String),
}

/// What happened outside of sessions.
#[derive(Clone, Debug, Default)]
pub struct EndpointCounters {
    /// Datagrams that belonged to no session, or to none any more.
    pub drops: Drops,
    /// Those of them that were for no session that there is, or none that could begin.
    pub strangers: u64,
    /// Sessions begun by others.
    pub accepted: u64,
    /// Retry packets sent.
    pub retries: u64,
    /// Stateless resets sent.
    pub resets: u64,
}

impl AddAssign<&Self> for EndpointCounters {
    fn add_assign(&mut self, other: &Self) {
        self.drops.add(&other.drops);
        self.strangers += other.strangers;
        self.accepted += other.accepted;
        self.retries += other.retries;
        self.resets += other.resets;
    }
}

/// The sessions of a client or a relay.
pub struct Endpoint {
    identity: Identity,
    config: SessionConfig,
    server: Option<Server>,
    sessions: Sessions,
    strangers: Strangers<SessionHandle>,
    incoming: VecDeque<SessionHandle>,
    /// Sessions that made room for others.
    ended: VecDeque<SessionHandle>,
    /// Beginnings that were none, of late.
    forged: Window,
    answers: Answers,
    rng: SecretRng,
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
            sessions: Sessions::default(),
            strangers: Strangers::default(),
            incoming: VecDeque::new(),
            ended: VecDeque::new(),
            forged: Window::default(),
            answers: Answers::default(),
            rng: SecretRng::new(seed),
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
        let answers = Answers::among(server.config.steering.workers());
        let client = Self::client(identity, config, seed)?;
        Ok(Self {
            server: Some(server),
            answers,
            ..client
        })
    }

    /// Begins a session with the end that owns `peer`. The handshake goes round `tuples`, one per
    /// link, until one answers.
    ///
    /// # Errors
    /// When there is no link, or the token is too long.
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
        if token.as_ref().is_some_and(|token| token.len() > MAX_TOKEN) {
            return Err(ConnectError::TokenTooLong);
        }
        let failed = |error: rustls::Error| ConnectError::Tls(error.to_string());
        let tls = tls::client_config(&self.identity, peer).map_err(failed)?;
        let parameters = self.config.parameters(None);
        let names = (AttemptId(self.rng.next_u64()), self.fresh_id());
        let timeout = self.config.handshake_timeout;
        let handshake =
            Handshake::client(now, tls, &parameters, names, tuples, timeout).map_err(failed)?;
        let seed = self.rng.seed();
        let side = (Side::Client, names.1);
        let config = self.config.clone();
        let session = Session::new(now, config, &parameters, handshake, side, token, seed);
        Ok(self.sessions.insert(names.0, session))
    }

    fn fresh_id(&mut self) -> ConnectionId {
        loop {
            let random = self.rng.next_u64() as u32;
            let id = match &self.server {
                Some(server) => server.config.steering.id(random),
                None => ConnectionId(random),
            };
            if self.sessions.find(id).is_none() {
                return id;
            }
        }
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
        let Some(handle) = self.sessions.find(header.destination) else {
            return self.handle_stray(now, tuple, header, data);
        };
        let session = self.session_mut(handle).ok_or(DropReason::UnknownSession)?;
        // The session counts its own drops; it must be drained only when something changed.
        session.handle_short(now, tuple, header, data)?;
        Ok(handle)
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
            let known = self.sessions.iter_mut().find(|(_, session)| same(session));
            if let Some((handle, session)) = known {
                session.end(CloseReason::StatelessReset);
                return Ok(handle);
            }
        }
        self.counters.strangers += 1;
        if let Some(server) = &self.server
            && data.len() > RESET_PREFIX + RESET_TOKEN_LEN
            && self.answers.may_reset(now)
        {
            self.counters.resets += 1;
            let mut reset = self.rng.bytes::<RESET_PREFIX>().to_vec();
            reset[0] = 0x40 | reset[0] & 0x3f;
            reset.extend_from_slice(&server.proofs.reset_token(header.destination));
            self.answers.push(tuple, reset);
        }
        Err(DropReason::UnknownSession)
    }

    fn handle_long(
        &mut self,
        now: Instant,
        tuple: FourTuple,
        data: &mut [u8],
    ) -> Result<SessionHandle, DropReason> {
        let size = data.len();
        let mut rest = data;
        let mut moved = None;
        // Packets of both levels of one handshake may share a datagram.
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
            let known = self.sessions.find_attempt(header.attempt);
            if moved.is_some() && moved != known {
                break;
            }
            let handle = match known {
                Some(handle) => handle,
                None => {
                    let accepted = self.accept(now, tuple, &header, size);
                    accepted.inspect_err(|_| self.counters.strangers += 1)?
                }
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
                self.forged.add(now);
                self.counters.strangers += 1;
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
            let handle = self.sessions.find_attempt(attempt);
            let handle = handle.ok_or(DropReason::UnknownSession)?;
            let session = self.session_mut(handle).ok_or(DropReason::UnknownSession)?;
            session.handle_version_negotiation(theirs);
            return Ok(handle);
        }
        let large_enough = data.len() >= MIN_INITIAL_SIZE;
        let is_open = self.server.as_ref().map(|server| server.config.is_open);
        if let (Some(is_open), true) = (is_open, large_enough && self.answers.may_answer(now)) {
            let answer = match (version, is_open) {
                (INQUIRY_VERSION, true) => inquiry_answer(attempt, self.identity.public_key()),
                _ => version_negotiation(attempt),
            };
            self.answers.push(tuple, answer);
        }
        Err(DropReason::UnknownVersion)
    }

    /// A session that somebody opened to us; its first event will be `Authorise`.
    pub fn poll_incoming(&mut self) -> Option<SessionHandle> {
        self.incoming.pop_front()
    }

    /// A session that was ended to make room for another one, and must be drained.
    pub fn poll_ended(&mut self) -> Option<SessionHandle> {
        self.ended.pop_front()
    }

    /// Appends answers that belong to no session. `false` when there are none.
    pub fn poll_transmit(&mut self, _now: Instant, batch: &mut TransmitBatch) -> bool {
        self.answers.poll_transmit(batch)
    }

    /// The session, while it is not reaped.
    #[must_use]
    pub fn session(&self, handle: SessionHandle) -> Option<&Session> {
        self.sessions.get(handle)
    }

    /// The session, while it is not reaped.
    pub fn session_mut(&mut self, handle: SessionHandle) -> Option<&mut Session> {
        self.sessions.get_mut(handle)
    }

    /// All sessions that are not reaped.
    #[must_use]
    pub fn handles(&self) -> Vec<SessionHandle> {
        self.sessions.handles().collect()
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
        self.sessions.remove(handle);
        self.strangers.remove(handle);
        self.incoming.retain(|other| *other != handle);
    }

    /// What received data of all sessions is held in.
    #[must_use]
    pub const fn receive_pool(&self) -> &MemoryPool {
        &self.config.receive_pool
    }

    /// What happened outside of sessions.
    #[must_use]
    pub const fn counters(&self) -> &EndpointCounters {
        &self.counters
    }
}
