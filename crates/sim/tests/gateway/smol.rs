//! smoltcp as a host.

use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{ChecksumCapabilities, Device, DeviceCapabilities, Medium};
use smoltcp::socket::tcp::{CongestionControl, Socket, SocketBuffer};
use smoltcp::time::Instant as SmolInstant;
use smoltcp::wire::{HardwareAddress, IpCidr};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};

use tabane_base::{Content, Duration, Instant};
use tabane_gateway::{Flags, Packet, Seq};
use tabane_sim::{Endpoint, TcpHost};

#[derive(Default)]
struct Wire {
    arrived: VecDeque<Vec<u8>>,
    leaving: VecDeque<Vec<u8>>,
}

struct Received(Vec<u8>);
struct Sent<'a>(&'a mut VecDeque<Vec<u8>>);

impl smoltcp::phy::RxToken for Received {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

impl smoltcp::phy::TxToken for Sent<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, f: F) -> R {
        let mut packet = vec![0; length];
        let result = f(&mut packet);
        self.0.push_back(packet);
        result
    }
}

impl Device for Wire {
    type RxToken<'a> = Received;
    type TxToken<'a> = Sent<'a>;

    fn receive(&mut self, _: SmolInstant) -> Option<(Received, Sent<'_>)> {
        let packet = self.arrived.pop_front()?;
        Some((Received(packet), Sent(&mut self.leaving)))
    }

    fn transmit(&mut self, _: SmolInstant) -> Option<Sent<'_>> {
        Some(Sent(&mut self.leaving))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = 1_500;
        capabilities.checksum = ChecksumCapabilities::default();
        capabilities
    }
}

/// A host with one connection.
struct Host {
    wire: Wire,
    interface: Interface,
    sockets: SocketSet<'static>,
    handle: SocketHandle,
}

fn smol(now: Instant) -> SmolInstant {
    SmolInstant::from_micros(now.as_micros() as i64)
}

// Milliseconds for timestamps. smoltcp asks for them without an argument; its own clock is what
// it was polled with last.
static CLOCK: AtomicU32 = AtomicU32::new(1);

impl Host {
    fn new(end: Endpoint, receive: usize, send: usize, stamps: bool, seed: u64) -> Self {
        let mut wire = Wire::default();
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = seed;
        let mut interface = Interface::new(config, &mut wire, SmolInstant::ZERO);
        interface.update_ip_addrs(|addresses| {
            addresses.push(IpCidr::new(end.own.ip().into(), 0)).unwrap();
        });
        let buffer = |size| SocketBuffer::new(vec![0; size]);
        let mut socket = Socket::new(buffer(receive), buffer(send));
        socket.set_congestion_control(CongestionControl::Reno);
        if stamps {
            socket.set_tsval_generator(Some(|| CLOCK.load(Ordering::Relaxed)));
        }
        let mut sockets = SocketSet::new(Vec::new());
        let handle = sockets.add(socket);
        Self {
            wire,
            interface,
            sockets,
            handle,
        }
    }

    fn socket(&mut self) -> &mut Socket<'static> {
        self.sockets.get_mut(self.handle)
    }

    fn poll(&mut self, now: Instant) {
        CLOCK.store((now.as_micros() / 1_000) as u32 + 1, Ordering::Relaxed);
        self.interface
            .poll(smol(now), &mut self.wire, &mut self.sockets);
    }

    fn poll_at(&mut self, now: Instant) -> Option<Instant> {
        let at = self.interface.poll_at(smol(now), &self.sockets)?;
        Some(
            Instant::from_micros(at.total_micros().max(0) as u64)
                .max(now + Duration::from_micros(10)),
        )
    }
}

/// Sends. Does not close: smoltcp 0.14 forgets a FIN whose last data was acknowledged without it,
/// gateway or not, and would wait for ever.
pub(crate) struct SmolServer {
    host: Host,
    content: Content,
    total: u64,
    written: u64,
    edges: Edges,
}

/// Right edges as a receiver's segments give them.
#[derive(Default)]
struct Edges {
    shift: u8,
    last: BTreeMap<u16, Seq>,
    moved_left: u64,
}

impl Edges {
    fn look(&mut self, packet: &[u8]) {
        let Ok(packet) = Packet::parse(packet) else {
            return;
        };
        if packet.flags().has(Flags::SYN) {
            self.shift = packet.options().window_shift.unwrap_or(0);
            return;
        }
        if packet.flags().has(Flags::RST) {
            return;
        }
        let edge = packet.ack() + (u32::from(packet.window()) << self.shift);
        let last = self.last.entry(packet.source().port()).or_insert(edge);
        // Packets that change places on the way do no more than that.
        if edge.is_before(*last) {
            self.moved_left += 1;
        }
        *last = last.later(edge);
    }
}

impl SmolServer {
    pub(crate) fn new(
        end: Endpoint,
        content: Content,
        total: u64,
        stamps: bool,
        seed: u64,
    ) -> Self {
        let mut host = Host::new(end, 4_096, 200_000, stamps, seed);
        host.socket().listen(end.own.port()).unwrap();
        Self {
            host,
            content,
            total,
            written: 0,
            edges: Edges::default(),
        }
    }

    /// Everything was written and acknowledged.
    pub(crate) fn is_acknowledged(&self) -> bool {
        let socket = self.host.sockets.get::<Socket<'_>>(self.host.handle);
        self.written == self.total && socket.send_queue() == 0
    }

    pub(crate) fn edges_moved_left(&self) -> u64 {
        self.edges.moved_left
    }

    fn write(&mut self) {
        let (content, total) = (self.content, self.total);
        let written = &mut self.written;
        let socket = self.host.sockets.get_mut::<Socket<'_>>(self.host.handle);
        while socket.can_send() && *written < total {
            let n = socket
                .send(|room| {
                    let n = room.len().min((total - *written) as usize);
                    content.fill(*written, &mut room[..n]);
                    (n, n)
                })
                .unwrap();
            *written += n as u64;
        }
    }
}

impl TcpHost for SmolServer {
    fn handle_packet(&mut self, now: Instant, packet: &[u8]) {
        self.edges.look(packet);
        self.host.wire.arrived.push_back(packet.to_vec());
        self.host.poll(now);
        self.write();
    }

    fn poll_transmit(&mut self, now: Instant) -> Option<Vec<u8>> {
        self.host.poll(now);
        self.write();
        self.host.wire.leaving.pop_front()
    }

    fn poll_timeout(&mut self, now: Instant) -> Option<Instant> {
        self.host.poll_at(now)
    }
}

/// Connects and checks what comes.
pub(crate) struct SmolClient {
    host: Host,
    content: Content,
    received: u64,
    pausing: bool,
}

impl SmolClient {
    pub(crate) fn new(
        end: Endpoint,
        content: Content,
        buffer: usize,
        stamps: bool,
        seed: u64,
    ) -> Self {
        let mut host = Host::new(end, buffer, 4_096, stamps, seed);
        let socket = host.sockets.get_mut::<Socket<'_>>(host.handle);
        let context = host.interface.context();
        socket.connect(context, end.peer, end.own.port()).unwrap();
        Self {
            host,
            content,
            received: 0,
            pausing: false,
        }
    }

    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    pub(crate) fn set_pausing(&mut self, pausing: bool) {
        self.pausing = pausing;
    }

    fn read(&mut self) {
        let (content, received) = (self.content, &mut self.received);
        let socket = self.host.sockets.get_mut::<Socket<'_>>(self.host.handle);
        while !self.pausing && socket.can_recv() {
            let n = socket
                .recv(|data| {
                    assert_eq!(content.first_difference(*received, data), None);
                    (data.len(), data.len())
                })
                .unwrap();
            *received += n as u64;
        }
    }
}

impl TcpHost for SmolClient {
    fn handle_packet(&mut self, now: Instant, packet: &[u8]) {
        self.host.wire.arrived.push_back(packet.to_vec());
        self.host.poll(now);
        self.read();
    }

    fn poll_transmit(&mut self, now: Instant) -> Option<Vec<u8>> {
        self.read();
        self.host.poll(now);
        self.host.wire.leaving.pop_front()
    }

    fn poll_timeout(&mut self, now: Instant) -> Option<Instant> {
        self.host.poll_at(now)
    }
}
