//! Control groups (version 2) that commands run in, so that socket hooks see them and only them.
//!
//! Owns finding the hierarchy wherever it is mounted, one group per run (`tabane/run-<pid>-<n>` in
//! the group that it was started in), placing processes in it, and leaving nothing behind. A group
//! is held by a lock on its directory, which the kernel drops with its holder; groups without a
//! holder are stale, whatever became of the process that made them. Processes are never killed
//! unless asked.

mod error;
mod mount;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use tabane_base::Duration;

pub use error::CgroupError;

/// The directory of ours in a group.
const PARENT: &str = "tabane";

/// How long killed processes may take to be gone. Only one stuck in the kernel takes longer.
const KILL_PATIENCE: Duration = Duration::from_secs(5);

/// How often to move leftovers out before giving up; more is needed only while they fork.
const MAX_RELEASE_ROUNDS: usize = 100;

/// How many names to try for a group; more than one is needed only where processes start and end
/// at the same moment.
const MAX_MAKE_ATTEMPTS: usize = 100;

/// What becomes of processes still in a group that goes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leftovers {
    /// They go back to the group that we are in ourselves, and run on without hooks.
    Release,
    /// They are killed.
    Kill,
}

/// A control group. One made by [`Cgroup::create`] is removed when dropped, its processes
/// released.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
    /// The directory, locked where the group is ours.
    dir: OwnedFd,
    /// The mount point of the hierarchy.
    mount: PathBuf,
    owned: bool,
}

impl Cgroup {
    /// Makes an empty group for one run, and clears away stale ones.
    ///
    /// # Errors
    /// See [`CgroupError`].
    pub fn create() -> Result<Self, CgroupError> {
        let mount = mount::find()?;
        let parent = mount::around_runs(&mount::own_group(&mount)).join(PARENT);
        if let Err(error) = clean_stale_in(&parent) {
            tracing::warn!(%error, "stale control groups stay");
        }
        let (path, dir) = make_and_lock(&parent)?;
        Ok(Self {
            path,
            dir,
            mount,
            owned: true,
        })
    }

    /// A group that somebody else made, by its directory. Not ours: never removed.
    ///
    /// # Errors
    /// [`CgroupError::Open`].
    pub fn open(path: &Path) -> Result<Self, CgroupError> {
        let mount = mount::find()?;
        let dir = open_dir(path).map_err(|source| CgroupError::Open {
            path: path.into(),
            source,
        })?;
        Ok(Self {
            path: path.into(),
            dir,
            mount,
            owned: false,
        })
    }

    /// The group that every process of this hierarchy is in. Not ours: never removed.
    ///
    /// # Errors
    /// See [`CgroupError`].
    pub fn root() -> Result<Self, CgroupError> {
        Self::open(&mount::find()?)
    }

    /// Moves a process into the group, with all its threads. Its open sockets stay where they
    /// were made.
    ///
    /// # Errors
    /// [`CgroupError::Place`].
    pub fn place(&self, pid: u32) -> Result<(), CgroupError> {
        place(&self.path, pid).map_err(|source| CgroupError::Place {
            pid,
            path: self.path.clone(),
            source,
        })
    }

    /// Has the child that `command` will start enter the group before it runs the program.
    ///
    /// # Errors
    /// [`CgroupError::Open`] where the group cannot be opened for that; spawning reports what
    /// fails in the child.
    pub fn place_child(&self, command: &mut Command) -> Result<(), CgroupError> {
        let path = self.path.join("cgroup.procs");
        let procs = OpenOptions::new()
            .write(true)
            .open(&path)
            .map_err(|source| CgroupError::Open { path, source })?;
        // SAFETY: runs between fork and exec; it calls write(2) only, which is async-signal-safe,
        // and allocates nothing.
        unsafe {
            command.pre_exec(move || Ok(rustix::io::write(&procs, b"0").map(drop)?));
        }
        Ok(())
    }

    /// The processes in the group.
    ///
    /// # Errors
    /// [`CgroupError::Open`] where the group cannot be read.
    pub fn processes(&self) -> Result<Vec<u32>, CgroupError> {
        processes(&self.path)
    }

    /// Removes the group.
    ///
    /// # Errors
    /// [`CgroupError::Remove`] where a process cannot be moved or will not die.
    pub fn remove(mut self, leftovers: Leftovers) -> Result<(), CgroupError> {
        self.empty_and_remove(leftovers)
    }

    fn empty_and_remove(&mut self, leftovers: Leftovers) -> Result<(), CgroupError> {
        if !self.owned {
            return Ok(());
        }
        self.owned = false;
        match leftovers {
            Leftovers::Release => self.release()?,
            Leftovers::Kill => self.kill()?,
        }
        fs::remove_dir(&self.path).map_err(|source| CgroupError::Remove {
            path: self.path.clone(),
            source,
        })?;
        if let Some(parent) = self.path.parent() {
            // Refused while other runs are in it, which is as well.
            let _ = fs::remove_dir(parent);
        }
        Ok(())
    }

    fn release(&self) -> Result<(), CgroupError> {
        let home = mount::own_group(&self.mount);
        for _ in 0..MAX_RELEASE_ROUNDS {
            let processes = self.processes()?;
            if processes.is_empty() {
                return Ok(());
            }
            for pid in processes {
                match place(&home, pid) {
                    Err(error) if error.raw_os_error() != Some(libc::ESRCH) => {
                        return Err(CgroupError::Place {
                            pid,
                            path: home,
                            source: error,
                        });
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn kill(&self) -> Result<(), CgroupError> {
        let whole = self.path.join("cgroup.kill");
        let at_once = OpenOptions::new()
            .write(true)
            .open(whole)
            .and_then(|mut file| file.write_all(b"1"));
        if at_once.is_err() {
            // Before Linux 5.14: one by one.
            for pid in self.processes()? {
                let Ok(pid) = i32::try_from(pid) else {
                    continue;
                };
                if let Some(pid) = rustix::process::Pid::from_raw(pid) {
                    // Gone already is as good.
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                }
            }
        }
        self.wait_until_empty(KILL_PATIENCE)
    }

    /// Blocks until no process is left, at most for `patience`.
    ///
    /// # Errors
    /// [`CgroupError::Remove`] with `TimedOut`.
    fn wait_until_empty(&self, patience: Duration) -> Result<(), CgroupError> {
        let failed = |source| CgroupError::Remove {
            path: self.path.clone(),
            source,
        };
        let events = self.path.join("cgroup.events");
        let deadline = std::time::Instant::now() + patience;
        let file = File::open(&events).map_err(failed)?;
        loop {
            // Reading through the watched descriptor is what re-arms it.
            let mut text = [0; 256];
            let length = rustix::io::pread(&file, &mut text, 0).map_err(|e| failed(e.into()))?;
            if String::from_utf8_lossy(&text[..length]).contains("populated 0") {
                return Ok(());
            }
            let left = deadline.saturating_duration_since(std::time::Instant::now());
            if left.is_zero() {
                return Err(failed(io::ErrorKind::TimedOut.into()));
            }
            let timeout = Timespec::try_from(left).expect("a few seconds fit");
            let mut watched = [PollFd::new(&file, PollFlags::PRI)];
            match poll(&mut watched, Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(failed(error.into())),
            }
        }
    }

    /// Where the group is in the file system.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl AsFd for Cgroup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        if let Err(error) = self.empty_and_remove(Leftovers::Release) {
            tracing::warn!(%error, "a control group stays; the next start clears it away");
        }
    }
}

fn clean_stale_in(parent: &Path) -> Result<usize, CgroupError> {
    let failed = |source| CgroupError::Open {
        path: parent.to_owned(),
        source,
    };
    let entries = match fs::read_dir(parent) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        entries => entries.map_err(failed)?,
    };
    let mut removed = 0;
    for entry in entries {
        let entry = entry.map_err(failed)?;
        if !entry.file_name().to_string_lossy().starts_with("run-") {
            continue;
        }
        let path = entry.path();
        // Held until after the removal, so that a starting process does not see it half gone.
        if let Ok(Some(_held)) = lock(&path) {
            match fs::remove_dir(&path) {
                Ok(()) => removed += 1,
                Err(error) => tracing::debug!(%error, path = %path.display(), "still in use"),
            }
        }
    }
    Ok(removed)
}

/// Makes a directory that was not there and locks it. Others may be removing `parent`, or take the
/// new group for stale before it is locked; then the next number is tried.
fn make_and_lock(parent: &Path) -> Result<(PathBuf, OwnedFd), CgroupError> {
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    for _ in 0..MAX_MAKE_ATTEMPTS {
        match fs::create_dir(parent) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(CgroupError::create(parent, error));
            }
            _ => {}
        }
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("run-{}-{number}", std::process::id()));
        let made = fs::create_dir(&path).and_then(|()| lock(&path));
        match made {
            Ok(Some(dir)) if path.is_dir() => return Ok((path, dir)),
            Ok(_) => {}
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::AlreadyExists | io::ErrorKind::NotFound
                ) => {}
            Err(error) => return Err(CgroupError::create(&path, error)),
        }
    }
    Err(CgroupError::create(
        parent,
        io::ErrorKind::ResourceBusy.into(),
    ))
}

fn open_dir(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(open(path, flags, Mode::empty())?)
}

/// Opens and locks the directory; `None` where somebody else holds it.
fn lock(path: &Path) -> io::Result<Option<OwnedFd>> {
    let dir = open_dir(path)?;
    match flock(&dir, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(dir)),
        Err(rustix::io::Errno::AGAIN) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn place(group: &Path, pid: u32) -> io::Result<()> {
    let procs = group.join("cgroup.procs");
    OpenOptions::new()
        .write(true)
        .open(procs)?
        .write_all(pid.to_string().as_bytes())
}

fn processes(group: &Path) -> Result<Vec<u32>, CgroupError> {
    let path = group.join("cgroup.procs");
    match fs::read_to_string(&path) {
        Ok(text) => Ok(text.lines().filter_map(|line| line.parse().ok()).collect()),
        Err(source) => Err(CgroupError::Open { path, source }),
    }
}

#[cfg(test)]
mod tests;
