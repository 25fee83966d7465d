//! The certificate that the relay's web server shows: the owner's, or one made up.

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use thiserror::Error;

/// A chain and its key.
#[derive(Debug)]
pub struct Certificate {
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) key: PrivateKeyDer<'static>,
}

/// Why there is no certificate.
#[derive(Debug, Error)]
pub enum CertificateError {
    /// None could be made.
    #[error("cannot make a certificate: {0}")]
    Making(#[from] rcgen::Error),
    /// The text has none.
    #[error("no certificate in the file: it must be PEM, as certbot writes fullchain.pem")]
    NoChain,
    /// The text has none.
    #[error("no private key in the file: it must be PEM, as certbot writes privkey.pem")]
    NoKey,
    /// They do not fit together.
    #[error("certificate and key cannot be used: {0}")]
    Unusable(#[from] rustls::Error),
}

impl Certificate {
    /// Reads a chain and its key from PEM.
    ///
    /// # Errors
    /// One of them is not in its text.
    pub fn from_pem(chain: &[u8], key: &[u8]) -> Result<Self, CertificateError> {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(chain).collect();
        let chain = chain.map_err(|_| CertificateError::NoChain)?;
        if chain.is_empty() {
            return Err(CertificateError::NoChain);
        }
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| CertificateError::NoKey)?;
        Ok(Self { chain, key })
    }

    /// Makes one for `name`, signed by itself, as many devices show it.
    ///
    /// # Errors
    /// The name is none.
    pub fn made_up(name: &str) -> Result<Self, CertificateError> {
        let made = rcgen::generate_simple_self_signed(vec![name.to_owned()])?;
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        Ok(Self {
            chain: vec![made.cert.der().clone()],
            key: key.into(),
        })
    }
}
