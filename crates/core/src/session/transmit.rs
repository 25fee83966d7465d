//! What goes out: which packets are due, in which order, and building them in place.

use rustls::Side;
use tabane_base::{Duration, Instant};

use super::contact::Agreement;
use super::{Ending, Session};
use crate::close::CloseReason;
use crate::id::{FourTuple, PathIndex};
use crate::mtu::BASE_SIZE;
use crate::path::{Path, QUESTION_SIZE, State};
use crate::probe::{Probe, packet_size};
use crate::recovery::{SentFrame, SentFrames};
use crate::retry::{RESET_PREFIX, RESET_TOKEN_LEN};
use crate::scheduler::Grant;
use crate::trace::{Traced, traced_frames};
use crate::transmit::TransmitBatch;
use crate::wire::{
    ACK_RESERVE, Frame, PROBE_REPORT_MAX, SHED_MAX, ShortHeader, TAG_LEN, packet_number_len,
    put_packet_number,
};

/// A path that only carries acknowledgements is measured so often: round trips change within
/// seconds on radio links.
const MEASURE_INTERVAL: Duration = Duration::from_secs(1);
/// The header-protection sample begins four bytes after the packet number does.
const MIN_PN_AND_PAYLOAD: usize = 4;
/// What asks for an answer is larger than a stateless reset, which must not answer anything smaller
/// than itself: else who only keeps a session alive would never learn that it is forgotten.
const MIN_ELICITING: usize = RESET_PREFIX + RESET_TOKEN_LEN + 1;
/// Type, session, path and packet number at their longest.
const MAX_SHORT_HEADER: usize = 1 + 4 + 8 + 4;
/// What acknowledges, at its longest.
const ACK_PACKET_MAX: usize =
    MAX_SHORT_HEADER + SHED_MAX + ACK_RESERVE + PROBE_REPORT_MAX + TAG_LEN + 1;
const _: () = assert!(MAX_SHORT_HEADER + MIN_PN_AND_PAYLOAD + TAG_LEN <= MIN_ELICITING);

/// Appends what may leave now. `false` when nothing does.
pub(super) fn poll(session: &mut Session, now: Instant, batch: &mut TransmitBatch) -> bool {
    let before = batch.buf.len();
    if !session.is_closed()
        && let Some(handshake) = session.contact.handshake_mut()
    {
        handshake.poll_transmit(now, batch);
    }
    match &session.ending {
        None if session.is_established() => session.poll_established(now, batch),
        Some(Ending::Closing(reason)) => {
            let reason = reason.clone();
            session.say_goodbye(now, &reason, batch);
        }
        None | Some(Ending::Closed) => {}
    }
    batch.buf.len() > before
}

impl Session {
    fn poll_established(&mut self, now: Instant, batch: &mut TransmitBatch) {
        if let Some(keys) = self.contact.keys_mut() {
            keys.refresh(now, self.config.packets_per_key);
        }
        for index in self.paths.indices() {
            self.send_validation(now, index, batch);
            self.send_probes(now, index, batch);
        }
        self.send_acks(now, batch);
        for index in self.paths.indices() {
            self.send_train(now, index, batch);
        }
        self.send_data(now, batch);
        if !batch.is_full() {
            self.lanes.on_drained(now);
        }
        for index in self.paths.indices() {
            self.send_mtu_probe(now, index, batch);
        }
    }

    /// Builds one packet of at most `size` bytes on a path, of which `fill` appends the frames
    /// and says whether any asks for acknowledgement. `false` when `fill` appended none.
    pub(super) fn send_packet(
        &mut self,
        now: Instant,
        (index, to): (PathIndex, FourTuple),
        (size, padded): (usize, bool),
        batch: &mut TransmitBatch,
        fill: impl FnOnce(&mut Self, &mut Vec<u8>, usize, &mut SentFrames) -> bool,
    ) -> bool {
        let Some(Agreement { keys, remote, .. }) = self.contact.agreement() else {
            return false;
        };
        let (remote, phase, generation) = (*remote, keys.phase(), keys.generation());
        let path = &self.paths[index];
        let (id, pn) = (path.id(), path.recovery().next_pn());
        let pn_len = packet_number_len(pn, path.recovery().largest_acked());
        let start = batch.buf.len();
        ShortHeader::emit(remote, id, phase, pn_len, &mut batch.buf);
        let pn_offset = batch.buf.len();
        put_packet_number(pn, pn_len, &mut batch.buf);
        let body = batch.buf.len();
        let end = start + size - TAG_LEN;
        let mut frames = SentFrames::default();
        let ack_eliciting = fill(self, &mut batch.buf, end - body, &mut frames);
        if batch.buf.len() == body {
            batch.buf.truncate(start);
            return false;
        }
        assert!(batch.buf.len() <= end, "a packet overflows");
        let least = match (padded, ack_eliciting) {
            (true, _) => end,
            (false, true) => start + MIN_ELICITING - TAG_LEN,
            (false, false) => pn_offset + MIN_PN_AND_PAYLOAD,
        };
        if batch.buf.len() < least {
            batch.buf.resize(least, 0);
        }
        let is_traced = self.trace.is_some();
        let traced = is_traced.then(|| traced_frames(&batch.buf[body..]));
        if let Some(keys) = self.contact.keys_mut() {
            keys.seal(&mut batch.buf, start, (pn_offset, pn_len), id, pn);
        }
        let size = batch.buf.len() - start;
        batch.finish(to, start);
        self.paths[index].on_sent(now, pn, size, ack_eliciting, generation, frames);
        if let Some((trace, frames)) = self.trace.as_mut().zip(traced) {
            let sent = Traced::Sent {
                pn,
                size: u16::try_from(size).unwrap_or(u16::MAX),
                eliciting: ack_eliciting,
                frames,
            };
            trace.record(now, id, sent);
        }
        true
    }

    /// Challenges that are due and answers that are owed.
    fn send_validation(&mut self, now: Instant, index: PathIndex, batch: &mut TransmitBatch) {
        let path = &mut self.paths[index];
        if let Some(response) = path.address_mut().take_response() {
            let (size, padded) = validation_size(path, response.to);
            let size = (size, padded && response.is_full);
            // A peer that asks without end must not make us remember without end.
            let is_followed = !path.recovery().asks_enough(path.cwnd());
            let fill = |_: &mut Self, out: &mut Vec<u8>, _: usize, _: &mut SentFrames| {
                Frame::PathResponse(response.data).emit(out);
                is_followed
            };
            self.send_packet(now, (index, response.to), size, batch, fill);
        }
        let path = &mut self.paths[index];
        if let Some(challenge) = path.address_mut().take_challenge(now) {
            // Whose address it is may not be known to be ours to speak to.
            if self.side == Side::Server && !path.address().may_challenge(challenge.tuple) {
                return;
            }
            let size = validation_size(path, challenge.tuple);
            // Wishes come with the first packet: the other end may use the path once it knows.
            let is_own = challenge.tuple == path.tuple();
            let wish = path.policies().frame(path.id()).filter(|_| is_own);
            let fill = |_: &mut Self, out: &mut Vec<u8>, _: usize, _: &mut SentFrames| {
                Frame::PathChallenge(challenge.data).emit(out);
                wish.iter().for_each(|wish| wish.emit(out));
                true
            };
            self.send_packet(now, (index, challenge.tuple), size, batch, fill);
        }
        self.send_round_trip(now, index, batch);
    }

    /// A question how long the way there and back takes, if one is due.
    fn send_round_trip(&mut self, now: Instant, index: PathIndex, batch: &mut TransmitBatch) {
        let path = &mut self.paths[index];
        let place = (index, path.tuple());
        let size = (path.packet_size(), false);
        if let Some(data) = self.paths.take_round_trip(now, index) {
            self.send_packet(now, place, size, batch, |_, out, _, _| {
                let end = out.len() + QUESTION_SIZE;
                Frame::PathChallenge(data).emit(out);
                out.resize(end, 0);
                true
            });
        }
    }

    /// Probes after a timeout, and keep-alives. Neither window nor pacer holds them back.
    fn send_probes(&mut self, now: Instant, index: PathIndex, batch: &mut TransmitBatch) {
        let path = &mut self.paths[index];
        let probes = path.take_probes();
        if matches!(path.state(), State::Opening { .. }) {
            return;
        }
        let is_asked = path.recovery().asks_enough(path.cwnd());
        let mut ping = path.take_sign_of_life() && !is_asked;
        let place = (index, path.tuple());
        let size = (path.packet_size(), false);
        if ping && probes == 0 && self.takes_probes() && self.paths[index].may_probe_instead(now) {
            ping = !self.send_train_now(now, index, batch);
        }
        let others = self.paths.is_other_active(index);
        let mut sent = 0;
        if !others {
            // What waits longest may as well be a probe.
            while sent + 1 < probes
                && let Some(class) = self.class_for_probe(index)
            {
                if !self.send_data_packet(now, class, Grant::probe(index), batch) {
                    break;
                }
                sent += 1;
            }
        }
        // One probe is empty: data may be refused for want of memory, and silence about it would
        // look like a dead path and hide what the reader waits for.
        let pings = match probes > sent {
            true => self.paths[index].pings_of_probe(),
            false => u32::from(ping && sent == 0),
        };
        for _ in 0..pings {
            self.send_packet(now, place, size, batch, |_, out, _, frames| {
                Frame::Ping.emit(out);
                frames.push(SentFrame::Ping);
                true
            });
        }
    }

    /// Acknowledgements that are due, of all paths, on the path most likely to bring them soonest;
    /// of other paths' packets once in a round trip on their own as well. Else a path that has just
    /// come to a halt would silence the others, which are well.
    fn send_acks(&mut self, now: Instant, batch: &mut TransmitBatch) {
        let is_due = |path: &Path| path.ack_due_at().is_some_and(|at| at <= now);
        while self.paths.iter().any(is_due)
            && let Some(carrier) = self.ack_carrier()
        {
            let path = &self.paths[carrier];
            let place = (carrier, path.tuple());
            let size = (path.packet_size(), false);
            let ping = path.is_active() && path.last_eliciting_at() + MEASURE_INTERVAL <= now;
            for path in self
                .paths
                .iter_mut()
                .filter(|path| is_due(path) && path.is_active())
            {
                if path.last_eliciting_at() + MEASURE_INTERVAL <= now {
                    path.ask_sign_of_life();
                }
            }
            self.send_packet(now, place, size, batch, |session, out, space, frames| {
                let end = out.len() + space;
                for path in session.paths.iter_mut().filter(|path| is_due(path)) {
                    if out.len() + SHED_MAX + ACK_RESERVE + PROBE_REPORT_MAX > end {
                        break;
                    }
                    path.emit_ack(now, out);
                    if let Some(report) = path.take_probe_report() {
                        Frame::ProbeReport {
                            path: path.id(),
                            report,
                        }
                        .emit(out);
                    }
                }
                if ping {
                    Frame::Ping.emit(out);
                    frames.push(SentFrame::Ping);
                }
                ping
            });
            for index in self.paths.indices() {
                self.send_own_ack(now, index, carrier, batch);
            }
        }
    }

    /// The acknowledgement that `carrier` has just taken for a path, if it is time, by the path.
    fn send_own_ack(
        &mut self,
        now: Instant,
        index: PathIndex,
        carrier: PathIndex,
        batch: &mut TransmitBatch,
    ) {
        let path = &mut self.paths[index];
        if !path.takes_own_ack(now) || index == carrier || batch.is_full() {
            return;
        }
        let (place, size) = ((index, path.tuple()), (path.packet_size(), false));
        self.send_packet(now, place, size, batch, |session, out, _, _| {
            session.paths[index].emit_ack(now, out);
            false
        });
    }

    /// The fastest active path of the most preferred that was heard as lately as any: one whose far
    /// side went silent may lose what we send as well. Where none is, any that has
    /// acknowledgements of its own and may carry them.
    pub(super) fn ack_carrier(&self) -> Option<PathIndex> {
        let newest = self.paths.iter().map(Path::last_received_at).max()?;
        let fresh = self
            .paths
            .active()
            .filter(|(_, path)| path.is_fresh(newest));
        fresh
            .min_by_key(|(_, path)| (path.policies().tier(), path.rtt().smoothed()))
            .map(|(index, _)| index)
            .or_else(|| {
                let has_any =
                    |path: &Path| path.ack_due_at().is_some() && self.may_carry_acks(path);
                self.paths.position(has_any)
            })
    }

    /// Whether an acknowledgement may go where a path leads: a server sends an address that has not
    /// proved itself no more than three times what came from there (RFC 9000 §8.1). Active paths
    /// have proved theirs.
    fn may_carry_acks(&self, path: &Path) -> bool {
        let room = path.address().amplification_room().get();
        self.side == Side::Client || room >= ACK_PACKET_MAX as u64
    }

    /// A train of probes, if one is due [P-10.2].
    fn send_train(&mut self, now: Instant, index: PathIndex, batch: &mut TransmitBatch) {
        let is_due = self.takes_probes()
            && !batch.is_full()
            && self.paths[index]
                .probe_at(self.paths.data_at())
                .is_some_and(|at| at <= now);
        if is_due {
            self.send_train_now(now, index, batch);
        }
    }

    /// `false` when the window has no room.
    fn send_train_now(
        &mut self,
        now: Instant,
        index: PathIndex,
        batch: &mut TransmitBatch,
    ) -> bool {
        let path = &mut self.paths[index];
        let Some(train) = path.begin_probe(now) else {
            return false;
        };
        let (place, full) = ((index, path.tuple()), path.packet_size() as u64);
        for at in 0..train.count {
            let probe = Probe { index: at, ..train };
            let size = packet_size(full, at, train.count) as usize;
            self.send_packet(now, place, (size, true), batch, |_, out, _, frames| {
                Frame::Probe(probe).emit(out);
                frames.push(SentFrame::Probe(at as u8));
                true
            });
        }
        true
    }

    fn send_mtu_probe(&mut self, now: Instant, index: PathIndex, batch: &mut TransmitBatch) {
        let path = &mut self.paths[index];
        if !path.is_active() || batch.is_full() {
            return;
        }
        let Some(size) = path.take_mtu_probe(now) else {
            return;
        };
        let place = (index, path.tuple());
        self.send_packet(
            now,
            place,
            (size.into(), true),
            batch,
            |_, out, _, frames| {
                Frame::Ping.emit(out);
                frames.push(SentFrame::MtuProbe(size));
                true
            },
        );
    }

    fn say_goodbye(&mut self, now: Instant, reason: &CloseReason, batch: &mut TransmitBatch) {
        if let Some(handshake) = self.contact.handshake_mut() {
            handshake.emit_close(reason, batch);
        }
        let (code, text) = (reason.code(), reason.to_string());
        for index in self.paths.indices() {
            let path = &self.paths[index];
            let place = (index, path.tuple());
            let size = (path.packet_size(), false);
            self.send_packet(now, place, size, batch, |_, out, _, _| {
                Frame::Close {
                    code,
                    text: text.as_bytes(),
                }
                .emit(out);
                false
            });
        }
        self.ending = Some(Ending::Closed);
    }
}

/// Size and padding of a packet that validates `to`: padded, so that the address is shown to carry
/// packets of the least size, unless too little came from there for that.
fn validation_size(path: &Path, to: FourTuple) -> (usize, bool) {
    let known = to == path.tuple();
    let padded = known && path.address().amplification_room().get() >= BASE_SIZE.into();
    (BASE_SIZE.into(), padded)
}
