//! The repository as paths and contents.
//!
//! Owns the only reads of the disk that tidy does. Paths are relative to the root, with `/`.
//! What git ignores is not part of the tree; what is new and not yet added is.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Every file of the repository.
#[derive(Debug, Default, Clone)]
pub(crate) struct Tree {
    contents_by_path: BTreeMap<String, Vec<u8>>,
}

impl Tree {
    /// Reads what git lists below `root`.
    ///
    /// # Errors
    /// When git cannot list the files, or a listed file cannot be read.
    pub(crate) fn read(root: &Path) -> Result<Self> {
        // The server's clone may belong to another user, which git refuses unless told.
        let trust = format!("safe.directory={}", root.display());
        let listing = Command::new("git")
            .args([
                "-c",
                &trust,
                "ls-files",
                "-z",
                "--cached",
                "--others",
                "--exclude-standard",
            ])
            .current_dir(root)
            .output()
            .context("cannot start git to list the files")?;
        ensure!(
            listing.status.success(),
            "git ls-files failed: {}",
            String::from_utf8_lossy(&listing.stderr).trim()
        );
        let mut tree = Self::default();
        for path in String::from_utf8_lossy(&listing.stdout).split_terminator('\0') {
            let file = root.join(path);
            // Deleted but still in the index, or a link to a directory: nothing to check.
            if file.is_file() {
                let contents =
                    std::fs::read(&file).with_context(|| format!("cannot read {path}"))?;
                tree.contents_by_path.insert(path.to_owned(), contents);
            }
        }
        Ok(tree)
    }

    pub(crate) fn paths(&self) -> impl Iterator<Item = &str> {
        self.contents_by_path.keys().map(String::as_str)
    }

    pub(crate) fn files(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.contents_by_path
            .iter()
            .map(|(path, bytes)| (path.as_str(), bytes.as_slice()))
    }

    pub(crate) fn contains(&self, path: &str) -> bool {
        self.contents_by_path.contains_key(path)
    }

    /// The file's text; bytes that are no UTF-8 are replaced, which no check here minds.
    pub(crate) fn text(&self, path: &str) -> Option<String> {
        self.contents_by_path
            .get(path)
            .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
    }

    /// Puts a file into the tree, in place of one of the same path.
    #[cfg(test)]
    pub(crate) fn insert(&mut self, path: &str, contents: impl Into<Vec<u8>>) {
        self.contents_by_path
            .insert(path.to_owned(), contents.into());
    }

    #[cfg(test)]
    pub(crate) fn remove(&mut self, path: &str) {
        self.contents_by_path
            .remove(path)
            .expect("the file is in the tree");
    }
}
