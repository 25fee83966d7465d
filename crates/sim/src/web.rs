//! A file fetched from a web server over modelled links: HTTP over TCP Reno, in virtual time.
//!
//! The client is the shipped `Transfer`. Every connection has slow start, losses in the link's own
//! queue, and what the server sends until it hears that the client went away is wasted. Members
//! of the paper's cluster hand on what their links bring over a local network.

use std::collections::{BTreeMap, VecDeque};

use tabane_base::{Bytes, Duration, Instant, Seed};
use tabane_netem::{Link, LinkConfig};
use tabane_ranges::{
    Answer, BodyUse, Command, EntityTag, Event, LinkId, LinkLimits, Method, Order, Request,
    RequestId, Rule, Settings, Transfer,
};

mod connection;
mod sender;

pub use sender::Tcp;

use connection::{Arrived, Ask, Connection};

/// IP and TCP headers.
const HEADERS: u64 = 40;
/// A GET with its headers.
const REQUEST: u64 = 300;

/// A link of the client, or of a member of its cluster.
#[derive(Clone, Debug)]
pub struct WebLink {
    /// Both directions of the long-distance link.
    pub wide: LinkConfig,
    /// What lies between it and the client; a wire for the client's own.
    pub local: LinkConfig,
    /// What the client is told of it.
    pub facts: LinkLimits,
}

/// What a client does.
#[derive(Clone, Copy, Debug)]
pub struct WebPlan {
    /// How it divides the file.
    pub rule: Rule,
    /// The order in which it wants it; what is in order is consumed at once.
    pub order: Order,
    /// What the server's system does.
    pub tcp: Tcp,
    /// Connections are used again, as HTTP/1.1 has it, or each is for one request.
    pub keeps_connections: bool,
}

impl WebPlan {
    /// What `tabane get` does, from a server of today.
    pub const SHIPPED: Self = Self {
        rule: Rule::Tabane,
        order: Order::Any,
        tcp: Tcp::Recent,
        keeps_connections: true,
    };
}

/// How a fetch went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// From the request to its last byte.
    pub took: Duration,
    /// Requests made.
    pub requests: u64,
    /// Bodies' bytes that came, those that came twice included.
    pub carried: Bytes,
    /// How many of the file's bytes were here when.
    pub arrivals: Vec<(Duration, u64)>,
}

/// Fetches a file of `size`.
///
/// # Panics
/// The transfer does not end: a fault of ours.
#[must_use]
pub fn fetch(links: &[WebLink], plan: WebPlan, size: Bytes, seed: Seed) -> Fetched {
    let mut world = World::new(links, plan, size, seed);
    world.run();
    Fetched {
        took: world.now - Instant::EPOCH,
        ..world.fetched
    }
}

/// No fetch takes so long.
const END: Instant = Instant::from_millis(3_600_000);

#[derive(Debug)]
enum Packet {
    Syn(usize),
    SynAck(usize),
    Request(usize, Box<Request>),
    Data(usize, u64),
    /// Everything below the first number is here, and the second.
    Ack(usize, u64, u64),
    Reset(usize),
}

struct Wires {
    up: Link<Packet>,
    down: Link<Packet>,
    local: Link<Packet>,
}

struct World {
    now: Instant,
    plan: WebPlan,
    size: u64,
    wires: Vec<Wires>,
    connections: Vec<Connection>,
    /// Which connection a request is on.
    carriers: BTreeMap<RequestId, usize>,
    transfer: Transfer,
    fetched: Fetched,
    is_done: bool,
}

impl World {
    fn new(links: &[WebLink], plan: WebPlan, size: Bytes, seed: Seed) -> Self {
        let start = Instant::EPOCH;
        let settings = Settings {
            rule: plan.rule,
            order: plan.order,
            by_digest: false,
            sources: 1,
            patience: Duration::from_secs(120),
        };
        let mut transfer = Transfer::new(start, settings);
        let mut wires = Vec::new();
        for (index, link) in links.iter().enumerate() {
            // Requests and acknowledgements never fill a queue.
            let up = LinkConfig {
                queue: Bytes::MAX,
                ..link.wide.clone()
            };
            wires.push(Wires {
                up: Link::new(up, seed.split(&format!("up {index}")), start),
                down: Link::new(
                    link.wide.clone(),
                    seed.split(&format!("down {index}")),
                    start,
                ),
                local: Link::new(
                    link.local.clone(),
                    seed.split(&format!("local {index}")),
                    start,
                ),
            });
            transfer.handle_link(start, LinkId(index as u32), link.facts.clone());
        }
        Self {
            now: start,
            plan,
            size: size.get(),
            wires,
            connections: Vec::new(),
            carriers: BTreeMap::new(),
            transfer,
            fetched: Fetched {
                took: Duration::ZERO,
                requests: 0,
                carried: Bytes::ZERO,
                arrivals: Vec::new(),
            },
            is_done: false,
        }
    }

    fn run(&mut self) {
        loop {
            self.obey();
            self.send();
            if self.is_done {
                return;
            }
            let next = self.next();
            assert!(next <= END, "the fetch does not end");
            self.now = self.now.max(next);
            self.receive();
        }
    }

    fn next(&self) -> Instant {
        let wires = self.wires.iter().flat_map(|wires| {
            let links = [&wires.up, &wires.down, &wires.local];
            links.into_iter().filter_map(Link::poll_timeout)
        });
        let timers = self
            .connections
            .iter()
            .filter(|connection| !connection.is_reset);
        let timers = timers.filter_map(|connection| {
            let asks = Some(connection.asks_at).filter(|_| connection.is_asking());
            asks.into_iter()
                .chain(connection.sender.poll_timeout())
                .min()
        });
        let next = wires.chain(timers).min().unwrap_or(Instant::NEVER);
        next.min(self.transfer.poll_timeout())
    }

    /// What the transfer wants.
    fn obey(&mut self) {
        loop {
            while let Some(event) = self.transfer.poll_event() {
                match event {
                    Event::Begun(_) => {}
                    Event::Complete => self.is_done = true,
                    Event::Restarted | Event::Failed(_) => panic!("{event:?} on honest links"),
                }
            }
            match self.transfer.poll_command(self.now) {
                Some(Command::Start(request)) => self.start(request),
                Some(Command::Cancel(id)) => {
                    if let Some(index) = self.carriers.remove(&id) {
                        self.connections[index].is_closed = true;
                        let up = &mut self.wires[self.connections[index].link].up;
                        let reset = Packet::Reset(index);
                        _ = up.handle_packet(self.now, reset, Bytes::new(HEADERS));
                    }
                }
                None => match self.transfer.poll_event() {
                    Some(Event::Complete) => self.is_done = true,
                    Some(Event::Begun(_)) => {}
                    Some(event) => panic!("{event:?} on honest links"),
                    None => return,
                },
            }
        }
    }

    fn start(&mut self, request: Request) {
        self.fetched.requests += 1;
        let link = request.link.0 as usize;
        let is_idle = |(index, connection): &(usize, &Connection)| {
            let is_free = !self.carriers.values().any(|busy| busy == index);
            connection.link == link && connection.is_open && !connection.is_closed && is_free
        };
        let idle = self.connections.iter().enumerate().find(is_idle);
        let idle = idle.filter(|_| self.plan.keeps_connections);
        let index = match idle {
            Some((index, _)) => index,
            None => {
                let connection = Connection::new(link, self.plan.tcp);
                self.connections.push(connection);
                self.connections.len() - 1
            }
        };
        self.carriers.insert(request.id, index);
        self.connections[index].ask(self.now, request);
    }

    /// What ends and servers have to send.
    fn send(&mut self) {
        for (index, connection) in self.connections.iter_mut().enumerate() {
            if connection.is_reset {
                continue;
            }
            let wires = &mut self.wires[connection.link];
            // The queue of the way up has no end.
            match connection.poll_ask(self.now) {
                Some(Ask::Open) => {
                    let size = Bytes::new(HEADERS);
                    _ = wires.up.handle_packet(self.now, Packet::Syn(index), size);
                }
                Some(Ask::Request(request)) => {
                    let packet = Packet::Request(index, request);
                    let size = Bytes::new(HEADERS + REQUEST);
                    _ = wires.up.handle_packet(self.now, packet, size);
                }
                None => {}
            }
            connection.sender.handle_timeout(self.now);
            while let Some(number) = connection.sender.poll_transmit(self.now) {
                let size = Bytes::new(HEADERS + connection.payload(number));
                // What finds no room is lost; the sender will notice.
                _ = wires
                    .down
                    .handle_packet(self.now, Packet::Data(index, number), size);
            }
        }
    }

    fn receive(&mut self) {
        for link in 0..self.wires.len() {
            while let Some(packet) = self.wires[link].up.poll_output(self.now) {
                self.at_server(link, packet);
            }
            while let Some(packet) = self.wires[link].down.poll_output(self.now) {
                let size = match &packet {
                    Packet::Data(index, number) => self.connections[*index].payload(*number),
                    _ => 0,
                };
                let size = Bytes::new(HEADERS + size);
                _ = self.wires[link].local.handle_packet(self.now, packet, size);
            }
            while let Some(packet) = self.wires[link].local.poll_output(self.now) {
                self.at_client(link, packet);
            }
        }
    }

    fn at_server(&mut self, link: usize, packet: Packet) {
        match packet {
            Packet::Syn(index) => {
                let down = &mut self.wires[link].down;
                _ = down.handle_packet(self.now, Packet::SynAck(index), Bytes::new(HEADERS));
            }
            Packet::Ack(index, ack, number) => {
                let sender = &mut self.connections[index].sender;
                sender.handle_ack(self.now, ack, number);
            }
            Packet::Request(index, request) => {
                let (answer, body) = self.answer(&request);
                self.connections[index].respond(request.id, answer, body);
            }
            Packet::Reset(index) => self.connections[index].is_reset = true,
            Packet::SynAck(_) | Packet::Data(..) => {}
        }
    }

    fn answer(&self, request: &Request) -> (Answer, u64) {
        let tag = EntityTag::strong("\"1\"");
        let Some(range) = request.range.filter(|_| request.method == Method::Get) else {
            let length = Some(self.size);
            return (Answer::Whole { length, tag }, 0);
        };
        let end = range.end.min(self.size);
        let part = Answer::Part {
            first: range.start,
            last: end - 1,
            total: self.size,
            tag,
        };
        (part, end - range.start)
    }

    fn at_client(&mut self, link: usize, packet: Packet) {
        match packet {
            Packet::SynAck(index) => {
                if !self.connections[index].is_closed {
                    self.connections[index].on_open(self.now);
                }
            }
            Packet::Data(index, number) => {
                if self.connections[index].is_closed {
                    return;
                }
                let mut arrived = VecDeque::new();
                let ack = self.connections[index].handle_packet(number, &mut arrived);
                let up = &mut self.wires[link].up;
                let ack = Packet::Ack(index, ack, number);
                _ = up.handle_packet(self.now, ack, Bytes::new(HEADERS));
                for news in arrived {
                    self.tell(news);
                }
            }
            Packet::Syn(_) | Packet::Ack(..) | Packet::Request(..) | Packet::Reset(_) => {}
        }
    }

    fn tell(&mut self, news: Arrived) {
        match news {
            Arrived::Answer(id, answer) => {
                let verdict = self.transfer.handle_answer(self.now, id, answer);
                if verdict == BodyUse::Drop {
                    self.carriers.remove(&id);
                }
            }
            Arrived::Data(id, amount) => {
                self.fetched.carried += Bytes::new(amount);
                // Bytes have no content here: that they come once is tested where they have.
                let pieces = self.transfer.handle_data(self.now, id, amount as usize);
                if !pieces.is_empty() {
                    self.on_fresh();
                }
            }
            Arrived::End(id) => {
                self.carriers.remove(&id);
                self.transfer.handle_end(self.now, id);
            }
        }
    }

    fn on_fresh(&mut self) {
        let received = self.transfer.received();
        let moment = (self.now - Instant::EPOCH, received.total().get());
        self.fetched.arrivals.push(moment);
        if self.plan.order != Order::Any {
            let consumed = received.first_missing(0);
            self.transfer.handle_consumed(self.now, consumed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tabane_base::Rate;
    use tabane_netem::RateModel;

    fn link(mbps: u64, delay_ms: u64) -> WebLink {
        WebLink {
            wide: LinkConfig {
                rate: RateModel::Constant(Rate::from_mbps(mbps)),
                delay: Duration::from_millis(delay_ms),
                queue: Bytes::kilo(60),
                ..LinkConfig::wire()
            },
            local: LinkConfig::wire(),
            facts: LinkLimits::default(),
        }
    }

    fn seconds(links: &[WebLink], rule: Rule, kilo: u64) -> f64 {
        let plan = WebPlan {
            rule,
            ..WebPlan::SHIPPED
        };
        let fetched = fetch(links, plan, Bytes::kilo(kilo), Seed(1));
        fetched.took.as_secs_f64()
    }

    #[test]
    fn one_link_is_as_fast_as_it_is() {
        // 1,500 of 1,460 bytes, four round trips of slow start and one for the handshake.
        let took = seconds(&[link(8, 10)], Rule::Tabane, 2_000);
        assert!((2.06..2.4).contains(&took), "{took}");
    }

    #[test]
    fn two_links_are_nearly_their_sum_and_never_slower() {
        let both = [link(8, 10), link(3, 20)];
        for kilo in [1, 5, 20, 50, 200, 1_000, 8_000] {
            let alone = seconds(&both[..1], Rule::Tabane, kilo);
            let together = seconds(&both, Rule::Tabane, kilo);
            assert!(
                together <= alone * 1.03,
                "{kilo} kB: {together} against {alone}"
            );
        }
        let together = seconds(&both, Rule::Tabane, 8_000);
        let sum = 8_000.0 * 8.0 / 11_000.0 * 1_500.0 / 1_460.0;
        assert!(together < sum * 1.08, "{together} against {sum}");
    }
}
