//! What the gateway is told: what it may do, to whom, and its limits.

use std::net::SocketAddr;

use tabane_base::{Bytes, Duration, Prefix};

/// What the gateway does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Measures, and changes nothing.
    #[default]
    Observe,
    /// Acknowledges in the mobile host's name.
    Assist,
}

/// Ports of protocols that take TCP's word for it that the other program has what was sent: BGP,
/// LDP, syslog, Diameter, SMPP, raw printing. None of them is assisted unless the user says so.
pub const UNTOUCHED_PORTS: [u16; 7] = [179, 514, 601, 646, 2775, 3868, 9100];

/// Settings.
#[derive(Clone, Debug)]
pub struct Config {
    /// What to do.
    pub mode: Mode,
    /// Mobile hosts that are assisted; all where it is empty.
    pub mobiles: Vec<Prefix>,
    /// Servers' ports that are assisted; all but [`untouched`](Self::untouched) where it is empty.
    pub ports: Vec<u16>,
    /// Ports, of either end, that are never assisted.
    pub untouched: Vec<u16>,
    /// Copies kept for one flow; what is on its way to the mobile host never exceeds this.
    pub copies_per_flow: Bytes,
    /// Memory for copies in all, of which one mobile host has no more than are left to all others.
    /// Beyond it segments go on without copies, and are not acknowledged early.
    pub copies_total: Bytes,
    /// Flows that are known at a time; one mobile host has no more than are left to all others.
    /// Further ones pass untouched.
    pub max_flows: usize,
    /// Flows whose handshake is not done; the oldest of the mobile host that has most is forgotten
    /// for a new one.
    pub max_opening: usize,
    /// How long a mobile host to which bytes are owed may keep silent before both ends are reset.
    pub give_up: Duration,
    /// After how long without a packet a flow to which nothing is owed is forgotten.
    pub idle: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            mode: Mode::Observe,
            mobiles: Vec::new(),
            ports: Vec::new(),
            untouched: UNTOUCHED_PORTS.to_vec(),
            copies_per_flow: Bytes::mega(4),
            copies_total: Bytes::mega(256),
            max_flows: 65_536,
            max_opening: 4_096,
            give_up: Duration::from_secs(300),
            idle: Duration::from_secs(7_200),
        }
    }
}

impl Config {
    /// Whether a flow between these may be assisted.
    pub(crate) fn allows(&self, mobile: SocketAddr, server: SocketAddr) -> bool {
        let in_range = |prefix: &Prefix| prefix.contains(mobile.ip());
        let wanted = self.mobiles.is_empty() || self.mobiles.iter().any(in_range);
        let untouched = [mobile.port(), server.port()]
            .iter()
            .any(|port| self.untouched.contains(port));
        let named = self.ports.contains(&server.port());
        wanted && (named || self.ports.is_empty() && !untouched)
    }
}
