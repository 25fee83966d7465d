//! A mobile host as kernels of today are: a window of megabytes, and SACK for as many holes as
//! there are. (smoltcp reports one range, and throws away what lies beyond a few holes.)

use std::collections::BTreeMap;

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    IpProtocol, Ipv4Packet, Ipv4Repr, TcpControl, TcpPacket, TcpRepr, TcpSeqNumber,
};
use tabane_base::{Duration, Instant};
use tabane_gateway::{Blocks, Flags, Manner, Packet, Segment, Seq};
use tabane_sim::{Endpoint, TcpHost};

const SHIFT: u8 = 10;
/// As Linux: no more than a beginning's worth, until it is used.
const WINDOW: (u64, u64) = (64 << 10, 6 << 20);
const ACK_DELAY: Duration = Duration::from_millis(40);

/// Connects, and acknowledges every other segment.
pub(crate) struct WideClient {
    end: Endpoint,
    has_sack: bool,
    /// The server's first byte, once it has answered.
    first: Option<Seq>,
    /// Bytes in order, and ranges beyond: start and end.
    received: u64,
    early: BTreeMap<u64, u64>,
    /// Where the last range that arrived begins.
    latest: u64,
    owed: u32,
    ack_at: Option<Instant>,
    greeted: bool,
}

impl WideClient {
    pub(crate) fn new(end: Endpoint, has_sack: bool) -> Self {
        Self {
            end,
            has_sack,
            first: None,
            received: 0,
            early: BTreeMap::new(),
            latest: 0,
            owed: 0,
            ack_at: None,
            greeted: false,
        }
    }

    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    fn window(&self) -> u64 {
        (WINDOW.0 + 2 * self.received).min(WINDOW.1)
    }

    fn greeting(&self) -> Vec<u8> {
        let tcp = TcpRepr {
            src_port: self.end.own.port(),
            dst_port: self.end.peer.port(),
            control: TcpControl::Syn,
            seq_number: TcpSeqNumber(self.end.isn.0 as i32),
            ack_number: None,
            window_len: u16::MAX,
            window_scale: Some(SHIFT),
            max_seg_size: Some(1_460),
            sack_permitted: self.has_sack,
            sack_ranges: [None; 3],
            timestamp: None,
            payload: &[],
        };
        let address = |at: std::net::SocketAddr| match at {
            std::net::SocketAddr::V4(v4) => *v4.ip(),
            std::net::SocketAddr::V6(_) => panic!("IPv4 only"),
        };
        let (from, to) = (address(self.end.own), address(self.end.peer));
        let ip = Ipv4Repr {
            src_addr: from,
            dst_addr: to,
            next_header: IpProtocol::Tcp,
            payload_len: tcp.buffer_len(),
            hop_limit: 64,
        };
        let checksums = ChecksumCapabilities::default();
        let mut bytes = vec![0; ip.buffer_len() + tcp.buffer_len()];
        ip.emit(&mut Ipv4Packet::new_unchecked(&mut bytes), &checksums);
        let mut packet = TcpPacket::new_unchecked(&mut bytes[ip.buffer_len()..]);
        tcp.emit(&mut packet, &from.into(), &to.into(), &checksums);
        bytes
    }

    fn acknowledgement(&self, first: Seq) -> Vec<u8> {
        let mut sack = Blocks::default();
        let recent = self.early.range(..=self.latest).next_back();
        let others = self.early.iter().filter(|other| Some(*other) != recent);
        for (start, end) in recent
            .into_iter()
            .chain(others)
            .take(if self.has_sack { 4 } else { 0 })
        {
            sack.push((first + *start as u32, first + *end as u32));
        }
        Segment {
            source: self.end.own,
            destination: self.end.peer,
            manner: Manner::PLAIN,
            seq: self.end.isn + 1,
            ack: first + self.received as u32,
            flags: Flags::ACK,
            window: (self.window() >> SHIFT) as u16,
            timestamps: None,
            sack,
            payload: &[],
        }
        .emit()
    }

    fn take(&mut self, start: u64, end: u64) {
        let (mut start, mut end) = (start.max(self.received), end);
        self.latest = start;
        // Ranges that touch become one.
        while let Some((s, e)) = self.early.range(..=end).next_back().map(|(s, e)| (*s, *e))
            && e >= start
        {
            self.early.remove(&s);
            (start, end) = (start.min(s), end.max(e));
        }
        if start <= self.received {
            self.received = self.received.max(end);
        } else {
            self.early.insert(start, end);
        }
    }
}

impl TcpHost for WideClient {
    fn handle_packet(&mut self, now: Instant, packet: &[u8]) {
        let packet = Packet::parse(packet).expect("nothing harms packets here");
        if packet.flags().has(Flags::SYN) {
            self.first = Some(packet.seq() + 1);
            self.ack_at = Some(now);
            return;
        }
        let Some(first) = self.first else { return };
        let base = first + self.received as u32;
        let length = packet.payload().len() as u64;
        let end = (self.received as i64 + i64::from(packet.seq().since(base))) as u64 + length;
        let is_orderly = packet.seq() == base && self.early.is_empty();
        if end > self.received {
            self.take(end - length, end);
        }
        self.owed += 1;
        self.ack_at = if !is_orderly || self.owed >= 2 {
            Some(now)
        } else {
            self.ack_at.or(Some(now + ACK_DELAY))
        };
    }

    fn poll_transmit(&mut self, now: Instant) -> Option<Vec<u8>> {
        if !std::mem::replace(&mut self.greeted, true) {
            return Some(self.greeting());
        }
        let first = self.first?;
        self.ack_at.filter(|at| *at <= now)?;
        (self.ack_at, self.owed) = (None, 0);
        Some(self.acknowledgement(first))
    }

    fn poll_timeout(&mut self, _: Instant) -> Option<Instant> {
        self.ack_at
    }
}
