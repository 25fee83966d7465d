//! The server's packets. Those with data have gone on, as a rule, when they are seen here.

use super::{Flow, Stance, Surroundings};
use crate::copies::{OVERHEAD, Piece};
use crate::counters::Bypass;
use crate::meter::Repetition;
use crate::packet::{Flags, Packet};
use crate::seq::Seq;
use crate::{Custody, Side, Verdict};

/// Copies of a flow have so many bytes in the mean, or they are fewer: what each costs besides
/// stays the smaller part. Segments that are usual have three times as many.
const MEAN_LEAST: usize = 512;
/// Numbers farther than this from those in use are of no use to anybody.
const MAX_SPAN: u32 = 1 << 30;

impl Flow {
    /// Decides on a packet from the server.
    pub(crate) fn handle_server(
        &mut self,
        around: &mut Surroundings<'_>,
        packet: &Packet<'_>,
        custody: Custody,
    ) -> Verdict {
        let (now, flags) = (around.now, packet.flags());
        let start = packet.seq();
        if start.since(self.copies.base()).unsigned_abs() > MAX_SPAN {
            return Verdict::Accept;
        }
        if flags.has(Flags::RST) {
            self.on_reset(now, Side::Wired);
            return Verdict::Accept;
        }
        if flags.has(Flags::SYN) {
            // Repeated: the mobile host's answer was lost, and must reach the server this time.
            self.asked = true;
            return Verdict::Accept;
        }
        self.note(now, Side::Wired, packet);
        let news = flags.has(Flags::ACK) && packet.ack().is_after(self.upstream_acked);
        if news {
            self.upstream_acked = packet.ack();
            self.meter.on_upstream_ack(now, packet.ack());
            self.look_for_the_end(now);
        }
        if packet.payload().is_empty() && !flags.has(Flags::FIN) {
            return self.on_bare_server_ack(around, packet, news, custody);
        }
        self.server.next = self.server.next.later(packet.seq_end());
        self.on_data(around, packet, custody)
    }

    /// What was answered from here goes no further, or else the mobile host says `echoes` to it.
    fn keep_back(&mut self, custody: Custody, echoes: u32) -> Verdict {
        match custody {
            Custody::Waits => Verdict::Drop,
            Custody::Gone => {
                self.echoes = self.echoes.saturating_add(echoes);
                Verdict::Accept
            }
        }
    }

    /// A segment without data: an acknowledgement, or a probe, which has an old number.
    fn on_bare_server_ack(
        &mut self,
        around: &mut Surroundings<'_>,
        packet: &Packet<'_>,
        news: bool,
        custody: Custody,
    ) -> Verdict {
        if !packet.seq().is_before(self.acked) {
            return Verdict::Accept;
        }
        if self.owed() > 0 && !news {
            around.counters.probes_answered += 1;
            self.answer_server(around, None);
            return self.keep_back(custody, 1);
        }
        self.asked = true;
        Verdict::Accept
    }

    fn on_data(
        &mut self,
        around: &mut Surroundings<'_>,
        packet: &Packet<'_>,
        custody: Custody,
    ) -> Verdict {
        let now = around.now;
        let payload = packet.payload();
        let (start, end) = (packet.seq(), packet.seq() + payload.len() as u32);
        let has_fin = packet.flags().has(Flags::FIN);
        if packet.flags().has(Flags::CWR) {
            self.ece = false;
            self.ece_answered = Some(end);
        }
        if packet.flags().has(Flags::URG) {
            self.stop_assisting(Some(Bypass::Urgent));
        }
        let arrived = !end.is_after(self.copies.base());
        if !payload.is_empty() && (arrived || self.copies.touches(start, end)) {
            let repetition = Repetition {
                start,
                end,
                stamp: packet.options().timestamps.map(|(value, _)| value),
                base: self.copies.base(),
            };
            self.meter.on_repeated(now, repetition);
        }
        if !has_fin && let Some(verdict) = self.on_repeated(around, (start, end), arrived, custody)
        {
            return verdict;
        }
        if self.stance == Stance::Assisting && end.is_after(self.window.told() + 2 * self.segment())
        {
            // It heard of a window that did not come by here.
            self.stop_assisting(Some(Bypass::OneWay));
        }
        let keep = self.keeps(around, end, payload.len());
        let was_idle = self.copies.is_empty();
        if !self.copies.has_copies() {
            self.timer_from = now;
        }
        let stamp = packet.options().timestamps.map_or(0, |(value, _)| value);
        let piece = Piece {
            start,
            payload,
            keep,
            chunk: if keep {
                self.segment() as usize
            } else {
                usize::MAX
            },
            stamp,
        };
        let fresh = self.copies.insert(now, piece);
        self.meter.on_forwarded(now, fresh, was_idle);
        if has_fin {
            self.server.fin = Some(end);
            self.copies.insert_fin(now, end, stamp);
        }
        if self.stance == Stance::Assisting
            && start.is_after(self.copies.contiguous())
            && self.copies.has_hole()
        {
            // Lost on its way here: each segment beyond says so, as the mobile host would.
            self.answer_server(around, None);
        } else {
            self.acknowledge_early(around);
        }
        Verdict::Accept
    }

    /// What the server sends again although it is here, and what it asks with a byte beyond the
    /// window, is answered from here while the mobile host is owed something. Not all there is to
    /// it where that byte has gone on: it may be new to the mobile host.
    fn on_repeated(
        &mut self,
        around: &mut Surroundings<'_>,
        (start, end): (Seq, Seq),
        arrived: bool,
        custody: Custody,
    ) -> Option<Verdict> {
        if self.stance != Stance::Assisting || start == end {
            return None;
        }
        let one = end == start + 1;
        if one && start == self.window.told() && self.owed() > 0 {
            around.counters.probes_answered += 1;
            self.answer_server(around, None);
            return (custody == Custody::Waits).then_some(Verdict::Drop);
        }
        if one && arrived && self.owed() == 0 {
            // Asks whether the mobile host is alive: only that can say.
            self.asked = true;
            return Some(Verdict::Accept);
        }
        if !arrived && !self.copies.holds(start, end) {
            return None;
        }
        around.counters.repeats_answered += 1;
        let segments = end.beyond(start).div_ceil(self.segment().max(1));
        self.answer_server(around, Some((start, end)));
        Some(self.keep_back(custody, segments))
    }

    /// Whether a copy can be kept: there is room, and the server was told of the room.
    fn keeps(&self, around: &mut Surroundings<'_>, end: Seq, length: usize) -> bool {
        let told = self.window.told();
        // One byte beyond the window is a question, which the server will send again.
        let asks = length == 1 && end.is_after(told);
        if self.stance != Stance::Assisting || asks || end.is_after(told + self.segment()) {
            return false;
        }
        let most = around.config.copies_per_flow.get() as usize;
        let ranges = length.div_ceil(self.segment() as usize);
        let fits = length + ranges * OVERHEAD <= around.room
            && self.copies.bytes() + length <= most
            && self.copies.count() + ranges <= most / MEAN_LEAST;
        if !fits {
            around.counters.uncopied += 1;
        }
        fits
    }
}
