//! The policy file, as control clients read and replace it.

use std::io;
use std::path::{Path, PathBuf};

use tabane_control::{PolicyFile, PolicyRefusal};
use tabane_policy::Policy;

use crate::atomic_file;
use crate::link_policy::POLICY_FILE;
use crate::store::Store;

/// The policy file beside the other settings.
#[derive(Debug, Clone)]
pub(crate) struct PolicyTextFile {
    path: PathBuf,
}

impl PolicyTextFile {
    pub(crate) fn of(store: &Store) -> Self {
        Self {
            path: store.root().join(POLICY_FILE),
        }
    }
}

impl PolicyFile for PolicyTextFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn read(&self) -> io::Result<String> {
        match std::fs::read_to_string(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
            read => read,
        }
    }

    fn replace(&self, text: &str) -> Result<(), PolicyRefusal> {
        Policy::parse(text).map_err(|error| PolicyRefusal::Unsound(error.to_string()))?;
        atomic_file::replace(&self.path, text.as_bytes(), atomic_file::PUBLIC)
            .map_err(|error| PolicyRefusal::NotWritten(format!("{error:#}")))
    }
}
