//! What is said in another's name: acknowledgements to the server, copies to the mobile host, and
//! resets to both.

use super::{Flow, Stance, Surroundings};
use crate::copies::Held;
use crate::options::{Block, Blocks};
use crate::packet::Flags;
use crate::segment::Segment;
use crate::seq::Seq;
use crate::window::Wish;
use crate::{Side, Transmit};

impl Flow {
    /// An acknowledgement of `ack` in the mobile host's name, or of a few bytes more, up to
    /// `ack_max`, where the window's units ask for it.
    pub(super) fn acknowledgement(
        &mut self,
        ack: Seq,
        ack_max: Seq,
        exact: bool,
        duplicate: Option<Block>,
    ) -> Vec<u8> {
        if let Some(stamp) = self
            .copies
            .stamp_at(self.acked)
            .filter(|_| ack.is_after(self.acked))
        {
            self.echo = stamp;
        }
        let (limit, step) = (self.limit(), self.segment());
        // All there is must be acknowledged to the byte, or the rest makes a timer run out: the
        // edge may then leave our own limit, by less than a unit.
        let (limit, step) = if ack == self.copies.safe() && !self.window.can_rise(limit, step) {
            (self.window.edge(), u32::MAX)
        } else {
            (limit, step)
        };
        let chosen = self.window.choose(Wish {
            acked: self.acked,
            ack,
            ack_max,
            limit,
            step,
            exact,
        });
        self.acked = self.acked.later(chosen.ack);
        self.stopped |= self.is_shut();
        let mut sack = Blocks::default();
        if self.agreed.sack {
            for block in duplicate.iter().chain(self.copies.beyond_hole().as_slice()) {
                sack.push(*block);
            }
        }
        let ece = if self.ece {
            Flags::ECE
        } else {
            Flags::default()
        };
        Segment {
            source: self.key.mobile,
            destination: self.key.server,
            manner: self.mobile.manner,
            seq: self.mobile.next,
            ack: chosen.ack,
            flags: Flags::ACK.with(ece),
            window: chosen.field,
            timestamps: self
                .agreed
                .timestamps
                .then_some((self.mobile.stamps.0, self.echo)),
            sack,
            payload: &[],
        }
        .emit()
    }

    /// Says it to the server.
    pub(super) fn tell_server(&mut self, around: &mut Surroundings<'_>, packet: Vec<u8>) {
        around.counters.fabricated += 1;
        around.out.push_back(Transmit {
            to: Side::Wired,
            packet,
        });
    }

    /// Acknowledges what came, all but the newest segment, which waits for the next.
    pub(super) fn acknowledge_early(&mut self, around: &mut Surroundings<'_>) {
        if self.stance != Stance::Assisting {
            return;
        }
        let safe = self.copies.safe();
        let newest = if safe == self.copies.top() {
            self.copies.last_length().min(self.segment())
        } else {
            0
        };
        if safe.is_after(self.acked) {
            self.hold_until = Some(around.now + super::HOLD);
        }
        let ack = safe - newest;
        if ack.is_after(self.acked) {
            let ack_max = if newest > 1 { safe - 1 } else { ack };
            let before = (self.acked, self.window.told());
            let packet = self.acknowledgement(ack, ack_max, false, None);
            // Less than the window's unit may be no step at all: said again, it would be a
            // duplicate, and three of them a loss.
            if before != (self.acked, self.window.told()) {
                self.tell_server(around, packet);
            }
        }
    }

    /// Acknowledges all there are copies of.
    pub(super) fn acknowledge_all(&mut self, around: &mut Surroundings<'_>) {
        let safe = self.copies.safe();
        if self.stance == Stance::Assisting && safe.is_after(self.acked) {
            let packet = self.acknowledgement(safe, safe, false, None);
            self.tell_server(around, packet);
        }
    }

    /// Repeats what the server knows already, or all there is: it asked.
    pub(super) fn answer_server(
        &mut self,
        around: &mut Surroundings<'_>,
        duplicate: Option<Block>,
    ) {
        let ack = match self.stance {
            Stance::Assisting => self.copies.safe().later(self.acked),
            Stance::Watching | Stance::Draining => self.acked,
        };
        let packet = self.acknowledgement(ack, ack, false, duplicate);
        self.tell_server(around, packet);
    }

    /// A copy, as the server would send it again at this moment.
    pub(super) fn copy_of(&self, held: &Held) -> Option<Vec<u8>> {
        let data = held.data.as_deref()?;
        let segment = Segment {
            source: self.key.server,
            destination: self.key.mobile,
            manner: self.server.manner,
            seq: held.start,
            ack: self.upstream_acked,
            flags: Flags::ACK.with(Flags::PSH),
            window: self.server.window,
            // The newest: an older one might be taken for a stray (RFC 7323 §5).
            timestamps: self.agreed.timestamps.then_some(self.server.stamps),
            sack: Blocks::default(),
            payload: data,
        };
        Some(segment.emit())
    }

    /// Ends the connection at both ends, so that neither waits for the other for ever.
    pub(super) fn reset_both(&mut self, around: &mut Surroundings<'_>) {
        let reset = |to, from: &super::End, seq, ack| {
            let (source, destination) = match to {
                Side::Wired => (self.key.mobile, self.key.server),
                Side::Radio => (self.key.server, self.key.mobile),
            };
            let segment = Segment {
                source,
                destination,
                manner: from.manner,
                seq,
                ack,
                flags: Flags::RST.with(Flags::ACK),
                window: 0,
                timestamps: None,
                sack: Blocks::default(),
                payload: &[],
            };
            Transmit {
                to,
                packet: segment.emit(),
            }
        };
        let to_server = reset(Side::Wired, &self.mobile, self.mobile.next, self.acked);
        let base = self.copies.base();
        let to_mobile = reset(Side::Radio, &self.server, base, self.upstream_acked);
        around.out.extend([to_server, to_mobile]);
    }
}
