//! How good this host's links are: one [`LinkTable`] for all sessions and modes (SBAM §2.4).
//!
//! Fed with plain values by whoever measures (sessions, and whatever else uses a link), read out as
//! snapshots. Owns the filters that make estimates of samples: smoothed and minimal round trip,
//! relative one-way delay, bandwidth by packet pairs, delivery rate, loss, queue. Sends nothing and
//! decides nothing: when to probe is the sessions' affair, what follows from an estimate is that
//! of schedulers and policy.

mod estimates;
mod pair;
mod round_trip;
mod sliding;
mod snapshot;
mod table;
mod traffic;

pub use estimates::{ClockId, Direction, MonitorSettings};
pub use pair::{PairFilter, Train};
pub use snapshot::{LinkEstimate, PathEstimate};
pub use table::{LinkTable, MAX_LINKS, MAX_PATHS, PathKey};
