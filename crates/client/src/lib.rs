//! The client engine: how programs' traffic gets in, by which way it goes, and the sessions it goes
//! through.
//!
//! Owns the entrances (hooks, a network of its own, the whole machine, hosts behind it, a proxy),
//! the rules of connections, the choice of the far end (a peer, the relay, or plainly by which
//! link), how peers are found, the sessions with all of them on the links that come and go, what
//! went which way, who is told of what happens (`events`), and what this machine lacks for each of
//! its modes (`doctor`). Links are `tabane-uplinks`', a session's packets are `tabane-tunnel`'s.
//! Nothing here reads a command line or speaks to a terminal.

#![forbid(unsafe_code)]

mod associations;
mod bypass;
mod client_session;
mod dead_families;
mod discovery;
mod dispatcher;
mod dns_answer;
pub mod doctor;
mod early_view;
mod entrance;
pub mod environment;
mod events;
mod exposing;
mod far_ends;
mod interception;
mod lan_hosts;
pub mod last_run;
mod lent_paths;
mod link_follower;
pub mod link_survey;
pub mod machine;
mod multipath;
mod near_names;
mod open_connections;
mod opening;
mod peer_memory;
mod peers;
mod plain;
mod plain_meter;
mod plain_way;
mod portals;
pub mod private_network;
pub mod proxy;
mod proxying;
mod questions;
pub mod reach;
mod route;
mod rule_book;
mod sites;
mod sources;
pub mod speed;
mod statistics;
mod surroundings;
mod udp_order;
mod via;
mod view;

pub use client_session::{Sending, SessionOrder, SessionPlan};
pub use dns_answer::fuzz_dns;
pub use early_view::EarlyView;
pub use entrance::Entrance;
pub use events::{Alert, Events};
pub use exposing::{ExposureReport, ExposureState, Exposures, VisitorReport};
pub use far_ends::{FarEnds, Seen};
pub use open_connections::OpenConnections;
pub use plain_way::PlainBond;
pub use portals::{Probe, fuzz_portals};
pub use proxying::ProxyListener;
pub use rule_book::{RuleBook, RuleUse};
pub use sites::{Behind, check_domains, check_routes};
pub use statistics::{LinkReport, RunReport, Statistics};
pub use udp_order::{NoOrder, UdpOrder};
pub use view::ClientView;
