//! Who may use a relay: users and their limits, tokens that admit new clients, clients remembered
//! by key, keys turned away.
//!
//! [`AccessList`] decides, without clock or files; [`AccessFile`] keeps it in `access.toml` under a
//! lock, so that the running relay and `tabane relay token` agree, and a one-time token is burnt on
//! disk before the client it admits is told so.

mod as_text;
mod file;
#[cfg(test)]
mod tests;
mod token;
mod user;

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};
use tabane_core::PublicKey;

use tabane_store::Token;

pub use file::AccessFile;
pub use token::{TokenEntry, TokenUses};
pub use user::{UserEntry, UserName};

/// Clients remembered; each is some 150 bytes of a file that is rewritten per enrolment.
const MAX_CLIENTS: usize = 4_096;
/// Tokens waiting to be used.
const MAX_TOKENS: usize = 1_024;
/// People whom one relay serves.
const MAX_USERS: usize = 1_024;
/// Letters of a token that name it where it is to be revoked; fewer would be a slip.
const SHORTEST_LABEL: usize = 4;

/// Everything the relay knows about its clients.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AccessList {
    #[serde(rename = "user", skip_serializing_if = "Vec::is_empty")]
    users: Vec<UserEntry>,
    #[serde(rename = "token")]
    tokens: Vec<TokenEntry>,
    #[serde(rename = "client")]
    clients: Vec<ClientEntry>,
}

/// A client that was admitted once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClientEntry {
    /// The key it has proved.
    #[serde(with = "as_text")]
    pub key: PublicKey,
    /// Seconds since 1970.
    pub enrolled_at: u64,
    /// The first letters of the token that admitted it.
    pub token_label: String,
    /// Whose it is.
    #[serde(
        default,
        with = "as_text::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub user: Option<UserName>,
    /// Turned away whatever token it shows.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub revoked: bool,
}

/// Why a client that was let in is not any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leaving {
    Revoked,
    /// Nothing is known of it.
    Forgotten,
}

/// What the relay answers a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AccessAnswer {
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

impl AccessList {
    /// What a fleet keeps one by one. A client whose user is gone is turned away.
    #[cfg(feature = "fleet")]
    pub(crate) fn of_parts(
        users: Vec<UserEntry>,
        tokens: Vec<TokenEntry>,
        mut clients: Vec<ClientEntry>,
    ) -> Self {
        let is_gone = |name: &UserName| !users.iter().any(|user| user.name == *name);
        for client in &mut clients {
            client.revoked |= client.user.as_ref().is_some_and(is_gone);
        }
        Self {
            users,
            tokens,
            clients,
        }
    }

    /// The clients that the list before this one let in, and this one does not.
    pub(crate) fn leaving_since(&self, before: &Self) -> BTreeMap<[u8; 32], Leaving> {
        // Who came since stands behind those who were there.
        if self.clients.starts_with(&before.clients) {
            return BTreeMap::new();
        }
        let now = self.clients.iter();
        let now: BTreeMap<_, _> = now.map(|it| (it.key.0, it.revoked)).collect();
        let were_in = before.clients.iter().filter(|client| !client.revoked);
        let leaving = were_in.filter_map(|client| match now.get(&client.key.0) {
            Some(false) => None,
            Some(true) => Some((client.key.0, Leaving::Revoked)),
            None => Some((client.key.0, Leaving::Forgotten)),
        });
        leaving.collect()
    }

    /// What can be answered without a change: `None` where the token has to be looked at, and
    /// perhaps used up.
    pub fn recognise(
        &self,
        key: PublicKey,
        token: Option<&[u8]>,
        now: u64,
    ) -> Option<AccessAnswer> {
        let client = self.clients.iter().find(|client| client.key == key);
        match client {
            Some(client) if client.revoked => Some(AccessAnswer::RefusedRevoked),
            // A device that was given a token of another user becomes that user's.
            Some(client) => match self.find_token(token, now) {
                Some(at) if self.moves(client, &self.tokens[at]) => None,
                Some(_) | None => Some(AccessAnswer::Known(client.user.clone())),
            },
            None => match self.find_token(token, now) {
                Some(_) => None,
                // It may have been made a moment ago.
                None if token.is_some() => None,
                None => Some(AccessAnswer::RefusedUnknown),
            },
        }
    }

    fn moves(&self, client: &ClientEntry, token: &TokenEntry) -> bool {
        token.user.is_some() && token.user != client.user
    }

    fn find_token(&self, shown: Option<&[u8]>, now: u64) -> Option<usize> {
        let shown = shown?;
        self.tokens
            .iter()
            .position(|entry| entry.admits(shown, now))
    }

    /// Decides about a client that proved `key` and showed `token`.
    pub fn authorise(&mut self, key: PublicKey, token: Option<&[u8]>, now: u64) -> AccessAnswer {
        self.forget_expired(now);
        if let Some(verdict) = self.recognise(key, token, now) {
            return verdict;
        }
        let Some(at) = self.find_token(token, now) else {
            return AccessAnswer::RefusedUnknown;
        };
        let place = self.clients.iter().position(|client| client.key == key);
        if place.is_none() && self.clients.len() >= MAX_CLIENTS {
            return AccessAnswer::RefusedFull;
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
        match entry.uses.less_one() {
            Some(uses) => entry.uses = uses,
            None => drop(self.tokens.remove(at)),
        }
        match place {
            Some(place) => self.clients[place] = client,
            None => self.clients.push(client),
        }
        AccessAnswer::Enrolled(user)
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

    /// Everybody who has limits of their own.
    pub fn users(&self) -> &[UserEntry] {
        &self.users
    }

    /// The user of this name.
    pub fn user(&self, name: &UserName) -> Option<&UserEntry> {
        self.users.iter().find(|user| user.name == *name)
    }

    /// The user of this name, to be changed.
    pub fn user_mut(&mut self, name: &UserName) -> Option<&mut UserEntry> {
        self.users.iter_mut().find(|user| user.name == *name)
    }

    /// Adds a user.
    pub fn add_user(&mut self, user: UserEntry) -> Result<()> {
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
    pub fn remove_user(&mut self, name: &UserName) -> Option<usize> {
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

    /// Makes the token beginning with `label` worthless; false if none or several begin so, or it
    /// is too short to be meant.
    pub fn revoke_token(&mut self, label: &str) -> bool {
        let matching = |entry: &TokenEntry| entry.token.as_str().starts_with(label);
        let found = self.tokens.iter().filter(|entry| matching(entry)).count();
        let is_one = label.len() >= SHORTEST_LABEL && found == 1;
        if is_one {
            self.tokens.retain(|entry| !matching(entry));
        }
        is_one
    }

    /// Turns a client away, or lets it in again; false if it is unknown.
    pub fn set_revoked(&mut self, key: PublicKey, revoked: bool) -> Result<bool> {
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

    /// Every token that may still admit somebody, or did.
    pub fn tokens(&self) -> &[TokenEntry] {
        &self.tokens
    }

    /// Every client that was admitted.
    pub fn clients(&self) -> &[ClientEntry] {
        &self.clients
    }
}
