//! Where instances are found: one directory per user, one socket per instance.
//!
//! Owns the choice of the directory, its privacy, and the replacement of sockets whose process is
//! gone. Making and replacing happens under a lock on the directory, so two starting instances
//! never take each other's socket.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use thiserror::Error;

use crate::peer;

/// Names a directory other than the usual one, for tests and for several tabanes beside each other.
const VARIABLE: &str = "TABANE_RUNTIME";

/// Where the relay that runs as a service under a name of its own has its socket
/// (`tabane service`); root sees it with its own.
pub const RELAY_SERVICE: &str = "/run/tabane-relay";

/// Of a socket's file name, after the instance's.
const SUFFIX: &str = ".sock";

/// The longest name of an instance: the path of a socket may have 107 bytes (unix(7)).
const MAX_NAME: usize = 40;

/// The directory of one user's instances.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directory {
    path: PathBuf,
    /// Nothing but ours is expected there, so it may be made private.
    is_usual: bool,
}

/// An instance that answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    /// Its name.
    pub name: String,
    /// Its socket.
    pub socket: PathBuf,
}

/// What to do when another instance has the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// It is an error.
    Exclusive,
    /// The process id is put behind it.
    WithPid,
}

/// Why there is no directory for sockets, or no socket in it.
#[derive(Debug, Error)]
pub enum DirectoryError {
    /// It is not ours alone.
    #[error(
        "{path} belongs to somebody else or is no directory: remove it, or name another one in \
         {VARIABLE}"
    )]
    Foreign {
        /// The directory.
        path: PathBuf,
    },
    /// Others may enter it, and what else is in it is not ours.
    #[error(
        "{path} is not private: `chmod 700 {path}` if it is tabane's alone, or name another one in \
         {VARIABLE}"
    )]
    Open {
        /// The directory.
        path: PathBuf,
    },
    /// The system refused.
    #[error("cannot use {path}: {source}; {VARIABLE} names another directory")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// There is an instance of this name.
    #[error("{name} is running already: `tabane status --instance {name}` shows it")]
    Running {
        /// The name.
        name: String,
    },
    /// No name for a file.
    #[error("{name:?} is no name for an instance: letters, digits, -, _ and ., at most {MAX_NAME}")]
    Name {
        /// The name.
        name: String,
    },
}

/// Why no instance was found.
#[derive(Debug, Error)]
pub enum FindError {
    /// There is none at all.
    #[error("no tabane is running here{hint}")]
    None {
        /// What to look at.
        hint: &'static str,
    },
    /// None of this name.
    #[error("no instance {name} is running{}", listed(names))]
    Unknown {
        /// What was asked for.
        name: String,
        /// What there is.
        names: Vec<String>,
    },
    /// It is not clear which one is meant.
    #[error("several instances are running: choose one with --instance ({})", names.join(", "))]
    Several {
        /// What there is.
        names: Vec<String>,
    },
}

fn listed(names: &[String]) -> String {
    match names {
        [] => String::new(),
        names => format!(" (there is: {})", names.join(", ")),
    }
}

impl Directory {
    /// The directory of this process's user: `/run/tabane` for root, else below
    /// `$XDG_RUNTIME_DIR`, else in `/tmp`.
    #[must_use]
    pub fn of_user() -> Self {
        if let Some(path) = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) {
            return Self::at(path);
        }
        let user = nix::unistd::geteuid();
        let base = std::env::var_os("XDG_RUNTIME_DIR").filter(|path| Path::new(path).is_absolute());
        let path = match base {
            _ if user.is_root() => "/run/tabane".into(),
            Some(base) => Path::new(&base).join("tabane"),
            None => format!("/tmp/tabane-{user}").into(),
        };
        Self {
            path,
            is_usual: true,
        }
    }

    /// A directory of the caller's choice.
    #[must_use]
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            is_usual: false,
        }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The instances that answer, by name; none where the directory is another user's. Root's are
    /// those of the relay's service, too.
    #[must_use]
    pub fn running(&self) -> Vec<Running> {
        let meta = fs::symlink_metadata(&self.path);
        let is_ours = meta.is_ok_and(|it| it.is_dir() && peer::is_same_or_root(it.uid()));
        let mut running = match is_ours {
            true => answering(&self.path),
            false => Vec::new(),
        };
        if self.is_usual && nix::unistd::geteuid().is_root() {
            // Taken over by strangers it must not pass for another instance.
            let relays = answering(Path::new(RELAY_SERVICE)).into_iter();
            running.extend(relays.filter(|it| it.name.starts_with("relay-")));
        }
        running.sort_by(|a, b| a.name.cmp(&b.name));
        running
    }

    /// The instance `wanted`, by name or by the path of its socket; without one `up`, else the
    /// only one.
    ///
    /// # Errors
    /// See [`FindError`].
    pub fn find(&self, wanted: Option<&str>) -> Result<Running, FindError> {
        if let Some(path) = wanted.filter(|name| name.contains('/')) {
            return Ok(Running {
                name: path.to_owned(),
                socket: path.into(),
            });
        }
        let mut running = self.running();
        let names = |running: &[Running]| running.iter().map(|it| it.name.clone()).collect();
        if let Some(name) = wanted.or(Some("up"))
            && let Some(at) = running.iter().position(|it| it.name == name)
        {
            return Ok(running.swap_remove(at));
        }
        match (wanted, running.pop()) {
            (Some(name), last) => {
                running.extend(last);
                Err(FindError::Unknown {
                    name: name.to_owned(),
                    names: names(&running),
                })
            }
            (None, None) => Err(FindError::None { hint: hint() }),
            (None, Some(only)) if running.is_empty() => Ok(only),
            (None, Some(last)) => {
                running.push(last);
                Err(FindError::Several {
                    names: names(&running),
                })
            }
        }
    }

    /// Makes the socket of an instance; with its name, which [`Naming`] may have changed.
    pub(crate) fn bind(
        &self,
        name: &str,
        naming: Naming,
    ) -> Result<(UnixListener, Running), DirectoryError> {
        check(name)?;
        let _lock = self.prepare()?;
        self.sweep();
        let mut name = name.to_owned();
        if is_alive(&self.socket(&name)) {
            match naming {
                Naming::Exclusive => return Err(DirectoryError::Running { name }),
                Naming::WithPid => name = format!("{name}-{}", std::process::id()),
            }
        }
        let socket = self.socket(&name);
        let listener = UnixListener::bind(&socket).map_err(io_error(&socket))?;
        // The directory is private; this is for those who copy the socket's path around.
        fs::set_permissions(&socket, Permissions::from_mode(0o600)).map_err(io_error(&socket))?;
        Ok((listener, Running { name, socket }))
    }

    /// Where an instance keeps what opens its HTTP door.
    pub(crate) fn token_file(&self, name: &str) -> PathBuf {
        self.path.join(format!("{name}.token"))
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.path.join(format!("{name}{SUFFIX}"))
    }

    /// Makes the directory where it is missing, and locks it.
    fn prepare(&self) -> Result<File, DirectoryError> {
        let path = &self.path;
        let made = DirBuilder::new().mode(0o700).recursive(true).create(path);
        made.map_err(io_error(path))?;
        // Not through a link, which might be anybody's.
        let meta = fs::symlink_metadata(path).map_err(io_error(path))?;
        if !meta.is_dir() || meta.uid() != nix::unistd::geteuid().as_raw() {
            return Err(DirectoryError::Foreign { path: path.clone() });
        }
        if meta.mode() & 0o077 != 0 {
            if !self.is_usual {
                return Err(DirectoryError::Open { path: path.clone() });
            }
            fs::set_permissions(path, Permissions::from_mode(0o700)).map_err(io_error(path))?;
        }
        let lock = File::open(path).map_err(io_error(path))?;
        flock(&lock, FlockOperation::LockExclusive)
            .map_err(|error| io_error(path)(error.into()))?;
        Ok(lock)
    }

    /// Removes what dead instances left.
    fn sweep(&self) {
        let Ok(entries) = fs::read_dir(&self.path) else {
            return;
        };
        for entry in entries.flatten() {
            let path = entry.path();
            let is_socket = path.to_str().is_some_and(|name| name.ends_with(SUFFIX));
            if is_socket && !is_alive(&path) {
                let _ = fs::remove_file(&path);
                let _ = fs::remove_file(path.with_extension("token"));
            }
        }
    }
}

/// The instances with a socket in a directory, but for those that have gone.
fn answering(directory: &Path) -> Vec<Running> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    let of = |socket: PathBuf| {
        let name = socket
            .file_name()?
            .to_str()?
            .strip_suffix(SUFFIX)?
            .to_owned();
        is_alive(&socket).then_some(Running { name, socket })
    };
    entries.filter_map(|entry| of(entry.ok()?.path())).collect()
}

/// Whether somebody listens. A full queue is somebody, too, and is not waited for: whoever takes no
/// connection would have us wait for ever.
fn is_alive(socket: &Path) -> bool {
    let knock = || {
        let at = SocketAddrUnix::new(socket)?;
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let own = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&own, &at)
    };
    !matches!(knock(), Err(Errno::CONNREFUSED | Errno::NOENT))
}

fn check(name: &str) -> Result<(), DirectoryError> {
    let is_good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(is_good) {
        let name = name.to_owned();
        return Err(DirectoryError::Name { name });
    }
    Ok(())
}

fn hint() -> &'static str {
    if nix::unistd::geteuid().is_root() {
        ": start `tabane run`, `tabane proxy` or `tabane relay` first"
    } else if Path::new("/run/tabane").is_dir() {
        " that you may see: root's are shown by `sudo tabane …`"
    } else {
        ": start `tabane run`, `tabane proxy` or `tabane relay` first (root's are shown to root)"
    }
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> DirectoryError + '_ {
    move |source| DirectoryError::Io {
        path: path.to_owned(),
        source,
    }
}

/// A new file that is never readable for others, not even for a moment; what was there is gone, and
/// where it cannot be written, so is the file.
///
/// # Errors
/// As the file system has them.
pub fn write_private(path: &Path, text: &str) -> io::Result<()> {
    // Of an instance that was killed, and whose number this process has.
    let _ = fs::remove_file(path);
    let mut options = OpenOptions::new();
    let options = options.write(true).create_new(true).mode(0o600);
    let written = options.open(path)?.write_all(text.as_bytes());
    written.inspect_err(|_| drop(fs::remove_file(path)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    struct Scratch(Directory);

    impl Scratch {
        fn new() -> Self {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!("tabane-control-{}-{number}", std::process::id());
            Self(Directory::at(std::env::temp_dir().join(name)))
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(self.0.path());
        }
    }

    #[test]
    fn a_dead_instance_s_socket_is_replaced_and_a_living_one_s_is_not() {
        let scratch = Scratch::new();
        let directory = &scratch.0;
        let (listener, first) = directory.bind("up", Naming::Exclusive).unwrap();
        assert!(matches!(
            directory.bind("up", Naming::Exclusive),
            Err(DirectoryError::Running { .. })
        ));
        let (_other, second) = directory.bind("up", Naming::WithPid).unwrap();
        assert_eq!(second.name, format!("up-{}", std::process::id()));
        assert_eq!(directory.running(), [first.clone(), second.clone()]);
        drop(listener);
        assert!(first.socket.exists());
        assert_eq!(directory.running(), [second]);
        let (_listener, again) = directory.bind("up", Naming::Exclusive).unwrap();
        assert_eq!(again, first);
    }

    #[test]
    fn what_dead_instances_left_is_swept() {
        let scratch = Scratch::new();
        let directory = &scratch.0;
        let (listener, dead) = directory.bind("run-1", Naming::Exclusive).unwrap();
        fs::write(directory.token_file("run-1"), "x").unwrap();
        drop(listener);
        let _ours = directory.bind("run-2", Naming::Exclusive).unwrap();
        assert!(!dead.socket.exists() && !directory.token_file("run-1").exists());
    }

    /// Anybody whose directory is looked into, the relay's service's too, may have such a socket.
    #[test]
    fn who_takes_no_connection_is_not_waited_for() {
        let scratch = Scratch::new();
        let directory = scratch.0.clone();
        let (_listener, ours) = directory.bind("run-1", Naming::Exclusive).unwrap();
        let socket = directory.socket("relay-1");
        let stuck = UnixListener::bind(&socket).unwrap();
        rustix::net::listen(&stuck, 0).unwrap();
        let _waits = UnixStream::connect(&socket).unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || tell.send(directory.running()));
        let running = told.recv_timeout(std::time::Duration::from_secs(5));
        let running = running.expect("it waits until the connection is taken");
        assert_eq!(running[0].name, "relay-1");
        assert_eq!(running[1..], [ours]);
    }

    #[test]
    fn the_default_is_up_then_the_only_one_and_several_are_listed() {
        let scratch = Scratch::new();
        let directory = &scratch.0;
        assert!(matches!(directory.find(None), Err(FindError::None { .. })));
        let _a = directory.bind("run-1", Naming::Exclusive).unwrap();
        assert_eq!(directory.find(None).unwrap().name, "run-1");
        let _b = directory.bind("run-2", Naming::Exclusive).unwrap();
        let several = directory.find(None).unwrap_err().to_string();
        assert!(several.contains("run-1, run-2"), "{several}");
        let unknown = directory.find(Some("x")).unwrap_err().to_string();
        assert!(unknown.contains("run-1, run-2"), "{unknown}");
        assert_eq!(directory.find(Some("run-2")).unwrap().name, "run-2");
        let _c = directory.bind("up", Naming::Exclusive).unwrap();
        assert_eq!(directory.find(None).unwrap().name, "up");
    }

    #[test]
    fn it_is_private_and_never_somebody_else_s() {
        let scratch = Scratch::new();
        let path = scratch.0.path();
        fs::create_dir(path).unwrap();
        fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
        // A link of somebody's, say, or /tmp: what else is there is not ours to change.
        let refused = scratch.0.bind("up", Naming::Exclusive);
        assert!(matches!(refused, Err(DirectoryError::Open { .. })));
        assert_eq!(fs::metadata(path).unwrap().mode() & 0o777, 0o755);
        fs::remove_dir(path).unwrap();
        let (_listener, running) = scratch.0.bind("up", Naming::Exclusive).unwrap();
        assert_eq!(fs::metadata(path).unwrap().mode() & 0o777, 0o700);
        assert_eq!(fs::metadata(running.socket).unwrap().mode() & 0o777, 0o600);

        let link = Directory::at(path.with_extension("link"));
        std::os::unix::fs::symlink(path, link.path()).unwrap();
        let refused = link.bind("up", Naming::Exclusive);
        fs::remove_file(link.path()).unwrap();
        assert!(matches!(refused, Err(DirectoryError::Foreign { .. })));
        let bad = scratch.0.bind("../up", Naming::Exclusive);
        assert!(matches!(bad, Err(DirectoryError::Name { .. })));
    }
}
