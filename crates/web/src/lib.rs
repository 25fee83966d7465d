//! An HTTP proxy for programs of this machine, which gives what they ask for to several links.
//!
//! Owns the proxy's side of HTTP: what a request asks for, what of its head is passed on, tunnels,
//! and which link a connection gets. A large file that a plain GET asks for is split over all
//! links; that is `tabane-fetch`'s and `tabane-ranges`' to do. Everything else is passed on as it
//! is, by one link. What a program gets through it is what it would have got without. Tunnels to
//! hosts that the user names are ended here, by certificates of a local authority, so that what is
//! asked for within them is seen and served in the same way.
//!
//! Runs on one thread, within a `LocalSet`.

#![forbid(unsafe_code)]

mod authority;
mod balance;
mod body;
mod doubt;
mod forward;
mod hosts;
mod interception;
mod journal;
mod map;
mod passage;
mod race;
mod refusal;
mod server;
mod split;
mod target;
pub mod trust;
mod tunnel;
mod web_ca;

pub use authority::{Authority, AuthorityError, KeptAuthority};
pub use hosts::{Hosts, HostsError};
pub use interception::{Beyond, Interception};
pub use journal::{Carried, Journal, Record};
pub use map::{Map, MapError};
pub use server::Web;
pub use web_ca::WebCa;
