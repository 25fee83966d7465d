//! The side that borrows, for datagrams: where to send what shall go to some address by a
//! neighbour's link, and whether the neighbour is still there.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::SockRef;
use tabane_core::{Identity, PublicKey};
use tabane_linux::threads::lookup_host;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
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
        lost(&mut self.stream).await
    }
}

async fn lost(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> io::Error {
    let mut heard_at = Instant::now();
    loop {
        let beaten = match timeout(BEAT, stream.read_u8()).await {
            Ok(Ok(_)) => {
                heard_at = Instant::now();
                continue;
            }
            Ok(Err(error)) => return error,
            Err(_) if heard_at.elapsed() >= SILENCE => return io::ErrorKind::TimedOut.into(),
            Err(_) => beat(stream).await,
        };
        if let Err(error) = beaten {
            return error;
        }
    }
}

async fn beat(stream: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    stream.write_u8(0).await?;
    stream.flush().await
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

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{DuplexStream, duplex};

    /// How long until the neighbour is lost, and why, where it does this at its end.
    async fn lost_where(neighbour: impl AsyncFnOnce(DuplexStream)) -> (u128, io::ErrorKind) {
        let (mut near, far) = duplex(64);
        let begin = Instant::now();
        tokio::select! {
            error = lost(&mut near) => (begin.elapsed().as_millis(), error.kind()),
            () = async {
                neighbour(far).await;
                std::future::pending().await
            } => unreachable!("it waits for ever"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_neighbour_is_lost_six_seconds_after_its_last_answer() {
        let silent = lost_where(async |far| {
            let _held = far;
            std::future::pending().await
        });
        assert_eq!(silent.await, (6_000, io::ErrorKind::TimedOut));
        // Every two seconds it is asked; some of the answers come late.
        let answers = lost_where(async |mut far| {
            for late in [0, 100, 1_900, 0, 3_500] {
                far.read_u8().await.unwrap();
                tokio::time::sleep(Duration::from_millis(late)).await;
                far.write_u8(0).await.unwrap();
            }
            std::future::pending().await
        });
        // The last comes at 15.5 s.
        assert_eq!(answers.await, (21_500, io::ErrorKind::TimedOut));
    }

    #[tokio::test(start_paused = true)]
    async fn a_neighbour_that_goes_is_lost_at_once() {
        let gone = lost_where(async |mut far| {
            far.read_u8().await.unwrap();
            drop(far);
        });
        assert_eq!(gone.await, (2_000, io::ErrorKind::UnexpectedEof));
    }
}
