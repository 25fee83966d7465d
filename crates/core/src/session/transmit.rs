//! What goes out: which packets are due, in which order, and building them in place.

use std::ops::ControlFlow;

use tabane_base::{Bytes, Duration, Instant};

use super::{Phase, Session};
use crate::close::CloseReason;
use crate::id::FourTuple;
use crate::mtu::BASE_SIZE;
use crate::path::{Path, State};
use crate::recovery::{SentFrame, SentFrames};
use crate::reinjection::reinject;
use crate::scheduler::{Grant, PathView, wait_until};
use crate::transmit::TransmitBatch;
use crate::wire::{ACK_RESERVE, Frame, ShortHeader, TAG_LEN, packet_number_len, put_packet_number};

/// A path that only carries acknowledgements is measured so often: round trips change within
/// seconds on radio links.
const MEASURE_INTERVAL: Duration = Duration::from_secs(1);
/// The header-protection sample begins four bytes after the packet number does.
const MIN_PN_AND_PAYLOAD: usize = 4;

/// Appends what may leave now. `false` when nothing does.
pub(super) fn poll(session: &mut Session, now: Instant, batch: &mut TransmitBatch) -> bool {
    let before = batch.buf.len();
    if !matches!(session.phase, Phase::Closed)
        && let Some(handshake) = &mut session.handshake
    {
        handshake.poll_transmit(now, batch);
    }
    match &session.phase {
        Phase::Handshaking | Phase::Closed => {}
        Phase::Closing(reason) => {
            let reason = reason.clone();
            session.say_goodbye(now, &reason, batch);
        }
        Phase::Established => session.poll_established(now, batch),
    }
    batch.buf.len() > before
}

impl Session {
    fn poll_established(&mut self, now: Instant, batch: &mut TransmitBatch) {
        if let Some(keys) = &mut self.keys {
            keys.refresh(now, self.config.packets_per_key);
        }
        for index in 0..self.paths.len() {
            self.send_validation(now, index, batch);
            self.send_probes(now, index, batch);
        }
        self.send_acks(now, batch);
        self.send_data(now, batch);
        if !batch.is_full() {
            self.drained_at = now;
        }
        for index in 0..self.paths.len() {
            self.send_mtu_probe(now, index, batch);
        }
    }

    /// Builds one packet of at most `size` bytes on a path, of which `fill` appends the frames
    /// and says whether any asks for acknowledgement. `false` when `fill` appended none.
    fn send_packet(
        &mut self,
        now: Instant,
        (index, to): (usize, FourTuple),
        (size, padded): (usize, bool),
        batch: &mut TransmitBatch,
        fill: impl FnOnce(&mut Self, &mut Vec<u8>, usize, &mut SentFrames) -> bool,
    ) -> bool {
        let Some(keys) = &self.keys else { return false };
        let (phase, generation) = (keys.phase(), keys.generation());
        let path = &self.paths[index];
        let (id, pn) = (path.id, path.recovery.next_pn());
        let pn_len = packet_number_len(pn, path.recovery.largest_acked());
        let start = batch.buf.len();
        ShortHeader::emit(self.remote, id, phase, pn_len, &mut batch.buf);
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
        debug_assert!(batch.buf.len() <= end, "a packet overflows");
        let least = if padded {
            end
        } else {
            pn_offset + MIN_PN_AND_PAYLOAD
        };
        if batch.buf.len() < least {
            batch.buf.resize(least, 0);
        }
        if let Some(keys) = &mut self.keys {
            keys.seal(&mut batch.buf, start, (pn_offset, pn_len), id, pn);
        }
        let size = batch.buf.len() - start;
        batch.finish(to, start);
        self.paths[index].on_sent(now, size, ack_eliciting, generation, frames);
        true
    }

    /// Challenges that are due and answers that are owed.
    fn send_validation(&mut self, now: Instant, index: usize, batch: &mut TransmitBatch) {
        let path = &mut self.paths[index];
        if let Some((data, to)) = path.response.take() {
            let size = validation_size(path, to);
            let fill = |_: &mut Self, out: &mut Vec<u8>, _: usize, _: &mut SentFrames| {
                Frame::PathResponse(data).emit(out);
                true
            };
            self.send_packet(now, (index, to), size, batch, fill);
        }
        let path = &mut self.paths[index];
        if let Some(challenge) = path.challenge
            && challenge.due_at <= now
        {
            path.on_challenge_sent(now);
            let size = validation_size(path, challenge.tuple);
            let fill = |_: &mut Self, out: &mut Vec<u8>, _: usize, _: &mut SentFrames| {
                Frame::PathChallenge(challenge.data).emit(out);
                true
            };
            self.send_packet(now, (index, challenge.tuple), size, batch, fill);
        }
    }

    /// Probes after a timeout, and keep-alives. Neither window nor pacer holds them back.
    fn send_probes(&mut self, now: Instant, index: usize, batch: &mut TransmitBatch) {
        let path = &mut self.paths[index];
        if matches!(path.state(), State::Opening { .. }) {
            path.probes_due = 0;
            return;
        }
        let ping = std::mem::take(&mut path.keep_alive_due);
        let probes = std::mem::take(&mut path.probes_due);
        let place = (index, path.tuple);
        let size = (path.packet_size(), false);
        let others = self
            .paths
            .iter()
            .enumerate()
            .any(|(i, p)| i != index && p.is_active());
        let mut sent = 0;
        if !others {
            // What waits longest may as well be a probe.
            while sent + 1 < probes && self.wants_to_send() {
                if !self.send_packet(now, place, size, batch, Self::fill) {
                    break;
                }
                sent += 1;
            }
        }
        // One probe is empty: data may be refused for want of memory, and silence about it would
        // look like a dead path and hide what the reader waits for.
        if probes > sent || ping && sent == 0 {
            self.send_packet(now, place, size, batch, |_, out, _, frames| {
                Frame::Ping.emit(out);
                frames.push(SentFrame::Ping);
                true
            });
        }
    }

    /// Acknowledgements that are due, of all paths, on the path most likely to bring them soonest.
    fn send_acks(&mut self, now: Instant, batch: &mut TransmitBatch) {
        let is_due = |path: &Path| path.received.due_at().is_some_and(|at| at <= now);
        while let Some(first) = self.paths.iter().position(is_due) {
            let carrier = self.ack_carrier().unwrap_or(first);
            let path = &self.paths[carrier];
            let place = (carrier, path.tuple);
            let size = (path.packet_size(), false);
            let ping = path.is_active() && path.last_eliciting_at() + MEASURE_INTERVAL <= now;
            for path in self
                .paths
                .iter_mut()
                .filter(|path| is_due(path) && path.is_active())
            {
                path.keep_alive_due |= path.last_eliciting_at() + MEASURE_INTERVAL <= now;
            }
            self.send_packet(now, place, size, batch, |session, out, space, frames| {
                let end = out.len() + space;
                for path in session.paths.iter_mut().filter(|path| is_due(path)) {
                    if out.len() + ACK_RESERVE > end {
                        break;
                    }
                    path.received.emit(now, path.id, out);
                }
                if ping {
                    Frame::Ping.emit(out);
                    frames.push(SentFrame::Ping);
                }
                ping
            });
        }
    }

    /// The fastest active path that was heard as lately as any: one whose far side went silent
    /// may lose what we send as well.
    fn ack_carrier(&self) -> Option<usize> {
        let newest = self.paths.iter().map(Path::last_received_at).max()?;
        let usable = self
            .paths
            .iter()
            .enumerate()
            .filter(|(_, path)| path.is_active());
        let fresh = usable.filter(|(_, path)| path.is_fresh(newest));
        fresh
            .min_by_key(|(_, path)| path.rtt.smoothed())
            .map(|(index, _)| index)
    }

    pub(super) fn wants_to_send(&self) -> bool {
        self.due.hello
            || self.due.admitted
            || !self.due.abandon.is_empty()
            || self.streams.has_control()
            || self.datagrams.has_data()
            || self.streams.has_data()
    }

    /// Streams, datagrams and control frames, on the paths the scheduler names.
    fn send_data(&mut self, now: Instant, batch: &mut TransmitBatch) {
        loop {
            if batch.is_full() {
                return;
            }
            let views = self.views(now);
            if !self.wants_to_send() && !self.reinject(now, &views) {
                return self.mark_app_limited(now);
            }
            let backlog = self.streams.backlog() + Bytes::from(self.datagrams.queued());
            let Some(grant) = self.scheduler.choose(&views, backlog) else {
                return self.mark_app_limited(now);
            };
            if self.send_granted(now, grant, batch).is_break() {
                return;
            }
        }
    }

    /// Paths that would take more than they get, for want of data or because waiting for another
    /// is earlier, measure the application and not themselves.
    fn mark_app_limited(&mut self, now: Instant) {
        for path in self.paths.iter_mut().filter(|path| path.is_active()) {
            if path.room(now).get() >= path.packet_size() as u64 {
                path.on_app_limited();
            }
        }
    }

    /// Breaks when there is nothing (more) that credit lets out.
    fn send_granted(
        &mut self,
        now: Instant,
        grant: Grant,
        batch: &mut TransmitBatch,
    ) -> ControlFlow<()> {
        for _ in 0..grant.packets {
            if batch.is_full() {
                break;
            }
            let path = &self.paths[grant.index];
            let size = path.packet_size();
            if path.amplification_room().get() < size as u64 {
                return ControlFlow::Break(());
            }
            let place = (grant.index, path.tuple);
            if !self.send_packet(now, place, (size, false), batch, Self::fill) {
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }

    /// Sends again, where it arrives earlier, what a slow path is slow with.
    fn reinject(&mut self, now: Instant, views: &[PathView]) -> bool {
        if views.len() < 2 || !self.scheduler.reinjects() || !self.streams.is_draining() {
            return false;
        }
        let with_room = views.iter().filter(|view| view.room >= view.packet);
        let Some(fast) = with_room.min_by_key(|view| view.delay) else {
            return false;
        };
        reinject(now, &mut self.paths, fast, views, &mut self.streams)
    }

    fn views(&self, now: Instant) -> Vec<PathView> {
        let active = || {
            self.paths
                .iter()
                .enumerate()
                .filter(|(_, path)| path.is_active())
        };
        let best = active()
            .filter_map(|(_, path)| path.forward.relative())
            .min();
        let base = active()
            .map(|(_, path)| path.rtt.smoothed())
            .min()
            .unwrap_or_default()
            / 2;
        let view = |(index, path): (usize, &Path)| {
            let packet = Bytes::from(path.packet_size());
            let paced = wait_until(now, path.paced_at());
            let blocked = path.window_room() < packet;
            let beyond = path
                .forward
                .relative()
                .zip(best)
                .map(|(own, best)| own - best);
            PathView {
                index,
                room: path.room(now),
                wait: if blocked {
                    paced.max(path.rate().time_for(packet))
                } else {
                    paced
                },
                rate: path.rate(),
                rtt: path.rtt.smoothed(),
                delay: beyond.map_or_else(
                    || path.rtt.smoothed() / 2,
                    |nanos| base + Duration::from_nanos(nanos.unsigned_abs()),
                ),
                packet,
            }
        };
        active().map(view).collect()
    }

    /// Frames of a data packet, most urgent first.
    fn fill(&mut self, out: &mut Vec<u8>, space: usize, frames: &mut SentFrames) -> bool {
        let (start, end) = (out.len(), out.len() + space);
        self.fill_session_frames(out, frames);
        self.fill_frequency(end, out, frames);
        self.streams.fill_control(out, end - out.len(), frames);
        self.datagram_turn = !self.datagram_turn;
        let datagrams_first = self.datagram_turn || !self.streams.has_data();
        if datagrams_first {
            self.datagrams.fill(out, end - out.len(), space);
        }
        if !datagrams_first || !self.datagrams.has_data() {
            self.streams.fill_data(out, end - out.len(), frames);
        }
        out.len() > start
    }

    fn fill_session_frames(&mut self, out: &mut Vec<u8>, frames: &mut SentFrames) {
        if std::mem::take(&mut self.due.hello) {
            let token = self.token.as_deref().unwrap_or_default();
            Frame::Hello { token }.emit(out);
            frames.push(SentFrame::Hello);
        }
        if std::mem::take(&mut self.due.admitted) {
            Frame::Admitted.emit(out);
            frames.push(SentFrame::Admitted);
        }
        for id in self.due.abandon.drain(..) {
            Frame::PathAbandon(id).emit(out);
            frames.push(SentFrame::PathAbandon(id));
        }
    }

    fn fill_frequency(&mut self, end: usize, out: &mut Vec<u8>, frames: &mut SentFrames) {
        /// Type and three variable-length integers.
        const SIZE: usize = 1 + 4 + 2 + 4;
        for path in self.paths.iter_mut().filter(|path| path.frequency_due) {
            if out.len() + SIZE > end {
                return;
            }
            let (packets, delay) = path.take_frequency();
            Frame::AckFrequency {
                path: path.id,
                packets,
                delay,
            }
            .emit(out);
            frames.push(SentFrame::AckFrequency);
        }
    }

    fn send_mtu_probe(&mut self, now: Instant, index: usize, batch: &mut TransmitBatch) {
        let path = &mut self.paths[index];
        if !path.is_active() || batch.is_full() {
            return;
        }
        let Some(size) = path.mtu.wants_probe(now) else {
            return;
        };
        path.mtu.on_probe_sent();
        let place = (index, path.tuple);
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
        if let Some(handshake) = &mut self.handshake {
            handshake.emit_close(reason, batch);
        }
        let (code, text) = (reason.code(), reason.to_string());
        for index in 0..self.paths.len() {
            let path = &self.paths[index];
            let place = (index, path.tuple);
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
        self.phase = Phase::Closed;
    }
}

/// Size and padding of a packet that validates `to`: padded, so that the address is shown to carry
/// packets of the least size, unless too little came from there for that.
fn validation_size(path: &Path, to: FourTuple) -> (usize, bool) {
    let known = to == path.tuple;
    let padded = known && path.amplification_room().get() >= BASE_SIZE.into();
    (BASE_SIZE.into(), padded)
}
