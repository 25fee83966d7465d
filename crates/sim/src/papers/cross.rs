//! Reno flows that share the links with the sessions under test.
//!
//! Owns the flows and how their packets are numbered on a [`Network`]: data goes the way the
//! sessions' data goes, acknowledgements come back on the same link.

use tabane_base::{Bytes, Instant};
use tabane_netem::Direction;

use crate::network::{Foreign, LinkId, Network};
use crate::reno::{RenoReceiver, RenoSender};

/// IP and TCP headers without options.
const ACK: Bytes = Bytes::new(40);
/// Packet numbers of one flow: more than any run sends.
const FLOW: u64 = 1 << 32;

/// What crosses, and when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CrossTraffic {
    /// Flows on each link.
    pub(crate) flows_per_link: usize,
    pub(crate) from: Instant,
    pub(crate) until: Instant,
    /// The receivers' window, in packets.
    pub(crate) window: u64,
    /// A packet at IP level.
    pub(crate) packet: Bytes,
}

#[derive(Debug)]
struct Flow {
    link: LinkId,
    sender: RenoSender,
    receiver: RenoReceiver,
}

/// The flows, at rest until their time comes.
#[derive(Debug)]
pub(crate) struct Crossing {
    traffic: CrossTraffic,
    flows: Vec<Flow>,
}

impl Crossing {
    pub(crate) fn new(traffic: CrossTraffic, links: usize) -> Self {
        let flow = |index| Flow {
            link: LinkId(index % links),
            sender: RenoSender::new(traffic.window),
            receiver: RenoReceiver::default(),
        };
        let flows = (0..traffic.flows_per_link * links).map(flow).collect();
        Self { traffic, flows }
    }

    /// A packet of a flow, or its acknowledgement, has come through.
    pub(crate) fn handle(&mut self, now: Instant, packet: Foreign, network: &mut Network) {
        let index = (packet.number / FLOW) as usize;
        let number = packet.number % FLOW;
        let flow = &mut self.flows[index];
        match packet.direction {
            Direction::Up => {
                let ack = flow.receiver.handle_packet(number);
                let number = index as u64 * FLOW + ack;
                let ack = Foreign {
                    link: flow.link,
                    direction: Direction::Down,
                    number,
                };
                network.send_foreign(now, ack, ACK);
            }
            Direction::Down => flow.sender.handle_ack(now, number),
        }
    }

    /// Carries out timers and sends what may leave.
    pub(crate) fn run(&mut self, now: Instant, network: &mut Network) {
        if now < self.traffic.from || now >= self.traffic.until {
            return;
        }
        for (index, flow) in self.flows.iter_mut().enumerate() {
            flow.sender.handle_timeout(now);
            while let Some(number) = flow.sender.poll_transmit(now) {
                let number = index as u64 * FLOW + number;
                let data = Foreign {
                    link: flow.link,
                    direction: Direction::Up,
                    number,
                };
                network.send_foreign(now, data, self.traffic.packet);
            }
        }
    }

    pub(crate) fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        if now < self.traffic.from {
            return Some(self.traffic.from);
        }
        if now >= self.traffic.until {
            return None;
        }
        self.flows
            .iter()
            .filter_map(|flow| flow.sender.poll_timeout())
            .min()
    }

    /// What all flows have delivered in order.
    pub(crate) fn delivered(&self) -> Bytes {
        let packets: u64 = self.flows.iter().map(|flow| flow.sender.acked()).sum();
        Bytes::new(packets * self.traffic.packet.get())
    }
}
