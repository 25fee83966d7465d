//! A TCP connection that ends by a reset unless it is told to end in order.
//!
//! Owns that rule for connections whose bytes are passed on: when we fail or are killed in the
//! middle, the other side must not take what it has for all there is. The kernel keeps it
//! (`SO_LINGER` of 0 s), so it holds however the process ends. Which end is in order is the
//! caller's to know.

use std::io;
use std::net::Shutdown;
use std::ops::Deref;
use std::rc::Rc;

use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::TcpStream;

/// See the module. Dropped, it is reset; what the kernel has not sent by then is lost.
#[derive(Debug)]
pub struct AbortiveStream(Rc<TcpStream>);

impl From<TcpStream> for AbortiveStream {
    fn from(tcp: TcpStream) -> Self {
        if let Err(error) = tcp.set_zero_linger() {
            tracing::debug!(%error, "a connection would end without a reset");
        }
        Self(Rc::new(tcp))
    }
}

impl AbortiveStream {
    /// Tells the far end that no more comes; it may go on sending. The rule stays.
    ///
    /// # Errors
    /// What `shutdown(2)` says, but for a connection that is closed already.
    pub fn end_writing(&self) -> io::Result<()> {
        match SockRef::from(&*self.0).shutdown(Shutdown::Write) {
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
            result => result,
        }
    }

    /// Closes in order: the kernel goes on to send what it was given.
    pub fn finish(self) {
        if let Err(error) = SockRef::from(&*self.0).set_linger(None) {
            tracing::debug!(%error, "a connection ends by a reset");
        }
    }

    /// The connection itself, for who looks at it. The last who has it ends it.
    #[must_use]
    pub fn share(&self) -> Rc<TcpStream> {
        self.0.clone()
    }

    /// Waits until the far end resets the connection, or it fails: what reading tells no more once
    /// the far end has said all.
    pub fn broken(&self) -> impl Future<Output = ()> + use<> {
        let tcp = self.0.clone();
        async move {
            // Fails only with the runtime.
            let _ = tcp.ready(Interest::ERROR).await;
        }
    }
}

impl Deref for AbortiveStream {
    type Target = TcpStream;

    fn deref(&self) -> &TcpStream {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    async fn pair() -> (AbortiveStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let far = TcpStream::connect(listener.local_addr().unwrap()).await;
        (listener.accept().await.unwrap().0.into(), far.unwrap())
    }

    #[tokio::test]
    async fn the_end_is_a_reset_until_it_is_finished() {
        let (near, mut far) = pair().await;
        near.try_write(b"part").unwrap();
        far.read_exact(&mut [0; 4]).await.unwrap();
        // Not even after a farewell: the other direction is still open.
        near.end_writing().unwrap();
        assert_eq!(far.read(&mut [0; 1]).await.unwrap(), 0);
        drop(near);
        far.ready(Interest::ERROR).await.unwrap();
        let failed = far.write_all(b"lost").await.unwrap_err();
        assert_eq!(failed.kind(), io::ErrorKind::BrokenPipe);

        let (near, mut far) = pair().await;
        drop(near);
        let felt = far.read(&mut [0; 1]).await.unwrap_err();
        assert_eq!(felt.kind(), io::ErrorKind::ConnectionReset);
    }

    #[tokio::test]
    async fn a_finished_one_is_sent_to_its_end() {
        let (near, mut far) = pair().await;
        let mut sent = 0;
        // More than the far side's kernel takes, so that some of it waits in ours.
        loop {
            near.writable().await.unwrap();
            match near.try_write(&[7; 65_536]) {
                Ok(written) => sent += written,
                Err(_) => break,
            }
        }
        near.end_writing().unwrap();
        near.finish();
        let mut heard = Vec::new();
        far.read_to_end(&mut heard).await.unwrap();
        assert_eq!(heard.len(), sent);
    }

    #[tokio::test]
    async fn a_reset_after_the_far_end_has_said_all_is_told() {
        let (near, mut far) = pair().await;
        far.shutdown().await.unwrap();
        near.readable().await.unwrap();
        assert_eq!(near.try_read(&mut [0; 1]).unwrap(), 0);
        far.set_zero_linger().unwrap();
        drop(far);
        near.broken().await;
    }
}
