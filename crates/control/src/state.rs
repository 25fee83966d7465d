//! The values of the API. `docs/control.md` describes them; the schema is generated from here.
//!
//! An instance fills in what it counts; rates, shares and problems are the board's. Bytes count
//! UDP payload of our packets, rates are bits per second, times are milliseconds, shares and
//! losses are 0 to 1.

mod exposure;
mod fleet;
mod instance;
mod lan_host;
mod link_budget;
mod multipath;
mod packets;
mod rule_use;
mod session_exit;
mod site_route;

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::gateway::Gateway;

pub use exposure::{Exposure, ExposureState, Visitor};
pub use fleet::{Fleet, FleetRelay, FleetRelayState};
pub use instance::{Instance, Kind};
pub use lan_host::LanHost;
pub use link_budget::LinkBudget;
pub use multipath::Multipath;
pub use packets::Packets;
pub use rule_use::RuleUse;
pub use session_exit::SessionExit;
pub use site_route::SiteRoute;

/// Changes when a client of the older version would misunderstand something, not for a new field.
pub const API_VERSION: u32 = 1;

/// An instance at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct State {
    /// The version of this format.
    pub api: u32,
    /// When this was true: milliseconds since 1970.
    pub at_unix_ms: u64,
    /// Whose state it is.
    pub instance: Instance,
    /// In one word.
    pub condition: Condition,
    /// What is wrong, the worst first, and what to do.
    pub problems: Vec<Problem>,
    /// All of it together.
    pub totals: Totals,
    /// At a client of a relay: for how long nothing has come from it, over any link. None where it
    /// has never answered.
    #[serde(default)]
    pub silent_ms: Option<u64>,
    /// What is wrong with the policy file as it is now; the policy before it stays in force.
    #[serde(default)]
    pub policy_fault: Option<String>,
    /// The limit of the relay, or of the session, that sends connections past it at present.
    #[serde(default)]
    pub limit: Option<String>,
    /// What goes by several links without a relay, at a client.
    #[serde(default)]
    pub multipath: Multipath,
    /// Ports of the relay that lead to a client, at either of them.
    #[serde(default)]
    pub exposures: Vec<Exposure>,
    /// The networks behind clients that a relay leads to: a client's own and those of others of its
    /// group.
    #[serde(default)]
    pub routes: Vec<SiteRoute>,
    /// The fleet that a relay is of.
    #[serde(default)]
    pub fleet: Option<Fleet>,
    /// The links of a client, those that are known and not used among them. None at a relay.
    pub links: Vec<Link>,
    /// The sessions there are; of very many the busiest.
    pub sessions: Vec<Session>,
    /// Sessions that there are beside those.
    pub sessions_omitted: u64,
    /// What a client's rules are used for, in their order, and after them what none fits. None
    /// where there are no rules.
    #[serde(default)]
    pub rules: Vec<RuleUse>,
    /// Hosts behind a client that carries for its network, the busiest first.
    #[serde(default)]
    pub lan_hosts: Vec<LanHost>,
    /// What a gateway does. None elsewhere.
    #[serde(default)]
    pub gateway: Option<Gateway>,
    /// What happened lately, oldest first.
    pub events: Vec<Event>,
    /// What the process uses.
    pub process: Process,
}

/// How an instance is, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    /// All is well.
    Up,
    /// It works, but not as well as it could.
    Degraded,
    /// Nothing is carried.
    Down,
}

/// Something wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Problem {
    /// The link that it is about.
    pub link: Option<String>,
    /// What is wrong.
    pub what: String,
    /// What to do about it.
    pub remedy: String,
}

/// What was carried, and how fast at present.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Traffic {
    /// Sent so far.
    pub sent_bytes: u64,
    /// Received so far.
    pub received_bytes: u64,
    /// Packets sent so far.
    pub sent_packets: u64,
    /// Of these, lost.
    pub lost_packets: u64,
    /// Sent over the last second.
    pub sent_bps: u64,
    /// Received over the last second.
    pub received_bps: u64,
    /// Of the packets sent over the last 10 s. None where none were.
    pub loss: Option<f64>,
}

/// An instance as a whole.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Totals {
    /// Over all links and sessions, ended ones included.
    pub traffic: Traffic,
    /// Sessions there are.
    pub sessions: u64,
    /// Sessions there were so far, these included.
    pub sessions_so_far: u64,
    /// At a relay of several workers: sessions that each of them has.
    #[serde(default)]
    pub sessions_by_worker: Vec<u64>,
    /// Connections and UDP flows carried now.
    pub streams: u64,
    /// Connections of a client that went without the relay, though no rule says so.
    #[serde(default)]
    pub bypassing_connections: u64,
    /// The same of UDP flows.
    #[serde(default)]
    pub bypassing_flows: u64,
    /// At a relay: visitors of such ports who were turned away: there were too many, or nobody was
    /// there for what they asked for.
    #[serde(default)]
    pub visitors_turned_away: u64,
    /// Packets that were not used, by reason.
    pub drops: BTreeMap<String, u64>,
}

/// One link of a client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Link {
    /// Its interface, as a rule.
    pub name: String,
    /// Where it stands.
    pub state: LinkState,
    /// Why it cannot be used, or is not.
    pub problem: Option<String>,
    /// The user's wish: what share of it may be used.
    pub weight: f64,
    /// The user's wish: not used at all.
    pub paused: bool,
    /// Its part of all bytes in both directions so far.
    pub share: f64,
    /// Its part of the last second's bytes. None where nothing moved.
    pub share_now: Option<f64>,
    /// What it carried, over all paths that it had.
    pub traffic: Traffic,
    /// Of `web` and `get`: connections and answers that failed over it.
    #[serde(default)]
    pub failures: u64,
    /// Of `web` and `get`: a neighbour's link.
    #[serde(default)]
    pub is_lent: bool,
    /// What it carries is paid for by volume.
    #[serde(default)]
    pub metered: bool,
    /// What it may carry in a period, and has.
    #[serde(default)]
    pub budget: Option<LinkBudget>,
    /// What the policy in force says of it.
    #[serde(default)]
    pub policy: Option<PolicyInForce>,
    /// What carries its packets: udp or tls. None where there is no path.
    #[serde(default)]
    pub carrier: Option<String>,
    /// Why that, where it is not as usual; or why there is none.
    #[serde(default)]
    pub carrier_reason: Option<String>,
    /// The login page (captive portal) that answers in the place of everybody behind it.
    #[serde(default)]
    pub portal: Option<String>,
    /// The path over it, where there is one.
    pub path: Option<Path>,
}

impl Link {
    /// One of which no more is known than this.
    #[must_use]
    pub fn new(name: &str, state: LinkState) -> Self {
        Self {
            name: name.to_owned(),
            state,
            problem: None,
            weight: 1.0,
            paused: false,
            share: 0.0,
            share_now: None,
            traffic: Traffic::default(),
            failures: 0,
            is_lent: false,
            metered: false,
            budget: None,
            policy: None,
            carrier: None,
            carrier_reason: None,
            portal: None,
            path: None,
        }
    }
}

/// What the policy comes to for a link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PolicyInForce {
    /// In a few words.
    pub text: String,
    /// The line of the policy file, as it was read, whose entry decides. None where none fits.
    pub line: Option<usize>,
}

/// Where a link or a path stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum LinkState {
    /// It carries data.
    Active,
    /// The relay has not answered over it yet.
    Opening,
    /// Nothing comes back over it: it is probed and not used.
    Silent,
    /// There is no path over it; it is tried again and again.
    Down,
    /// The user wants it left alone.
    Paused,
    /// It is known, and left out: by the policy, by a spent budget, or by the choice of links.
    Unused,
}

/// One path of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Path {
    /// Its number within the session.
    pub id: u32,
    /// Where it stands.
    pub state: LinkState,
    /// The other end's address.
    pub remote: String,
    /// The round-trip time, smoothed. None where it was never measured.
    pub rtt_ms: Option<f64>,
    /// The least round-trip time.
    pub rtt_min_ms: Option<f64>,
    /// How long packets wait on the way at present: the round-trip time above the least.
    pub queue_ms: Option<f64>,
    /// Sent, and neither acknowledged nor lost.
    pub in_flight_bytes: u64,
    /// The most that may be in flight.
    pub cwnd_bytes: u64,
    /// The rate that the controller believes the path to have, away from here.
    pub bandwidth_bps: u64,
    /// For how long nothing has come over it.
    #[serde(default)]
    pub silent_ms: Option<u64>,
    /// The largest UDP payload sent.
    pub mtu_bytes: u64,
    /// What share of it both ends let be used.
    pub weight: f64,
    /// Used only while no other is active.
    pub backup: bool,
    /// Sent over it a second time because another path was slow with it.
    pub reinjected_bytes: u64,
    /// What it carried.
    pub traffic: Traffic,
}

/// One session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Session {
    /// Counts the instance's sessions.
    pub number: u64,
    /// The other end's key, where it is proved.
    pub peer: Option<String>,
    /// At a client: the peer that it goes straight to, by name. None: it is the relay's.
    #[serde(default)]
    pub straight_to: Option<String>,
    /// At a relay: the worker that has it, from 0.
    #[serde(default)]
    pub worker: Option<usize>,
    /// Where it stands.
    pub state: SessionState,
    /// How old it is; unknown at a client.
    pub age_s: Option<u64>,
    /// Connections and UDP flows carried now.
    pub streams: u64,
    /// Memory of received data that nobody has read yet.
    pub receive_memory_bytes: u64,
    /// Datagrams that wait to leave.
    pub datagrams_queued_bytes: u64,
    /// What it carried.
    pub traffic: Traffic,
    /// What it carried beside TCP and UDP: at a client where anything of the kind is served, at a
    /// relay where the client has addresses.
    #[serde(default)]
    pub packets: Option<Packets>,
    /// At a relay: by which addresses its connections leave, where its user was granted some.
    #[serde(default)]
    pub exit: Option<SessionExit>,
    /// Its paths.
    pub paths: Vec<Path>,
}

/// Where a session stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum SessionState {
    /// Keys are being agreed on, or we are not admitted yet.
    Connecting,
    /// It carries data.
    Connected,
    /// It is over.
    Closed,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Event {
    /// Counts the instance's events, from 1.
    pub number: u64,
    /// When: milliseconds since 1970.
    pub at_unix_ms: u64,
    /// The kind of event.
    pub kind: EventKind,
    /// The link that it is about.
    pub link: Option<String>,
    /// The session that it is about.
    pub session: Option<u64>,
    /// In words.
    pub text: String,
}

/// What kind of thing happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum EventKind {
    SessionUp,
    SessionEnded,
    ClientRefused,
    LinkAdded,
    LinkRemoved,
    LinkUp,
    LinkDown,
    LinkChanged,
}

/// What the process uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Process {
    /// Resident memory.
    pub memory_bytes: u64,
    /// Processor time so far.
    pub cpu_ms: u64,
}

/// Enough of a key to tell clients apart.
#[must_use]
pub fn key_label(key: &str) -> String {
    key.chars().take(8).collect()
}

impl LinkState {
    /// A word for tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Opening => "opening",
            Self::Silent => "silent",
            Self::Down => "down",
            Self::Paused => "paused",
            Self::Unused => "unused",
        }
    }
}

impl Condition {
    /// A word for tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Degraded => "degraded",
            Self::Down => "down",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Traffic {
    /// Bytes in both directions.
    #[must_use]
    pub const fn both(&self) -> u64 {
        self.sent_bytes.saturating_add(self.received_bytes)
    }
}

#[cfg(test)]
pub(crate) mod tests;
