//! TLS between neighbours: raw public keys, and one protocol name for each purpose.

use std::sync::Arc;

use rustls::pki_types::ServerName;
use tabane_core::{Identity, PublicKey, tls_client_config, tls_server_config};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{TlsAcceptor, TlsConnector, client};

/// CONNECT, by friends.
pub(crate) const LEND: &[u8] = b"tabane-lend/1";
/// Datagrams of a session passed on, by friends.
pub(crate) const DATAGRAMS: &[u8] = b"tabane-datagrams/1";
/// Getting to know each other.
pub(crate) const PAIR: &[u8] = b"tabane-pair/1";

pub(crate) fn acceptor(identity: &Identity) -> Result<TlsAcceptor, rustls::Error> {
    let mut config = tls_server_config(identity)?;
    config.alpn_protocols = vec![LEND.to_vec(), DATAGRAMS.to_vec(), PAIR.to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// For one purpose; without a pinned key, anybody may answer.
pub(crate) fn connector(
    identity: &Identity,
    pinned: Option<PublicKey>,
    purpose: &[u8],
) -> Result<TlsConnector, rustls::Error> {
    let mut config = tls_client_config(identity, pinned)?;
    config.alpn_protocols = vec![purpose.to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

pub(crate) async fn connect<S: AsyncRead + AsyncWrite + Unpin>(
    connector: &TlsConnector,
    stream: S,
) -> std::io::Result<client::TlsStream<S>> {
    let name = ServerName::try_from("neighbour.tabane").expect("a constant that parses");
    connector.connect(name, stream).await
}

/// The key that the other end has proved.
pub(crate) fn peer_key(connection: &rustls::CommonState) -> Option<PublicKey> {
    let chain = connection.peer_certificates()?;
    PublicKey::from_spki(chain.first()?)
}
