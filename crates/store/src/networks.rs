//! `networks.toml`: what carried links in networks where usual UDP did not.
//!
//! Owns how a network is known again, how many are kept and for how long, and the file's form. What
//! the words mean is the tunnel's, when one is learnt the links' affair. A network where nothing is
//! unusual is not in it.

use std::fmt;
use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use tabane_policy::UnixDay;

use crate::atomic_file;

/// The file's name in the directory of settings.
pub const NETWORKS_FILE: &str = "networks.toml";

/// Networks kept; the one that was seen least lately gives way.
const MAX_NETWORKS: usize = 64;
/// Days until a network that was not seen again is forgotten.
const MAX_AGE: i64 = 90;
/// Bytes of what is kept of one.
const MAX_WORD: usize = 80;
const WHY: &str = "# Networks that let no usual UDP pass, and what carried links there. Written by \
                   tabane; remove it as you like.\n\n";

/// A network, by its router: the addresses of many are the same, but not those of their cards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Network {
    /// The router's address.
    pub gateway: IpAddr,
    /// Its address on the wire (EUI-48).
    pub hardware: [u8; 6],
}

/// What is kept of networks. Times are arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkMemory {
    /// Those seen last come last.
    notes: Vec<Note>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Note {
    network: Network,
    carrier: String,
    seen: UnixDay,
}

#[derive(Default, Serialize, Deserialize)]
struct FileText {
    #[serde(default)]
    network: Vec<NoteText>,
}

#[derive(Serialize, Deserialize)]
struct NoteText {
    gateway: IpAddr,
    hardware: String,
    carrier: String,
    seen: String,
}

impl NetworkMemory {
    /// What carried links in `network`, where that is known and not too long ago.
    #[must_use]
    pub fn recall(&self, network: Network, today: UnixDay) -> Option<&str> {
        let note = self.notes.iter().find(|note| note.network == network)?;
        note.is_valid(today).then_some(note.carrier.as_str())
    }

    /// Keeps what carries links in `network` now, or forgets it where there is nothing to tell.
    /// `true` where that changes anything.
    pub fn note(&mut self, network: Network, carrier: Option<&str>, today: UnixDay) -> bool {
        let place = self.notes.iter().position(|note| note.network == network);
        let before = place.map(|place| self.notes.remove(place));
        let after = carrier.map(|carrier| Note {
            network,
            carrier: carrier.to_owned(),
            seen: today,
        });
        self.notes.extend(after.clone());
        self.notes.retain(|note| note.is_valid(today));
        let excess = self.notes.len().saturating_sub(MAX_NETWORKS);
        self.notes.drain(..excess);
        before != after
    }

    /// Reads what [`to_toml`](Self::to_toml) wrote.
    ///
    /// # Errors
    /// What is wrong.
    pub fn parse(text: &str) -> Result<Self> {
        let file: FileText = toml::from_str(text).map_err(|error| {
            // With the text that it is about it would fill a screen.
            anyhow::anyhow!("{}", error.message())
        })?;
        let mut notes = file.network.into_iter().map(Note::read);
        let mut notes = notes.by_ref().collect::<Result<Vec<_>>>()?;
        notes.drain(..notes.len().saturating_sub(MAX_NETWORKS));
        Ok(Self { notes })
    }

    /// As text, for keeping.
    ///
    /// # Panics
    /// Never: all of it is plain values.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let network = self.notes.iter().map(|note| NoteText {
            gateway: note.network.gateway,
            hardware: note.network.hardware_text(),
            carrier: note.carrier.clone(),
            seen: note.seen.to_string(),
        });
        let file = FileText {
            network: network.collect(),
        };
        WHY.to_owned() + &toml::to_string(&file).expect("notes are plain values")
    }

    /// What is kept in `directory`; nothing where there is no file.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged.
    pub fn read(directory: &Path) -> Result<Self> {
        let path = directory.join(NETWORKS_FILE);
        let text = atomic_file::read(&path)?.unwrap_or_default();
        Self::parse(&text).with_context(|| format!("{} is damaged", path.display()))
    }

    /// Replaces the file. It tells where its owner has been, and is theirs alone.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, directory: &Path) -> Result<()> {
        let path = directory.join(NETWORKS_FILE);
        atomic_file::replace(&path, self.to_toml().as_bytes(), atomic_file::SECRET)
    }
}

impl Note {
    fn read(text: NoteText) -> Result<Self> {
        let NoteText {
            gateway,
            hardware,
            carrier,
            seen,
        } = text;
        let Some(hardware) = Network::parse_hardware(&hardware) else {
            bail!("'{hardware}' is no hardware address");
        };
        let Some(seen) = UnixDay::parse(&seen) else {
            bail!("'{seen}' is no day");
        };
        if carrier.len() > MAX_WORD {
            bail!("a carrier of {} bytes", carrier.len());
        }
        let network = Network { gateway, hardware };
        Ok(Self {
            network,
            carrier,
            seen,
        })
    }

    /// A clock that was set back makes nothing last for ever.
    fn is_valid(&self, today: UnixDay) -> bool {
        self.seen.0.abs_diff(today.0) <= MAX_AGE.unsigned_abs()
    }
}

impl Network {
    fn hardware_text(&self) -> String {
        self.hardware.map(|byte| format!("{byte:02x}")).join(":")
    }

    fn parse_hardware(text: &str) -> Option<[u8; 6]> {
        let byte = |text: &str| match text.len() {
            2 => u8::from_str_radix(text, 16).ok(),
            _ => None,
        };
        let bytes: Option<Vec<u8>> = text.split(':').map(byte).collect();
        bytes?.try_into().ok()
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.gateway, self.hardware_text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TODAY: UnixDay = UnixDay(20_778);

    fn network(last: u8) -> Network {
        Network {
            gateway: "192.168.1.1".parse().unwrap(),
            hardware: [2, 0, 0, 0, 0xab, last],
        }
    }

    #[test]
    fn a_network_is_known_again_by_its_routers_card_until_it_is_usual() {
        let mut memory = NetworkMemory::default();
        assert!(!memory.note(network(1), None, TODAY));
        assert!(memory.note(network(1), Some("tls"), TODAY));
        assert!(!memory.note(network(1), Some("tls"), TODAY));
        assert_eq!(memory.recall(network(1), TODAY), Some("tls"));
        assert_eq!(memory.recall(network(2), TODAY), None);
        let again = NetworkMemory::parse(&memory.to_toml()).unwrap();
        assert_eq!(again, memory, "kept across restarts");
        assert!(memory.note(network(1), Some("udp:443"), TODAY));
        assert_eq!(memory.recall(network(1), TODAY), Some("udp:443"));
        assert!(memory.note(network(1), None, TODAY));
        assert_eq!(memory, NetworkMemory::default());
    }

    #[test]
    fn what_is_old_is_forgotten_and_what_is_many_gives_way() {
        let mut memory = NetworkMemory::default();
        memory.note(network(1), Some("tls"), TODAY);
        for (days, is_known) in [(MAX_AGE, true), (MAX_AGE + 1, false), (-MAX_AGE - 1, false)] {
            let recalled = memory.recall(network(1), UnixDay(TODAY.0 + days));
            assert_eq!(recalled.is_some(), is_known, "{days} days later");
        }
        // Seen once more, it is new.
        let later = UnixDay(TODAY.0 + 1);
        assert!(memory.note(network(1), Some("tls"), later));
        for last in 2..=MAX_NETWORKS as u8 + 1 {
            memory.note(network(last), Some("tls"), later);
        }
        assert_eq!(memory.notes.len(), MAX_NETWORKS);
        assert_eq!(memory.recall(network(1), later), None);
        assert!(memory.recall(network(2), later).is_some());
    }

    #[test]
    fn damage_is_told_in_one_line() {
        let note = |hardware: &str, seen: &str, carrier: &str| {
            format!(
                "[[network]]\ngateway = \"fe80::1\"\nhardware = \"{hardware}\"\n\
                 seen = \"{seen}\"\ncarrier = \"{carrier}\""
            )
        };
        let good = ("02:00:00:00:00:0f", "2026-11-26", "tls");
        NetworkMemory::parse(&note(good.0, good.1, good.2)).unwrap();
        for text in [
            "[[network]".to_owned(),
            "network = 1".to_owned(),
            note("02:00:00:00:00", good.1, good.2),
            note("02:00:00:00:00:0f:00", good.1, good.2),
            note("2:0:0:0:0:f", good.1, good.2),
            note(good.0, "2026-02-30", good.2),
            note(good.0, good.1, &"x".repeat(MAX_WORD + 1)),
            "[[network]]\ngateway = \"here\"".to_owned(),
        ] {
            let error = NetworkMemory::parse(&text).unwrap_err().to_string();
            assert!(!error.contains('\n'), "{error}");
        }
    }
}
