//! Pings of the command's that go as they would without tabane: to `--direct` destinations, to the
//! networks that this machine is in, to the relay itself, and to all where there is no relay.
//!
//! What asks has a network of its own, so that sockets of ours ask in its place: the system must
//! let this user have them (`net.ipv4.ping_group_range`).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use tabane_base::{Duration, Prefix};
use tabane_linux::{interfaces, private_net::Voice};
use tabane_tunnel::{Client, EchoSender};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::far_ends::FarEnds;
use crate::plain;

use super::{MAX_PINGS, is_link_local};

/// The networks that this machine is in are looked up again after so long.
const FRESH: Duration = Duration::from_secs(2);

/// See the module.
pub(super) struct NearPings {
    far_ends: FarEnds,
    direct: Rc<[Prefix]>,
    /// The networks that this machine is in, and when they were looked up.
    networks: Option<(Vec<Prefix>, Instant)>,
    pings: EchoSender,
}

/// Hands out the pings of `waiting` for ever: those that go without the relay are sent, the others
/// go to `far`.
pub(super) async fn sort(
    far_ends: FarEnds,
    direct: Rc<[Prefix]>,
    voice: Voice,
    mut waiting: mpsc::Receiver<Vec<u8>>,
    far: mpsc::Sender<Vec<u8>>,
) {
    let (replies, mut come) = mpsc::channel(MAX_PINGS);
    let mut near = NearPings {
        far_ends,
        direct,
        networks: None,
        pings: EchoSender::new(replies),
    };
    loop {
        tokio::select! {
            ping = waiting.recv() => match ping {
                Some(ping) => near.take(ping, &far).await,
                None => return,
            },
            Some(reply) = come.recv() => voice.packet(&reply),
        }
    }
}

impl NearPings {
    async fn take(&mut self, packet: Vec<u8>, far: &mpsc::Sender<Vec<u8>>) {
        match EchoSender::destination(&packet) {
            Some(destination) if self.is_near(destination).await => {
                self.send(&packet, destination).await;
            }
            // Lost like any packet where there are too many.
            Some(_) | None => drop(far.try_send(packet)),
        }
    }

    async fn is_near(&mut self, destination: IpAddr) -> bool {
        let Some(relay) = self.far_ends.relay() else {
            return true;
        };
        let is_relay = is_at(relay, destination);
        if is_relay || is_link_local(destination) {
            return true;
        }
        let direct = self.direct.clone();
        let mut known = direct.iter().chain(self.networks().await);
        known.any(|prefix| prefix.contains(destination))
    }

    async fn networks(&mut self) -> &[Prefix] {
        let is_fresh = |(_, at): &(Vec<Prefix>, Instant)| at.elapsed() < FRESH;
        if !self.networks.as_ref().is_some_and(is_fresh) {
            let networks = interfaces::near().await.unwrap_or_default();
            self.networks = Some((networks, Instant::now()));
        }
        self.networks.as_ref().map_or(&[], |(networks, _)| networks)
    }

    async fn send(&mut self, packet: &[u8], destination: IpAddr) {
        let at = SocketAddr::new(destination, 0);
        // The user allows no link that leads there.
        let Ok(metered) = self.far_ends.plain_way(at, None).await else {
            return;
        };
        self.pings.send(packet, |socket| -> io::Result<()> {
            plain::prepare(socket, &metered.way)
        });
    }
}

/// Whether the relay is reached at this address, which it serves to nobody.
fn is_at(relay: &Client, address: IpAddr) -> bool {
    let addresses = relay.relay_addrs();
    let mut addresses = addresses.iter().flatten();
    addresses.any(|known| known.ip().to_canonical() == address)
}
