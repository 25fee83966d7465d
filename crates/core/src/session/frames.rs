//! What a packet says, frame by frame.
//!
//! Owns who may say what: strangers nothing for the application, servers nothing about classes.
//! What a frame means is for its owner to say.

use bytes::Bytes as Payload;
use rustls::Side;
use tabane_base::Instant;

use super::Session;
use super::contact::Agreement;
use crate::class::ClassId;
use crate::close::{CloseReason, PathDownReason, Violation};
use crate::event::Event;
use crate::id::{FourTuple, PathId, StreamId};
use crate::probe::Probe;
use crate::wire::{Cursor, Frame, parse_frame};

/// What a frame asks of the path it came on.
pub(super) struct Arrival {
    pub(super) now: Instant,
    pub(super) tuple: FourTuple,
    /// Its path; a frame before may have closed it.
    pub(super) id: PathId,
    /// Bytes of the whole packet.
    pub(super) size: usize,
}

impl Session {
    /// Takes `payload` for the frames of an authentic packet on the first path, for fuzzing: what a
    /// hostile peer that has been let in can do.
    pub fn fuzz_frames(&mut self, now: Instant, payload: &[u8]) {
        let Some(path) = self.paths.first() else {
            return;
        };
        let arrival = Arrival {
            now,
            tuple: path.tuple(),
            id: path.id(),
            size: payload.len(),
        };
        if !self.is_established() || self.refuses(payload).is_some() {
            return;
        }
        if let Err(violation) = self.handle_frames(&arrival, payload) {
            self.close(now, CloseReason::ProtocolViolation(violation));
        }
    }

    /// Takes in the frames of an authentic packet. `true` when any asks for acknowledgement.
    pub(super) fn handle_frames(
        &mut self,
        arrival: &Arrival,
        payload: &[u8],
    ) -> Result<bool, Violation> {
        let mut cursor = Cursor::new(payload);
        let mut ack_eliciting = false;
        let mut is_for_application = false;
        while !cursor.is_empty() {
            let frame = parse_frame(&mut cursor).map_err(|_| Violation::MalformedFrame)?;
            ack_eliciting |= frame.is_ack_eliciting();
            if self.side == Side::Server
                && !self.contact.is_admitted()
                && frame.is_for_application()
            {
                // A stranger gets no memory for its data [P-3.6].
                return Err(Violation::BeforeAdmission);
            }
            is_for_application |= frame.is_for_application();
            // Data moves nothing at its receiver; all else may make, move or end a path.
            if !matches!(frame, Frame::Stream { .. } | Frame::Padding) {
                self.paths.on_moved();
            }
            self.handle_frame(arrival, frame)?;
            if !self.is_established() {
                break;
            }
        }
        if is_for_application {
            let path = self.paths.index_of(arrival.id);
            self.paths.on_used(arrival.now, path);
        }
        Ok(ack_eliciting)
    }

    fn handle_frame(&mut self, arrival: &Arrival, frame: Frame<'_>) -> Result<(), Violation> {
        let now = arrival.now;
        match frame {
            Frame::Padding | Frame::Crypto { .. } => {}
            Frame::Ping => self.handle_ping(arrival),
            Frame::Ack(ack) => self.handle_ack(now, &ack)?,
            Frame::Shed(shed) => self.handle_shed(now, &shed)?,
            Frame::Stream { header, data } => self.streams.on_data(now, header, data)?,
            Frame::ResetStream {
                id,
                code,
                final_size,
            } => self.streams.on_reset(id, code, final_size)?,
            Frame::StopSending { id, code } => self.streams.on_stop(id, code)?,
            Frame::MaxData(max) => self.streams.on_max_data(max),
            Frame::MaxStreamData { id, max } => self.streams.on_max_stream_data(id, max)?,
            Frame::MaxStreams(max) => self.streams.on_max_streams(max),
            Frame::StreamHold { id, number, at } => self.streams.on_hold(id, number, at)?,
            Frame::StreamClass { id, number, class } => {
                self.handle_stream_class(id, number, class)?;
            }
            Frame::Class {
                class,
                number,
                rule,
            } => {
                self.expect_server()?;
                self.lanes.on_heard(class, number, rule, &mut self.streams);
            }
            Frame::PathChallenge(data) => self.handle_challenge(arrival, data),
            Frame::PathResponse(data) => self.handle_response(now, arrival.tuple, data),
            Frame::PathAbandon(id) => self.handle_abandon(now, id)?,
            Frame::AckFrequency {
                path,
                packets,
                delay,
            } => {
                if let Some(path) = self.paths.get_mut(path) {
                    path.on_frequency(packets, delay);
                }
            }
            Frame::PathPolicy { path, number, wish } => {
                if let Some(path) = self.paths.get_mut(path) {
                    path.on_policy(now, number, wish);
                }
            }
            Frame::Probe(probe) => self.handle_probe(arrival, probe),
            Frame::ProbeReport { path, report } => {
                if let Some(path) = self.paths.get_mut(path) {
                    path.on_probe_report(now, report);
                }
            }
            Frame::Hello { token } => self.handle_hello(token)?,
            Frame::Admitted => self.handle_admitted()?,
            Frame::GoAway => self.handle_go_away()?,
            Frame::Close { code, text } => {
                self.end(CloseReason::from_wire(code, &String::from_utf8_lossy(text)));
            }
            Frame::Datagram(data) => self.handle_datagram(arrival, data),
            Frame::DatagramCopy { number, data } => {
                let told = self.datagrams.on_copy(now, arrival.id, number, data);
                self.on_datagram(told);
            }
            Frame::DatagramFragment { .. } => {
                let told = self.datagrams.on_fragment(now, arrival.id, &frame);
                self.on_datagram(told);
            }
        }
        Ok(())
    }

    #[cold]
    fn handle_ping(&mut self, arrival: &Arrival) {
        if let Some(path) = self.paths.get_mut(arrival.id) {
            path.on_ping(arrival.now);
        }
    }

    fn handle_stream_class(
        &mut self,
        id: StreamId,
        number: u64,
        class: ClassId,
    ) -> Result<(), Violation> {
        self.expect_server()?;
        self.lanes.get_mut(class);
        let before = self.streams.on_class(id, number, class)?;
        self.on_class_changed(id, before, class);
        Ok(())
    }

    fn handle_challenge(&mut self, arrival: &Arrival, data: [u8; 8]) {
        if let Some(path) = self.paths.get_mut(arrival.id) {
            path.address_mut()
                .on_question(data, arrival.tuple, arrival.size);
        }
    }

    fn handle_probe(&mut self, arrival: &Arrival, probe: Probe) {
        if self.takes_probes()
            && let Some(path) = self.paths.get_mut(arrival.id)
        {
            path.on_probe(arrival.now, probe, arrival.size);
        }
    }

    fn handle_datagram(&mut self, arrival: &Arrival, data: &[u8]) {
        let data = Payload::copy_from_slice(data);
        let told = self.datagrams.on_received(arrival.now, arrival.id, data);
        self.on_datagram(told);
    }

    pub(super) fn on_datagram(&mut self, told: bool) {
        if told && self.contact.is_admitted() {
            self.events.push_back(Event::DatagramsReadable);
        }
    }

    /// Only clients know their links well enough to choose among them.
    fn expect_server(&self) -> Result<(), Violation> {
        match self.side {
            Side::Server => Ok(()),
            Side::Client => Err(Violation::WrongSide),
        }
    }

    fn handle_response(&mut self, now: Instant, from: FourTuple, data: [u8; 8]) {
        for index in self.paths.indices() {
            if self.paths[index].on_response(now, from, data) {
                let id = self.paths[index].id();
                self.events.push_back(Event::PathUp(id));
            }
        }
    }

    fn handle_abandon(&mut self, now: Instant, id: PathId) -> Result<(), Violation> {
        match self.paths.index_of(id) {
            Some(index) => self.remove_path(now, index, PathDownReason::Closed),
            None => self.paths.retire(id)?,
        }
        Ok(())
    }

    fn handle_hello(&mut self, token: &[u8]) -> Result<(), Violation> {
        if self.side == Side::Client {
            return Err(Violation::WrongSide);
        }
        let Some(agreement) = self.contact.agreement_mut() else {
            return Ok(());
        };
        if agreement.admission.is_granted() {
            self.due.admitted();
        } else if agreement.admission.apply(token) {
            let key = agreement.peer_key;
            let token = (!token.is_empty()).then(|| token.to_vec());
            self.events.push_back(Event::Authorise { key, token });
        }
        Ok(())
    }

    fn handle_go_away(&mut self) -> Result<(), Violation> {
        if self.side == Side::Server {
            return Err(Violation::WrongSide);
        }
        let agreement = self.contact.agreement_mut();
        if agreement.is_some_and(Agreement::send_away) {
            self.events.push_back(Event::SentAway);
        }
        Ok(())
    }

    fn handle_admitted(&mut self) -> Result<(), Violation> {
        if self.side == Side::Server {
            return Err(Violation::WrongSide);
        }
        let agreement = self.contact.agreement_mut();
        if agreement.is_some_and(|agreement| agreement.admission.grant()) {
            self.events.push_back(Event::Connected);
            // What overtook the admission.
            let told = self.datagrams.has_received();
            self.on_datagram(told);
        }
        Ok(())
    }
}
