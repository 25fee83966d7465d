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

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::options::Blocks;
    use crate::segment::Segment;

    const MSS_1460: [u8; 4] = [2, 4, 0x05, 0xb4];
    const SCALE_7: [u8; 4] = [3, 3, 7, 1];
    const SACK: [u8; 4] = [4, 2, 1, 1];
    const STAMPS: [u8; 12] = [1, 1, 8, 10, 0, 0, 0, 9, 0, 0, 0, 0];
    const SYN_ACK: Flags = Flags(0x12);

    const fn ms(ms: u64) -> Instant {
        Instant::from_millis(ms)
    }

    /// A packet of the mobile host's or the server's, of IPv6 where `v6`, with options as they lie.
    fn packet(from: Side, v6: bool, flags: Flags, options: &[&[u8]]) -> Vec<u8> {
        let (mobile, server) = if v6 {
            ("[2001:db8::2]:40000", "[2001:db8::1]:80")
        } else {
            ("10.0.0.2:40000", "192.0.2.1:80")
        };
        let (source, destination, seq, ack) = match from {
            Side::Radio => (mobile, server, Seq(1_000), Seq(5_001)),
            Side::Wired => (server, mobile, Seq(5_000), Seq(1_001)),
        };
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        let mut bytes = Segment {
            source: address(source),
            destination: address(destination),
            manner: Manner::PLAIN,
            seq: if flags.has(Flags::SYN) { seq } else { seq + 1 },
            ack,
            flags,
            window: 8_000,
            timestamps: None,
            sack: Blocks::default(),
            payload: &options.concat(),
        }
        .emit();
        // The payload becomes options: TCP's header is longer by as many words.
        let at = if v6 { 40 } else { 20 } + 12;
        bytes[at] += ((options.concat().len() / 4) << 4) as u8;
        bytes
    }

    fn begin(bytes: &[u8], at: Instant) -> Result<Opening, Bypass> {
        Opening::begin(at, Side::Radio, &Packet::parse(bytes).unwrap())
    }

    /// A whole handshake with these options, the mobile host asking; round trips of 10 and 50 ms.
    fn agreed(v6: bool, mobile: &[&[u8]], server: &[&[u8]], is_repeated: bool) -> Agreed {
        let question = packet(Side::Radio, v6, Flags::SYN, mobile);
        let mut opening = begin(&question, ms(0)).unwrap();
        let mut give =
            |at, from, bytes: &[u8]| opening.handle(ms(at), from, &Packet::parse(bytes).unwrap());
        if is_repeated {
            assert!(matches!(give(5, Side::Radio, &question), Step::Going));
        }
        let answer = packet(Side::Wired, v6, SYN_ACK, server);
        assert!(matches!(give(10, Side::Wired, &answer), Step::Going));
        let end = packet(Side::Radio, v6, Flags::ACK, &[]);
        match give(60, Side::Radio, &end) {
            Step::Open(agreed) => *agreed,
            step => panic!("{step:?}"),
        }
    }

    #[test]
    fn an_option_counts_where_both_have_it() {
        for v6 in [false, true] {
            let all: [&[u8]; 4] = [&MSS_1460, &SCALE_7, &SACK, &STAMPS];
            let both = agreed(v6, &all, &all, false);
            assert_eq!((both.shift, both.segment), (7, 1_448));
            assert!(both.sack && both.timestamps);
            assert_eq!(both.mobile.first, Seq(1_001));
            assert_eq!(both.server.first, Seq(5_001));
            let one = agreed(v6, &all, &[&MSS_1460], false);
            assert_eq!((one.shift, one.segment), (0, 1_460));
            assert!(!one.sack && !one.timestamps);
            assert_eq!(agreed(v6, &[], &all, false).segment, MSS_DEFAULT);
        }
    }

    #[test]
    fn round_trips_are_taken_on_both_sides_but_not_of_what_was_repeated() {
        let trip = |ms| Some(Duration::from_millis(ms));
        let once = agreed(false, &[], &[], false);
        assert_eq!((once.wired, once.radio), (trip(10), trip(50)));
        let twice = agreed(false, &[], &[], true);
        assert_eq!((twice.wired, twice.radio), (None, trip(50)));
    }

    #[test]
    fn flows_that_are_none_of_ours_are_refused_with_the_reason() {
        let refused = |options: &[&[u8]]| {
            let bytes = packet(Side::Radio, false, Flags::SYN, options);
            begin(&bytes, ms(0)).err()
        };
        let multipath = [30, 4, 0x01, 0];
        let md5 = [&[19, 18][..], &[0; 16], &[1, 1]].concat();
        assert_eq!(refused(&[&multipath]), Some(Bypass::Multipath));
        assert_eq!(refused(&[&md5]), Some(Bypass::Authenticated));
        assert_eq!(refused(&[&MSS_1460]), None);

        let step = |asks: Flags, answers: Flags, from: Side| {
            let question = packet(Side::Radio, false, asks, &[]);
            let mut opening = begin(&question, ms(0)).unwrap();
            let answer = packet(from, false, answers, &[]);
            let step = opening.handle(ms(1), from, &Packet::parse(&answer).unwrap());
            match step {
                Step::Refused(why) => Some(why),
                Step::Going | Step::Open(_) | Step::Ended => None,
            }
        };
        let wired = Side::Wired;
        // ECN is asked for by ECE and CWR, and granted by ECE (RFC 3168 §6.1.1).
        let ecn = Flags::SYN.with(Flags::ECE).with(Flags::CWR);
        assert_eq!(step(ecn, SYN_ACK.with(Flags::ECE), wired), None);
        let accurate = ecn.with(Flags::AE);
        assert_eq!(step(accurate, SYN_ACK.with(Flags::ECE), wired), None);
        let granted = SYN_ACK.with(Flags::CWR);
        assert_eq!(step(accurate, granted, wired), Some(Bypass::AccurateEcn));
        // Both ask at once; data before there was an answer.
        assert_eq!(step(Flags::SYN, Flags::SYN, wired), Some(Bypass::OneWay));
        let early = step(Flags::SYN, Flags::ACK, Side::Radio);
        assert_eq!(early, Some(Bypass::OneWay));
    }

    #[test]
    fn a_reset_ends_it() {
        let question = packet(Side::Radio, false, Flags::SYN, &[]);
        let mut opening = begin(&question, ms(0)).unwrap();
        let reset = packet(Side::Wired, false, Flags::RST.with(Flags::ACK), &[]);
        let step = opening.handle(ms(1), Side::Wired, &Packet::parse(&reset).unwrap());
        assert!(matches!(step, Step::Ended));
    }
}
