//! Where a file's bytes go.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::http::response::Parts;
use tabane_ranges::{Spans, Version};
use tokio::sync::{Notify, mpsc};

/// Takes bytes as they come: each once, in any order.
pub trait Sink {
    /// The first answer came. After a restart it comes again.
    ///
    /// # Errors
    /// There is no place for it; the fetch ends.
    fn begin(&mut self, version: &Version, head: &Parts) -> io::Result<()>;

    /// Bytes from a position on.
    ///
    /// # Errors
    /// They cannot be kept; the fetch ends.
    fn write(&mut self, position: u64, bytes: Bytes) -> io::Result<()>;

    /// Nothing written so far counts.
    ///
    /// # Errors
    /// It cannot be taken back; the fetch ends.
    fn restart(&mut self) -> io::Result<()>;

    /// Called a few times a second, with what was written; `resumable` tells whether it can be
    /// continued later.
    ///
    /// # Errors
    /// It cannot be noted; the fetch ends.
    fn checkpoint(&mut self, _written: &Spans, _resumable: bool) -> io::Result<()> {
        Ok(())
    }

    /// Where a reader takes bytes in order, how far it is.
    fn consumption(&self) -> Option<Rc<Consumption>> {
        None
    }
}

/// How far the reader of a stream is.
#[derive(Debug, Default)]
pub struct Consumption {
    position: Cell<u64>,
    changed: Notify,
}

impl Consumption {
    pub(crate) fn position(&self) -> u64 {
        self.position.get()
    }

    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }
}

/// The writing end of a stream; see [`stream`].
#[derive(Debug)]
pub struct StreamSink {
    consumption: Rc<Consumption>,
    heads: mpsc::UnboundedSender<Piece>,
    /// The next byte to hand out.
    position: u64,
    early: BTreeMap<u64, Bytes>,
    begun: bool,
}

/// The reading end of a stream.
#[derive(Debug)]
pub struct Reader {
    consumption: Rc<Consumption>,
    pieces: mpsc::UnboundedReceiver<Piece>,
}

#[derive(Debug)]
enum Piece {
    Head(Box<Parts>, Option<u64>),
    Bytes(Bytes),
}

/// Both ends of a stream: the head first, then bytes in order. What is early waits in memory, as
/// much as the job's window says.
#[must_use]
pub fn stream() -> (StreamSink, Reader) {
    let consumption = Rc::new(Consumption::default());
    let (heads, pieces) = mpsc::unbounded_channel();
    let sink = StreamSink {
        consumption: consumption.clone(),
        heads,
        position: 0,
        early: BTreeMap::new(),
        begun: false,
    };
    let reader = Reader {
        consumption,
        pieces,
    };
    (sink, reader)
}

impl Reader {
    /// The first answer's head and the file's length, where it is known; `None`: the fetch failed
    /// before.
    pub async fn head(&mut self) -> Option<(Parts, Option<u64>)> {
        loop {
            match self.pieces.recv().await? {
                Piece::Head(parts, length) => return Some((*parts, length)),
                Piece::Bytes(_) => {}
            }
        }
    }

    /// The next bytes; `None` at the end, or where the fetch failed.
    pub async fn next(&mut self) -> Option<Bytes> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    /// As [`next`](Self::next), for whoever polls.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        loop {
            let Some(piece) = ready!(self.pieces.poll_recv(context)) else {
                return Poll::Ready(None);
            };
            if let Piece::Bytes(bytes) = piece {
                let position = self.consumption.position.get() + bytes.len() as u64;
                self.consumption.position.set(position);
                self.consumption.changed.notify_one();
                return Poll::Ready(Some(bytes));
            }
        }
    }
}

impl StreamSink {
    fn hand_out(&mut self, piece: Piece) -> io::Result<()> {
        let gone = |_| io::Error::new(io::ErrorKind::BrokenPipe, "nobody reads any more");
        self.heads.send(piece).map_err(gone)
    }
}

impl Sink for StreamSink {
    fn begin(&mut self, version: &Version, head: &Parts) -> io::Result<()> {
        if std::mem::replace(&mut self.begun, true) {
            // The reader has another version's head already.
            return Err(io::Error::other("the file changed while it was fetched"));
        }
        self.hand_out(Piece::Head(Box::new(head.clone()), version.length))
    }

    fn write(&mut self, position: u64, bytes: Bytes) -> io::Result<()> {
        self.early.insert(position, bytes);
        while let Some(entry) = self.early.first_entry()
            && *entry.key() == self.position
        {
            let bytes = entry.remove();
            self.position += bytes.len() as u64;
            self.hand_out(Piece::Bytes(bytes))?;
        }
        Ok(())
    }

    fn restart(&mut self) -> io::Result<()> {
        // The transfer begins anew only while nothing was handed out.
        self.early.clear();
        Ok(())
    }

    fn consumption(&self) -> Option<Rc<Consumption>> {
        Some(self.consumption.clone())
    }
}
