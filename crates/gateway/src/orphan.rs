//! A connection that began before the gateway did, and may be owed bytes by one that was killed.
//!
//! Owns the sign of that: the mobile host asks for a byte again and again, while the server repeats
//! what lies behind it, or a probe of the window with a number behind it, and never what was asked
//! for, because it was told that it had arrived. Without a gateway between them no two hosts do so
//! for long. Nothing can bring the byte back, so both ends are to be reset. A mobile host that has
//! no answer to the server's probes is asked by [`Stall`]. Where the server has nothing to say any
//! more there is no sign; such a connection ends when one of its ends gives up.

use tabane_base::{Duration, Instant};

use crate::packet::{Flags, Packet};
use crate::segment::Manner;
use crate::seq::Seq;
use crate::stall::{APART_MAX, Farewell, Question, Stall};

/// It must go on for so long, with so many questions and repetitions.
const PROOF: Duration = Duration::from_secs(10);
const TIMES: u32 = 3;

/// What is seen of such a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Orphan {
    asked: Option<Asked>,
    /// One past the last byte seen of the server's.
    top: Option<Seq>,
    /// The numbers on its last packet without data.
    bare: Option<(Seq, Seq)>,
    /// How the server writes its packets.
    server: Option<Manner>,
    stall: Stall,
}

/// What the mobile host asks for.
#[derive(Clone, Copy, Debug)]
struct Asked {
    byte: Seq,
    since: Instant,
    times: u32,
    /// What the server repeated behind it.
    repeated: u32,
    /// The mobile host's next number, and how it writes its packets.
    next: Seq,
    manner: Manner,
}

impl Orphan {
    /// A packet of the mobile host's.
    pub(crate) fn on_mobile(&mut self, now: Instant, packet: &Packet<'_>) -> Option<Farewell> {
        let stalled = self.stall.on_mobile(now, packet);
        // Without room it asks for nothing: its program does not read.
        if stalled.is_some() || !packet.flags().has(Flags::ACK) || packet.window() == 0 {
            return stalled;
        }
        let byte = packet.ack();
        let (since, times, repeated) = match self.asked {
            Some(asked) if asked.byte == byte => (asked.since, asked.times + 1, asked.repeated),
            _ => (now, 1, 0),
        };
        let asked = Asked {
            byte,
            since,
            times,
            repeated,
            next: packet.seq_end(),
            manner: Manner::of(packet),
        };
        self.asked = Some(asked);
        let is_proven = times >= TIMES && repeated >= TIMES && now - since >= PROOF;
        is_proven.then_some(Farewell {
            at_mobile: byte,
            at_server: asked.next,
            mobile: asked.manner,
            server: self.server.unwrap_or(Manner::PLAIN),
        })
    }

    /// A packet of the server's.
    pub(crate) fn on_server(&mut self, now: Instant, packet: &Packet<'_>) {
        self.stall.on_server(now, packet);
        let (start, end) = (packet.seq(), packet.seq_end());
        self.server = Some(Manner::of(packet));
        let is_new = if end.is_after(start) {
            let top = self.top.unwrap_or(start);
            self.top = Some(top.later(end));
            !start.is_before(top)
        } else {
            // One that acknowledges something is no probe.
            let numbers = (start, packet.ack());
            self.bare.replace(numbers) != Some(numbers)
        };
        if let Some(asked) = &mut self.asked {
            if !start.is_after(asked.byte) || start.since(asked.byte) > APART_MAX {
                // It has what is asked for, or may be about to send it; or it is not its sender.
                self.asked = None;
            } else if !is_new {
                asked.repeated += 1;
            }
        }
    }

    /// When [`poll_question`](Self::poll_question) has one.
    pub(crate) fn poll_timeout(&self) -> Instant {
        self.stall.poll_timeout()
    }

    /// What the mobile host is to be asked now.
    pub(crate) fn poll_question(&mut self, now: Instant) -> Option<Question> {
        self.stall.poll_question(now)
    }
}
