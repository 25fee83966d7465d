//! `fleet.toml` in a relay's state directory: which fleet the relay belongs to, and where its etcd
//! is; and `fleet.key`, the fleet's secret key, where `tabane fleet init` was run.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use tabane_core::{Identity, PublicKey};
use tabane_store::{atomic_file, read_toml, secret};

use crate::etcd::FleetAddress;

const NAME: &str = "fleet.toml";
const KEY: &str = "fleet.key";

/// What a relay's directory says of its fleet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FleetFile {
    /// Where its etcd is.
    pub etcd: FleetAddress,
    /// The fleet's key.
    pub key: PublicKey,
}

/// The same as text.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    etcd: String,
    key: String,
}

impl FleetFile {
    /// What stands in `directory`, if anything does.
    ///
    /// # Errors
    /// The file is damaged.
    pub fn read(directory: &Path) -> Result<Option<Self>> {
        let path = directory.join(NAME);
        let Some(text) = read_toml::<Text>(&path)? else {
            return Ok(None);
        };
        let of = |what: &str, why: String| anyhow::anyhow!("{}: {what}: {why}", path.display());
        Ok(Some(Self {
            etcd: text.etcd.parse().map_err(|why| of("etcd", why))?,
            key: text
                .key
                .parse()
                .map_err(|why| of("key", format!("{why}")))?,
        }))
    }

    /// Writes it; a directory belongs to one fleet.
    ///
    /// # Errors
    /// It belongs to another one, or cannot be written.
    pub fn write(&self, directory: &Path) -> Result<()> {
        if let Some(known) = Self::read(directory)?
            && known.key != self.key
        {
            bail!(
                "{} belongs to another fleet, of key {}: choose another directory with --state, or \
                 delete {NAME} there",
                directory.display(),
                known.key
            );
        }
        let text = Text {
            etcd: self.etcd.to_string(),
            key: self.key.to_string(),
        };
        let text = toml::to_string(&text).context("cannot write the fleet's place as TOML")?;
        atomic_file::replace(&directory.join(NAME), text.as_bytes(), atomic_file::SECRET)
    }

    /// The fleet's key pair, made here if there is none.
    ///
    /// # Errors
    /// It cannot be read, or others can.
    pub fn make_key(directory: &Path) -> Result<Identity> {
        Ok(secret::load_or_create(&directory.join(KEY))?.0)
    }

    /// The fleet's key pair, which must be here.
    ///
    /// # Errors
    /// It is not.
    pub fn secret_key(&self, directory: &Path) -> Result<Identity> {
        let path: PathBuf = directory.join(KEY);
        if !path.exists() {
            bail!(
                "the fleet's secret key is not in {}: run this where `tabane fleet init` was run, \
                 or copy {KEY} from there",
                directory.display()
            );
        }
        let (identity, _) = secret::load_or_create(&path)?;
        if identity.public_key() != self.key {
            bail!("{} is another fleet's key", path.display());
        }
        Ok(identity)
    }
}
