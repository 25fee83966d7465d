//! The list of a fleet's relays, signed by the fleet's key [P-F.2].
//!
//! Owns its form, its limits, and that a [`RelayList`] is one whose signatures were checked: there
//! is no other way to have one. Which of two lists counts is decided by their epochs: nobody who
//! knows one goes back to an older.

use std::collections::BTreeSet;

use tabane_base::Destination;
use tabane_core::{Identity, PublicKey, SIGNATURE_LENGTH};
use thiserror::Error;

use crate::certificate::Certificate;
use crate::form::{FormError, Reader, put_text};

/// The most bytes of a list: 1,000 relays of two addresses each have 200 kB.
pub const MAX_LIST: usize = 512 * 1024;
/// The most relays of a fleet. Every client keeps all of them.
const MAX_RELAYS: usize = 1_000;
/// The most addresses of a relay, as in a join string.
const MAX_ADDRESSES: usize = 8;
/// The most bytes of a region's name.
const MAX_REGION: usize = 32;
/// The form this program writes and reads.
const VERSION: u8 = 1;
const PURPOSE: &[u8] = b"tabane fleet list 1\0";
const DRAINING: u8 = 1;

/// A fleet's relays as its key signed them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayList {
    fleet: PublicKey,
    epoch: u64,
    entries: Vec<ListEntry>,
    signature: [u8; SIGNATURE_LENGTH],
}

/// A relay of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListEntry {
    /// Its key and name.
    pub certificate: Certificate,
    /// Where it listens; 1 to 8.
    pub addresses: Vec<Destination>,
    /// Where it is, for people and for choosing; may be empty.
    pub region: String,
    /// Sessions that it is meant for; 0: nobody has said.
    pub capacity: u32,
    /// It wants nothing new.
    pub draining: bool,
}

/// Why a list is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ListError {
    /// The bytes are none.
    #[error("the list of relays is damaged: {0}")]
    Form(#[from] FormError),
    /// It says that it is another fleet's.
    #[error("the list of relays is another fleet's, of key {0}")]
    OtherFleet(PublicKey),
    /// It has more bytes than anybody reads.
    #[error(
        "the list of relays would have more than {MAX_LIST} bytes, which nobody reads: have relays \
         announce fewer or shorter addresses (`tabane relay --public`)"
    )]
    TooLarge,
    /// The fleet's key did not sign it.
    #[error("the list of relays is not signed by the fleet's key")]
    Unsigned,
    /// A relay in it that the fleet's key did not sign.
    #[error("the list of relays has a relay that the fleet's key did not sign")]
    UnsignedEntry,
    /// A newer one is known.
    #[error("the list of relays is of epoch {offered}, and one of epoch {known} is known")]
    Old {
        /// The epoch of the list that is known.
        known: u64,
        /// The epoch of this one.
        offered: u64,
    },
}

impl RelayList {
    /// Signs a list.
    ///
    /// # Errors
    /// Too many relays, two of one name or key, a relay's fields are not within their limits, or
    /// all together is too long.
    pub fn sign(fleet: &Identity, epoch: u64, entries: Vec<ListEntry>) -> Result<Self, ListError> {
        let mut list = Self {
            fleet: fleet.public_key(),
            epoch,
            entries,
            signature: [0; SIGNATURE_LENGTH],
        };
        list.check()?;
        list.signature = fleet.sign(&list.signed());
        match list.emit().len() {
            ..=MAX_LIST => Ok(list),
            _ => Err(ListError::TooLarge),
        }
    }

    /// Reads a list of the fleet whose key is `fleet`.
    ///
    /// # Errors
    /// It is damaged, another fleet's, or not signed in every part.
    pub fn parse(bytes: &[u8], fleet: PublicKey) -> Result<Self, ListError> {
        let list = Self::read(bytes)?;
        if list.fleet != fleet {
            return Err(ListError::OtherFleet(list.fleet));
        }
        if !fleet.verifies(&list.signed(), &list.signature) {
            return Err(ListError::Unsigned);
        }
        list.check()?;
        Ok(list)
    }

    /// The same for whoever knows a list of epoch `known` already; `None` where this is no newer,
    /// but the same.
    ///
    /// # Errors
    /// As [`parse`](Self::parse), or it is older.
    pub fn parse_newer(
        bytes: &[u8],
        fleet: PublicKey,
        known: Option<u64>,
    ) -> Result<Option<Self>, ListError> {
        let list = Self::parse(bytes, fleet)?;
        match known {
            Some(known) if list.epoch < known => Err(ListError::Old {
                known,
                offered: list.epoch,
            }),
            Some(known) if list.epoch == known => Ok(None),
            Some(_) | None => Ok(Some(list)),
        }
    }

    /// The serial form.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.emit_body(&mut out);
        out.extend(self.signature);
        out
    }

    /// Counts the fleet's lists.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Every relay.
    #[must_use]
    pub fn entries(&self) -> &[ListEntry] {
        &self.entries
    }

    /// The relay of this key.
    #[must_use]
    pub fn of_key(&self, key: PublicKey) -> Option<&ListEntry> {
        self.entries.iter().find(|it| it.certificate.key == key)
    }

    fn signed(&self) -> Vec<u8> {
        let mut out = PURPOSE.to_vec();
        self.emit_body(&mut out);
        out
    }

    fn emit_body(&self, out: &mut Vec<u8>) {
        out.push(VERSION);
        out.extend(self.fleet.0);
        out.extend(self.epoch.to_be_bytes());
        let count = u16::try_from(self.entries.len()).expect("checked: at most 1,000");
        out.extend(count.to_be_bytes());
        for entry in &self.entries {
            entry.emit(out);
        }
    }

    /// Whatever is emitted is read again so, signed or not.
    fn read(bytes: &[u8]) -> Result<Self, FormError> {
        if bytes.len() > MAX_LIST {
            return Err(FormError::TooLong);
        }
        let mut reader = Reader::new(bytes);
        match reader.byte()? {
            VERSION => {}
            version => return Err(FormError::Version(version)),
        }
        let fleet = PublicKey(reader.array()?);
        let epoch = u64::from_be_bytes(reader.array()?);
        let count = usize::from(u16::from_be_bytes(reader.array()?));
        if count > MAX_RELAYS {
            return Err(FormError::Field("number of relays"));
        }
        // No room is made for what is only claimed.
        let mut entries = Vec::new();
        for _ in 0..count {
            entries.push(ListEntry::read(&mut reader)?);
        }
        let signature = reader.array()?;
        reader.end()?;
        Ok(Self {
            fleet,
            epoch,
            entries,
            signature,
        })
    }

    /// Every relay is the fleet's own, stands there once, and is within its limits.
    fn check(&self) -> Result<(), ListError> {
        if self.entries.len() > MAX_RELAYS {
            return Err(FormError::Field("number of relays").into());
        }
        let (mut names, mut keys) = (BTreeSet::new(), BTreeSet::new());
        for entry in &self.entries {
            entry.check()?;
            if !entry.certificate.is_of(self.fleet) {
                return Err(ListError::UnsignedEntry);
            }
            if !names.insert(&entry.certificate.name) || !keys.insert(entry.certificate.key) {
                return Err(FormError::Field("second relay of one name or key").into());
            }
        }
        Ok(())
    }
}

impl ListEntry {
    fn check(&self) -> Result<(), FormError> {
        if self.addresses.is_empty() || self.addresses.len() > MAX_ADDRESSES {
            return Err(FormError::Field("number of addresses"));
        }
        let is_plain = |c: char| c.is_ascii_graphic();
        if self.region.len() > MAX_REGION || !self.region.chars().all(is_plain) {
            return Err(FormError::Field("region"));
        }
        Ok(())
    }

    fn emit(&self, out: &mut Vec<u8>) {
        self.certificate.emit(out);
        put_text(out, &self.region);
        out.extend(self.capacity.to_be_bytes());
        out.push(if self.draining { DRAINING } else { 0 });
        out.push(u8::try_from(self.addresses.len()).expect("checked: at most 8"));
        for address in &self.addresses {
            let host = address.host.to_string();
            put_text(out, &host);
            out.extend(address.port.to_be_bytes());
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, FormError> {
        let certificate = Certificate::read(reader)?;
        let region = reader.text("region")?.to_owned();
        let capacity = u32::from_be_bytes(reader.array()?);
        let draining = match reader.byte()? {
            0 => false,
            DRAINING => true,
            _ => return Err(FormError::Field("flag")),
        };
        let mut addresses = Vec::new();
        for _ in 0..reader.byte()? {
            let text = reader.text("address")?;
            let host = tabane_base::Host::parse(text).map_err(|_| FormError::Field("address"))?;
            // Told in one way only, or two lists could differ and mean the same.
            if host.to_string() != text {
                return Err(FormError::Field("address"));
            }
            let port = u16::from_be_bytes(reader.array()?);
            addresses.push(Destination { host, port });
        }
        if addresses.iter().any(|address| address.port == 0) {
            return Err(FormError::Field("port"));
        }
        let entry = Self {
            certificate,
            addresses,
            region,
            capacity,
            draining,
        };
        entry.check()?;
        Ok(entry)
    }
}

/// A door for the fuzzer: bytes are read as a list whoever signed it, and what is read is written
/// the same; as they are, they are nobody's.
///
/// # Panics
/// One of that does not hold.
#[doc(hidden)]
pub fn fuzz_list(bytes: &[u8]) {
    let fleet = Identity::from_seed([1; 32]);
    let parsed = RelayList::parse(bytes, fleet.public_key());
    if let Ok(list) = RelayList::read(bytes) {
        assert_eq!(list.emit(), bytes, "read and written the same");
        if let Ok(parsed) = parsed {
            assert_eq!(parsed, list);
        }
        // Signed as a whole, a relay that was not is still refused, and so is one there twice.
        let signed = RelayList {
            fleet: fleet.public_key(),
            ..list
        };
        let signature = fleet.sign(&signed.signed());
        let signed = RelayList {
            signature,
            ..signed
        };
        let is_whole = signed.check().is_ok();
        let again = RelayList::parse(&signed.emit(), fleet.public_key());
        assert_eq!(again.is_ok(), is_whole);
    }
}

#[cfg(test)]
mod tests;
