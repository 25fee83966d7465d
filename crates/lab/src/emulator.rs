//! The thread that carries frames between client and server through the link models.
//!
//! One thread for all links, at real-time priority where allowed. It wakes when frames come or
//! when one is due, and no sooner than a [granularity](granularity) after the last time: so the
//! number of wake-ups, and with it the cost, is bounded, and traffic comes in batches.

use std::collections::VecDeque;
use std::io;
use std::num::NonZeroU64;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tabane_base::{Bytes, Duration, Instant, Seed};
use tabane_linux::{
    HostClock,
    netns::Netns,
    packet_socket::{Frame, FramePool, PacketSocket},
    raise_priority,
};
use tabane_netem::{Direction, MAX_LINKS, Scenario};

use crate::control::{Control, Orders, control};
use crate::error::LabError;
use crate::pairs::{Next, Pairs, granularity};
use crate::topology;

/// Frames that wait for the kernel to take them, per port. More than 0.1 s at 1 Gbit/s: past that
/// the machine is too slow, and it shows in `Health::send_drops`.
const OUTGOING_MAX: usize = 8_192;

/// Reads per port and wake-up, of 64 frames each, so that one port cannot starve the others.
const READS_MAX: usize = 16;

/// Rates count from the IP header on.
const ETHERNET_HEADER: u64 = 14;

/// A running emulator; stops when dropped.
#[derive(Debug)]
pub(crate) struct Emulator {
    control: Control,
    thread: Option<JoinHandle<()>>,
}

impl Emulator {
    /// Starts carrying frames between the ports in `netns`.
    pub(crate) fn start(netns: &Netns, scenario: &Scenario, seed: Seed) -> Result<Self, LabError> {
        let (control, orders) = control()?;
        let (report, started) = sync_channel(1);
        let (netns, scenario) = (netns.clone(), scenario.clone());
        let thread = thread::Builder::new()
            .name("emulator".to_owned())
            .spawn(move || run(&netns, &scenario, seed, orders, &report))
            .map_err(|source| LabError::System {
                operation: "start the emulator",
                source,
            })?;
        match started.recv() {
            Ok(Ok(())) => Ok(Self {
                control,
                thread: Some(thread),
            }),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(LabError::EmulatorGone),
        }
    }

    pub(crate) fn control(&self) -> &Control {
        &self.control
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        self.control.stop();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the emulator panicked");
        }
    }
}

fn run(
    netns: &Netns,
    scenario: &Scenario,
    seed: Seed,
    orders: Orders,
    report: &SyncSender<Result<(), LabError>>,
) {
    let clock = HostClock::new();
    let ports = match open_ports(netns, scenario) {
        Ok(ports) => ports,
        // Whoever starts us waits for this; if it is gone, nobody needs to know.
        Err(error) => return drop(report.send(Err(error))),
    };
    if let Err(error) = raise_priority() {
        tracing::debug!(%error, "no real-time priority for the emulator");
    }
    if let Err(error) = rustix::thread::set_current_timer_slack(NonZeroU64::new(1)) {
        tracing::debug!(%error, "coarse timers for the emulator");
    }
    let mut forwarder = Forwarder {
        clock,
        granularity: granularity(scenario),
        pairs: Pairs::new(scenario, seed, clock.now()),
        ports,
        orders,
        arrived: Vec::new(),
    };
    if report.send(Ok(())).is_err() {
        return;
    }
    if let Err(error) = forwarder.forward() {
        tracing::error!(%error, "the emulator has ended");
    }
}

/// One end of a link: what it receives enters the link, what the link delivers leaves here.
struct Port {
    socket: PacketSocket,
    link: usize,
    /// Which way frames go that enter here.
    direction: Direction,
    outgoing: VecDeque<Frame>,
}

/// Ports in the order client, server of link 0, client, server of link 1, and so on. Wires have
/// no ports: link indices skip them.
fn open_ports(netns: &Netns, scenario: &Scenario) -> Result<Vec<Port>, LabError> {
    netns.enter()?;
    let pool = FramePool::new();
    let mut ports = Vec::new();
    for (link, spec) in scenario.links.iter().enumerate() {
        if spec.is_wire() {
            continue;
        }
        let ends = [
            (topology::client_port(link), Direction::Up),
            (topology::server_port(link), Direction::Down),
        ];
        for (interface, direction) in ends {
            ports.push(Port {
                socket: PacketSocket::bind(&interface, pool.clone())?,
                link,
                direction,
                outgoing: VecDeque::new(),
            });
        }
    }
    Ok(ports)
}

struct Forwarder {
    clock: HostClock,
    granularity: Duration,
    pairs: Pairs<Frame>,
    ports: Vec<Port>,
    orders: Orders,
    arrived: Vec<Frame>,
}

impl Forwarder {
    fn forward(&mut self) -> io::Result<()> {
        let mut woke_at = Instant::EPOCH;
        loop {
            let rest = (woke_at + self.granularity).since(self.clock.now());
            if !rest.is_zero() {
                thread::sleep(rest);
            }
            let ready = self.wait()?;
            woke_at = self.clock.now();
            if ready & ORDERS != 0 && self.obey(woke_at) == Next::Stop {
                return Ok(());
            }
            for index in 0..self.ports.len() {
                if ready & (1 << (index + 1)) != 0 {
                    self.receive(index, woke_at)?;
                }
            }
            self.deliver(woke_at);
            self.flush();
        }
    }

    /// Waits for frames, orders or the next delivery; returns who is ready, as bits.
    fn wait(&self) -> io::Result<u128> {
        let blocked = self.ports.iter().any(|port| !port.outgoing.is_empty());
        let due = self.pairs.poll_timeout();
        let timeout = match due {
            _ if blocked => Some(self.granularity),
            Some(due) => Some(due.since(self.clock.now())),
            None => None,
        };
        let timeout = timeout.map(|span| Timespec {
            tv_sec: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: span.subsec_nanos().into(),
        });
        let sockets = self
            .ports
            .iter()
            .map(|port| PollFd::new(&port.socket, PollFlags::IN));
        let mut watched: Vec<PollFd<'_>> =
            std::iter::once(PollFd::new(&self.orders, PollFlags::IN))
                .chain(sockets)
                .collect();
        match poll(&mut watched, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let bits = watched
            .iter()
            .enumerate()
            .filter(|(_, fd)| !fd.revents().is_empty())
            .fold(0, |bits, (index, _)| bits | 1 << index);
        Ok(bits)
    }

    fn obey(&mut self, now: Instant) -> Next {
        self.orders.acknowledge();
        for port in &self.ports {
            // Counted only to be told: a failure leaves the count as it is.
            let drops = port.socket.take_drops().unwrap_or(0);
            self.pairs.health.receive_drops += u64::from(drops);
        }
        while let Some(order) = self.orders.poll() {
            if self.pairs.obey(now, order) == Next::Stop {
                return Next::Stop;
            }
        }
        Next::GoOn
    }

    fn receive(&mut self, index: usize, now: Instant) -> io::Result<()> {
        let port = &mut self.ports[index];
        let link = self.pairs.link_mut(port.link, port.direction);
        for _ in 0..READS_MAX {
            let more = match port.socket.recv_batch(&mut self.arrived) {
                Ok(more) => more,
                // The interface went down and up: nothing was lost that a real one would keep.
                Err(error) if error.raw_os_error() == Some(NETWORK_DOWN) => false,
                Err(error) => return Err(error),
            };
            for frame in self.arrived.drain(..) {
                let length = frame.bytes().len() as u64;
                let size = Bytes::new(length.saturating_sub(ETHERNET_HEADER));
                // What the link drops, it counts.
                let _ = link.handle_packet(now, frame, size);
            }
            if !more {
                break;
            }
        }
        Ok(())
    }

    fn deliver(&mut self, now: Instant) {
        let ports = &mut self.ports;
        let mut dropped = 0;
        self.pairs.deliver(now, |link, direction, frame| {
            // Frames that entered at one end leave at the other.
            let Some(port) = ports
                .iter_mut()
                .find(|port| port.link == link && port.direction != direction)
            else {
                return;
            };
            if port.outgoing.len() < OUTGOING_MAX {
                port.outgoing.push_back(frame);
            } else {
                dropped += 1;
            }
        });
        self.pairs.health.send_drops += dropped;
    }

    fn flush(&mut self) {
        for port in &mut self.ports {
            match port.socket.send_batch(&mut port.outgoing) {
                Ok(refused) => self.pairs.health.send_drops += refused as u64,
                Err(error) => {
                    // The interface is down, as when someone pulls it: what a cable does.
                    tracing::debug!(interface = port.socket.interface(), %error, "cannot send");
                    port.outgoing.clear();
                }
            }
        }
    }
}

/// The bit of [`Forwarder::wait`] that stands for orders.
const ORDERS: u128 = 1;

// Every port and the orders have a bit.
const _: () = assert!(2 * MAX_LINKS < u128::BITS as usize);

/// `ENETDOWN`.
const NETWORK_DOWN: i32 = rustix::io::Errno::NETDOWN.raw_os_error();
