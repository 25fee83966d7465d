//! The mobile host's packets.

use tabane_base::Instant;

use super::{Flow, Stance, Surroundings};
use crate::counters::Bypass;
use crate::packet::{Flags, Packet};
use crate::segment::with_ack;
use crate::seq::Seq;
use crate::window::Wish;
use crate::{Side, Verdict};

impl Flow {
    /// The mobile host ends the handshake; goes on as it is.
    pub(crate) fn handle_handshake_end(&mut self, now: Instant, packet: &Packet<'_>) {
        self.note(now, Side::Radio, packet);
        self.note_upstream(now, packet);
        let edge = self.edge_of(packet);
        self.window.set_edge(edge);
        self.window.passed(edge);
        self.asked = false;
    }

    /// Decides on a packet from the mobile host.
    pub(crate) fn handle_mobile(
        &mut self,
        around: &mut Surroundings<'_>,
        packet: &Packet<'_>,
    ) -> Verdict {
        let (now, flags) = (around.now, packet.flags());
        if flags.has(Flags::RST) {
            self.on_reset(now, Side::Radio);
            return Verdict::Accept;
        }
        if flags.has(Flags::SYN) || !flags.has(Flags::ACK) {
            return Verdict::Accept;
        }
        self.note(now, Side::Radio, packet);
        // An old number without data asks whether the server is alive.
        let asks = packet.seq().is_before(self.mobile.next);
        let bare = packet.payload().is_empty() && !flags.has(Flags::FIN) && !asks;
        self.note_upstream(now, packet);
        let ack = packet.ack();
        if ack.is_after(self.copies.top()) {
            return self.on_unknown_ack(around, packet);
        }
        if !ack.is_before(self.copies.base()) {
            self.on_ack(around, packet, bare);
        }
        let goes_on = self.stopped && self.owed() == 0 && !self.is_shut();
        self.stopped &= !goes_on;
        self.settle();
        self.look_for_the_end(now);
        if self.stance == Stance::Watching {
            self.pass(packet);
            return Verdict::Accept;
        }
        if bare {
            self.on_bare(around, packet, goes_on)
        } else {
            self.on_piggyback(packet)
        }
    }

    /// The packet goes on as it is.
    fn pass(&mut self, packet: &Packet<'_>) {
        self.acked = self.acked.later(packet.ack());
        let edge = self.edge_of(packet);
        self.window.passed(edge);
        self.asked = false;
    }

    fn edge_of(&self, packet: &Packet<'_>) -> Seq {
        packet.ack() + (u32::from(packet.window()) << self.window.shift())
    }

    fn note_upstream(&mut self, now: Instant, packet: &Packet<'_>) {
        let end = packet.seq_end();
        if packet.flags().has(Flags::FIN) {
            self.mobile.fin = Some(end - 1);
        }
        if end.is_after(self.mobile.next) {
            self.mobile.next = end;
            self.meter.on_upstream(now, end);
        } else if end.is_after(packet.seq()) {
            self.meter.on_upstream_repeated();
        }
    }

    /// Something arrived that did not come by here.
    fn on_unknown_ack(&mut self, around: &mut Surroundings<'_>, packet: &Packet<'_>) -> Verdict {
        self.stop_assisting(Some(Bypass::OneWay));
        if packet.ack().beyond(self.copies.top()) < 1 << 30 {
            self.on_ack(around, packet, false);
            self.settle();
            self.pass(packet);
        }
        Verdict::Accept
    }

    /// Takes in what the mobile host has, and how much more it takes.
    fn on_ack(&mut self, around: &mut Surroundings<'_>, packet: &Packet<'_>, bare: bool) {
        let now = around.now;
        let ack = packet.ack();
        let sack = packet.options().sack;
        let blocks = sack.as_slice();
        let before = self.copies.base();
        let advance = ack.beyond(before);
        let edge = self.edge_of(packet);
        let same_edge = edge == self.window.edge();
        if !packet.seq().is_before(self.window_from) {
            self.window_from = packet.seq();
            self.window.set_edge(edge);
        }
        // Kept for longer, it would look like what is to come, 2 GiB later.
        self.ece_answered = self.ece_answered.filter(|end| ack.is_before(*end));
        self.ece = packet.flags().has(Flags::ECE) && self.ece_answered.is_none();
        let is_duplicate_report = blocks.first().is_some_and(|(_, end)| !end.is_after(ack));
        if is_duplicate_report {
            self.meter.on_duplicate_report();
        }
        if advance > 0 {
            self.on_advance(now, packet, advance);
        } else if bare && same_edge {
            self.meter.on_duplicate(now, ack);
            if self.echoes > 0 {
                self.echoes -= 1;
            } else {
                self.duplicates += u32::from(!self.copies.is_empty());
            }
        }
        if self.agreed.sack {
            self.copies.sack(blocks);
        }
        self.repair(around, ack, advance > 0);
    }

    fn on_advance(&mut self, now: Instant, packet: &Packet<'_>, advance: u32) {
        let ack = packet.ack();
        if ack.is_after(self.acked)
            && let Some(stamp) = self.copies.stamp_at(self.acked)
        {
            self.echo = stamp;
        }
        let binds = self.allowance.bytes() < self.window.edge().beyond(ack);
        let sent_at = self.copies.acknowledge(ack);
        let early = self.stance == Stance::Assisting;
        let sample = sent_at.map(|at| now - at);
        let echo = packet.options().timestamps.map(|(_, echo)| echo);
        self.meter.on_progress(now, ack, sample, early, echo);
        let least = self.meter.radio.base();
        let top = self.copies.top();
        let allowance = &mut self.allowance;
        allowance.watch(now, (ack, top), advance, sent_at, least);
        if binds {
            let segment = u32::from(self.agreed.segment);
            allowance.on_arrival(now, advance, segment, self.copies_most, least);
        }
        self.duplicates = 0;
        self.backoff = 0;
        self.timer_from = now;
    }

    /// An acknowledgement and nothing else: swallowed, unless it tells the server something, or
    /// the server has to hear once more that it `goes_on`.
    fn on_bare(
        &mut self,
        around: &mut Surroundings<'_>,
        packet: &Packet<'_>,
        goes_on: bool,
    ) -> Verdict {
        let real = packet.ack();
        if self.stance == Stance::Assisting && self.copies.is_bare() && real == self.acked {
            // Only the server can repair what comes first: it hears everything.
            if !self.edge_of(packet).is_before(self.window.told()) {
                self.pass(packet);
                return Verdict::Accept;
            }
        }
        let asked = self.asked && self.owed() == 0;
        if real.is_after(self.acked) || asked || goes_on || self.wants_update() {
            self.asked &= !asked;
            let ack = real.later(self.acked);
            let exact = ack == real;
            if !self.copies.safe().is_after(ack) {
                self.hold_until = None;
            }
            let bytes = self.acknowledgement(ack, ack, exact, None);
            around.counters.rewritten += 1;
            return Verdict::Replace(bytes);
        }
        around.counters.swallowed += 1;
        Verdict::Drop
    }

    /// Whether the server may soon have to wait for a window that could be opened.
    fn wants_update(&self) -> bool {
        let (limit, step) = (self.limit(), self.segment());
        if self.stance != Stance::Assisting || !self.window.can_rise(limit, step) {
            return false;
        }
        let left = self.window.told().beyond(self.copies.top());
        left < (limit.beyond(self.copies.base()) / 2).max(2 * step)
    }

    /// Data of the mobile host's own, or a question: goes on, acknowledging what we do.
    fn on_piggyback(&mut self, packet: &Packet<'_>) -> Verdict {
        let (real, edge) = (packet.ack(), self.edge_of(packet));
        let has_sack = !packet.options().sack.as_slice().is_empty();
        let is_true = !real.is_before(self.acked)
            && !edge.is_before(self.window.told())
            && !edge.is_after(self.limit())
            && packet.flags().has(Flags::ECE) == self.ece
            && !has_sack;
        // Hardware will cut it into several, which must not be rewritten as one. Where it
        // acknowledges less than we do, the server takes its data and no more.
        let is_aggregate = packet.payload().len() > self.segment() as usize;
        if is_true || is_aggregate {
            self.pass(packet);
            return Verdict::Accept;
        }
        let ack = real.later(self.acked);
        let chosen = self.window.choose(Wish {
            acked: self.acked,
            ack,
            ack_max: ack,
            limit: self.limit(),
            step: self.segment(),
            exact: ack == real,
        });
        self.acked = self.acked.later(chosen.ack);
        let echo = self.agreed.timestamps.then_some(self.echo);
        Verdict::Replace(with_ack(packet, chosen.ack, chosen.field, self.ece, echo))
    }
}
