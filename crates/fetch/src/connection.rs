//! Connections to origins, by link: TLS, HTTP/1.1 and HTTP/2, proxies, and keeping idle ones.
//!
//! HTTP/1.1 carries a request at a time, so a link has as many connections to an origin as it has
//! requests; HTTP/2 has one.

use std::cell::{OnceCell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tabane_ranges::{Fault, LinkId};
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsConnector;

use crate::links::Link;
use crate::proxies::{Proxies, Proxy};
use crate::upload::Upload;
use crate::url::Origin;
use crate::way::{BoxStream, WayError};

/// Idle connections of one link to one origin; more are closed.
const MOST_IDLE: usize = 4;
/// The same of all links to all origins, each of which costs a descriptor; one more closes the one
/// that has waited for longest.
const MOST_IDLE_IN_ALL: usize = 64;
/// What HTTP/2 lets a server send ahead, per request and in all: a second of 1 Gbit/s. Less would
/// bound the rate of a long link.
const STREAM_WINDOW: u32 = 8 * 1024 * 1024;
const CONNECTION_WINDOW: u32 = 32 * 1024 * 1024;
/// What a proxy may say before it lets us through.
const MOST_PROXY_HEAD: usize = 16 * 1024;

/// How long things may take that have no other end.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// From the first packet to a connection that requests can be sent on, TLS included.
    pub connect: Duration,
    /// Without one new byte, until a fetch is given up.
    pub silence: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(20),
            silence: Duration::from_secs(60),
        }
    }
}

/// Why a request came to no answer.
#[derive(Debug, Error)]
pub enum RequestError {
    /// There is no connection.
    #[error(transparent)]
    Way(#[from] WayError),
    /// The origin does not speak TLS with us, or not as itself.
    #[error("{origin}: {source}")]
    Tls {
        /// Who was asked.
        origin: String,
        /// What is wrong.
        source: io::Error,
    },
    /// TLS needs to know whom to trust.
    #[error("no certificates of authorities are installed (Debian: ca-certificates){0}")]
    NoRoots(String),
    /// A proxy on the way does not let us through.
    #[error("the proxy {proxy}: {what}")]
    Proxy {
        /// Which one.
        proxy: String,
        /// What it says.
        what: String,
    },
    /// Connecting took too long.
    #[error("{origin} did not answer in time")]
    TimedOut {
        /// Who was asked.
        origin: String,
    },
    /// The connection broke, or does not speak HTTP.
    #[error("{origin}: {}", deepest(.source))]
    Http {
        /// Who was asked.
        origin: String,
        /// What is wrong.
        source: hyper::Error,
    },
    /// Redirects lead nowhere.
    #[error("{0}")]
    Redirect(String),
}

/// What asks origins: TLS settings, proxies and idle connections, for all fetches of a process.
pub struct Client {
    /// Made when it is first needed.
    tls: OnceCell<Arc<ClientConfig>>,
    proxies: Proxies,
    pub(crate) patience: Patience,
    /// Those used last at the end.
    idle: RefCell<VecDeque<Idle>>,
}

/// A connection that waits for another request of this link's to this origin; one of HTTP/2 may
/// have some under way.
struct Idle {
    link: LinkId,
    origin: Origin,
    sender: Sender,
}

/// What a new connection may speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Speech {
    /// HTTP/2 where the origin knows it.
    Any,
    /// HTTP/1.1, which can be left for another protocol.
    Http1,
}

/// The sending end of a connection.
pub(crate) enum Sender {
    Http1(http1::SendRequest<Upload>),
    Http2(http2::SendRequest<Upload>),
}

impl Client {
    /// A client that trusts the system's authorities (and `SSL_CERT_FILE`, `SSL_CERT_DIR`).
    #[must_use]
    pub fn new(proxies: Proxies, patience: Patience) -> Rc<Self> {
        Rc::new(Self {
            tls: OnceCell::new(),
            proxies,
            patience,
            idle: RefCell::default(),
        })
    }

    /// A client that trusts these authorities and no others.
    #[must_use]
    pub fn trusting(roots: RootCertStore, proxies: Proxies, patience: Patience) -> Rc<Self> {
        Rc::new(Self {
            tls: OnceCell::from(Arc::new(tls_settings(roots))),
            proxies,
            patience,
            idle: RefCell::default(),
        })
    }

    /// A connection to send one request on.
    pub(crate) async fn connection(
        &self,
        link: &Link,
        origin: &Origin,
    ) -> Result<Sender, RequestError> {
        match self.take_idle(link.id, origin) {
            Some(sender) => Ok(sender),
            None => self.fresh_connection(link, origin, Speech::Any).await,
        }
    }

    pub(crate) async fn fresh_connection(
        &self,
        link: &Link,
        origin: &Origin,
        speech: Speech,
    ) -> Result<Sender, RequestError> {
        let connecting = self.connect(link, origin, speech);
        let fresh = tokio::time::timeout(self.patience.connect, connecting).await;
        let late = |_| {
            let error = RequestError::TimedOut {
                origin: origin.to_string(),
            };
            link.on_failed(&error);
            error
        };
        let sender = fresh.map_err(late)??;
        if let Sender::Http2(sender) = &sender {
            self.keep(link.id, origin, Sender::Http2(sender.clone()));
        }
        Ok(sender)
    }

    /// A connection whose request is answered whole.
    pub(crate) fn keep(&self, link: LinkId, origin: &Origin, sender: Sender) {
        let mut idle = self.idle.borrow_mut();
        idle.retain(|it| !it.sender.is_closed());
        if idle.iter().filter(|it| it.is_for(link, origin)).count() >= MOST_IDLE {
            return;
        }
        if idle.len() >= MOST_IDLE_IN_ALL {
            idle.pop_front();
        }
        let origin = origin.clone();
        idle.push_back(Idle {
            link,
            origin,
            sender,
        });
    }

    /// No connection of this link's is used again: it leads nowhere any more.
    pub fn forget(&self, link: &Link) {
        self.idle.borrow_mut().retain(|it| it.link != link.id);
    }

    /// Connects to an origin, or its proxy, for nothing but to see that this link leads there.
    ///
    /// # Errors
    /// It does not.
    pub async fn knock(&self, link: &Link, origin: &Origin) -> Result<(), WayError> {
        self.first_hop(link, origin).await.map(drop)
    }

    /// The proxy's word of honour, where requests are sent to a proxy as they are.
    pub(crate) fn plain_proxy(&self, origin: &Origin) -> Option<&Proxy> {
        self.proxies.proxy_for(origin).filter(|_| !origin.is_https)
    }

    /// One that has been kept for another request.
    pub(crate) fn take_idle(&self, link: LinkId, origin: &Origin) -> Option<Sender> {
        let mut idle = self.idle.borrow_mut();
        idle.retain(|it| !it.sender.is_closed());
        let last = idle.iter().rposition(|it| it.is_for(link, origin))?;
        let taken = idle.remove(last)?;
        if let Sender::Http2(sender) = &taken.sender {
            let sender = Sender::Http2(sender.clone());
            idle.push_back(Idle { sender, ..taken });
        }
        Some(taken.sender)
    }

    fn tls(&self, speech: Speech) -> Result<Arc<ClientConfig>, RequestError> {
        let tls = match self.tls.get() {
            Some(tls) => tls.clone(),
            None => {
                let tls = Arc::new(tls_settings(system_roots()?));
                self.tls.get_or_init(|| tls).clone()
            }
        };
        Ok(match speech {
            Speech::Any => tls,
            Speech::Http1 => {
                let mut tls = ClientConfig::clone(&tls);
                tls.alpn_protocols = vec![b"http/1.1".to_vec()];
                Arc::new(tls)
            }
        })
    }

    async fn first_hop(&self, link: &Link, origin: &Origin) -> Result<BoxStream, WayError> {
        match self.proxies.proxy_for(origin) {
            Some(proxy) => link.connect(&proxy.host, proxy.port).await,
            None => link.connect(&origin.host, origin.port).await,
        }
    }

    async fn connect(
        &self,
        link: &Link,
        origin: &Origin,
        speech: Speech,
    ) -> Result<Sender, RequestError> {
        let mut stream = self.first_hop(link, origin).await?;
        if !origin.is_https {
            return http1_over(stream, origin).await;
        }
        if let Some(proxy) = self.proxies.proxy_for(origin) {
            stream = through(proxy, stream, origin).await?;
        }
        let failed = |source| RequestError::Tls {
            origin: origin.to_string(),
            source,
        };
        let name = ServerName::try_from(origin.host.clone());
        let name = name.map_err(|error| failed(io::Error::other(error)))?;
        let connector = TlsConnector::from(self.tls(speech)?);
        let stream = connector.connect(name, stream).await.map_err(failed)?;
        match stream.get_ref().1.alpn_protocol() {
            Some(b"h2") => http2_over(Box::new(stream), origin).await,
            _ => http1_over(Box::new(stream), origin).await,
        }
    }
}

/// Trusts whom the system trusts.
fn system_roots() -> Result<RootCertStore, RequestError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        let why = found.errors.first();
        let why = why.map(|error| format!(": {error}")).unwrap_or_default();
        return Err(RequestError::NoRoots(why));
    }
    Ok(roots)
}

fn tls_settings(roots: RootCertStore) -> ClientConfig {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let settings = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider knows TLS 1.2 and 1.3");
    let mut settings = settings.with_root_certificates(roots).with_no_client_auth();
    settings.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    settings
}

impl Idle {
    fn is_for(&self, link: LinkId, origin: &Origin) -> bool {
        self.link == link && self.origin == *origin
    }
}

impl Sender {
    pub(crate) async fn send(
        &mut self,
        request: Request<Upload>,
    ) -> Result<Response<Incoming>, hyper::Error> {
        match self {
            Self::Http1(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
            Self::Http2(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
        }
    }

    /// As `send`; gives a request back of which nothing was sent.
    pub(crate) async fn try_send(
        &mut self,
        request: Request<Upload>,
    ) -> Result<Response<Incoming>, (hyper::Error, Option<Request<Upload>>)> {
        let ready = match self {
            Self::Http1(sender) => sender.ready().await,
            Self::Http2(sender) => sender.ready().await,
        };
        if let Err(error) = ready {
            return Err((error, Some(request)));
        }
        let answered = match self {
            Self::Http1(sender) => sender.try_send_request(request).await,
            Self::Http2(sender) => sender.try_send_request(request).await,
        };
        answered.map_err(|mut failed| {
            let request = failed.take_message();
            (failed.into_error(), request)
        })
    }

    pub(crate) const fn is_http2(&self) -> bool {
        matches!(self, Self::Http2(_))
    }

    fn is_closed(&self) -> bool {
        match self {
            Self::Http1(sender) => sender.is_closed(),
            Self::Http2(sender) => sender.is_closed(),
        }
    }
}

impl RequestError {
    /// Whether another try may do better.
    pub(crate) fn fault(&self) -> Fault {
        match self {
            Self::Tls { source, .. } if is_certificate(source) => Fault::Hopeless,
            Self::Redirect(_) | Self::NoRoots(_) => Fault::Hopeless,
            // A resolver that does not answer says something else than that there is no such name.
            Self::Way(WayError::Family { .. } | WayError::Own { .. } | WayError::Bind { .. }) => {
                Fault::Hopeless
            }
            _ => Fault::Broken,
        }
    }
}

fn is_certificate(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    matches!(inner, Some(rustls::Error::InvalidCertificate(_)))
}

/// The cause that says most: hyper's own words are general.
fn deepest(error: &hyper::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

async fn http1_over(stream: BoxStream, origin: &Origin) -> Result<Sender, RequestError> {
    let shaken = http1::handshake(TokioIo::new(stream)).await;
    let (sender, connection) = shaken.map_err(|source| http_error(origin, source))?;
    // What goes wrong with it, its requests tell.
    tokio::task::spawn_local(async move { drop(connection.with_upgrades().await) });
    Ok(Sender::Http1(sender))
}

async fn http2_over(stream: BoxStream, origin: &Origin) -> Result<Sender, RequestError> {
    let mut builder = http2::Builder::new(OnThisThread);
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW);
    let shaken = builder.handshake(TokioIo::new(stream)).await;
    let (sender, connection) = shaken.map_err(|source| http_error(origin, source))?;
    tokio::task::spawn_local(async move { drop(connection.await) });
    Ok(Sender::Http2(sender))
}

pub(crate) fn http_error(origin: &Origin, source: hyper::Error) -> RequestError {
    RequestError::Http {
        origin: origin.to_string(),
        source,
    }
}

/// Has a proxy pass bytes to an origin, RFC 9110 §9.3.6.
async fn through(
    proxy: &Proxy,
    mut stream: BoxStream,
    origin: &Origin,
) -> Result<BoxStream, RequestError> {
    let failed = |what: String| RequestError::Proxy {
        proxy: format!("{}:{}", proxy.host, proxy.port),
        what,
    };
    let to = origin.host_and_port();
    let mut head = format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n");
    if let Some(credentials) = &proxy.credentials {
        head += &format!("Proxy-Authorization: {credentials}\r\n");
    }
    head += "\r\n";
    let written = stream.write_all(head.as_bytes()).await;
    written.map_err(|error| failed(error.to_string()))?;
    let mut answer = Vec::new();
    loop {
        // Byte by byte: what follows the head is TLS's.
        let byte = stream.read_u8().await;
        answer.push(byte.map_err(|error| failed(error.to_string()))?);
        if answer.ends_with(b"\r\n\r\n") {
            break;
        }
        if answer.len() > MOST_PROXY_HEAD {
            return Err(failed("it talks without end".to_owned()));
        }
    }
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut response = httparse::Response::new(&mut headers);
    let parsed = response.parse(&answer);
    parsed.map_err(|error| failed(format!("it does not speak HTTP: {error}")))?;
    match response.code {
        Some(200..=299) => Ok(stream),
        Some(code) => Err(failed(format!("it refuses {to} with status {code}"))),
        None => Err(failed("it does not speak HTTP".to_owned())),
    }
}

/// Runs what HTTP/2 does beside the requests; nothing here leaves its thread.
#[derive(Clone, Copy, Debug)]
struct OnThisThread;

impl<F: Future + 'static> hyper::rt::Executor<F> for OnThisThread
where
    F::Output: 'static,
{
    fn execute(&self, future: F) {
        tokio::task::spawn_local(future);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::{TcpListener, TcpStream};

    /// As a page does whose pictures are at as many ports of its server.
    #[test]
    fn however_many_origins_there_are_few_connections_wait_for_another_request() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all();
        let test = async {
            let client = Client::new(Proxies::default(), Patience::default());
            let origin = |port| Origin {
                is_https: false,
                host: "198.51.100.1".to_owned(),
                port,
            };
            let mut peers = Vec::new();
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            for port in 0..100 {
                let (near, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
                let (near, (peer, _)) = (near.unwrap(), accepted.unwrap());
                let sender = http1_over(Box::new(near), &origin(port)).await.unwrap();
                client.keep(LinkId(0), &origin(port), sender);
                peers.push(peer);
            }
            let closed = peers.len() - MOST_IDLE_IN_ALL;
            for peer in &mut peers[..closed] {
                let end = tokio::time::timeout(Duration::from_secs(10), peer.read_u8());
                let end = end.await.expect("it is kept").unwrap_err();
                assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
            }
            for port in 0..100 {
                let is_kept = client.take_idle(LinkId(0), &origin(port)).is_some();
                assert_eq!(is_kept, usize::from(port) >= closed, "{port}");
            }
        };
        tokio::task::LocalSet::new().block_on(&runtime.build().unwrap(), test);
    }
}
