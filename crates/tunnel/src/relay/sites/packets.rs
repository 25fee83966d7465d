//! IP packets of a client to hosts of other sites: echo requests ("pings"), and what is neither
//! those, TCP nor UDP.
//!
//! Owns the ways there, one for each route and for either kind, that replies to pings are of hosts
//! that the route leads to, and that everything else is from a network of the client's own, so that
//! nobody speaks in another's name. Packets travel whole. The site puts requests to their hosts by
//! itself; other packets go one way, and what answers them is such a packet of the other site.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use tokio::net::UdpSocket;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::super::exit::Refusal;
use super::super::host::Host;
use super::super::udp::IDLE;
use super::call::{FarHalf, Way, udp_pair};
use super::{member, way};
use crate::echo::{Echo, Kind};
use crate::icmp_error::{self, Complaint};
use crate::ip_packet::{IpPacket, protocol};
use crate::request::{ECHO_BYTE, PACKET_BYTE};
use crate::target::Target;

/// Packets that wait for the way to be open, or for the socket; more are lost, as packets may be.
const MAX_WAITING: usize = 256;
/// Ways of one client at once.
const MAX_WAYS: usize = 64;
/// The longest packet there is.
const MAX_PACKET: usize = 65_535;
/// Of protocols that have none; no port is 0.
const NO_PORT: u16 = 7;

/// What one client sends to other sites.
pub(in crate::relay) struct SitePackets {
    host: Host,
    ways: BTreeMap<Passage, (mpsc::Sender<Vec<u8>>, AbortHandle)>,
    replies: mpsc::Sender<Vec<u8>>,
}

/// The route, and what is spoken there.
type Passage = (u64, u8);

impl SitePackets {
    /// Nothing yet; what answers pings comes out at the other end of `replies`.
    pub(in crate::relay) fn new(host: &Host, replies: mpsc::Sender<Vec<u8>>) -> Self {
        Self {
            host: host.clone(),
            ways: BTreeMap::new(),
            replies,
        }
    }

    /// Passes a packet on that goes to another site; `None` for every other. What finds nobody is
    /// lost. Of a client that has no address of its family (`lodges`) only pings are passed on.
    pub(in crate::relay) fn take(
        &mut self,
        header: &IpPacket,
        packet: &[u8],
        lodges: bool,
    ) -> Option<Result<(), Refusal>> {
        let way = way_to(&self.host, header.destination, header.port)?;
        let is_request = Echo::parse(packet).is_some_and(|echo| echo.kind == Kind::Request);
        Some(match is_request {
            true => self.pass_on(way, ECHO_BYTE, packet).inspect_err(|refusal| {
                if *refusal == Refusal::Away {
                    self.tell_away(header, packet);
                }
            }),
            false => self
                .may_send(header, lodges)
                .and_then(|()| self.pass_on(way, PACKET_BYTE, packet)),
        })
    }

    fn may_send(&self, header: &IpPacket, lodges: bool) -> Result<(), Refusal> {
        if !lodges {
            return Err(Refusal::NotServed);
        }
        if matches!(header.protocol, protocol::TCP | protocol::UDP) {
            // Counted, limited and seen elsewhere.
            return Err(Refusal::Stream);
        }
        let (_, group) = member(&self.host).ok_or(Refusal::Denied)?;
        let routes = self.host.shared.sites.routes();
        match routes.is_of(&group, self.host.key, header.source) {
            true => Ok(()),
            false => Err(Refusal::Spoofed),
        }
    }

    fn pass_on(&mut self, way: Way, spoken: u8, packet: &[u8]) -> Result<(), Refusal> {
        let route = way.route.ok_or(Refusal::Away)?;
        let passage = (route, spoken);
        let is_open = |(_, task): &(_, AbortHandle)| !task.is_finished();
        if !self.ways.get(&passage).is_some_and(is_open) {
            self.ways.retain(|_, way| is_open(way));
            if self.ways.len() >= MAX_WAYS {
                return Err(Refusal::Full);
            }
            self.ways.insert(passage, self.begin(passage, way));
        }
        let way = self.ways.get(&passage);
        let sent = way.map(|(packets, _)| packets.try_send(packet.to_vec()));
        match sent {
            Some(Ok(())) => Ok(()),
            Some(Err(_)) | None => Err(Refusal::Full),
        }
    }

    /// In the place of the router that would be on the way to the host.
    fn tell_away(&self, header: &IpPacket, packet: &[u8]) {
        let complaint = Complaint::host_unreachable(header.destination.is_ipv4());
        let told = complaint.emit(header.destination, header.source, packet);
        let _ = told.map(|told| self.replies.try_send(told));
    }

    fn begin(&self, (route, spoken): Passage, way: Way) -> (mpsc::Sender<Vec<u8>>, AbortHandle) {
        let (sender, packets) = mpsc::channel(MAX_WAITING);
        let (host, replies) = (self.host.clone(), self.replies.clone());
        let task = tokio::task::spawn_local(async move {
            let Ok((near, far)) = udp_pair() else {
                return;
            };
            let (half, gone) = oneshot::channel();
            if way.call(FarHalf::Datagrams(far, half, spoken)) {
                tokio::select! {
                    () = pass(&host, (route, spoken), &near, packets, &replies) => {}
                    _ = gone => {}
                }
            }
        });
        (sender, task.abort_handle())
    }
}

impl Drop for SitePackets {
    fn drop(&mut self) {
        self.ways.values().for_each(|(_, task)| task.abort());
    }
}

fn way_to(host: &Host, ip: IpAddr, port: u16) -> Option<Way> {
    let port = if port == 0 { NO_PORT } else { port };
    way(host, &Target::Address(SocketAddr::new(ip, port)), None)
}

/// Whom a packet of a site answers for that may go back to who has pinged it.
fn answered(packet: &[u8]) -> Option<IpAddr> {
    let reply = Echo::parse(packet).filter(|echo| echo.kind == Kind::Reply);
    reply
        .map(|echo| echo.source)
        .or_else(|| icmp_error::asked(packet))
}

/// Passes packets on until nothing has passed for long.
async fn pass(
    host: &Host,
    passage: Passage,
    near: &UdpSocket,
    mut packets: mpsc::Receiver<Vec<u8>>,
    replies: &mpsc::Sender<Vec<u8>>,
) {
    let mut buffer = vec![0; MAX_PACKET];
    loop {
        let passed = async {
            tokio::select! {
                packet = packets.recv() => {
                    let packet = packet?;
                    // Lost like any packet.
                    let _ = near.send(&packet).await;
                }
                reply = near.recv(&mut buffer) => {
                    let packet = &buffer[..reply.ok()?];
                    let of = answered(packet).and_then(|ip| way_to(host, ip, NO_PORT)?.route);
                    if of.map(|route| (route, ECHO_BYTE)) == Some(passage) {
                        let _ = replies.try_send(packet.to_vec());
                    }
                }
            }
            Some(())
        };
        if !matches!(timeout(IDLE, passed).await, Ok(Some(()))) {
            return;
        }
    }
}
