//! The side that borrows: a neighbour's link as a way to the web, and pairing with a neighbour.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use tabane_core::{Identity, PublicKey};
use tabane_fetch::{BoxStream, Connecting, Way, WayError};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::code::Code;
use crate::head::{MAX_ANSWER, judge, read_head};
use crate::pairing::{self, Ends, Failed};
use crate::tls;

/// How long a neighbour may take to be there at all: it is near.
const NEAR_TIME: Duration = Duration::from_secs(5);
/// How long it may take to say whether there is a connection: its own limit, and our way to it.
const ANSWER_TIME: Duration = Duration::from_secs(25);
const PAIR_TIME: Duration = Duration::from_secs(15);

/// A neighbour's link.
pub struct NeighbourWay {
    name: String,
    host: String,
    port: u16,
    connector: TlsConnector,
    near: Rc<dyn Way>,
}

impl NeighbourWay {
    /// By the neighbour that listens there and proves `key`; `near` is how it is reached itself.
    ///
    /// # Errors
    /// Never with a sound build of the TLS library.
    pub fn new(
        identity: &Identity,
        name: &str,
        (host, port): (&str, u16),
        key: PublicKey,
        near: Rc<dyn Way>,
    ) -> Result<Self, rustls::Error> {
        Ok(Self {
            name: name.to_owned(),
            host: host.to_owned(),
            port,
            connector: tls::connector(identity, Some(key), tls::LEND)?,
            near,
        })
    }

    async fn open(&self, host: &str, port: u16) -> Result<BoxStream, WayError> {
        let failed = |source| WayError::Connect {
            to: format!("{host} by way of {}", self.name),
            source,
        };
        let reached = timeout(NEAR_TIME, async {
            let stream = self.near.connect(&self.host, self.port).await?;
            let secured = tls::connect(&self.connector, stream).await;
            secured.map_err(failed)
        });
        let late = |_| failed(io::ErrorKind::TimedOut.into());
        let mut stream = reached.await.map_err(late)??;
        ask(&mut stream, host, port).await.map_err(failed)?;
        Ok(Box::new(stream))
    }
}

/// Has the neighbour connect to somebody.
async fn ask(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    host: &str,
    port: u16,
) -> io::Result<()> {
    let host = match host.contains(':') {
        true => format!("[{host}]"),
        false => host.to_owned(),
    };
    let request = format!("CONNECT {host}:{port} HTTP/1.1\r\nhost: {host}:{port}\r\n\r\n");
    let answered = timeout(ANSWER_TIME, async {
        stream.write_all(request.as_bytes()).await?;
        stream.flush().await?;
        judge(&read_head(stream, MAX_ANSWER).await?)
    });
    answered
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

impl Way for NeighbourWay {
    fn connect<'a>(&'a self, host: &'a str, port: u16) -> Connecting<'a> {
        Box::pin(self.open(host, port))
    }
}

/// A neighbour to be remembered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paired {
    /// What it calls itself.
    pub name: String,
    /// What it will prove.
    pub key: PublicKey,
}

/// Why there was no pairing.
#[derive(Debug, Error)]
pub enum PairError {
    /// Nobody there.
    #[error(transparent)]
    Unreachable(#[from] WayError),
    /// The connection broke, or somebody else listens there.
    #[error("it does not answer as a neighbour does: {0}")]
    Broken(io::Error),
    /// No code is valid there now.
    #[error("it does not expect anybody: its code has been used, was mistyped too often or ended")]
    Unexpected,
    /// The code is not the one it has, or somebody sits in between.
    #[error("the code is wrong")]
    WrongCode,
}

impl From<Failed> for PairError {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Io(error) => Self::Broken(error),
            Failed::Garbled => Self::Broken(io::ErrorKind::InvalidData.into()),
            Failed::Unexpected => Self::Unexpected,
            Failed::WrongCode => Self::WrongCode,
        }
    }
}

/// Pairs with the neighbour that listens there and has this code; it knows us by `name` from then
/// on, [`MAX_NAME`](crate::MAX_NAME) bytes at most.
///
/// # Errors
/// Nobody is there, or nobody who knows the code.
pub async fn pair(
    identity: &Identity,
    name: &str,
    (host, port): (&str, u16),
    code: &Code,
    near: &dyn Way,
) -> Result<Paired, PairError> {
    let exchange = async {
        let stream = near.connect(host, port).await?;
        let connector = tls::connector(identity, None, tls::PAIR);
        let connector = connector.map_err(|error| PairError::Broken(io::Error::other(error)))?;
        let secured = tls::connect(&connector, stream).await;
        let mut stream = secured.map_err(PairError::Broken)?;
        let key = tls::peer_key(stream.get_ref().1);
        let key = key.ok_or_else(|| PairError::Broken(io::ErrorKind::InvalidData.into()))?;
        let ends = Ends {
            borrower: identity.public_key(),
            sharer: key,
        };
        let name = pairing::ask(&mut stream, code, ends, name).await?;
        Ok(Paired { name, key })
    };
    let late = |_| PairError::Broken(io::ErrorKind::TimedOut.into());
    timeout(PAIR_TIME, exchange).await.map_err(late)?
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::duplex;
    use tokio::time::Instant;

    /// Leads nowhere.
    struct Nowhere;

    impl Way for Nowhere {
        fn connect<'a>(&'a self, _: &'a str, _: u16) -> Connecting<'a> {
            Box::pin(std::future::pending())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_neighbour_has_five_seconds_to_be_there_and_25_to_answer() {
        let identity = Identity::from_seed([1; 32]);
        let (at, key) = (("192.0.2.1", 1), identity.public_key());
        let way = NeighbourWay::new(&identity, "other", at, key, Rc::new(Nowhere)).unwrap();
        let begin = Instant::now();
        let opened = way.open("example.org", 443).await;
        assert!(matches!(opened, Err(WayError::Connect { .. })));
        assert_eq!(begin.elapsed().as_millis(), 5_000);

        let (mut near, mut far) = duplex(4_096);
        let begin = Instant::now();
        let asked = ask(&mut near, "example.org", 443).await;
        assert_eq!(asked.unwrap_err().to_string(), "timed out");
        assert_eq!(begin.elapsed().as_millis(), 25_000);
        let late = async {
            tokio::time::sleep(ANSWER_TIME - Duration::from_millis(1)).await;
            far.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await
        };
        let (asked, _) = tokio::join!(ask(&mut near, "example.org", 443), late);
        assert!(asked.is_ok());
    }
}
