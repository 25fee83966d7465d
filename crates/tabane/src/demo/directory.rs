//! The demonstration's files: keys and addresses that live as long as it does.
//!
//! A directory of its own per process, named by its id, so that the next demonstration can remove
//! what a killed one left.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;

const PREFIX: &str = "tabane-demo-";

/// Gone, with all that is in it, when dropped.
#[derive(Debug)]
pub(crate) struct Directory(PathBuf);

impl Directory {
    /// A new one below the system's directory for temporary files.
    pub(crate) fn create() -> Result<Self> {
        Self::create_in(&std::env::temp_dir())
    }

    fn create_in(parent: &Path) -> Result<Self> {
        remove_stale(parent);
        let path = parent.join(format!("{PREFIX}{}", std::process::id()));
        let made = DirBuilder::new().mode(0o700).create(&path);
        made.with_context(|| format!("cannot make {} (is TMPDIR right?)", path.display()))?;
        Ok(Self(path))
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            tracing::warn!(%error, "{} stays", self.0.display());
        }
    }
}

fn remove_stale(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        let pid = pid.and_then(|pid| pid.parse().ok()).map(Pid::from_raw);
        if pid.is_some_and(|pid| kill(pid, None) == Err(Errno::ESRCH)) {
            // Another user's stays, which is right.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tabane_store::Scratch;

    #[test]
    fn what_a_dead_process_left_is_removed_and_nothing_else() {
        let scratch = Scratch::make();
        let mut dead = std::process::Command::new("true").spawn().unwrap();
        dead.wait().unwrap();
        let named = |tail: &str| scratch.path().join(format!("{PREFIX}{tail}"));
        for tail in [&dead.id().to_string(), "1", "other"] {
            fs::create_dir(named(tail)).unwrap();
        }
        let directory = Directory::create_in(scratch.path()).unwrap();
        fs::write(directory.path().join("key"), "secret").unwrap();
        assert!(!named(&dead.id().to_string()).exists());
        assert!(named("1").exists() && named("other").exists());
        let path = directory.path().to_owned();
        drop(directory);
        assert!(!path.exists());
    }
}
