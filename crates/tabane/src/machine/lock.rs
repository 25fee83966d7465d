//! Only one `tabane up` per network namespace, and how `tabane down` finds it.
//!
//! Owns a file that the daemon keeps locked and has its process id in. The kernel drops the lock
//! with its holder, so nothing a crash leaves behind is mistaken for a daemon.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tabane_base::Duration;

const DIRECTORY: &str = "/run/tabane";

/// Held by the daemon.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

/// A daemon that runs in this network namespace.
#[derive(Debug)]
pub(crate) struct Running {
    file: File,
    pub(crate) pid: i32,
}

impl Lock {
    /// Takes the place of the one daemon.
    pub(crate) fn acquire() -> Result<Self> {
        let path = path()?;
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory)
                .with_context(|| format!("cannot make {}", directory.display()))?;
        }
        let mut file = open(&path)?;
        if file.try_lock().is_err() {
            let pid = read_pid(&mut file);
            let pid = pid.map_or_else(String::new, |pid| format!(" (process {pid})"));
            bail!("tabane is up already{pid}; `tabane down` ends it");
        }
        let written = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "{}", std::process::id()));
        written.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { _file: file })
    }
}

impl Running {
    /// The daemon of this network namespace; `None` where there is none.
    pub(crate) fn find() -> Result<Option<Self>> {
        let path = path()?;
        if !path.exists() {
            return Ok(None);
        }
        let mut file = open(&path)?;
        if file.try_lock().is_ok() {
            return Ok(None);
        }
        match read_pid(&mut file) {
            Some(pid) => Ok(Some(Self { file, pid })),
            None => bail!("tabane is just starting; try again in a moment"),
        }
    }

    /// Asks it to end and waits until it has.
    pub(crate) fn end(self, patience: Duration) -> Result<()> {
        let Self { file, pid } = self;
        kill(Pid::from_raw(pid), Signal::SIGTERM)
            .with_context(|| format!("cannot end process {pid}"))?;
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || tell.send(file.lock()));
        match told.recv_timeout(patience) {
            Ok(locked) => locked.context("cannot wait for its end"),
            Err(_) => bail!(
                "process {pid} does not end; `kill -9 {pid}` ends it, and the kernel removes its \
                 hooks with it"
            ),
        }
    }
}

fn open(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true).truncate(false);
    options
        .open(path)
        .with_context(|| format!("cannot open {}", path.display()))
}

fn read_pid(file: &mut File) -> Option<i32> {
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

/// The namespace's number is in the name: every namespace may have a daemon of its own.
fn path() -> Result<PathBuf> {
    let namespace = fs::metadata("/proc/self/ns/net").context("cannot see the namespace")?;
    Ok(PathBuf::from(format!(
        "{DIRECTORY}/up-{}.lock",
        namespace.ino()
    )))
}
