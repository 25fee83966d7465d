//! What changes in etcd, as it does.

use http_body_util::BodyExt;
use hyper::Response;
use hyper::body::Incoming;
use tabane_core::one_line;

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
    lines: Lines,
}

/// What has come and was not taken yet, line by line.
#[derive(Default)]
struct Lines {
    bytes: Vec<u8>,
    /// So many of them were taken.
    taken: usize,
    /// Before this there is no end of the next line.
    looked: usize,
}

impl Lines {
    /// More has come.
    fn push(&mut self, data: &[u8]) -> Result<(), EtcdError> {
        // Not with each line: what is moved is never more than what was taken since.
        if self.taken >= self.bytes.len() / 2 {
            self.bytes.drain(..self.taken);
            self.looked -= std::mem::take(&mut self.taken);
        }
        if self.bytes.len() - self.taken + data.len() > MAX_MESSAGE {
            return Err(EtcdError::Answer("a message without an end".to_owned()));
        }
        self.bytes.extend_from_slice(data);
        Ok(())
    }

    /// Takes the next line, once its end is there.
    fn next(&mut self) -> Option<Vec<u8>> {
        let unread = &self.bytes[self.looked..];
        let Some(end) = unread.iter().position(|byte| *byte == b'\n') else {
            self.looked = self.bytes.len();
            return None;
        };
        let from = self.taken;
        self.taken = self.looked + end + 1;
        self.looked = self.taken;
        Some(self.bytes[from..self.taken].to_vec())
    }
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
            lines: Lines::default(),
        }
    }

    /// Waits for the next message. May be given up and called again.
    pub(crate) async fn next(&mut self) -> Result<Changed, EtcdError> {
        loop {
            if let Some(line) = self.lines.next() {
                return read(&line);
            }
            let ended = || EtcdError::Away("the watch ended".to_owned());
            let frame = self.answer.body_mut().frame().await.ok_or_else(ended)?;
            let frame = frame.map_err(|error| EtcdError::Away(error.to_string()))?;
            if let Ok(data) = frame.into_data() {
                self.lines.push(&data)?;
            }
        }
    }
}

pub(super) fn read(line: &[u8]) -> Result<Changed, EtcdError> {
    let odd = |error: serde_json::Error| EtcdError::Answer(one_line(&error.to_string()));
    let results: Results<Watched> = serde_json::from_slice(line).map_err(odd)?;
    if let Some(error) = results.error {
        return Err(Fault::Plain(error).into());
    }
    let watched = results.result.unwrap_or_default();
    if watched.compact_revision.0 > 0 {
        return Err(EtcdError::Compacted);
    }
    if watched.canceled {
        let why = one_line(&watched.cancel_reason);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What it takes to read so many bytes, of lines of nothing or of one that comes in crumbs.
    fn taken(bytes: usize, crumb: &[u8]) -> std::time::Duration {
        let since = std::time::Instant::now();
        let mut lines = Lines::default();
        let pieces = bytes / crumb.len();
        match crumb.ends_with(b"\n") {
            true => lines.push(&crumb.repeat(pieces)).unwrap(),
            false => (0..pieces).for_each(|_| {
                lines.push(crumb).unwrap();
                assert!(lines.next().is_none());
            }),
        }
        while lines.next().is_some() {}
        since.elapsed()
    }

    #[test]
    fn work_is_no_square_of_what_came() {
        for crumb in [&b"{}\n"[..], b"0123456789"] {
            let few = (0..5).map(|_| taken(10_000, crumb)).min().unwrap();
            let many = taken(1_000_000, crumb);
            println!("{few:?} for 10 kB, {many:?} for a hundred times as much");
            assert!(many < 1_000 * few.max(std::time::Duration::from_micros(20)));
        }
    }

    #[test]
    fn lines_come_whole_and_in_order_and_none_grows_without_end() {
        let mut lines = Lines::default();
        for piece in [&b"a"[..], b"b\n\ncd", b"e\nf"] {
            lines.push(piece).unwrap();
        }
        assert_eq!(lines.next().unwrap(), b"ab\n");
        assert_eq!(lines.next().unwrap(), b"\n");
        lines.push(b"g\n").unwrap();
        assert_eq!(lines.next().unwrap(), b"cde\n");
        assert_eq!(lines.next().unwrap(), b"fg\n");
        assert_eq!(lines.next(), None);
        let endless = vec![0; MAX_MESSAGE];
        lines.push(&endless).unwrap();
        assert!(lines.push(b"0").is_err());
    }
}
