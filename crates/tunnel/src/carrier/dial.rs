//! The client's side: a connection to the relay over one link, by its proxy if it has one.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::version::TLS13;
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use socket2::SockRef;
use tabane_linux::threads::lookup_host;
use thiserror::Error;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::accept::TLS_BUFFER;
use super::capsule::Capsuled;
use super::door::Door;
use super::head::read_answer;
use super::proxy::{Proxy, ProxyError};
use super::{BoxStream, HTTP_1, provider, socket};

/// Each step of a dial is given so long: connection, proxy, TLS, the door.
const STEP_TIME: Duration = Duration::from_secs(5);

/// Where to, and by which way.
#[derive(Clone, Debug)]
pub struct Dial {
    /// The interface that packets must take.
    pub interface: Option<String>,
    /// Our address there.
    pub local: Option<IpAddr>,
    /// `SO_MARK`, so that our own hooks leave the connection alone.
    pub mark: Option<u32>,
    /// The relay, as it is reached without a proxy or told to one.
    pub relay: SocketAddr,
    /// Where the relay takes UDP, for a proxy that lets no TLS out.
    pub relay_udp: SocketAddr,
    /// The name that TLS says who is wanted by, where the relay has one.
    pub name: Option<String>,
    /// The relay's public key.
    pub relay_key: [u8; 32],
    /// Asked to connect to the relay.
    pub proxy: Option<Proxy>,
}

/// Why there is no connection.
#[derive(Debug, Error)]
pub enum DialError {
    /// The socket could not be had.
    #[error("cannot use the link for TCP: {0}")]
    Socket(#[source] io::Error),
    /// Nobody connected.
    #[error("TCP to {to}: {source}")]
    Connect {
        /// Relay or proxy.
        to: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// The proxy's name means nothing.
    #[error("cannot find the proxy {host}: {source}")]
    ProxyName {
        /// As configured.
        host: String,
        /// What the resolver said.
        source: io::Error,
    },
    /// The proxy did not connect us.
    #[error(transparent)]
    Proxy(#[from] ProxyError),
    /// No TLS came about.
    #[error("TLS with {to}: {source}")]
    Tls {
        /// Relay or proxy.
        to: SocketAddr,
        /// What was wrong.
        source: io::Error,
    },
    /// What came in answer is no TLS.
    #[error(
        "{to} does not speak TLS: likely a login page (captive portal) answers in its place; open \
         any web page over this link"
    )]
    NoTls {
        /// Relay or proxy.
        to: SocketAddr,
    },
    /// The web server is not the relay's.
    #[error(
        "{to} answers as a web server{server} that is no relay (HTTP {status}): on the relay, see \
         --tls-listen and --behind"
    )]
    NoRelay {
        /// The other end's address.
        to: SocketAddr,
        /// What it answered.
        status: u16,
        /// What it says of itself, in brackets.
        server: String,
    },
    /// There is no TLS by the proxy, and no UDP either.
    #[error("{tls}; nor does the proxy pass UDP on (CONNECT-UDP): {udp}")]
    Neither {
        /// Why there is no TLS.
        tls: Box<DialError>,
        /// Why there is no UDP.
        udp: Box<DialError>,
    },
    /// Nothing that makes sense came in answer.
    #[error("{to} does not answer as a relay: {source}")]
    Garbled {
        /// The other end's address.
        to: SocketAddr,
        /// What was wrong.
        source: io::Error,
    },
}

impl Dial {
    /// Connects. Ends with an error within 40 s at the most.
    ///
    /// # Errors
    /// See [`DialError`].
    pub async fn connect(&self) -> Result<BoxStream, DialError> {
        let tls = match self.by_tls().await {
            Err(error) if error.is_of_way() => error,
            connected => return connected,
        };
        let proxy = self.proxy.as_ref().filter(|proxy| proxy.may_pass_udp());
        let Some(proxy) = proxy else {
            return Err(tls);
        };
        // Behind TLS: it has the losses of UDP as well.
        match self.by_udp(proxy).await {
            Ok(stream) => Ok(Box::new(Capsuled::new(stream))),
            Err(udp) => Err(DialError::Neither {
                tls: Box::new(tls),
                udp: Box::new(udp),
            }),
        }
    }

    async fn by_udp(&self, proxy: &Proxy) -> Result<TcpStream, DialError> {
        let mut stream = self.tcp(self.find(proxy).await?).await?;
        let asked = timeout(STEP_TIME, proxy.ask_udp(&mut stream, self.relay_udp)).await;
        asked.unwrap_or_else(|_| Err(proxy.silent()))?;
        Ok(stream)
    }

    async fn by_tls(&self) -> Result<BoxStream, DialError> {
        let stream = match &self.proxy {
            None => self.tcp(self.relay).await?,
            Some(proxy) => {
                let mut stream = self.tcp(self.find(proxy).await?).await?;
                let asked = timeout(STEP_TIME, proxy.ask(&mut stream, self.relay)).await;
                asked.unwrap_or_else(|_| Err(proxy.silent()))?;
                stream
            }
        };
        let mut stream = self.tls(stream).await?;
        self.enter(&mut stream).await?;
        Ok(Box::new(stream))
    }

    async fn find(&self, proxy: &Proxy) -> Result<SocketAddr, DialError> {
        let failed = |source| DialError::ProxyName {
            host: proxy.host().to_owned(),
            source,
        };
        let found = timeout(STEP_TIME, lookup_host((proxy.host(), proxy.port()))).await;
        let found = found.map_err(|late| failed(late.into()))?.map_err(failed)?;
        let fits = |at: &SocketAddr| match self.local {
            Some(local) => local.is_ipv4() == at.is_ipv4(),
            None => true,
        };
        let found: Vec<SocketAddr> = found.collect();
        let first = found.iter().find(|at| fits(at)).or_else(|| found.first());
        first
            .copied()
            .ok_or_else(|| failed(io::ErrorKind::NotFound.into()))
    }

    async fn tcp(&self, to: SocketAddr) -> Result<TcpStream, DialError> {
        let socket = match to {
            SocketAddr::V4(_) => TcpSocket::new_v4(),
            SocketAddr::V6(_) => TcpSocket::new_v6(),
        };
        let socket = socket.map_err(DialError::Socket)?;
        if let Some(interface) = &self.interface {
            let bound = socket.bind_device(Some(interface.as_bytes()));
            bound.map_err(DialError::Socket)?;
        }
        if let Some(mark) = self.mark {
            let marked = SockRef::from(&socket).set_mark(mark);
            marked.map_err(DialError::Socket)?;
        }
        if let Some(local) = self.local.filter(|ip| ip.is_ipv4() == to.is_ipv4()) {
            let bound = socket.bind(SocketAddr::new(local, 0));
            bound.map_err(DialError::Socket)?;
        }
        let failed = |source| DialError::Connect { to, source };
        let connected = timeout(STEP_TIME, socket.connect(to)).await;
        let stream = connected
            .map_err(|late| failed(late.into()))?
            .map_err(failed)?;
        socket::prepare(&stream).map_err(DialError::Socket)?;
        Ok(stream)
    }

    async fn tls(&self, stream: TcpStream) -> Result<TlsStream<TcpStream>, DialError> {
        let to = self.relay;
        let failed = |source| match is_no_tls(&source) {
            true => DialError::NoTls { to },
            false => DialError::Tls { to, source },
        };
        let config = ClientConfig::builder_with_provider(provider());
        let config = config
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| failed(io::Error::other(error)))?;
        let mut config = config
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anybody))
            .with_no_client_auth();
        // As browsers do; relays choose the second.
        config.alpn_protocols = vec![b"h2".to_vec(), HTTP_1.to_vec()];
        let name = self.name.clone().map(ServerName::try_from);
        let name = match name {
            Some(Ok(name)) => name,
            Some(Err(_)) | None => ServerName::IpAddress(to.ip().into()),
        };
        let connector = TlsConnector::from(Arc::new(config));
        let made = timeout(STEP_TIME, connector.connect(name, stream)).await;
        let mut stream = made.map_err(|late| failed(late.into()))?.map_err(failed)?;
        stream.get_mut().1.set_buffer_limit(Some(TLS_BUFFER));
        Ok(stream)
    }

    /// Asks the web server for the relay behind it.
    async fn enter(&self, stream: &mut TlsStream<TcpStream>) -> Result<(), DialError> {
        let to = self.relay;
        let host = self.name.clone().unwrap_or_else(|| to.ip().to_string());
        let request = format!(
            "GET {} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: tabane\r\n\r\n",
            Door::of(&self.relay_key).path(),
        );
        let garbled = |source| DialError::Garbled { to, source };
        if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
            return Err(DialError::NoRelay {
                to,
                status: 2,
                server: String::new(),
            });
        }
        let asked = async {
            stream.write_all(request.as_bytes()).await?;
            stream.flush().await?;
            read_answer(stream).await
        };
        let answer = timeout(STEP_TIME, asked).await;
        let answer = answer
            .map_err(|late| garbled(late.into()))?
            .map_err(garbled)?;
        match answer.status {
            101 => Ok(()),
            status => Err(DialError::NoRelay {
                to,
                status,
                server: answer
                    .server
                    .map_or_else(String::new, |it| format!(" ({it})")),
            }),
        }
    }
}

impl DialError {
    /// Whether it may be another way by the same proxy: it is there and lets us in.
    fn is_of_way(&self) -> bool {
        match self {
            Self::Socket(_) | Self::Connect { .. } | Self::ProxyName { .. } => false,
            Self::Proxy(ProxyError::Password(_)) => false,
            Self::Proxy(ProxyError::Refused { .. } | ProxyError::Garbled { .. }) => true,
            Self::Tls { .. } | Self::NoTls { .. } | Self::NoRelay { .. } => true,
            Self::Neither { .. } | Self::Garbled { .. } => true,
        }
    }
}

/// Whether a handshake failed because the answer was of another protocol.
fn is_no_tls(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|it| it.downcast_ref());
    matches!(inner, Some(rustls::Error::InvalidMessage(_)))
}

/// Believes every certificate: who is at the other end is proved within, by the session's own
/// handshake.
#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}
