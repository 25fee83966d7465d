//! The links between client and server, and the addresses at their ends.
//!
//! Each link has an interface of its own at the client (one socket, one address, which a NAT may
//! change at any time) and leads to the server's single address. Owns packets under way; knows
//! nothing of what they carry.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use tabane_base::{Bytes, Duration, Instant, Rng, Seed};
use tabane_core::{FourTuple, SocketId};
use tabane_netem::{Direction, Link, LinkSpec};

use crate::exchanged::Exchanged;
use crate::side::Side;
use crate::tamper::Tamper;

/// Bytes of IPv4 and UDP header around every datagram; links count them.
pub const PACKET_OVERHEAD: u64 = 28;
/// The server's only address.
pub const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 4433);
/// The server's only socket.
const SERVER_SOCKET: SocketId = SocketId(0);
/// Datagrams remembered by [`Network::capture`].
const CAPTURE_MAX: usize = 4_096;

/// A link, by its place in the scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub usize);

/// A datagram as it arrived at one end.
#[derive(Clone, Debug)]
pub struct Captured {
    /// When it arrived.
    pub at: Instant,
    /// Who received it.
    pub to: Side,
    /// As the receiver's driver named its way.
    pub tuple: FourTuple,
    /// Its bytes.
    pub data: Vec<u8>,
}

#[derive(Debug)]
struct Packet {
    data: Vec<u8>,
    /// The client's address when it was sent.
    client: SocketAddr,
    sent_at: Instant,
    /// Somebody else's, and which of theirs it is.
    foreign: Option<u64>,
}

/// A packet of others that share a link, at its far end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Foreign {
    pub(crate) link: LinkId,
    pub(crate) direction: Direction,
    pub(crate) number: u64,
}

#[derive(Debug)]
struct SimLink {
    up: Link<Packet>,
    down: Link<Packet>,
    /// What the server sees of the client on this link; a NAT may change it.
    client: SocketAddr,
    rebinds: u16,
    /// The client's interface exists.
    present: bool,
    tamper: Tamper,
    /// What waited in the queues of both directions, each time somebody looked.
    queued: [Vec<Bytes>; 2],
    /// How long whatever was next had waited, upwards and downwards, at the same moments.
    waits: [Vec<Duration>; 2],
}

/// A datagram that reaches an end now.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) to: Side,
    pub(crate) tuple: FourTuple,
    pub(crate) data: Vec<u8>,
}

/// All links.
#[derive(Debug)]
pub struct Network {
    links: Vec<SimLink>,
    /// Held back by tampering, by when they arrive.
    held: BTreeMap<(Instant, u64), (LinkId, Side, Packet)>,
    held_count: u64,
    rng: Rng,
    exchanged: BTreeMap<SocketAddr, Exchanged>,
    capture: Option<Vec<Captured>>,
    /// A link that somebody listens to, and what went into it.
    tap: Option<(LinkId, Vec<Captured>)>,
    unroutable: u64,
    foreign: VecDeque<Foreign>,
}

impl Network {
    pub(crate) fn new(specs: &[LinkSpec], seed: Seed, start: Instant) -> Self {
        let link = |(index, spec): (usize, &LinkSpec)| {
            let seed = seed.split(&format!("link {index}"));
            SimLink {
                up: Link::new(spec.config(Direction::Up).clone(), seed.split("up"), start),
                down: Link::new(
                    spec.config(Direction::Down).clone(),
                    seed.split("down"),
                    start,
                ),
                client: client_address(index, 0),
                rebinds: 0,
                present: true,
                tamper: Tamper::default(),
                queued: [Vec::new(), Vec::new()],
                waits: [Vec::new(), Vec::new()],
            }
        };
        Self {
            links: specs.iter().enumerate().map(link).collect(),
            held: BTreeMap::new(),
            held_count: 0,
            rng: seed.rng("tamper"),
            exchanged: BTreeMap::new(),
            capture: None,
            tap: None,
            unroutable: 0,
            foreign: VecDeque::new(),
        }
    }

    /// How many links there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.links.len()
    }

    /// Whether there is no link at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    /// The client's way to the server over `link`.
    #[must_use]
    pub fn client_tuple(&self, link: LinkId) -> FourTuple {
        FourTuple {
            socket: SocketId(link.0 as u32),
            local_ip: None,
            remote: SERVER,
        }
    }

    /// The server's way to the client over `link`, as it is at present.
    #[must_use]
    pub fn server_tuple(&self, link: LinkId) -> FourTuple {
        server_tuple(self.links[link.0].client)
    }

    /// A direction of a link, for its counters and for changing it.
    pub fn link_mut(&mut self, link: LinkId, direction: Direction) -> &mut Link<impl Sized> {
        let link = &mut self.links[link.0];
        match direction {
            Direction::Up => &mut link.up,
            Direction::Down => &mut link.down,
        }
    }

    /// What a direction of a link has done.
    #[must_use]
    pub fn counters(&self, link: LinkId, direction: Direction) -> tabane_netem::Counters {
        match direction {
            Direction::Up => self.links[link.0].up.snapshot(),
            Direction::Down => self.links[link.0].down.snapshot(),
        }
    }

    pub(crate) fn sample_queues(&mut self, now: Instant) {
        for link in &mut self.links {
            link.queued[0].push(link.up.snapshot().queued);
            link.queued[1].push(link.down.snapshot().queued);
            link.waits[0].push(link.up.wait(now));
            link.waits[1].push(link.down.wait(now));
        }
    }

    /// How long packets waited in a link's queue at its configured mean rate, as the given
    /// quantile (0.95: all but one in twenty) of evenly spaced looks.
    #[must_use]
    pub fn queueing_delay(&self, link: LinkId, direction: Direction, quantile: f64) -> Duration {
        let link = &self.links[link.0];
        let (way, queued) = match direction {
            Direction::Up => (&link.up, &link.queued[0]),
            Direction::Down => (&link.down, &link.queued[1]),
        };
        let mut sorted = queued.clone();
        sorted.sort_unstable();
        let index = (sorted.len() as f64 * quantile) as usize;
        let queued = sorted.get(index.min(sorted.len().saturating_sub(1)));
        way.config()
            .mean_rate()
            .time_for(queued.copied().unwrap_or_default())
    }

    /// How long packets wait on a link before they have left it, at a quantile over time;
    /// jitter and delay are not part of it.
    #[must_use]
    pub fn wait(&self, link: LinkId, direction: Direction, quantile: f64) -> Duration {
        let waits = &self.links[link.0].waits;
        let mut sorted = match direction {
            Direction::Up => waits[0].clone(),
            Direction::Down => waits[1].clone(),
        };
        sorted.sort_unstable();
        let index = (sorted.len() as f64 * quantile) as usize;
        let wait = sorted.get(index.min(sorted.len().saturating_sub(1)));
        wait.copied().unwrap_or_default()
    }

    /// Mistreats what comes out of a link from now on.
    pub fn set_tamper(&mut self, link: LinkId, tamper: Tamper) {
        self.links[link.0].tamper = tamper;
    }

    /// Packets of a link vanish in both directions, or pass again.
    pub fn set_outage(&mut self, now: Instant, link: LinkId, cut: bool) {
        self.links[link.0].up.set_outage(now, cut);
        self.links[link.0].down.set_outage(now, cut);
    }

    /// Whether packets on a link vanish at present.
    #[must_use]
    pub fn is_out(&self, link: LinkId) -> bool {
        let link = &self.links[link.0];
        !link.present || link.up.is_out() || link.down.is_out()
    }

    /// A NAT gives the client another port on this link, or another address too. What the server
    /// sends to the old one leads nowhere.
    pub fn rebind(&mut self, link: LinkId, other_address: bool) {
        let sim = &mut self.links[link.0];
        sim.rebinds += 1;
        let mut client = client_address(link.0, sim.rebinds);
        if other_address {
            let [a, b, _, d] = [10, link.0 as u8, 0, 2];
            client.set_ip(Ipv4Addr::new(a, b, sim.rebinds as u8, d).into());
        }
        sim.client = client;
    }

    /// The client's interface of a link goes away or comes back. Its driver is not told here.
    pub fn set_present(&mut self, link: LinkId, present: bool) {
        self.links[link.0].present = present;
    }

    /// Whether the client has the interface of a link.
    #[must_use]
    pub fn is_present(&self, link: LinkId) -> bool {
        self.links[link.0].present
    }

    /// Begins to remember what arrives.
    pub fn capture(&mut self) {
        self.capture = Some(Vec::new());
    }

    /// What arrived since [`capture`](Self::capture), oldest first, up to a limit.
    pub fn take_captured(&mut self) -> Vec<Captured> {
        self.capture.take().unwrap_or_default()
    }

    /// Somebody listens to what both ends send into `link`, before it arrives anywhere.
    pub fn tap(&mut self, link: LinkId) {
        self.tap = Some((link, Vec::new()));
    }

    /// What was heard there since it was taken last, up to a limit.
    pub fn take_tapped(&mut self) -> Vec<Captured> {
        let tap = self.tap.as_mut();
        tap.map_or_else(Vec::new, |(_, heard)| std::mem::take(heard))
    }

    /// What went between the server and each client address.
    #[must_use]
    pub const fn exchanged(&self) -> &BTreeMap<SocketAddr, Exchanged> {
        &self.exchanged
    }

    /// Somebody else has said so much to the server, and says that he is there.
    pub(crate) fn on_injected(&mut self, from: SocketAddr, len: usize) {
        let exchanged = self.exchanged.entry(from).or_default();
        exchanged.to_server += Bytes::from(len);
    }

    /// Datagrams that went to an address which leads nowhere (any more).
    #[must_use]
    pub const fn unroutable(&self) -> u64 {
        self.unroutable
    }

    /// Takes a datagram that an end sends.
    pub(crate) fn send(&mut self, now: Instant, from: Side, tuple: FourTuple, data: &[u8]) {
        let size = Bytes::new(data.len() as u64 + PACKET_OVERHEAD);
        let index = match from {
            Side::Client => Some(tuple.socket.0 as usize).filter(|i| self.links[*i].present),
            Side::Server => {
                let exchanged = self.exchanged.entry(tuple.remote).or_default();
                exchanged.on_sent(Bytes::from(data.len()));
                self.links
                    .iter()
                    .position(|link| link.client == tuple.remote)
            }
        };
        let Some(index) = index else {
            self.unroutable += 1;
            return;
        };
        self.overhear(now, from, LinkId(index), data);
        let link = &mut self.links[index];
        let packet = Packet {
            data: data.to_vec(),
            client: link.client,
            sent_at: now,
            foreign: None,
        };
        let way = match from {
            Side::Client => &mut link.up,
            Side::Server => &mut link.down,
        };
        // The link counts what its queue has no room for.
        let _ = way.handle_packet(now, packet, size);
    }

    fn overhear(&mut self, now: Instant, from: Side, link: LinkId, data: &[u8]) {
        let (to, tuple) = match from {
            Side::Client => (Side::Server, self.server_tuple(link)),
            Side::Server => (Side::Client, self.client_tuple(link)),
        };
        let tap = self.tap.as_mut().filter(|(tapped, _)| *tapped == link);
        if let Some((_, heard)) = tap.filter(|(_, heard)| heard.len() < CAPTURE_MAX) {
            heard.push(Captured {
                at: now,
                to,
                tuple,
                data: data.to_vec(),
            });
        }
    }

    /// Takes a packet of others that share a link.
    pub(crate) fn send_foreign(&mut self, now: Instant, packet: Foreign, size: Bytes) {
        let link = &mut self.links[packet.link.0];
        let way = match packet.direction {
            Direction::Up => &mut link.up,
            Direction::Down => &mut link.down,
        };
        let packet = Packet {
            data: Vec::new(),
            client: link.client,
            sent_at: now,
            foreign: Some(packet.number),
        };
        // The link counts what its queue has no room for.
        let _ = way.handle_packet(now, packet, size);
    }

    /// The next packet of others that has come out of a link.
    pub(crate) fn poll_foreign(&mut self) -> Option<Foreign> {
        self.foreign.pop_front()
    }

    /// When something may arrive.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let ways = self.links.iter().flat_map(|link| [&link.up, &link.down]);
        let links = ways.filter_map(Link::poll_timeout).min();
        let held = self.held.first_key_value().map(|((at, _), _)| *at);
        links.into_iter().chain(held).min()
    }

    /// The next datagram that has reached an end by `now`, of those [collected](Self::collect).
    pub(crate) fn poll_delivery(&mut self, now: Instant) -> Option<Delivery> {
        let entry = self
            .held
            .first_entry()
            .filter(|entry| entry.key().0 <= now)?;
        let (link, to, packet) = entry.remove();
        let sim = &self.links[link.0];
        let tuple = match to {
            // It reaches an interface that is gone, or a mapping the NAT has forgotten.
            Side::Client if !sim.present || packet.client != sim.client => {
                self.unroutable += 1;
                return self.poll_delivery(now);
            }
            Side::Client => {
                let exchanged = self.exchanged.entry(packet.client).or_default();
                exchanged.on_heard(now);
                self.client_tuple(link)
            }
            Side::Server => {
                let exchanged = self.exchanged.entry(packet.client).or_default();
                exchanged.on_received(packet.sent_at, Bytes::from(packet.data.len()));
                server_tuple(packet.client)
            }
        };
        if let Some(captured) = self
            .capture
            .as_mut()
            .filter(|list| list.len() < CAPTURE_MAX)
        {
            captured.push(Captured {
                at: now,
                to,
                tuple,
                data: packet.data.clone(),
            });
        }
        Some(Delivery {
            to,
            tuple,
            data: packet.data,
        })
    }

    /// Moves what has come out of links to where it waits for its own time.
    pub(crate) fn collect(&mut self, now: Instant) {
        for index in 0..self.links.len() {
            let link = LinkId(index);
            while let Some(packet) = self.links[index].up.poll_output(now) {
                self.arrive(now, link, Side::Server, packet);
            }
            while let Some(packet) = self.links[index].down.poll_output(now) {
                self.arrive(now, link, Side::Client, packet);
            }
        }
    }

    fn arrive(&mut self, now: Instant, link: LinkId, to: Side, mut packet: Packet) {
        if let Some(number) = packet.foreign {
            let direction = match to {
                Side::Client => Direction::Down,
                Side::Server => Direction::Up,
            };
            self.foreign.push_back(Foreign {
                link,
                direction,
                number,
            });
            return;
        }
        let tamper = self.links[link.0].tamper;
        let fate = tamper.draw(&mut self.rng, packet.data.len());
        if let Some(later) = fate.copy {
            let copy = Packet {
                data: packet.data.clone(),
                client: packet.client,
                sent_at: packet.sent_at,
                foreign: None,
            };
            self.hold(now + later, (link, to, copy));
        }
        for bit in &fate.flips {
            packet.data[(bit / 8) as usize] ^= 1 << (bit % 8);
        }
        if !fate.dropped {
            self.hold(now + fate.held, (link, to, packet));
        }
    }

    fn hold(&mut self, at: Instant, packet: (LinkId, Side, Packet)) {
        self.held_count += 1;
        self.held.insert((at, self.held_count), packet);
    }
}

fn server_tuple(client: SocketAddr) -> FourTuple {
    FourTuple {
        socket: SERVER_SOCKET,
        local_ip: Some(SERVER.ip()),
        remote: client,
    }
}

fn client_address(link: usize, rebinds: u16) -> SocketAddr {
    let ip = Ipv4Addr::new(10, link as u8, 0, 2);
    SocketAddr::new(ip.into(), 40_000 + rebinds)
}
