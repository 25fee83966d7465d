//! A relay's certificate: the fleet's key says that this key is a relay of this name [P-F.1].

use tabane_core::{Identity, PublicKey, SIGNATURE_LENGTH};

use crate::form::{FormError, Reader, put_text};

/// What every signed certificate begins with, so that no other signature of the key passes for one.
const PURPOSE: &[u8] = b"tabane fleet certificate 1\0";
/// The most characters of a relay's name: it is a file's name at clients.
pub const MAX_NAME: usize = 64;

/// A relay's key and name, signed by its fleet's key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// What the relay is called in its fleet.
    pub name: String,
    /// The key that the relay proves.
    pub key: PublicKey,
    /// When it was signed, in seconds since 1970.
    pub issued_at: u64,
    signature: [u8; SIGNATURE_LENGTH],
}

impl Certificate {
    /// Signs one.
    ///
    /// # Errors
    /// `name` is none; see [`is_name`].
    pub fn sign(
        fleet: &Identity,
        name: &str,
        key: PublicKey,
        issued_at: u64,
    ) -> Result<Self, FormError> {
        if !is_name(name) {
            return Err(FormError::Field("name"));
        }
        let mut certificate = Self {
            name: name.to_owned(),
            key,
            issued_at,
            signature: [0; SIGNATURE_LENGTH],
        };
        certificate.signature = fleet.sign(&certificate.signed());
        Ok(certificate)
    }

    /// Whether the fleet of this key signed it.
    #[must_use]
    pub fn is_of(&self, fleet: PublicKey) -> bool {
        fleet.verifies(&self.signed(), &self.signature)
    }

    fn signed(&self) -> Vec<u8> {
        let mut out = PURPOSE.to_vec();
        self.emit_body(&mut out);
        out
    }

    fn emit_body(&self, out: &mut Vec<u8>) {
        put_text(out, &self.name);
        out.extend(self.key.0);
        out.extend(self.issued_at.to_be_bytes());
    }

    pub(crate) fn emit(&self, out: &mut Vec<u8>) {
        self.emit_body(out);
        out.extend(self.signature);
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, FormError> {
        let name = reader.text("name")?;
        if !is_name(name) {
            return Err(FormError::Field("name"));
        }
        Ok(Self {
            name: name.to_owned(),
            key: PublicKey(reader.array()?),
            issued_at: u64::from_be_bytes(reader.array()?),
            signature: reader.array()?,
        })
    }
}

/// Whether a relay may be called so: a word in a shell, a file's name and a part of a key in a
/// store.
#[must_use]
pub fn is_name(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.len() <= MAX_NAME
        && text.chars().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_of_its_fleet_its_key_and_its_name_alone() {
        let (fleet, other) = (Identity::from_seed([1; 32]), Identity::from_seed([2; 32]));
        let relay = Identity::from_seed([3; 32]).public_key();
        let own = Certificate::sign(&fleet, "oslo-1", relay, 7).unwrap();
        assert!(own.is_of(fleet.public_key()) && !own.is_of(other.public_key()));
        let renamed = Certificate {
            name: "oslo-2".to_owned(),
            ..own.clone()
        };
        let rekeyed = Certificate {
            key: other.public_key(),
            ..own.clone()
        };
        let older = Certificate {
            issued_at: 6,
            ..own
        };
        for changed in [renamed, rekeyed, older] {
            assert!(!changed.is_of(fleet.public_key()), "{changed:?}");
        }
    }

    #[test]
    fn names_are_words() {
        for name in ["a", "oslo-1", "x.example", &"n".repeat(MAX_NAME)] {
            assert!(is_name(name), "{name}");
        }
        for name in [
            "",
            "-a",
            ".",
            "../x",
            "a/b",
            "a b",
            "é",
            &"n".repeat(MAX_NAME + 1),
        ] {
            assert!(!is_name(name), "{name}");
        }
    }
}
