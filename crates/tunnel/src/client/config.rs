//! What a client needs to know before it begins.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tabane_core::{DatagramOrder, Identity, PublicKey, SessionConfig};

use super::link_bind::LinkBind;
use super::roster::RelayMerit;
use crate::carrier::Proxy;
use crate::monitor::HostMonitor;

/// Where relays listen for UDP beside their own port, if they may: the ports of HTTP/3 and of IPsec
/// behind NAT, which networks spare that let little UDP pass.
pub const UDP_PORTS: [u16; 2] = [443, 4500];

/// A relay that a client may use.
#[derive(Clone)]
pub struct RelayPeer {
    /// What the user calls it.
    pub name: String,
    /// The key that it must prove.
    pub key: PublicKey,
    /// Where it listens, the preferred address first; none while its name is not known. See
    /// [`Client::set_relay_addrs`].
    pub addrs: Vec<SocketAddr>,
    /// What lets us in the first time.
    pub token: Option<Vec<u8>>,
    /// Ports beside its own at which it may listen for UDP as well: tried where that is silent.
    pub udp_ports: Vec<u16>,
    /// Where it takes in TLS, if it does.
    pub tls: Option<TlsPeer>,
}

/// Where a relay takes in TLS: at its addresses, by this port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsPeer {
    /// The TCP port.
    pub port: u16,
    /// The name to ask for (SNI), by which a proxy before the relay tells whom it is for.
    pub name: Option<String>,
}

/// What a client needs to know.
#[derive(Clone)]
pub struct ClientConfig {
    /// Our own key pair.
    pub identity: Identity,
    /// The relays that may be used, the preferred first; more may come to be known, see
    /// [`Client::set_relays`](super::Client::set_relays).
    pub relays: Vec<RelayPeer>,
    /// What is known of each of them; of those that are not there, their order.
    pub merits: Vec<RelayMerit>,
    /// The links to use; with none, one that the routing table chooses.
    pub links: Vec<LinkBind>,
    /// How the session behaves.
    pub session: SessionConfig,
    /// The host's monitor, which learns of every link what the session measures there.
    pub monitor: HostMonitor,
    /// How UDP flows are handed out, both ways, except those that only ask and answer: these are
    /// always handed out at once.
    pub udp_order: DatagramOrder,
    /// Secret randomness, used once.
    pub seed: [u8; 32],
    /// Numbers its sessions; clients that are shown together share one.
    pub numbers: SessionNumbers,
    /// By which TLS goes over links that have no proxy of their own, and directly where that fails.
    pub proxy: Option<Proxy>,
    /// Marks every packet (`SO_MARK`), so that our own hooks leave them alone.
    pub mark: Option<u32>,
}

impl ClientConfig {
    pub(super) fn known_merits(&self) -> Vec<RelayMerit> {
        let mut merits = RelayMerit::in_order(self.relays.len());
        for (merit, known) in merits.iter_mut().zip(&self.merits) {
            *merit = *known;
        }
        merits
    }
}

/// Numbers sessions from 1 on. Clones go on counting together.
#[derive(Clone, Debug, Default)]
pub struct SessionNumbers(Arc<AtomicU64>);

impl SessionNumbers {
    pub(super) fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed) + 1
    }
}
