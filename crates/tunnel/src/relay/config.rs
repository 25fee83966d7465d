//! What a relay needs to know before it starts.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU8;
use std::sync::Arc;

use tabane_core::{Identity, PublicKey, ServerConfig, SessionConfig};
use tokio::sync::watch;

use super::applicant::Authorise;
use super::exit::ExitConfig;
use super::listening::Inheritance;
use super::web_door::WebDoor;
use crate::access::Access;
use crate::monitor::HostMonitor;

/// The epoch of a fleet's list of relays, and the list; what it says is its readers' affair.
pub type FleetList = watch::Receiver<(u64, Arc<[u8]>)>;

/// How much relays of the fleet have to do, by their keys, in thousandths of what each is meant
/// for; those of which nobody has said that are left out.
pub type FleetLoads = watch::Receiver<Arc<[(PublicKey, u16)]>>;

/// What a relay needs to know.
pub struct RelayConfig {
    /// The relay's own key pair; join strings pin its public key.
    pub identity: Identity,
    /// UDP addresses to serve; `[::]` serves IPv4 as well.
    pub listen: Vec<SocketAddr>,
    /// Which destinations clients may reach. This host's own addresses count as private ones.
    pub access: Access,
    /// Further addresses that lead to this host, because a NAT forwards them.
    pub own_addresses: Vec<IpAddr>,
    /// How many of what one session may have.
    pub limits: RelayLimits,
    /// Limits of the endpoint as a whole.
    pub server: ServerConfig,
    /// How sessions behave.
    pub session: SessionConfig,
    /// Is told of everybody who wants to be let in.
    pub authorise: Authorise,
    /// What clients that ask for the relay's resolver get, best first; see
    /// [`system_resolvers`](crate::system_resolvers).
    pub resolvers: Vec<SocketAddr>,
    /// The host's monitor; the relay's one link is called by the address it listens on.
    pub monitor: HostMonitor,
    /// Secret randomness, used once.
    pub seed: [u8; 32],
    /// Marks every packet (`SO_MARK`), where this machine's own hooks must leave them alone.
    pub mark: Option<u32>,
    /// By which packets that are neither TCP nor UDP leave, with addresses of a pool; without,
    /// pings alone are served.
    pub exit: Option<ExitConfig>,
    /// Threads that serve sessions, this one included; [`MAX_WORKERS`](tabane_core::MAX_WORKERS)
    /// at most.
    pub workers: NonZeroU8,
    /// The sockets of a process that this one takes over from.
    pub inheritance: Option<Inheritance>,
    /// The list of its fleet's relays as the fleet signed it, with its epoch, for clients that ask;
    /// `None` for a relay of no fleet.
    pub fleet_list: Option<FleetList>,
    /// What its relays have to do.
    pub fleet_loads: Option<FleetLoads>,
    /// Where clients come by TLS.
    pub web_doors: Vec<WebDoor>,
}

/// What one client may have at once.
#[derive(Clone, Copy, Debug)]
pub struct RelayLimits {
    /// Sessions of one key, unless it is of a user, whose own limit holds then.
    pub sessions: usize,
    /// TCP connections of one session; each costs the relay a file descriptor.
    pub connections: usize,
    /// UDP flows of one session; each costs a file descriptor.
    pub flows: usize,
    /// Those at once who come to ports and networks that lead to one session's client: so many by
    /// TCP to ports and by UDP, so many connections and flows of UDP to networks, and so many ways
    /// of packets there.
    pub visitors: usize,
}

impl Default for RelayLimits {
    /// A household's worth: routers' tables for a home hold about as many.
    fn default() -> Self {
        Self {
            sessions: 8,
            connections: 4_096,
            flows: 1_024,
            visitors: 2_048,
        }
    }
}
