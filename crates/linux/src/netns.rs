//! Named network namespaces: made, entered and removed.
//!
//! A namespace belongs to threads, so work inside one is done on a thread of its own, or in a
//! child process. Names are those of `ip netns` (bind mounts in `/run/netns`), so that its
//! commands work on ours. What is built inside a namespace is left to others.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;

use crate::threads;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};

const DIRECTORY: &str = "/run/netns";

/// A network namespace that has a name. Clones mean the same one.
#[derive(Clone, Debug)]
pub struct Netns {
    name: String,
    /// Keeps the namespace alive as long as this value.
    file: Arc<File>,
}

/// An operation on a namespace failed.
#[derive(Debug, thiserror::Error)]
#[error("{operation} network namespace `{name}`: {source}")]
pub struct NetnsError {
    /// What was tried.
    pub operation: &'static str,
    /// The namespace it was tried on.
    pub name: String,
    /// What the kernel said.
    pub source: io::Error,
}

impl Netns {
    /// Makes a namespace and gives it `name`.
    ///
    /// # Errors
    /// The name is taken, or privilege (`CAP_SYS_ADMIN`) is missing.
    pub fn create(name: &str) -> Result<Self, NetnsError> {
        let fail = |source| error("cannot create", name, source);
        let path = path_of(name);
        prepare_directory().map_err(fail)?;
        File::create_new(&path).map_err(fail)?;
        let made = on_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET)?;
            let own = Path::new("/proc/thread-self/ns/net");
            mount(
                Some(own),
                &path,
                None::<&str>,
                MsFlags::MS_BIND,
                None::<&str>,
            )?;
            Ok(())
        });
        if let Err(source) = made {
            // Only the empty file is left to remove; that it stays is no further harm.
            let _ = fs::remove_file(&path);
            return Err(fail(source));
        }
        Self::open(name)
    }

    /// The namespace that has `name`.
    ///
    /// # Errors
    /// There is none.
    pub fn open(name: &str) -> Result<Self, NetnsError> {
        let file =
            File::open(path_of(name)).map_err(|source| error("cannot open", name, source))?;
        Ok(Self {
            name: name.to_owned(),
            file: Arc::new(file),
        })
    }

    /// Takes the name away; the namespace ends with its last process, socket or handle.
    ///
    /// # Errors
    /// There is no such name, or privilege is missing.
    pub fn remove(name: &str) -> Result<(), NetnsError> {
        let path = path_of(name);
        let fail = |source| error("cannot remove", name, source);
        match umount2(&path, MntFlags::MNT_DETACH) {
            // EINVAL: a file that nothing is mounted on, left by a creation that was killed.
            Ok(()) | Err(nix::errno::Errno::EINVAL) => {}
            Err(errno) => return Err(fail(errno.into())),
        }
        fs::remove_file(&path).map_err(fail)
    }

    /// The names there are, sorted.
    #[must_use]
    pub fn names() -> Vec<String> {
        let Ok(entries) = fs::read_dir(DIRECTORY) else {
            return Vec::new();
        };
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Moves the calling thread into the namespace, for good.
    ///
    /// # Errors
    /// Privilege is missing.
    pub fn enter(&self) -> Result<(), NetnsError> {
        setns(self.file.as_fd(), CloneFlags::CLONE_NEWNET)
            .map_err(|errno| error("cannot enter", &self.name, errno.into()))
    }

    /// Runs `work` inside the namespace, on a thread of its own, and waits for its result.
    /// Sockets opened there stay in the namespace wherever they are used.
    ///
    /// # Errors
    /// The namespace cannot be entered.
    ///
    /// # Panics
    /// If `work` does.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, NetnsError> {
        on_thread(|| {
            setns(self.file.as_fd(), CloneFlags::CLONE_NEWNET)?;
            Ok(work())
        })
        .map_err(|source| error("cannot enter", &self.name, source))
    }

    /// A command that will run inside the namespace.
    #[must_use]
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let file = Arc::clone(&self.file);
        let enter = move || setns(file.as_fd(), CloneFlags::CLONE_NEWNET).map_err(io::Error::from);
        // SAFETY: the closure makes one system call on a descriptor it keeps open itself; it
        // allocates nothing and takes no lock, as is required between fork and exec.
        unsafe {
            command.pre_exec(enter);
        }
        command
    }

    /// The processes whose main thread lives in the namespace.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub fn processes(&self) -> io::Result<Vec<u32>> {
        let own = self.file.metadata()?;
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc")? {
            let name = entry?.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else {
                continue;
            };
            // A process may end while we look: then it is not there.
            let Ok(other) = fs::metadata(format!("/proc/{pid}/ns/net")) else {
                continue;
            };
            if (other.dev(), other.ino()) == (own.dev(), own.ino()) {
                found.push(pid);
            }
        }
        Ok(found)
    }
}

/// Makes the directory of names a mount point of its own, shared with other mount namespaces. `ip
/// netns add` does so too, if nobody has; were it to do so after us, it would hide our names for
/// good.
fn prepare_directory() -> io::Result<()> {
    fs::create_dir_all(DIRECTORY)?;
    let lock = File::open(DIRECTORY)?;
    // Of two at once, one would be hidden by the other. Unlocked by closing.
    lock.lock()?;
    let share = || {
        let flags = MsFlags::MS_SHARED | MsFlags::MS_REC;
        mount(None::<&str>, DIRECTORY, None::<&str>, flags, None::<&str>)
    };
    match share() {
        // Not a mount point yet.
        Err(nix::errno::Errno::EINVAL) => {
            let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
            mount(
                Some(DIRECTORY),
                DIRECTORY,
                None::<&str>,
                flags,
                None::<&str>,
            )?;
            share()?;
        }
        other => other?,
    }
    Ok(())
}

fn path_of(name: &str) -> PathBuf {
    Path::new(DIRECTORY).join(name)
}

fn error(operation: &'static str, name: &str, source: io::Error) -> NetnsError {
    NetnsError {
        operation,
        name: name.to_owned(),
        source,
    }
}

fn on_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| match threads::begin_within(scope, work)?.join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_made_entered_and_removed() {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("skipped: needs root");
            return;
        }
        let name = format!("tabane-test-{}", std::process::id());
        let netns = Netns::create(&name).unwrap();
        assert!(Netns::names().contains(&name));
        let interfaces = |text: String| text.lines().count() - 2;
        let inside = netns
            .run(|| fs::read_to_string("/proc/thread-self/net/dev").unwrap())
            .unwrap();
        assert_eq!(interfaces(inside), 1, "loopback only");
        let mut child = netns.command("sleep").arg("60").spawn().unwrap();
        assert_eq!(netns.processes().unwrap(), [child.id()]);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(Netns::create(&name).is_err(), "the name is taken");
        Netns::remove(&name).unwrap();
        assert!(!Netns::names().contains(&name));
        assert!(Netns::remove(&name).is_err());
    }
}
