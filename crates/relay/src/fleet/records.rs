//! What a fleet keeps in etcd, by key, and the access list that it comes to.
//!
//! Owns the keys' names, how a change of the list becomes changes of keys, and that a value nobody
//! understands (half written, or a newer relay's) takes away nothing: the last good one counts. And
//! that whoever may write there fills no relay's memory.
//! Every key is one user, token or client, so that changes of one hold up nobody else's.

mod strangers;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::{Context, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tabane_core::{PublicKey, one_line};
use tabane_fleet::{Account, Allotment, RelayList};
use tabane_tunnel::Seldom;

use crate::access::{AccessList, ClientEntry, TokenEntry, UserEntry, UserName};
use crate::etcd::{Change, Entry, MAX_KEPT};
pub use strangers::fuzz_etcd;

/// What the fleet is: `fleet`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Founding {
    /// How all the rest is written.
    pub(super) form: u32,
    /// The fleet's key.
    pub(super) key: String,
}

/// The form that this program reads and writes.
pub(super) const FORM: u32 = 1;

/// A relay that runs: `alive/NAME`, by a lease.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Alive {
    pub(super) key: String,
    /// The machine's boot, by the kernel's id of it, and the process there.
    pub(super) machine: String,
    pub(super) process: u32,
    pub(super) version: String,
    /// When it started, in seconds since 1970.
    pub(super) since: u64,
    pub(super) sessions: u64,
    pub(super) carried_bytes: u64,
    /// Seconds that its clock is behind etcd's.
    pub(super) clock_behind_s: i64,
}

/// A relay that would be of the fleet: `asks/KEY`, by a lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Asking {
    pub(super) name: String,
    pub(super) key: String,
    pub(super) addresses: Vec<String>,
    pub(super) region: String,
}

pub(super) const FOUNDING: &str = "fleet";
pub(super) const LIST: &str = "list";
pub(super) const ALIVE: &str = "alive/";
pub(super) const ASKS: &str = "asks/";
/// What may be wrong with the list of relays, beside what its signature shows.
const GONE: &str = "it is gone";
const OLD: &str = "it is older than the list that is known";
const USER: &str = "user/";
const TOKEN: &str = "token/";
const CLIENT: &str = "client/";
const VOLUME: &str = "volume/";
const HELD: &str = "held/";

/// Every key with its value, and what the values mean.
#[derive(Debug, Default)]
pub(super) struct Records {
    /// Who signs the list of relays, once that is known.
    fleet: Option<PublicKey>,
    /// Without the fleet's prefix.
    entries: BTreeMap<String, Entry>,
    /// Their bytes.
    size: usize,
    /// The last value of each key that was understood, and what it means.
    good: BTreeMap<String, (Entry, Meaning)>,
    /// What the good ones come to, until one of them changes.
    access: RefCell<Option<Arc<AccessList>>>,
    /// The list of relays as it was signed, if it was, until another comes.
    relays: RefCell<Option<Option<Arc<RelayList>>>>,
    /// Keys whose present value is not.
    pub(super) odd: BTreeMap<String, String>,
    pub(super) revision: i64,
}

/// A value that is part of the access list, or is not.
#[derive(Debug)]
enum Meaning {
    User(UserEntry),
    Token(TokenEntry),
    Client(ClientEntry),
    Other,
}

impl Records {
    /// Takes the place of everything.
    pub(super) fn replace(&mut self, prefix: &str, entries: Vec<Entry>, revision: i64) {
        *self = Self {
            revision,
            fleet: self.fleet,
            ..Self::default()
        };
        for entry in entries {
            self.put(prefix, entry);
        }
    }

    /// Believes no list of relays from here on that this key has not signed.
    pub(super) fn believe(&mut self, prefix: &str, fleet: PublicKey) {
        self.fleet = Some(fleet);
        if let Some(list) = self.entries.get(LIST).cloned() {
            self.good.remove(LIST);
            self.put(prefix, list);
        }
    }

    /// What was good in `before`, and is not understood now, stays as it was.
    pub(super) fn keep_good_of(&mut self, mut before: Self) {
        if before.epoch() > self.epoch()
            && let Some(list) = before.good.remove(LIST)
        {
            let why = match self.entries.contains_key(LIST) {
                true => OLD,
                false => GONE,
            };
            let odd = self.odd.entry(LIST.to_owned());
            odd.or_insert_with(|| why.to_owned());
            self.good.insert(LIST.to_owned(), list);
            self.relays.take();
        }
        for key in self.odd.keys() {
            if let Some(good) = before.good.remove(key) {
                self.good.insert(key.clone(), good);
            }
        }
        self.access.take();
    }

    /// Has all that `relay` was lent count as used.
    pub(super) fn count_as_used(&mut self, relay: &str) {
        let end = format!("/{relay}");
        let is_own = |key: &str| key.starts_with(HELD) && key.ends_with(&end);
        for (_, (entry, _)) in self.good.iter_mut().filter(|(key, _)| is_own(key)) {
            if let Ok(mut holding) = serde_json::from_slice::<Allotment>(&entry.value) {
                holding.count_as_used();
                entry.value = serde_json::to_vec(&holding).unwrap_or_default();
            }
        }
    }

    pub(super) fn created_at(&self, key: &str) -> Option<i64> {
        self.entries.get(key).map(|entry| entry.created_at)
    }

    /// Follows a change; `None`: deleted.
    pub(super) fn apply(&mut self, prefix: &str, key: &str, entry: Option<Entry>) {
        match entry {
            Some(entry) => self.put(prefix, entry),
            None => {
                if let Some(key) = key.strip_prefix(prefix) {
                    self.size -= self.entries.remove(key).map_or(0, |entry| entry.size());
                    // Nobody who may change it takes it away.
                    if key == LIST && self.good.contains_key(LIST) {
                        self.odd.insert(LIST.to_owned(), GONE.to_owned());
                        return;
                    }
                    self.odd.remove(key);
                    let gone = self.good.remove(key);
                    if gone.is_some_and(|(_, it)| !matches!(it, Meaning::Other)) {
                        self.access.take();
                    }
                }
            }
        }
    }

    fn put(&mut self, prefix: &str, entry: Entry) {
        let Some(key) = entry.key.strip_prefix(prefix).map(str::to_owned) else {
            return;
        };
        let known = self.entries.get(&key);
        if known.is_some_and(|known| known.changed_at > entry.changed_at) {
            return;
        }
        let size = self.size - known.map_or(0, Entry::size) + entry.size();
        if size > MAX_KEPT {
            static TOLD: Seldom = Seldom::of(1, "");
            if TOLD.is_due() {
                let (key, most) = (one_line(&key), MAX_KEPT >> 20);
                tracing::error!(
                    key,
                    "there is more than {most} MB in etcd: this is not followed"
                );
            }
            return;
        }
        self.size = size;
        let meaning = understand(&key, &entry.value);
        match meaning.and_then(|meaning| self.check_list(&key, &entry.value).map(|()| meaning)) {
            Ok(meaning) => {
                if key == LIST {
                    self.relays.take();
                }
                if !matches!(meaning, Meaning::Other) {
                    self.access.take();
                }
                self.odd.remove(&key);
                self.good.insert(key.clone(), (entry.clone(), meaning));
            }
            Err(error) => {
                let why = one_line(&format!("{error:#}"));
                static TOLD: Seldom = Seldom::of(60, "values in etcd are not understood");
                if TOLD.is_due() {
                    let key = one_line(&key);
                    tracing::error!(key, "a value in etcd is not understood: {why}");
                }
                self.odd.insert(key.clone(), why);
            }
        }
        self.entries.insert(key, entry);
    }

    /// A list of relays is one that the fleet has signed, and none that was replaced by another.
    fn check_list(&self, key: &str, value: &[u8]) -> Result<()> {
        if let (LIST, Some(fleet)) = (key, self.fleet) {
            let list = RelayList::parse(value, fleet)?;
            anyhow::ensure!(list.epoch() >= self.epoch(), OLD);
        }
        Ok(())
    }

    /// Of the list of relays that is believed; 0: there is none.
    fn epoch(&self) -> u64 {
        let list = self.fleet.and_then(|fleet| self.relays(fleet));
        list.map_or(0, |list| list.epoch())
    }

    /// When `key` was changed last; 0: it is not there.
    pub(super) fn changed_at(&self, key: &str) -> i64 {
        self.entries.get(key).map_or(0, |entry| entry.changed_at)
    }

    pub(super) fn lease(&self, key: &str) -> i64 {
        self.entries.get(key).map_or(0, |entry| entry.lease)
    }

    /// What stands under `key`, where it is understood.
    pub(super) fn value<T: DeserializeOwned>(&self, key: &str) -> Option<T> {
        let (entry, _) = self.good.get(key)?;
        serde_json::from_slice(&entry.value).ok()
    }

    pub(super) fn bytes(&self, key: &str) -> Option<&[u8]> {
        self.good.get(key).map(|(entry, _)| entry.value.as_slice())
    }

    /// Every value under a prefix, with the rest of its key; the oldest first.
    pub(super) fn all<T: DeserializeOwned>(&self, prefix: &str) -> Vec<(String, T)> {
        let under = self.good.range(prefix.to_owned()..);
        let under = under.take_while(|(key, _)| key.starts_with(prefix));
        let mut found: Vec<(i64, String, T)> = under
            .filter_map(|(key, (entry, _))| {
                let value = serde_json::from_slice(&entry.value).ok()?;
                Some((entry.created_at, key[prefix.len()..].to_owned(), value))
            })
            .collect();
        found.sort_by_key(|(created_at, ..)| *created_at);
        found
            .into_iter()
            .map(|(_, key, value)| (key, value))
            .collect()
    }

    /// Everything that is kept on disk: all but what lives by leases of others.
    pub(super) fn kept(&self) -> impl Iterator<Item = (&String, &Entry)> {
        let is_kept = |key: &str| !key.starts_with(ALIVE) && !key.starts_with(ASKS);
        let kept = self.good.iter().filter(move |(key, _)| is_kept(key));
        kept.map(|(key, (entry, _))| (key, entry))
    }

    /// The access list that users, tokens and clients come to, each in the order in which they
    /// were made.
    pub(super) fn access(&self) -> Arc<AccessList> {
        let mut access = self.access.borrow_mut();
        access
            .get_or_insert_with(|| Arc::new(self.make_access()))
            .clone()
    }

    fn make_access(&self) -> AccessList {
        let mut good: Vec<&(Entry, Meaning)> = self.good.values().collect();
        good.sort_by_key(|(entry, _)| entry.created_at);
        let (mut users, mut tokens, mut clients) = (Vec::new(), Vec::new(), Vec::new());
        for (_, meaning) in good {
            match meaning {
                Meaning::User(user) => users.push(user.clone()),
                Meaning::Token(token) => tokens.push(token.clone()),
                Meaning::Client(client) => clients.push(client.clone()),
                Meaning::Other => {}
            }
        }
        AccessList::of_parts(users, tokens, clients)
    }

    /// The list of relays, where there is one that the fleet signed.
    pub(super) fn relays(&self, fleet: PublicKey) -> Option<Arc<RelayList>> {
        let bytes = self.bytes(LIST)?;
        let mut known = self.relays.borrow_mut();
        let parse = || {
            let parsed = RelayList::parse(bytes, fleet);
            let parsed = parsed
                .inspect_err(|error| tracing::error!("the list in etcd is not believed: {error}"));
            parsed.ok().map(Arc::new)
        };
        known.get_or_insert_with(parse).clone()
    }

    /// The keys to change, with the revisions at which all that this goes by was changed last.
    pub(super) fn difference(
        &self,
        prefix: &str,
        before: &AccessList,
        after: &AccessList,
    ) -> Result<(Unchanged, Vec<Change>)> {
        let (old, new) = (items(before)?, items(after)?);
        let mut touched = BTreeSet::new();
        let mut changes = Vec::new();
        // What goes goes first, where this is too much to be done at once: a user before its
        // clients.
        for key in old.keys().filter(|key| !new.contains_key(*key)) {
            touched.insert(key.clone());
            for key in std::iter::once(key.clone()).chain(self.volume_of(key)) {
                let key = format!("{prefix}{key}");
                changes.push(Change::Delete { key });
            }
        }
        for (key, (value, user)) in &new {
            if old.get(key).is_none_or(|(known, _)| known != value) {
                touched.insert(key.clone());
                touched.extend(user.as_ref().map(|user| format!("{USER}{user}")));
                changes.push(Change::Put {
                    key: format!("{prefix}{key}"),
                    value: value.clone(),
                    lease: self.lease(key),
                });
            }
        }
        let unchanged = touched
            .into_iter()
            .map(|key| (format!("{prefix}{key}"), self.changed_at(&key)));
        Ok((unchanged.collect(), changes))
    }
}

impl Records {
    /// The keys of what was lent to the user whose own key is `user_key`.
    fn volume_of(&self, user_key: &str) -> Vec<String> {
        let Some(name) = user_key.strip_prefix(USER) else {
            return Vec::new();
        };
        let (account, holdings) = (format!("{VOLUME}{name}"), format!("{HELD}{name}/"));
        let keys = self.entries.keys();
        let own = keys.filter(|key| **key == account || key.starts_with(&holdings));
        own.cloned().collect()
    }
}

/// Whose own key this is, if it is a user's.
pub(super) fn user_of(prefix: &str, key: &str) -> Option<UserName> {
    key.strip_prefix(prefix)?.strip_prefix(USER)?.parse().ok()
}

/// Keys, and the revisions at which they were changed last.
pub(super) type Unchanged = Vec<(String, i64)>;

/// Key, value, and whose it is.
type Item = (Vec<u8>, Option<UserName>);

fn items(list: &AccessList) -> Result<BTreeMap<String, Item>> {
    let mut items = BTreeMap::new();
    let write = "cannot write a record as JSON";
    for user in list.users() {
        let value = serde_json::to_vec(user).context(write)?;
        items.insert(format!("{USER}{}", user.name), (value, None));
    }
    for token in list.tokens() {
        let value = serde_json::to_vec(token).context(write)?;
        items.insert(
            format!("{TOKEN}{}", token.token),
            (value, token.user.clone()),
        );
    }
    for client in list.clients() {
        let value = serde_json::to_vec(client).context(write)?;
        // One that is turned away goes by nobody's being there.
        let user = client.user.clone().filter(|_| !client.revoked);
        items.insert(client_key(client.key), (value, user));
    }
    Ok(items)
}

/// When a token that stands under `key` is worthless, in seconds since 1970.
pub(super) fn token_end(key: &str, value: &[u8]) -> Option<u64> {
    key.contains(TOKEN)
        .then(|| serde_json::from_slice::<TokenEntry>(value).ok()?.expires_at)?
}

pub(super) fn client_key(key: PublicKey) -> String {
    format!("{CLIENT}{key}")
}

pub(super) fn user_key(user: &UserName) -> String {
    format!("{USER}{user}")
}

pub(super) fn account_key(user: &UserName) -> String {
    format!("{VOLUME}{user}")
}

pub(super) fn holding_key(user: &UserName, relay: &str) -> String {
    format!("{HELD}{user}/{relay}")
}

/// The holdings of all relays, by user.
pub(super) fn holdings(records: &Records) -> Vec<(String, Allotment)> {
    let all = records.all::<Allotment>(HELD).into_iter();
    all.filter_map(|(key, holding)| Some((key.split_once('/')?.0.to_owned(), holding)))
        .collect()
}

/// What a value means, where it is what its key says.
fn understand(key: &str, value: &[u8]) -> Result<Meaning> {
    fn of<T: DeserializeOwned>(value: &[u8]) -> Result<T> {
        Ok(serde_json::from_slice(value)?)
    }
    let other = Meaning::Other;
    let (meaning, is_named) = match key.split_once('/') {
        Some(("user", name)) => {
            let user: UserEntry = of(value)?;
            let is_named = user.name.as_str() == name;
            (Meaning::User(user), is_named)
        }
        Some(("token", text)) => {
            let token: TokenEntry = of(value)?;
            let is_named = token.token.as_str() == text;
            (Meaning::Token(token), is_named)
        }
        Some(("client", key)) => {
            let client: ClientEntry = of(value)?;
            let is_named = client.key.to_string() == key;
            (Meaning::Client(client), is_named)
        }
        Some(("volume", _)) => of::<Account>(value).map(|_| (other, true))?,
        Some(("held", _)) => of::<Allotment>(value).map(|_| (other, true))?,
        Some(("alive", _)) => of::<Alive>(value).map(|_| (other, true))?,
        Some(("asks", key)) => (other, of::<Asking>(value)?.key == key),
        _ if key == FOUNDING => of::<Founding>(value).map(|_| (other, true))?,
        // A newer program's, or signed.
        _ => (other, true),
    };
    anyhow::ensure!(is_named, "it is another one's");
    Ok(meaning)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_may_write_to_etcd_fills_no_memory() {
        let entry = |n: usize| Entry {
            key: format!("x/asks/{n}"),
            value: vec![b'x'; 1 << 20],
            created_at: 1,
            changed_at: 1,
            lease: 0,
        };
        let mut records = Records::default();
        (0..100).for_each(|n| records.apply("x/", &format!("x/asks/{n}"), Some(entry(n))));
        let most = MAX_KEPT >> 20;
        assert_eq!(records.entries.len(), most - 1, "with their names");
        // One goes, and one more has its place.
        records.apply("x/", "x/asks/0", None);
        records.apply("x/", "x/asks/1", Some(entry(1)));
        records.apply("x/", "x/asks/99", Some(entry(99)));
        assert_eq!(records.entries.len(), most - 1);
        let left = (0..100).map(|n| format!("x/asks/{n}"));
        left.for_each(|key| records.apply("x/", &key, None));
        assert_eq!((records.entries.len(), records.size), (0, 0));
    }
}
