//! Where a relay takes in TLS, for clients whose networks let no UDP through.
//!
//! Owns which socket is had and which certificate is shown there, and what is said of it.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Result};
use clap::Args;
use tabane_carrier::{Acceptor, Certificate};
use tabane_core::PublicKey;
use tabane_tunnel::WebDoor;
use tokio::net::TcpListener;

/// Where clients look for it, as browsers do.
pub(crate) const TLS_PORT: u16 = 443;

/// How TLS is taken in.
#[derive(Debug, Clone, Args)]
pub(crate) struct DoorArgs {
    /// TCP address to take in TLS on, for clients whose networks drop UDP; they ask at port 443,
    /// and strangers get a web page. Behind a web server that forwards by name (nginx's
    /// ssl_preread), listen elsewhere and give the name with --public. "no": none [default:
    /// [::]:443 where it is to be had]
    #[arg(long, value_name = "ADDR:PORT")]
    tls_listen: Option<TlsListen>,
    /// Certificate chain (PEM) to show there [default: one made up at each start; clients know the
    /// relay by its own key]
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The certificate's private key (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy)]
enum TlsListen {
    No,
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

impl DoorArgs {
    /// Opens what is to be had. Only what was asked for must be.
    pub(crate) async fn open(&self, key: PublicKey, name: Option<&str>) -> Result<Vec<WebDoor>> {
        let listener = match self.tls_listen {
            Some(TlsListen::No) => return Ok(Vec::new()),
            Some(TlsListen::At(address)) => TcpListener::bind(address)
                .await
                .with_context(|| format!("cannot take in TLS on {address} (--tls-listen)"))?,
            None => match usual().await {
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
        let certificate = match (&self.tls_cert, &self.tls_key) {
            (Some(chain), Some(key)) => Certificate::from_pem(&read(chain)?, &read(key)?),
            _ => Certificate::made_up(name.unwrap_or("localhost")),
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
