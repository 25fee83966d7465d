//! TLS 1.3 with raw public keys (RFC 7250), through `rustls::quic`: who the ends are, and keys.
//!
//! Owns how rustls is set up: one protocol version, no tickets, no server name, no clock. The
//! client accepts exactly the pinned key; the server accepts any Ed25519 key that proves itself,
//! because whether that key may use the relay is decided after the handshake [P-3.6]. Connections
//! over TCP between two that know each other's keys are set up the same way.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::quic::{self, KeyChange, Keys, Version};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig,
    Side, SignatureScheme,
};

use crate::identity::{Identity, PublicKey};

/// Key schedule labels are those of QUIC version 1 (RFC 9001); nothing is gained by others.
const KEY_VERSION: Version = Version::V1;

fn provider() -> Arc<CryptoProvider> {
    use rustls::crypto::aws_lc_rs::{cipher_suite, default_provider};
    Arc::new(CryptoProvider {
        cipher_suites: vec![
            cipher_suite::TLS13_AES_128_GCM_SHA256,
            cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        ],
        ..default_provider()
    })
}

/// Keys of the first packets, which anybody can derive from the attempt [P-3.1].
pub(crate) fn initial_keys(attempt: u64, side: Side) -> Keys {
    use rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
    TLS13_AES_128_GCM_SHA256
        .tls13()
        .and_then(|suite| suite.quic_suite())
        .expect("this suite is made for TLS 1.3 and QUIC")
        .keys(&attempt.to_be_bytes(), side, KEY_VERSION)
}

/// Raw keys never expire, so TLS needs no clock; this one stands still.
#[derive(Debug)]
struct NoClock;

impl rustls::time_provider::TimeProvider for NoClock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(std::time::Duration::ZERO))
    }
}

/// Settings for sessions that this endpoint opens to `peer`.
pub(crate) fn client_config(
    identity: &Identity,
    peer: PublicKey,
) -> Result<Arc<ClientConfig>, Error> {
    tls_client_config(identity, Some(peer)).map(Arc::new)
}

/// TLS 1.3 of the side that connects: it proves `identity`, and accepts `peer` alone; without one,
/// any Ed25519 key that proves itself, which the caller then has to judge.
///
/// # Errors
/// Never with a sound build of the TLS library.
pub fn tls_client_config(
    identity: &Identity,
    peer: Option<PublicKey>,
) -> Result<ClientConfig, Error> {
    let provider = provider();
    let verifier = ServerKey {
        pinned: peer,
        algorithms: provider.signature_verification_algorithms,
    };
    let resolver =
        rustls::client::AlwaysResolvesClientRawPublicKeys::new(identity.certified_key()?);
    let mut config = ClientConfig::builder_with_details(provider, Arc::new(NoClock))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_cert_resolver(Arc::new(resolver));
    config.resumption = rustls::client::Resumption::disabled();
    config.enable_sni = false;
    Ok(config)
}

/// Settings for sessions that others open to this endpoint.
pub(crate) fn server_config(identity: &Identity) -> Result<Arc<ServerConfig>, Error> {
    tls_server_config(identity).map(Arc::new)
}

/// TLS 1.3 of the side that is connected to: it proves `identity`, and has any client prove an
/// Ed25519 key, which the caller then has to judge.
///
/// # Errors
/// Never with a sound build of the TLS library.
pub fn tls_server_config(identity: &Identity) -> Result<ServerConfig, Error> {
    let provider = provider();
    let verifier = AnyKey {
        algorithms: provider.signature_verification_algorithms,
    };
    let resolver =
        rustls::server::AlwaysResolvesServerRawPublicKeys::new(identity.certified_key()?);
    let mut config = ServerConfig::builder_with_details(provider, Arc::new(NoClock))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_cert_resolver(Arc::new(resolver));
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// Accepts the one key that the join string named, or any where none is known yet.
#[derive(Debug)]
struct ServerKey {
    pinned: Option<PublicKey>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for ServerKey {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let key = PublicKey::from_spki(end_entity).ok_or(CertificateError::BadEncoding)?;
        match self.pinned {
            Some(pinned) if pinned != key => Err(CertificateError::UnknownIssuer.into()),
            _ => Ok(ServerCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2 is not spoken".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

/// Accepts any key whose owner signs the handshake with it.
#[derive(Debug)]
struct AnyKey {
    algorithms: WebPkiSupportedAlgorithms,
}

impl ClientCertVerifier for AnyKey {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        PublicKey::from_spki(end_entity)
            .map(|_| ClientCertVerified::assertion())
            .ok_or_else(|| CertificateError::BadEncoding.into())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2 is not spoken".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

fn verify(
    message: &[u8],
    cert: &CertificateDer<'_>,
    dss: &DigitallySignedStruct,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, Error> {
    let spki = SubjectPublicKeyInfoDer::from(cert.as_ref());
    verify_tls13_signature_with_raw_key(message, &spki, dss, algorithms)
}

/// One TLS connection of a handshake.
pub(crate) struct Tls(quic::Connection);

impl Tls {
    pub(crate) fn client(config: Arc<ClientConfig>, parameters: Vec<u8>) -> Result<Self, Error> {
        let name = ServerName::try_from("relay.tabane").expect("a constant that parses");
        let connection = quic::ClientConnection::new(config, KEY_VERSION, name, parameters)?;
        Ok(Self(connection.into()))
    }

    pub(crate) fn server(config: Arc<ServerConfig>, parameters: Vec<u8>) -> Result<Self, Error> {
        let connection = quic::ServerConnection::new(config, KEY_VERSION, parameters)?;
        Ok(Self(connection.into()))
    }

    pub(crate) fn read(&mut self, data: &[u8]) -> Result<(), Error> {
        self.0.read_hs(data)
    }

    /// Appends handshake bytes of the present level; a key change ends that level.
    pub(crate) fn write(&mut self, out: &mut Vec<u8>) -> Option<KeyChange> {
        self.0.write_hs(out)
    }

    pub(crate) fn is_handshaking(&self) -> bool {
        self.0.is_handshaking()
    }

    pub(crate) fn peer_parameters(&self) -> Option<&[u8]> {
        self.0.quic_transport_parameters()
    }

    pub(crate) fn peer_key(&self) -> Option<PublicKey> {
        self.0
            .peer_certificates()
            .and_then(|chain| chain.first())
            .and_then(|spki| PublicKey::from_spki(spki))
    }
}
