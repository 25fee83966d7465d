//! A certificate authority of this machine's own, and the certificates that it gives to hosts.
//!
//! It is limited to some domains (name constraints, RFC 5280 §4.2.1.10), so that whoever gets hold
//! of its key can be none but these, and it ends soon. Owns the form of certificates. Where the key
//! is kept, and who trusts it, is for others.

use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CidrSubnet, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, GeneralSubtree, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    NameConstraints, PKCS_ECDSA_P256_SHA256, SanType,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::hosts::is_within;

/// A certificate counts from so long before it was made: clocks differ.
const BACKDATED: Duration = Duration::from_secs(3_600);
/// How long a host's certificate lasts. It is in memory only; a new one costs a millisecond.
const LEAF_TIME: Duration = Duration::from_secs(3 * 86_400);

/// An authority as it is kept.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeptAuthority {
    /// What programs that list authorities call it; no two are called the same.
    pub title: String,
    /// Each with all below it; none is below another.
    pub domains: Vec<String>,
    /// When it ends: seconds since 1970.
    pub ends_at: u64,
    /// Its own certificate, PEM.
    pub certificate: String,
    /// Its key, PKCS #8 in PEM: whoever has it can be any of these hosts.
    pub key: String,
}

/// Why there is no authority, or no certificate.
#[derive(Debug, Error)]
pub enum AuthorityError {
    /// What was kept is not what was made.
    #[error("the {0} in it cannot be read")]
    Damaged(&'static str),
    /// The library refuses.
    #[error("cannot make a certificate: {0}")]
    Making(#[from] rcgen::Error),
}

/// An authority that can be used.
pub struct Authority {
    title: String,
    domains: Vec<String>,
    ends_at: SystemTime,
    certificate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

/// A host's certificate with its key.
pub(crate) struct Leaf {
    pub(crate) certificate: CertificateDer<'static>,
    pub(crate) key: PrivateKeyDer<'static>,
    pub(crate) ends_at: SystemTime,
}

impl KeptAuthority {
    /// A new one for these domains and all below them, for so long from `now` on.
    ///
    /// # Errors
    /// A domain is none, or there is no key to be had.
    pub fn make(
        title: &str,
        domains: impl IntoIterator<Item = String>,
        now: SystemTime,
        life: Duration,
    ) -> Result<Self, AuthorityError> {
        let domains = without_lower(domains.into_iter().collect());
        let ends_at = now + life;
        let mut params = params_of(title);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let permitted = domains.iter().cloned().map(GeneralSubtree::DnsName);
        params.name_constraints = Some(NameConstraints {
            permitted_subtrees: permitted.collect(),
            // A kind of name that nothing is said of would be allowed.
            excluded_subtrees: vec![
                GeneralSubtree::IpAddress(CidrSubnet::from_v4_prefix([0; 4], 0)),
                GeneralSubtree::IpAddress(CidrSubnet::from_v6_prefix([0; 16], 0)),
            ],
        });
        params.not_before = (now - BACKDATED).into();
        params.not_after = ends_at.into();
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let certificate = params.self_signed(&key)?;
        let since_1970 = ends_at.duration_since(SystemTime::UNIX_EPOCH);
        Ok(Self {
            title: title.to_owned(),
            domains,
            ends_at: since_1970.map_or(0, |span| span.as_secs()),
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        })
    }
}

impl Authority {
    /// What was kept, to be used.
    ///
    /// # Errors
    /// It is damaged.
    pub fn open(kept: &KeptAuthority) -> Result<Self, AuthorityError> {
        let key = KeyPair::from_pem(&kept.key).map_err(|_| AuthorityError::Damaged("key"))?;
        let certificate = CertificateDer::from_pem_slice(kept.certificate.as_bytes());
        let certificate = certificate.map_err(|_| AuthorityError::Damaged("certificate"))?;
        Ok(Self {
            title: kept.title.clone(),
            domains: kept.domains.clone(),
            ends_at: SystemTime::UNIX_EPOCH + Duration::from_secs(kept.ends_at),
            certificate,
            issuer: Issuer::new(params_of(&kept.title), key),
        })
    }

    /// What programs call it.
    #[must_use]
    pub fn title(&self) -> &str {
        &self.title
    }

    /// When it ends.
    #[must_use]
    pub const fn ends_at(&self) -> SystemTime {
        self.ends_at
    }

    /// Its own certificate, DER.
    #[must_use]
    pub fn certificate(&self) -> &[u8] {
        &self.certificate
    }

    /// Whether a domain, with all that is below it, is within its limits.
    #[must_use]
    pub fn covers(&self, domain: &str) -> bool {
        let mut domains = self.domains.iter();
        domains.any(|own| is_within(domain, own))
    }

    /// A certificate for a host, for a few days. Whether it is within the limits its users check.
    pub(crate) fn certify(&self, host: &str, now: SystemTime) -> Result<Leaf, AuthorityError> {
        let ends_at = self.ends_at.min(now + LEAF_TIME);
        let mut params = params_of("tabane web");
        params.subject_alt_names = vec![SanType::DnsName(host.try_into()?)];
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        params.not_before = (now - BACKDATED).into();
        params.not_after = ends_at.into();
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(Leaf {
            certificate: certificate.der().clone(),
            key: PrivateKeyDer::Pkcs8(key.serialize_der().into()),
            ends_at,
        })
    }
}

fn params_of(title: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, title);
    params
}

/// What is below another domain is said already.
fn without_lower(mut domains: Vec<String>) -> Vec<String> {
    domains.sort();
    domains.dedup();
    let all = domains.clone();
    let is_lower = |name: &String| all.iter().any(|it| it != name && is_within(name, it));
    domains.retain(|name| !is_lower(name));
    domains
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::RootCertStore;
    use rustls::client::WebPkiServerVerifier;
    use rustls::client::danger::ServerCertVerifier;
    use rustls::pki_types::{ServerName, UnixTime};
    use std::sync::Arc;

    const DAY: Duration = Duration::from_secs(86_400);

    fn made(domains: &[&str]) -> Authority {
        let domains = domains.iter().map(|it| (*it).to_owned());
        let made = KeptAuthority::make("t", domains, SystemTime::now(), 90 * DAY).unwrap();
        Authority::open(&made).unwrap()
    }

    /// Whether a client that trusts the authority, and it alone, takes a certificate for a host.
    fn check(authority: &Authority, leaf: &Leaf, host: &str, at: SystemTime) -> Result<(), String> {
        let mut roots = RootCertStore::empty();
        roots.add(authority.certificate.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), provider);
        let at = at.duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let checked = verifier.build().unwrap().verify_server_cert(
            &leaf.certificate,
            &[],
            &ServerName::try_from(host).unwrap(),
            &[],
            UnixTime::since_unix_epoch(at),
        );
        checked.map(drop).map_err(|error| error.to_string())
    }

    #[test]
    fn clients_take_what_is_within_the_limits_and_nothing_else() {
        let authority = made(&["example.org", "files.example.net"]);
        let now = SystemTime::now();
        for host in ["example.org", "a.b.example.org", "files.example.net"] {
            let leaf = authority.certify(host, now).unwrap();
            assert_eq!(check(&authority, &leaf, host, now), Ok(()));
            assert!(check(&authority, &leaf, "other.example.org", now).is_err());
            assert!(check(&authority, &leaf, host, now + 4 * DAY).is_err());
        }
        for host in ["example.net", "badexample.org", "example.com"] {
            assert!(!authority.covers(host), "{host}");
            // As somebody would who has stolen the key.
            let leaf = authority.certify(host, now).unwrap();
            let error = check(&authority, &leaf, host, now).unwrap_err();
            assert!(error.contains("NameConstraint"), "{host}: {error}");
        }
    }

    #[test]
    fn a_stolen_key_makes_no_addresses() {
        let authority = made(&["example.org"]);
        let now = SystemTime::now();
        for address in ["192.0.2.1", "2001:db8::1"] {
            let mut params = params_of("x");
            params.subject_alt_names = vec![SanType::IpAddress(address.parse().unwrap())];
            let key = KeyPair::generate().unwrap();
            let made = params.signed_by(&key, &authority.issuer).unwrap();
            let leaf = Leaf {
                certificate: made.der().clone(),
                key: PrivateKeyDer::Pkcs8(key.serialize_der().into()),
                ends_at: now,
            };
            let error = check(&authority, &leaf, address, now).unwrap_err();
            assert!(error.contains("NameConstraint"), "{address}: {error}");
        }
    }

    #[test]
    fn no_certificate_lasts_longer_than_its_authority() {
        let authority = made(&["example.org"]);
        let late = authority.ends_at() - DAY;
        let leaf = authority.certify("example.org", late).unwrap();
        assert_eq!(leaf.ends_at, authority.ends_at());
        let early = authority.certify("example.org", SystemTime::now()).unwrap();
        assert!(early.ends_at < SystemTime::now() + 4 * DAY);
    }

    #[test]
    fn domains_below_others_are_said_already() {
        let authority = made(&["a.example.org", "example.org", "b.net", "example.org"]);
        assert_eq!(authority.domains, ["b.net", "example.org"]);
        assert!(authority.covers("a.example.org") && !authority.covers("org"));
    }

    #[test]
    fn what_is_damaged_is_refused() {
        let kept = KeptAuthority::make("t", ["a.example".to_owned()], SystemTime::now(), DAY);
        let kept = kept.unwrap();
        let without_key = KeptAuthority {
            key: kept.certificate.clone(),
            ..kept.clone()
        };
        assert!(matches!(
            Authority::open(&without_key),
            Err(AuthorityError::Damaged("key"))
        ));
        let certificate = kept.certificate[..60].to_owned();
        let cut = KeptAuthority {
            certificate,
            ..kept
        };
        assert!(matches!(
            Authority::open(&cut),
            Err(AuthorityError::Damaged("certificate"))
        ));
    }
}
