//! `peers/NAME.toml`: the machines whose services are reached straight, as `tabane peer` writes
//! them.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use tabane_base::{Destination, Host, Prefix};
use tabane_core::PublicKey;

use super::{Joined, RelayName, Store, read_toml};
use crate::atomic_file;
use crate::join_string::{JoinString, Token};

/// A peer: where it is, which key it must prove, and what else leads to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, try_from = "PeerFile", into = "PeerFile")]
pub struct PeerEntry {
    /// Where it listens; connections to these hosts are for it.
    pub addresses: Vec<Destination>,
    /// The key it must prove.
    pub key: PublicKey,
    /// What lets us in the first time, where it asks for that.
    pub token: Option<Token>,
    /// Further addresses of it.
    pub also: Vec<Prefix>,
    /// Its key is the one that was shown when it was met first, then (seconds since 1970); `None`:
    /// the user said which.
    pub first_use: Option<u64>,
}

/// The same as text.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PeerFile {
    addresses: Vec<String>,
    key: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    also: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    first_use: Option<u64>,
}

impl PeerEntry {
    /// What a join string says, with further addresses.
    pub fn new(join: JoinString, also: Vec<Prefix>) -> Self {
        Self {
            addresses: join.addresses,
            key: join.key,
            token: Some(join.token),
            also,
            first_use: None,
        }
    }

    /// Somebody met at `address` who showed `key`.
    pub fn met(address: SocketAddr, key: PublicKey, now: u64) -> Self {
        Self {
            addresses: vec![address.into()],
            key,
            token: None,
            also: Vec::new(),
            first_use: Some(now),
        }
    }

    /// Whether it is called so.
    pub fn is_called(&self, name: &str) -> bool {
        let name = name.trim_end_matches('.');
        self.addresses.iter().any(|address| match &address.host {
            Host::Name(own) => own.trim_end_matches('.').eq_ignore_ascii_case(name),
            Host::Ip(_) => false,
        })
    }

    /// Whether an address is known to lead to it, without looking up its names.
    pub fn has_address(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        let listed = self.addresses.iter().any(|address| match &address.host {
            Host::Ip(own) => own.to_canonical() == ip,
            Host::Name(_) => false,
        });
        listed || self.also.iter().any(|prefix| prefix.contains(ip))
    }
}

impl From<PeerEntry> for PeerFile {
    fn from(entry: PeerEntry) -> Self {
        Self {
            addresses: entry.addresses.iter().map(Destination::to_string).collect(),
            key: entry.key.to_string(),
            token: entry.token.map(|token| token.as_str().to_owned()),
            also: entry.also.iter().map(Prefix::to_string).collect(),
            first_use: entry.first_use,
        }
    }
}

impl TryFrom<PeerFile> for PeerEntry {
    type Error = String;

    fn try_from(file: PeerFile) -> Result<Self, String> {
        let address = |text: &String| {
            Destination::parse(text, None).map_err(|e| format!("addresses: '{text}': {e}"))
        };
        let range = |text: &String| {
            Prefix::parse(text).ok_or_else(|| format!("also: '{text}' is no range"))
        };
        if file.addresses.is_empty() {
            return Err("addresses: at least one is needed".into());
        }
        let token = file.token.map(|token| token.parse()).transpose();
        Ok(Self {
            addresses: file
                .addresses
                .iter()
                .map(address)
                .collect::<Result<_, _>>()?,
            key: file.key.parse().map_err(|e| format!("key: {e}"))?,
            token: token.map_err(|e| format!("token: {e}"))?,
            also: file.also.iter().map(range).collect::<Result<_, _>>()?,
            first_use: file.first_use,
        })
    }
}

impl Store {
    /// Every known peer, by name.
    pub fn peers(&self) -> Result<Vec<(RelayName, PeerEntry)>> {
        self.entries(&self.peers_directory())
    }

    /// Remembers a peer under a name that no other peer has.
    pub fn put_peer(&self, name: &RelayName, peer: &PeerEntry) -> Result<Joined> {
        let path = self.peer_path(name);
        let text = toml::to_string(peer).context("cannot write the peer as TOML")?;
        let known: Option<PeerEntry> = read_toml(&path)?;
        if let Some(known) = &known
            && known.key != peer.key
        {
            bail!(
                "peer '{name}' is known by another key ({}): if that is right, run `tabane peer \
                 remove {name}` first, or choose another name with --name",
                known.key
            );
        }
        atomic_file::replace(&path, text.as_bytes(), atomic_file::SECRET)?;
        Ok(match known {
            Some(_) => Joined::Updated,
            None => Joined::Added,
        })
    }

    /// Forgets a peer; false if there was none of that name.
    pub fn remove_peer(&self, name: &RelayName) -> Result<bool> {
        let path = self.peer_path(name);
        match fs::remove_file(&path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error).with_context(|| format!("cannot remove {}", path.display())),
        }
    }

    fn peers_directory(&self) -> PathBuf {
        self.root().join("peers")
    }

    fn peer_path(&self, name: &RelayName) -> PathBuf {
        self.peers_directory().join(format!("{name}.toml"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    fn peer(key: u8) -> PeerEntry {
        PeerEntry {
            addresses: ["192.0.2.1:4510", "Build.example:4510"]
                .map(|text| Destination::parse(text, None).unwrap())
                .to_vec(),
            key: PublicKey([key; 32]),
            token: None,
            also: vec![Prefix::parse("198.51.100.0/28").unwrap()],
            first_use: Some(1_795_000_000),
        }
    }

    #[test]
    fn a_peer_is_remembered_by_its_key() {
        let scratch = Scratch::make();
        let store = Store::locate(Some(scratch.path().join("config"))).unwrap();
        let name: RelayName = "build".parse().unwrap();
        assert_eq!(store.put_peer(&name, &peer(1)).unwrap(), Joined::Added);
        assert_eq!(store.put_peer(&name, &peer(1)).unwrap(), Joined::Updated);
        let error = format!("{:#}", store.put_peer(&name, &peer(2)).unwrap_err());
        assert!(error.contains("another key"), "{error}");
        assert_eq!(store.peers().unwrap(), [(name.clone(), peer(1))]);
        assert!(store.remove_peer(&name).unwrap());
        assert!(!store.remove_peer(&name).unwrap());
    }

    #[test]
    fn names_and_addresses_lead_to_it() {
        let peer = peer(1);
        for (text, is_own) in [
            ("192.0.2.1", true),
            ("::ffff:192.0.2.1", true),
            ("198.51.100.15", true),
            ("198.51.100.16", false),
            ("192.0.2.2", false),
        ] {
            assert_eq!(peer.has_address(text.parse().unwrap()), is_own, "{text}");
        }
        assert!(peer.is_called("build.EXAMPLE.") && !peer.is_called("example"));
    }
}
