//! A relay of a fleet: what the fleet's relays share, kept in etcd and followed there.
//!
//! Owns what stands under which key ([`records`]), the thread that follows it ([`worker`]) and what
//! a relay's own thread has of that ([`FleetKeeper`]), the last copy on disk, and what an owner
//! does to the fleet ([`FleetOwner`]). No packet waits for etcd: it is spoken to by the fleet's own
//! thread, and what was known last is in force while it is away.

mod book;
mod copy;
mod exchange;
mod file;
mod keeper;
mod owner;
mod records;
mod report;
#[cfg(test)]
mod tests;
mod worker;

pub use book::FleetBook;
pub(crate) use exchange::News;
pub use exchange::{FleetOrder, check_fleet_words};
pub use file::FleetFile;
pub(crate) use keeper::{COUNT_INTERVAL, FleetKeeper, FleetView};
pub use owner::FleetOwner;
pub use records::fuzz_etcd;
