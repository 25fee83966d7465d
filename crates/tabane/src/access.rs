//! Who may use a relay: tokens that admit new clients, clients remembered by key, keys turned away.
//!
//! [`AccessList`] decides, without clock or files; [`AccessFile`] keeps it in `access.toml` under a
//! lock, so that the running relay and `tabane relay token` agree, and a one-time token is burnt on
//! disk before the client it admits is told so.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use tabane_core::PublicKey;

use crate::atomic_file;
use crate::join_string::Token;
use crate::store::read_toml;

/// Clients remembered; each is some 150 bytes of a file that is rewritten per enrolment.
const MAX_CLIENTS: usize = 4_096;
/// Tokens waiting to be used.
const MAX_TOKENS: usize = 1_024;

/// How often a token admits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum TokenUses {
    /// One client; then it is worthless.
    One,
    /// Any number of clients, until it is revoked.
    Many,
}

/// Everything the relay knows about its clients.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct AccessList {
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
    pub(crate) uses: TokenUses,
    /// Seconds since 1970.
    pub(crate) created_at: u64,
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
    /// Turned away whatever token it shows.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) revoked: bool,
}

/// What the relay answers a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Admitted before.
    Known,
    /// Admitted now, by its token; to be written down first.
    Enrolled,
    /// The key was revoked.
    RefusedRevoked,
    /// Neither the key nor the token is known.
    RefusedUnknown,
    /// As many clients as may be remembered.
    RefusedFull,
}

impl AccessList {
    /// Decides about a client that proved `key` and showed `token`.
    pub(crate) fn authorise(&mut self, key: PublicKey, token: Option<&[u8]>, now: u64) -> Verdict {
        if let Some(client) = self.clients.iter().find(|client| client.key == key) {
            return if client.revoked {
                Verdict::RefusedRevoked
            } else {
                Verdict::Known
            };
        }
        let shown = |entry: &TokenEntry| {
            token.is_some_and(|token| equal_in_constant_time(token, entry.token.as_str()))
        };
        let Some(at) = self.tokens.iter().position(shown) else {
            return Verdict::RefusedUnknown;
        };
        if self.clients.len() >= MAX_CLIENTS {
            return Verdict::RefusedFull;
        }
        let token_label = self.tokens[at].token.label().to_owned();
        if self.tokens[at].uses == TokenUses::One {
            self.tokens.remove(at);
        }
        self.clients.push(ClientEntry {
            key,
            enrolled_at: now,
            token_label,
            revoked: false,
        });
        Verdict::Enrolled
    }

    /// Adds a token that admits.
    pub(crate) fn add_token(&mut self, token: Token, uses: TokenUses, now: u64) -> Result<()> {
        if self.tokens.len() >= MAX_TOKENS {
            bail!("there are already {MAX_TOKENS} tokens; revoke some first");
        }
        self.tokens.push(TokenEntry {
            token,
            uses,
            created_at: now,
        });
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

    /// Turns a client away from its next session on; false if it is unknown.
    pub(crate) fn revoke_client(&mut self, key: PublicKey) -> bool {
        let client = self.clients.iter_mut().find(|client| client.key == key);
        client.map(|client| client.revoked = true).is_some()
    }

    /// The token a join string may carry again and again.
    pub(crate) fn reusable_token(&self) -> Option<&Token> {
        let reusable = self
            .tokens
            .iter()
            .rfind(|entry| entry.uses == TokenUses::Many);
        reusable.map(|entry| &entry.token)
    }

    /// The newest token that nobody has used yet.
    pub(crate) fn unused_token(&self) -> Option<&Token> {
        let unused = self
            .tokens
            .iter()
            .rfind(|entry| entry.uses == TokenUses::One);
        unused.map(|entry| &entry.token)
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
        read_toml(&self.path).map(Option::unwrap_or_default)
    }

    /// Changes the list; nobody else changes it meanwhile, and it is on disk when this returns.
    pub(crate) fn update<T>(&self, change: impl FnOnce(&mut AccessList) -> T) -> Result<T> {
        let _lock = self.lock()?;
        let before = self.read()?;
        let mut list = before.clone();
        let outcome = change(&mut list);
        if list != before {
            let text = toml::to_string(&list).context("cannot write the access list as TOML")?;
            atomic_file::replace(&self.path, text.as_bytes(), atomic_file::SECRET)?;
        }
        Ok(outcome)
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    const KEYS: [PublicKey; 3] = [PublicKey([1; 32]), PublicKey([2; 32]), PublicKey([3; 32])];

    fn token(seed: u8) -> Token {
        Token::from_random([seed; 22])
    }

    fn shown(token: &Token) -> Option<&[u8]> {
        Some(token.as_str().as_bytes())
    }

    #[test]
    fn a_one_time_token_admits_one_client_who_may_return_without_it() {
        let mut list = AccessList::default();
        list.add_token(token(1), TokenUses::One, 10).unwrap();
        assert_eq!(list.authorise(KEYS[0], None, 11), Verdict::RefusedUnknown);
        assert_eq!(
            list.authorise(KEYS[0], shown(&token(2)), 11),
            Verdict::RefusedUnknown
        );
        assert_eq!(
            list.authorise(KEYS[0], shown(&token(1)), 11),
            Verdict::Enrolled
        );
        assert_eq!(list.authorise(KEYS[0], None, 12), Verdict::Known);
        assert_eq!(
            list.authorise(KEYS[1], shown(&token(1)), 12),
            Verdict::RefusedUnknown
        );
        assert_eq!(list.unused_token(), None);
    }

    #[test]
    fn a_reusable_token_admits_many_until_revoked() {
        let mut list = AccessList::default();
        list.add_token(token(1), TokenUses::Many, 0).unwrap();
        assert_eq!(
            list.authorise(KEYS[0], shown(&token(1)), 0),
            Verdict::Enrolled
        );
        assert_eq!(
            list.authorise(KEYS[1], shown(&token(1)), 0),
            Verdict::Enrolled
        );
        assert!(!list.revoke_token("BB"), "too short to be meant");
        assert!(list.revoke_token(token(1).label()));
        assert_eq!(
            list.authorise(KEYS[2], shown(&token(1)), 0),
            Verdict::RefusedUnknown
        );
        assert_eq!(list.authorise(KEYS[1], None, 0), Verdict::Known);
    }

    #[test]
    fn a_revoked_client_stays_out_even_with_a_token() {
        let mut list = AccessList::default();
        list.add_token(token(1), TokenUses::Many, 0).unwrap();
        list.authorise(KEYS[0], shown(&token(1)), 0);
        assert!(list.revoke_client(KEYS[0]));
        assert!(!list.revoke_client(KEYS[1]));
        assert_eq!(
            list.authorise(KEYS[0], shown(&token(1)), 0),
            Verdict::RefusedRevoked
        );
    }

    #[test]
    fn the_list_has_an_end() {
        let mut list = AccessList::default();
        list.add_token(token(1), TokenUses::Many, 0).unwrap();
        for i in 0..MAX_CLIENTS {
            let mut key = [0; 32];
            key[..8].copy_from_slice(&i.to_le_bytes());
            assert_eq!(
                list.authorise(PublicKey(key), shown(&token(1)), 0),
                Verdict::Enrolled
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
        file.update(|list| list.add_token(token(1), TokenUses::One, 5))
            .unwrap()
            .unwrap();
        let verdict = file
            .update(|list| list.authorise(KEYS[0], shown(&token(1)), 6))
            .unwrap();
        assert_eq!(verdict, Verdict::Enrolled);
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
        file.update(|list| list.add_token(token(1), TokenUses::One, 5))
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
                .filter(|verdict| *verdict == Verdict::Enrolled)
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
