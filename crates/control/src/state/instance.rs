//! Who an instance is, and a state of it that says nothing else.

use serde::{Deserialize, Serialize};

use super::{API_VERSION, Condition, Multipath, Process, State, Totals};
use crate::clock_instant::ClockInstant;
use crate::directory::Naming;

/// A process that carries something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Instance {
    /// Its name for `--instance`.
    pub name: String,
    /// What kind of command it is.
    pub kind: Kind,
    /// Its process.
    pub pid: u32,
    /// The program's version.
    pub version: String,
    /// Since when it runs: milliseconds since 1970.
    pub started_at_unix_ms: u64,
    /// The same in the process itself, for when its clock is set.
    #[serde(skip)]
    pub(super) started_at: ClockInstant,
    /// The command it runs, or where it listens.
    pub about: String,
    /// The relay it is a client of, by name.
    pub relay: Option<String>,
    /// Where it serves this over HTTP as well.
    pub http: Option<String>,
}

/// Which command an instance is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// `tabane run`.
    Run,
    /// `tabane proxy`.
    Proxy,
    /// `tabane up`.
    Up,
    /// `tabane relay`.
    Relay,
    /// `tabane web`.
    Web,
    /// `tabane get`.
    Get,
    /// `tabane sctp`.
    Sctp,
    /// `tabane gateway`.
    Gateway,
    /// `tabane expose`.
    Expose,
}

impl Instance {
    /// This process, as of now, not seen by anybody yet.
    #[must_use]
    pub fn new(kind: Kind, name: String, about: String, relay: Option<String>) -> Self {
        let started_at = ClockInstant::now();
        Self {
            name,
            kind,
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at_unix_ms: started_at.unix_millis(),
            started_at,
            about,
            relay,
            http: None,
        }
    }
}

impl Kind {
    /// Whether it has links and no session.
    #[must_use]
    pub const fn has_links_alone(self) -> bool {
        matches!(self, Self::Web | Self::Get | Self::Sctp)
    }

    /// As the command is called.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Proxy => "proxy",
            Self::Up => "up",
            Self::Relay => "relay",
            Self::Web => "web",
            Self::Get => "get",
            Self::Sctp => "sctp",
            Self::Gateway => "gateway",
            Self::Expose => "expose",
        }
    }

    /// What if another instance has its name: of some there is one, or none.
    #[must_use]
    pub const fn naming(self) -> Naming {
        match self {
            Self::Up | Self::Gateway => Naming::Exclusive,
            Self::Run
            | Self::Proxy
            | Self::Relay
            | Self::Web
            | Self::Get
            | Self::Sctp
            | Self::Expose => Naming::WithPid,
        }
    }
}

impl State {
    /// Who speaks, and nothing else.
    #[must_use]
    pub fn of(instance: &Instance) -> Self {
        Self {
            api: API_VERSION,
            at_unix_ms: ClockInstant::now().unix_millis(),
            instance: Instance {
                started_at_unix_ms: instance.started_at.unix_millis(),
                ..instance.clone()
            },
            condition: Condition::Up,
            problems: Vec::new(),
            totals: Totals::default(),
            silent_ms: None,
            policy_fault: None,
            limit: None,
            multipath: Multipath::default(),
            exposures: Vec::new(),
            fleet: None,
            lan_hosts: Vec::new(),
            routes: Vec::new(),
            links: Vec::new(),
            sessions: Vec::new(),
            sessions_omitted: 0,
            rules: Vec::new(),
            gateway: None,
            events: Vec::new(),
            process: Process::default(),
        }
    }
}
