//! Which connection of a program is which of our listener's: a NAT table (RFC 5382).
//!
//! A program's segment to a server comes out of the TUN device and goes in again as one to our
//! listener, from an address that stands for the flow; what the listener says comes back as from
//! the server. Both ends are the kernel's own TCP, so nothing is lost or put out of order between,
//! and the table needs to know no more than when a connection has ended.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tabane_base::Duration;
use tokio::time::Instant;

use super::packet::{ACK, FIN, Header, RST, SYN};

/// Connections at once; beyond that requests are dropped, as by a full backlog.
const MAX_FLOWS: usize = 65_536;
/// How long both ends may still repeat their farewell (TIME-WAIT of Linux).
const FAREWELL: Duration = Duration::from_secs(60);
/// So many flows later an index may stand for another one.
const INDICES: u32 = 1 << 20;
/// Ports used of each address that stands for flows.
const PORTS: u32 = 1 << 14;
const FIRST_PORT: u16 = 1_024;
/// Addresses that stand for flows: of the ranges for benchmarks, which nobody has (RFC 2544,
/// RFC 5180).
const FLOW_NET: u32 = Ipv4Addr::new(198, 18, 0, 0).to_bits();
const FLOW_NET6: [u16; 4] = [0x2001, 2, 0, 0];

/// A program's end and where it wants to go.
pub(super) type Key = (SocketAddr, SocketAddr);

/// The table.
#[derive(Debug)]
pub(super) struct Translation {
    listeners: Vec<SocketAddr>,
    indices: HashMap<Key, u32>,
    flows: HashMap<u32, Flow>,
    next: u32,
    /// With the time at which they ended.
    ended: VecDeque<(u32, Instant)>,
}

#[derive(Debug)]
struct Flow {
    key: Key,
    /// Where the program's bytes begin.
    sequence: u32,
    program_has_ended: bool,
    we_have_ended: bool,
    /// It stands among those that have ended.
    is_noted: bool,
}

/// What becomes of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It goes on with these addresses.
    Forward { from: SocketAddr, to: SocketAddr },
    /// It asks for a connection.
    Request,
    /// It belongs to none.
    Drop,
}

impl Translation {
    /// For the listeners of each family there is.
    pub(super) fn new(listeners: Vec<SocketAddr>) -> Self {
        Self {
            listeners,
            indices: HashMap::new(),
            flows: HashMap::new(),
            next: 0,
            ended: VecDeque::new(),
        }
    }

    /// Looks at a segment that came out of the device.
    pub(super) fn see(&mut self, header: &Header, packet: &[u8], now: Instant) -> Verdict {
        let flags = header.flags(packet);
        if self.listeners.contains(&header.from) {
            let Some(index) = index_of(header.to) else {
                return Verdict::Drop;
            };
            let Some(flow) = self.flows.get_mut(&index) else {
                return Verdict::Drop;
            };
            let (to, from) = flow.key;
            flow.we_have_ended |= flags & (FIN | RST) != 0;
            self.note_end(index, flags, now);
            return Verdict::Forward { from, to };
        }
        let key = (header.from, header.to);
        let known = self.indices.get(&key).copied();
        let is_request = flags & (SYN | ACK) == SYN;
        let flow = known.and_then(|index| Some((index, self.flows.get_mut(&index)?)));
        let Some((index, flow)) = flow else {
            return if is_request {
                Verdict::Request
            } else {
                Verdict::Drop
            };
        };
        // The program's port is used again.
        if is_request && flow.sequence != header.sequence(packet) {
            return Verdict::Request;
        }
        flow.program_has_ended |= flags & (FIN | RST) != 0;
        self.note_end(index, flags, now);
        self.towards_us(index, header.from)
    }

    /// A new connection that begins at `sequence`: where its segments go from here on. `None` where
    /// there are too many.
    pub(super) fn begin(&mut self, key: Key, sequence: u32, now: Instant) -> Option<Key> {
        self.prune(now);
        let again = self.indices.get(&key).copied();
        let again = again.filter(|index| {
            let flow = self.flows.get(index);
            flow.is_some_and(|flow| flow.sequence == sequence)
        });
        let index = match again {
            Some(index) => index,
            None => {
                let index = self.free_index()?;
                self.indices.insert(key, index);
                let flow = Flow {
                    key,
                    sequence,
                    program_has_ended: false,
                    we_have_ended: false,
                    is_noted: false,
                };
                self.flows.insert(index, flow);
                index
            }
        };
        match self.towards_us(index, key.0) {
            Verdict::Forward { from, to } => Some((from, to)),
            Verdict::Request | Verdict::Drop => None,
        }
    }

    /// Whose connection our listener has accepted from `peer`.
    pub(super) fn key_of(&self, peer: SocketAddr) -> Option<Key> {
        Some(self.flows.get(&index_of(peer)?)?.key)
    }

    fn towards_us(&self, index: u32, program: SocketAddr) -> Verdict {
        let is_v4 = program.is_ipv4();
        match self.listeners.iter().find(|own| own.is_ipv4() == is_v4) {
            Some(&to) => Verdict::Forward {
                from: address_of(index, is_v4),
                to,
            },
            None => Verdict::Drop,
        }
    }

    fn free_index(&mut self) -> Option<u32> {
        if self.flows.len() >= MAX_FLOWS {
            return None;
        }
        // Ends: there are many more indices than flows.
        while self.flows.contains_key(&self.next) {
            self.next = (self.next + 1) % INDICES;
        }
        let index = self.next;
        self.next = (self.next + 1) % INDICES;
        Some(index)
    }

    fn note_end(&mut self, index: u32, flags: u8, now: Instant) {
        if flags & (FIN | RST) == 0 {
            return;
        }
        if let Some(flow) = self.flows.get_mut(&index) {
            if flags & RST != 0 {
                flow.program_has_ended = true;
                flow.we_have_ended = true;
            }
            let is_over = flow.program_has_ended && flow.we_have_ended;
            // Whoever repeats its farewell says nothing new.
            if is_over && !std::mem::replace(&mut flow.is_noted, true) {
                self.ended.push_back((index, now));
            }
        }
    }

    /// Forgets what has ended long ago.
    fn prune(&mut self, now: Instant) {
        while let Some(&(index, ended_at)) = self.ended.front()
            && ended_at + FAREWELL <= now
        {
            self.ended.pop_front();
            if let Some(flow) = self.flows.remove(&index)
                && self.indices.get(&flow.key) == Some(&index)
            {
                self.indices.remove(&flow.key);
            }
        }
    }
}

/// The address that stands for a flow.
fn address_of(index: u32, is_v4: bool) -> SocketAddr {
    let (high, low) = (index / PORTS, index % PORTS);
    let ip = match is_v4 {
        true => IpAddr::V4(Ipv4Addr::from_bits(FLOW_NET + high)),
        false => {
            let [a, b, c, d] = FLOW_NET6;
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, high as u16))
        }
    };
    SocketAddr::new(ip, FIRST_PORT + low as u16)
}

fn index_of(address: SocketAddr) -> Option<u32> {
    let high = match address.ip() {
        IpAddr::V4(v4) => v4.to_bits().checked_sub(FLOW_NET)?,
        IpAddr::V6(v6) => match v6.segments() {
            [a, b, c, d, 0, 0, 0, high] if [a, b, c, d] == FLOW_NET6 => high.into(),
            _ => return None,
        },
    };
    let low = u32::from(address.port().checked_sub(FIRST_PORT)?);
    (high < INDICES / PORTS && low < PORTS).then(|| high * PORTS + low)
}

/// Whether a connection from `peer` is one of a program of this machine.
pub(crate) fn stands_for_a_program(peer: SocketAddr) -> bool {
    index_of(peer).is_some()
}

#[cfg(test)]
mod tests {
    use super::super::packet::{TCP, parse};
    use super::*;
    use crate::syn_hold::packet::packet;

    fn segment(from: SocketAddr, to: SocketAddr, flags: u8, sequence: u32) -> Vec<u8> {
        let mut tcp = vec![0; 20];
        tcp[..2].copy_from_slice(&from.port().to_be_bytes());
        tcp[2..4].copy_from_slice(&to.port().to_be_bytes());
        tcp[4..8].copy_from_slice(&sequence.to_be_bytes());
        tcp[12] = 5 << 4;
        tcp[13] = flags;
        packet(from.ip(), to.ip(), TCP, &tcp)
    }

    struct Bench {
        table: Translation,
        now: Instant,
    }

    impl Bench {
        fn new() -> Self {
            let listeners = ["10.0.0.1:999", "[fd00::1]:998"];
            Self {
                table: Translation::new(listeners.map(|text| text.parse().unwrap()).into()),
                now: Instant::now(),
            }
        }

        fn see(&mut self, (from, to): Key, flags: u8, sequence: u32) -> Verdict {
            let packet = segment(from, to, flags, sequence);
            let header = parse(&packet).unwrap();
            self.table.see(&header, &packet, self.now)
        }
    }

    fn key(from: &str, to: &str) -> Key {
        (from.parse().unwrap(), to.parse().unwrap())
    }

    #[test]
    fn a_connection_comes_to_the_listener_and_its_answers_come_from_the_server() {
        let mut bench = Bench::new();
        for key in [
            key("10.0.0.1:4000", "203.0.113.2:80"),
            key("10.0.0.1:4000", "203.0.113.2:81"),
            key("[fd00::1]:4000", "[2001:db8::2]:80"),
        ] {
            assert_eq!(bench.see(key, SYN, 7), Verdict::Request);
            assert_eq!(bench.see(key, ACK, 8), Verdict::Drop);
            let (from, to) = bench.table.begin(key, 7, bench.now).unwrap();
            assert_eq!(to.is_ipv4(), key.0.is_ipv4());
            assert_eq!(bench.table.key_of(from), Some(key));
            // Repeated while the listener has not answered.
            assert_eq!(bench.table.begin(key, 7, bench.now), Some((from, to)));
            assert_eq!(bench.see(key, SYN, 7), Verdict::Forward { from, to });
            assert_eq!(bench.see(key, ACK, 8), Verdict::Forward { from, to });
            let back = Verdict::Forward {
                from: key.1,
                to: key.0,
            };
            assert_eq!(bench.see((to, from), SYN | ACK, 1), back);
            assert_eq!(bench.see((to, key.1), ACK, 1), Verdict::Drop);
        }
    }

    #[test]
    fn what_has_ended_is_remembered_until_nobody_repeats_it_and_its_port_may_be_used_again() {
        let mut bench = Bench::new();
        let key = key("10.0.0.1:4000", "203.0.113.2:80");
        let (from, to) = bench.table.begin(key, 7, bench.now).unwrap();
        let forth = Verdict::Forward { from, to };
        assert_eq!(bench.see(key, FIN | ACK, 8), forth);
        assert!(bench.table.ended.is_empty());
        bench.see((to, from), FIN | ACK, 1);
        assert_eq!(bench.see(key, ACK, 9), forth);
        assert_eq!(bench.see(key, SYN, 70), Verdict::Request);
        let (other, _) = bench.table.begin(key, 70, bench.now).unwrap();
        assert_ne!(other, from);
        bench.now += FAREWELL;
        bench.table.prune(bench.now);
        assert_eq!(bench.table.flows.len(), 1);
        assert_eq!(
            bench.see(key, ACK, 71),
            Verdict::Forward { from: other, to }
        );
        // A reset ends both directions; who repeats it says nothing new.
        for _ in 0..1_000 {
            bench.see((to, other), RST, 1);
            bench.see(key, RST | ACK, 71);
        }
        assert_eq!(bench.table.ended.len(), 1);
        bench.now += FAREWELL;
        bench.table.prune(bench.now);
        assert!(bench.table.flows.is_empty() && bench.table.indices.is_empty());
        assert_eq!(bench.see(key, ACK, 72), Verdict::Drop);
    }

    #[test]
    fn there_is_a_limit_and_no_index_stands_for_two() {
        let mut bench = Bench::new();
        let to: SocketAddr = "203.0.113.2:80".parse().unwrap();
        for i in 0..MAX_FLOWS {
            let from = SocketAddr::new([10, 0, 1, (i >> 15) as u8].into(), (i & 0x7fff) as u16);
            assert!(bench.table.begin((from, to), 1, bench.now).is_some());
        }
        let one_more = key("10.0.9.9:1", "203.0.113.2:80");
        assert_eq!(bench.table.begin(one_more, 1, bench.now), None);
        for is_v4 in [true, false] {
            for index in [0, 1, PORTS - 1, PORTS, INDICES - 1] {
                assert_eq!(index_of(address_of(index, is_v4)), Some(index));
            }
        }
        for other in [
            "198.17.255.255:2000",
            "198.18.64.0:2000",
            "198.18.0.1:80",
            "203.0.113.2:7001",
            "[2001:2::1:1]:2000",
        ] {
            assert_eq!(index_of(other.parse().unwrap()), None, "{other}");
        }
    }
}
