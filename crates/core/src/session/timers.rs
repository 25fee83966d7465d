//! When something is due, and doing it.

use tabane_base::Instant;

use super::Session;
use crate::close::{CloseReason, PathDownReason};
use crate::event::{Event, TimerReason};
use crate::id::PathIndex;

/// The earliest moment at which the session has something to do.
pub(super) fn next(session: &Session) -> Option<(Instant, TimerReason)> {
    let mut soonest = Soonest(None);
    if let Some(handshake) = session.contact.handshake()
        && session.ending.is_none()
    {
        soonest.offer(handshake.timer(), TimerReason::Handshake);
    }
    let Some(agreement) = session.established() else {
        return soonest.0;
    };
    let idle_at = agreement.idle_at(session.last_received_at, &session.config);
    soonest.offer(idle_at, TimerReason::Idle);
    if let Some(at) = agreement.keys.discard_at() {
        soonest.offer(at, TimerReason::KeyDiscard);
    }
    if let Some(at) = session.datagrams.expires_at() {
        soonest.offer(at, TimerReason::Reassembly);
    }
    let wants_to_send = session.wants_to_send();
    for path in session.paths.iter() {
        if let Some(at) = path.ack_due_at()
            && (path.address().is_validated() || session.ack_carrier().is_some())
        {
            soonest.offer(at, TimerReason::Ack);
        }
        if let Some(at) = path.loss_timer() {
            soonest.offer(at, TimerReason::LossDetection(path.id()));
        }
        if let Some(at) = path.address().challenge_at() {
            soonest.offer(at, TimerReason::Validation(path.id()));
        }
        if let Some(at) = path.keep_alive_at(session.config.keep_alive) {
            soonest.offer(at, TimerReason::KeepAlive(path.id()));
        }
        if session.takes_probes()
            && let Some(at) = path.probe_at(session.paths.data_at())
        {
            soonest.offer(at, TimerReason::Probe(path.id()));
        }
        if let Some(at) = path.mtu_raised_at() {
            soonest.offer(at, TimerReason::Mtu(path.id()));
        }
        let window_open = path.window_room().get() >= path.packet_size() as u64;
        // What had its chance already waits for other news: the scheduler holds it back.
        let paced_at = path.paced_at();
        if wants_to_send && path.is_active() && window_open && paced_at > session.lanes.drained_at()
        {
            soonest.offer(paced_at, TimerReason::Pacing(path.id()));
        }
    }
    soonest.0
}

/// The least of the timers offered.
struct Soonest(Option<(Instant, TimerReason)>);

impl Soonest {
    fn offer(&mut self, at: Instant, reason: TimerReason) {
        if self.0.is_none_or(|(other, _)| at < other) {
            self.0 = Some((at, reason));
        }
    }
}

/// Does what is due at `now`. What only leads to packets is left to `poll_transmit`.
pub(super) fn handle(session: &mut Session, now: Instant) {
    if let Some(handshake) = session.contact.handshake_mut()
        && handshake.timer() <= now
        && !handshake.handle_timeout(now)
    {
        return session.end(CloseReason::HandshakeTimeout);
    }
    let Some(agreement) = session.established() else {
        return;
    };
    if agreement.idle_at(session.last_received_at, &session.config) <= now {
        let reason = match agreement.admission.is_granted() {
            true => CloseReason::IdleTimeout,
            false => CloseReason::HandshakeTimeout,
        };
        return session.end(reason);
    }
    if let Some(keys) = session.contact.keys_mut() {
        keys.discard_previous(now);
        if !keys.refresh(now, session.config.packets_per_key) {
            return session.close(now, CloseReason::KeysExhausted);
        }
    }
    let told = session.datagrams.expire(now);
    session.on_datagram(told);
    for index in session.paths.indices() {
        session.handle_path_timers(now, index);
    }
}

impl Session {
    fn handle_path_timers(&mut self, now: Instant, index: PathIndex) {
        let others = self.paths.is_other_active(index);
        let path = &mut self.paths[index];
        if path
            .keep_alive_at(self.config.keep_alive)
            .is_some_and(|at| at <= now)
        {
            path.ask_sign_of_life();
        }
        if path.report_unanswered() {
            let down = Event::PathDown(path.id(), PathDownReason::NotValidated);
            self.events.push_back(down);
        }
        if path.loss_timer().is_none_or(|at| at > now) {
            return;
        }
        let mut news = std::mem::take(&mut self.news);
        path.on_loss_timer(now, others, &mut news);
        let repeat = path.owes_probes() && !others;
        self.apply(now, index, &mut news);
        self.news = news;
        if repeat {
            self.repeat_oldest(index);
        }
    }

    /// Lets the probes of the only path carry what has waited longest.
    fn repeat_oldest(&mut self, index: PathIndex) {
        let oldest = self.paths[index].in_flight_mut().take(2);
        let frames: Vec<_> = oldest.flat_map(|packet| packet.frames.iter()).collect();
        frames
            .into_iter()
            .rev()
            .for_each(|frame| self.on_frame_lost(frame));
    }
}
