//! What tabane keeps in files: keys, relays, peers, neighbours, settings, policies and accounts.
//!
//! Owns names, forms, modes and durability of these files, and how what stands in them is written
//! (rates, spans of time, address ranges, join strings). What is done with any of it is others'
//! business: nothing here opens a socket, waits or decides.

#![forbid(unsafe_code)]

mod as_text;
pub mod atomic_file;
mod join_string;
mod networks;
mod policy_files;
mod policy_report;
mod pool_range;
mod prefix;
pub mod quantity;
mod scratch;
pub mod secret;
mod span;
mod store;
mod usage_error;
pub mod wall_clock;

pub use join_string::{DEFAULT_PORT, JoinString, JoinStringError, Token};
pub use networks::{NETWORKS_FILE, Network, NetworkMemory};
pub use policy_files::{
    POLICY_FILE, POLICY_FILE_NAME, USAGE_FILE, USAGE_FILE_NAME, parse_policy, read_policy,
    read_usage, write_policy,
};
pub use policy_report::PolicyReport;
pub use pool_range::PoolRange;
pub use prefix::{DirectPrefix, PRIVATE, RouteDomain, RoutePrefix, is_private};
pub use scratch::Scratch;
pub use span::Span;
pub use store::{
    EXPOSURES_FILE_NAME, ExposureEntry, FleetMember, FriendEntry, Joined, NeighbourEntry,
    OFFER_FILE, OfferEntry, PeerEntry, RelayEntry, RelayName, Settings, Store, TermsText,
    UpSettings, read_toml, xdg_directory,
};
pub use usage_error::UsageError;
