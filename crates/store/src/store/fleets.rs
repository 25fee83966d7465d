//! `relays/NAME.list`: the relays of a fleet that was joined, as its key signed them last.
//!
//! Owns that no list takes another's place unless it is signed and newer.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use tabane_fleet::RelayList;

use super::{RelayEntry, RelayName, Store};
use crate::atomic_file;

/// A relay that a client may use: one that was joined, or one of a fleet that was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FleetMember {
    /// What it is called here: a fleet's relay by the fleet's name and its own.
    pub name: RelayName,
    /// How it is reached, and whose it is.
    pub entry: RelayEntry,
    /// Its place in the user's order; relays of one fleet have one, but for the one that `relay`
    /// in the settings names, which is before the others.
    pub preference: usize,
    /// Its fleet wants nobody new there.
    pub is_draining: bool,
    /// Where it stands.
    pub region: String,
}

impl Store {
    /// Each of `joined` with its place; for a fleet whose list is known, all its relays.
    #[must_use]
    pub fn members_of(&self, joined: &[(RelayName, RelayEntry)]) -> Vec<FleetMember> {
        // Settings that cannot be read were complained of before.
        let first = self.settings().ok().and_then(|settings| settings.relay);
        let joined = joined.iter().enumerate();
        let mut members: Vec<_> = joined
            .flat_map(|(place, (name, entry))| self.members(2 * place + 1, name, entry))
            .collect();
        for member in &mut members {
            if first.as_deref() == Some(member.name.as_str()) {
                member.preference -= 1;
            }
        }
        members
    }

    fn members(&self, preference: usize, name: &RelayName, entry: &RelayEntry) -> Vec<FleetMember> {
        let alone = || FleetMember {
            name: name.clone(),
            entry: entry.clone(),
            preference,
            is_draining: false,
            region: String::new(),
        };
        // A list that is damaged is none: the next one comes from the relay that was joined.
        let list = self.fleet_list(name, entry).ok().flatten();
        let Some(list) = list.filter(|list| !list.entries().is_empty()) else {
            return vec![alone()];
        };
        let members = list.entries().iter().map(|listed| FleetMember {
            name: name.of_fleet(&listed.certificate.name),
            entry: RelayEntry {
                addresses: listed.addresses.clone(),
                key: listed.certificate.key,
                ..entry.clone()
            },
            preference,
            is_draining: listed.draining,
            region: listed.region.clone(),
        });
        members.collect()
    }

    /// The list of the fleet that was joined as `name`, if one is known.
    ///
    /// # Errors
    /// The file cannot be read, or is not what the fleet signed.
    pub fn fleet_list(&self, name: &RelayName, entry: &RelayEntry) -> Result<Option<RelayList>> {
        let Some(fleet) = entry.fleet else {
            return Ok(None);
        };
        let path = self.list_path(name);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", path.display()));
            }
        };
        let list = RelayList::parse(&bytes, fleet);
        list.map(Some)
            .with_context(|| format!("{}; delete it", path.display()))
    }

    /// Keeps what a relay says is the list, if the fleet signed it and it is newer than the one
    /// that is known; whether it is.
    ///
    /// # Errors
    /// It is not signed, another fleet's, or older; or cannot be kept.
    pub fn put_fleet_list(
        &self,
        name: &RelayName,
        entry: &RelayEntry,
        bytes: &[u8],
    ) -> Result<bool> {
        let fleet = entry.fleet.context("the relay is of no fleet")?;
        // A file that is damaged is as good as none, but for its epoch, which nobody knows.
        let known = self.fleet_list(name, entry).ok().flatten();
        let newer = RelayList::parse_newer(bytes, fleet, known.map(|list| list.epoch()))?;
        match newer {
            Some(list) => {
                let path = self.list_path(name);
                atomic_file::replace(&path, &list.emit(), atomic_file::SECRET)?;
                Ok(true)
            }
            None => Ok(false),
        }
    }

    pub(super) fn forget_list(&self, name: &RelayName) -> Result<()> {
        let path = self.list_path(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", path.display()))
            }
            _ => Ok(()),
        }
    }

    fn list_path(&self, name: &RelayName) -> PathBuf {
        self.relays_directory().join(format!("{name}.list"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;
    use tabane_base::Destination;
    use tabane_core::{Identity, PublicKey};
    use tabane_fleet::{Certificate, ListEntry};

    fn list(fleet: &Identity, epoch: u64, names: &[&str]) -> Vec<u8> {
        let entry = |name: &&str| ListEntry {
            certificate: Certificate::sign(fleet, name, PublicKey([name.as_bytes()[0]; 32]), 0)
                .unwrap(),
            addresses: vec![Destination::parse("192.0.2.9:4510", None).unwrap()],
            region: "north".to_owned(),
            capacity: 0,
            draining: *name == "rome",
        };
        let entries = names.iter().map(entry).collect();
        RelayList::sign(fleet, epoch, entries).unwrap().emit()
    }

    #[test]
    fn a_fleets_relays_are_those_of_the_newest_list_that_its_key_signed() {
        let scratch = Scratch::make();
        let store = Store::locate(Some(scratch.path().join("config"))).unwrap();
        let (fleet, stranger) = (Identity::from_seed([1; 32]), Identity::from_seed([2; 32]));
        let name: RelayName = "home".parse().unwrap();
        let entry = RelayEntry {
            addresses: vec![Destination::parse("192.0.2.1:4510", None).unwrap()],
            key: PublicKey([7; 32]),
            fleet: Some(fleet.public_key()),
            token: "A".repeat(22).parse().unwrap(),
        };
        store.put_relay(&name, &entry, false).unwrap();
        let by_another = RelayEntry {
            key: PublicKey([8; 32]),
            ..entry.clone()
        };
        store.put_relay(&name, &by_another, false).unwrap();
        store.put_relay(&name, &entry, false).unwrap();
        let of_another_fleet = RelayEntry {
            fleet: Some(stranger.public_key()),
            ..by_another
        };
        assert!(store.put_relay(&name, &of_another_fleet, false).is_err());
        let joined = store.relays_in_order().unwrap();
        assert_eq!(joined[0].1, entry, "read as it was written");
        let names = || -> Vec<String> {
            let members = store.members_of(&joined);
            members.iter().map(|it| it.name.to_string()).collect()
        };
        assert_eq!(names(), ["home"], "no list yet");
        let put = |bytes: &[u8]| store.put_fleet_list(&name, &entry, bytes);
        assert!(put(&list(&fleet, 5, &["oslo", "rome"])).unwrap());
        assert_eq!(names(), ["home.oslo", "home.rome"]);
        assert!(!put(&list(&fleet, 5, &["oslo"])).unwrap(), "known");
        for (bytes, word) in [
            (list(&fleet, 4, &["oslo"]), "epoch"),
            (list(&stranger, 6, &["oslo"]), "another fleet"),
            (list(&fleet, 6, &["oslo"])[..50].to_vec(), "cut short"),
            (Vec::new(), "cut short"),
        ] {
            let error = format!("{:#}", put(&bytes).unwrap_err());
            assert!(error.contains(word), "{error}");
        }
        let mut unsigned = list(&fleet, 6, &["oslo"]);
        *unsigned.last_mut().unwrap() ^= 1;
        assert!(put(&unsigned).is_err());
        assert_eq!(
            names(),
            ["home.oslo", "home.rome"],
            "nothing of it was kept"
        );
        let members = store.members_of(&joined);
        assert!(members[1].is_draining && members[1].entry.key == PublicKey([b'r'; 32]));
        // One of them is named, and has a place of its own before the others.
        let config = scratch.path().join("config/config.toml");
        fs::write(&config, "relay = \"home.rome\"\n").unwrap();
        assert_eq!(store.relays_in_order().unwrap(), joined);
        let members = store.members_of(&joined);
        assert!(members[1].preference < members[0].preference);
        fs::write(&config, "relay = \"elsewhere.rome\"\n").unwrap();
        assert!(store.relays_in_order().is_err());
        fs::remove_file(&config).unwrap();
        assert!(put(&list(&fleet, 6, &["lima"])).unwrap());
        assert_eq!(names(), ["home.lima"]);
        store.remove_relay(&name).unwrap();
        assert!(
            store.fleet_list(&name, &entry).unwrap().is_none(),
            "forgotten with it"
        );
    }
}
