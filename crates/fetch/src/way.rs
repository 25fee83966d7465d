//! A way to the web: an own link, or a neighbour that lends one.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::time::Duration;

use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use socket2::SockRef;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite, Empty};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

/// Bytes in both directions.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {
    /// Whether closing it, or the end of this process, resets the connection (`SO_LINGER` of 0 s).
    /// Where there is no connection of the kernel's, nothing happens.
    fn set_abortive(&self, _is_abortive: bool) {}
}

impl Stream for TcpStream {
    fn set_abortive(&self, is_abortive: bool) {
        let linger = is_abortive.then_some(Duration::ZERO);
        if let Err(error) = SockRef::from(self).set_linger(linger) {
            tracing::debug!(%error, "a connection may end otherwise than it should");
        }
    }
}

impl<S: Stream> Stream for TlsStream<S> {
    fn set_abortive(&self, is_abortive: bool) {
        self.get_ref().0.set_abortive(is_abortive);
    }
}

impl Stream for BoxStream {
    fn set_abortive(&self, is_abortive: bool) {
        (**self).set_abortive(is_abortive);
    }
}

impl Stream for Empty {}

/// What is left of an HTTP connection whose own stream is not to be had.
impl Stream for TokioIo<Upgraded> {}

/// A connection by some way.
pub type BoxStream = Box<dyn Stream>;

/// A connection in the making.
pub type Connecting<'a> = Pin<Box<dyn Future<Output = Result<BoxStream, WayError>> + 'a>>;

/// One way to any origin. What is written to its connections comes out at the origin as it is, so
/// TLS stays between us and the origin, whoever is on the way.
pub trait Way {
    /// Connects to a host, by name or address, and a TCP port.
    fn connect<'a>(&'a self, host: &'a str, port: u16) -> Connecting<'a>;
}

/// Why there is no connection.
#[derive(Debug, Error)]
pub enum WayError {
    /// Nobody knows the name.
    #[error("cannot find {host}: {source}")]
    Name {
        /// What was looked up.
        host: String,
        /// What the resolver said.
        source: io::Error,
    },
    /// The name has no address of a family that this way has.
    #[error("{host} has no address that this link can reach")]
    Family {
        /// What was looked up.
        host: String,
    },
    /// The name means this machine itself, or what is on one link with it alone, though it is no
    /// name for that.
    #[error(
        "{host} means this machine or its own network, which a page could have made it: ask for \
         the address, or for a name under localhost"
    )]
    Own {
        /// What was looked up.
        host: String,
    },
    /// The socket could not be bound to the device.
    #[error("cannot bind a socket to {device}: {source}")]
    Bind {
        /// The interface.
        device: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// No connection came about.
    #[error("cannot connect to {to}: {source}")]
    Connect {
        /// Address and port, or the way's own word for it.
        to: String,
        /// What was said.
        source: io::Error,
    },
}
