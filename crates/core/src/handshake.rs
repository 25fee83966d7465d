//! The handshake [P-3]: TLS flights over whichever link answers.
//!
//! Flights are repeated whole, by the client's timer only: they are small, and a server that
//! repeats on request alone needs no timer and amplifies nothing. The client goes round its links
//! from flight to flight, so that a dead first link costs one repetition.

use std::sync::Arc;

use rustls::quic::{KeyChange, Keys};
use rustls::{ClientConfig, ServerConfig, Side};
use tabane_base::{Duration, Instant};

use crate::close::{CloseReason, Violation};
use crate::crypto::{SessionKeys, open_long, seal};
use crate::drops::DropReason;
use crate::id::{AttemptId, ConnectionId, FourTuple, PacketNumber, SocketId};
use crate::identity::PublicKey;
use crate::parameters::Parameters;
use crate::ranges::RangeSet;
use crate::tls::{Tls, initial_keys};
use crate::transmit::TransmitBatch;
use crate::wire::{
    Cursor, Frame, HANDSHAKE_PN_LEN, LongHeader, LongKind, MIN_INITIAL_SIZE, TAG_LEN, parse_frame,
};

/// The first repetition comes after this; a round trip over the slowest usual link is shorter.
const RESEND_AFTER: Duration = Duration::from_millis(250);
/// Repetitions are never further apart.
const RESEND_AFTER_MAX: Duration = Duration::from_secs(1);
/// More handshake data than any flight of ours has (RFC 9000 §7.5 asks for at least 4096).
const MAX_CRYPTO: u64 = 16_384;
/// Handshake data in one packet, so that two packets share a datagram of the minimum size.
const CRYPTO_PIECE: usize = 1_000;
/// A server's proof of address is shorter; what anybody may send must leave room in an Initial.
const MAX_RETRY_TOKEN: usize = 256;
/// Bytes sent per byte received before the client's address is proved (RFC 9000 §8.1).
const AMPLIFICATION: usize = 3;

/// Why a handshake packet was not used.
pub(crate) enum Refusal {
    /// As if it had never come.
    Drop(DropReason),
    /// The handshake is over.
    Close(CloseReason),
}

impl From<DropReason> for Refusal {
    fn from(reason: DropReason) -> Self {
        Self::Drop(reason)
    }
}

/// One direction-pair of handshake data: Initial or Handshake.
#[derive(Default)]
struct Level {
    /// Everything we ever had to say at this level.
    out: Vec<u8>,
    input: Vec<u8>,
    received: RangeSet,
    /// How much of `input` TLS has read.
    read_to: usize,
    next_pn: u32,
}

impl Level {
    /// Takes in a CRYPTO frame; `false` when nothing in it is new.
    fn insert(&mut self, offset: u64, data: &[u8]) -> Result<bool, Violation> {
        let end = offset + data.len() as u64;
        if end > MAX_CRYPTO {
            return Err(Violation::CryptoBufferExceeded);
        }
        if self.received.gaps(offset..end).next().is_none() {
            return Ok(false);
        }
        if self.input.len() < end as usize {
            self.input.resize(end as usize, 0);
        }
        self.input[offset as usize..end as usize].copy_from_slice(data);
        self.received.insert(offset..end);
        Ok(true)
    }

    /// What came into order since the last call.
    fn take(&mut self) -> &[u8] {
        let ready = self.received.first().filter(|range| range.start == 0);
        let from = self.read_to;
        self.read_to = ready.map_or(from, |range| range.end as usize);
        &self.input[from..self.read_to]
    }
}

/// A handshake under way.
pub(crate) struct Handshake {
    side: Side,
    tls: Tls,
    attempt: AttemptId,
    local: ConnectionId,
    peer: Option<ConnectionId>,
    initial: Keys,
    handshake: Option<Keys>,
    session: Option<SessionKeys>,
    levels: [Level; 2],
    token: Vec<u8>,
    /// Client: one per link, tried in turn. Server: where the client was heard last.
    tuples: Vec<FourTuple>,
    turn: usize,
    flight_due: bool,
    resend_at: Instant,
    resends: u32,
    give_up_at: Instant,
    flight_at: Option<Instant>,
    /// How often a flight left, since the server asked for proof of address if it did.
    flights: u32,
    /// Server: where flights went, two at the most.
    flights_to: Vec<FourTuple>,
    rtt: Option<Duration>,
    /// Server: the client has proved that it receives at its address.
    validated: bool,
    /// Server: bytes that may still be sent before that.
    credit: usize,
}

/// What a finished handshake leaves behind.
pub(crate) struct Agreed {
    pub(crate) keys: SessionKeys,
    pub(crate) peer: ConnectionId,
    pub(crate) peer_key: PublicKey,
    pub(crate) parameters: Parameters,
    pub(crate) tuple: FourTuple,
    /// Whether the other end has proved that it receives there.
    pub(crate) validated: bool,
    pub(crate) rtt: Option<Duration>,
}

impl Handshake {
    pub(crate) fn client(
        now: Instant,
        config: Arc<ClientConfig>,
        parameters: &Parameters,
        (attempt, local): (AttemptId, ConnectionId),
        tuples: Vec<FourTuple>,
        timeout: Duration,
    ) -> Result<Self, rustls::Error> {
        let tls = Tls::client(config, parameters.emit())?;
        let mut this = Self::new(now, Side::Client, tls, attempt, local, tuples, timeout);
        this.pump_tls()
            .map_err(|reason| rustls::Error::General(reason.to_string()))?;
        this.flight_due = true;
        Ok(this)
    }

    pub(crate) fn server(
        now: Instant,
        config: Arc<ServerConfig>,
        parameters: &Parameters,
        (attempt, local): (AttemptId, ConnectionId),
        (tuple, validated): (FourTuple, bool),
        timeout: Duration,
    ) -> Result<Self, rustls::Error> {
        let tls = Tls::server(config, parameters.emit())?;
        let mut this = Self::new(now, Side::Server, tls, attempt, local, vec![tuple], timeout);
        this.validated = validated;
        Ok(this)
    }

    fn new(
        now: Instant,
        side: Side,
        tls: Tls,
        attempt: AttemptId,
        local: ConnectionId,
        tuples: Vec<FourTuple>,
        timeout: Duration,
    ) -> Self {
        Self {
            side,
            tls,
            attempt,
            local,
            peer: None,
            initial: initial_keys(attempt.0, side),
            handshake: None,
            session: None,
            levels: Default::default(),
            token: Vec::new(),
            tuples,
            turn: 0,
            flight_due: false,
            resend_at: Instant::NEVER,
            resends: 0,
            give_up_at: now + timeout,
            flight_at: None,
            flights: 0,
            flights_to: Vec::new(),
            rtt: None,
            validated: side == Side::Client,
            credit: 0,
        }
    }

    /// Nothing but the client's proof of address is missing for 1-RTT packets.
    pub(crate) fn agreed(&mut self) -> Option<Result<Agreed, CloseReason>> {
        if self.tls.is_handshaking() {
            return None;
        }
        let keys = self.session.take()?;
        let parse = |bytes: Option<&[u8]>| Parameters::parse(bytes.unwrap_or_default()).ok();
        let (Some(peer), Some(peer_key), Some(parameters)) = (
            self.peer,
            self.tls.peer_key(),
            parse(self.tls.peer_parameters()),
        ) else {
            return Some(Err(CloseReason::ProtocolViolation(
                Violation::MalformedParameters,
            )));
        };
        let tuple = self.tuples[self.turn];
        Some(Ok(Agreed {
            keys,
            peer,
            peer_key,
            parameters,
            tuple,
            validated: self.validated,
            rtt: self.rtt,
        }))
    }

    /// The server asks for proof of address (client only).
    pub(crate) fn on_retry(&mut self, token: &[u8]) {
        let is_sound = (1..=MAX_RETRY_TOKEN).contains(&token.len());
        if self.side == Side::Client && self.peer.is_none() && is_sound {
            self.token = token.to_vec();
            self.flight_due = true;
            self.flights = 0;
        }
    }

    /// Whether anything authentic came from the other end.
    pub(crate) const fn has_heard(&self) -> bool {
        self.peer.is_some()
    }

    /// Takes in one long-header packet, `packet` being exactly it.
    pub(crate) fn handle_packet(
        &mut self,
        now: Instant,
        tuple: FourTuple,
        header: &LongHeader,
        packet: &mut [u8],
    ) -> Result<(), Refusal> {
        let size = packet.len();
        if self.side == Side::Server && !self.validated {
            self.credit += size * AMPLIFICATION;
        }
        let (keys, level) = match header.kind {
            LongKind::Initial { .. } => (&self.initial, 0),
            LongKind::Handshake => (self.handshake.as_ref().ok_or(DropReason::TooEarly)?, 1),
            LongKind::Retry { .. } => return Err(DropReason::Malformed.into()),
        };
        let is_verified = !self.tls.is_handshaking();
        if is_verified && level == 0 && self.side == Side::Client {
            // Anybody can make these, and they have served.
            return Err(DropReason::NotAuthentic.into());
        }
        let opened = open_long(keys, packet, header.pn_offset)?;
        if self.side == Side::Server && self.tuples != [tuple] {
            // What another address has sent is nothing to this one.
            self.credit = size * AMPLIFICATION;
        }
        self.on_authentic(now, tuple, header.source, level);
        let mut cursor = Cursor::new(&packet[opened.payload]);
        let mut fresh = false;
        while !cursor.is_empty() {
            let malformed = CloseReason::ProtocolViolation(Violation::MalformedFrame);
            match parse_frame(&mut cursor).map_err(|_| Refusal::Close(malformed.clone()))? {
                Frame::Padding | Frame::Ping => {}
                Frame::Crypto { offset, data } => {
                    let inserted = self.levels[level].insert(offset, data);
                    fresh |=
                        inserted.map_err(|v| Refusal::Close(CloseReason::ProtocolViolation(v)))?;
                }
                Frame::Close { code, text } => {
                    let text = String::from_utf8_lossy(text);
                    let reason = match is_verified {
                        true => CloseReason::from_wire(code, &text),
                        false => CloseReason::claimed(code, &text),
                    };
                    return Err(Refusal::Close(reason));
                }
                _ => return Err(Refusal::Close(malformed)),
            }
        }
        if fresh {
            let input = self.levels[level].take().to_vec();
            self.tls
                .read(&input)
                .map_err(|error| Refusal::Close(tls_failure(error)))?;
            self.pump_tls().map_err(Refusal::Close)?;
        }
        // A server answers every repetition; a client only what moved it on.
        self.flight_due |= fresh || self.side == Side::Server;
        Ok(())
    }

    fn on_authentic(&mut self, now: Instant, tuple: FourTuple, source: ConnectionId, level: usize) {
        self.peer.get_or_insert(source);
        match self.side {
            Side::Client => {
                if let Some(turn) = self.tuples.iter().position(|t| t.socket == tuple.socket) {
                    self.turn = turn;
                }
            }
            Side::Server => {
                self.validated &= self.tuples == [tuple];
                self.tuples = vec![tuple];
            }
        }
        let answers = self.side == Side::Client || level == 1;
        // Only who received our flight can answer it, and it went to one address only.
        self.validated |= answers && self.flights_to == [tuple];
        // The answer to a flight that was repeated may be one to either.
        if answers && self.flights == 1 && self.rtt.is_none() {
            self.rtt = self.flight_at.map(|at| now.since(at));
        }
    }

    fn pump_tls(&mut self) -> Result<(), CloseReason> {
        let mut level = usize::from(self.handshake.is_some());
        loop {
            let mut out = Vec::new();
            let change = self.tls.write(&mut out);
            let idle = out.is_empty();
            if self.session.is_none() || !idle {
                self.levels[level].out.append(&mut out);
            }
            match change {
                Some(KeyChange::Handshake { keys }) => {
                    self.handshake = Some(keys);
                    level = 1;
                }
                Some(KeyChange::OneRtt { keys, next }) => {
                    self.session = Some(SessionKeys::new(keys, next));
                    return Ok(());
                }
                None if idle => return Ok(()),
                None => {}
            }
        }
    }

    /// Appends the present flight when it is due.
    pub(crate) fn poll_transmit(&mut self, now: Instant, batch: &mut TransmitBatch) -> bool {
        if !std::mem::take(&mut self.flight_due) {
            return false;
        }
        if self.side == Side::Client {
            let wait = RESEND_AFTER * (1 << self.resends.min(4));
            self.resend_at = now + wait.min(RESEND_AFTER_MAX);
        }
        let start = batch.buf.len();
        let tuple = self.tuples[self.turn];
        // Once the client speaks at the Handshake level, its Initial has served.
        let skip_initial = self.side == Side::Client && !self.levels[1].out.is_empty();
        for level in usize::from(skip_initial)..2 {
            self.emit_level(level, batch, start);
        }
        if batch.buf.len() == start {
            return false;
        }
        let size = batch.buf.len() - start;
        if !self.validated {
            if size > self.credit {
                batch.buf.truncate(start);
                return false;
            }
            self.credit -= size;
        }
        batch.finish(tuple, start);
        self.flights += 1;
        self.flight_at = Some(now);
        if self.side == Side::Server && self.flights_to.last() != Some(&tuple) {
            // Two are as good as many.
            self.flights_to.truncate(1);
            self.flights_to.push(tuple);
        }
        true
    }

    fn emit_level(&mut self, level: usize, batch: &mut TransmitBatch, datagram: usize) {
        let out = std::mem::take(&mut self.levels[level].out);
        for (index, piece) in out.chunks(CRYPTO_PIECE).enumerate() {
            let mut payload = Vec::new();
            let offset = (index * CRYPTO_PIECE) as u64;
            Frame::Crypto {
                offset,
                data: piece,
            }
            .emit(&mut payload);
            self.emit_packet(level, &mut payload, batch, datagram);
        }
        self.levels[level].out = out;
    }

    fn emit_packet(
        &mut self,
        level: usize,
        payload: &mut Vec<u8>,
        batch: &mut TransmitBatch,
        datagram: usize,
    ) {
        let (kind, keys) = match (level, &self.handshake) {
            (0, _) => (
                LongKind::Initial {
                    token: self.token.clone(),
                },
                &self.initial,
            ),
            (_, Some(keys)) => (LongKind::Handshake, keys),
            (_, None) => return,
        };
        let header = LongHeader {
            kind,
            attempt: self.attempt,
            source: self.local,
            pn_offset: 0,
            end: 0,
        };
        if level == 0 && self.side == Side::Client {
            let mut probe = Vec::new();
            header.emit(&mut probe, 0, MIN_INITIAL_SIZE);
            let used = batch.buf.len() - datagram + probe.len() + TAG_LEN;
            payload.resize(payload.len().max(MIN_INITIAL_SIZE.saturating_sub(used)), 0);
        }
        let start = batch.buf.len();
        let pn = self.levels[level].next_pn;
        self.levels[level].next_pn += 1;
        let pn_offset = header.emit(&mut batch.buf, pn, payload.len());
        batch.buf.append(payload);
        let (local, at) = (&keys.local, (pn_offset, HANDSHAKE_PN_LEN));
        seal(
            &*local.header,
            &*local.packet,
            &mut batch.buf,
            start,
            at,
            (None, PacketNumber(pn.into())),
        );
    }

    /// Appends a packet that tells the other end why the handshake failed.
    pub(crate) fn emit_close(&mut self, reason: &CloseReason, batch: &mut TransmitBatch) {
        let start = batch.buf.len();
        let text = reason.to_string();
        let mut payload = Vec::new();
        Frame::Close {
            code: reason.code(),
            text: text.as_bytes(),
        }
        .emit(&mut payload);
        // A server is heard at the Initial level by every client; a client at the highest only.
        let level = usize::from(self.side == Side::Client && self.handshake.is_some());
        self.emit_packet(level, &mut payload, batch, start);
        if batch.buf.len() > start {
            batch.finish(self.tuples[self.turn], start);
        }
    }

    pub(crate) fn timer(&self) -> Instant {
        self.resend_at.min(self.give_up_at)
    }

    /// Repeats the flight over the next link. `false`: it is time to give up.
    pub(crate) fn handle_timeout(&mut self, now: Instant) -> bool {
        if self.resend_at <= now {
            self.resends += 1;
            self.turn = (self.turn + 1) % self.tuples.len();
            self.flight_due = true;
        }
        now < self.give_up_at
    }

    /// Stops using a link that vanished, unless there is no other.
    pub(crate) fn drop_socket(&mut self, socket: SocketId) {
        if self.tuples.iter().any(|tuple| tuple.socket != socket) {
            self.tuples.retain(|tuple| tuple.socket != socket);
            self.turn %= self.tuples.len();
        }
    }
}

fn tls_failure(error: rustls::Error) -> CloseReason {
    match error {
        rustls::Error::InvalidCertificate(_) => CloseReason::WrongPeerKey,
        other => CloseReason::HandshakeFailed(other.to_string()),
    }
}
