//! A client of an instance, over its Unix socket.
//!
//! Owns the patience with an instance that does not answer. Every request has a connection of its
//! own: they are few, and local.

use std::io;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::HOST;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::command::{LinkChange, RuleAnswer, RuleQuestion};
use crate::peer;
use crate::state::{API_VERSION, Link, State};
use crate::trace::TraceBatch;

/// How long an instance may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The most that one line may have: a state of some hundred sessions, or 65,536 events.
const MAX_LINE_BYTES: usize = 32 * 1024 * 1024;

/// Why an instance did not answer, or not as asked.
#[derive(Debug, Error)]
pub enum ClientError {
    /// It is not there (any more).
    #[error("the instance does not answer: {0}")]
    Gone(#[source] io::Error),
    /// We may not.
    #[error("the instance belongs to another user: try `sudo tabane …`")]
    NotPermitted,
    /// Somebody else listens there.
    #[error("who listens there is another user: this is no instance of yours")]
    Foreign,
    /// It took too long.
    #[error("the instance did not answer within {} s", PATIENCE.as_secs())]
    TimedOut,
    /// It went away in between.
    #[error("the instance went away: {0}")]
    Broken(#[from] hyper::Error),
    /// It does not want to.
    #[error("{0}")]
    Refused(String),
    /// Not what a tabane of this version says.
    #[error("the instance says something else than this version of tabane expects: {0}")]
    Garbled(#[from] serde_json::Error),
    /// It is of another version.
    #[error("the instance has version {0} of the API, this program {API_VERSION}: restart it")]
    Version(u32),
    /// It tells more than anybody wants to hear.
    #[error("the instance's answer has no end")]
    TooLong,
}

/// A client of one instance.
#[derive(Clone, Debug)]
pub struct Client {
    socket: std::path::PathBuf,
}

/// The states of an instance as they come.
#[derive(Debug)]
pub struct Updates(Lines);

/// A session's record as it comes.
#[derive(Debug)]
pub struct TraceUpdates(Lines);

/// An answer without an end, line by line.
#[derive(Debug)]
struct Lines {
    body: Incoming,
    buffer: Vec<u8>,
}

impl Client {
    /// A client of the instance with this socket.
    #[must_use]
    pub fn new(socket: &Path) -> Self {
        Self {
            socket: socket.to_owned(),
        }
    }

    /// What is true now.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn state(&self) -> Result<State, ClientError> {
        let answer = self.send(Method::GET, "/v1/state", None).await?;
        parse_state(&whole(answer).await?)
    }

    /// Prometheus text.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn metrics(&self) -> Result<String, ClientError> {
        let answer = self.send(Method::GET, "/metrics", None).await?;
        Ok(String::from_utf8_lossy(&whole(answer).await?).into_owned())
    }

    /// Has a link used in another way; gives how it then is.
    ///
    /// # Errors
    /// See [`ClientError`]; the instance's own words where it refuses.
    pub async fn change_link(&self, name: &str, change: LinkChange) -> Result<Link, ClientError> {
        let path = format!("/v1/links/{}", percent_encoded(name));
        let body = serde_json::to_vec(&change)?;
        let answer = self.send(Method::PUT, &path, Some(body)).await?;
        Ok(serde_json::from_slice(&whole(answer).await?)?)
    }

    /// Which rule a connection would fall under, as the instance sees it.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn explain(&self, question: &RuleQuestion) -> Result<RuleAnswer, ClientError> {
        let body = serde_json::to_vec(question)?;
        let answer = self.send(Method::PUT, "/v1/explain", Some(body)).await?;
        Ok(serde_json::from_slice(&whole(answer).await?)?)
    }

    /// The state now and whenever it changes.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn updates(&self) -> Result<Updates, ClientError> {
        let answer = self.send(Method::GET, "/v1/events", None).await?;
        Ok(Updates(Lines::new(answer)))
    }

    /// Has a session recorded, packet by packet, until the result is dropped; without a number the
    /// only one there is.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn trace(&self, session: Option<u64>) -> Result<TraceUpdates, ClientError> {
        let query = session.map_or_else(String::new, |number| format!("?session={number}"));
        let path = format!("/v1/trace{query}");
        let answer = self.send(Method::GET, &path, None).await?;
        Ok(TraceUpdates(Lines::new(answer)))
    }

    /// Sends a request and waits for the head of its answer, which is no error.
    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<Response<Incoming>, ClientError> {
        let sending = async {
            let stream = UnixStream::connect(&self.socket).await.map_err(gone)?;
            if !peer::is_believed(&stream).map_err(gone)? {
                return Err(ClientError::Foreign);
            }
            let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
            tokio::spawn(async move {
                // What became of it, the sender says as well.
                let _ = connection.await;
            });
            let request = Request::builder()
                .method(method)
                .uri(path)
                .header(HOST, "tabane")
                .body(Full::new(Bytes::from(body.unwrap_or_default())))
                .expect("the path is encoded");
            let answer = sender.send_request(request).await?;
            if answer.status() == StatusCode::OK {
                return Ok(answer);
            }
            let status = answer.status();
            let body = whole(answer).await?;
            let error = serde_json::from_slice::<serde_json::Value>(&body).ok();
            let text = error.and_then(|error| Some(error.get("error")?.as_str()?.to_owned()));
            Err(ClientError::Refused(
                text.unwrap_or_else(|| status.to_string()),
            ))
        };
        timeout(PATIENCE, sending)
            .await
            .unwrap_or(Err(ClientError::TimedOut))
    }
}

impl Updates {
    /// The next state; `None` when the instance has ended.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn next(&mut self) -> Result<Option<State>, ClientError> {
        while let Some(line) = self.0.next().await? {
            if let Some(data) = line.strip_prefix(b"data: ") {
                return parse_state(data).map(Some);
            }
        }
        Ok(None)
    }
}

impl TraceUpdates {
    /// What happened since the last call; `None` when the session is over.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn next(&mut self) -> Result<Option<TraceBatch>, ClientError> {
        match self.0.next().await? {
            Some(line) => Ok(Some(serde_json::from_slice(&line)?)),
            None => Ok(None),
        }
    }
}

impl Lines {
    fn new(answer: Response<Incoming>) -> Self {
        Self {
            body: answer.into_body(),
            buffer: Vec::new(),
        }
    }

    async fn next(&mut self) -> Result<Option<Vec<u8>>, ClientError> {
        let mut looked = 0;
        loop {
            let fresh = &self.buffer[looked..];
            if let Some(end) = fresh.iter().position(|byte| *byte == b'\n') {
                return Ok(Some(self.buffer.drain(..=looked + end).collect()));
            }
            looked = self.buffer.len();
            match self.body.frame().await {
                Some(frame) => {
                    if let Ok(data) = frame?.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
                None => return Ok(None),
            }
            if self.buffer.len() > MAX_LINE_BYTES {
                return Err(ClientError::TooLong);
            }
        }
    }
}

fn gone(error: io::Error) -> ClientError {
    match error.kind() {
        io::ErrorKind::PermissionDenied => ClientError::NotPermitted,
        _ => ClientError::Gone(error),
    }
}

async fn whole(answer: Response<Incoming>) -> Result<Bytes, ClientError> {
    match timeout(PATIENCE, answer.into_body().collect()).await {
        Ok(body) => Ok(body?.to_bytes()),
        Err(_) => Err(ClientError::TimedOut),
    }
}

fn parse_state(bytes: &[u8]) -> Result<State, ClientError> {
    #[derive(serde::Deserialize)]
    struct Version {
        api: u32,
    }
    let Version { api } = serde_json::from_slice(bytes)?;
    if api != API_VERSION {
        return Err(ClientError::Version(api));
    }
    Ok(serde_json::from_slice(bytes)?)
}

fn percent_encoded(name: &str) -> String {
    name.bytes().fold(String::new(), |mut text, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
        text
    })
}
