//! A server that only asks whether the window has opened, because a gateway killed before this one
//! told it that everything had arrived.
//!
//! Its question is numbered one before what it would send next (RFC 9293 §3.8.6.1), so it lies in
//! the window of a mobile host that lacks bytes, and kernels say nothing to it. The same question
//! numbered far outside the window they answer (RFC 9293 §3.10.7.4), and the answer says what has
//! arrived. Owns these questions and their answers: where the same bytes are missing over and over,
//! though the server holds them for received and the mobile host has room, they never come.

use tabane_base::{Duration, Instant};

use crate::key::Key;
use crate::options::Blocks;
use crate::packet::{Flags, Packet};
use crate::segment::{Manner, Segment};
use crate::seq::Seq;
use crate::{Side, Transmit};

/// How long the same must be missing, and how often the mobile host must say so.
const PROOF: Duration = Duration::from_secs(10);
const ANSWERS: u32 = 3;
/// A packet that comes twice within this is one whose path doubled it: no sender's timer is
/// shorter (Linux's least is 200 ms).
const DOUBLED_MAX: Duration = Duration::from_millis(150);
/// Questions to the mobile host for each of the server's, this far apart: who is not there is not
/// asked for ever, and servers wait up to two minutes between theirs.
const QUESTIONS: u32 = 3;
const INTERVAL: Duration = Duration::from_secs(6);
/// So far before the server's number ours lies: no window is larger (RFC 7323 §2.3).
const OUTSIDE: u32 = 1 << 30;
/// More no gateway owes, nor a host has sent that was not heard: numbers further apart are made up.
pub(crate) const APART_MAX: i32 = 1 << 24;

/// What is seen of such a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stall {
    /// The server's last packet, where it had no data, with nothing of the mobile host's after it.
    last: Option<Probe>,
    doubt: Option<Doubt>,
}

/// A packet of the server's without data.
#[derive(Clone, Copy, Debug)]
struct Probe {
    at: Instant,
    seq: Seq,
    ack: Seq,
    window: u16,
    timestamps: Option<(u32, u32)>,
    manner: Manner,
}

/// The server has repeated its question, and the mobile host is asked.
#[derive(Clone, Copy, Debug)]
struct Doubt {
    probe: Probe,
    questions_left: u32,
    /// When the next is due.
    ask_at: Instant,
    /// The mobile host has been silent since the last one.
    is_open: bool,
    heard: Option<Heard>,
}

/// What the mobile host says that it has.
#[derive(Clone, Copy, Debug)]
struct Heard {
    byte: Seq,
    since: Instant,
    times: u32,
}

/// How both ends are reset.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Farewell {
    /// The numbers that the mobile host and the server expect.
    pub(crate) at_mobile: Seq,
    pub(crate) at_server: Seq,
    pub(crate) mobile: Manner,
    pub(crate) server: Manner,
}

/// What the mobile host is asked in the server's name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Question {
    pub(crate) seq: Seq,
    pub(crate) ack: Seq,
    pub(crate) window: u16,
    pub(crate) timestamps: Option<(u32, u32)>,
    pub(crate) manner: Manner,
}

impl Probe {
    fn is_again(&self, before: &Self) -> bool {
        let numbers = |it: &Self| (it.seq, it.ack, it.window);
        numbers(self) == numbers(before) && self.at - before.at > DOUBLED_MAX
    }
}

impl Question {
    /// Asks the mobile host what it has, in the server's name.
    pub(crate) fn packet(self, key: Key) -> Transmit {
        let Self {
            seq,
            ack,
            window,
            timestamps,
            manner,
        } = self;
        Transmit {
            to: Side::Radio,
            packet: Segment {
                source: key.server,
                destination: key.mobile,
                manner,
                seq,
                ack,
                flags: Flags::ACK,
                window,
                timestamps,
                sack: Blocks::default(),
                payload: &[],
            }
            .emit(),
        }
    }
}

impl Farewell {
    /// Ends a connection that can never go on.
    pub(crate) fn resets(self, key: Key) -> [Transmit; 2] {
        let reset = |to, source, destination, manner, seq, ack| Transmit {
            to,
            packet: Segment {
                source,
                destination,
                manner,
                seq,
                ack,
                flags: Flags::RST.with(Flags::ACK),
                window: 0,
                timestamps: None,
                sack: Blocks::default(),
                payload: &[],
            }
            .emit(),
        };
        let Self {
            at_mobile,
            at_server,
            mobile,
            server,
        } = self;
        [
            reset(
                Side::Wired,
                key.mobile,
                key.server,
                mobile,
                at_server,
                at_mobile,
            ),
            reset(
                Side::Radio,
                key.server,
                key.mobile,
                server,
                at_mobile,
                at_server,
            ),
        ]
    }
}

impl Stall {
    /// A packet of the server's. What it repeats without being spoken to is a question.
    pub(crate) fn on_server(&mut self, now: Instant, packet: &Packet<'_>) {
        if packet.seq_end() != packet.seq() || packet.flags().has(Flags::RST) {
            // It goes on, or has ended.
            *self = Self::default();
            return;
        }
        let probe = Probe {
            at: now,
            seq: packet.seq(),
            ack: packet.ack(),
            window: packet.window(),
            timestamps: packet.options().timestamps,
            manner: Manner::of(packet),
        };
        let before = self.last.replace(probe);
        if let Some(doubt) = self.doubt.as_mut().filter(|it| it.probe.seq == probe.seq) {
            doubt.probe = probe;
            doubt.questions_left = QUESTIONS;
        } else if before.is_some_and(|before| probe.is_again(&before)) {
            self.doubt = Some(Doubt {
                probe,
                questions_left: QUESTIONS,
                ask_at: now,
                is_open: false,
                heard: None,
            });
        }
    }

    /// A packet of the mobile host's.
    pub(crate) fn on_mobile(&mut self, now: Instant, packet: &Packet<'_>) -> Option<Farewell> {
        self.last = None;
        let doubt = self.doubt.as_mut()?;
        if !packet.flags().has(Flags::ACK) || !std::mem::take(&mut doubt.is_open) {
            return None;
        }
        let (byte, probe) = (packet.ack(), doubt.probe);
        let is_between = |apart: i32, least| (least..=APART_MAX).contains(&apart);
        // Its last byte is missing, or none is: who only repeats an acknowledgement may have the
        // same number as who asks.
        if !is_between(probe.seq.since(byte), 1)
            || !is_between(packet.seq_end().since(probe.ack), 0)
        {
            self.doubt = None;
            return None;
        }
        if packet.window() == 0 {
            // Who does not read what has come may be sent the rest by somebody between us.
            doubt.heard = None;
            return None;
        }
        let heard = match doubt.heard {
            Some(heard) if heard.byte == byte => Heard {
                times: heard.times + 1,
                ..heard
            },
            _ => Heard {
                byte,
                since: now,
                times: 1,
            },
        };
        doubt.heard = Some(heard);
        let is_proven = heard.times >= ANSWERS && now - heard.since >= PROOF;
        is_proven.then_some(Farewell {
            at_mobile: byte,
            at_server: probe.ack,
            mobile: Manner::of(packet),
            server: probe.manner,
        })
    }

    /// When the mobile host is to be asked.
    pub(crate) fn poll_timeout(&self) -> Instant {
        let due = self.doubt.filter(|doubt| doubt.questions_left > 0);
        due.map_or(Instant::NEVER, |doubt| doubt.ask_at)
    }

    /// What it is to be asked now.
    pub(crate) fn poll_question(&mut self, now: Instant) -> Option<Question> {
        if self.poll_timeout() > now {
            return None;
        }
        let doubt = self.doubt.as_mut()?;
        doubt.questions_left -= 1;
        doubt.ask_at = now + INTERVAL;
        doubt.is_open = true;
        let probe = doubt.probe;
        Some(Question {
            seq: probe.seq - OUTSIDE,
            ack: probe.ack,
            window: probe.window,
            timestamps: probe.timestamps,
            manner: probe.manner,
        })
    }
}
