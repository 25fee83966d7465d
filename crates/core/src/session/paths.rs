//! The paths of a session: opened, closed, and used as either end wishes.
//!
//! Owns that nothing of a path's is lost with it. What a path is doing is its own affair.

use rustls::Side;
use tabane_base::{Bytes, Instant};
use thiserror::Error;

use super::Session;
use crate::close::{CloseReason, PathDownReason};
use crate::config::MAX_PATHS;
use crate::event::Event;
use crate::id::{FourTuple, PathId, PathIndex, SocketId};
use crate::policy::{MAX_PRIORITY, PathPolicy};

/// Why a path command cannot be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PathError {
    /// It was never opened, or is closed.
    #[error("there is no such path")]
    Unknown,
    /// As many paths are open as either end allows.
    #[error("as many paths are open as a session can have")]
    LimitReached,
    /// Only clients open paths, and only in connected sessions.
    #[error("the session is not connected, or this end may not open paths")]
    NotConnected,
    /// Negative, more than everything, or not a number.
    #[error("the weight of a path lies between 0 and 1")]
    WeightOutOfRange,
    /// Above [`MAX_PRIORITY`](crate::MAX_PRIORITY).
    #[error("the priority of a path is at most {}", crate::MAX_PRIORITY)]
    PriorityOutOfRange,
}

impl Session {
    /// Client: opens a path from and to `tuple`; [`Event::PathUp`] tells when it carries data.
    ///
    /// # Errors
    /// When the session is not connected, or has as many paths as it may.
    pub fn open_path(&mut self, now: Instant, tuple: FourTuple) -> Result<PathId, PathError> {
        let may_open = self.side == Side::Client && self.is_connected();
        let Some(peer) = self.contact.peer().filter(|_| may_open) else {
            return Err(PathError::NotConnected);
        };
        let allowed = MAX_PATHS.min(peer.paths as usize);
        if self.paths.len() >= allowed {
            return Err(PathError::LimitReached);
        }
        let id = self.paths.next_id();
        let index = self.add_path(now, id, tuple);
        self.paths.challenge(now, index, tuple);
        Ok(id)
    }

    /// Closes a path; what it had in flight goes to the others.
    ///
    /// # Errors
    /// When there is no such path.
    pub fn close_path(&mut self, now: Instant, id: PathId) -> Result<(), PathError> {
        let index = self.paths.index_of(id).ok_or(PathError::Unknown)?;
        self.due.abandon(id);
        self.remove_path(now, index, PathDownReason::Closed);
        Ok(())
    }

    /// Says how a path may be used from here on, by both ends [P-4.7]. Data that waits takes
    /// other paths at once; what is on its way stays there.
    ///
    /// # Errors
    /// When there is no such path, the weight is no share, or the priority is too high.
    pub fn set_path_policy(
        &mut self,
        now: Instant,
        id: PathId,
        policy: PathPolicy,
    ) -> Result<(), PathError> {
        if !(0.0..=1.0).contains(&policy.weight) {
            return Err(PathError::WeightOutOfRange);
        }
        if policy.priority > MAX_PRIORITY {
            return Err(PathError::PriorityOutOfRange);
        }
        let policy = PathPolicy {
            // Who allows probes on metered paths has them treated as any other.
            metered: policy.metered && !self.config.probe_metered,
            ..policy
        };
        let index = self.paths.index_of(id).ok_or(PathError::Unknown)?;
        self.paths[index].set_policy(now, policy);
        Ok(())
    }

    /// The network carries something again: whether silent paths do is asked at once, and not at
    /// their next probe's time.
    pub fn rouse(&mut self, now: Instant) {
        self.paths
            .iter_mut()
            .for_each(|path| path.on_sign_of_life(now));
    }

    /// Measures a path, both ways, by `trains` trains of packets, whatever the budget for probes
    /// [P-10.5]. Nothing comes of it where the path is metered or the other end takes no probes.
    ///
    /// # Errors
    /// When there is no such path.
    pub fn measure_path(
        &mut self,
        _now: Instant,
        id: PathId,
        trains: u32,
    ) -> Result<(), PathError> {
        let index = self.paths.index_of(id).ok_or(PathError::Unknown)?;
        self.paths[index].request_probes(trains);
        Ok(())
    }

    /// An interface vanished: its paths are closed at once.
    pub fn handle_socket_lost(&mut self, now: Instant, socket: SocketId) {
        if let Some(handshake) = self.contact.handshake_mut() {
            handshake.drop_socket(socket);
        }
        while let Some(index) = self.paths.position(|p| p.tuple().socket == socket) {
            self.due.abandon(self.paths[index].id());
            self.remove_path(now, index, PathDownReason::InterfaceGone);
        }
    }

    /// How much more each byte stream takes at present. To be said before each
    /// [`poll_transmit`](Self::poll_transmit); what has no room goes by other paths.
    pub fn set_stream_rooms(&mut self, room: impl Fn(SocketId) -> Bytes) {
        for path in self.paths.iter_mut() {
            if path.tuple().socket.is_ordered() {
                let room = room(path.tuple().socket);
                path.address_mut().set_stream_room(room);
            }
        }
    }

    /// Whether a path of it goes by this socket.
    #[must_use]
    pub fn uses(&self, socket: SocketId) -> bool {
        self.paths.iter().any(|path| path.tuple().socket == socket)
    }

    /// Server: the client has opened a path that [may appear](crate::path::Paths::may_appear).
    pub(super) fn begin_path(&mut self, now: Instant, id: PathId, tuple: FourTuple) -> PathIndex {
        if let Some(index) = self.paths.in_the_way() {
            self.remove_path(now, index, PathDownReason::NotValidated);
        }
        self.add_path(now, id, tuple)
    }

    /// # Panics
    /// Where the session has, or had, a path of this number, or has no keys.
    pub(super) fn add_path(&mut self, now: Instant, id: PathId, tuple: FourTuple) -> PathIndex {
        let peer = self
            .contact
            .peer()
            .expect("paths begin once there are keys");
        let size = self.config.max_udp_payload.min(peer.max_udp_payload);
        let controller = self.config.controller;
        let index = self.paths.add(now, (id, tuple), controller, size);
        self.paths[index].set_peer_ack_delay(peer.max_ack_delay);
        index
    }

    pub(super) fn remove_path(&mut self, now: Instant, index: PathIndex, reason: PathDownReason) {
        let mut news = std::mem::take(&mut self.news);
        self.paths[index].give_up_in_flight(now, &mut news);
        let id = self.paths[index].id();
        let retired = self.paths.remove(index);
        self.settle(&mut news);
        self.news = news;
        self.events.push_back(Event::PathDown(id, reason));
        if let Err(violation) = retired {
            self.close(now, CloseReason::ProtocolViolation(violation));
        }
    }
}
