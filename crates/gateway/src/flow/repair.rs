//! What the radio link lost all the same is sent again from the copies.
//!
//! Three signs of a loss: the mobile host has three segments' worth beyond a hole (SACK), three of
//! its acknowledgements are alike, or nothing comes for longer than two round trips. The first two
//! are clocked by acknowledgements, at most [`PER_ACK`] copies for each.

use tabane_base::Instant;

use super::{Flow, Surroundings};
use crate::seq::Seq;
use crate::{Side, Transmit};

/// Duplicates, or segments beyond a hole, that mean a loss (RFC 5681 §3.2, RFC 6675 §4).
const DUPLICATES: u32 = 3;
/// Copies per acknowledgement: as fast as a sender in slow start.
const PER_ACK: usize = 2;

impl Flow {
    /// When our timer runs out: as long as there are copies it runs.
    pub(super) fn repair_at(&self) -> Option<Instant> {
        let timeout = self.meter.radio.timeout(self.backoff);
        let runs = self.copies.has_copies() && self.reset_by.is_none();
        runs.then(|| self.timer_from + timeout)
    }

    /// Acts on an acknowledgement; `advanced` if it was for something new.
    pub(super) fn repair(&mut self, around: &mut Surroundings<'_>, ack: Seq, advanced: bool) {
        if !self.copies.has_copies() {
            (self.resending, self.recovery, self.echoes) = (None, None, 0);
            return;
        }
        // What was sent again a short time ago has had no time to be acknowledged.
        let before = around.now - self.meter.radio.timeout(0);
        if self.recovery.is_some_and(|end| !ack.is_before(end)) {
            self.recovery = None;
        }
        if advanced && let Some((first_end, end)) = self.resending {
            if !ack.is_before(end) || self.recovery.is_none() && ack != first_end {
                // More has arrived than the copy can have brought: it was late, not lost.
                self.resending = None;
            } else {
                self.on_loss(around.now, ack);
                self.resend_first(around, before, PER_ACK);
            }
        }
        if self.agreed.sack {
            let span = (DUPLICATES - 1) * self.segment() + 1;
            self.resend_below_sacks(around, span, before);
        } else if self.duplicates == DUPLICATES && self.recovery.is_none() {
            self.on_loss(around.now, ack);
            self.resend_first(around, before, 1);
        } else if advanced && self.recovery.is_some() && self.resending.is_none() {
            // What comes next is missing as well (RFC 6582 §3.2, step 3).
            self.resend_first(around, before, 1);
        }
    }

    pub(super) fn on_repair_timeout(&mut self, around: &mut Surroundings<'_>) {
        self.backoff += 1;
        self.echoes = 0;
        self.timer_from = around.now;
        self.copies.forget_sacks();
        let top = self.copies.top();
        let first = self.copies.missing(Instant::NEVER, 1);
        if let Some(first) = first.first().and_then(|start| self.copies.at(*start)) {
            self.resending = Some((first.end, top));
            self.recovery = None;
            self.resend_first(around, Instant::NEVER, 1);
        }
    }

    /// One smaller allowance for all that was on its way together.
    fn on_loss(&mut self, now: Instant, ack: Seq) {
        if self.recovery.is_none() {
            let top = self.copies.top();
            let queued = self.meter.radio.is_long();
            let least = self.meter.radio.base();
            self.allowance.on_loss(now, top.beyond(ack), queued, least);
            // What the server was told to send before this is part of it, where SACK tells all.
            let told = if self.agreed.sack {
                self.window.told()
            } else {
                top
            };
            self.recovery = Some(top.later(told));
        }
    }

    fn resend_first(&mut self, around: &mut Surroundings<'_>, before: Instant, most: usize) {
        let starts = self.copies.missing(before, most);
        self.send_copies(around, &starts);
    }

    fn resend_below_sacks(&mut self, around: &mut Surroundings<'_>, span: u32, before: Instant) {
        let starts = self.copies.missing_below_sacks(span, before, PER_ACK);
        let Some(first) = starts.first() else { return };
        self.on_loss(around.now, *first);
        // A queue that overflowed must drain first, or it takes the copies too (as RFC 6937 §3).
        if self.copies.on_the_way() <= self.allowance.bytes() {
            self.send_copies(around, &starts);
        }
    }

    fn send_copies(&mut self, around: &mut Surroundings<'_>, starts: &[Seq]) {
        for start in starts {
            self.copies.note_resent(around.now, *start);
            let held = self.copies.at(*start);
            let Some(packet) = held.and_then(|held| self.copy_of(held)) else {
                continue;
            };
            let length = held.map_or(0, |held| held.end.beyond(held.start));
            self.meter.figures.resent += u64::from(length);
            around.counters.resent += 1;
            around.out.push_back(Transmit {
                to: Side::Radio,
                packet,
            });
        }
    }
}
