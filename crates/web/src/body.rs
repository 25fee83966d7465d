//! The body of an answer to a program, wherever it comes from, and what of it is noted.

use std::error::Error;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tabane_fetch::{Download, Reader};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::balance::Seat;
use crate::journal::Entry;

/// A body.
pub(crate) enum AnswerBody {
    /// Words of ours.
    Text(Bytes),
    /// As it comes over one link.
    Whole(Whole),
    /// A file's bytes in order, whoever brought them.
    Split(Split),
}

/// A body that one link brings.
pub(crate) struct Whole {
    body: Download,
    entry: Entry,
    seat: Seat,
}

/// A body that several links bring.
pub(crate) struct Split {
    reader: Reader,
    left: u64,
    fetch: JoinHandle<()>,
    entry: Entry,
}

impl Drop for Split {
    fn drop(&mut self) {
        // With all of its bytes read the fetch is about to end, and notes what it has learnt.
        if self.left > 0 {
            self.fetch.abort();
        }
    }
}

/// A body that ends before its time, which the program notices by its length, or a missing end.
pub(crate) type BodyError = Box<dyn Error + Send + Sync>;

impl AnswerBody {
    pub(crate) fn whole(body: Download, entry: Entry, seat: Seat) -> Self {
        if body.is_end_stream() {
            entry.over();
        }
        Self::Whole(Whole { body, entry, seat })
    }

    /// What `reader` gets from a task, `length` bytes.
    pub(crate) fn split(reader: Reader, length: u64, fetch: JoinHandle<()>, entry: Entry) -> Self {
        Self::Split(Split {
            reader,
            left: length,
            fetch,
            entry,
        })
    }
}

impl Whole {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        match &frame {
            Some(Ok(frame)) => {
                let amount = frame.data_ref().map_or(0, Bytes::len) as u64;
                self.seat.on_moved(Instant::now());
                self.entry.add(self.body.link().name(), amount);
            }
            Some(Err(error)) => self.entry.failed(error),
            None => self.entry.over(),
        }
        if self.body.is_end_stream() {
            self.entry.over();
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }
}

impl Split {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        match ready!(self.reader.poll_next(context)) {
            Some(bytes) => {
                self.left = self.left.saturating_sub(bytes.len() as u64);
                if self.left == 0 {
                    self.entry.over();
                }
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            None => Poll::Ready(Some(Err("the file could not be fetched to its end".into()))),
        }
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            Self::Text(text) if text.is_empty() => Poll::Ready(None),
            Self::Text(text) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(text))))),
            Self::Whole(whole) => whole.poll(context),
            Self::Split(split) => split.poll(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Text(text) => text.is_empty(),
            Self::Whole(whole) => whole.body.is_end_stream(),
            Self::Split(split) => split.left == 0,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Text(text) => SizeHint::with_exact(text.len() as u64),
            Self::Whole(whole) => whole.body.size_hint(),
            Self::Split(split) => SizeHint::with_exact(split.left),
        }
    }
}
