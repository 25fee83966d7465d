//! Sees to it that namespaces do not outlive their lab.
//!
//! A small shell waits on a pipe from us. The pipe closes when the lab is dropped, and also when
//! the process dies of Ctrl-C, a panic or SIGKILL; then the shell ends whatever still runs in the
//! namespaces and removes them. Should the shell be killed as well, the next lab removes what it
//! left, known by the dead process id in its name; so it does with hosts that a bench had put
//! beside its lab.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tabane_linux::netns::Netns;

use crate::error::LabError;

const PREFIX: &str = "tabane";

/// Reads until the lab is gone; asks the processes inside to end, insists after 2 s; removes.
const SCRIPT: &str = r#"
trap "" INT TERM HUP QUIT
read -r _
inside() { for ns in "$@"; do ip netns pids "$ns" 2>/dev/null; done; }
pids=$(inside "$@")
if [ -n "$pids" ]; then
    kill -TERM $pids 2>/dev/null
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
        [ -z "$(inside "$@")" ] && break
        sleep 0.1
    done
    pids=$(inside "$@")
    [ -n "$pids" ] && kill -KILL $pids 2>/dev/null
fi
for ns in "$@"; do ip netns del "$ns" 2>/dev/null; done
"#;

/// The names of one lab's namespaces, and the process that removes them.
#[derive(Debug)]
pub(crate) struct Keeper {
    shell: Child,
}

impl Keeper {
    /// From here on the namespaces of these names go away with this value, or this process.
    pub(crate) fn watch(names: &[String]) -> Result<Self, LabError> {
        let shell = Command::new("sh")
            .args(["-c", SCRIPT, "tabane-lab-keeper"])
            .args(names)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C goes to the terminal's foreground group: not to the keeper.
            .process_group(0)
            .spawn()
            .map_err(|source| LabError::Program {
                program: "sh".to_owned(),
                source,
            })?;
        Ok(Self { shell })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        if let Err(error) = self.shell.wait() {
            tracing::warn!(%error, "the namespaces may not be removed");
        }
    }
}

/// Names for the namespaces of the next lab of this process.
pub(crate) fn fresh_names() -> [String; 3] {
    static LABS: AtomicU32 = AtomicU32::new(0);
    let lab = LABS.fetch_add(1, Ordering::Relaxed);
    ["client", "emulator", "server"].map(|host| name(lab, host))
}

/// A name for the namespace of a further `host` beside those of a lab. It belongs to this process:
/// should that be killed, the next lab removes it.
#[must_use]
pub fn host_name(host: &str) -> String {
    static HOSTS: AtomicU32 = AtomicU32::new(0);
    name(HOSTS.fetch_add(1, Ordering::Relaxed), host)
}

fn name(number: u32, host: &str) -> String {
    format!("{PREFIX}-{}-{number}-{host}", std::process::id())
}

/// Removes namespaces whose process is dead.
pub(crate) fn remove_stale() {
    for name in Netns::names() {
        if !owner(&name).is_some_and(is_dead) {
            continue;
        }
        let processes = Netns::open(&name).map(|netns| netns.processes());
        for pid in processes.into_iter().flat_map(Result::unwrap_or_default) {
            if let Ok(pid) = i32::try_from(pid) {
                // It may have ended meanwhile.
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
        if let Err(error) = Netns::remove(&name) {
            tracing::debug!(%error, "someone else removes it");
        }
    }
}

/// The process that a namespace of this name belongs to, if it is one of ours.
fn owner(name: &str) -> Option<i32> {
    let mut parts = name.split('-');
    let (prefix, pid, number, host) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    number.parse::<u32>().ok()?;
    let ours = prefix == PREFIX && !host.is_empty() && parts.next().is_none();
    pid.parse().ok().filter(|_| ours)
}

fn is_dead(pid: i32) -> bool {
    kill(Pid::from_raw(pid), None) == Err(nix::errno::Errno::ESRCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_labs_have_an_owner() {
        let own = i32::try_from(std::process::id()).unwrap();
        for name in fresh_names().into_iter().chain([host_name("origin")]) {
            assert_eq!(owner(&name), Some(own), "{name}");
        }
        for name in [
            "tabane-1-client",
            "tabane-x-0-client",
            "tabane-1-0-",
            "tabane-1-0-other-one",
            "vpn-1-0-client",
        ] {
            assert_eq!(owner(name), None, "{name}");
        }
        assert!(!is_dead(own));
    }

    #[test]
    fn what_a_killed_process_left_is_removed_and_nothing_else() {
        if !nix::unistd::geteuid().is_root() {
            println!("skipped: namespaces need root");
            return;
        }
        let mut dead = Command::new("true").spawn().unwrap();
        dead.wait().unwrap();
        let (left, ours) = (
            format!("{PREFIX}-{}-0-origin", dead.id()),
            host_name("origin"),
        );
        Netns::create(&left).unwrap();
        Netns::create(&ours).unwrap();
        remove_stale();
        let names = Netns::names();
        Netns::remove(&ours).unwrap();
        assert!(names.contains(&ours) && !names.contains(&left), "{names:?}");
    }
}
