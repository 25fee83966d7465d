//! A connection of which the front was read already.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Gives the front first, and then what the connection has.
pub(super) struct Resumed {
    front: Vec<u8>,
    tcp: TcpStream,
}

impl Resumed {
    pub(super) fn new(front: Vec<u8>, tcp: TcpStream) -> Self {
        Self { front, tcp }
    }
}

impl AsyncRead for Resumed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.front.is_empty() {
            return Pin::new(&mut self.tcp).poll_read(cx, buffer);
        }
        let len = buffer.remaining().min(self.front.len());
        buffer.put_slice(&self.front[..len]);
        self.front.drain(..len);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Resumed {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tcp).poll_write(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(cx)
    }
}
