//! How other processes reach a lab in the background: a socket beside its file, one line each way.
//!
//! The question is a link's number (from 0) and a change, as [`LinkChange`] reads it; the answer is
//! empty, or says in words why it was not done. Only who may write to the socket's file is heard,
//! and that is root.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, poll};
use tabane_base::Duration;

use crate::change::LinkChange;
use crate::error::LabError;
use crate::lab::Lab;

/// A question is a line; longer ones are none of ours.
const QUESTION_MAX: u64 = 256;
/// Whoever connects asks at once: the lab's process serves one at a time.
const PATIENCE: Duration = Duration::from_secs(1);

/// The socket of one lab, and the signals that end it.
#[derive(Debug)]
pub(crate) struct Switchboard {
    signals: SignalFd,
    listener: UnixListener,
    path: PathBuf,
}

impl Switchboard {
    /// Blocks the signals, for this thread and those started later, and listens at `path`.
    pub(crate) fn open(path: &Path) -> Result<Self, LabError> {
        let mut set = SigSet::empty();
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
            set.add(signal);
        }
        let signals = set
            .thread_block()
            .and_then(|()| SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC))
            .map_err(|errno| LabError::System {
                operation: "catch signals",
                source: errno.into(),
            })?;
        // Left by a lab that was killed; a living one of this name was looked for before.
        let _ = fs::remove_file(path);
        let listener = UnixListener::bind(path).map_err(|source| LabError::File {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self {
            signals,
            listener,
            path: path.to_owned(),
        })
    }

    /// Does what is asked until a signal comes.
    pub(crate) fn serve(&self, lab: &Lab) -> Result<(), LabError> {
        loop {
            let mut watched = [
                PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.listener.as_fd(), PollFlags::IN),
            ];
            match poll(&mut watched, None) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(errno) => {
                    return Err(LabError::System {
                        operation: "wait for a signal",
                        source: errno.into(),
                    });
                }
            }
            if !watched[0].revents().is_empty() {
                return Ok(());
            }
            // Who asked and went away needs no answer.
            if let Ok((connection, _)) = self.listener.accept() {
                let _ = answer(connection, lab);
            }
        }
    }
}

impl Drop for Switchboard {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn answer(mut connection: UnixStream, lab: &Lab) -> io::Result<()> {
    connection.set_read_timeout(Some(PATIENCE))?;
    connection.set_write_timeout(Some(PATIENCE))?;
    let mut question = String::new();
    BufReader::new((&connection).take(QUESTION_MAX)).read_line(&mut question)?;
    let refusal = match obey(question.trim_end(), lab) {
        Ok(()) => String::new(),
        Err(error) => error.to_string(),
    };
    writeln!(connection, "{}", refusal.replace('\n', " "))
}

fn obey(question: &str, lab: &Lab) -> Result<(), LabError> {
    let change = |text: &str| LabError::Change {
        text: text.to_owned(),
    };
    let (link, text) = question.split_once(' ').ok_or_else(|| change(question))?;
    let link: usize = link.parse().map_err(|_| change(question))?;
    if link >= lab.links().len() {
        return Err(change(question));
    }
    text.parse::<LinkChange>()?.apply(lab, link)
}

/// Has the lab at `path` change a link.
pub(crate) fn ask(path: &Path, link: usize, change: &LinkChange) -> Result<(), LabError> {
    let fail = |source| LabError::File {
        path: path.to_owned(),
        source,
    };
    let mut connection = UnixStream::connect(path).map_err(fail)?;
    let mut answer = String::new();
    writeln!(connection, "{link} {}", change.as_str())
        .and_then(|()| BufReader::new(&connection).read_line(&mut answer))
        .map_err(fail)?;
    match answer.trim_end() {
        "" if answer.is_empty() => Err(fail(io::ErrorKind::UnexpectedEof.into())),
        "" => Ok(()),
        said => Err(LabError::NotChanged {
            said: said.to_owned(),
        }),
    }
}
