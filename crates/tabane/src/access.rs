//! Who may use a relay: users and their limits, tokens that admit new clients, clients remembered
//! by key, keys turned away.
//!
//! [`AccessList`] decides, without clock or files; [`AccessFile`] keeps it in `access.toml` under a
//! lock, so that the running relay and `tabane relay token` agree, and a one-time token is burnt on
//! disk before the client it admits is told so.

mod user;

use std::ffi::CStr;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use tabane_core::PublicKey;

use crate::atomic_file;
use crate::join_string::Token;
use crate::store::read_toml;

pub(crate) use user::{UserEntry, UserName};

/// Clients remembered; each is some 150 bytes of a file that is rewritten per enrolment.
const MAX_CLIENTS: usize = 4_096;
/// Tokens waiting to be used.
const MAX_TOKENS: usize = 1_024;
/// People whom one relay serves.
const MAX_USERS: usize = 1_024;

/// How often a token admits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenUses {
    /// So many more clients; with the last it is worthless.
    Left(u32),
    /// Any number of clients, until it expires or is revoked.
    Many,
}

impl TokenUses {
    pub(crate) const ONE: Self = Self::Left(1);
}

impl FromStr for TokenUses {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "one" => Ok(Self::ONE),
            "many" => Ok(Self::Many),
            number => match number.parse() {
                Ok(left @ 1..) => Ok(Self::Left(left)),
                _ => Err(format!("'{text}' is none of one, many, or a number")),
            },
        }
    }
}

impl fmt::Display for TokenUses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Left(1) => f.write_str("one"),
            Self::Left(left) => left.fmt(f),
            Self::Many => f.write_str("many"),
        }
    }
}

/// Everything the relay knows about its clients.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct AccessList {
    #[serde(rename = "user", skip_serializing_if = "Vec::is_empty")]
    users: Vec<UserEntry>,
    #[serde(rename = "token")]
    tokens: Vec<TokenEntry>,
    #[serde(rename = "client")]
    clients: Vec<ClientEntry>,
}

/// A token that still admits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TokenEntry {
    #[serde(with = "as_text")]
    pub(crate) token: Token,
    #[serde(with = "as_text")]
    pub(crate) uses: TokenUses,
    /// Seconds since 1970.
    pub(crate) created_at: u64,
    /// Worthless from then on, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) expires_at: Option<u64>,
    /// Whose the clients are that it admits.
    #[serde(
        default,
        with = "as_text::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) user: Option<UserName>,
}

/// A client that was admitted once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClientEntry {
    #[serde(with = "as_text")]
    pub(crate) key: PublicKey,
    /// Seconds since 1970.
    pub(crate) enrolled_at: u64,
    /// The first letters of the token that admitted it.
    pub(crate) token_label: String,
    /// Whose it is.
    #[serde(
        default,
        with = "as_text::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) user: Option<UserName>,
    /// Turned away whatever token it shows.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) revoked: bool,
}

/// What the relay answers a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Admitted before, for this user.
    Known(Option<UserName>),
    /// Admitted now, by its token; to be written down first.
    Enrolled(Option<UserName>),
    /// The key was revoked.
    RefusedRevoked,
    /// Neither the key nor the token is known.
    RefusedUnknown,
    /// As many clients as may be remembered.
    RefusedFull,
}

impl TokenEntry {
    pub(crate) fn is_expired(&self, now: u64) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }
}

impl AccessList {
    /// What can be answered without a change: `None` where the token has to be looked at, and
    /// perhaps used up.
    pub(crate) fn recognise(
        &self,
        key: PublicKey,
        token: Option<&[u8]>,
        now: u64,
    ) -> Option<Verdict> {
        let client = self.clients.iter().find(|client| client.key == key);
        match client {
            Some(client) if client.revoked => Some(Verdict::RefusedRevoked),
            // A device that was given a token of another user becomes that user's.
            Some(client) => match self.find_token(token, now) {
                Some(at) if self.moves(client, &self.tokens[at]) => None,
                Some(_) | None => Some(Verdict::Known(client.user.clone())),
            },
            None => match self.find_token(token, now) {
                Some(_) => None,
                // It may have been made a moment ago.
                None if token.is_some() => None,
                None => Some(Verdict::RefusedUnknown),
            },
        }
    }

    fn moves(&self, client: &ClientEntry, token: &TokenEntry) -> bool {
        token.user.is_some() && token.user != client.user
    }

    fn find_token(&self, shown: Option<&[u8]>, now: u64) -> Option<usize> {
        let shown = shown?;
        let is_it = |entry: &TokenEntry| {
            equal_in_constant_time(shown, entry.token.as_str()) && !entry.is_expired(now)
        };
        self.tokens.iter().position(is_it)
    }

    /// Decides about a client that proved `key` and showed `token`.
    pub(crate) fn authorise(&mut self, key: PublicKey, token: Option<&[u8]>, now: u64) -> Verdict {
        self.forget_expired(now);
        if let Some(verdict) = self.recognise(key, token, now) {
            return verdict;
        }
        let Some(at) = self.find_token(token, now) else {
            return Verdict::RefusedUnknown;
        };
        let place = self.clients.iter().position(|client| client.key == key);
        if place.is_none() && self.clients.len() >= MAX_CLIENTS {
            return Verdict::RefusedFull;
        }
        let entry = &mut self.tokens[at];
        let client = ClientEntry {
            key,
            enrolled_at: now,
            token_label: entry.token.label().to_owned(),
            user: entry.user.clone(),
            revoked: false,
        };
        let user = entry.user.clone();
        match &mut entry.uses {
            TokenUses::Many => {}
            TokenUses::Left(left @ 2..) => *left -= 1,
            TokenUses::Left(_) => drop(self.tokens.remove(at)),
        }
        match place {
            Some(place) => self.clients[place] = client,
            None => self.clients.push(client),
        }
        Verdict::Enrolled(user)
    }

    fn forget_expired(&mut self, now: u64) {
        self.tokens.retain(|entry| !entry.is_expired(now));
    }

    /// Whether what the list says fits together.
    fn check(&self) -> Result<()> {
        for (place, user) in self.users.iter().enumerate() {
            if self.users[..place]
                .iter()
                .any(|other| other.name == user.name)
            {
                bail!("there are two users '{}'", user.name);
            }
        }
        let owners = self.tokens.iter().filter_map(|token| token.user.as_ref());
        let live = self.clients.iter().filter(|client| !client.revoked);
        for name in owners.chain(live.filter_map(|client| client.user.as_ref())) {
            if self.user(name).is_none() {
                bail!("a token or client belongs to '{name}', and there is no such user");
            }
        }
        Ok(())
    }

    pub(crate) fn users(&self) -> &[UserEntry] {
        &self.users
    }

    pub(crate) fn user(&self, name: &UserName) -> Option<&UserEntry> {
        self.users.iter().find(|user| user.name == *name)
    }

    pub(crate) fn user_mut(&mut self, name: &UserName) -> Option<&mut UserEntry> {
        self.users.iter_mut().find(|user| user.name == *name)
    }

    /// Adds a user.
    pub(crate) fn add_user(&mut self, user: UserEntry) -> Result<()> {
        if self.user(&user.name).is_some() {
            bail!(
                "there is already a user '{}'; `tabane relay user set` changes it",
                user.name
            );
        }
        if self.users.len() >= MAX_USERS {
            bail!("there are already {MAX_USERS} users");
        }
        self.users.push(user);
        Ok(())
    }

    /// Takes a user away with its tokens, and revokes its clients; how many those were, or `None`
    /// if there is no such user.
    pub(crate) fn remove_user(&mut self, name: &UserName) -> Option<usize> {
        self.user(name)?;
        self.users.retain(|user| user.name != *name);
        self.tokens
            .retain(|token| token.user.as_ref() != Some(name));
        let of = |client: &&mut ClientEntry| client.user.as_ref() == Some(name) && !client.revoked;
        let devices = self.clients.iter_mut().filter(of);
        Some(devices.map(|client| client.revoked = true).count())
    }

    /// Adds a token that admits.
    pub(crate) fn add_token(&mut self, entry: TokenEntry) -> Result<()> {
        if let Some(name) = &entry.user
            && self.user(name).is_none()
        {
            bail!("there is no user '{name}'; `tabane relay user add {name}` makes one");
        }
        self.forget_expired(entry.created_at);
        if self.tokens.len() >= MAX_TOKENS {
            bail!("there are already {MAX_TOKENS} tokens; revoke some first");
        }
        self.tokens.push(entry);
        Ok(())
    }

    /// Makes the token beginning with `label` worthless; false if none or several begin so.
    pub(crate) fn revoke_token(&mut self, label: &str) -> bool {
        let before = self.tokens.len();
        let matching = |entry: &TokenEntry| entry.token.as_str().starts_with(label);
        if label.len() < 4 || self.tokens.iter().filter(|entry| matching(entry)).count() != 1 {
            return false;
        }
        self.tokens.retain(|entry| !matching(entry));
        self.tokens.len() < before
    }

    /// Turns a client away, or lets it in again; false if it is unknown.
    pub(crate) fn set_revoked(&mut self, key: PublicKey, revoked: bool) -> Result<bool> {
        let place = self.clients.iter().position(|client| client.key == key);
        let Some(place) = place else {
            return Ok(false);
        };
        if let Some(name) = &self.clients[place].user
            && !revoked
            && self.user(name).is_none()
        {
            bail!("it belonged to '{name}', and there is no such user any more");
        }
        self.clients[place].revoked = revoked;
        Ok(true)
    }

    /// The newest token of nobody's that does not expire and admits so many.
    pub(crate) fn standing_token(&self, uses: TokenUses) -> Option<&Token> {
        let fits = |entry: &&TokenEntry| {
            entry.uses == uses && entry.user.is_none() && entry.expires_at.is_none()
        };
        self.tokens.iter().rfind(fits).map(|entry| &entry.token)
    }

    pub(crate) fn tokens(&self) -> &[TokenEntry] {
        &self.tokens
    }

    pub(crate) fn clients(&self) -> &[ClientEntry] {
        &self.clients
    }
}

/// The time a wrong token takes to be refused must not tell how much of it was right.
fn equal_in_constant_time(shown: &[u8], token: &str) -> bool {
    aws_lc_rs::constant_time::verify_slices_are_equal(shown, token.as_bytes()).is_ok()
}

/// `access.toml` in a relay's state directory.
#[derive(Debug, Clone)]
pub(crate) struct AccessFile {
    path: PathBuf,
}

impl AccessFile {
    /// The file in `directory`; it need not exist yet.
    pub(crate) fn new(directory: &Path) -> Self {
        Self {
            path: directory.join("access.toml"),
        }
    }

    /// The list as it is on disk.
    pub(crate) fn read(&self) -> Result<AccessList> {
        self.read_if_any().map(Option::unwrap_or_default)
    }

    /// The same; `None` if there is no file.
    pub(crate) fn read_if_any(&self) -> Result<Option<AccessList>> {
        let list: Option<AccessList> = read_toml(&self.path)?;
        if let Some(list) = &list {
            list.check()
                .with_context(|| self.path.display().to_string())?;
        }
        Ok(list)
    }

    /// The file's name in its directory.
    pub(crate) const NAME: &CStr = c"access.toml";

    /// Changes the list; nobody else changes it meanwhile, and it is on disk when this returns.
    pub(crate) fn update<T>(&self, change: impl FnOnce(&mut AccessList) -> T) -> Result<T> {
        self.update_and_read(change).map(|(outcome, _)| outcome)
    }

    /// Changes the list and gives it as it is then; see [`update`](Self::update).
    pub(crate) fn update_and_read<T>(
        &self,
        change: impl FnOnce(&mut AccessList) -> T,
    ) -> Result<(T, AccessList)> {
        let _lock = self.lock()?;
        let before = self.read()?;
        let mut list = before.clone();
        let outcome = change(&mut list);
        if list != before {
            let text = toml::to_string(&list).context("cannot write the access list as TOML")?;
            atomic_file::replace(&self.path, text.as_bytes(), atomic_file::SECRET)?;
        }
        Ok((outcome, list))
    }

    /// The lock is a file of its own, because the list's file is replaced at every change.
    fn lock(&self) -> Result<File> {
        let path = self.path.with_extension("lock");
        let open = || {
            if let Some(directory) = path.parent() {
                fs::create_dir_all(directory)?;
            }
            let mut options = OpenOptions::new();
            let file = options
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(&path)?;
            file.lock()?;
            Ok::<_, std::io::Error>(file)
        };
        open().with_context(|| format!("cannot lock {}", path.display()))
    }
}

/// Seconds since 1970.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |elapsed| elapsed.as_secs())
}

/// Serialises through `Display` and `FromStr`.
mod as_text {
    use serde::{Deserialize, Deserializer, Serializer};
    use std::{fmt::Display, str::FromStr};

    pub(super) fn serialize<T: Display, S: Serializer>(
        value: &T,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(super) fn deserialize<'de, T, D>(deserializer: D) -> Result<T, D::Error>
    where
        T: FromStr,
        T::Err: Display,
        D: Deserializer<'de>,
    {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }

    /// The same for a value that may be missing.
    pub(super) mod option {
        use super::{Deserializer, Display, FromStr, Serializer};

        pub(in super::super) fn serialize<T: Display, S: Serializer>(
            value: &Option<T>,
            serializer: S,
        ) -> Result<S::Ok, S::Error> {
            match value {
                Some(value) => serializer.collect_str(value),
                None => serializer.serialize_none(),
            }
        }

        pub(in super::super) fn deserialize<'de, T, D>(
            deserializer: D,
        ) -> Result<Option<T>, D::Error>
        where
            T: FromStr,
            T::Err: Display,
            D: Deserializer<'de>,
        {
            super::deserialize(deserializer).map(Some)
        }
    }

    /// The same for a list.
    pub(super) mod list {
        use super::{Deserialize, Deserializer, Display, FromStr, Serializer};

        pub(in super::super) fn serialize<T: Display, S: Serializer>(
            values: &[T],
            serializer: S,
        ) -> Result<S::Ok, S::Error> {
            serializer.collect_seq(values.iter().map(ToString::to_string))
        }

        pub(in super::super) fn deserialize<'de, T, D>(deserializer: D) -> Result<Vec<T>, D::Error>
        where
            T: FromStr,
            T::Err: Display,
            D: Deserializer<'de>,
        {
            let texts = Vec::<String>::deserialize(deserializer)?;
            let parse = |text: String| text.parse().map_err(serde::de::Error::custom);
            texts.into_iter().map(parse).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    const KEYS: [PublicKey; 3] = [PublicKey([1; 32]), PublicKey([2; 32]), PublicKey([3; 32])];

    fn token(seed: u8) -> Token {
        Token::from_random([seed; 22])
    }

    fn entry(seed: u8, uses: TokenUses) -> TokenEntry {
        TokenEntry {
            token: token(seed),
            uses,
            created_at: 0,
            expires_at: None,
            user: None,
        }
    }

    fn name(text: &str) -> UserName {
        text.parse().unwrap()
    }

    fn shown(token: &Token) -> Option<&[u8]> {
        Some(token.as_str().as_bytes())
    }

    #[test]
    fn a_one_time_token_admits_one_client_who_may_return_without_it() {
        let mut list = AccessList::default();
        list.add_token(entry(1, TokenUses::ONE)).unwrap();
        assert_eq!(list.authorise(KEYS[0], None, 11), Verdict::RefusedUnknown);
        assert_eq!(
            list.authorise(KEYS[0], shown(&token(2)), 11),
            Verdict::RefusedUnknown
        );
        assert_eq!(
            list.authorise(KEYS[0], shown(&token(1)), 11),
            Verdict::Enrolled(None)
        );
        assert_eq!(list.authorise(KEYS[0], None, 12), Verdict::Known(None));
        assert_eq!(
            list.authorise(KEYS[1], shown(&token(1)), 12),
            Verdict::RefusedUnknown
        );
        assert_eq!(list.standing_token(TokenUses::ONE), None);
    }

    #[test]
    fn a_reusable_token_admits_many_until_revoked() {
        let mut list = AccessList::default();
        list.add_token(entry(1, TokenUses::Many)).unwrap();
        assert_eq!(
            list.authorise(KEYS[0], shown(&token(1)), 0),
            Verdict::Enrolled(None)
        );
        assert_eq!(
            list.authorise(KEYS[1], shown(&token(1)), 0),
            Verdict::Enrolled(None)
        );
        assert!(!list.revoke_token("BB"), "too short to be meant");
        assert!(list.revoke_token(token(1).label()));
        assert_eq!(
            list.authorise(KEYS[2], shown(&token(1)), 0),
            Verdict::RefusedUnknown
        );
        assert_eq!(list.authorise(KEYS[1], None, 0), Verdict::Known(None));
    }

    #[test]
    fn a_revoked_client_stays_out_even_with_a_token() {
        let mut list = AccessList::default();
        list.add_token(entry(1, TokenUses::Many)).unwrap();
        list.authorise(KEYS[0], shown(&token(1)), 0);
        assert!(list.set_revoked(KEYS[0], true).unwrap());
        assert!(!list.set_revoked(KEYS[1], true).unwrap());
        assert_eq!(
            list.authorise(KEYS[0], shown(&token(1)), 0),
            Verdict::RefusedRevoked
        );
        assert!(list.set_revoked(KEYS[0], false).unwrap());
        assert_eq!(list.authorise(KEYS[0], None, 0), Verdict::Known(None));
    }

    #[test]
    fn tokens_expire_and_count_their_uses() {
        let mut list = AccessList::default();
        let two = TokenEntry {
            expires_at: Some(100),
            ..entry(1, TokenUses::Left(2))
        };
        list.add_token(two).unwrap();
        let show = |list: &mut AccessList, key, now| list.authorise(key, shown(&token(1)), now);
        assert_eq!(show(&mut list, KEYS[0], 99), Verdict::Enrolled(None));
        let mut late = list.clone();
        assert_eq!(show(&mut late, KEYS[1], 100), Verdict::RefusedUnknown);
        assert!(late.tokens().is_empty(), "expired tokens are forgotten");
        assert_eq!(show(&mut late, KEYS[0], 100), Verdict::Known(None));
        assert_eq!(show(&mut list, KEYS[1], 99), Verdict::Enrolled(None));
        assert_eq!(
            show(&mut list, KEYS[2], 99),
            Verdict::RefusedUnknown,
            "used up"
        );
    }

    #[test]
    fn a_user_has_devices_which_go_with_it() {
        let mut list = AccessList::default();
        let of = |user: &str, seed| TokenEntry {
            user: Some(name(user)),
            ..entry(seed, TokenUses::Many)
        };
        assert!(list.add_token(of("ann", 1)).is_err(), "no such user yet");
        list.add_user(UserEntry::new(name("ann"), 0)).unwrap();
        list.add_user(UserEntry::new(name("bob"), 0)).unwrap();
        assert!(list.add_user(UserEntry::new(name("ann"), 0)).is_err());
        list.add_token(of("ann", 1)).unwrap();
        list.add_token(of("bob", 2)).unwrap();
        list.add_token(entry(3, TokenUses::Many)).unwrap();
        let show = |list: &mut AccessList, key, seed| list.authorise(key, shown(&token(seed)), 0);
        let ann = Some(name("ann"));
        assert_eq!(show(&mut list, KEYS[0], 1), Verdict::Enrolled(ann.clone()));
        assert_eq!(show(&mut list, KEYS[1], 1), Verdict::Enrolled(ann.clone()));
        assert_eq!(
            show(&mut list, KEYS[0], 3),
            Verdict::Known(ann),
            "stays ann's"
        );
        let bob = Some(name("bob"));
        assert_eq!(
            show(&mut list, KEYS[1], 2),
            Verdict::Enrolled(bob.clone()),
            "moves"
        );
        assert_eq!(list.clients().len(), 2);

        assert_eq!(list.remove_user(&name("ann")), Some(1));
        assert_eq!(list.remove_user(&name("ann")), None);
        assert_eq!(show(&mut list, KEYS[0], 3), Verdict::RefusedRevoked);
        assert_eq!(show(&mut list, KEYS[1], 2), Verdict::Known(bob));
        assert_eq!(
            show(&mut list, KEYS[2], 1),
            Verdict::RefusedUnknown,
            "her token is gone"
        );
        assert!(
            list.set_revoked(KEYS[0], false).is_err(),
            "nobody's any more"
        );
        list.check().unwrap();
    }

    #[test]
    fn users_are_written_and_read_again_and_contradictions_are_named() {
        let scratch = Scratch::new();
        let file = AccessFile::new(scratch.path());
        let user = UserEntry {
            rate_down: Some("50Mbit/s".parse().unwrap()),
            volume: Some("100GB/month".parse().unwrap()),
            sessions: Some(3),
            allow: vec!["192.0.2.0/24:80,443".parse().unwrap()],
            private: true,
            ..UserEntry::new(name("ann"), 7)
        };
        file.update(|list| list.add_user(user.clone()))
            .unwrap()
            .unwrap();
        assert_eq!(file.read().unwrap().users(), [user]);

        let path = scratch.path().join("access.toml");
        let text = fs::read_to_string(&path).unwrap();
        for (bad, word) in [
            (
                format!("{text}{}", &text[text.find("[[user]]").unwrap()..]),
                "two users 'ann'",
            ),
            (text.replace("50Mbit/s", "fast"), "no rate"),
            (text.replace("sessions", "sessoins"), "sessoins"),
            (text[..text.len() - 4].to_owned(), "access.toml"),
            (
                format!(
                    "{}[[client]]\nkey = \"{}\"\nenrolled_at = 0\n\
                         token_label = \"x\"\nuser = \"eve\"\n",
                    text.replace("client = []\n", ""),
                    KEYS[0]
                ),
                "no such user",
            ),
        ] {
            fs::write(&path, bad).unwrap();
            let error = format!("{:#}", file.read().unwrap_err());
            assert!(
                error.contains("access.toml") && error.contains(word),
                "{error}"
            );
        }
    }

    #[test]
    fn the_list_has_an_end() {
        let mut list = AccessList::default();
        list.add_token(entry(1, TokenUses::Many)).unwrap();
        for i in 0..MAX_CLIENTS {
            let mut key = [0; 32];
            key[..8].copy_from_slice(&i.to_le_bytes());
            assert_eq!(
                list.authorise(PublicKey(key), shown(&token(1)), 0),
                Verdict::Enrolled(None)
            );
        }
        assert_eq!(
            list.authorise(KEYS[0], shown(&token(1)), 0),
            Verdict::RefusedFull
        );
    }

    #[test]
    fn the_file_keeps_the_list_and_burns_for_good() {
        let scratch = Scratch::new();
        let file = AccessFile::new(scratch.path());
        file.update(|list| list.add_token(entry(1, TokenUses::ONE)))
            .unwrap()
            .unwrap();
        let verdict = file
            .update(|list| list.authorise(KEYS[0], shown(&token(1)), 6))
            .unwrap();
        assert_eq!(verdict, Verdict::Enrolled(None));
        let reopened = AccessFile::new(scratch.path());
        let verdict = reopened
            .update(|list| list.authorise(KEYS[1], shown(&token(1)), 7))
            .unwrap();
        assert_eq!(verdict, Verdict::RefusedUnknown);
        assert_eq!(reopened.read().unwrap().clients()[0].key, KEYS[0]);
    }

    #[test]
    fn of_many_clients_with_one_token_one_is_admitted() {
        let scratch = Scratch::new();
        let file = AccessFile::new(scratch.path());
        file.update(|list| list.add_token(entry(1, TokenUses::ONE)))
            .unwrap()
            .unwrap();
        let admitted = std::thread::scope(|scope| {
            let file = &file;
            let tries: Vec<_> = (0..8)
                .map(|i| {
                    scope.spawn(move || {
                        let key = PublicKey([i; 32]);
                        file.update(|list| list.authorise(key, shown(&token(1)), 6))
                            .unwrap()
                    })
                })
                .collect();
            let verdicts = tries.into_iter().filter_map(|one| one.join().ok());
            verdicts
                .filter(|verdict| *verdict == Verdict::Enrolled(None))
                .count()
        });
        assert_eq!(admitted, 1);
    }

    #[test]
    fn a_damaged_file_is_an_error_not_an_open_door() {
        let scratch = Scratch::new();
        fs::write(scratch.path().join("access.toml"), "[[token]]\nkey = 1\n").unwrap();
        let file = AccessFile::new(scratch.path());
        let error = format!("{:#}", file.update(|list| list.clone()).unwrap_err());
        assert!(
            error.contains("access.toml:") && !error.contains('\n'),
            "{error}"
        );
    }
}
