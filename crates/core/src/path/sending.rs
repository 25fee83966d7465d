//! How much may leave, and when: by window, pacer, the owners' wishes, and what an unproved address
//! may be sent.
//!
//! Owns what a packet that leaves means for everything that is measured on the path.

use tabane_base::{Bytes, Duration, Instant, Rate};

use super::Path;
use crate::id::PacketNumber;
use crate::recovery::{SentFrames, SentPacket};

/// So much later the first packets of a path may arrive: ten on a link of 0.5 Mbit/s.
const LATE_UNMEASURED: Duration = Duration::from_millis(240);

/// So much longer than one and a half of the shortest round trips nothing is in flight but for a
/// queue.
const QUEUED: Duration = Duration::from_millis(50);

/// How a path brings what is in flight on it, at the rate at which it delivers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    rate: Option<Rate>,
    way_back: Duration,
}

impl Arrival {
    /// How long from now until so much has arrived, oldest first; nothing where it is not known.
    pub(crate) fn of(self, amount: Bytes) -> Duration {
        let time = self.rate.map(|rate| rate.time_for(amount));
        time.unwrap_or_default().saturating_sub(self.way_back)
    }
}

impl Path {
    /// Nothing to send though the path would take it: what is measured is the application.
    pub(crate) fn on_app_limited(&mut self) {
        self.delivery.mark_app_limited(self.recovery.in_flight());
    }

    /// The packet `pn` of `size` bytes leaves.
    ///
    /// # Panics
    /// Where the number is not the next one: with the same key and number twice, what is sent could
    /// be read and forged.
    pub(crate) fn on_sent(
        &mut self,
        now: Instant,
        pn: PacketNumber,
        size: usize,
        ack_eliciting: bool,
        key_generation: u64,
        frames: SentFrames,
    ) {
        assert!(pn == self.recovery.next_pn(), "a number is used once");
        let bytes = Bytes::from(size);
        self.totals.sent += bytes;
        self.totals.sent_packets += 1;
        self.life.on_sent(now);
        self.address.on_sent(bytes);
        if !ack_eliciting {
            self.recovery.on_untracked_sent();
            return;
        }
        let paced = self.paced_rate();
        if self.policies.allowed(paced) < paced {
            // Held below what the path takes: what is measured is the wish, not the path.
            self.on_app_limited();
        }
        let in_flight = self.recovery.in_flight();
        self.controller.on_sent(now, bytes, in_flight);
        let delivery = self.delivery.on_sent(now, bytes, in_flight);
        self.pacer.on_sent(now, bytes);
        self.recovery.on_sent(SentPacket {
            sent_at: now,
            size: size as u16,
            ack_eliciting,
            in_flight: true,
            reinjected: false,
            key_generation: key_generation as u32,
            delivery,
            frames,
        });
    }

    /// A full packet leaves, as far as the pacer is concerned.
    pub(crate) fn pace_out(&mut self, now: Instant) {
        self.pacer.on_sent(now, Bytes::from(self.packet_size()));
    }

    /// Holds the pacer to what the controller and the path's owners allow.
    pub(crate) fn pace(&mut self, now: Instant) {
        let rate = self.policies.allowed(self.controller.pacing_rate());
        self.pacer.set_rate(now, rate);
    }

    pub(super) fn on_packet_size(&mut self) {
        let size = Bytes::from(self.packet_size());
        self.controller.on_mtu(size);
        self.pacer.set_packet(size);
    }

    /// Bytes that the window, and the byte stream beneath where there is one, still let through.
    pub(crate) fn window_room(&self) -> Bytes {
        let window = self.controller.cwnd() - self.recovery.in_flight();
        window.min(self.address.stream_room())
    }

    /// Bytes that may leave now, by window and pacer.
    pub(crate) fn room(&self, now: Instant) -> Bytes {
        self.window_room().min(self.pacer.budget(now))
    }

    /// When the pacer lets a full packet out.
    pub(crate) fn paced_at(&self) -> Instant {
        self.pacer.next_at(Bytes::from(self.packet_size()))
    }

    /// How fast packets may leave.
    pub(crate) fn paced_rate(&self) -> Rate {
        self.controller.pacing_rate()
    }

    /// What the path carries: as fast as packets are paced, but no more than the window in a
    /// round trip. On a very short link pacing alone may allow many times what the link takes.
    pub(crate) fn rate(&self) -> Rate {
        self.paced_rate()
            .min(Rate::of(self.cwnd(), self.rtt.smoothed()))
    }

    /// When what is in flight arrives, the oldest of which left at `oldest`; the way there takes
    /// `delay`. Where that is longer ago than it can be without a queue, things come as fast as
    /// they have come of late: the rate over a round trip tells of a link that has become slow
    /// only once that is over, and the slower the link, the longer it takes.
    pub(crate) fn arrival(
        &self,
        now: Instant,
        delay: Duration,
        oldest: Option<Instant>,
    ) -> Arrival {
        let shortest = self.rtt.min();
        let queues = oldest.is_some_and(|at| now.since(at) > shortest + shortest / 2 + QUEUED);
        let of_late = queues.then(|| self.delivery.rate_of_late(now)).flatten();
        Arrival {
            rate: of_late.or_else(|| self.delivery.rate()),
            // What has arrived, and its acknowledgement has not, counts as in flight.
            way_back: self.rtt.smoothed().saturating_sub(delay),
        }
    }

    /// By how much later than others' what leaves now may arrive, for all that is known.
    pub(crate) fn late(&self) -> Duration {
        match self.delivery.rate() {
            Some(_) => Duration::ZERO,
            None => LATE_UNMEASURED,
        }
    }

    pub(crate) fn cwnd(&self) -> Bytes {
        self.controller.cwnd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::congestion::Kind;
    use crate::id::{FourTuple, PathId, SocketId};
    use tabane_base::Seed;

    /// A path whose packets may leave far faster than its window comes back: what the scheduler
    /// counts upon is the window's rate. It left the other link idle once.
    #[test]
    fn a_path_carries_no_more_than_its_window_in_a_round_trip() {
        let now = Instant::from_millis(1_000);
        let remote = "192.0.2.1:4510".parse().expect("an address");
        let tuple = FourTuple {
            socket: SocketId(0),
            local_ip: None,
            remote,
        };
        let seed = Seed(7);
        let mut path = Path::new(now, PathId(0), tuple, Kind::Tabane, 1_472, seed);
        let round_trip = Duration::from_millis(50);
        path.activate(now, Some(round_trip));
        let by_window = Rate::of(path.cwnd(), round_trip);
        assert!(path.paced_rate() > by_window.scaled(10.0));
        assert_eq!(path.rate(), by_window);
    }
}
