//! What a client keeps: its key, the relays it joined, the user's settings.
//!
//! One directory: `client.key` (0600), `relays/NAME.toml` (0600, written by `tabane join`),
//! `relays/order` (names, the preferred first, written by `tabane relays prefer`),
//! `peers/NAME.toml` (0600, written by `tabane peer`), `expose.toml` (written by `tabane expose`),
//! what `tabane share` keeps (`neighbours.rs`), and `config.toml` (written by the user). Owns their
//! form and places, never what they are used for.

mod exposures;
mod fleets;
mod neighbours;
mod peers;
mod relay_entry;
mod settings;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nix::unistd::{User, getuid};
use serde::de::DeserializeOwned;
use tabane_base::Destination;
use tabane_core::Identity;

pub use exposures::{EXPOSURES_FILE_NAME, ExposureEntry};
pub use fleets::FleetMember;
pub use neighbours::{FriendEntry, NeighbourEntry, OFFER_FILE, OfferEntry, TermsText};
pub use peers::PeerEntry;
pub use relay_entry::{RelayEntry, RelayName};
pub use settings::{Settings, UpSettings};

use crate::atomic_file;
use crate::secret;

/// A client's directory.
#[derive(Debug, Clone)]
pub struct Store {
    root: PathBuf,
}

/// What [`Store::put_relay`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Joined {
    /// It was not known.
    Added,
    /// The same relay was known; its addresses or token changed or were confirmed.
    Updated,
}

impl Store {
    /// The directory given (by flag or TABANE_CONFIG), or the user's usual one.
    pub fn locate(given: Option<PathBuf>) -> Result<Self> {
        let root = match given {
            Some(root) => root,
            None => xdg_directory("XDG_CONFIG_HOME", ".config")
                .context("cannot tell where the configuration is: set HOME, or use --config DIR")?,
        };
        Ok(Self { root })
    }

    /// The directory itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The client's key, made on first use.
    pub fn identity(&self) -> Result<Identity> {
        Ok(secret::load_or_create(&self.root.join("client.key"))?.0)
    }

    /// The user's settings; all default when there is no `config.toml`.
    pub fn settings(&self) -> Result<Settings> {
        read_toml(&self.root.join("config.toml")).map(Option::unwrap_or_default)
    }

    /// Every known relay, by name.
    pub fn relays(&self) -> Result<Vec<(RelayName, RelayEntry)>> {
        self.entries(&self.relays_directory())
    }

    /// Every entry of a directory, by name.
    fn entries<T: DeserializeOwned>(&self, directory: &Path) -> Result<Vec<(RelayName, T)>> {
        let entries = match fs::read_dir(directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", directory.display()));
            }
        };
        let mut found = Vec::new();
        for entry in entries {
            let path = entry?.path();
            let stem = path.file_stem().and_then(|stem| stem.to_str());
            let name = stem.and_then(|stem| stem.parse::<RelayName>().ok());
            let is_toml = path
                .extension()
                .is_some_and(|extension| extension == "toml");
            if let (true, Some(name)) = (is_toml, name)
                && let Some(entry) = read_toml(&path)?
            {
                found.push((name, entry));
            }
        }
        found.sort_by(|a: &(RelayName, T), b| a.0.cmp(&b.0));
        Ok(found)
    }

    /// The relays to use, the preferred first: those named, else all in order.
    pub fn choose_relays(&self, named: &[String]) -> Result<Vec<(RelayName, RelayEntry)>> {
        let relays = self.relays_in_order()?;
        if relays.is_empty() {
            bail!(
                "no relay is known in {}: run `tabane join STRING` first, with the string that \
                 `tabane relay` printed",
                self.root.display()
            );
        }
        if named.is_empty() {
            return Ok(relays);
        }
        let mut chosen: Vec<(RelayName, RelayEntry)> = Vec::new();
        for wanted in named {
            let found = find_relay(&relays, wanted)?;
            if !chosen.iter().any(|(name, _)| *name == found.0) {
                chosen.push(found.clone());
            }
        }
        Ok(chosen)
    }

    /// Every known relay, the preferred first: the one in the settings, those that
    /// `tabane relays prefer` has named, the last named before the others, the rest by name.
    pub fn relays_in_order(&self) -> Result<Vec<(RelayName, RelayEntry)>> {
        let mut relays = self.relays()?;
        let preferred = self.preferred()?;
        let place = |name: &RelayName| {
            let listed = preferred.iter().position(|other| other == name.as_str());
            listed.unwrap_or(preferred.len())
        };
        // Keeps the order by name where nothing else is known.
        relays.sort_by_key(|(name, _)| place(name));
        if let Some(first) = self.settings()?.relay {
            let found = find_relay(&relays, &first).or_else(|unknown| {
                // One of a fleet's, which need not be in the list that is known yet.
                let of_fleet = |(name, relay): &&(RelayName, RelayEntry)| {
                    relay.fleet.is_some() && name.has_member(&first)
                };
                relays.iter().find(of_fleet).ok_or(unknown)
            });
            let first = found.context("`relay` in config.toml")?.0.clone();
            relays.sort_by_key(|(name, _)| *name != first);
        }
        Ok(relays)
    }

    /// Puts a relay before all others; gives the one that was first.
    pub fn prefer_relay(&self, name: &RelayName) -> Result<Option<RelayName>> {
        let relays = self.relays_in_order()?;
        find_relay(&relays, name.as_str())?;
        if let Some(first) = self.settings()?.relay
            && first != name.as_str()
        {
            bail!(
                "{} says relay = '{first}', which comes first: change that line",
                self.root.join("config.toml").display()
            );
        }
        let others = relays.iter().map(|(other, _)| other);
        let others = others.filter(|other| *other != name);
        let order: Vec<&str> = std::iter::once(name)
            .chain(others)
            .map(RelayName::as_str)
            .collect();
        let text = order.join("\n") + "\n";
        atomic_file::replace(&self.order_path(), text.as_bytes(), atomic_file::SECRET)?;
        Ok(relays.first().map(|(first, _)| first.clone()))
    }

    fn preferred(&self) -> Result<Vec<String>> {
        let text = atomic_file::read(&self.order_path())?.unwrap_or_default();
        Ok(text.lines().map(str::to_owned).collect())
    }

    fn order_path(&self) -> PathBuf {
        self.relays_directory().join("order")
    }

    /// What the relay is called that has one of these addresses, where it is the only one.
    pub fn relay_at(&self, addresses: &[Destination]) -> Result<Option<RelayName>> {
        let relays = self.relays()?.into_iter();
        let mut there = relays.filter(|(_, relay)| {
            let mut own = relay.addresses.iter();
            own.any(|address| addresses.contains(address))
        });
        Ok(match (there.next(), there.next()) {
            (Some((name, _)), None) => Some(name),
            _ => None,
        })
    }

    /// Remembers a relay under a name that no other relay has, or in the place of that one.
    pub fn put_relay(&self, name: &RelayName, relay: &RelayEntry, replace: bool) -> Result<Joined> {
        let path = self.relay_path(name);
        let text = toml::to_string(relay).context("cannot write the relay as TOML")?;
        let known: Option<RelayEntry> = read_toml(&path)?;
        match known {
            Some(known) if !known.is_of_same(relay) && !replace => bail!(
                "a relay with another key is already called '{name}': if it is the same one, set \
                 up anew, add --replace; if not, choose another name with --name"
            ),
            Some(_) => {
                atomic_file::replace(&path, text.as_bytes(), atomic_file::SECRET)?;
                Ok(Joined::Updated)
            }
            None => {
                if !atomic_file::create(&path, text.as_bytes(), atomic_file::SECRET)? {
                    bail!("another `tabane join` has just used the name '{name}'; try again");
                }
                Ok(Joined::Added)
            }
        }
    }

    /// Forgets a relay; false if there was none of that name.
    pub fn remove_relay(&self, name: &RelayName) -> Result<bool> {
        let path = self.relay_path(name);
        self.forget_list(name)?;
        match fs::remove_file(&path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error).with_context(|| format!("cannot remove {}", path.display())),
        }
    }

    fn relays_directory(&self) -> PathBuf {
        self.root.join("relays")
    }

    fn relay_path(&self, name: &RelayName) -> PathBuf {
        self.relays_directory().join(format!("{name}.toml"))
    }
}

fn find_relay<'a>(
    relays: &'a [(RelayName, RelayEntry)],
    wanted: &str,
) -> Result<&'a (RelayName, RelayEntry)> {
    let found = relays.iter().find(|(name, _)| name.as_str() == wanted);
    found.with_context(|| {
        let known: Vec<_> = relays.iter().map(|(name, _)| name.as_str()).collect();
        format!("no relay is called '{wanted}'; known: {}", known.join(", "))
    })
}

/// `$VARIABLE/tabane`, else `$HOME/FALLBACK/tabane` (XDG base directories: relative paths are
/// ignored). Services of the system have no HOME: then the user's home as the system knows it.
pub fn xdg_directory(variable: &str, fallback: &str) -> Option<PathBuf> {
    let absolute = |name: &str| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let base = absolute(variable).or_else(|| {
        let home = absolute("HOME").or_else(known_home)?;
        Some(home.join(fallback))
    })?;
    Some(base.join("tabane"))
}

fn known_home() -> Option<PathBuf> {
    let user = User::from_uid(getuid()).ok().flatten()?;
    Some(user.dir).filter(|path| path.is_absolute())
}

/// Reads a TOML file; `None` if there is none. Faults name file, line and key in one line.
pub fn read_toml<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    let Some(text) = atomic_file::read(path)? else {
        return Ok(None);
    };
    toml::from_str(&text).map(Some).map_err(|error| {
        let offset = error.span().map_or(0, |span| span.start).min(text.len());
        let before = text.as_bytes()[..offset].iter();
        let line = 1 + before.filter(|&&byte| byte == b'\n').count();
        anyhow::anyhow!("{}:{line}: {}", path.display(), error.message())
    })
}

#[cfg(test)]
mod tests;
