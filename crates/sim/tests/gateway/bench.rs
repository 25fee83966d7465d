//! A gateway given packets by hand, one by one.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use tabane_base::{Duration, Instant};
use tabane_gateway::{
    Blocks, Checksum, Config, Flags, FlowSnapshot, Gateway, Manner, Mode, Packet, Segment, Seq,
    Side, Verdict,
};

pub(super) const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 80);
pub(super) const MOBILE: SocketAddr =
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), 40_000);

pub(super) fn config() -> Config {
    Config {
        mode: Mode::Assist,
        ..Config::default()
    }
}

pub(super) fn segment(from: Side, seq: u32, ack: u32, flags: Flags, payload: &[u8]) -> Segment<'_> {
    let (source, destination) = match from {
        Side::Wired => (SERVER, MOBILE),
        Side::Radio => (MOBILE, SERVER),
    };
    Segment {
        source,
        destination,
        manner: Manner::PLAIN,
        seq: Seq(seq),
        ack: Seq(ack),
        flags,
        window: 8_000,
        timestamps: None,
        sack: Blocks::default(),
        payload,
    }
}

/// A gateway and one connection of it, whose first bytes are 1001 (mobile) and 5001 (server).
pub(super) struct Bench {
    pub(super) gateway: Gateway,
    pub(super) now: Instant,
}

impl Bench {
    pub(super) fn new(config: Config) -> Self {
        Self {
            gateway: Gateway::new(config),
            now: Instant::from_millis(1),
        }
    }

    /// The first of its flows.
    pub(super) fn flow(&self) -> FlowSnapshot {
        self.gateway.flows().next().expect("there is one")
    }

    pub(super) fn pass(&mut self, from: Side, segment: Segment<'_>) -> Verdict {
        let packet = segment.emit();
        self.gateway
            .handle_packet(self.now, from, &packet, Checksum::Unknown)
    }

    pub(super) fn open(&mut self) {
        let ack = Flags::ACK;
        let steps = [
            segment(Side::Radio, 1_000, 0, Flags::SYN, &[]),
            segment(Side::Wired, 5_000, 1_001, Flags::SYN.with(ack), &[]),
            segment(Side::Radio, 1_001, 5_001, ack, &[]),
        ];
        for (segment, from) in steps
            .into_iter()
            .zip([Side::Radio, Side::Wired, Side::Radio])
        {
            assert_eq!(self.pass(from, segment), Verdict::Accept);
        }
    }

    pub(super) fn data(&mut self, seq: u32, length: usize) -> Verdict {
        self.pass(
            Side::Wired,
            segment(Side::Wired, seq, 1_001, Flags::ACK, &vec![7; length]),
        )
    }

    /// As [`data`](Self::data), gone on already.
    pub(super) fn copy(&mut self, seq: u32, length: usize) {
        let payload = vec![7; length];
        let packet = segment(Side::Wired, seq, 1_001, Flags::ACK, &payload).emit();
        self.gateway.handle_copy(self.now, &packet);
    }

    pub(super) fn wait(&mut self, span: Duration) {
        let end = self.now + span;
        while let Some(at) = self.gateway.poll_timeout().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.gateway.handle_timeout(self.now);
        }
        self.now = end;
    }

    pub(super) fn said(&mut self) -> Vec<(Side, Flags, Seq, Seq, u16)> {
        std::iter::from_fn(|| self.gateway.poll_transmit())
            .map(|transmit| {
                let packet = Packet::parse(&transmit.packet).expect("it is ours");
                assert!(packet.has_good_checksum());
                (
                    transmit.to,
                    packet.flags(),
                    packet.seq(),
                    packet.ack(),
                    packet.window(),
                )
            })
            .collect()
    }
}
