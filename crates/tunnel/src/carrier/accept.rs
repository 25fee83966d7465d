//! The relay's side: a web server to strangers, a door to those who know it.
//!
//! Nothing is kept of a visit that is none of ours, and it may not last. How many there may be at
//! once is for the caller.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use rustls::version::TLS13;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::certificate::{Certificate, CertificateError};
use super::door::Door;
use super::resumed::Resumed;
use super::{BoxStream, HTTP_1, provider, socket};

/// A visitor says what is wanted within this.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of a request.
const MAX_REQUEST: usize = 8 * 1024;
const MAX_LINES: usize = 64;
/// Bytes looked at to read one, since each piece that comes has all of it looked at again: many
/// times a request, but no square of it.
const MAX_LOOKS: usize = 16 * MAX_REQUEST;
/// Plaintext that TLS holds for a connection that takes no more: one record. What waits longer
/// waits where it can still be sent elsewhere.
pub(crate) const TLS_BUFFER: usize = 16 * 1024;

const PAGE: &str = "<!doctype html><html><head><title>Welcome</title></head><body>\
                    <h1>Welcome</h1><p>There is nothing to see here yet.</p></body></html>\n";
const MISSING: &str = "<!doctype html><html><head><title>404 Not Found</title></head><body>\
                       <h1>Not Found</h1></body></html>\n";

/// Takes in connections.
#[derive(Clone)]
pub struct Acceptor {
    tls: TlsAcceptor,
    door: Door,
}

/// What a visitor wanted.
pub enum Visit {
    /// To send packets.
    Client(BoxStream),
    /// Something else; it got a page.
    Stranger,
}

/// A visit that came to nothing.
#[derive(Debug, Error)]
pub enum VisitError {
    /// The connection broke, or no TLS was spoken.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Nothing was said in time.
    #[error("it said nothing")]
    Silent,
    /// What it said is no HTTP.
    #[error("it spoke no HTTP")]
    NotHttp,
}

/// What a request asks for.
#[derive(Debug, PartialEq, Eq)]
enum Wish {
    Door,
    Page { found: bool, body: bool },
}

impl Acceptor {
    /// For the relay that owns `relay_key`, which shows this certificate.
    ///
    /// # Errors
    /// Certificate and key do not fit together.
    pub fn new(
        relay_key: &[u8; 32],
        Certificate { chain, key }: Certificate,
    ) -> Result<Self, CertificateError> {
        let config = ServerConfig::builder_with_provider(provider());
        let config = config.with_protocol_versions(&[&TLS13])?;
        let mut config = config.with_no_client_auth().with_single_cert(chain, key)?;
        config.alpn_protocols = vec![HTTP_1.to_vec()];
        Ok(Self {
            tls: TlsAcceptor::from(Arc::new(config)),
            door: Door::of(relay_key),
        })
    }

    /// Finds out what a visitor wants, and serves strangers.
    ///
    /// # Errors
    /// See [`VisitError`]; none is of interest to anybody but a log.
    pub async fn visit(&self, stream: TcpStream) -> Result<Visit, VisitError> {
        self.visit_behind(Vec::new(), stream).await
    }

    /// The same where `front` was read from the connection already.
    ///
    /// # Errors
    /// See [`VisitError`].
    pub async fn visit_behind(
        &self,
        front: Vec<u8>,
        stream: TcpStream,
    ) -> Result<Visit, VisitError> {
        let visit = timeout(PATIENCE, self.receive(front, stream)).await;
        visit.map_err(|_| VisitError::Silent)?
    }

    async fn receive(&self, front: Vec<u8>, stream: TcpStream) -> Result<Visit, VisitError> {
        socket::prepare(&stream)?;
        let mut stream = self.tls.accept(Resumed::new(front, stream)).await?;
        stream.get_mut().1.set_buffer_limit(Some(TLS_BUFFER));
        match self.read_request(&mut stream).await? {
            Wish::Door => {
                let answer = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\
                              Upgrade: tabane\r\n\r\n";
                stream.write_all(answer.as_bytes()).await?;
                stream.flush().await?;
                Ok(Visit::Client(Box::new(stream)))
            }
            Wish::Page { found, body } => {
                let (status, page) = match found {
                    true => ("200 OK", PAGE),
                    false => ("404 Not Found", MISSING),
                };
                let head = format!(
                    "HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\n\
                     Content-Length: {}\r\nConnection: close\r\n\r\n{}",
                    page.len(),
                    if body { page } else { "" },
                );
                stream.write_all(head.as_bytes()).await?;
                stream.shutdown().await?;
                Ok(Visit::Stranger)
            }
        }
    }

    async fn read_request(
        &self,
        stream: &mut (impl AsyncRead + Unpin),
    ) -> Result<Wish, VisitError> {
        let mut head = Vec::new();
        let mut chunk = [0; 1024];
        let mut looks = 0;
        loop {
            let n = stream.read(&mut chunk).await?;
            if n == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            head.extend_from_slice(&chunk[..n]);
            if let Some(wish) = wish(self.door.path(), &head).map_err(|_| VisitError::NotHttp)? {
                return Ok(wish);
            }
            looks += head.len();
            if head.len() > MAX_REQUEST || looks > MAX_LOOKS {
                return Err(VisitError::NotHttp);
            }
        }
    }
}

/// What a head asks for, once all of it has come.
fn wish(door: &str, head: &[u8]) -> Result<Option<Wish>, httparse::Error> {
    let mut lines = [httparse::EMPTY_HEADER; MAX_LINES];
    let mut request = httparse::Request::new(&mut lines);
    if request.parse(head)?.is_partial() {
        return Ok(None);
    }
    let path = request.path.unwrap_or("");
    let says = |name: &str, value: &[u8]| {
        let mut lines = request.headers.iter();
        lines.any(|line| {
            line.name.eq_ignore_ascii_case(name) && line.value.eq_ignore_ascii_case(value)
        })
    };
    if path == door && says("upgrade", b"tabane") {
        return Ok(Some(Wish::Door));
    }
    Ok(Some(Wish::Page {
        found: path == "/" || path == "/index.html",
        body: request.method != Some("HEAD"),
    }))
}

/// Reads what a visitor says, for fuzzing.
///
/// # Panics
/// Somebody would get in who does not name the door.
pub fn fuzz_visit(head: &[u8]) {
    const DOOR: &str = "/door";
    if let Ok(Some(Wish::Door)) = wish(DOOR, head) {
        let mut words = head.split(|byte| *byte == b' ');
        assert!(words.any(|word| word == DOOR.as_bytes()), "in without it");
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;

    async fn read(request: &[u8], piece: usize) -> (Result<Wish, VisitError>, usize) {
        let certificate = Certificate::made_up("localhost").unwrap();
        let acceptor = Acceptor::new(&[7; 32], certificate).unwrap();
        let (mut visitor, mut door) = duplex(piece);
        let mut said = 0;
        let says = async {
            for piece in request.chunks(piece) {
                if visitor.write_all(piece).await.is_err() {
                    break;
                }
                said += piece.len();
            }
        };
        let heard = async {
            let wish = acceptor.read_request(&mut door).await;
            drop(door);
            wish
        };
        let ((), wish) = tokio::join!(says, heard);
        (wish, said)
    }

    /// Each crumb has all of the request looked at again.
    #[test]
    fn a_long_request_in_crumbs_is_not_heard_to_its_end() {
        let long = format!("GET / HTTP/1.1\r\nX: {}", "y".repeat(MAX_REQUEST / 2));
        crate::block_on(async {
            let whole = format!("{long}\r\n\r\n");
            let (wish, _) = read(whole.as_bytes(), 1_000).await;
            let (found, body) = (true, true);
            assert_eq!(wish.unwrap(), Wish::Page { found, body });
            let (wish, _) = read(b"GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n", 1).await;
            let found = false;
            assert_eq!(wish.unwrap(), Wish::Page { found, body });
            let (wish, said) = read(whole.as_bytes(), 1).await;
            assert!(matches!(wish, Err(VisitError::NotHttp)));
            assert!(said * said <= 3 * MAX_LOOKS, "{said} bytes are heard");
        })
        .unwrap();
    }
}
