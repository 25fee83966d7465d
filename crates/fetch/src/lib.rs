//! Fetches files from any web server over several links at once, as a web client.
//!
//! Owns HTTP and TLS towards origins: connections by link, redirects, proxies, what an answer's
//! head says. Which bytes are asked for over which link is `tabane-ranges`' to decide; where they
//! go is a [`Sink`]'s; which links there are and how a connection is made over one is the caller's,
//! by [`Links`] and [`Way`]s.
//!
//! Runs on one thread, within a `LocalSet`.

#![forbid(unsafe_code)]

mod abortive;
mod connection;
mod device;
mod engine;
mod exchange;
mod head;
mod job;
mod links;
mod origin;
mod partial;
mod passage;
mod proxies;
mod sink;
mod upload;
mod url;
mod way;
mod whole;

pub use abortive::Abortive;
pub use bytes::Bytes as Data;
pub use connection::{Client, Patience, RequestError};
pub use device::DeviceWay;
pub use engine::{fetch, go_on};
pub use head::basic;
pub use hyper::header::{HeaderMap, HeaderName, HeaderValue};
pub use hyper::http::response::Parts;
pub use job::{FetchError, Job, LinkProgress, Outcome, Progress};
pub use links::{Link, Links, Tally};
pub use passage::{Connection, Download, DownloadError, Opened, Unanswered};
pub use proxies::{Proxies, ProxyError};
pub use sink::{Reader, Sink, StreamSink, stream};
pub use upload::Upload;
pub use url::{Origin, Url, UrlError};
pub use way::{BoxStream, Connecting, Stream, Way, WayError};
pub use whole::{FileDigest, fetch_into_file, fetch_into_stream};
