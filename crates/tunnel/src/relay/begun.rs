//! A byte stream of which something was read already, and is read again.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

use crate::carrier::BoxStream;

/// Bytes of one look: more than what is looked for.
const LOOK: usize = 64;

/// A stream, behind what was read of it.
pub(super) struct Begun {
    read: Vec<u8>,
    stream: BoxStream,
}

impl Begun {
    pub(super) fn new(stream: BoxStream) -> Self {
        let read = Vec::new();
        Self { read, stream }
    }

    /// Reads on, and gives all that was read so far.
    ///
    /// # Errors
    /// The stream broke, or is at its end.
    pub(super) async fn read_on(&mut self) -> io::Result<&[u8]> {
        let mut look = [0; LOOK];
        let n = self.stream.read(&mut look).await?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.read.extend_from_slice(&look[..n]);
        Ok(&self.read)
    }
}

impl AsyncRead for Begun {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.read.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buffer);
        }
        let n = self.read.len().min(buffer.remaining());
        buffer.put_slice(&self.read[..n]);
        self.read.drain(..n);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Begun {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncWriteExt, duplex};

    #[test]
    fn what_was_looked_at_is_read_once_more_and_in_order() {
        let (mut sender, receiver) = duplex(1_000);
        crate::block_on(async {
            let mut begun = Begun::new(Box::new(receiver));
            sender.write_all(b"first ").await.unwrap();
            assert_eq!(begun.read_on().await.unwrap(), b"first ");
            sender.write_all(b"second ").await.unwrap();
            assert_eq!(begun.read_on().await.unwrap(), b"first second ");
            sender.write_all(b"third").await.unwrap();
            drop(sender);
            let mut all = String::new();
            begun.read_to_string(&mut all).await.unwrap();
            assert_eq!(all, "first second third");
        })
        .unwrap();
    }
}
