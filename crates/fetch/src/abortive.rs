//! A connection whose bytes are passed on: it ends by a reset until it is shut down, however we
//! end, so that the far end does not take a part for the whole.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::way::{BoxStream, Stream};

/// See the module.
pub struct Abortive(BoxStream);

impl From<BoxStream> for Abortive {
    fn from(stream: BoxStream) -> Self {
        stream.set_abortive(true);
        Self(stream)
    }
}

impl AsyncRead for Abortive {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Abortive {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = ready!(Pin::new(&mut self.0).poll_shutdown(cx));
        // What the kernel still has is sent, also when this is closed.
        self.0.set_abortive(false);
        Poll::Ready(ended)
    }
}
