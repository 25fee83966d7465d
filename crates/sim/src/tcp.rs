//! Two ends of a TCP connection as they were in 1998: Reno, and no option but MSS.
//!
//! [`TcpServer`] sends [`Content`] to whoever connects and then closes; congestion control is
//! [`RenoSender`]'s, which counts segments of one size. [`TcpClient`] connects, checks what comes
//! byte by byte, acknowledges every other segment, and closes when the server has. Windows
//! are not scaled.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use tabane_base::{Content, Duration, Instant};
use tabane_gateway::{Blocks, Flags, Manner, Packet, Segment, Seq};

use crate::passage::TcpHost;
use crate::reno::RenoSender;

/// First and longest wait between probes of a shut window (RFC 9293 §3.8.6.1).
const PERSIST: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// How long an acknowledgement waits for a second segment.
const ACK_DELAY: Duration = Duration::from_millis(200);
/// Between repeated SYNs and FINs.
const REPEAT: Duration = Duration::from_secs(3);

/// The addresses and numbers of one end.
#[derive(Clone, Copy, Debug)]
pub struct Endpoint {
    /// Its own address.
    pub own: SocketAddr,
    /// The other end's.
    pub peer: SocketAddr,
    /// Number of its SYN.
    pub isn: Seq,
}

impl Endpoint {
    fn packet(
        &self,
        seq: Seq,
        ack: Option<Seq>,
        flags: Flags,
        window: u16,
        data: &[u8],
    ) -> Vec<u8> {
        let acks = if ack.is_some() {
            Flags::ACK
        } else {
            Flags::default()
        };
        Segment {
            source: self.own,
            destination: self.peer,
            manner: Manner::PLAIN,
            seq,
            ack: ack.unwrap_or_default(),
            flags: flags.with(acks),
            window,
            timestamps: None,
            sack: Blocks::default(),
            payload: data,
        }
        .emit()
    }
}

/// What a host takes in.
fn sound(packet: &[u8]) -> Option<Packet<'_>> {
    let packet = Packet::parse(packet).ok()?;
    packet.has_good_checksum().then_some(packet)
}

/// The sending end.
#[derive(Debug)]
pub struct TcpServer {
    end: Endpoint,
    content: Content,
    total: u64,
    segment: u64,
    reno: RenoSender,
    /// The client's next byte, once it has connected.
    expected: Option<Seq>,
    /// When our greeting goes, again.
    greet_at: Option<Instant>,
    /// The client has answered our greeting.
    is_open: bool,
    acknowledge: bool,
    /// The right edge, in bytes of content.
    edge: u64,
    acked: u64,
    closed: bool,
    probe_at: Option<(Instant, Duration)>,
    /// Data segments sent.
    pub segments_sent: u64,
    /// Ends of windows that lay before an earlier one: a receiver must never do that.
    pub edges_moved_left: u64,
}

impl TcpServer {
    /// A server that sends `total` bytes in segments of `segment`.
    #[must_use]
    pub fn new(end: Endpoint, content: Content, total: u64, segment: u64) -> Self {
        Self {
            end,
            content,
            total,
            segment,
            reno: RenoSender::new(1),
            is_open: false,
            expected: None,
            greet_at: None,
            acknowledge: false,
            edge: 0,
            acked: 0,
            closed: false,
            probe_at: None,
            segments_sent: 0,
            edges_moved_left: 0,
        }
    }

    fn segments(&self) -> u64 {
        self.total.div_ceil(self.segment)
    }

    /// Whether everything, the FIN too, was acknowledged, and the client has closed.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.acked > self.total && self.closed
    }

    /// Bytes acknowledged, the FIN with them.
    #[must_use]
    pub fn acked(&self) -> u64 {
        self.acked
    }

    fn number(&self, offset: u64) -> Seq {
        self.end.isn + 1 + offset as u32
    }

    fn on_ack(&mut self, now: Instant, packet: &Packet<'_>) {
        let base = self.number(self.acked);
        let advance = packet.ack().since(base);
        if advance < 0 || self.acked + advance as u64 > self.total + 1 {
            return;
        }
        self.acked += advance as u64;
        let edge = self.acked + u64::from(packet.window());
        let same_edge = edge == self.edge;
        if edge < self.edge {
            self.edges_moved_left += 1;
        }
        self.edge = self.edge.max(edge);
        let whole = |bytes: u64| {
            if bytes >= self.total {
                self.segments()
            } else {
                bytes / self.segment
            }
        };
        let (acked, edge) = (whole(self.acked), whole(self.edge));
        // The FIN goes with the last segment, so both are acknowledged or neither.
        let acked = if self.acked == self.total {
            acked - 1
        } else {
            acked
        };
        let is_duplicate = packet.payload().is_empty() && same_edge;
        if advance > 0 || is_duplicate {
            self.reno.handle_ack(now, acked);
        }
        self.reno.set_window(edge.saturating_sub(self.reno.acked()));
        if advance > 0 || self.edge >= (self.reno.sent() + 1) * self.segment {
            self.probe_at = None;
        }
    }

    fn data(&mut self, offset: u64, length: u64) -> Vec<u8> {
        let mut data = vec![0; length as usize];
        self.content.fill(offset, &mut data);
        let fin = if offset + length == self.total {
            Flags::FIN
        } else {
            Flags::default()
        };
        self.segments_sent += 1;
        self.end
            .packet(self.number(offset), self.expected, fin, 8_192, &data)
    }

    fn waits_for_the_window(&self) -> bool {
        let sent_all = self.reno.sent() == self.reno.acked();
        self.is_open && sent_all && self.acked < self.total
    }
}

impl TcpHost for TcpServer {
    fn handle_packet(&mut self, now: Instant, packet: &[u8]) {
        let Some(packet) = sound(packet) else {
            return;
        };
        let flags = packet.flags();
        if flags.has(Flags::SYN) {
            self.expected = Some(packet.seq() + 1);
            self.greet_at = Some(now);
            return;
        }
        let Some(expected) = self.expected else {
            return;
        };
        if flags.has(Flags::ACK) {
            self.is_open = true;
            self.greet_at = None;
            self.on_ack(now, &packet);
        }
        if flags.has(Flags::FIN) {
            if packet.seq() == expected {
                self.expected = Some(expected + 1);
                self.closed = true;
            }
            self.acknowledge = true;
        }
    }

    fn poll_transmit(&mut self, now: Instant) -> Option<Vec<u8>> {
        if self.greet_at.is_some_and(|at| at <= now) {
            self.greet_at = Some(now + REPEAT);
            return Some(
                self.end
                    .packet(self.end.isn, self.expected, Flags::SYN, 8_192, &[]),
            );
        }
        if std::mem::take(&mut self.acknowledge) {
            let next = self.number(
                self.reno
                    .sent()
                    .saturating_mul(self.segment)
                    .min(self.total),
            );
            let fin = u32::from(self.reno.sent() == self.segments());
            return Some(
                self.end
                    .packet(next + fin, self.expected, Flags::default(), 8_192, &[]),
            );
        }
        if !self.is_open {
            return None;
        }
        self.reno.handle_timeout(now);
        if let Some(number) = self.reno.poll_transmit(now) {
            let offset = number * self.segment;
            return Some(self.data(offset, self.segment.min(self.total - offset)));
        }
        if !self.waits_for_the_window() {
            return None;
        }
        let (at, wait) = *self.probe_at.get_or_insert((now + PERSIST.0, PERSIST.0));
        if at > now {
            return None;
        }
        let wait = (wait * 2).min(PERSIST.1);
        self.probe_at = Some((now + wait, wait));
        let next = self.reno.sent() * self.segment;
        self.segments_sent -= 1;
        Some(self.data(next, 1))
    }

    fn poll_timeout(&mut self, _now: Instant) -> Option<Instant> {
        let probe = self.probe_at.map(|(at, _)| at);
        let timers = [self.reno.poll_timeout(), probe, self.greet_at];
        timers.into_iter().flatten().min()
    }
}

/// The receiving end.
#[derive(Debug)]
pub struct TcpClient {
    end: Endpoint,
    content: Content,
    buffer: u64,
    /// The server's first byte, once it has answered.
    first: Option<Seq>,
    received: u64,
    /// Ranges beyond the first hole: start and end.
    early: BTreeMap<u64, u64>,
    /// Bytes in order that the program has not read.
    unread: u64,
    /// The program reads nothing.
    pausing: bool,
    fin_at: Option<u64>,
    fin_acked: bool,
    owes_ack: u32,
    ack_at: Option<Instant>,
    repeat_at: Option<Instant>,
    /// Right edge told.
    edge: u64,
    /// Segments that held nothing new.
    pub useless: u64,
    /// Segments beyond the window.
    pub outside: u64,
}

impl TcpClient {
    /// A client that takes `buffer` bytes, at most 65,535.
    #[must_use]
    pub fn new(end: Endpoint, content: Content, buffer: u16) -> Self {
        Self {
            end,
            content,
            buffer: u64::from(buffer),
            first: None,
            received: 0,
            early: BTreeMap::new(),
            unread: 0,
            pausing: false,
            fin_at: None,
            fin_acked: false,
            owes_ack: 0,
            ack_at: None,
            repeat_at: Some(Instant::EPOCH),
            edge: 0,
            useless: 0,
            outside: 0,
        }
    }

    /// Bytes received in order, each of which was right.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Whether the server has sent its last byte and knows that we are done.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.has_all() && self.fin_acked
    }

    fn has_all(&self) -> bool {
        self.fin_at == Some(self.received)
    }

    /// Whether the program reads.
    pub fn set_pausing(&mut self, pausing: bool) {
        self.pausing = pausing;
        if !pausing && self.unread > 0 {
            self.unread = 0;
            self.owes_ack = 2;
        }
    }

    fn on_data(&mut self, now: Instant, offset: i64, data: &[u8]) {
        let end = offset + data.len() as i64;
        let fresh = end > self.received as i64
            && !self
                .early
                .iter()
                .any(|(start, until)| *start as i64 <= offset && end <= *until as i64);
        if !fresh {
            self.useless += 1;
            self.owes_ack = 2;
            return;
        }
        if end as u64 > self.edge {
            self.outside += 1;
            self.owes_ack = 2;
            return;
        }
        let at = offset.max(0) as u64;
        let skipped = (at as i64 - offset) as usize;
        let wrong = self.content.first_difference(at, &data[skipped..]);
        assert_eq!(wrong, None, "a wrong byte at {at}");
        let in_order = offset <= self.received as i64 && self.early.is_empty();
        let until = self.early.entry(at).or_default();
        *until = (*until).max(end as u64);
        let before = self.received;
        while let Some(entry) = self.early.first_entry()
            && *entry.key() <= self.received
        {
            self.received = self.received.max(entry.remove());
        }
        if self.pausing {
            self.unread += self.received - before;
        }
        self.owes_ack += if in_order { 1 } else { 2 };
        self.ack_at.get_or_insert(now + ACK_DELAY);
    }

    fn acknowledgement(&mut self) -> Option<Vec<u8>> {
        let first = self.first?;
        self.owes_ack = 0;
        self.ack_at = None;
        let free = self.buffer.saturating_sub(self.unread);
        self.edge = self.edge.max(self.received + free);
        let window = self.edge.saturating_sub(self.received).min(65_535);
        let fin = u32::from(self.has_all());
        let ack = first + self.received as u32 + fin;
        let seq = self.end.isn + 1;
        let flags = if fin == 1 && !self.fin_acked {
            Flags::FIN
        } else {
            Flags::default()
        };
        let seq = if fin == 1 && self.fin_acked {
            seq + 1
        } else {
            seq
        };
        Some(self.end.packet(seq, Some(ack), flags, window as u16, &[]))
    }
}

impl TcpHost for TcpClient {
    fn handle_packet(&mut self, now: Instant, packet: &[u8]) {
        let Some(packet) = sound(packet) else {
            return;
        };
        let flags = packet.flags();
        if flags.has(Flags::SYN) {
            self.first = Some(packet.seq() + 1);
            self.owes_ack = 2;
            self.repeat_at = None;
            return;
        }
        let Some(first) = self.first else {
            return;
        };
        if packet.ack() == self.end.isn + 2 {
            self.fin_acked = true;
            self.repeat_at = None;
        }
        let offset =
            i64::from(packet.seq().since(first + self.received as u32)) + self.received as i64;
        let data = packet.payload();
        if flags.has(Flags::FIN) {
            self.fin_at = Some((offset + data.len() as i64) as u64);
            self.owes_ack = 2;
        }
        if !data.is_empty() {
            self.on_data(now, offset, data);
        }
        if self.has_all() && !self.fin_acked {
            self.repeat_at.get_or_insert(now + REPEAT);
        }
    }

    fn poll_transmit(&mut self, now: Instant) -> Option<Vec<u8>> {
        if self.repeat_at.is_some_and(|at| at <= now) {
            self.repeat_at = Some(now + REPEAT);
            if self.first.is_none() {
                self.edge = self.buffer;
                let window = self.buffer as u16;
                return Some(self.end.packet(self.end.isn, None, Flags::SYN, window, &[]));
            }
            self.owes_ack = 2;
        }
        let due = self.owes_ack >= 2 || self.ack_at.is_some_and(|at| at <= now);
        if due { self.acknowledgement() } else { None }
    }

    fn poll_timeout(&mut self, _now: Instant) -> Option<Instant> {
        self.ack_at.into_iter().chain(self.repeat_at).min()
    }
}
