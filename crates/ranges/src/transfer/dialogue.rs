//! What a transfer and its driver say to each other: what is wanted and how, requests to make and
//! to drop, what became of them, and how it ends.

use tabane_base::{Bytes, Duration};
use thiserror::Error;

use crate::answer::{EntityTag, Version};
use crate::link::LinkId;
use crate::rule::Rule;
use crate::span::ByteRange;

/// A request, by a number that is never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// One of the places where the file can be had, in the caller's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SourceId(pub u32);

/// In which order bytes are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Any: they go into a file.
    Any,
    /// One after another; what is early waits in `window` bytes of memory. What would not
    /// fit is left in its connection: see [`Transfer::wants`](super::Transfer::wants).
    Stream {
        /// How far ahead of what was consumed bytes may be asked for.
        window: Bytes,
    },
}

/// How a transfer is to be done.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How it is divided among links.
    pub rule: Rule,
    /// Where it goes.
    pub order: Order,
    /// Somebody checks the whole file's digest at the end, so equal lengths are enough to take
    /// answers for the same file's.
    pub by_digest: bool,
    /// How many places it can be had from.
    pub sources: u32,
    /// Given up after so long without one byte.
    pub patience: Duration,
}

/// What to ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// The bytes.
    Get,
    /// The head only.
    Head,
}

/// A request to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its number.
    pub id: RequestId,
    /// By which link.
    pub link: LinkId,
    /// Of which source.
    pub source: SourceId,
    /// What to ask for.
    pub method: Method,
    /// Which bytes; `None`: no `Range` header, because this source does not understand it.
    pub range: Option<ByteRange>,
    /// For `If-Range`, where there is a range.
    pub if_range: Option<EntityTag>,
}

/// What the driver is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Make a request.
    Start(Request),
    /// Drop a request: nothing of it is wanted any more.
    Cancel(RequestId),
}

/// What the driver may want to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The first answer came; ranges are of this version from here on.
    Begun(Version),
    /// What was handed over is void: the file has changed, or cannot be told from another. It
    /// begins anew.
    Restarted,
    /// Every byte was handed over.
    Complete,
    /// It comes to nothing.
    Failed(Failure),
}

/// Why a transfer came to nothing.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Failure {
    /// The server said no.
    #[error("the server answered with status {0}")]
    Refused(u16),
    /// The server asks for more patience than there is.
    #[error("the server is busy (status {status}) and asks to come back later")]
    Busy {
        /// 429, 503, …
        status: u16,
    },
    /// The answers contradict themselves.
    #[error("the server's answers contradict each other")]
    Garbled,
    /// The file changed while it was fetched, and what was consumed cannot be taken back.
    #[error("the file changed while it was fetched")]
    Changed,
    /// The answer broke off, and what was consumed can be neither continued nor taken back.
    #[error("the connection was cut, and this server cannot continue where it was")]
    Cut,
    /// No connection came to an answer.
    #[error("no link reaches the server")]
    Unreachable,
    /// Nothing came for as long as patience lasts.
    #[error("nothing has come for {} s", .0.as_secs())]
    Silent(Duration),
    /// There was no link for as long as patience lasts.
    #[error("there is no link to fetch by")]
    NoLink,
}

/// Whether to read an answer's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyUse {
    /// Read it.
    Take,
    /// Drop it; the request is over.
    Drop,
}

/// What went wrong with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The connection failed, or broke.
    Broken,
    /// It will not work another time either: no such name, a certificate that is not valid.
    Hopeless,
}

/// Bytes of a body that are new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where they belong.
    pub offset: u64,
    /// Where they begin in what arrived.
    pub skip: usize,
    /// How many.
    pub len: usize,
}
