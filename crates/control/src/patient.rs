//! A connection whose other end has to take what it is sent: who asks and does not read would hold
//! a place for ever.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// How long nothing may be taken. Programs on one machine take at once; a browser's tab that sleeps
/// begins anew.
const WRITE_WAIT: Duration = Duration::from_secs(10);

/// See the module.
#[derive(Debug)]
pub(crate) struct Patient<S> {
    stream: S,
    /// While something waits to be taken.
    ends: Option<Pin<Box<Sleep>>>,
}

impl<S: AsyncWrite + Unpin> Patient<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self { stream, ends: None }
    }

    fn limit<T>(
        &mut self,
        cx: &mut Context<'_>,
        done: impl FnOnce(Pin<&mut S>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let done = done(Pin::new(&mut self.stream), cx);
        if done.is_ready() {
            self.ends = None;
            return done;
        }
        let ends = self.ends.get_or_insert_with(|| Box::pin(sleep(WRITE_WAIT)));
        ready!(ends.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.limit(cx, |stream, cx| stream.poll_write(cx, bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.limit(cx, |stream, cx| stream.poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.limit(cx, |stream, cx| stream.poll_shutdown(cx))
    }
}
