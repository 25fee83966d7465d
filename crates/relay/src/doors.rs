//! Where a relay takes in TLS, for clients whose networks let no UDP through, and UDP beside its
//! own port, for those whose networks let little through.
//!
//! Owns which socket is had and which certificate is shown there, and what is said of it.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Result};
use tabane_core::PublicKey;
use tabane_tunnel::{
    Relay, UDP_PORTS, WebDoor,
    carrier::{Acceptor, Certificate, TLS_PORT},
};
use tokio::net::TcpListener;

/// How TLS is taken in.
#[derive(Debug, Clone)]
pub struct Doors {
    /// Where it was asked for; `None`: at [`TLS_PORT`], where that is to be had.
    pub listen: Option<TlsListen>,
    /// The files of a certificate chain and its key (PEM); one is made up where there is none.
    pub certificate: Option<(PathBuf, PathBuf)>,
}

/// Opens other UDP ports beside the relay's own where they are to be had, and says which: none must
/// be. A web server's port is left to it: where another has TCP port 443, or the user says where
/// TLS is taken in instead, 443 is not taken for UDP either, be it free.
pub(crate) fn listen_also(relay: &mut Relay, own: SocketAddr, has_web: bool) {
    let mut had = Vec::new();
    for port in UDP_PORTS {
        if port == own.port() {
            continue;
        }
        if port == TLS_PORT && !has_web {
            tracing::info!("UDP port {port} is left to the web server that has TCP port {port}");
            continue;
        }
        match relay.listen_also(SocketAddr::new(own.ip(), port)) {
            Ok(()) => had.push(port.to_string()),
            Err(error) => tracing::info!("UDP port {port} is left alone: {error}"),
        }
    }
    if !had.is_empty() {
        tracing::info!(
            ports = had.join(", "),
            "listens there as well, for clients whose networks drop other UDP"
        );
    }
}

/// Where TLS is to be taken in.
#[derive(Debug, Clone, Copy)]
pub enum TlsListen {
    /// Nowhere.
    No,
    /// At this TCP address.
    At(SocketAddr),
}

impl FromStr for TlsListen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "no" => Ok(Self::No),
            _ => text
                .parse()
                .map(Self::At)
                .map_err(|_| "expected ADDR:PORT or no".to_owned()),
        }
    }
}

impl Doors {
    /// Opens what is to be had. Only what was asked for must be.
    ///
    /// `inherited`: the socket of a process that this one takes over from.
    pub async fn open(
        &self,
        key: PublicKey,
        name: Option<&str>,
        inherited: Option<std::net::TcpListener>,
    ) -> Result<Vec<WebDoor>> {
        let inherited = inherited.map(TcpListener::from_std).transpose()?;
        let listener = match (self.listen, inherited) {
            (Some(TlsListen::No), _) => return Ok(Vec::new()),
            (_, Some(listener)) => listener,
            (Some(TlsListen::At(address)), None) => TcpListener::bind(address)
                .await
                .with_context(|| format!("cannot take in TLS on {address} (--tls-listen)"))?,
            (None, None) => match usual().await {
                Ok(listener) => listener,
                Err(error) => {
                    tracing::info!(
                        "TLS is not taken in: TCP port {TLS_PORT}: {error}; clients need UDP \
                         (--tls-listen ADDR:PORT behind a web server on 443)"
                    );
                    return Ok(Vec::new());
                }
            },
        };
        let read = |path: &PathBuf| fs::read(path).with_context(|| path.display().to_string());
        let certificate = match &self.certificate {
            Some((chain, key)) => Certificate::from_pem(&read(chain)?, &read(key)?),
            None => Certificate::made_up(name.unwrap_or("localhost")),
        };
        let acceptor = Acceptor::new(&key.0, certificate.context("--tls-cert, --tls-key")?)?;
        tracing::info!(
            listen = %listener.local_addr()?,
            "takes in TLS, for clients whose networks drop UDP"
        );
        Ok(vec![WebDoor { listener, acceptor }])
    }
}

async fn usual() -> std::io::Result<TcpListener> {
    let v6: IpAddr = Ipv6Addr::UNSPECIFIED.into();
    match TcpListener::bind((v6, TLS_PORT)).await {
        Ok(listener) => Ok(listener),
        // IPv6 may be switched off.
        Err(_) => TcpListener::bind((Ipv4Addr::UNSPECIFIED, TLS_PORT)).await,
    }
}
