//! A note that says who turns the kernel's switch for subflows, for whoever comes after a kill.
//!
//! Owns a file that the process keeps locked, as `machine/lock.rs` does: the kernel drops the lock
//! with its holder. A process that is killed in the microseconds in which the switch is turned
//! leaves it so; the next one finds the file without its holder, and turns it back. Without such a
//! file the switch is as the administrator has it.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use tabane_linux::mptcp;

const DIRECTORY: &str = "/run/tabane";

/// Taken away when it is dropped.
#[derive(Debug)]
pub(super) struct Note {
    path: PathBuf,
    _file: File,
}

impl Note {
    pub(super) fn leave() -> io::Result<Self> {
        let directory = Path::new(DIRECTORY);
        let mut builder = DirBuilder::new();
        builder.mode(0o700).recursive(true).create(directory)?;
        let path = directory.join(format!("{}{}", prefix()?, std::process::id()));
        let file = File::create(&path)?;
        file.try_lock()?;
        Ok(Self { path, _file: file })
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::debug!(%error, "a note stays, which says nothing");
        }
    }
}

/// Turns the switch back where somebody was killed who may have turned it.
pub(crate) fn clear_leftovers() {
    if let Err(error) = clear() {
        tracing::debug!(%error, "cannot look for notes");
    }
}

fn clear() -> io::Result<()> {
    let prefix = prefix()?;
    let entries = match fs::read_dir(DIRECTORY) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let is_note = entry.file_name().to_string_lossy().starts_with(&prefix);
        if is_note && File::open(entry.path())?.try_lock().is_ok() {
            mptcp::turn_back()?;
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// The namespace's number is in the name: each has a switch of its own.
fn prefix() -> io::Result<String> {
    let namespace = fs::metadata("/proc/self/ns/net")?.ino();
    Ok(format!("mptcp-{namespace}-"))
}
