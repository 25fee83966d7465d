//! What comes in: packets are opened once, checked once, and taken apart into frames.

use bytes::Bytes as Payload;
use rustls::Side;
use tabane_base::{Bytes, Instant};

use super::{Phase, Session};
use crate::close::{CloseReason, PathDownReason, Violation};
use crate::config::MAX_PATHS;
use crate::drops::DropReason;
use crate::event::Event;
use crate::handshake::Refusal;
use crate::id::{FourTuple, PathId};
use crate::path::{Path, State};
use crate::stream::Refused;
use crate::trace::Traced;
use crate::wire::{AckFrame, Cursor, Frame, LongHeader, ShortHeader, parse_frame};

/// What a frame asks of the path it came on.
struct Arrival {
    now: Instant,
    tuple: FourTuple,
    /// Index of its path.
    path: usize,
    id: PathId,
    /// Bytes of the whole packet.
    size: usize,
}

impl Session {
    /// A long-header packet of this session's handshake.
    pub(crate) fn handle_long(
        &mut self,
        now: Instant,
        tuple: FourTuple,
        header: &LongHeader,
        packet: &mut [u8],
    ) {
        let Some(handshake) = &mut self.handshake else {
            // The client repeats its last flight until it hears from us: it has not yet.
            if self.side == Side::Server
                && let Some(path) = self.paths.first_mut()
            {
                path.keep_alive_due = true;
            }
            return;
        };
        match handshake.handle_packet(now, tuple, header, packet) {
            Ok(()) => self.last_received_at = now,
            Err(Refusal::Drop(reason)) => return self.drops.count(reason),
            Err(Refusal::Close(reason)) => return self.close(now, reason),
        }
        if matches!(self.phase, Phase::Handshaking) {
            match handshake.agreed() {
                Some(Ok(agreed)) => {
                    self.establish(now, agreed);
                    if self.side == Side::Server {
                        self.handshake = None;
                    }
                }
                Some(Err(reason)) => self.close(now, reason),
                None => {}
            }
        }
    }

    /// The server asks for proof of address.
    pub(crate) fn handle_retry(&mut self, token: &[u8]) {
        if let Some(handshake) = &mut self.handshake {
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
        let handshake = self.handshake.as_ref();
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
        let known = self.path_index(header.path);
        if known.is_none() && !self.may_appear(header.path) {
            return Err(DropReason::NoSuchPath);
        }
        let Some(keys) = &mut self.keys else {
            return Err(DropReason::TooEarly);
        };
        let mut phase = known.map(|i| self.paths[i].phase).unwrap_or_default();
        let largest = known.and_then(|i| self.paths[i].received.largest());
        let size = packet.len();
        let opened = keys.open(now, packet, header, largest, &mut phase)?;
        let payload = &packet[opened.payload];
        // Only authentic packets get this far, so only they make paths.
        let path = known.unwrap_or_else(|| self.add_path(now, header.path, tuple));
        self.paths[path].phase = phase;
        if self.paths[path].received.is_replayed(opened.pn) {
            return Err(DropReason::Replayed);
        }
        if let Some(refusal) = self.refuses(payload) {
            let is_told = match refusal {
                Refused::Early => self.peer.receive_memory.is_some(),
                Refused::Unread(stream) => self.streams.hold(stream),
            };
            if is_told {
                self.paths[path].received.on_shed(now, opened.pn);
            }
            return Err(DropReason::Shed);
        }
        self.last_received_at = now;
        let is_newest = self.paths[path]
            .received
            .largest()
            .is_none_or(|pn| pn < opened.pn);
        self.paths[path].on_received(now, size, tuple);
        // Any 1-RTT packet shows that the server has the client's last flight.
        if self.handshake.take().is_some() {
            self.paths[path].keep_alive_due = true;
        }
        let id = self.paths[path].id;
        if let Some(trace) = &mut self.trace {
            let size = u16::try_from(size).unwrap_or(u16::MAX);
            let received = Traced::Received {
                pn: opened.pn,
                size,
            };
            trace.record(now, id, received);
        }
        let arrival = Arrival {
            now,
            tuple,
            path,
            id,
            size,
        };
        match self.handle_frames(&arrival, payload) {
            Ok(ack_eliciting) => {
                // A frame may have closed the path.
                if let Some(path) = self.path_index(id) {
                    self.paths[path]
                        .received
                        .on_received(now, opened.pn, ack_eliciting);
                    self.review_address(now, path, tuple, is_newest);
                }
                self.review_send_limit();
            }
            Err(violation) => self.close(now, CloseReason::ProtocolViolation(violation)),
        }
        Ok(())
    }

    /// Whether a path that is not known yet may begin with this packet.
    fn may_appear(&self, id: PathId) -> bool {
        self.side == Side::Server
            && self.paths.len() < MAX_PATHS
            && !self.retired.contains(&id)
            && id.get() < self.retired.len() as u32 + 4 * MAX_PATHS as u32
    }

    /// Whether there is no memory for data [P-6.6]. Nothing of such a packet is taken in, so the
    /// sender will repeat it.
    fn refuses(&self, payload: &[u8]) -> Option<Refused> {
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
    fn review_address(&mut self, now: Instant, path: usize, tuple: FourTuple, is_newest: bool) {
        if self.side == Side::Client {
            return;
        }
        let Self { paths, .. } = self;
        let opening = matches!(paths[path].state(), State::Opening { .. });
        if opening || is_newest && paths[path].tuple != tuple {
            self.challenge(now, path, tuple);
        } else if is_newest && paths[path].is_validated() {
            // The old address is in use after all.
            paths[path].challenge = None;
        }
    }

    /// Takes `payload` for the frames of an authentic packet on the first path, for fuzzing: what a
    /// hostile peer that has been let in can do.
    pub fn fuzz_frames(&mut self, now: Instant, payload: &[u8]) {
        let Some(path) = self.paths.first() else {
            return;
        };
        let arrival = Arrival {
            now,
            tuple: path.tuple,
            path: 0,
            id: path.id,
            size: payload.len(),
        };
        if !self.is_established() || self.refuses(payload).is_some() {
            return;
        }
        if let Err(violation) = self.handle_frames(&arrival, payload) {
            self.close(now, CloseReason::ProtocolViolation(violation));
        }
    }

    fn handle_frames(&mut self, arrival: &Arrival, payload: &[u8]) -> Result<bool, Violation> {
        let mut cursor = Cursor::new(payload);
        let mut ack_eliciting = false;
        while !cursor.is_empty() {
            let frame = parse_frame(&mut cursor).map_err(|_| Violation::MalformedFrame)?;
            ack_eliciting |= frame.is_ack_eliciting();
            if self.side == Side::Server && !self.admitted && frame.is_for_application() {
                // A stranger gets no memory for its data [P-3.6].
                return Err(Violation::BeforeAdmission);
            }
            if frame.is_for_application() {
                self.data_at = arrival.now;
            }
            self.handle_frame(arrival, frame)?;
            if !self.is_established() {
                break;
            }
        }
        Ok(ack_eliciting)
    }

    fn handle_frame(&mut self, arrival: &Arrival, frame: Frame<'_>) -> Result<(), Violation> {
        let now = arrival.now;
        match frame {
            Frame::Padding | Frame::Ping | Frame::Crypto { .. } => Ok(()),
            Frame::Ack(ack) => self.handle_ack(now, &ack),
            Frame::Shed(shed) => self.handle_shed(now, &shed),
            Frame::Stream { header, data } => self.streams.on_data(now, header, data),
            Frame::ResetStream {
                id,
                code,
                final_size,
            } => self.streams.on_reset(id, code, final_size),
            Frame::StopSending { id, code } => self.streams.on_stop(id, code),
            Frame::MaxData(max) => {
                self.streams.on_max_data(max);
                Ok(())
            }
            Frame::MaxStreamData { id, max } => self.streams.on_max_stream_data(id, max),
            Frame::MaxStreams(max) => {
                self.streams.on_max_streams(max);
                Ok(())
            }
            Frame::PathChallenge(data) => {
                if let Some(path) = self.paths.get_mut(arrival.path) {
                    path.response = Some((data, arrival.tuple));
                }
                Ok(())
            }
            Frame::PathResponse(data) => {
                self.handle_response(now, data);
                Ok(())
            }
            Frame::PathAbandon(id) => {
                self.handle_abandon(now, id);
                Ok(())
            }
            Frame::AckFrequency {
                path,
                packets,
                delay,
            } => {
                if let Some(path) = self.path_index(path) {
                    self.paths[path].received.set_frequency(packets, delay);
                }
                Ok(())
            }
            Frame::PathPolicy { path, number, wish } => {
                if let Some(index) = self.path_index(path) {
                    let path = &mut self.paths[index];
                    path.policies.on_heard(number, wish);
                    path.pace(now);
                }
                Ok(())
            }
            Frame::Class {
                class,
                number,
                rule,
            } => {
                self.expect_server()?;
                self.lanes.on_heard(class, number, rule, &mut self.streams);
                Ok(())
            }
            Frame::StreamHold { id, number, at } => self.streams.on_hold(id, number, at),
            Frame::StreamClass { id, number, class } => {
                self.expect_server()?;
                self.lanes.get_mut(class);
                let before = self.streams.on_class(id, number, class)?;
                self.on_class_changed(id, before, class);
                Ok(())
            }
            Frame::Probe(probe) => {
                if self.takes_probes()
                    && let Some(path) = self.paths.get_mut(arrival.path)
                {
                    path.on_probe(now, probe, arrival.size);
                }
                Ok(())
            }
            Frame::ProbeReport { path, report } => {
                if let Some(index) = self.path_index(path) {
                    self.paths[index].on_probe_report(now, report);
                }
                Ok(())
            }
            Frame::Hello { token } => self.handle_hello(token),
            Frame::Admitted => self.handle_admitted(),
            Frame::GoAway => self.handle_go_away(),
            Frame::Close { code, text } => {
                self.end(CloseReason::from_wire(code, &String::from_utf8_lossy(text)));
                Ok(())
            }
            Frame::Datagram(data) => {
                let data = Payload::copy_from_slice(data);
                let told = self.datagrams.on_received(now, arrival.id, data);
                self.on_datagram(told);
                Ok(())
            }
            Frame::DatagramCopy { number, data } => {
                let told = self.datagrams.on_copy(now, arrival.id, number, data);
                self.on_datagram(told);
                Ok(())
            }
            Frame::DatagramFragment { .. } => {
                let told = self.datagrams.on_fragment(now, arrival.id, &frame);
                self.on_datagram(told);
                Ok(())
            }
        }
    }

    /// Only clients know their links well enough to choose among them.
    fn expect_server(&self) -> Result<(), Violation> {
        match self.side {
            Side::Server => Ok(()),
            Side::Client => Err(Violation::WrongSide),
        }
    }

    pub(super) fn on_datagram(&mut self, told: bool) {
        if told && self.admitted {
            self.events.push_back(Event::DatagramsReadable);
        }
    }

    fn handle_ack(&mut self, now: Instant, ack: &AckFrame) -> Result<(), Violation> {
        // For a path that was closed meanwhile there is nothing left to settle.
        let Some(index) = self.path_index(ack.path) else {
            return Ok(());
        };
        let reverse = self.reverse_mean();
        let mut news = std::mem::take(&mut self.news);
        let result = self.paths[index].on_ack(now, ack, reverse, &mut news);
        self.apply(now, index, &mut news);
        self.news = news;
        result
    }

    /// To congestion control they arrived; what they carried has to go again.
    fn handle_shed(&mut self, now: Instant, shed: &AckFrame) -> Result<(), Violation> {
        let Some(index) = self.path_index(shed.path) else {
            return Ok(());
        };
        let reverse = self.reverse_mean();
        let mut news = std::mem::take(&mut self.news);
        let result = self.paths[index].on_ack(now, shed, reverse, &mut news);
        let shed = news.acked.drain(..).filter(|settled| !settled.was_lost);
        let lost = news.lost.len();
        news.lost.extend(shed);
        let awake = |path: &&Path| path.is_active() && path.rest.is_over(now);
        let is_alone = self.paths.iter().filter(awake).count() == 1;
        for settled in news.lost[lost..].iter().filter(|_| is_alone) {
            let frames = settled.packet.frames.iter();
            frames.for_each(|frame| self.streams.on_shed(frame));
        }
        let newest = news.lost[lost..]
            .iter()
            .map(|settled| settled.packet.sent_at)
            .max();
        let bytes = news.lost[lost..]
            .iter()
            .map(|settled| Bytes::new(settled.packet.size.into()))
            .sum();
        self.apply(now, index, &mut news);
        self.news = news;
        if let Some(sent_at) = newest {
            self.rest_farthest(now, sent_at, bytes);
        }
        result
    }

    /// The peer has too little memory for all paths: the farthest rests.
    fn rest_farthest(&mut self, now: Instant, sent_at: Instant, shed: Bytes) {
        let awake = || {
            let paths = self.paths.iter().enumerate();
            paths.filter(|(_, path)| path.is_active() && path.rest.is_over(now))
        };
        let farthest = awake().max_by_key(|(_, path)| path.rtt.smoothed());
        let Some((index, path)) = farthest else {
            return;
        };
        let round_trip = path.rtt.smoothed();
        let arrived = self.paths.iter().map(|path| path.totals.acked).sum();
        let rates: f64 = awake().map(|(_, path)| path.rate().as_bps() as f64).sum();
        let share = path.rate().as_bps() as f64 / rates.max(1.0);
        let is_one_of_many = awake().count() > 1;
        let too_much = self
            .shedding
            .on_shed(now, round_trip, (sent_at, shed), arrived, share);
        if too_much && is_one_of_many {
            self.paths[index].rest.begin(now, round_trip);
        }
    }

    /// The mean one-way time from the peer over all active paths, less the clocks' offset.
    fn reverse_mean(&self) -> Option<i64> {
        let active = self.paths.iter().filter(|path| path.is_active());
        let (sum, count) = active
            .filter_map(Path::reverse)
            .fold((0_i64, 0_i64), |(sum, count), reverse| {
                (sum.saturating_add(reverse), count + 1)
            });
        sum.checked_div(count)
    }

    /// Settles what a path reports of its packets and of itself.
    pub(super) fn apply(&mut self, now: Instant, index: usize, news: &mut crate::path::News) {
        let id = self.paths[index].id;
        if let Some(trace) = &mut self.trace {
            trace.record_news(now, &self.paths[index], news);
        }
        if let Some(reason) = news.down.take() {
            self.events.push_back(Event::PathDown(id, reason));
        }
        if std::mem::take(&mut news.up) {
            self.events.push_back(Event::PathUp(id));
            // What waits on silent paths has a way again.
            for path in &mut self.paths {
                if matches!(path.state(), State::Silent { .. }) {
                    path.give_up_in_flight(now, news);
                }
            }
        }
        self.settle(news);
    }

    fn handle_response(&mut self, now: Instant, data: [u8; 8]) {
        for index in 0..self.paths.len() {
            if self.paths[index].on_response(now, data) {
                let id = self.paths[index].id;
                self.events.push_back(Event::PathUp(id));
            }
        }
    }

    fn handle_abandon(&mut self, now: Instant, id: PathId) {
        match self.path_index(id) {
            Some(index) => self.remove_path(now, index, PathDownReason::Closed),
            None => drop(self.retired.insert(id)),
        }
    }

    fn handle_hello(&mut self, token: &[u8]) -> Result<(), Violation> {
        if self.side == Side::Client {
            return Err(Violation::WrongSide);
        }
        if self.admitted {
            self.due.admitted = true;
        } else if let Some(key) = self.peer_key
            && self.token.is_none()
        {
            // Remembered, so that a repeated hello asks no second time.
            self.token = Some(token.to_vec());
            let token = (!token.is_empty()).then(|| token.to_vec());
            self.events.push_back(Event::Authorise { key, token });
        }
        Ok(())
    }

    fn handle_go_away(&mut self) -> Result<(), Violation> {
        if self.side == Side::Server {
            return Err(Violation::WrongSide);
        }
        if !std::mem::replace(&mut self.sent_away, true) {
            self.events.push_back(Event::SentAway);
        }
        Ok(())
    }

    fn handle_admitted(&mut self) -> Result<(), Violation> {
        if self.side == Side::Server {
            return Err(Violation::WrongSide);
        }
        if !std::mem::replace(&mut self.admitted, true) {
            self.events.push_back(Event::Connected);
            // What overtook the admission.
            let told = self.datagrams.has_received();
            self.on_datagram(told);
        }
        Ok(())
    }
}
