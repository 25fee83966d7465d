//! What can keep a lab from being built.

use std::io;
use std::path::PathBuf;

use tabane_linux::{
    netns::NetnsError,
    packet_socket::{OffloadError, PacketSocketError},
};
use tabane_netem::ScenarioError;

/// A lab could not be built, found or asked.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// Namespaces and packet sockets need privilege.
    #[error("the lab needs root (CAP_NET_ADMIN, CAP_SYS_ADMIN and CAP_NET_RAW)")]
    NotRoot,
    /// A file could not be read or written.
    #[error("{path}: {source}", path = .path.display())]
    File {
        /// Which one.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A scenario file does not fit.
    #[error("{path}: {source}", path = .path.display())]
    Scenario {
        /// Which one.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<ScenarioError>,
    },
    /// A namespace could not be made or entered.
    #[error(transparent)]
    Netns(NetnsError),
    /// The emulator could not take hold of an interface.
    #[error(transparent)]
    Socket(#[from] PacketSocketError),
    /// An interface's offloads could not be turned off.
    #[error(transparent)]
    Offload(#[from] OffloadError),
    /// A program could not be run, `ip` of iproute2 above all.
    #[error("cannot run `{program}` (is it installed?): {source}")]
    Program {
        /// Which one.
        program: String,
        /// What the system said.
        source: io::Error,
    },
    /// A program ran and refused.
    #[error("`{program}` failed: {said}")]
    Refused {
        /// Which one.
        program: String,
        /// What it printed to standard error.
        said: String,
    },
    /// A system call failed.
    #[error("cannot {operation}: {source}")]
    System {
        /// What was tried.
        operation: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The emulator ended early; its thread has said why.
    #[error("the emulator has ended")]
    EmulatorGone,
    /// There is no lab of that name in the background.
    #[error("no lab `{name}` is running; {known}")]
    NoSuchLab {
        /// The name asked for.
        name: String,
        /// What is running, in words.
        known: String,
    },
    /// A lab of that name is running already.
    #[error("a lab `{name}` is running already: take it down first, or choose another name")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// There is no such link in the lab.
    #[error("the lab has no link `{name}`; it has {known}")]
    NoSuchLink {
        /// The name asked for.
        name: String,
        /// The links there are.
        known: String,
    },
    /// What is to be done to a link was not understood.
    #[error(
        "cannot do `{text}` to a link: expected down, up, outage=on, outage=off, rate=5mbit, \
         delay=30ms or loss=1%"
    )]
    Change {
        /// What was asked for.
        text: String,
    },
    /// The lab's process could not do it.
    #[error("the link was not changed: {said}")]
    NotChanged {
        /// Its own words.
        said: String,
    },
    /// The process that was to carry the lab ended before it was up.
    #[error("the lab did not come up: {said}")]
    NotUp {
        /// What it printed to standard error.
        said: String,
    },
}

impl From<NetnsError> for LabError {
    fn from(error: NetnsError) -> Self {
        // Root of a container has less than root's rights.
        match error.source.kind() {
            io::ErrorKind::PermissionDenied => Self::NotRoot,
            _ => Self::Netns(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_make_no_namespace_is_told_what_that_takes() {
        let refused = |kind: io::ErrorKind| {
            let source = kind.into();
            let (operation, name) = ("cannot create", "client".to_owned());
            LabError::from(NetnsError {
                operation,
                name,
                source,
            })
        };
        assert!(matches!(
            refused(io::ErrorKind::PermissionDenied),
            LabError::NotRoot
        ));
        assert!(matches!(
            refused(io::ErrorKind::AlreadyExists),
            LabError::Netns(_)
        ));
    }
}
