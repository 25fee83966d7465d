//! Which bytes of a file are asked for over which link, and when: one file, several links, servers
//! that know nothing of it.
//!
//! Owns the [`Transfer`]: requests, what has arrived, which version of the file it is of, what is
//! late and asked for again elsewhere. Knows neither sockets nor HTTP: answers come in as values,
//! requests go out as values. Every byte is handed over once, and all are of one version.

#![forbid(unsafe_code)]

mod answer;
mod link;
mod rule;
mod span;
mod transfer;

pub use answer::{Answer, ContentRange, EntityTag, Version};
pub use link::{LinkId, LinkLimits};
pub use rule::{Rule, UnknownRule};
pub use span::{ByteRange, Spans};
pub use transfer::{
    BodyUse, Command, Event, Failure, Fault, Method, Order, Piece, Request, RequestId, Settings,
    SourceId, Transfer,
};
