//! Only one `tabane up` per network namespace, and how `tabane down` finds it.
//!
//! Owns a file that the daemon keeps locked and has its process id in. The kernel drops the lock
//! with its holder, so nothing a crash leaves behind is mistaken for a daemon. Nobody else can open
//! the file, not even to read: who can, can lock it.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc;

use anyhow::{Context, Result, bail};
use tabane_base::Duration;
use tabane_linux::process::Process;
use tabane_linux::threads;

const DIRECTORY: &str = "/run/tabane";

/// Held by the daemon.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

/// A daemon that runs in this network namespace.
#[derive(Debug)]
pub struct Running {
    file: File,
    /// The process.
    pub pid: i32,
}

impl Lock {
    /// Takes the place of the one daemon.
    pub fn acquire() -> Result<Self> {
        Self::acquire_at(&path()?)
    }

    fn acquire_at(path: &Path) -> Result<Self> {
        if let Some(directory) = path.parent() {
            let made = DirBuilder::new()
                .mode(0o700)
                .recursive(true)
                .create(directory);
            made.with_context(|| {
                let path = directory.display();
                format!("cannot make {path} (`mount -t tmpfs tmpfs /run` gives it a place)")
            })?;
        }
        let mut file = open(path)?;
        // Older versions left it to the umask.
        let private = file.set_permissions(Permissions::from_mode(0o600));
        private.with_context(|| format!("cannot keep others from {}", path.display()))?;
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
    pub fn find() -> Result<Option<Self>> {
        Self::find_at(&path()?)
    }

    fn find_at(path: &Path) -> Result<Option<Self>> {
        if !path.exists() {
            return Ok(None);
        }
        let mut file = open(path)?;
        if file.try_lock().is_ok() {
            return Ok(None);
        }
        match read_pid(&mut file) {
            Some(pid) => Ok(Some(Self { file, pid })),
            None => bail!("tabane is just starting; try again in a moment"),
        }
    }

    /// Asks it to end and waits until it has.
    pub fn end(self, patience: Duration) -> Result<()> {
        let Self { file, pid } = self;
        let process = Process::open(pid);
        let process = process.with_context(|| format!("there is no process {pid}"))?;
        let program = process.program();
        let program = program.with_context(|| format!("cannot see what process {pid} is"))?;
        let own = std::env::current_exe().context("cannot see what this process is")?;
        if own.file_name() != Some(&program) {
            bail!(
                "process {pid} is {} and no tabane: the lock is held by somebody else (`fuser` \
                 tells)",
                program.display()
            );
        }
        let told = process.terminate();
        told.with_context(|| format!("cannot end process {pid}"))?;
        let (tell, told) = mpsc::channel();
        threads::begin("lock", move || tell.send(file.lock()))?;
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
        .mode(0o600)
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
    let namespace = fs::metadata("/proc/self/ns/net")
        .context("cannot see the network namespace (`mount -t proc proc /proc`)")?;
    Ok(PathBuf::from(format!(
        "{DIRECTORY}/up-{}.lock",
        namespace.ino()
    )))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// A directory of the test's own, which is not there yet.
    fn scratch(name: &str) -> PathBuf {
        let name = format!("tabane-lock-{}-{name}", std::process::id());
        std::env::temp_dir().join(name)
    }

    #[test]
    fn nobody_else_can_open_the_lock() {
        let directory = scratch("modes");
        let path = directory.join("up-1.lock");
        let _lock = Lock::acquire_at(&path).unwrap();
        for made in [&directory, &path] {
            let mode = fs::metadata(made).unwrap().mode();
            assert_eq!(mode & 0o077, 0, "{}", made.display());
        }
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_process_that_is_no_tabane_is_not_ended() {
        let directory = scratch("pid");
        let path = directory.join("up-1.lock");
        fs::create_dir(&directory).unwrap();
        // It has got the number of a daemon that has gone, whose lock somebody took.
        let mut other = Command::new("sleep").arg("600").spawn().unwrap();
        fs::write(&path, format!("{}\n", other.id())).unwrap();
        let holder = File::open(&path).unwrap();
        holder.lock().unwrap();
        let running = Running::find_at(&path).unwrap().unwrap();
        let told = running.end(Duration::from_secs(5)).unwrap_err().to_string();
        assert!(other.try_wait().unwrap().is_none(), "{told}");
        other.kill().unwrap();
        other.wait().unwrap();
        fs::remove_dir_all(directory).unwrap();
        assert!(told.contains("is sleep and no tabane"), "{told}");
    }
}
