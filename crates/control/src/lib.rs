//! How a running tabane is seen and steered: JSON over HTTP/1.1 on a Unix socket.
//!
//! Owns the types of the API, the thread that serves them, how often an instance looks at itself
//! for it ([`report`]), the client, the directory in which instances are found, the metrics, and
//! the form of records of sessions (qlog). Knows no session: an instance gives [`State`]s and takes
//! [`Command`]s through channels, so its data path answers nobody and waits for nobody.
//!
//! Invariants: whatever a control client does costs the data path nothing but the commands that
//! it carries out, and looks at an instance that wants to be asked ([`Pace::WhenAsked`]) are few;
//! every input has a limit; only the instance's user and root are served on the socket, only
//! holders of the token over loopback HTTP.

#![forbid(unsafe_code)]

mod board;
#[cfg(feature = "dashboard")]
mod bridge;
mod client;
mod clock_instant;
mod command;
#[cfg(feature = "dashboard")]
mod dashboard;
mod directory;
mod door;
mod gateway;
mod metrics;
mod patient;
mod peer;
mod places;
mod policy_file;
mod problems;
mod process;
mod qlog;
mod reporting;
mod routes;
mod running;
mod schema;
mod server;
mod state;
mod trace;

#[cfg(feature = "dashboard")]
pub use bridge::Bridge;
pub use client::{Client, ClientError, TraceUpdates, Updates};
pub use clock_instant::ClockInstant;
pub use command::{Command, LinkChange, Pace, RuleAnswer, RuleQuestion};
pub use directory::{
    Directory, DirectoryError, FindError, Naming, RELAY_SERVICE, Running, write_private,
};
pub use gateway::{Flow, Gateway, GatewayMode, GatewayTotals, Stance};
pub use metrics::{render as render_metrics, render_fleet};
pub use policy_file::{
    LinkEntry, LinkEntryChange, PolicyChange, PolicyFile, PolicyRefusal, PolicyText,
};
pub use qlog::Qlog;
pub use reporting::{InstanceView, report};
pub use running::{running, running_clients};
pub use server::{HttpConfig, Publisher, ServeError, Server, ServerConfig};
pub use state::{
    API_VERSION, Condition, Event, EventKind, Exposure, ExposureState, Fleet, FleetRelay,
    FleetRelayState, Instance, Kind, LanHost, Link, LinkBudget, LinkState, Multipath, Packets,
    Path, PolicyInForce, Problem, Process, RuleUse, Session, SessionExit, SessionState, SiteRoute,
    State, Totals, Traffic, Visitor, key_label,
};
pub use trace::{TraceBatch, TraceEntry, TraceFrame, TraceWhat};
