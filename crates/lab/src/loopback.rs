//! The link model without privilege: a relay on loopback per link.
//!
//! ```text
//!  client socket ─→ 127.0.0.1:port i ═ netem up ═→ socket per client ─→ server
//!                ←─                  ←═ netem down ═                 ←─
//! ```
//!
//! Carries UDP datagrams of any client to one server; each counts with its IP and UDP headers, so
//! that rates mean what they mean in the lab. Addresses are not kept: the server sees the relay.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::num::NonZeroU64;
use std::thread::{self, JoinHandle};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tabane_base::{Bytes, Duration, Instant, Seed};
use tabane_linux::HostClock;
use tabane_netem::{Direction, Scenario};

use crate::control::{Control, Orders, Snapshot, control};
use crate::error::LabError;
use crate::pairs::{Next, Pairs, granularity};

/// Bytes of IPv4 and UDP header that a link would carry.
const HEADERS: u64 = 28;

/// Clients per link; a client that changes its port counts anew, and the oldest is forgotten.
const CLIENTS_MAX: usize = 16;

/// Datagrams read per socket and wake-up, so that one socket cannot starve the others.
const READS_MAX: usize = 256;

/// Longer than any UDP datagram.
const DATAGRAM_MAX: usize = 65_536;

/// Kernel memory per socket, in bytes; the system's own limit may make it less.
const SOCKET_BUFFER: usize = 4 * 1024 * 1024;

/// Relays for all links of a scenario. They end when this value is dropped.
#[derive(Debug)]
pub struct Loopback {
    control: Control,
    links: Vec<LoopbackLink>,
    thread: Option<JoinHandle<()>>,
}

/// One relay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoopbackLink {
    /// What the scenario calls the link.
    pub name: String,
    /// Where clients reach the server over this link.
    pub address: SocketAddr,
}

impl Loopback {
    /// Starts one relay to `server` per link of `scenario`.
    ///
    /// # Errors
    /// Sockets or a thread are refused.
    pub fn up(scenario: &Scenario, server: SocketAddr, seed: Seed) -> Result<Self, LabError> {
        let fail = |operation| move |source| LabError::System { operation, source };
        let (control, orders) = control()?;
        let mut links = Vec::new();
        let mut relays = Vec::new();
        for spec in &scenario.links {
            let front = socket().map_err(fail("open a relay on loopback"))?;
            links.push(LoopbackLink {
                name: spec.name.clone(),
                address: front
                    .local_addr()
                    .map_err(fail("open a relay on loopback"))?,
            });
            relays.push(Relay {
                front,
                clients: VecDeque::new(),
                next_id: 0,
            });
        }
        let clock = HostClock::new();
        let runner = Runner {
            clock,
            granularity: granularity(scenario),
            pairs: Pairs::new(scenario, seed, clock.now()),
            relays,
            server,
            orders,
            buffer: vec![0; DATAGRAM_MAX],
        };
        let thread = thread::Builder::new()
            .name("loopback".to_owned())
            .spawn(move || runner.run())
            .map_err(fail("start the relays"))?;
        Ok(Self {
            control,
            links,
            thread: Some(thread),
        })
    }

    /// The relays, in the order of the scenario.
    #[must_use]
    pub fn links(&self) -> &[LoopbackLink] {
        &self.links
    }

    /// The handle on the links.
    #[must_use]
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// All counters.
    ///
    /// # Errors
    /// The relays have ended.
    pub fn snapshot(&self) -> Result<Snapshot, LabError> {
        self.control.snapshot()
    }
}

impl Drop for Loopback {
    fn drop(&mut self) {
        self.control.stop();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the relays panicked");
        }
    }
}

/// One link's sockets.
struct Relay {
    front: UdpSocket,
    /// Oldest first.
    clients: VecDeque<Client>,
    next_id: u64,
}

struct Client {
    /// Never reused: a datagram on its way to a forgotten client must reach nobody else.
    id: u64,
    address: SocketAddr,
    /// Connected to the server.
    upstream: UdpSocket,
}

struct Datagram {
    client: u64,
    bytes: Vec<u8>,
}

struct Runner {
    clock: HostClock,
    granularity: Duration,
    pairs: Pairs<Datagram>,
    relays: Vec<Relay>,
    server: SocketAddr,
    orders: Orders,
    buffer: Vec<u8>,
}

impl Runner {
    fn run(mut self) {
        // Coarser timers only make the relays less exact.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let mut woke_at = Instant::EPOCH;
        loop {
            let rest = (woke_at + self.granularity).since(self.clock.now());
            if !rest.is_zero() {
                thread::sleep(rest);
            }
            if let Err(error) = self.wait() {
                tracing::error!(%error, "the relays have ended");
                return;
            }
            woke_at = self.clock.now();
            self.orders.acknowledge();
            while let Some(order) = self.orders.poll() {
                if self.pairs.obey(woke_at, order) == Next::Stop {
                    return;
                }
            }
            for link in 0..self.relays.len() {
                self.receive_up(link, woke_at);
                self.receive_down(link, woke_at);
            }
            self.deliver(woke_at);
        }
    }

    fn wait(&self) -> io::Result<()> {
        let timeout = self.pairs.poll_timeout().map(|due| {
            let span = due.since(self.clock.now());
            Timespec {
                tv_sec: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: span.subsec_nanos().into(),
            }
        });
        let mut watched = vec![PollFd::new(&self.orders, PollFlags::IN)];
        for relay in &self.relays {
            watched.push(PollFd::new(&relay.front, PollFlags::IN));
            for client in &relay.clients {
                watched.push(PollFd::new(&client.upstream, PollFlags::IN));
            }
        }
        match poll(&mut watched, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// From clients into the link.
    fn receive_up(&mut self, link: usize, now: Instant) {
        let relay = &mut self.relays[link];
        for _ in 0..READS_MAX {
            let (length, from) = match relay.front.recv_from(&mut self.buffer) {
                Ok(received) => received,
                Err(error) if is_refusal(&error) => continue,
                Err(_) => return,
            };
            let Some(client) = relay.client(from, self.server) else {
                continue;
            };
            let bytes = self.buffer[..length].to_vec();
            let datagram = Datagram { client, bytes };
            let up = self.pairs.link_mut(link, Direction::Up);
            // What the link drops, it counts.
            let _ = up.handle_packet(now, datagram, size_of(length));
        }
    }

    /// From the server into the link.
    fn receive_down(&mut self, link: usize, now: Instant) {
        for client in &self.relays[link].clients {
            for _ in 0..READS_MAX {
                let length = match client.upstream.recv(&mut self.buffer) {
                    Ok(length) => length,
                    Err(error) if is_refusal(&error) => continue,
                    Err(_) => break,
                };
                let datagram = Datagram {
                    client: client.id,
                    bytes: self.buffer[..length].to_vec(),
                };
                let down = self.pairs.link_mut(link, Direction::Down);
                let _ = down.handle_packet(now, datagram, size_of(length));
            }
        }
    }

    fn deliver(&mut self, now: Instant) {
        let relays = &self.relays;
        let mut refused = 0;
        self.pairs.deliver(now, |link, direction, datagram| {
            let relay = &relays[link];
            let Some(client) = relay.clients.iter().find(|c| c.id == datagram.client) else {
                return;
            };
            let sent = match direction {
                Direction::Up => client.upstream.send(&datagram.bytes),
                Direction::Down => relay.front.send_to(&datagram.bytes, client.address),
            };
            if sent.is_err_and(|error| !is_refusal(&error)) {
                refused += 1;
            }
        });
        self.pairs.health.send_drops += refused;
    }
}

impl Relay {
    /// The client that sends from `address`, a new one if need be; `None` if the system gives no
    /// socket for it.
    fn client(&mut self, address: SocketAddr, server: SocketAddr) -> Option<u64> {
        if let Some(client) = self.clients.iter().find(|c| c.address == address) {
            return Some(client.id);
        }
        let upstream = socket().and_then(|socket| {
            socket.connect(server)?;
            Ok(socket)
        });
        let upstream = match upstream {
            Ok(upstream) => upstream,
            Err(error) => {
                tracing::warn!(%error, "no socket for another client");
                return None;
            }
        };
        if self.clients.len() == CLIENTS_MAX {
            self.clients.pop_front();
        }
        let id = self.next_id;
        self.next_id += 1;
        self.clients.push_back(Client {
            id,
            address,
            upstream,
        });
        Some(id)
    }
}

fn size_of(length: usize) -> Bytes {
    Bytes::new(length as u64 + HEADERS)
}

fn socket() -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.set_nonblocking(true)?;
    // The system may grant less; then bursts are lost, as they are on any small queue.
    let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, SOCKET_BUFFER);
    let _ = rustix::net::sockopt::set_socket_send_buffer_size(&socket, SOCKET_BUFFER);
    Ok(socket)
}

/// An earlier datagram met a closed port: news of the past, not a failure of this call.
fn is_refusal(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ConnectionRefused
}
