//! `neighbour.key`, `neighbours/NAME.toml`, `friends/NAME.toml`, `lent.toml`, `offer.toml` and
//! `lending.toml`: whose links may be borrowed, who may borrow this machine's, what they have
//! carried, a code that is to pair, and where `tabane share` listens. Written by `tabane share`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use tabane_base::{Destination, Host};
use tabane_core::Identity;
use tabane_policy::{Budget, Hours, Usage};

use super::{RelayName, Store, read_toml};
use crate::atomic_file;
use crate::policy_files::read_usage;
use crate::quantity::RateText;
use crate::secret;

/// The offer's file in the directory.
pub const OFFER_FILE: &str = "offer.toml";

/// Somebody whose link may be borrowed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NeighbourEntry {
    /// `HOST:PORT`, where it listens.
    pub address: String,
    /// The key it must prove.
    pub key: String,
}

/// Somebody who may borrow this machine's link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "FriendFile")]
pub struct FriendEntry {
    /// The key it proves, as text.
    pub key: String,
    /// What it may carry.
    #[serde(flatten)]
    pub terms: TermsText,
}

/// As it stands in the file, where a misspelt limit must not mean none.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FriendFile {
    key: String,
    budget: Option<String>,
    rate: Option<String>,
    hours: Option<String>,
}

impl From<FriendFile> for FriendEntry {
    fn from(file: FriendFile) -> Self {
        let (budget, rate, hours) = (file.budget, file.rate, file.hours);
        Self {
            key: file.key,
            terms: TermsText {
                budget,
                rate,
                hours,
            },
        }
    }
}

/// Where `tabane share` listens.
#[derive(Serialize, Deserialize)]
struct LendingFile {
    port: u16,
}

/// What a friend may carry, as it was typed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TermsText {
    /// How much in a day, a week or a month.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<String>,
    /// How fast.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<String>,
    /// When.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hours: Option<String>,
}

/// A code that waits for a friend, and how that ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OfferEntry {
    /// The code, as it is typed.
    pub code: String,
    /// Seconds since 1970.
    pub ends_at: u64,
    /// After so many wrong ones it is void.
    pub attempts_left: u8,
    /// The friend, once it came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paired: Option<String>,
    /// What the friend may carry.
    pub terms: TermsText,
}

impl TermsText {
    /// Whether every limit that was written can be kept. A misspelt one must not mean none.
    pub fn is_sound(&self) -> bool {
        self.budget.is_some() == self.budget().is_some()
            && self.rate.is_some() == self.rate().is_some()
            && self.hours.is_some() == self.hours().is_some()
    }

    /// How much may be carried; `None` for no limit.
    pub fn budget(&self) -> Option<Budget> {
        self.budget.as_deref().and_then(Budget::parse)
    }

    /// When something may be carried; `None` for always.
    pub fn hours(&self) -> Option<Hours> {
        self.hours.as_deref().and_then(Hours::parse)
    }

    /// How fast; `None` for no limit.
    pub fn rate(&self) -> Option<RateText> {
        self.rate.as_deref().and_then(|text| text.parse().ok())
    }
}

impl Store {
    /// The key that neighbours know this machine by, made on first use.
    pub fn neighbour_identity(&self) -> Result<Identity> {
        Ok(secret::load_or_create(&self.root().join("neighbour.key"))?.0)
    }

    /// Whose links may be borrowed, by name.
    pub fn neighbours(&self) -> Result<Vec<(RelayName, NeighbourEntry)>> {
        self.entries(&self.root().join("neighbours"))
    }

    /// Who may borrow, by name.
    pub fn friends(&self) -> Result<Vec<(RelayName, FriendEntry)>> {
        self.entries(&self.root().join("friends"))
    }

    /// Remembers somebody whose link may be borrowed, by a name like this one which no link of ours
    /// has, as `taken` lists them. Whoever has the same key is replaced.
    pub fn put_neighbour(
        &self,
        name: &str,
        entry: &NeighbourEntry,
        taken: &[&str],
    ) -> Result<RelayName> {
        let known = self.neighbours()?;
        let known = known.iter().map(|(name, entry)| (name, &*entry.key));
        let name = free_name(name, &entry.key, &known.collect::<Vec<_>>(), taken);
        write(&self.entry_path("neighbours", &name), entry)?;
        Ok(name)
    }

    /// The neighbour of this key listens there from now on. One that was forgotten meanwhile, or
    /// has got another key, is left as it is.
    pub fn move_neighbour(&self, name: &RelayName, key: &str, at: &Destination) -> Result<()> {
        let path = self.entry_path("neighbours", name);
        match read_toml::<NeighbourEntry>(&path)? {
            Some(known) if known.key == key => {
                let address = at.to_string();
                write(&path, &NeighbourEntry { address, ..known })
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Remembers somebody who may borrow, in the same way.
    pub fn put_friend(&self, name: &str, entry: &FriendEntry) -> Result<RelayName> {
        let known = self.friends()?;
        let known = known.iter().map(|(name, entry)| (name, &*entry.key));
        let name = free_name(name, &entry.key, &known.collect::<Vec<_>>(), &[]);
        write(&self.entry_path("friends", &name), entry)?;
        Ok(name)
    }

    /// Forgets somebody whose link was borrowed; false if there was none.
    pub fn remove_neighbour(&self, name: &RelayName) -> Result<bool> {
        remove(&self.entry_path("neighbours", name))
    }

    /// Lends to somebody no longer; false if there was none.
    pub fn remove_friend(&self, name: &RelayName) -> Result<bool> {
        remove(&self.entry_path("friends", name))
    }

    /// What friends have carried in the present periods of their budgets, by their keys.
    pub fn lent(&self) -> Result<Usage> {
        read_usage(&self.root().join("lent.toml"))
    }

    /// Keeps what friends have carried.
    pub fn put_lent(&self, usage: &Usage) -> Result<()> {
        let text = usage.to_toml();
        atomic_file::replace(
            &self.root().join("lent.toml"),
            text.as_bytes(),
            atomic_file::SECRET,
        )
    }

    /// The code that is to pair, if there is one.
    pub fn offer(&self) -> Result<Option<OfferEntry>> {
        read_toml(&self.root().join(OFFER_FILE))
    }

    /// Keeps the code that is to pair.
    pub fn put_offer(&self, offer: &OfferEntry) -> Result<()> {
        write(&self.root().join(OFFER_FILE), offer)
    }

    /// Forgets the code; false if there was none.
    pub fn remove_offer(&self) -> Result<bool> {
        remove(&self.root().join(OFFER_FILE))
    }

    /// Where `tabane share` listens, or did when it was killed.
    pub fn lending_port(&self) -> Result<Option<u16>> {
        let file = read_toml::<LendingFile>(&self.root().join("lending.toml"))?;
        Ok(file.map(|file| file.port))
    }

    /// Keeps where `tabane share` listens.
    pub fn put_lending_port(&self, port: u16) -> Result<()> {
        write(&self.root().join("lending.toml"), &LendingFile { port })
    }

    /// Forgets the port; false if there was none.
    pub fn remove_lending_port(&self) -> Result<bool> {
        remove(&self.root().join("lending.toml"))
    }

    fn entry_path(&self, kind: &str, name: &RelayName) -> PathBuf {
        self.root().join(kind).join(format!("{name}.toml"))
    }
}

/// The name of this key, else one like `wanted` that nobody has.
fn free_name(wanted: &str, key: &str, known: &[(&RelayName, &str)], taken: &[&str]) -> RelayName {
    let is_taken = |name: &RelayName| taken.contains(&name.as_str());
    let mut known_by = known.iter().filter(|(_, other)| *other == key);
    if let Some((name, _)) = known_by.find(|(name, _)| !is_taken(name)) {
        return (*name).clone();
    }
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let plain: String = wanted.chars().filter(|c| is_plain(*c)).take(48).collect();
    let names = std::iter::once(plain.clone()).chain((2..).map(|n| format!("{plain}-{n}")));
    let mut names = names.map(|name| RelayName::from_host(&Host::Name(name)));
    names
        .find(|name| !is_taken(name) && known.iter().all(|(other, _)| *other != name))
        .expect("names do not end")
}

fn write(path: &Path, entry: &impl Serialize) -> Result<()> {
    let text = toml::to_string(entry).context("cannot write this as TOML")?;
    atomic_file::replace(path, text.as_bytes(), atomic_file::SECRET)
}

fn remove(path: &Path) -> Result<bool> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).with_context(|| format!("cannot remove {}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn friends_have_names_of_their_own_and_one_each() {
        let scratch = Scratch::make();
        let store = Store::locate(Some(scratch.path().join("config"))).unwrap();
        let friend = |key: &str| FriendEntry {
            key: key.to_owned(),
            terms: TermsText {
                budget: Some("5GB/month".to_owned()),
                ..TermsText::default()
            },
        };
        let put = |name: &str, key: &str| store.put_friend(name, &friend(key)).unwrap();
        assert_eq!(put("laptop", "a").as_str(), "laptop");
        assert_eq!(put("laptop", "b").as_str(), "laptop-2");
        assert_eq!(put("other", "a").as_str(), "laptop", "known by its key");
        assert_eq!(put("../../x y", "c").as_str(), "xy");
        let friends = store.friends().unwrap();
        assert_eq!(friends.len(), 3);
        assert!(friends.iter().all(|(_, it)| it.terms.budget().is_some()));
        let terms = |budget: &str| TermsText {
            budget: Some(budget.to_owned()),
            hours: Some("22:00-6:00".to_owned()),
            ..TermsText::default()
        };
        assert!(terms("5GB/month").is_sound() && !terms("5GB a month").is_sound());
        let neighbour = |key: &str| NeighbourEntry {
            address: "10.0.0.1:4511".to_owned(),
            key: key.to_owned(),
        };
        let put = |name, key| store.put_neighbour(name, &neighbour(key), &["eth0"]);
        assert_eq!(
            put("eth0", "a").unwrap().as_str(),
            "eth0-2",
            "a link of ours"
        );
        assert_eq!(put("eth0", "a").unwrap().as_str(), "eth0-2");
        let known = || store.neighbours().unwrap().remove(0);
        let there = Destination::parse("10.0.0.7:4599", None).unwrap();
        store.move_neighbour(&known().0, "b", &there).unwrap();
        assert_eq!(known().1.address, "10.0.0.1:4511", "another key");
        store.move_neighbour(&known().0, "a", &there).unwrap();
        assert_eq!(known().1.address, "10.0.0.7:4599");
        assert!(store.remove_neighbour(&known().0).unwrap());
        let gone: RelayName = "eth0-2".parse().unwrap();
        store.move_neighbour(&gone, "a", &there).unwrap();
        assert!(store.neighbours().unwrap().is_empty(), "forgotten");
        let misspelt = store.entry_path("friends", &friends[1].0);
        fs::write(&misspelt, "key = \"b\"\nbugdet = \"1GB/day\"\n").unwrap();
        let error = format!("{:#}", store.friends().unwrap_err());
        assert!(
            error.contains("bugdet") && error.contains("laptop-2"),
            "{error}"
        );
        fs::remove_file(misspelt).unwrap();
        assert!(store.remove_friend(&friends[0].0).unwrap());
        assert!(!store.remove_friend(&friends[0].0).unwrap());
    }
}
