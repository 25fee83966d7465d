//! Long-term keys: Ed25519 raw public keys (RFC 7250), pinned by the join string.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;
use thiserror::Error;
use zeroize::Zeroizing;

/// DER of `SubjectPublicKeyInfo { id-Ed25519, BIT STRING }` up to the 32 key bytes (RFC 8410 §4).
const SPKI_PREFIX: [u8; 12] = [
    0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
];
/// DER of a PKCS #8 v1 Ed25519 key up to its 32 seed bytes (RFC 8410 §7).
const PKCS8_PREFIX: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

/// Bytes of a signature (RFC 8032 §5.1.6).
pub const SIGNATURE_LENGTH: usize = 64;

/// The public half of an [`Identity`]. Shown as 43 characters of URL-safe base64.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey(pub [u8; 32]);

/// A text that is no public key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum KeyParseError {
    /// Cut short, or something added.
    #[error("a key has 43 characters, this has {0}")]
    Length(usize),
    /// A character outside the alphabet.
    #[error("{0:?} does not occur in a key")]
    Character(char),
}

impl PublicKey {
    pub(crate) fn to_spki(self) -> Vec<u8> {
        [SPKI_PREFIX.as_slice(), &self.0].concat()
    }

    /// Whether whoever has the secret half signed `message` (RFC 8032 §5.1.7).
    #[must_use]
    pub fn verifies(&self, message: &[u8], signature: &[u8; SIGNATURE_LENGTH]) -> bool {
        let key = UnparsedPublicKey::new(&ED25519, self.0);
        key.verify(message, signature).is_ok()
    }

    /// The key within a certificate that is a raw public key (RFC 7250 §3), if it is Ed25519.
    #[must_use]
    pub fn from_spki(spki: &[u8]) -> Option<Self> {
        let key = spki.strip_prefix(SPKI_PREFIX.as_slice())?;
        Some(Self(key.try_into().ok()?))
    }
}

/// Characters of a key's text.
const TEXT_LENGTH: usize = 43;
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // In one piece: relays write long lists of them.
        let mut text = String::with_capacity(TEXT_LENGTH);
        for chunk in self.0.chunks(3) {
            let word = chunk
                .iter()
                .fold(0_u32, |word, byte| word << 8 | u32::from(*byte))
                << (8 * (3 - chunk.len()));
            for i in 0..=chunk.len() {
                let symbol = ALPHABET[(word >> (18 - 6 * i) & 63) as usize];
                text.push(char::from(symbol));
            }
        }
        f.write_str(&text)
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

impl FromStr for PublicKey {
    type Err = KeyParseError;

    fn from_str(text: &str) -> Result<Self, KeyParseError> {
        let count = text.chars().count();
        if count != TEXT_LENGTH {
            return Err(KeyParseError::Length(count));
        }
        let mut key = [0; 32];
        let (mut word, mut bits, mut at) = (0_u32, 0, 0);
        for c in text.chars() {
            let value = ALPHABET
                .iter()
                .position(|symbol| char::from(*symbol) == c)
                .ok_or(KeyParseError::Character(c))?;
            word = word << 6 | value as u32;
            bits += 6;
            if bits >= 8 {
                bits -= 8;
                key[at] = (word >> bits) as u8;
                at += 1;
            }
        }
        Ok(Self(key))
    }
}

/// A long-term key pair. Made from 32 secret random bytes, which the driver supplies and keeps.
#[derive(Clone)]
pub struct Identity {
    seed: Zeroizing<[u8; 32]>,
    public: PublicKey,
}

impl Identity {
    /// The identity whose secret is `seed` (RFC 8032 §5.1.5).
    #[must_use]
    pub fn from_seed(seed: [u8; 32]) -> Self {
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed).expect("a seed has 32 bytes");
        let public = pair.public_key().as_ref();
        Self {
            public: PublicKey(public.try_into().expect("an Ed25519 key has 32 bytes")),
            seed: Zeroizing::new(seed),
        }
    }

    /// The key others pin.
    #[must_use]
    pub const fn public_key(&self) -> PublicKey {
        self.public
    }

    /// Signs `message` (RFC 8032 §5.1.6), which begins with what it is for: one key signs several
    /// kinds of things.
    #[must_use]
    pub fn sign(&self, message: &[u8]) -> [u8; SIGNATURE_LENGTH] {
        let pair = Ed25519KeyPair::from_seed_unchecked(self.seed.as_slice());
        let signature = pair.expect("a seed has 32 bytes").sign(message);
        let bytes = signature.as_ref().try_into();
        bytes.expect("an Ed25519 signature has 64 bytes")
    }

    /// A secret for the purpose `label`, the same after every restart.
    pub(crate) fn derive(&self, label: &str) -> aws_lc_rs::hmac::Key {
        use aws_lc_rs::hmac;
        let key = hmac::Key::new(hmac::HMAC_SHA256, self.seed.as_slice());
        hmac::Key::new(
            hmac::HMAC_SHA256,
            hmac::sign(&key, label.as_bytes()).as_ref(),
        )
    }

    pub(crate) fn certified_key(&self) -> Result<Arc<CertifiedKey>, rustls::Error> {
        let der = Zeroizing::new([PKCS8_PREFIX.as_slice(), self.seed.as_slice()].concat());
        let signer = rustls::crypto::aws_lc_rs::sign::any_eddsa_type(&PrivatePkcs8KeyDer::from(
            der.as_slice(),
        ))?;
        let spki = CertificateDer::from(self.public.to_spki());
        Ok(Arc::new(CertifiedKey::new(vec![spki], signer)))
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({})", self.public)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_survives_its_text() {
        let key = Identity::from_seed([7; 32]).public_key();
        let text = key.to_string();
        assert_eq!(text.len(), 43);
        assert_eq!(text.parse(), Ok(key));
    }

    #[test]
    fn a_damaged_text_says_what_is_wrong() {
        assert_eq!("abc".parse::<PublicKey>(), Err(KeyParseError::Length(3)));
        let text = "!".repeat(43);
        assert_eq!(
            text.parse::<PublicKey>(),
            Err(KeyParseError::Character('!'))
        );
    }

    #[test]
    fn a_signature_is_of_one_message_by_one_key() {
        let (own, other) = (Identity::from_seed([7; 32]), Identity::from_seed([8; 32]));
        let signature = own.sign(b"a message");
        assert!(own.public_key().verifies(b"a message", &signature));
        assert!(!own.public_key().verifies(b"a massage", &signature));
        assert!(!other.public_key().verifies(b"a message", &signature));
        let mut damaged = signature;
        damaged[63] ^= 1;
        assert!(!own.public_key().verifies(b"a message", &damaged));
    }

    #[test]
    fn rfc_8032_test_1() {
        let seed = [
            0x9d, 0x61, 0xb1, 0x9d, 0xef, 0xfd, 0x5a, 0x60, 0xba, 0x84, 0x4a, 0xf4, 0x92, 0xec,
            0x2c, 0xc4, 0x44, 0x49, 0xc5, 0x69, 0x7b, 0x32, 0x69, 0x19, 0x70, 0x3b, 0xac, 0x03,
            0x1c, 0xae, 0x7f, 0x60,
        ];
        let key = Identity::from_seed(seed).public_key();
        assert_eq!(key.0[..4], [0xd7, 0x5a, 0x98, 0x01]);
        assert!(Identity::from_seed(seed).certified_key().is_ok());
    }
}
