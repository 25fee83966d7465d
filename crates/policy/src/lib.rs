//! What a host's links may be used for, and what they may cost: one policy for every mode.
//!
//! Owns the policy file, the choice of the entry that concerns a link, of the rule that concerns a
//! connection and of what is done when something happens, what they come to, and the account of
//! data budgets. Pure: what the links are, what
//! was carried and what day it is are arguments; files are read and written elsewhere. Carrying a
//! decision out is each mode's affair.

#![forbid(unsafe_code)]

mod budget;
mod calendar;
mod file;
mod gateway;
mod glob;
mod hardware;
mod hours;
mod link;
mod list;
mod matching;
mod reaction;
mod reader;
mod rule;
mod source;
mod usage;

pub use budget::{Budget, Period};
pub use calendar::UnixDay;
pub use file::{MAX_CLASSES, Policy, PolicyError};
pub use gateway::Gateway;
pub use hardware::HardwareAddress;
pub use hours::Hours;
pub use link::{Carriers, Decision, LinkFacts, LinkUse, MAX_PRIORITY};
pub use matching::FlowFacts;
pub use reaction::{Post, Reaction, Trigger};
pub use reader::Fault;
pub use rule::{OnFailure, Order, Rule, Treatment};
pub use source::Sender;
pub use tabane_base::Protocol;
pub use usage::Usage;
