//! The command that the user wants to run: looked for before anything is set up, started, and its
//! end told as a shell would.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use nix::unistd::{AccessFlags, access};
use tabane_linux::{child, signals::Signals};

use crate::failure::Failure;
use crate::signals::pass_on;

/// Where programs are without PATH (execvp(3) has the same).
const DEFAULT_PATH: &str = "/usr/local/bin:/bin:/usr/bin";
/// The shell's status for a file that cannot be executed (POSIX XCU 2.8.2).
const NOT_EXECUTABLE: u8 = 126;
/// The shell's status for a command that is not there.
const NOT_FOUND: u8 = 127;
/// Added to a signal's number (POSIX XCU 2.8.2 asks for more than 128).
const KILLED: i32 = 128;

/// A command that exists, with its arguments.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    name: OsString,
    arguments: Vec<OsString>,
}

impl Program {
    /// The command as typed. Fails with a shell's status if it cannot be started.
    pub(crate) fn find(words: &[OsString]) -> Result<Self, Failure> {
        let path = std::env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
        find_in(words, &path)
    }

    /// Ready to be started.
    pub(crate) fn command(&self) -> std::process::Command {
        let mut command = std::process::Command::new(&self.name);
        command.args(&self.arguments);
        command
    }

    /// Starts `command`, which is this one made ready, and waits for its end. Signals that come
    /// meanwhile are its own.
    pub(crate) async fn run_to_its_end(
        &self,
        command: std::process::Command,
        signals: &Signals,
    ) -> Result<ExitCode> {
        let spawned = tokio::process::Command::from(command).spawn();
        let mut child = spawned.map_err(|error| self.failed(&error))?;
        loop {
            tokio::select! {
                status = child.wait() => {
                    return Ok(exit_code(status.context("cannot wait for the command")?));
                }
                arrived = signals.next() => {
                    if let Some(pid) = child.id() {
                        pass_on(arrived.context("cannot read signals")?, pid);
                    }
                }
            }
        }
    }

    /// Has this process become it; gives why it could not.
    pub(crate) fn replace_us(&self) -> Failure {
        self.failed(&child::replace_this_process(&mut self.command()))
    }

    /// Why it could not be started after all.
    pub(crate) fn failed(&self, error: &io::Error) -> Failure {
        let status = match error.kind() {
            io::ErrorKind::NotFound => NOT_FOUND,
            _ => NOT_EXECUTABLE,
        };
        Failure::with_status(
            status,
            format!("cannot start {}: {error}", self.name.display()),
        )
    }
}

fn find_in(words: &[OsString], path: &OsStr) -> Result<Program, Failure> {
    let (name, arguments) = words
        .split_first()
        .expect("the command line asks for one word");
    let program = Program {
        name: name.clone(),
        arguments: arguments.to_vec(),
    };
    let candidates: Vec<PathBuf> = if name.as_bytes().contains(&b'/') {
        vec![PathBuf::from(name)]
    } else if name.is_empty() {
        Vec::new()
    } else {
        std::env::split_paths(path)
            .map(|directory| directory.join(name))
            .collect()
    };
    if candidates.iter().any(|candidate| is_executable(candidate)) {
        return Ok(program);
    }
    let shown = name.display();
    Err(
        match candidates.iter().find(|candidate| candidate.exists()) {
            Some(found) if found.is_dir() => Failure::with_status(
                NOT_EXECUTABLE,
                format!("{} is a directory, not a command", found.display()),
            ),
            Some(found) => Failure::with_status(
                NOT_EXECUTABLE,
                format!(
                    "{} is not executable; `chmod +x` makes it so",
                    found.display()
                ),
            ),
            None => Failure::with_status(
                NOT_FOUND,
                format!("command not found: {shown} (with sudo, its PATH may differ from yours)"),
            ),
        },
    )
}

fn is_executable(path: &Path) -> bool {
    path.is_file() && access(path, AccessFlags::X_OK).is_ok()
}

/// Ends this process as its command ended: by the same signal, or with the status to exit with.
pub(crate) fn end_like(status: ExitStatus) -> ExitCode {
    if let Some(signal) = status.signal() {
        child::end_by(signal);
    }
    exit_code(status)
}

/// The status to exit with for a command that ended so.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = match (status.code(), status.signal()) {
        (Some(code), _) => code,
        (None, Some(signal)) => KILLED + signal,
        (None, None) => 1,
    };
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}

/// The status to exit with for a signal that came before the command was started.
pub(crate) fn signal_code(signal: Signal) -> ExitCode {
    ExitCode::from(u8::try_from(KILLED + signal as i32).unwrap_or(u8::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use tabane_store::Scratch;

    fn status_of(name: &str, path: &Path) -> String {
        let words = [name.into()];
        match find_in(&words, path.as_os_str()) {
            Ok(_) => "found".into(),
            Err(failure) => format!("{} {failure}", failure.status()),
        }
    }

    #[test]
    fn commands_are_found_as_a_shell_finds_them() {
        let scratch = Scratch::make();
        let at = scratch.path();
        fs::write(at.join("plain"), "").unwrap();
        fs::create_dir(at.join("dir")).unwrap();
        std::os::unix::fs::symlink("/bin/sh", at.join("shell")).unwrap();
        assert_eq!(status_of("shell", at), "found");
        assert_eq!(status_of("/bin/sh", at), "found");
        assert!(status_of("plain", at).starts_with("126 "));
        assert!(status_of("dir", at).starts_with("126 "));
        assert!(status_of("missing", at).starts_with("127 command not found: missing"));
        assert!(status_of("./missing", at).starts_with("127 "));
        assert!(status_of("", at).starts_with("127 "));
    }

    #[test]
    fn ends_are_told_as_a_shell_does() {
        let code = |raw| format!("{:?}", exit_code(ExitStatus::from_raw(raw)));
        let expected = |code: u8| format!("{:?}", ExitCode::from(code));
        assert_eq!(code(0), expected(0));
        assert_eq!(code(7 << 8), expected(7));
        assert_eq!(code(15), expected(143));
    }
}
