//! Numbered datagrams at a steady rate, and the account of what arrived how.
//!
//! A datagram tells its number, when it was sent and when it is late, so that the receiver needs
//! no settings.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::now_ns;

/// The first byte of a datagram of a flow.
pub(super) const NUMBERED: u8 = b'N';
/// Asks for a flow.
pub(super) const WANTED: u8 = b'W';
/// Asks what has arrived of the asker's flow.
pub(super) const REPORT: u8 = b'R';

/// What programs that mind fragments send: QUIC's least, WebRTC's most.
const PAYLOAD: usize = 1200;
/// One at IP level, in bytes.
const PACKET: u64 = PAYLOAD as u64 + 28;

/// A sender that the machine has held up goes on from there, and does not send what was missed at
/// once: that would be another flow than was asked for.
const CATCH_UP: Duration = Duration::from_millis(2);

/// How long a request or the rest of a flow is waited for.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
const ATTEMPTS: u32 = 10;
/// How long after a flow's last datagram the rest is waited for.
const SILENCE: Duration = Duration::from_secs(2);

/// What a receiver that is held up for 100 ms at 300 Mbit/s must hold, in bytes.
const ROOM: usize = 4_000_000;

/// What is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Flow {
    bps: u64,
    seconds: u64,
    in_time_ms: u64,
}

/// So many seconds are told apart: a report fits one datagram.
const SECONDS: usize = 60;

/// What arrived of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(in super::super) struct Tally {
    pub(in super::super) offered: u64,
    pub(in super::super) arrived: u64,
    /// After one that was sent later.
    pub(in super::super) out_of_order: u64,
    /// In order or not.
    pub(in super::super) late: u64,
    /// The late ones by the second in which they were sent, from the first; those of the last
    /// second counted here and all later ones.
    late_in_second: Vec<u64>,
    /// In order and in time.
    pub(in super::super) good: u64,
    /// How long the slowest took.
    pub(in super::super) slowest_ms: f64,
    /// When the first and the last were sent, by the machine's clock.
    first_sent_ns: u64,
    last_sent_ns: u64,
    /// The lowest number that is still in order.
    next: u64,
}

/// How many datagrams make a flow.
pub(in super::super) fn datagrams(bps: u64, seconds: u64) -> u64 {
    bps * seconds / (PACKET * 8)
}

/// Makes room for what comes while the program does not run.
pub(super) fn make_room(socket: &UdpSocket) {
    // Needs privilege; without it less fits, and shows as loss.
    let _ = rustix::net::sockopt::set_socket_recv_buffer_size_force(socket, ROOM);
}

impl Flow {
    pub(super) fn new(bps: u64, seconds: u64, in_time_ms: u64) -> Self {
        Self {
            bps,
            seconds,
            in_time_ms,
        }
    }

    /// Reads a request.
    pub(super) fn parse(request: &[u8]) -> Option<Self> {
        let word = |at: usize| {
            Some(u64::from_be_bytes(
                request.get(at..at + 8)?.try_into().ok()?,
            ))
        };
        Some(Self::new(word(1)?, word(9)?, word(17)?))
    }

    fn request(self) -> Vec<u8> {
        let mut request = vec![WANTED];
        for number in [self.bps, self.seconds, self.in_time_ms] {
            request.extend(number.to_be_bytes());
        }
        request
    }

    /// Sends all of it.
    pub(super) fn send(self, socket: &UdpSocket, to: SocketAddr) {
        let is_connected = socket.peer_addr().is_ok();
        let gap = Duration::from_secs_f64(PACKET as f64 * 8.0 / self.bps as f64);
        let mut due_at = Instant::now();
        let mut datagram = [0; PAYLOAD];
        datagram[0] = NUMBERED;
        datagram[17..25].copy_from_slice(&self.in_time_ms.to_be_bytes());
        for number in 0..datagrams(self.bps, self.seconds) {
            let now = Instant::now();
            match due_at.checked_duration_since(now) {
                Some(early) => thread::sleep(early),
                None if now - due_at > CATCH_UP => due_at = now - CATCH_UP,
                None => {}
            }
            due_at += gap;
            datagram[1..9].copy_from_slice(&number.to_be_bytes());
            datagram[9..17].copy_from_slice(&now_ns().to_be_bytes());
            // What the machine refuses is lost, as on the way.
            let _ = if is_connected {
                socket.send(&datagram)
            } else {
                socket.send_to(&datagram, to)
            };
        }
    }

    /// Asks for it and counts what comes.
    pub(super) fn receive(self, socket: &UdpSocket) -> Result<Tally> {
        let mut tally = Tally::default();
        let mut buffer = [0; 2048];
        for attempt in 0.. {
            if attempt == ATTEMPTS {
                bail!("no datagram came of {ATTEMPTS} requests");
            }
            socket.send(&self.request())?;
            if let Some(length) = receive(socket, &mut buffer, ANSWER_WITHIN)? {
                tally.take(&buffer[..length]);
                break;
            }
        }
        while let Some(length) = receive(socket, &mut buffer, SILENCE)? {
            tally.take(&buffer[..length]);
        }
        tally.offered = datagrams(self.bps, self.seconds);
        Ok(tally)
    }

    /// What the far end has counted, once what is on its way has had time to arrive.
    pub(super) fn ask_for_report(self, socket: &UdpSocket) -> Result<Tally> {
        let mut buffer = [0; 2048];
        thread::sleep(SILENCE);
        for _ in 0..ATTEMPTS {
            socket.send(&[REPORT])?;
            if let Some(length) = receive(socket, &mut buffer, ANSWER_WITHIN)? {
                let mut tally: Tally = serde_json::from_slice(&buffer[..length])?;
                tally.offered = datagrams(self.bps, self.seconds);
                return Ok(tally);
            }
        }
        bail!("the far end does not say what arrived")
    }
}

/// The next datagram's length, if one comes in time.
fn receive(socket: &UdpSocket, buffer: &mut [u8], within: Duration) -> Result<Option<usize>> {
    socket.set_read_timeout(Some(within))?;
    match socket.recv(buffer) {
        Ok(length) => Ok(Some(length)),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            Ok(None)
        }
        Err(error) => Err(error).context("cannot receive a flow"),
    }
}

impl Tally {
    /// Counts a datagram that has come now.
    pub(super) fn take(&mut self, datagram: &[u8]) {
        let word = |at: usize| {
            Some(u64::from_be_bytes(
                datagram.get(at..at + 8)?.try_into().ok()?,
            ))
        };
        if let (Some(number), Some(sent_ns), Some(in_time_ms)) = (word(1), word(9), word(17)) {
            self.count(number, sent_ns, now_ns(), in_time_ms);
        }
    }

    fn count(&mut self, number: u64, sent_ns: u64, now_ns: u64, in_time_ms: u64) {
        if self.arrived == 0 {
            self.first_sent_ns = sent_ns;
        }
        self.arrived += 1;
        self.last_sent_ns = self.last_sent_ns.max(sent_ns);
        let took_ms = now_ns.saturating_sub(sent_ns) as f64 / 1e6;
        self.slowest_ms = self.slowest_ms.max(took_ms);
        let is_late = took_ms > in_time_ms as f64;
        let is_in_order = number >= self.next;
        self.next = self.next.max(number + 1);
        self.late += u64::from(is_late);
        let second = sent_ns.saturating_sub(self.first_sent_ns) / 1_000_000_000;
        let second = usize::try_from(second)
            .unwrap_or(SECONDS - 1)
            .min(SECONDS - 1);
        if self.late_in_second.len() <= second {
            self.late_in_second.resize(second + 1, 0);
        }
        self.late_in_second[second] += u64::from(is_late);
        self.out_of_order += u64::from(!is_in_order);
        self.good += u64::from(is_in_order && !is_late);
    }

    /// Of what was offered, what came in order and in time.
    pub(in super::super) fn good_share(&self) -> f64 {
        self.good as f64 / (self.offered as f64).max(1.0)
    }

    /// What came, counted at IP level, in bit/s of the time it was sent in.
    pub(in super::super) fn arrived_bps(&self) -> f64 {
        let ns = self.last_sent_ns.saturating_sub(self.first_sent_ns).max(1);
        self.arrived as f64 * PACKET as f64 * 8e9 / ns as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_and_overtaken_datagrams_do_not_count() {
        let ms = 1_000_000;
        let mut tally = Tally::default();
        for (number, sent, now) in [(0, 0, 10), (2, 2, 12), (1, 1, 13), (3, 3, 53), (4, 4, 54)] {
            tally.count(number, sent * ms, now * ms, 50);
        }
        tally.offered = 8;
        assert_eq!((tally.arrived, tally.out_of_order, tally.late), (5, 1, 0));
        assert_eq!(tally.good, 4);
        tally.count(5, 5 * ms, 56 * ms, 50);
        assert_eq!((tally.late, tally.good, tally.good_share()), (1, 4, 0.5));
        tally.count(6, 2_005 * ms, 2_056 * ms, 50);
        assert_eq!(tally.late_in_second, [1, 0, 1]);
        let bits = 7.0 * PACKET as f64 * 8.0;
        assert!((tally.arrived_bps() - bits / 2.005).abs() < 1.0);
    }

    #[test]
    fn a_request_says_the_flow() {
        let flow = Flow::new(5_000_000, 20, 85);
        assert_eq!(Flow::parse(&flow.request()), Some(flow));
        assert_eq!(Flow::parse(&flow.request()[..20]), None);
        assert_eq!(datagrams(PACKET * 8, 3), 3);
    }
}
