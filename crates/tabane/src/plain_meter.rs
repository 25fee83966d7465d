//! What goes by a link without a session counts against its budget as well.
//!
//! Owns the counts until they are booked, and the stream that counts. Whose budget it is, and by
//! which link a connection goes, is `plain_way`'s.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use tabane_base::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;

/// Of each datagram: the headers of IPv4 and UDP.
const UDP_HEADERS: u64 = 28;
/// The headers of IPv4 and TCP with timestamps, 52 bytes, are this part of a full segment's 1448.
const TCP_HEADERS_PART: u64 = 28;

/// By link, what is not booked yet.
#[derive(Debug, Default)]
pub(crate) struct Carried {
    links: RefCell<BTreeMap<String, Bytes>>,
    /// There is something.
    pub(crate) news: Notify,
}

/// Counts for one connection or flow.
#[derive(Debug, Clone, Default)]
pub(crate) struct Meter(Option<(String, Rc<Carried>)>);

/// A connection of which every byte counts.
#[derive(Debug)]
pub(crate) struct Metered {
    stream: TcpStream,
    meter: Meter,
}

impl Carried {
    /// What there is; it must be booked.
    pub(crate) fn take(&self) -> BTreeMap<String, Bytes> {
        self.links.take()
    }
}

impl Meter {
    /// For what goes by `link`.
    pub(crate) fn new(link: String, carried: Rc<Carried>) -> Self {
        Self(Some((link, carried)))
    }

    /// A datagram passed, in either direction.
    pub(crate) fn on_datagram(&self, payload: &[u8]) {
        self.add(Bytes::from(payload.len()) + Bytes::new(UDP_HEADERS));
    }

    fn on_stream(&self, payload: usize) {
        let payload = Bytes::from(payload);
        self.add(payload + Bytes::new(payload.get() / TCP_HEADERS_PART));
    }

    fn add(&self, bytes: Bytes) {
        if let Some((link, carried)) = &self.0 {
            let mut links = carried.links.borrow_mut();
            match links.get_mut(link) {
                Some(sum) => *sum += bytes,
                None => drop(links.insert(link.clone(), bytes)),
            }
            carried.news.notify_one();
        }
    }
}

impl Metered {
    pub(crate) fn new(stream: TcpStream, meter: Meter) -> Self {
        Self { stream, meter }
    }

    /// As [`TcpStream::set_nodelay`].
    pub(crate) fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.stream.set_nodelay(nodelay)
    }
}

impl AsyncRead for Metered {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        let polled = Pin::new(&mut this.stream).poll_read(cx, buffer);
        this.meter.on_stream(buffer.filled().len() - before);
        polled
    }
}

impl AsyncWrite for Metered {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_write(cx, bytes);
        if let Poll::Ready(Ok(written)) = polled {
            this.meter.on_stream(written);
        }
        polled
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    #[tokio::test]
    async fn what_passes_is_counted_once_with_its_headers() {
        let carried = Rc::new(Carried::default());
        let meter = Meter::new("usb0".to_owned(), carried.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await;
        let (mut far, _) = listener.accept().await.unwrap();
        let mut near = Metered::new(stream.unwrap(), meter.clone());
        near.write_all(&[0; 2_800]).await.unwrap();
        far.write_all(&[0; 2_800]).await.unwrap();
        near.read_exact(&mut [0; 2_800]).await.unwrap();
        meter.on_datagram(&[0; 100]);
        carried.news.notified().await;
        let usb0 = Bytes::new(2 * (2_800 + 100) + 128);
        assert_eq!(carried.take(), [("usb0".to_owned(), usb0)].into());
        assert!(carried.take().is_empty());
        Meter::default().on_datagram(&[0; 100]);
    }
}
