//! What a request carries to its origin, counted on the link that takes it.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use crate::links::Link;

/// A request's body: nothing, or what comes from somewhere else.
#[derive(Default)]
pub struct Upload {
    from: Option<Incoming>,
    /// Whose bytes are counted.
    pub(crate) link: Option<Rc<Link>>,
}

impl Upload {
    /// What comes from there.
    #[must_use]
    pub fn new(from: Incoming) -> Self {
        let from = (!from.is_end_stream()).then_some(from);
        Self { from, link: None }
    }

    /// Whether it can be sent twice, because there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.from.is_none()
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(from) = &mut self.from else {
            return Poll::Ready(None);
        };
        let frame = ready!(Pin::new(from).poll_frame(context));
        if let (Some(Ok(frame)), Some(link)) = (&frame, &self.link) {
            link.on_sent(frame.data_ref().map_or(0, Bytes::len));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.from.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let none = SizeHint::with_exact(0);
        self.from.as_ref().map_or(none, Body::size_hint)
    }
}
