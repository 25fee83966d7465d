//! `fleet.copy` in a relay's state directory: what etcd said last, by which known clients are
//! served while it is away, over a restart too.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use tabane_store::atomic_file;

use super::records::Records;
use crate::etcd::Entry;

/// The file.
#[derive(Debug, Clone)]
pub(super) struct CopyFile {
    path: PathBuf,
}

#[derive(Serialize, Deserialize)]
struct Text {
    revision: i64,
    entries: Vec<Kept>,
}

#[derive(Serialize, Deserialize)]
struct Kept {
    key: String,
    /// Hexadecimal: the list of relays is no text.
    value: String,
    created_at: i64,
    changed_at: i64,
}

impl CopyFile {
    pub(super) fn new(directory: &Path) -> Self {
        Self {
            path: directory.join("fleet.copy"),
        }
    }

    pub(super) fn write(&self, records: &Records) -> Result<()> {
        let entries = records.kept().map(|(key, entry)| Kept {
            key: key.clone(),
            value: to_hex(&entry.value),
            created_at: entry.created_at,
            changed_at: entry.changed_at,
        });
        let text = Text {
            revision: records.revision,
            entries: entries.collect(),
        };
        let text = serde_json::to_vec(&text).context("cannot write the copy as JSON")?;
        atomic_file::replace(&self.path, &text, atomic_file::SECRET)
    }

    /// What was written last, with its revision; `None` where nothing was.
    pub(super) fn read(&self, prefix: &str) -> Result<Option<(Vec<Entry>, i64)>> {
        let Some(text) = atomic_file::read(&self.path)? else {
            return Ok(None);
        };
        let damaged = || format!("{} is damaged; delete it", self.path.display());
        let text: Text = serde_json::from_str(&text).with_context(damaged)?;
        let entries = text.entries.into_iter().map(|kept| {
            Some(Entry {
                key: format!("{prefix}{}", kept.key),
                value: from_hex(&kept.value)?,
                created_at: kept.created_at,
                changed_at: kept.changed_at,
                lease: 0,
            })
        });
        let entries: Option<Vec<Entry>> = entries.collect();
        Ok(Some((entries.with_context(damaged)?, text.revision)))
    }
}

/// All that is kept, whenever any of it has changed: a text of its own for each byte would take
/// seconds for what etcd may have.
fn to_hex(bytes: &[u8]) -> String {
    let digit = |half: u8| char::from(b"0123456789abcdef"[usize::from(half)]);
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 0xf]);
    digits.map(digit).collect()
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    let bytes = digits.chunks(2).map(|pair| {
        let pair = std::str::from_utf8(pair).ok().filter(|it| it.len() == 2)?;
        u8::from_str_radix(pair, 16).ok()
    });
    bytes.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let bytes: Vec<u8> = (0..=u8::MAX).collect();
        assert_eq!(from_hex(&to_hex(&bytes)), Some(bytes));
        assert_eq!(to_hex(&[0, 0x9a, 0xff]), "009aff");
    }
}
