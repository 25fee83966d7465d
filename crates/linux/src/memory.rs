//! How much memory this process may fill.
//!
//! Owns where the kernel says that: of the machine, and of the control groups that a container or
//! systemd (`MemoryMax=`) puts a process in.

use std::fs;
use std::path::Path;

/// The controllers that a line of `/proc/self/cgroup` has (none for version 2), and where the
/// groups and their limits are found.
const GROUPS: [(&str, &str, &str); 2] = [
    ("", "/sys/fs/cgroup", "memory.max"),
    ("memory", "/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
];

/// In bytes: what the machine has, or the least that a control group leaves this process. `None`
/// where the kernel does not say.
#[must_use]
pub fn limit() -> Option<u64> {
    least(|path| fs::read_to_string(path).ok())
}

fn least(read: impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let number = |text: &str| text.split_whitespace().next()?.parse::<u64>().ok();
    let machine = read(Path::new("/proc/meminfo"));
    let total = machine.as_deref().and_then(|text| {
        let kilobytes = text.lines().find_map(|it| it.strip_prefix("MemTotal:"))?;
        Some(number(kilobytes)? << 10)
    });
    let mut limits: Vec<u64> = total.into_iter().collect();
    let groups = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else {
            continue;
        };
        for (controller, mount, file) in GROUPS {
            if controllers == controller {
                // Each group is within the one above.
                let above = Path::new(group.trim_start_matches('/')).ancestors();
                let files = above.map(|group| Path::new(mount).join(group).join(file));
                let said = files.filter_map(|file| read(&file));
                limits.extend(said.filter_map(|text| number(&text)));
            }
        }
    }
    limits.into_iter().min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_of_machine_and_groups_counts() {
        let of = |files: &[(&str, &str)]| {
            least(|path| {
                let found = files.iter().find(|(name, _)| Path::new(name) == path);
                Some(found?.1.to_owned())
            })
        };
        let machine = ("/proc/meminfo", "MemTotal:  1024 kB\nMemFree: 5 kB\n");
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[machine]), Some(1 << 20));
        // Version 2: the group above is the narrower one, and "max" is no limit.
        let groups = [
            machine,
            ("/proc/self/cgroup", "0::/a.slice/b.service\n"),
            ("/sys/fs/cgroup/a.slice/memory.max", "7000\n"),
            ("/sys/fs/cgroup/a.slice/b.service/memory.max", "max\n"),
        ];
        assert_eq!(of(&groups), Some(7_000));
        // A container's own group is what it has for the root; version 1 beside the other.
        assert_eq!(
            of(&[
                machine,
                ("/proc/self/cgroup", "4:memory:/\n0::/\n"),
                ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9000\n"),
            ]),
            Some(9_000)
        );
        assert!(limit().is_some_and(|bytes| bytes > 16 << 20));
    }
}
