//! The links of this host: which there are, what the user allows them, and what they have carried.
//!
//! Owns one table of links a process ([`Uplinks`]), made anew with every change of interfaces,
//! policy, budgets or NetworkManager's word, and read by whoever uses links; the roll that says why
//! a link is not used ([`LinkRoll`]), and which would be for a connection ([`Explanation`]); what
//! several gateways behind one interface are ([`gateways`]); neighbours whose links may be borrowed
//! ([`lent_links`]), getting to know them ([`pairing`]), and lending this machine's own
//! ([`Lending`]); the policy file as it is read and edited. Its files are written by a thread of
//! their own. No packet of a session passes here, and nobody else lists interfaces or reads the
//! policy while packets are carried.

#![forbid(unsafe_code)]

mod explanation;
mod gateway_router;
pub mod gateways;
mod lending;
pub mod lent_links;
mod link_policy;
mod link_roll;
pub mod links;
mod links_view;
mod near_by;
mod network_manager;
mod networks;
pub mod pairing;
pub mod policy_edit;
mod policy_text;
mod resolvers;
mod surroundings;
mod table;
mod uplinks;
mod web_links;

pub use explanation::{Explanation, LinkRow, RuleRow};
pub use gateway_router::clear_gateways;
pub use lending::{LENDING_PORT, Lending, LendingOrder, counted_by};
pub use link_policy::{LinkPolicy, LinkTerms};
pub use link_roll::LinkRoll;
pub use links_view::{LinksView, Seen};
pub use policy_text::PolicyTextFile;
pub use resolvers::resolvers_of;
pub use table::Table;
pub use uplinks::{COUNT_INTERVAL, Tally, Uplinks};
pub use web_links::{Asker, WebLinks};
