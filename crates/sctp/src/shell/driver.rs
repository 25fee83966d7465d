//! The stack with its sockets and its clock.
//!
//! Owns the UDP sockets of each link, one for each family of addresses, bound to it, or one for
//! everything where the peer chooses; moves packets between them and the stack. A link's cap is
//! kept here, by holding packets back.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::task::Poll;
use std::time::Instant;

use crate::{LinkId, Settings, Stack, packet};
use anyhow::{Context, Result};
use tabane_base::{Bytes, Duration, Rate};
use tabane_linux::{
    Egress,
    udp::{RecvBatch, SendFault, Transmit, UdpBind, UdpSocket},
};

/// How often the stack's timers run at least. Its own thread would run them every 10 ms.
const TICK: Duration = Duration::from_millis(5);
/// And how often at most: before packets are handed in, so that round trips are measured finely.
const STEP: Duration = Duration::from_millis(1);
/// Packets that may wait for a link's cap or a full socket; beyond that they are dropped, as a
/// router's queue would do.
const WAITING_MAX: usize = 256;
/// What a capped link may send at once after a pause.
const BURST: Duration = Duration::from_millis(20);

/// What IP of the two families adds to a packet, and UDP.
const V4_HEADER: usize = 20;
const V6_HEADER: usize = 40;
const UDP_HEADER: usize = 8;

/// One socket.
struct Door {
    socket: UdpSocket,
    local: IpAddr,
}

/// One link, with a socket for each family of addresses that it has.
#[derive(Default)]
struct Link {
    v4: Option<Door>,
    v6: Option<Door>,
    waiting: VecDeque<(SocketAddr, Option<IpAddr>, Vec<u8>)>,
    cap: Option<Cap>,
    sent: u64,
    carried: Rc<Carried>,
}

/// What a link has carried, with the headers of UDP and IP.
#[derive(Debug, Default)]
pub(crate) struct Carried {
    pub sent: Cell<Bytes>,
    pub received: Cell<Bytes>,
}

/// A link's limit: bytes that may leave now.
struct Cap {
    rate: Rate,
    credit: f64,
    refilled_at: Instant,
}

/// See the module.
pub(crate) struct Driver {
    pub stack: Stack,
    links: BTreeMap<LinkId, Link>,
    batch: RecvBatch,
    ticked_at: Instant,
    /// Datagrams that were no SCTP, or damaged.
    strangers: u64,
}

impl Driver {
    pub(crate) fn start(settings: &Settings) -> Result<Self> {
        Ok(Self {
            stack: Stack::start(settings)?,
            links: BTreeMap::new(),
            batch: RecvBatch::new(),
            ticked_at: Instant::now(),
            strangers: 0,
        })
    }

    /// Opens a link's socket for the family of `local` on `port`; gives the port, which the kernel
    /// chose where it was 0.
    pub(crate) fn open(
        &mut self,
        id: LinkId,
        egress: Option<&Egress>,
        local: IpAddr,
        port: u16,
    ) -> Result<u16> {
        let bind = UdpBind {
            interface: egress.map(|it| it.interface.as_str()),
            local: SocketAddr::new(local, port),
        };
        let socket = UdpSocket::bind(bind)?;
        if let Some(mark) = egress.and_then(|it| it.mark) {
            let marked = socket.set_mark(mark);
            marked.context("cannot lead a socket to its gateway")?;
        }
        let port = socket.local_addr().context("a UDP socket has no address")?;
        let link = self.links.entry(id).or_default();
        *link.door_mut(local.is_ipv6()) = Some(Door { socket, local });
        Ok(port.port())
    }

    /// Closes a link's socket for a family, and forgets a link without sockets.
    pub(crate) fn close(&mut self, id: LinkId, is_v6: bool) {
        if let Some(link) = self.links.get_mut(&id) {
            *link.door_mut(is_v6) = None;
            if link.doors().next().is_none() {
                self.links.remove(&id);
            }
        }
    }

    /// Limits what a link sends.
    pub(crate) fn set_cap(&mut self, id: LinkId, rate: Option<Rate>) {
        if let Some(link) = self.links.get_mut(&id) {
            let is_same = link.cap.as_ref().map(|cap| cap.rate) == rate;
            if !is_same {
                link.cap = rate.map(|rate| Cap {
                    rate,
                    credit: 0.0,
                    refilled_at: Instant::now(),
                });
            }
        }
    }

    /// User data that a link has carried away, repetitions included.
    pub(crate) fn sent(&self, id: LinkId) -> Bytes {
        Bytes::new(self.links.get(&id).map_or(0, |link| link.sent))
    }

    /// Where a link's packets are counted, headers included, longer than it is here.
    pub(crate) fn carried(&self, id: LinkId) -> Rc<Carried> {
        let link = self.links.get(&id);
        link.map(|link| link.carried.clone()).unwrap_or_default()
    }

    /// How many datagrams were no SCTP.
    pub(crate) fn strangers(&self) -> u64 {
        self.strangers + self.stack.bad_checksums() + self.stack.bad_lists()
    }

    /// Waits until something has come, or it is time for the timers.
    pub(crate) async fn wait(&self) {
        let tick = tokio::time::sleep_until((self.ticked_at + TICK).into());
        let readable = poll_fn(|cx| {
            let doors = self.links.values().flat_map(Link::doors);
            let mut ready = doors.map(|door| door.socket.poll_readable(cx));
            // All of them are asked, so that each wakes us.
            match ready.by_ref().filter(Poll::is_ready).count() {
                0 => Poll::Pending,
                _ => Poll::Ready(()),
            }
        });
        tokio::select! {
            () = tick => {}
            () = readable => {}
        }
    }

    /// Runs the timers when they are due, takes in what has come, and sends what there is.
    pub(crate) fn turn(&mut self) {
        let elapsed = self.ticked_at.elapsed();
        if elapsed >= STEP {
            self.ticked_at += elapsed;
            self.stack.handle_timers(elapsed);
        }
        for (id, link) in &mut self.links {
            let received = &link.carried.received;
            for door in [&mut link.v4, &mut link.v6].into_iter().flatten() {
                let (stack, batch) = (&mut self.stack, &mut self.batch);
                self.strangers += door.take_in(*id, received, batch, stack);
            }
        }
        self.flush();
    }

    /// Sends what the stack has.
    pub(crate) fn flush(&mut self) {
        while let Some(transmit) = self.stack.poll_transmit() {
            let link = transmit.link.and_then(|id| self.links.get_mut(&id));
            // A way over a link that has just gone, or nobody's in particular.
            let link = match (link, transmit.link) {
                (None, None) => self.links.values_mut().next(),
                (link, _) => link,
            };
            let Some(link) = link else { continue };
            if link.waiting.len() < WAITING_MAX {
                let packet = (transmit.remote, transmit.local, transmit.payload);
                link.waiting.push_back(packet);
            }
        }
        for link in self.links.values_mut() {
            link.send();
        }
    }
}

impl Door {
    /// Gives the stack what has come, until it has answers; gives how many datagrams were no SCTP.
    fn take_in(
        &self,
        id: LinkId,
        received: &Cell<Bytes>,
        batch: &mut RecvBatch,
        stack: &mut Stack,
    ) -> u64 {
        let mut strangers = 0;
        while let Ok(1..) = self.socket.try_recv(batch) {
            for datagram in batch.datagrams() {
                let remote = datagram.meta.remote;
                count(received, remote, datagram.payload);
                let local = match self.local {
                    local if local.is_unspecified() => datagram.meta.local_ip.unwrap_or(local),
                    local => local,
                };
                strangers += u64::from(packet::ports(datagram.payload).is_none());
                stack.handle_packet(id, local, remote, datagram.payload);
            }
            // Answers leave before more is read.
            if stack.wants_to_transmit() {
                break;
            }
        }
        strangers
    }
}

impl Link {
    fn doors(&self) -> impl Iterator<Item = &Door> {
        self.v4.iter().chain(&self.v6)
    }

    fn door_mut(&mut self, is_v6: bool) -> &mut Option<Door> {
        match is_v6 {
            true => &mut self.v6,
            false => &mut self.v4,
        }
    }

    fn send(&mut self) {
        while let Some((remote, local, payload)) = self.waiting.front() {
            if let Some(cap) = &mut self.cap
                && !cap.admits(on_wire(*remote, payload))
            {
                return;
            }
            // One for every address may be of both families.
            let for_all = |door: &&Door| door.local.is_unspecified();
            let door = match remote {
                SocketAddr::V4(_) => self.v4.as_ref(),
                SocketAddr::V6(_) => self.v6.as_ref(),
            };
            let door = door.or_else(|| self.v6.as_ref().filter(for_all));
            let sent = door.map(|door| {
                door.socket.try_send(Transmit {
                    remote: *remote,
                    local_ip: *local,
                    segment_size: None,
                    contents: payload,
                })
            });
            match sent {
                Some(Ok(())) => {
                    self.sent += packet::data_bytes(payload) as u64;
                    count(&self.carried.sent, *remote, payload);
                }
                Some(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => return,
                // It counts as lost, as on the network.
                Some(Err(error)) => {
                    let fault = SendFault::of(&error);
                    tracing::debug!(%error, ?fault, "a packet was not sent");
                }
                // The address that it was to leave from has just gone.
                None => {}
            }
            self.waiting.pop_front();
        }
    }
}

/// What a datagram is on the wire.
fn on_wire(remote: SocketAddr, payload: &[u8]) -> usize {
    let header = match remote {
        SocketAddr::V4(_) => V4_HEADER,
        SocketAddr::V6(_) => V6_HEADER,
    };
    header + UDP_HEADER + payload.len()
}

fn count(carried: &Cell<Bytes>, remote: SocketAddr, payload: &[u8]) {
    carried.set(carried.get() + Bytes::from(on_wire(remote, payload)));
}

impl Cap {
    fn admits(&mut self, len: usize) -> bool {
        let per_second = self.rate.as_bps() as f64 / 8.0;
        let most = (per_second * BURST.as_secs_f64()).max(3_000.0);
        let elapsed = self.refilled_at.elapsed().as_secs_f64();
        self.refilled_at = Instant::now();
        self.credit = (self.credit + elapsed * per_second).min(most);
        let cost = len as f64;
        let admitted = self.credit >= cost;
        if admitted {
            self.credit -= cost;
        }
        admitted
    }
}
