//! What acknowledgements and losses mean for everything that is measured on the path.

use tabane_base::{Bytes, Duration, Instant};

use super::{News, Path, State};
use crate::close::Violation;
use crate::congestion::{AckEvent, LossEvent};
use crate::id::PacketNumber;
use crate::recovery::{SentFrame, SentPacket, Settled};
use crate::wire::AckFrame;

/// After such a silence the path's window says nothing about it any more.
const FORGET_AFTER: Duration = Duration::from_secs(3);
/// An acknowledgement that the other end sat on for so long says that it was not there (its machine
/// slept), and nothing about the path's round trip.
const ASLEEP: Duration = Duration::from_secs(1);

/// What an acknowledgement's packets come to.
#[derive(Default)]
struct Answered {
    /// The largest number among those that ask for an answer, with when it left.
    largest: Option<(PacketNumber, Instant)>,
    /// What of its round trip it spent behind the rest of its train.
    behind: Duration,
    /// Among them were such as count against the window.
    in_flight: bool,
    /// Among them were such as had been given up for lost.
    given_up: bool,
    /// When the largest acknowledged left, if that had been given up and asks for an answer.
    late: Option<Instant>,
}

impl Path {
    /// Takes in an acknowledgement of packets of this path, and declares lost what it shows to be.
    /// `reverse_mean` is the mean of [`Self::reverse`] over all paths.
    pub(crate) fn on_ack(
        &mut self,
        now: Instant,
        ack: &AckFrame,
        reverse_mean: Option<i64>,
        news: &mut News,
    ) -> Result<(), Violation> {
        self.on_answer(now, ack, reverse_mean, true, news)
    }

    /// Takes in which packets of this path were shed. What is between them stands in the
    /// acknowledgement behind it [P-6.8]: nothing is lost before that.
    pub(crate) fn on_shed_told(
        &mut self,
        now: Instant,
        shed: &AckFrame,
        reverse_mean: Option<i64>,
        news: &mut News,
    ) -> Result<(), Violation> {
        self.on_answer(now, shed, reverse_mean, false, news)
    }

    fn on_answer(
        &mut self,
        now: Instant,
        ack: &AckFrame,
        reverse_mean: Option<i64>,
        is_whole: bool,
        news: &mut News,
    ) -> Result<(), Violation> {
        let before = news.acked.len();
        self.recovery
            .on_ack(now, ack, |packet| news.acked.push(packet))?;
        let Answered {
            largest,
            behind,
            in_flight: in_flight_acked,
            given_up: given_up_acked,
            late,
        } = self.on_settled(now, ack, &news.acked[before..]);
        if let Some(sent_at) = late {
            self.on_late_answer(now, ack, sent_at);
        }
        if let Some((pn, sent_at)) = largest
            && pn == ack.largest()
            && ack.delay < ASLEEP
        {
            self.on_round_trip(now, ack, (sent_at, behind), news);
        }
        if given_up_acked && matches!(self.state(), State::Silent { .. }) {
            // It was the answer that was late.
            self.on_alive(now, news);
        }
        if let Some((_, sent_at)) = largest {
            self.on_alive(now, news);
            if self.mtu.on_alive(now) {
                self.on_packet_size();
            }
            if is_whole {
                let lost_before = news.lost.len();
                self.recovery.detect_lost(now, &self.rtt, &mut news.lost);
                self.on_lost(now, &news.lost[lost_before..], false);
            }
            if in_flight_acked {
                let unheld = self.forward.unheld(now, ack.largest_at);
                let sample = self.delivery.finish_ack(now, unheld, self.rtt.min());
                // The mean is of the clocks as they were.
                let reverse_mean = reverse_mean.filter(|_| !news.clock_leapt);
                self.controller.on_ack(&AckEvent {
                    now,
                    sample: &sample,
                    rtt: &self.rtt,
                    trip: reverse_mean.and_then(|reverse| self.forward.trip(reverse)),
                    way_back: sample.rtt.and_then(|rtt| self.forward.way_back(rtt)),
                    in_flight_after: self.recovery.in_flight(),
                    largest_acked_sent_at: sent_at,
                });
            }
            self.pace(now);
            self.review_frequency();
        }
        Ok(())
    }

    /// The largest acknowledged left at `sent_at`, and was so long `behind` the rest of its train.
    fn on_round_trip(
        &mut self,
        now: Instant,
        ack: &AckFrame,
        (sent_at, behind): (Instant, Duration),
        news: &mut News,
    ) {
        let sample = now.since(sent_at).saturating_sub(behind);
        let delay = ack.delay.min(self.acks.peer_delay());
        match self.address.may_have_waited(sent_at) {
            true => self.rtt.update_doubtful(now, sample, delay),
            false => self.rtt.update(now, sample, delay),
        }
        let trips = (sample, self.rtt.min());
        if !self.forward.on_sample(sent_at, ack.largest_at, trips) {
            news.clock_leapt = true;
            self.on_clock_leap(now);
        }
        let one_way = (sent_at, ack.largest_at);
        self.measuring
            .on_answer(sample.saturating_sub(delay), one_way);
    }

    /// What left at `sent_at` was given up too soon. Without that as a sample, a path that has
    /// become longer would be given up each time before any answer of it.
    fn on_late_answer(&mut self, now: Instant, ack: &AckFrame, sent_at: Instant) {
        if ack.delay < ASLEEP {
            let delay = ack.delay.min(self.acks.peer_delay());
            self.rtt.update_doubtful(now, now.since(sent_at), delay);
        }
    }

    /// Counts what an acknowledgement settles.
    fn on_settled(&mut self, now: Instant, ack: &AckFrame, settled: &[Settled]) -> Answered {
        let mut answered = Answered::default();
        self.delivery.begin_ack();
        for Settled {
            pn,
            packet,
            was_lost,
        } in settled
        {
            if *was_lost {
                answered.given_up = true;
                if *pn == ack.largest() && packet.ack_eliciting {
                    answered.late = Some(packet.sent_at);
                }
                self.totals.spurious_losses += 1;
                self.mtu.on_packet_acked(packet.size);
                self.controller.on_spurious_loss(now);
                continue;
            }
            let size = Bytes::new(packet.size.into());
            self.totals.acked += size;
            if packet.in_flight {
                answered.in_flight = true;
                self.delivery
                    .on_packet_acked(size, packet.sent_at, &packet.delivery);
            }
            self.mtu.on_packet_acked(packet.size);
            self.on_mtu_probe_acked(now, packet);
            if packet.ack_eliciting && answered.largest.is_none_or(|(other, _)| *pn > other) {
                answered.largest = Some((*pn, packet.sent_at));
                answered.behind = behind_in_train(packet, ack);
            }
        }
        answered
    }

    /// This path or another has shown that one of the clocks has leapt.
    pub(crate) fn on_clock_leap(&mut self, now: Instant) {
        self.forward.on_clock_leap(now);
        self.controller.on_clock_leap();
    }

    /// The one-way time from the peer minus the clocks' offset, in nanoseconds.
    pub(crate) fn reverse(&self) -> Option<i64> {
        self.forward.reverse(self.rtt.smoothed())
    }

    fn on_mtu_probe_acked(&mut self, now: Instant, packet: &SentPacket) {
        for frame in packet.frames.iter() {
            if let SentFrame::MtuProbe(size) = frame
                && self.mtu.on_probe_acked(now, size)
            {
                self.on_packet_size();
            }
        }
    }

    /// Something newly sent was acknowledged.
    fn on_alive(&mut self, now: Instant, news: &mut News) {
        self.recovery.on_alive();
        if let Some(silence) = self.life.on_answer(now) {
            news.up = true;
            if silence > FORGET_AFTER {
                self.controller.on_path_reset(now);
            }
        }
    }

    pub(super) fn on_lost(&mut self, now: Instant, lost: &[Settled], persistent: bool) {
        let mut amount = Bytes::ZERO;
        let mut newest: Option<&SentPacket> = None;
        let mut runs = 0;
        for Settled { pn, packet, .. } in lost {
            let size = Bytes::new(packet.size.into());
            self.delivery.on_packet_lost(size);
            let probe = packet.frames.iter().find_map(|frame| match frame {
                SentFrame::MtuProbe(size) => Some(size),
                _ => None,
            });
            if let Some(size) = probe {
                // A probe that is too large says nothing about congestion (RFC 8899 §3).
                self.mtu.on_probe_lost(now, size);
                continue;
            }
            if self.mtu.on_packet_lost(now, packet.sent_at, packet.size) {
                self.on_packet_size();
            }
            amount += size;
            runs += u32::from(self.totals.on_lost(*pn, size));
            newest = Some(packet);
        }
        if let Some(packet) = newest {
            self.controller.on_loss(&LossEvent {
                now,
                lost: amount,
                runs,
                largest_lost_sent_at: packet.sent_at,
                in_flight: self.recovery.in_flight(),
                tx_in_flight: packet.delivery.tx_in_flight,
                persistent,
            });
            self.pace(now);
        }
    }
}

/// How long after the first of its train a probe arrived: that is how long it queued behind its own
/// kind, and no part of a round trip.
fn behind_in_train(packet: &SentPacket, ack: &AckFrame) -> Duration {
    let place = packet.frames.iter().find_map(|frame| match frame {
        SentFrame::Probe(place) => Some(usize::from(place)),
        _ => None,
    });
    let ahead = ack.times.len().min(place.unwrap_or(0));
    ahead
        .checked_sub(1)
        .map_or(Duration::ZERO, |index| ack.times[index])
}
