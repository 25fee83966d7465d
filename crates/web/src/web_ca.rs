//! `web-ca/`: the authority for `tabane web --intercept`, as `tabane web ca` writes it.
//!
//! `ca.toml` (0600) has everything, the key too; what programs read is written from it: `ca.pem`,
//! its certificate, and `bundle.pem`, that and the system's authorities, for programs that take one
//! file for all. Beside them lie such bundles with other authorities than the system's, and
//! `wgetrc` (0600, for there may be passwords in it), since wget is told by its settings alone.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use tabane_store::{Store, atomic_file, read_toml, secret};

use crate::authority::KeptAuthority;

/// The directory of the authority.
#[derive(Debug, Clone)]
pub struct WebCa(PathBuf);

impl WebCa {
    /// Where the authority of whoever has this store is.
    pub fn of(store: &Store) -> Self {
        Self(store.root().join("web-ca"))
    }

    /// The authority, if one was made.
    pub fn kept(&self) -> Result<Option<KeptAuthority>> {
        let path = self.path();
        let kept = read_toml(&path)?;
        if kept.is_some() {
            secret::check_mode(&path)?;
        }
        Ok(kept)
    }

    /// Keeps an authority in the place of the one before.
    pub fn put(&self, kept: &KeptAuthority) -> Result<()> {
        let text = toml::to_string(kept).context("cannot write the authority as TOML")?;
        atomic_file::replace(&self.path(), text.as_bytes(), atomic_file::SECRET)?;
        self.publish(kept)
    }

    /// Writes what programs read. The system's authorities change now and then.
    pub fn publish(&self, kept: &KeptAuthority) -> Result<()> {
        let own = &kept.certificate;
        let found = rustls_native_certs::load_native_certs();
        for error in &found.errors {
            tracing::warn!(%error, "some of the system's authorities cannot be read");
        }
        let system = found
            .certs
            .into_iter()
            .map(|it| pem::encode(&pem::Pem::new("CERTIFICATE", it.to_vec())));
        let all: String = std::iter::once(own.clone()).chain(system).collect();
        for (path, text) in [(self.certificate(), own), (self.bundle(), &all)] {
            atomic_file::replace(&path, text.as_bytes(), atomic_file::PUBLIC)?;
        }
        Ok(())
    }

    /// A file called `name` with its certificate and those of `others`.
    pub(crate) fn join(&self, kept: &KeptAuthority, others: &Path, name: &str) -> Result<PathBuf> {
        let others = fs::read_to_string(others)
            .with_context(|| format!("cannot read {}", others.display()))?;
        let path = self.0.join(format!("{name}.pem"));
        let text = format!("{}{others}", kept.certificate);
        atomic_file::replace(&path, text.as_bytes(), atomic_file::PUBLIC)?;
        Ok(path)
    }

    /// Settings for wget that name a file with its certificate, after those of the user's own file:
    /// wget reads one file instead of another, and of what is said twice the last holds.
    pub(crate) fn join_wgetrc(&self, kept: &KeptAuthority, own: Option<&Path>) -> Result<PathBuf> {
        let read =
            |path: &Path| fs::read(path).with_context(|| format!("cannot read {}", path.display()));
        let mut settings = own.map(read).transpose()?.unwrap_or_default();
        let bundle = match trusted_by_wget(&String::from_utf8_lossy(&settings)) {
            Some(others) => self.join(kept, &others, "WGETRC")?,
            None => self.bundle(),
        };
        let line = format!("\nca_certificate = {}\n", bundle.display());
        settings.extend_from_slice(line.as_bytes());
        let path = self.0.join("wgetrc");
        atomic_file::replace(&path, &settings, atomic_file::SECRET)?;
        Ok(path)
    }

    /// Forgets the authority and its key.
    pub fn remove(&self) -> Result<()> {
        let Self(directory) = self;
        fs::remove_dir_all(directory)
            .with_context(|| format!("cannot remove {}", directory.display()))
    }

    /// Its certificate.
    pub fn certificate(&self) -> PathBuf {
        self.0.join("ca.pem")
    }

    /// Its certificate and the system's.
    pub fn bundle(&self) -> PathBuf {
        self.0.join("bundle.pem")
    }

    /// Where its key is.
    pub fn path(&self) -> PathBuf {
        self.0.join("ca.toml")
    }
}

/// The file of authorities that settings of wget name. Case, hyphens and underscores of names do
/// not count there.
fn trusted_by_wget(settings: &str) -> Option<PathBuf> {
    let mut values = settings.lines().filter_map(|line| {
        let (name, value) = line.split_once('=')?;
        let name = name.trim().to_ascii_lowercase().replace(['-', '_'], "");
        (name == "cacertificate").then_some(value.trim())
    });
    let value = values.next_back().filter(|value| !value.is_empty())?;
    let home = std::env::home_dir().zip(value.strip_prefix("~/"));
    Some(home.map_or_else(|| PathBuf::from(value), |(home, rest)| home.join(rest)))
}
