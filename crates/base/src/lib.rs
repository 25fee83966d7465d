//! The words every other crate speaks: time, sizes, rates, addresses, destinations, seeded chance
//! and content that follows from it.
//!
//! Owns units that carry their dimension in the type, so that arithmetic reads like the formula
//! and a bare integer never crosses a function border. Knows no protocol of ours, reads no clock.

#![forbid(unsafe_code)]

mod content;
mod destination;
mod port;
mod prefix;
mod quantity;
mod rate;
mod rng;
mod size;
mod time;
mod translator;

pub use content::Content;
pub use destination::{Destination, DestinationError, Host};
pub use port::{PortRange, Protocol};
pub use prefix::Prefix;
pub use quantity::{Quantity, scaled_number};
pub use rate::Rate;
pub use rng::{Rng, Seed};
pub use size::Bytes;
pub use time::{Duration, Instant, scale};
pub use translator::Translator;
