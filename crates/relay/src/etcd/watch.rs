//! What changes in etcd, as it does.

use http_body_util::BodyExt;
use hyper::Response;
use hyper::body::Incoming;

use super::EtcdError;
use super::connection::Connection;
use super::messages::{Entry, Fault, Results, Watched};

/// The most bytes of one message: etcd's own limit for a request is 1.5 MB, a message has several.
const MAX_MESSAGE: usize = 16 << 20;

/// A watch; over when [`next`](Self::next) fails.
pub(crate) struct Watch {
    /// Keeps the connection.
    _connection: Connection,
    answer: Response<Incoming>,
    unread: Vec<u8>,
}

/// What has changed, all at one revision or several.
#[derive(Debug, Default)]
pub(crate) struct Changed {
    /// Until which all changes have been told by now; 0: that is not known.
    pub(crate) revision: i64,
    /// A key with its entry, or without: it was deleted.
    pub(crate) entries: Vec<(String, Option<Entry>)>,
}

impl Watch {
    pub(super) fn new(connection: Connection, answer: Response<Incoming>) -> Self {
        Self {
            _connection: connection,
            answer,
            unread: Vec::new(),
        }
    }

    /// Waits for the next message. May be given up and called again.
    pub(crate) async fn next(&mut self) -> Result<Changed, EtcdError> {
        loop {
            if let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                return read(&line);
            }
            let ended = || EtcdError::Away("the watch ended".to_owned());
            let frame = self.answer.body_mut().frame().await.ok_or_else(ended)?;
            let frame = frame.map_err(|error| EtcdError::Away(error.to_string()))?;
            if let Ok(data) = frame.into_data() {
                if self.unread.len() + data.len() > MAX_MESSAGE {
                    return Err(EtcdError::Answer("a message without an end".to_owned()));
                }
                self.unread.extend_from_slice(&data);
            }
        }
    }
}

pub(super) fn read(line: &[u8]) -> Result<Changed, EtcdError> {
    let odd = |error: serde_json::Error| EtcdError::Answer(error.to_string());
    let results: Results<Watched> = serde_json::from_slice(line).map_err(odd)?;
    if let Some(error) = results.error {
        return Err(Fault::Plain(error).into());
    }
    let watched = results.result.unwrap_or_default();
    if watched.compact_revision.0 > 0 {
        return Err(EtcdError::Compacted);
    }
    if watched.canceled {
        let why = watched.cancel_reason;
        // A user's token is over, or its rights.
        return Err(match why.contains("permission") || why.contains("auth") {
            true => EtcdError::Denied(why),
            false => EtcdError::Away(format!("the watch was ended: {why}")),
        });
    }
    // A header is ahead of what is told in a watch's first message, and in parts of what it catches
    // up with. Only where it stands alone is everything told until then.
    let last = watched.events.iter().map(|it| it.kv.mod_revision.0).max();
    let alone = match watched.created {
        true => 0,
        false => watched.header.revision.0,
    };
    let mut changed = Changed {
        revision: last.unwrap_or(alone),
        entries: Vec::new(),
    };
    for event in watched.events {
        let is_gone = event.kind == "DELETE";
        if let Some(entry) = event.kv.read()? {
            let key = entry.key.clone();
            changed.entries.push((key, (!is_gone).then_some(entry)));
        }
    }
    Ok(changed)
}
