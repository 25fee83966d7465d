//! Whether loss is chance: radio links lose some packets whatever is sent.
//!
//! Owns the share that is usually lost without congestion, and the test of what is beyond it. A
//! full buffer or a policer takes single packets, or what of one burst of ours is too much; fading
//! radio takes whatever is sent for a while (Gilbert and Elliott's model). Runs of lost packets
//! that are longer than our bursts make the share scatter as much more by chance.

use tabane_base::Bytes;

use crate::congestion::model::Model;

/// Fewer packets lost prove nothing, nor do fewer runs that are longer than so many bursts of ours.
const LOSSES_MIN: f64 = 3.0;
const LONG: f64 = 2.0;
/// Loss beyond the usual by this, and by three standard deviations, is not chance.
const THRESHOLD: f64 = 0.02;
const DEVIATIONS: f64 = 3.0;
/// The usual loss is never taken for less than this when its deviation is asked for.
const USUAL_LEAST: f64 = 0.005;
/// More than this is learnt only while the window does not grow: ours may be too large.
const WHILE_GROWING: f64 = 0.05;
/// From this part of it on, as much as that is taken for learnt.
const NEARLY: f64 = 0.8;
/// So much loss is congestion in any case.
const MASSIVE: f64 = 0.20;
/// Weight of a new round: an eighth.
const GAIN: f64 = 1.0 / 8.0;

/// What chance takes on one path.
#[derive(Clone, Debug, Default)]
pub(super) struct Chance {
    /// Share lost without congestion, smoothed.
    usual: f64,
    /// The latest round in which loss was congestion.
    answered_in: Option<u64>,
}

impl Chance {
    /// Share usually lost.
    pub(super) fn usual(&self) -> f64 {
        self.usual
    }

    /// Whether chance takes as much as can be learnt while the window grows.
    pub(super) fn has_learnt_enough(&self) -> bool {
        self.usual > WHILE_GROWING * NEARLY
    }

    /// A round ended; `is_quiet` if no queue that shows can have lost anything in it, and
    /// `has_grown` if a growing window can have, in a buffer too short to show.
    pub(super) fn on_round(&mut self, model: &Model, is_quiet: bool, has_grown: bool) {
        if is_quiet
            && self
                .answered_in
                .is_none_or(|round| round + 1 < model.rounds)
        {
            let learnt = self.usual + (model.last.loss_share() - self.usual) * GAIN;
            self.usual = match has_grown {
                true => learnt.min(self.usual.max(WHILE_GROWING)),
                false => learnt,
            };
        }
    }

    /// Whether it is congestion that took what was lost of late, and has not been answered yet.
    /// Short of massive loss, only where more was being tried.
    pub(super) fn is_congestion(&self, model: &Model, packet: Bytes, is_pushing: bool) -> bool {
        let is_answered = self
            .answered_in
            .is_some_and(|round| round + 1 >= model.rounds);
        !is_answered
            && self.is_beyond(model, packet, THRESHOLD)
            && (is_pushing || Self::is_massive(model, packet))
    }

    /// Whether loss may be chance here, and was no more than that of late.
    pub(super) fn explains(&self, model: &Model, packet: Bytes) -> bool {
        self.usual > USUAL_LEAST && !self.is_beyond(model, packet, 0.0)
    }

    /// The loss of this round is being answered.
    pub(super) fn answer(&mut self, model: &Model) {
        self.answered_in = Some(model.rounds);
    }

    pub(super) fn is_massive(model: &Model, packet: Bytes) -> bool {
        let recent = Recent::of(model, packet);
        let Recent { lost, sent, .. } = recent;
        let deviation = (sent * MASSIVE * (recent.spread() - 1.0)).sqrt();
        lost > sent * MASSIVE + DEVIATIONS * deviation
    }

    /// Whether more was lost of late than chance explains, by `margin` of all that was sent.
    fn is_beyond(&self, model: &Model, packet: Bytes, margin: f64) -> bool {
        let recent = Recent::of(model, packet);
        let Recent { lost, sent, .. } = recent;
        let deviation = (sent * self.usual.max(USUAL_LEAST) * recent.spread()).sqrt();
        !recent.is_few() && lost > sent * (self.usual + margin) + DEVIATIONS * deviation
    }
}

/// The last full round and this one, in packets. One alone is too short: losses are found in
/// bunches.
struct Recent {
    lost: f64,
    sent: f64,
    runs: f64,
    /// How long the runs are, in bursts of ours.
    length: f64,
}

impl Recent {
    fn of(model: &Model, packet: Bytes) -> Self {
        let (last, current) = (&model.last, &model.current);
        let packets = |bytes: Bytes| (bytes.get() / packet.get().max(1)) as f64;
        let lost = last.lost + current.lost;
        let sent = packets(lost + last.acked + current.acked);
        let runs = f64::from(last.lost_runs + current.lost_runs);
        let burst = model.burst(model.latest_rate());
        Self {
            lost: packets(lost),
            sent,
            runs,
            length: packets(lost) / runs.max(1.0) / packets(burst).max(1.0),
        }
    }

    /// Whether too little was lost to prove anything.
    fn is_few(&self) -> bool {
        self.lost < LOSSES_MIN || self.runs < LOSSES_MIN && self.length > LONG
    }

    /// The variance of what is lost, of what it would be if each packet were lost for itself: with
    /// runs whose lengths are distributed geometrically, twice their mean less one.
    fn spread(&self) -> f64 {
        (2.0 * self.length - 1.0).max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tabane_base::Instant;

    const PACKET: Bytes = Bytes::new(1_000);

    /// A round of 1,000 packets of which so many were lost.
    fn round(lost: u64) -> Model {
        let mut model = Model::new(PACKET, Instant::EPOCH);
        model.rounds = 10;
        model.last.lost = Bytes::kilo(lost);
        model.last.lost_runs = lost as u32;
        model.last.acked = Bytes::kilo(1_000 - lost);
        model
    }

    #[test]
    fn what_is_usual_is_chance_and_more_is_congestion_once() {
        let mut chance = Chance::default();
        // 2 % and three deviations of √5 packets.
        assert!(!chance.is_congestion(&round(26), PACKET, true));
        assert!(chance.is_congestion(&round(27), PACKET, true));
        assert!(!chance.is_congestion(&round(27), PACKET, false));
        assert!(chance.is_congestion(&round(201), PACKET, false));
        for _ in 0..50 {
            chance.on_round(&round(20), true, false);
            chance.on_round(&round(300), false, false);
        }
        assert!((chance.usual() - 0.02).abs() < 0.001);
        assert!(!chance.is_congestion(&round(40), PACKET, true));
        assert!(chance.explains(&round(30), PACKET));
        assert!(chance.is_congestion(&round(60), PACKET, true));
        chance.answer(&round(60));
        assert!(!chance.is_congestion(&round(60), PACKET, true));
    }

    #[test]
    fn a_growing_window_teaches_little() {
        let mut chance = Chance::default();
        for _ in 0..50 {
            chance.on_round(&round(150), true, true);
        }
        assert!((chance.usual() - WHILE_GROWING).abs() < 1e-9);
        assert!(chance.has_learnt_enough() && chance.is_congestion(&round(150), PACKET, true));
        for _ in 0..50 {
            chance.on_round(&round(150), true, false);
        }
        assert!(!chance.is_congestion(&round(150), PACKET, true));
    }
}
