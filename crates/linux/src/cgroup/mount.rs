//! Where the control group hierarchy is mounted, and where in it we are.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use super::{CgroupError, PARENT};

/// The mount point of the version-2 hierarchy.
pub(super) fn find() -> Result<PathBuf, CgroupError> {
    let path = PathBuf::from("/proc/self/mountinfo");
    match fs::read(&path) {
        Ok(mounts) => find_in(&mounts)
            .or_else(own_mount)
            .ok_or(CgroupError::NotMounted),
        Err(source) => Err(CgroupError::Mounts { path, source }),
    }
}

/// A mount of our own, attached nowhere and gone with this process, for where none is to be seen:
/// `ip netns exec`, for one, hides all of `/sys` behind a fresh mount.
fn own_mount() -> Option<PathBuf> {
    static MOUNT: OnceLock<Option<OwnedFd>> = OnceLock::new();
    let mount = MOUNT.get_or_init(|| {
        let context = fsopen("cgroup2", FsOpenFlags::FSOPEN_CLOEXEC).ok()?;
        fsconfig_create(context.as_fd()).ok()?;
        let flags = FsMountFlags::FSMOUNT_CLOEXEC;
        fsmount(context.as_fd(), flags, MountAttrFlags::empty()).ok()
    });
    let number = mount.as_ref()?.as_raw_fd();
    Some(PathBuf::from(format!("/proc/self/fd/{number}")))
}

/// Our own group, as far as it lies within the mounted part of the hierarchy.
pub(super) fn own_group(mount: &Path) -> PathBuf {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"));
    let group = mount.join(own.unwrap_or_default());
    if group.is_dir() {
        group
    } else {
        mount.to_owned()
    }
}

/// What a run's group lies in: our own group, so that what limits or ends that holds for the
/// command as well; within another run's, whatever that one's lies in, since both would hook it.
pub(super) fn around_runs(group: &Path) -> &Path {
    let is_run = |group: &&Path| {
        let name = group.file_name().and_then(OsStr::to_str);
        name.is_some_and(|name| name.starts_with("run-"))
            && group
                .parent()
                .is_some_and(|parent| parent.ends_with(PARENT))
    };
    let outermost = group.ancestors().filter(is_run).last();
    let around = outermost.and_then(|run| run.parent()?.parent());
    around.unwrap_or(group)
}

/// `proc(5)`: `… root mount-point options [optional fields…] - type source super-options`.
/// Several mounts may show the hierarchy; one that starts at its root is best.
fn find_in(mountinfo: &[u8]) -> Option<PathBuf> {
    let mut best = None;
    for line in mountinfo.split(|byte| *byte == b'\n') {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let Some(dash) = fields.iter().position(|field| *field == b"-") else {
            continue;
        };
        if dash < 6 || fields.get(dash + 1) != Some(&b"cgroup2".as_slice()) {
            continue;
        }
        let point = PathBuf::from(OsString::from_vec(unescape(fields[4])));
        if fields[3] == b"/" {
            return Some(point);
        }
        best.get_or_insert(point);
    }
    best
}

/// Spaces and the like are written as a backslash and three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let octal = (*first == b'\\')
            .then(|| tail.get(..3))
            .flatten()
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match octal {
            Some(byte) => {
                plain.push(byte);
                rest = &tail[3..];
            }
            None => {
                plain.push(*first);
                rest = tail;
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hierarchy_is_found_wherever_it_is() {
        let hybrid = b"32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
            41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:5 - cgroup2 cgroup2 rw\n";
        assert_eq!(find_in(hybrid), Some("/sys/fs/cgroup/unified".into()));

        let part_first = b"50 31 0:38 /sub /mnt/part rw - cgroup2 none rw\n\
            51 31 0:38 / /mnt/two\\040words rw - cgroup2 none rw\n";
        assert_eq!(find_in(part_first), Some("/mnt/two words".into()));

        let only_part = b"50 31 0:38 /sub /mnt/part rw - cgroup2 none rw\n";
        assert_eq!(find_in(only_part), Some("/mnt/part".into()));

        assert_eq!(
            find_in(b"32 31 0:29 / /sys/fs/cgroup rw - cgroup cgroup rw\n\nodd"),
            None
        );
    }

    #[test]
    fn runs_lie_beside_each_other_in_the_group_they_were_started_in() {
        let around = |group| around_runs(Path::new(group)).to_str().unwrap();
        assert_eq!(around("/m/a.slice/b.service"), "/m/a.slice/b.service");
        assert_eq!(around("/m/b.service/tabane/run-1-0"), "/m/b.service");
        let within = "/m/b.service/tabane/run-1-0/sub/tabane/run-2-0";
        assert_eq!(around(within), "/m/b.service");
        assert_eq!(around("/m/run-1-0"), "/m/run-1-0");
    }

    #[test]
    fn without_a_mount_the_hierarchy_is_reached_all_the_same() {
        let Some(mount) = own_mount() else {
            println!("skipped: not allowed to mount control groups");
            return;
        };
        assert!(mount.join("cgroup.procs").exists());
        assert_eq!(own_mount(), Some(mount));
    }

    #[test]
    fn our_own_group_lies_within_the_mount() {
        assert_eq!(
            own_group(Path::new("/nonexistent")),
            Path::new("/nonexistent")
        );
    }
}
