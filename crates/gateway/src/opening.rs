//! A handshake on its way: what both ends agree on, and whether the flow can be assisted.

use tabane_base::{Duration, Instant};

use crate::Side;
use crate::counters::Bypass;
use crate::options::Options;
use crate::packet::{Flags, Packet};
use crate::segment::Manner;
use crate::seq::Seq;

/// The largest segment of a host that says nothing (RFC 9293 §3.7.1).
const MSS_DEFAULT: u16 = 536;
/// What timestamps take of every segment.
const TIMESTAMPS_SIZE: u16 = 12;
/// No segment of ours is smaller, whatever a host says.
const SEGMENT_MIN: u16 = 64;

/// What one end said in its SYN.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Greeting {
    /// The number of its first byte.
    pub(crate) first: Seq,
    pub(crate) window: u16,
    pub(crate) stamps: (u32, u32),
    pub(crate) manner: Manner,
    flags: Flags,
    options: Options,
    at: Instant,
    repeated: bool,
}

impl Greeting {
    fn new(now: Instant, packet: &Packet<'_>) -> Self {
        let options = packet.options();
        Self {
            first: packet.seq() + 1,
            window: packet.window(),
            stamps: options.timestamps.unwrap_or_default(),
            manner: Manner::of(packet),
            flags: packet.flags(),
            options,
            at: now,
            repeated: false,
        }
    }
}

/// What both ends have agreed on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Agreed {
    pub(crate) mobile: Greeting,
    pub(crate) server: Greeting,
    /// By how many bits the mobile host's windows are shifted.
    pub(crate) shift: u8,
    pub(crate) sack: bool,
    pub(crate) timestamps: bool,
    /// Payload of a full segment.
    pub(crate) segment: u16,
    /// The handshake's round trips, on either side of the gateway.
    pub(crate) radio: Option<Duration>,
    pub(crate) wired: Option<Duration>,
}

/// A connection that is being opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opening {
    asker: Side,
    question: Greeting,
    answer: Option<Greeting>,
}

/// What a packet did to it.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Going,
    Open(Box<Agreed>),
    /// Not for us.
    Refused(Bypass),
    /// A reset.
    Ended,
}

impl Opening {
    /// Begins with a SYN.
    pub(crate) fn begin(now: Instant, from: Side, packet: &Packet<'_>) -> Result<Self, Bypass> {
        if !packet.payload().is_empty() {
            return Err(Bypass::FastOpen);
        }
        let question = Greeting::new(now, packet);
        bypass(&question.options)?;
        Ok(Self {
            asker: from,
            question,
            answer: None,
        })
    }

    pub(crate) fn handle(&mut self, now: Instant, from: Side, packet: &Packet<'_>) -> Step {
        let flags = packet.flags();
        if flags.has(Flags::RST) {
            return Step::Ended;
        }
        if flags.has(Flags::SYN) {
            return match self.on_syn(now, from, packet) {
                Ok(()) => Step::Going,
                Err(why) => Step::Refused(why),
            };
        }
        let Some(answer) = self.answer else {
            // Data, or the end of a handshake whose middle went another way.
            return Step::Refused(Bypass::OneWay);
        };
        let ends = from == self.asker && flags.has(Flags::ACK);
        if !ends || packet.ack().is_before(answer.first) {
            // The answerer's first data may be faster than the asker's last word.
            return if from == self.asker {
                Step::Going
            } else {
                Step::Refused(Bypass::OneWay)
            };
        }
        Step::Open(Box::new(self.agree(now, answer)))
    }

    fn on_syn(&mut self, now: Instant, from: Side, packet: &Packet<'_>) -> Result<(), Bypass> {
        let mut said = Greeting::new(now, packet);
        if !packet.payload().is_empty() {
            return Err(Bypass::FastOpen);
        }
        bypass(&said.options)?;
        if from == self.asker {
            said.repeated = said.first == self.question.first;
            if !said.repeated {
                self.answer = None;
            }
            self.question = said;
            return Ok(());
        }
        if !packet.flags().has(Flags::ACK) {
            // Both open at once (RFC 9293 §3.5): too rare to be worth a state.
            return Err(Bypass::OneWay);
        }
        let all = Flags::ECE.with(Flags::CWR).with(Flags::AE);
        let answered = Flags(said.flags.0 & all.0);
        if self.question.flags.has(all) && ![Flags::default(), Flags::ECE].contains(&answered) {
            return Err(Bypass::AccurateEcn);
        }
        said.repeated = self.answer.is_some_and(|answer| answer.first == said.first);
        self.answer = Some(said);
        Ok(())
    }

    fn agree(&self, now: Instant, answer: Greeting) -> Agreed {
        let question = self.question;
        let (one, other) = (question.options, answer.options);
        let (mobile, server) = match self.asker {
            Side::Radio => (question, answer),
            Side::Wired => (answer, question),
        };
        let timestamps = one.timestamps.is_some() && other.timestamps.is_some();
        let scaled = one.window_shift.is_some() && other.window_shift.is_some();
        let shift = mobile.options.window_shift.filter(|_| scaled).unwrap_or(0);
        let mss = |options: Options| options.mss.unwrap_or(MSS_DEFAULT);
        let overhead = if timestamps { TIMESTAMPS_SIZE } else { 0 };
        let segment = mss(one).min(mss(other)).saturating_sub(overhead);
        let asked = (!question.repeated && !answer.repeated).then(|| answer.at - question.at);
        let answered = (!answer.repeated).then(|| now - answer.at);
        let (radio, wired) = match self.asker {
            Side::Radio => (answered, asked),
            Side::Wired => (asked, answered),
        };
        Agreed {
            mobile,
            server,
            shift,
            sack: one.sack_permitted && other.sack_permitted,
            timestamps,
            segment: segment.max(SEGMENT_MIN),
            radio,
            wired,
        }
    }
}

fn bypass(options: &Options) -> Result<(), Bypass> {
    if options.multipath {
        return Err(Bypass::Multipath);
    }
    if options.authenticated {
        return Err(Bypass::Authenticated);
    }
    Ok(())
}
