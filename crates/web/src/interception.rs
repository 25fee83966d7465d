//! Tunnels that are ended here instead of at their host: which ones, and the TLS with the program.
//!
//! Only tunnels to the named hosts are, on HTTPS's own port, as long as the authority lasts. What
//! is asked for within one is answered like any request of the proxy's (`server`).

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use rustls::server::Acceptor;
use rustls::{AlertDescription, ServerConfig};
use thiserror::Error;
use tokio::time::timeout;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;

use crate::authority::{Authority, AuthorityError};
use crate::hosts::Hosts;

/// HTTPS's own port.
pub(crate) const PORT: u16 = 443;
/// A program's share of a handshake, on loopback; a person may be asked meanwhile.
const HANDSHAKE_TIME: Duration = Duration::from_secs(60);
/// Hosts whose certificates are kept; beyond, all are made anew.
const MOST_HOSTS: usize = 1_024;
/// A certificate is replaced when it lasts no longer than this.
const LEAST_LEFT: Duration = Duration::from_secs(86_400);

/// The hosts that are intercepted, with certificates for them.
pub struct Interception {
    authority: Authority,
    hosts: Vec<Hosts>,
    settings: RefCell<BTreeMap<String, Settings>>,
    /// Hosts whose failed handshakes have been told of; the same advice again helps nobody.
    told: RefCell<BTreeSet<String>>,
    /// Hosts that some program has asked for something within a tunnel.
    trusted: RefCell<BTreeSet<String>>,
}

/// A domain is beyond the authority's limits.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("'{0}' is not among the names that {1} is limited to")]
pub struct Beyond(String, String);

struct Settings {
    tls: Arc<ServerConfig>,
    ends_at: SystemTime,
}

/// Why a program and we came to no TLS.
#[derive(Debug, Error)]
pub(crate) enum HandshakeError {
    #[error("the program asked for {0} within the tunnel")]
    OtherName(String),
    #[error("the program does not trust tabane's certificate")]
    Untrusted,
    #[error("the program hung up, as those do that do not trust tabane's certificate")]
    HungUp,
    #[error("the program speaks nothing but HTTP/2, and tabane HTTP/1.1")]
    Http2Only,
    #[error("the program was silent during the handshake")]
    Late,
    #[error("TLS with the program failed: {0}")]
    Other(io::Error),
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    #[error("no TLS settings: {0}")]
    Settings(rustls::Error),
}

impl Interception {
    /// These hosts, by certificates of this authority.
    ///
    /// # Errors
    /// One of them is beyond its limits, so that nobody would believe its certificate.
    pub fn new(authority: Authority, hosts: Vec<Hosts>) -> Result<Self, Beyond> {
        let beyond = hosts.iter().find(|hosts| !authority.covers(hosts.domain()));
        if let Some(hosts) = beyond {
            return Err(Beyond(
                hosts.domain().to_owned(),
                authority.title().to_owned(),
            ));
        }
        Ok(Self {
            authority,
            hosts,
            settings: RefCell::default(),
            told: RefCell::default(),
            trusted: RefCell::default(),
        })
    }

    /// Whether a tunnel there is ended here. Without an authority that lasts, nobody's is.
    pub(crate) fn concerns(&self, host: &str, port: u16, now: SystemTime) -> bool {
        port == PORT
            && now < self.authority.ends_at()
            && self.hosts.iter().any(|hosts| hosts.has(host))
    }

    /// TLS with a program that believes to speak with a host.
    pub(crate) async fn accept(
        &self,
        near: Upgraded,
        host: &str,
    ) -> Result<TlsStream<TokioIo<Upgraded>>, HandshakeError> {
        let shaken = timeout(HANDSHAKE_TIME, async {
            let start = LazyConfigAcceptor::new(Acceptor::default(), TokioIo::new(near));
            let start = start.await.map_err(HandshakeError::of)?;
            // Who is asked for must be who is answered for: the origin is chosen by the tunnel.
            match start.client_hello().server_name() {
                Some(name) if !name.eq_ignore_ascii_case(host) => {
                    return Err(HandshakeError::OtherName(name.to_owned()));
                }
                _ => {}
            }
            let settings = self.settings(host, SystemTime::now())?;
            start
                .into_stream(settings)
                .await
                .map_err(HandshakeError::of)
        });
        shaken.await.unwrap_or(Err(HandshakeError::Late))
    }

    /// Tells the user what to do about a handshake that failed, once for each host.
    pub(crate) fn advise(&self, host: &str, error: &HandshakeError) {
        let mut told = self.told.borrow_mut();
        if told.len() < MOST_HOSTS && told.insert(host.to_owned()) {
            let trust = match error {
                HandshakeError::Untrusted | HandshakeError::HungUp => {
                    "`tabane web ca show` says how to make a program trust it; if it pins \
                     certificates, "
                }
                _ => "",
            };
            tracing::warn!(host, "{error}: {trust}leave {host} out of --intercept");
        }
    }

    /// A program has asked a host for something, so it trusts our certificate.
    pub(crate) fn on_trusted(&self, host: &str) {
        let mut trusted = self.trusted.borrow_mut();
        if !trusted.contains(host) && trusted.len() < MOST_HOSTS {
            trusted.insert(host.to_owned());
        }
    }

    /// Whether a program has.
    pub(crate) fn is_trusted(&self, host: &str) -> bool {
        self.trusted.borrow().contains(host)
    }

    fn settings(&self, host: &str, now: SystemTime) -> Result<Arc<ServerConfig>, HandshakeError> {
        let mut settings = self.settings.borrow_mut();
        let least = self.authority.ends_at().min(now + LEAST_LEFT);
        if let Some(known) = settings.get(host).filter(|known| known.ends_at >= least) {
            return Ok(known.tls.clone());
        }
        let leaf = self.authority.certify(host, now)?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .and_then(|tls| {
                let chain = vec![leaf.certificate];
                tls.with_no_client_auth().with_single_cert(chain, leaf.key)
            });
        let mut tls = tls.map_err(HandshakeError::Settings)?;
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        let tls = Arc::new(tls);
        if settings.len() >= MOST_HOSTS {
            settings.clear();
        }
        let ends_at = leaf.ends_at;
        let fresh = Settings {
            tls: tls.clone(),
            ends_at,
        };
        settings.insert(host.to_owned(), fresh);
        Ok(tls)
    }
}

impl HandshakeError {
    fn of(error: io::Error) -> Self {
        use AlertDescription as Alert;
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
        match inner {
            Some(rustls::Error::AlertReceived(
                Alert::UnknownCA
                | Alert::BadCertificate
                | Alert::CertificateUnknown
                | Alert::UnsupportedCertificate
                | Alert::CertificateExpired
                | Alert::AccessDenied,
            )) => Self::Untrusted,
            Some(rustls::Error::NoApplicationProtocol) => Self::Http2Only,
            _ => match error.kind() {
                io::ErrorKind::UnexpectedEof
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::BrokenPipe => Self::HungUp,
                _ => Self::Other(error),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authority::KeptAuthority;

    const DAY: Duration = Duration::from_secs(86_400);

    fn authority(domain: &str) -> Authority {
        let now = SystemTime::now();
        let made = KeptAuthority::make("t", [domain.to_owned()], now, 90 * DAY);
        Authority::open(&made.unwrap()).unwrap()
    }

    #[test]
    fn only_named_hosts_on_the_usual_port_are_concerned_and_not_for_ever() {
        let hosts = ["files.example.org", "*.cdn.example.org"];
        let hosts = hosts.map(|hosts| hosts.parse().unwrap()).to_vec();
        let interception = Interception::new(authority("example.org"), hosts).unwrap();
        let now = SystemTime::now();
        assert!(interception.concerns("files.example.org", 443, now));
        assert!(interception.concerns("a.cdn.example.org", 443, now));
        for (host, port) in [
            ("files.example.org", 8443),
            ("www.example.org", 443),
            ("cdn.example.org", 443),
            ("192.0.2.1", 443),
        ] {
            assert!(!interception.concerns(host, port, now), "{host}:{port}");
        }
        assert!(!interception.concerns("files.example.org", 443, now + 90 * DAY));
    }

    #[test]
    fn hosts_beyond_the_limits_are_refused() {
        let hosts: Hosts = "*.example.net".parse().unwrap();
        let refused = Interception::new(authority("example.org"), vec![hosts]);
        assert_eq!(
            refused.map(drop),
            Err(Beyond("example.net".to_owned(), "t".to_owned()))
        );
    }

    #[test]
    fn a_certificate_is_used_again_until_it_is_about_to_end() {
        let hosts = vec!["files.example.org".parse().unwrap()];
        let interception = Interception::new(authority("example.org"), hosts).unwrap();
        let at = |days: u32| {
            let now = SystemTime::now() + days * DAY;
            interception.settings("files.example.org", now).unwrap()
        };
        let first = at(0);
        assert!(Arc::ptr_eq(&first, &at(1)));
        assert!(!Arc::ptr_eq(&first, &at(3)));
    }
}
