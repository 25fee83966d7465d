//! Echo requests of a client ("pings") to hosts of other sites.
//!
//! Owns the way there, one for each route that is asked, and that replies are of hosts that it
//! leads to. Packets travel whole; the site puts requests to their hosts by itself.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use tokio::net::UdpSocket;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::super::host::Host;
use super::super::udp::IDLE;
use super::call::{FarHalf, Way, udp_pair};
use super::way;
use crate::echo::{Echo, Kind};
use crate::request::ECHO_BYTE;
use crate::target::Target;

/// Requests that wait for the way to be open; more are lost, as pings may be.
const MAX_WAITING: usize = 64;
/// Ways of one client at once.
const MAX_WAYS: usize = 64;
/// The longest packet there is.
const MAX_PACKET: usize = 65_535;
/// Of no meaning for echoes; no port is 0.
const NO_PORT: u16 = 7;

/// What one client asks of other sites.
pub(in crate::relay) struct SiteEchoes {
    host: Host,
    ways: BTreeMap<u64, (mpsc::Sender<Vec<u8>>, AbortHandle)>,
    replies: mpsc::Sender<Vec<u8>>,
}

impl SiteEchoes {
    /// Nothing yet; replies come out at the other end of `replies`.
    pub(in crate::relay) fn new(host: &Host, replies: mpsc::Sender<Vec<u8>>) -> Self {
        Self {
            host: host.clone(),
            ways: BTreeMap::new(),
            replies,
        }
    }

    /// Whether a packet goes to another site. An echo request is passed on; what else goes there,
    /// or finds nobody, is lost.
    pub(in crate::relay) fn take(&mut self, to: IpAddr, packet: &[u8]) -> bool {
        let Some(way) = way_to(&self.host, to) else {
            return false;
        };
        let is_request = Echo::parse(packet).is_some_and(|echo| echo.kind == Kind::Request);
        if let Some(route) = way.route.filter(|_| is_request) {
            self.ways.retain(|_, (_, task)| !task.is_finished());
            if !self.ways.contains_key(&route) && self.ways.len() < MAX_WAYS {
                self.ways.insert(route, self.begin(route, way));
            }
            if let Some((requests, _)) = self.ways.get(&route) {
                let _ = requests.try_send(packet.to_vec());
            }
        }
        true
    }

    fn begin(&self, route: u64, way: Way) -> (mpsc::Sender<Vec<u8>>, AbortHandle) {
        let (sender, requests) = mpsc::channel(MAX_WAITING);
        let (host, replies) = (self.host.clone(), self.replies.clone());
        let task = tokio::task::spawn_local(async move {
            let Ok((near, far)) = udp_pair() else {
                return;
            };
            let (half, gone) = oneshot::channel();
            if way.call(FarHalf::Datagrams(far, half, ECHO_BYTE)) {
                tokio::select! {
                    () = pass(&host, route, &near, requests, &replies) => {}
                    _ = gone => {}
                }
            }
        });
        (sender, task.abort_handle())
    }
}

impl Drop for SiteEchoes {
    fn drop(&mut self) {
        self.ways.values().for_each(|(_, task)| task.abort());
    }
}

fn way_to(host: &Host, ip: IpAddr) -> Option<Way> {
    let at = SocketAddr::new(ip, NO_PORT);
    way(host, &Target::Address(at), None)
}

/// Passes packets on until nothing has passed for long.
async fn pass(
    host: &Host,
    route: u64,
    near: &UdpSocket,
    mut requests: mpsc::Receiver<Vec<u8>>,
    replies: &mpsc::Sender<Vec<u8>>,
) {
    let mut buffer = vec![0; MAX_PACKET];
    loop {
        let passed = async {
            tokio::select! {
                request = requests.recv() => {
                    let request = request?;
                    // Lost like any packet.
                    let _ = near.send(&request).await;
                }
                reply = near.recv(&mut buffer) => {
                    let packet = &buffer[..reply.ok()?];
                    let echo = Echo::parse(packet).filter(|echo| echo.kind == Kind::Reply);
                    let from = echo.and_then(|echo| way_to(host, echo.source)?.route);
                    if from == Some(route) {
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
