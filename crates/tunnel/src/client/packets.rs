//! The flow of all IP packets that are neither TCP nor UDP [P-T.4, P-T.5], and those of another
//! site for hosts of this one [P-T.11].
//!
//! Owns asking the relay for addresses, and what older relays are asked instead. Which packets come
//! here is decided by whoever has the TUN device.

use std::cell::RefCell;
use std::future::poll_fn;
use std::net::IpAddr;
use std::rc::Rc;

use bytes::Bytes;
use tabane_core::{DatagramOrder, PathStatus};

use super::{Client, OpenError, UdpFlow};
use crate::assignment::{Assignment, MIN_MTU};
use crate::flow::{Flow, FlowError};
use crate::ip_packet::{IpPacket, protocol};
use crate::request::{Status, Transport};
use crate::stream::{Stream, StreamEnd};
use crate::target::Target;

/// What core puts around a datagram, at most: header, tag, frame and label [P-3, P-7.5].
const AROUND: u16 = 48;

/// What a client's packets have come to since the relay gave it its addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PacketsCarried {
    /// The addresses that the relay has given; with none, only pings are carried.
    pub addresses: Vec<IpAddr>,
    /// Packets to the relay.
    pub sent: u64,
    /// Packets from it.
    pub received: u64,
}

/// A flow of packets; dropping it gives the addresses back.
pub struct PacketFlow {
    flow: UdpFlow,
    assignment: Assignment,
    carried: Rc<RefCell<PacketsCarried>>,
    client: Client,
}

/// Packets of another site, by a route; who sends them has no answer by the same flow.
pub struct SitePackets(UdpFlow);

/// One of them.
#[derive(Clone, Debug)]
pub struct SitePacket {
    /// Who has sent it.
    pub source: IpAddr,
    /// For whom it is.
    pub destination: IpAddr,
    /// All of it.
    pub bytes: Bytes,
}

impl SitePackets {
    pub(super) fn new(flow: UdpFlow) -> Self {
        Self(flow)
    }

    /// Waits for the next one that is neither TCP nor UDP; the relay's word is not taken for it.
    /// `None` at the end.
    pub async fn recv(&self) -> Option<SitePacket> {
        loop {
            let bytes = self.0.recv().await.ok()?;
            let header = IpPacket::parse(&bytes).ok();
            let is_other = |it: &IpPacket| !matches!(it.protocol, protocol::TCP | protocol::UDP);
            if let Some(header) = header.filter(is_other) {
                return Some(SitePacket {
                    source: header.source,
                    destination: header.destination,
                    bytes,
                });
            }
        }
    }
}

impl Client {
    /// Begins the flow of all IP packets that are neither TCP nor UDP, each datagram one of them.
    /// A relay that gives addresses carries all; one that gives none, or is not asked for any
    /// (`lodges`), echo requests ("ping") only.
    ///
    /// # Errors
    /// There is no session, or the relay serves none of them.
    pub async fn open_packets(&self, lodges: bool) -> Result<PacketFlow, OpenError> {
        if !lodges {
            return self.open_packets_as(Transport::Packets).await;
        }
        match self.open_packets_as(Transport::LodgedPackets).await {
            // One that knows nothing of addresses.
            Err(OpenError::Refused(Status::Malformed)) => {
                self.open_packets_as(Transport::Packets).await
            }
            opened => opened,
        }
    }

    async fn open_packets_as(&self, transport: Transport) -> Result<PacketFlow, OpenError> {
        let mut stream = self.open(transport, Target::Anywhere).await?;
        let assignment = read_assignment(&mut stream, transport).await?;
        let carried = Rc::new(RefCell::new(PacketsCarried {
            addresses: assignment.addresses().collect(),
            ..PacketsCarried::default()
        }));
        self.shared.packets.replace(Rc::downgrade(&carried));
        let flow = Flow::new(stream, Some(DatagramOrder::AtOnce));
        Ok(PacketFlow {
            flow: UdpFlow::new(self.clone(), flow),
            assignment,
            carried,
            client: self.clone(),
        })
    }
}

async fn read_assignment(
    stream: &mut Stream,
    transport: Transport,
) -> Result<Assignment, OpenError> {
    let ended = |end| match end {
        StreamEnd::SessionLost => OpenError::SessionLost,
        StreamEnd::Reset | StreamEnd::Finished => OpenError::Refused(Status::Unreachable),
    };
    let status = poll_fn(|cx| stream.poll_status(cx)).await.map_err(ended)?;
    match (status, transport) {
        (Status::Open, Transport::LodgedPackets) => stream.read_assignment().await.map_err(ended),
        (Status::Open, _) => Ok(Assignment::default()),
        (status, _) => Err(OpenError::Refused(status)),
    }
}

impl PacketFlow {
    /// What the relay has given.
    #[must_use]
    pub fn assignment(&self) -> Assignment {
        self.assignment
    }

    /// The largest packet, in bytes, that the relay takes and the session carries in one piece over
    /// every path there is at the moment; never less than IPv6 asks for, which may take two pieces.
    #[must_use]
    pub fn room(&self) -> u16 {
        let session = self.client.snapshot().session;
        let paths = session.into_iter().flat_map(|session| session.paths);
        let active = paths.filter(|path| path.status == PathStatus::Active);
        let least = active.map(|path| path.mtu.saturating_sub(AROUND)).min();
        least.map_or(MIN_MTU, |least| least.min(self.assignment.mtu).max(MIN_MTU))
    }

    /// Sends a packet; like any, it may be lost.
    ///
    /// # Errors
    /// It is too large, or the session ended.
    pub fn send(&self, packet: &[u8]) -> Result<(), FlowError> {
        self.flow.send(packet)?;
        self.carried.borrow_mut().sent += 1;
        Ok(())
    }

    /// Waits for the next packet.
    ///
    /// # Errors
    /// The relay ended the flow, or the session ended. No more will come.
    pub async fn recv(&self) -> Result<Bytes, FlowError> {
        let packet = self.flow.recv().await?;
        self.carried.borrow_mut().received += 1;
        Ok(packet)
    }
}
