//! Why a control group could not be had, and what to do about it.

use std::io;
use std::path::{Path, PathBuf};

/// Why a control group could not be had.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// The second version of control groups is mounted nowhere.
    #[error(
        "control groups version 2 are not mounted: \
         `mount -t cgroup2 none /sys/fs/cgroup` mounts them; or use `tabane proxy`"
    )]
    NotMounted,
    /// The list of mounts cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Mounts {
        /// The list.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// We may not make groups there.
    #[error(
        "not allowed to make the control group {}: run as root, or use `tabane proxy`",
        path.display()
    )]
    NotPermitted {
        /// The group.
        path: PathBuf,
    },
    /// A group could not be made.
    #[error("cannot make the control group {}: {source}", path.display())]
    Create {
        /// The group.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A file of the group could not be opened or read.
    #[error("cannot open {}: {source}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A process could not be moved.
    #[error("cannot move process {pid} to the control group {}: {source}", path.display())]
    Place {
        /// The process.
        pid: u32,
        /// The group.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A group could not be removed.
    #[error("cannot remove the control group {}: {source}", path.display())]
    Remove {
        /// The group.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

impl CgroupError {
    pub(super) fn create(path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES | libc::EROFS) => Self::NotPermitted { path },
            _ => Self::Create { path, source },
        }
    }
}
