//! A fetch as its caller sees it: what is asked for, how far it is, and how it ends.

use hyper::header::HeaderMap;
use tabane_base::Rate;
use tabane_ranges::{Failure, Order, Rule, Spans, Version};
use thiserror::Error;

use crate::url::Url;

/// A file to fetch.
#[derive(Clone, Debug)]
pub struct Job {
    /// Where it can be had, the preferred place first. Others than the first are used beside it
    /// only where a digest is checked, else instead of it.
    pub urls: Vec<Url>,
    /// Sent to the URLs' own origins, not where they redirect to.
    pub headers: HeaderMap,
    /// How it is divided among links.
    pub rule: Rule,
    /// The order in which the sink wants it.
    pub order: Order,
    /// The caller checks the whole file's digest.
    pub by_digest: bool,
    /// What an earlier fetch has left.
    pub begun: Option<(Version, Spans)>,
}

/// How a fetch ended well.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Of which version the file is.
    pub version: Version,
    /// The last picture.
    pub progress: Progress,
}

/// How far a fetch is.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// Bytes that are here.
    pub received: u64,
    /// The file's length, where it is known.
    pub length: Option<u64>,
    /// One line for each link that was used or is there.
    pub links: Vec<LinkProgress>,
    /// How often it began anew.
    pub restarts: u32,
    /// The last thing that went wrong.
    pub trouble: Option<String>,
}

/// What a link does for a fetch.
#[derive(Clone, Debug)]
pub struct LinkProgress {
    /// Its name.
    pub name: String,
    /// Bytes that came over it, those asked for twice included.
    pub carried: u64,
    /// How fast it is.
    pub rate: Option<Rate>,
    /// Requests that are out on it.
    pub requests: usize,
    /// It is gone.
    pub is_gone: bool,
}

/// Why a fetch ended without its file.
#[derive(Debug, Error)]
pub enum FetchError {
    /// The network, or the server.
    #[error("{failure}{}", trouble.as_ref().map(|text| format!(": {text}")).unwrap_or_default())]
    Transfer {
        /// What it came to.
        failure: Failure,
        /// What was said last.
        trouble: Option<String>,
    },
    /// The sink.
    #[error("cannot write: {0}")]
    Sink(#[from] std::io::Error),
}
