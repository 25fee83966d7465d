//! The side that borrows, for datagrams: where to send what shall go to some address by a
//! neighbour's link, and whether the neighbour is still there.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::SockRef;
use tabane_core::{Identity, PublicKey};
use tabane_linux::threads::lookup_host;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, timeout};
use tokio_rustls::client::TlsStream;

use crate::head::{MAX_ANSWER, METHOD, judge, lent_port, read_head};
use crate::tls;

/// How long a neighbour may take to be there and answer: it is near, and nobody else is asked.
const OPEN_TIME: Duration = Duration::from_secs(5);
/// How often it is asked whether it is there.
const BEAT: Duration = Duration::from_secs(2);
/// It has fallen silent when it has not answered for so long.
const SILENCE: Duration = Duration::from_secs(6);

/// A neighbour's link for datagrams to one address, while this is held.
pub struct Leash {
    stream: TlsStream<TcpStream>,
    at: SocketAddr,
}

impl Leash {
    /// Has the neighbour that listens there and proves `key` pass datagrams on to `to`. Our sockets
    /// carry `mark`, where there is one.
    ///
    /// # Errors
    /// It is not there, is somebody else, or does not lend that, with its reason.
    pub async fn open(
        identity: &Identity,
        (host, port): (&str, u16),
        key: PublicKey,
        to: SocketAddr,
        mark: Option<u32>,
    ) -> io::Result<Self> {
        let opened = async {
            let stream = near(host, port, mark).await?;
            let neighbour = stream.peer_addr()?;
            let connector = tls::connector(identity, Some(key), tls::DATAGRAMS);
            let connector = connector.map_err(io::Error::other)?;
            let mut stream = tls::connect(&connector, stream).await?;
            let request = format!("{METHOD} {to} HTTP/1.1\r\nhost: {to}\r\n\r\n");
            stream.write_all(request.as_bytes()).await?;
            stream.flush().await?;
            let head = read_head(&mut stream, MAX_ANSWER).await?;
            judge(&head)?;
            let mut at = neighbour;
            at.set_port(lent_port(&head)?);
            Ok(Self { stream, at })
        };
        timeout(OPEN_TIME, opened).await?
    }

    /// Where to send what shall go there; answers come from here.
    #[must_use]
    pub fn at(&self) -> SocketAddr {
        self.at
    }

    /// Comes back when the neighbour passes nothing on any more, or is gone.
    pub async fn lost(&mut self) -> io::Error {
        let mut heard_at = Instant::now();
        loop {
            let beaten = match timeout(BEAT, self.stream.read_u8()).await {
                Ok(Ok(_)) => {
                    heard_at = Instant::now();
                    continue;
                }
                Ok(Err(error)) => return error,
                Err(_) if heard_at.elapsed() > SILENCE => return io::ErrorKind::TimedOut.into(),
                Err(_) => self.beat().await,
            };
            if let Err(error) = beaten {
                return error;
            }
        }
    }

    async fn beat(&mut self) -> io::Result<()> {
        self.stream.write_u8(0).await?;
        self.stream.flush().await
    }
}

/// Whether the neighbour listens there that proves `key`. Our socket carries `mark`, where there is
/// one.
///
/// # Errors
/// Nobody is there, or somebody else.
pub async fn is_there(
    identity: &Identity,
    (host, port): (&str, u16),
    key: PublicKey,
    mark: Option<u32>,
) -> io::Result<()> {
    let connector = tls::connector(identity, Some(key), tls::LEND).map_err(io::Error::other)?;
    let seen = async {
        let stream = near(host, port, mark).await?;
        tls::connect(&connector, stream).await.map(drop)
    };
    timeout(OPEN_TIME, seen).await?
}

async fn near(host: &str, port: u16, mark: Option<u32>) -> io::Result<TcpStream> {
    let mut failure = io::Error::from(io::ErrorKind::NotFound);
    for address in lookup_host((host, port)).await? {
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        if let Some(mark) = mark {
            SockRef::from(&socket).set_mark(mark)?;
        }
        match socket.connect(address).await {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => failure = error,
        }
    }
    Err(failure)
}
