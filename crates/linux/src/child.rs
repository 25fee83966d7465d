//! What a command that we start for the user needs between `fork` and `exec`.
//!
//! Owns dropping privileges to another user, and the signal that tells the command when we are
//! gone; what else it inherits is [`inherited`]'s. Which group it runs in is
//! [`Cgroup`](crate::cgroup::Cgroup)'s affair, which must be asked first: entering a group takes
//! the privileges that are dropped here.

use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::ptr;

use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::unistd::{Gid, Pid, Uid, User, getgrouplist, getpid, getppid, setgid, setgroups, setuid};

use crate::inherited;

/// A user that a command can run as.
#[derive(Clone, Debug)]
pub struct Account {
    /// The name asked for.
    pub name: String,
    /// For `HOME`.
    pub home: PathBuf,
    /// For `SHELL`.
    pub shell: PathBuf,
    uid: Uid,
    gid: Gid,
    groups: Vec<Gid>,
}

/// The user cannot be run as.
#[derive(Debug, thiserror::Error)]
pub enum AccountError {
    /// No such user.
    #[error("there is no user '{name}'")]
    Unknown {
        /// The name asked for.
        name: String,
    },
    /// The user database could not be read.
    #[error("cannot look up the user '{name}': {source}")]
    Lookup {
        /// The name asked for.
        name: String,
        /// What the system said.
        source: io::Error,
    },
}

impl Account {
    /// The user called `name`, with the groups the system gives it.
    ///
    /// # Errors
    /// See [`AccountError`].
    pub fn find(name: &str) -> Result<Self, AccountError> {
        let failed = |errno: Errno| AccountError::Lookup {
            name: name.to_owned(),
            source: errno.into(),
        };
        let user = User::from_name(name)
            .map_err(failed)?
            .ok_or_else(|| AccountError::Unknown {
                name: name.to_owned(),
            })?;
        let c_name = CString::new(name).map_err(|_| failed(Errno::EINVAL))?;
        let groups = getgrouplist(&c_name, user.gid).map_err(failed)?;
        Ok(Self {
            name: name.to_owned(),
            home: user.dir,
            shell: user.shell,
            uid: user.uid,
            gid: user.gid,
            groups,
        })
    }
}

/// Has the child that `command` will start get `farewell` (SIGTERM, where that is ignored) when the
/// calling thread ends, run with signals, standard descriptors and scheduling as this process was
/// given them, and run as `account` where one is given.
pub fn prepare(command: &mut Command, farewell: Signal, account: Option<Account>) {
    let parent = getpid();
    // SAFETY: runs between fork and exec; every step is a system call without allocation or lock
    // (the groups were looked up before; a forked child has one thread, so glibc's setxid
    // broadcast finds nobody).
    unsafe {
        command.pre_exec(move || Ok(settle(parent, farewell, account.as_ref())?));
    }
}

fn settle(parent: Pid, farewell: Signal, account: Option<&Account>) -> nix::Result<()> {
    if let Some(account) = account {
        setgroups(&account.groups)?;
        setgid(account.gid)?;
        setuid(account.uid)?;
    }
    // After setuid, which clears it (prctl(2)).
    prctl::set_pdeathsig(audible(farewell)?)?;
    // The parent may have ended before it was set.
    if getppid() != parent {
        return Err(Errno::ESRCH);
    }
    inherited::restore()
}

/// Has this process become `command`, with signals, standard descriptors and scheduling as it was
/// given them. Returns where that cannot be started: why.
pub fn replace_this_process(command: &mut Command) -> io::Error {
    // SAFETY: system calls alone, and no other process has a part in it.
    unsafe {
        command.pre_exec(|| Ok(inherited::restore()?));
    }
    command.exec()
}

/// Ends this process by `signal`, whatever it is for us, so that who waits for it sees that: a
/// shell whose command dies of Ctrl-C stops its script, and takes any status for the command's
/// answer to it. Leaves no core. Returns where the signal ends nobody, as with the first process
/// of a container.
pub fn end_by(signal: i32) {
    // Who died of it first has left one.
    let _ = prctl::set_dumpable(false);
    let mut alone = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: no handler of ours runs, and `alone` is made before it is used. What is no signal is
    // refused by each.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::sigemptyset(alone.as_mut_ptr());
        libc::sigaddset(alone.as_mut_ptr(), signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, alone.as_ptr(), ptr::null_mut());
        libc::raise(signal);
    }
}

/// `signal`, or SIGTERM where that is ignored, as nohup(1) has it with SIGHUP: what is ignored
/// stays so over execve(2), and the command would live on without its links.
fn audible(signal: Signal) -> nix::Result<Signal> {
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: neither disposition runs code of ours; what a handler was, execve(2) resets anyway.
    let before = unsafe { sigaction(signal, &default)? };
    if !matches!(before.handler(), SigHandler::SigIgn) {
        return Ok(signal);
    }
    // SAFETY: as above.
    unsafe { sigaction(signal, &before)? };
    Ok(Signal::SIGTERM)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn blocked_signals_reach_the_child() {
        let mut set = SigSet::empty();
        set.add(Signal::SIGTERM);
        set.thread_block().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "kill -TERM $$; exit 7"]);
        prepare(&mut command, Signal::SIGHUP, None);
        let status = command.status().unwrap();
        set.thread_unblock().unwrap();
        assert_eq!(status.signal(), Some(Signal::SIGTERM as i32));
    }

    /// A child that outlives the thread that starts it, with this disposition of a hangup.
    fn abandoned(hangup: SigHandler) -> std::process::ExitStatus {
        let started = std::thread::spawn(move || {
            let mut command = Command::new("sleep");
            command.arg("60");
            let action = SigAction::new(hangup, SaFlags::empty(), SigSet::empty());
            // SAFETY: a system call between fork and exec, which runs no code of ours.
            unsafe {
                command.pre_exec(move || {
                    sigaction(Signal::SIGHUP, &action)?;
                    Ok(())
                });
            }
            prepare(&mut command, Signal::SIGHUP, None);
            command.spawn().unwrap()
        });
        started.join().unwrap().wait().unwrap()
    }

    #[test]
    fn the_child_hears_when_the_thread_that_started_it_ends() {
        let status = abandoned(SigHandler::SigDfl);
        assert_eq!(status.signal(), Some(Signal::SIGHUP as i32));
    }

    #[test]
    fn a_child_that_ignores_the_farewell_is_terminated() {
        let status = abandoned(SigHandler::SigIgn);
        assert_eq!(status.signal(), Some(Signal::SIGTERM as i32));
    }

    #[test]
    fn another_user_has_neither_our_rights_nor_our_groups() {
        if !nix::unistd::geteuid().is_root() {
            println!("skipped: only root can become another user");
            return;
        }
        let mut command = Command::new("id");
        command.arg("-un").current_dir("/");
        prepare(
            &mut command,
            Signal::SIGHUP,
            Some(Account::find("nobody").unwrap()),
        );
        let output = command.output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "nobody");

        let mut command = Command::new("id");
        command.arg("-G").current_dir("/");
        prepare(
            &mut command,
            Signal::SIGHUP,
            Some(Account::find("nobody").unwrap()),
        );
        let output = command.output().unwrap();
        let groups = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(!groups.split_whitespace().any(|gid| gid == "0"), "{groups}");
    }

    #[test]
    fn an_unknown_user_is_named() {
        let error = Account::find("no-such-user-here").unwrap_err();
        assert!(matches!(error, AccountError::Unknown { .. }), "{error}");
    }
}
