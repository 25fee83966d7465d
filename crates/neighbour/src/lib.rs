//! Lends this machine's link to friends near by, and borrows theirs: for the web, and as a path of
//! a session.
//!
//! Owns what passes between two neighbours: TLS 1.3 with keys that both have pinned, HTTP CONNECT
//! and nothing else within it, ports that pass a session's datagrams on for as long as such a
//! connection asks for it, the pairing by which neighbours learn each other's keys, and the call by
//! which one is found that announces nothing. The one who lends sees which hosts are asked for and
//! how much, never what.
//!
//! Which friends there are, what each may use and where that is written down is the caller's; so is
//! the way out, a [`tabane_fetch::Way`]. Towards fetches a neighbour is one, too.
//!
//! Runs on one thread, within a `LocalSet`.

#![forbid(unsafe_code)]

mod borrow;
mod call;
mod carry;
mod code;
mod forward;
mod friends;
mod head;
mod leash;
mod pairing;
mod public;
mod share;
mod strangers;
mod tls;

pub use borrow::{NeighbourWay, PairError, Paired, pair};
pub use call::{CallRoute, answer_calls, call};
pub use code::{ATTEMPTS, Code, CodeError, Offer};
pub use forward::{DATAGRAM_PORTS, DatagramOut};
pub use friends::{Friends, Terms};
pub use leash::{Leash, is_there};
pub use pairing::MAX_NAME;
pub use public::is_public;
pub use share::{DEFAULT_PORTS, Desk, Share};
pub use strangers::fuzz_readers;
