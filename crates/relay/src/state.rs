//! What a relay keeps: its key, who may use it, and under which addresses it is known.
//!
//! One directory: `relay.key` (0600), `access.toml` (0600), `usage.toml` and `relay.toml`, which
//! remembers the addresses so that `tabane relay token new` can print a whole join string. A relay
//! of a fleet has `fleet.toml` there instead of the two in the middle.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use tabane_base::Destination;
use tabane_core::Identity;

use crate::access::{AccessFile, AccessList, TokenEntry, TokenUses, UserName};
#[cfg(feature = "fleet")]
use crate::fleet::{FleetBook, FleetFile};
use crate::usage::{UsageCounters, UsageFile};
use crate::user_report::UserReport;
use tabane_store::{
    JoinString, Token, atomic_file, quantity::Lifetime, read_toml, secret,
    wall_clock::unix_seconds, xdg_directory,
};

/// Where root's relay keeps its state (FHS 3.0 §5.8).
const ROOT_DIRECTORY: &str = "/var/lib/tabane";

/// A relay's state directory.
#[derive(Debug, Clone)]
pub struct RelayState {
    root: PathBuf,
}

/// `relay.toml`.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Announcement {
    /// `HOST:PORT`, as join strings have them.
    addresses: Vec<String>,
}

impl RelayState {
    /// The directory given, or the usual one of this user.
    pub fn locate(given: Option<PathBuf>) -> Result<Self> {
        let root = match given {
            Some(root) => root,
            None if nix::unistd::geteuid().is_root() => PathBuf::from(ROOT_DIRECTORY),
            None => xdg_directory("XDG_STATE_HOME", ".local/state")
                .context("cannot tell where to keep the relay's state: set HOME, or use --state")?,
        };
        Ok(Self { root })
    }

    /// The relay's key, made on first use.
    pub fn identity(&self) -> Result<Identity> {
        Ok(secret::load_or_create(&self.root.join("relay.key"))?.0)
    }

    pub(crate) fn access_file(&self) -> AccessFile {
        AccessFile::new(&self.root)
    }

    /// Who may use it: by its own file, or by its fleet's.
    ///
    /// # Errors
    /// It cannot be read, or the fleet's etcd does not answer.
    pub fn access(&self) -> Result<AccessList> {
        #[cfg(feature = "fleet")]
        if let Some(fleet) = self.fleet()? {
            return FleetBook::new(fleet).read();
        }
        self.refuse_fleet()?;
        self.access_file().read()
    }

    /// Changes the list; it is kept when this returns. `change` may be tried several times, as
    /// others change the list meanwhile.
    ///
    /// # Errors
    /// As [`access`](Self::access); nothing is changed then, or it is not known whether.
    pub fn update_access<T: Send>(
        &self,
        change: impl Fn(&mut AccessList) -> T + Send + Sync,
    ) -> Result<T> {
        #[cfg(feature = "fleet")]
        if let Some(fleet) = self.fleet()? {
            return FleetBook::new(fleet).update(change);
        }
        self.refuse_fleet()?;
        self.access_file().update(change)
    }

    /// The fleet that it belongs to.
    ///
    /// # Errors
    /// The file that says so is damaged.
    #[cfg(feature = "fleet")]
    pub fn fleet(&self) -> Result<Option<FleetFile>> {
        FleetFile::read(&self.root)
    }

    /// Whether it belongs to a fleet.
    #[must_use]
    pub fn is_of_fleet(&self) -> bool {
        self.fleet_file().exists()
    }

    fn fleet_file(&self) -> PathBuf {
        self.root.join("fleet.toml")
    }

    /// A program without fleets does not serve a fleet's relay by a file of its own.
    fn refuse_fleet(&self) -> Result<()> {
        if cfg!(not(feature = "fleet")) && self.is_of_fleet() {
            bail!(
                "{} says that this relay belongs to a fleet, which this build knows nothing of",
                self.fleet_file().display()
            );
        }
        Ok(())
    }

    /// The time by which its tokens and volumes go, in seconds since 1970: this machine's, or its
    /// fleet's.
    ///
    /// # Errors
    /// The fleet's etcd does not answer.
    pub fn now(&self) -> Result<u64> {
        #[cfg(feature = "fleet")]
        if let Some(fleet) = self.fleet()? {
            return FleetBook::new(fleet).now();
        }
        Ok(unix_seconds())
    }

    /// All users, for display.
    ///
    /// # Errors
    /// As [`access`](Self::access).
    pub fn user_reports(&self) -> Result<Vec<UserReport>> {
        let (list, usage, now) = (self.access()?, self.usage()?, self.now()?);
        let users = list.users().iter();
        Ok(users
            .map(|user| UserReport::new(&list, &usage, user, now))
            .collect())
    }

    /// The user called `name`, for display.
    ///
    /// # Errors
    /// As [`access`](Self::access).
    pub fn user_report(&self, name: &UserName) -> Result<Option<UserReport>> {
        let mut all = self.user_reports()?.into_iter();
        Ok(all.find(|user| user.name == name.as_str()))
    }

    /// Remembers under which addresses clients reach the relay. One that is started again needs no
    /// disk for what is known already.
    pub fn announce(&self, addresses: &[Destination]) -> Result<()> {
        let path = self.root.join("relay.toml");
        let addresses = addresses.iter().map(ToString::to_string).collect();
        let announcement = Announcement { addresses };
        if read_toml(&path).is_ok_and(|known| known.as_ref() == Some(&announcement)) {
            return Ok(());
        }
        let text =
            toml::to_string(&announcement).context("cannot write the relay's addresses as TOML")?;
        atomic_file::replace(&path, text.as_bytes(), atomic_file::PUBLIC)
    }

    /// The addresses of the last start.
    pub fn announced(&self) -> Result<Vec<Destination>> {
        let path = self.root.join("relay.toml");
        let announcement: Announcement = read_toml(&path)?.unwrap_or_default();
        if announcement.addresses.is_empty() {
            bail!(
                "no relay has been started with the state in {}: start `tabane relay` once, or \
                 name its directory with --state",
                self.root.display()
            );
        }
        let parse = |text: &String| {
            let parsed = Destination::parse(text, None);
            parsed.with_context(|| format!("{}: address '{text}'", path.display()))
        };
        announcement.addresses.iter().map(parse).collect()
    }

    /// A new token, on disk when this returns.
    pub fn new_token(
        &self,
        uses: TokenUses,
        lasts: Lifetime,
        user: Option<UserName>,
    ) -> Result<Token> {
        let now = self.now()?;
        let token = Token::from_random(secret::random());
        let entry = TokenEntry {
            token: token.clone(),
            uses,
            created_at: now,
            expires_at: lasts.0.map(|span| now.saturating_add(span.as_secs())),
            user,
        };
        self.update_access(|list: &mut AccessList| list.add_token(entry.clone()))??;
        Ok(token)
    }

    /// The token to print at a start: the one of the last start if it still admits, else a new one.
    pub(crate) fn current_token(&self, uses: TokenUses) -> Result<Token> {
        let list = self.access()?;
        let new = || self.new_token(uses, Lifetime(None), None);
        list.standing_token(uses).cloned().map_or_else(new, Ok)
    }

    pub(crate) fn usage_file(&self) -> UsageFile {
        UsageFile::new(&self.root)
    }

    /// What users have used, by all relays of its fleet if it is of one.
    ///
    /// # Errors
    /// As [`access`](Self::access).
    pub fn usage(&self) -> Result<UsageCounters> {
        #[cfg(feature = "fleet")]
        if let Some(fleet) = self.fleet()? {
            return FleetBook::new(fleet).usage();
        }
        self.usage_file().read()
    }

    /// The line for clients.
    pub fn join_string(&self, addresses: Vec<Destination>, token: Token) -> Result<JoinString> {
        Ok(JoinString {
            addresses,
            key: self.identity()?.public_key(),
            #[cfg(feature = "fleet")]
            fleet: self.fleet()?.map(|fleet| fleet.key),
            #[cfg(not(feature = "fleet"))]
            fleet: None,
            token,
        })
    }

    /// Where it is.
    pub fn root(&self) -> &Path {
        &self.root
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tabane_store::Scratch;

    #[test]
    fn a_reusable_token_is_printed_again_and_a_burnt_one_is_not() {
        let scratch = Scratch::make();
        let state = RelayState::locate(Some(scratch.path().join("state"))).unwrap();
        let many = state.current_token(TokenUses::Many).unwrap();
        assert_eq!(state.current_token(TokenUses::Many).unwrap(), many);
        let one = state.current_token(TokenUses::ONE).unwrap();
        assert_eq!(state.current_token(TokenUses::ONE).unwrap(), one);
        let key = secret::load_or_create(&scratch.path().join("k"))
            .unwrap()
            .0
            .public_key();
        let shown = Some(one.as_str().as_bytes());
        state
            .update_access(|list| list.authorise(key, shown, 0))
            .unwrap();
        assert_ne!(state.current_token(TokenUses::ONE).unwrap(), one);
        assert_eq!(state.current_token(TokenUses::Many).unwrap(), many);
    }

    #[test]
    fn addresses_are_remembered() {
        let scratch = Scratch::make();
        let state = RelayState::locate(Some(scratch.path().to_owned())).unwrap();
        let error = format!("{:#}", state.announced().unwrap_err());
        assert!(error.contains("start `tabane relay` once"), "{error}");
        let addresses =
            ["192.0.2.1:4510", "[2001:db8::1]:4510"].map(|a| Destination::parse(a, None).unwrap());
        state.announce(&addresses).unwrap();
        assert_eq!(state.announced().unwrap(), addresses);
    }
}
