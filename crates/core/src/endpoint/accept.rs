//! Who may begin a session with this end.
//!
//! Owns when an address has to prove itself first, and how many sessions and strangers there may
//! be. Whether a client is let in at last is the application's to say.

use std::sync::Arc;

use rustls::{ServerConfig as TlsServerConfig, Side};
use tabane_base::Instant;

use super::Endpoint;
use crate::close::CloseReason;
use crate::config::{RetryPolicy, ServerConfig};
use crate::drops::DropReason;
use crate::handshake::Handshake;
use crate::id::{AttemptId, ConnectionId, FourTuple, SessionHandle};
use crate::retry::Proofs;
use crate::session::Session;
use crate::wire::{LongHeader, LongKind, MIN_INITIAL_SIZE};

/// What an end needs that others may begin sessions with.
pub(super) struct Server {
    pub(super) config: ServerConfig,
    pub(super) tls: Arc<TlsServerConfig>,
    pub(super) proofs: Proofs,
}

impl Endpoint {
    /// A first Initial: proves the address where that is asked for, and begins a session.
    pub(super) fn accept(
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
        let strangers = self.count_strangers(now);
        let server = self.server.as_ref().ok_or(DropReason::UnknownSession)?;
        let ip = tuple.remote.ip();
        let proved = server.proofs.verify(now, ip, header.attempt, token);
        let must_prove = match server.config.retry {
            RetryPolicy::Always => true,
            RetryPolicy::UnderLoad(most) => {
                strangers >= most || self.forged.count(now) as usize >= most
            }
        };
        if must_prove && !proved {
            self.ask_for_proof(now, tuple, header.attempt);
            return Err(if token.is_empty() {
                DropReason::UnknownSession
            } else {
                DropReason::BadToken
            });
        }
        if self.sessions.len() >= server.config.max_sessions {
            return Err(DropReason::Overloaded);
        }
        if strangers >= server.config.max_handshakes {
            // Who has shown that its address is its own is not kept out by another address.
            let displaced = self.strangers.displaced_by(ip).filter(|_| proved);
            self.displace(displaced.ok_or(DropReason::Overloaded)?);
        }
        self.begin(now, (tuple, proved), header.attempt)
    }

    fn ask_for_proof(&mut self, now: Instant, tuple: FourTuple, attempt: AttemptId) {
        let Some(server) = &self.server else {
            return;
        };
        let retry = LongHeader {
            kind: LongKind::Retry {
                token: server.proofs.token(now, tuple.remote.ip(), attempt),
            },
            attempt,
            source: ConnectionId(0),
            pn_offset: 0,
            end: 0,
        };
        let mut out = Vec::new();
        retry.emit(&mut out, 0, 0);
        self.counters.retries += 1;
        self.answers.push(tuple, out);
    }

    /// Ends a session that has not got far, without a word.
    fn displace(&mut self, handle: SessionHandle) {
        self.strangers.remove(handle);
        if let Some(session) = self.sessions.get_mut(handle) {
            session.end(CloseReason::Overloaded);
            self.ended.push_back(handle);
        }
    }

    /// Sessions whose client has not been admitted, and perhaps a few more.
    fn count_strangers(&mut self, now: Instant) -> usize {
        let sessions = &self.sessions;
        let is_stranger = |handle: SessionHandle| {
            let session = sessions.get(handle);
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
            self.strangers.look(now, is_stranger);
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
        let seed = self.rng.seed();
        let config = self.config.clone();
        let side = (Side::Server, id);
        let session = Session::new(now, config, &parameters, handshake, side, None, seed);
        let handle = self.sessions.insert(attempt, session);
        self.strangers.insert(handle, from.0.remote.ip());
        Ok(handle)
    }
}
