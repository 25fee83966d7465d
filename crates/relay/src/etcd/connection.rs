//! One HTTP connection to a member of etcd.

use std::io;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tabane_base::{Destination, Duration};
use tabane_linux::threads::lookup_host;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::address::FleetAddress;
use super::{EtcdError, clock};

/// A member that is there has answered by then, over any distance.
const CONNECT_WAIT: Duration = Duration::from_millis(1_500);
/// What a member with a leader needs, a disk that is slow included.
const ANSWER_WAIT: Duration = Duration::from_secs(3);
/// The most bytes of an answer: a page of values is far less.
const MAX_ANSWER: usize = 16 << 20;

/// A connection; one question at a time.
pub(super) struct Connection {
    sender: SendRequest<Full<Bytes>>,
    host: String,
}

/// What carries it.
trait Bytestream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Bytestream for T {}

impl Connection {
    /// Opens one to a member, by its place in the list.
    pub(super) async fn open(address: &FleetAddress, at: usize) -> Result<Self, EtcdError> {
        let member = &address.members[at];
        let opening = async {
            let host = member.host.to_string();
            let tcp = connect(&host, member.port).await;
            let tcp = tcp.map_err(|error| EtcdError::Away(error.to_string()))?;
            let _ = tcp.set_nodelay(true);
            let stream: Box<dyn Bytestream> = match &address.ca {
                None => Box::new(tcp),
                Some(_) => Box::new(secure(address, member, tcp).await?),
            };
            let (sender, connection) = http1::handshake(TokioIo::new(stream))
                .await
                .map_err(|error| EtcdError::Away(error.to_string()))?;
            tokio::spawn(connection);
            Ok(Self {
                sender,
                host: member.to_string(),
            })
        };
        let opened = timeout(CONNECT_WAIT, opening).await;
        opened.unwrap_or_else(|_| Err(EtcdError::Away("no answer".to_owned())))
    }

    pub(super) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// Sends a question and waits for the head of the answer.
    pub(super) async fn send(
        &mut self,
        path: &str,
        question: Option<&Value>,
        token: Option<&str>,
    ) -> Result<Response<Incoming>, EtcdError> {
        let method = if question.is_some() {
            Method::POST
        } else {
            Method::GET
        };
        let body = question.map(Value::to_string).unwrap_or_default();
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", &self.host)
            .header("content-type", "application/json");
        if let Some(token) = token {
            request = request.header("authorization", token);
        }
        let request = request
            .body(Full::from(body))
            .map_err(|error| EtcdError::Answer(error.to_string()))?;
        let sending = async {
            let away = |error: hyper::Error| EtcdError::Away(error.to_string());
            self.sender.ready().await.map_err(away)?;
            self.sender.send_request(request).await.map_err(away)
        };
        let sent = timeout(ANSWER_WAIT, sending).await;
        sent.unwrap_or_else(|_| Err(EtcdError::Away("no answer in time".to_owned())))
    }
}

/// The first of its addresses that answers.
async fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut failure = io::Error::from(io::ErrorKind::NotFound);
    for address in lookup_host((host, port)).await? {
        match TcpStream::connect(address).await {
            Ok(tcp) => return Ok(tcp),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// The whole body of an answer, and the time of day there, in seconds since 1970.
pub(super) async fn read(answer: Response<Incoming>) -> Result<(Option<i64>, Vec<u8>), EtcdError> {
    let date = answer.headers().get("date");
    let date = date.and_then(|date| clock::parse(date.to_str().ok()?));
    let collecting = Limited::new(answer.into_body(), MAX_ANSWER).collect();
    match timeout(ANSWER_WAIT, collecting).await {
        Ok(Ok(body)) => Ok((date, body.to_bytes().to_vec())),
        Ok(Err(error)) => Err(EtcdError::Away(format!("half an answer: {error}"))),
        Err(_) => Err(EtcdError::Away("half an answer in time".to_owned())),
    }
}

/// This machine's time of day.
pub(super) fn unix_seconds() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |span| span.as_secs().cast_signed())
}

async fn secure(
    address: &FleetAddress,
    member: &Destination,
    tcp: TcpStream,
) -> Result<impl Bytestream + use<>, EtcdError> {
    let name = ServerName::try_from(member.host.to_string());
    let name = name.map_err(|error| EtcdError::Tls(error.to_string()))?;
    let connector = TlsConnector::from(Arc::new(tls(address).map_err(EtcdError::Tls)?));
    let stream = connector.connect(name, tcp).await;
    stream.map_err(|error| EtcdError::Tls(format!("{member}: {error}")))
}

/// Files are read anew for each connection: certificates are renewed while a relay runs.
fn tls(address: &FleetAddress) -> Result<ClientConfig, String> {
    let (Some(ca), provider) = (
        &address.ca,
        Arc::new(rustls::crypto::aws_lc_rs::default_provider()),
    ) else {
        return Err("no ca= is given".to_owned());
    };
    let certificates = |path: &std::path::Path| {
        let read =
            CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        match read {
            Ok(certificates) if !certificates.is_empty() => Ok(certificates),
            Ok(_) => Err(format!("{} has no certificate", path.display())),
            Err(error) => Err(format!("{}: {error}", path.display())),
        }
    };
    let mut roots = RootCertStore::empty();
    for certificate in certificates(ca)? {
        let added = roots.add(certificate);
        added.map_err(|error| format!("{}: {error}", ca.display()))?;
    }
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots);
    match &address.certificate {
        None => Ok(config.with_no_client_auth()),
        Some((certificate, key)) => {
            let chain = certificates(certificate)?;
            let of_key = |error| format!("{}: {error}", key.display());
            let secret = PrivateKeyDer::from_pem_file(key).map_err(of_key)?;
            let config = config.with_client_auth_cert(chain, secret);
            config.map_err(|error| format!("{}: {error}", certificate.display()))
        }
    }
}
