//! What comes in: packets are opened once and checked once.
//!
//! Owns which packets count: authentic ones, once each, as far as there is memory for them, and
//! which of them begin a path or move one. What they say is read by `frames`.

use rustls::Side;
use tabane_base::Instant;

use super::Session;
use super::frames::Arrival;
use crate::close::CloseReason;
use crate::drops::DropReason;
use crate::handshake::Refusal;
use crate::id::{FourTuple, PacketNumber, PathIndex};
use crate::path::State;
use crate::stream::Refused;
use crate::trace::{Traced, traced_frames};
use crate::wire::{Cursor, Frame, LongHeader, ShortHeader, parse_frame};

impl Session {
    /// A long-header packet of this session's handshake.
    pub(crate) fn handle_long(
        &mut self,
        now: Instant,
        tuple: FourTuple,
        header: &LongHeader,
        packet: &mut [u8],
    ) {
        let Some(handshake) = self.contact.handshake_mut() else {
            // The client repeats its last flight until it hears from us: it has not yet.
            if self.side == Side::Server
                && let Some(path) = self.paths.first_mut()
            {
                path.ask_sign_of_life();
            }
            return;
        };
        match handshake.handle_packet(now, tuple, header, packet) {
            Ok(()) => self.last_received_at = now,
            Err(Refusal::Drop(reason)) => return self.drops.count(reason),
            Err(Refusal::Close(reason)) => return self.close(now, reason),
        }
        // Once, and only while there are no keys.
        match handshake.agreed() {
            Some(Ok(agreed)) if self.ending.is_none() => self.establish(now, agreed),
            Some(Err(reason)) => self.close(now, reason),
            Some(Ok(_)) | None => {}
        }
    }

    /// The server asks for proof of address.
    pub(crate) fn handle_retry(&mut self, token: &[u8]) {
        if let Some(handshake) = self.contact.handshake_mut() {
            handshake.on_retry(token);
        }
    }

    /// The other end speaks other versions only. Believed while nothing authentic was heard.
    pub(crate) fn handle_version_negotiation(&mut self, theirs: Vec<u32>) {
        if !self.has_heard() && !theirs.contains(&crate::PROTOCOL_VERSION) {
            self.end(CloseReason::VersionMismatch { theirs });
        }
    }

    /// Whether anything authentic came from the other end.
    pub(crate) fn has_heard(&self) -> bool {
        let handshake = self.contact.handshake();
        handshake.is_none_or(|handshake| handshake.has_heard())
    }

    /// A short-header packet addressed to this session.
    pub(crate) fn handle_short(
        &mut self,
        now: Instant,
        tuple: FourTuple,
        header: ShortHeader,
        packet: &mut [u8],
    ) -> Result<(), DropReason> {
        let result = self.try_handle_short(now, tuple, header, packet);
        if let Err(reason) = result {
            self.drops.count(reason);
        }
        result
    }

    fn try_handle_short(
        &mut self,
        now: Instant,
        tuple: FourTuple,
        header: ShortHeader,
        packet: &mut [u8],
    ) -> Result<(), DropReason> {
        if !self.is_established() {
            return Err(DropReason::TooEarly);
        }
        let known = self.paths.index_of(header.path);
        let may_appear = || self.side == Side::Server && self.paths.may_appear(header.path);
        if known.is_none() && !may_appear() {
            return Err(DropReason::NoSuchPath);
        }
        let Some(keys) = self.contact.keys_mut() else {
            return Err(DropReason::TooEarly);
        };
        let mut phase = known
            .map(|i| self.paths[i].received().key_phase())
            .unwrap_or_default();
        let largest = known.and_then(|i| self.paths[i].received().largest());
        let size = packet.len();
        let opened = keys.open(now, packet, header, largest, &mut phase)?;
        let payload = &packet[opened.payload];
        // Only authentic packets get this far, so only they make paths.
        let path = known.unwrap_or_else(|| self.begin_path(now, header.path, tuple));
        self.paths[path].set_key_phase(phase);
        if self.paths[path].received().is_replayed(opened.pn) {
            return Err(DropReason::Replayed);
        }
        if let Some(refusal) = self.refuses(payload) {
            let is_told = match refusal {
                Refused::Early => {
                    let peer = self.contact.peer();
                    peer.is_some_and(|peer| peer.receive_memory.is_some())
                }
                Refused::Unread(stream) => self.streams.hold(stream),
            };
            self.paths[path].on_shed(now, is_told.then_some(opened.pn));
            return Err(DropReason::Shed);
        }
        let arrival = Arrival {
            now,
            tuple,
            id: header.path,
            size,
        };
        self.take_in(&arrival, (path, opened.pn), payload);
        Ok(())
    }

    /// A packet that is authentic, new, and has room here: its path's index, and its number.
    fn take_in(
        &mut self,
        arrival: &Arrival,
        (path, pn): (PathIndex, PacketNumber),
        payload: &[u8],
    ) {
        let Arrival {
            now,
            tuple,
            id,
            size,
        } = *arrival;
        self.last_received_at = now;
        let is_newest = self.paths[path]
            .received()
            .largest()
            .is_none_or(|largest| largest < pn);
        self.paths[path].on_received(now, size, tuple);
        // Any 1-RTT packet shows that the server has the client's last flight.
        if self.contact.confirm() {
            self.paths[path].ask_sign_of_life();
        }
        if let Some(trace) = &mut self.trace {
            let size = u16::try_from(size).unwrap_or(u16::MAX);
            let frames = traced_frames(payload);
            trace.record(now, id, Traced::Received { pn, size, frames });
        }
        match self.handle_frames(arrival, payload) {
            Ok(ack_eliciting) => {
                // A frame may have closed the path.
                if let Some(path) = self.paths.index_of(id) {
                    self.paths[path].on_read(now, pn, ack_eliciting);
                    self.review_address(now, path, tuple, is_newest);
                }
                if self.paths.take_moved() {
                    self.review_send_limit();
                }
            }
            Err(violation) => self.close(now, CloseReason::ProtocolViolation(violation)),
        }
    }

    /// Whether there is no memory for data [P-6.6]. Nothing of such a packet is taken in, so the
    /// sender will repeat it.
    pub(super) fn refuses(&self, payload: &[u8]) -> Option<Refused> {
        if !self.streams.may_refuse() {
            return None;
        }
        let may_take = !self.streams.is_out_of_memory();
        let mut refused = None;
        let mut cursor = Cursor::new(payload);
        while let Ok(frame) = parse_frame(&mut cursor) {
            match frame {
                Frame::Stream { header, data } if !data.is_empty() => {
                    if may_take && self.streams.is_awaited_here(header, data.len()) {
                        return None;
                    }
                    refused = refused.or_else(|| self.streams.refuses(header, data.len()));
                }
                // Nobody would repeat it.
                Frame::Datagram(_)
                | Frame::DatagramCopy { .. }
                | Frame::DatagramFragment { .. }
                    if may_take =>
                {
                    return None;
                }
                _ => {}
            }
            if cursor.is_empty() {
                break;
            }
        }
        refused
    }

    /// A path's packets come from another address: ask that address to prove itself.
    fn review_address(&mut self, now: Instant, path: PathIndex, tuple: FourTuple, is_newest: bool) {
        if self.side == Side::Client {
            return;
        }
        let Self { paths, .. } = self;
        let opening = matches!(paths[path].state(), State::Opening { .. });
        if opening || is_newest && paths[path].tuple() != tuple {
            self.paths.challenge(now, path, tuple);
        } else if is_newest && paths[path].address().is_validated() {
            // The old address is in use after all.
            paths[path].address_mut().forget_challenge();
        }
    }
}
