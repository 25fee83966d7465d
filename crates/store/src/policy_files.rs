//! `policy.toml`, which the user writes, and `usage.toml`, which has what links have carried.
//!
//! Owns their names and how they are read; what they mean is the policy crate's.

use std::ffi::CStr;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result};
use tabane_policy::{Fault, Policy, PolicyError, Usage};

use crate::atomic_file;
use crate::wall_clock;

/// The policy file's name in the directory of settings.
pub const POLICY_FILE: &str = "policy.toml";
/// [`POLICY_FILE`], as the kernel's calls take it.
pub const POLICY_FILE_NAME: &CStr = c"policy.toml";
/// The accounts' name in the directory of settings.
pub const USAGE_FILE: &str = "usage.toml";
/// [`USAGE_FILE`], as the kernel's calls take it.
pub const USAGE_FILE_NAME: &CStr = c"usage.toml";

/// The largest list of names or addresses.
const MAX_LIST_BYTES: u64 = 8_000_000;

/// The policy in `directory`; nothing is wished where there is no file.
pub fn read_policy(directory: &Path) -> Result<Policy> {
    let path = directory.join(POLICY_FILE);
    let text = atomic_file::read(&path)?.unwrap_or_default();
    let policy = parse_policy(&text, directory);
    let policy = policy.and_then(|policy| match may_run(&policy, &path) {
        Ok(()) => Ok(policy),
        Err(fault) => Err(PolicyError {
            faults: vec![fault],
            files: policy.files().clone(),
        }),
    });
    policy.with_context(|| path.display().to_string())
}

/// Writes the policy to `path`. A file that is there keeps its mode; one with a proxy's password in
/// it is for nobody but its owner.
///
/// # Errors
/// It cannot be written.
pub fn write_policy(path: &Path, text: &str) -> Result<()> {
    let had = path.metadata().map(|meta| meta.mode() & 0o777);
    let mode = had.unwrap_or(atomic_file::PUBLIC);
    let has_password = Policy::parse(text).is_ok_and(|policy| policy.has_password());
    let most = if has_password {
        atomic_file::SECRET
    } else {
        0o777
    };
    atomic_file::replace(path, text.as_bytes(), mode & most)
}

/// Reads this text as the policy of `directory`, with the lists that it names from there.
///
/// # Errors
/// It is faulty, or one of its lists.
pub fn parse_policy(text: &str, directory: &Path) -> Result<Policy, PolicyError> {
    Policy::parse_with(text, &mut |name| read_list(&directory.join(name)))
}

/// A list's text, or why there is none.
fn read_list(path: &Path) -> Result<String, String> {
    let display = path.display();
    let unread = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => format!("there is no {display}"),
        _ => format!("cannot read {display}: {error}"),
    };
    let meta = path.metadata().map_err(unread)?;
    // Whoever opens a pipe waits.
    if !meta.is_file() {
        return Err(format!("{display} is no file"));
    }
    if meta.len() > MAX_LIST_BYTES {
        let most = MAX_LIST_BYTES / 1_000_000;
        return Err(format!("{display} is larger than {most} MB"));
    }
    std::fs::read_to_string(path).map_err(unread)
}

/// Root runs commands of its own file only: one that nobody else can write, in directories whose
/// entries nobody else can change.
fn may_run(policy: &Policy, path: &Path) -> Result<(), Fault> {
    let mut reactions = policy.reactions().iter();
    let running = reactions.find(|reaction| !reaction.run.is_empty());
    let Some(line) = running.map(|reaction| reaction.line) else {
        return Ok(());
    };
    if !nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    let fault = |what: String| Fault { line, what };
    let unseen = |error| {
        fault(format!(
            "on-event: run: nobody knows whose file this is: {error}"
        ))
    };
    let path = path.canonicalize().map_err(unseen)?;
    for place in path.ancestors() {
        let meta = place.metadata().map_err(unseen)?;
        if !is_roots_alone(&meta) {
            let place = place.display();
            return Err(fault(format!(
                "on-event: run: root runs commands of its own file only, and others can write \
                 {place}; write `chown root {place}` and `chmod go-w {place}`, or `post` instead"
            )));
        }
    }
    Ok(())
}

fn is_roots_alone(meta: &Metadata) -> bool {
    // In a directory with the sticky bit (/tmp) nobody touches what is another's.
    let is_guarded = meta.is_dir() && meta.mode() & nix::libc::S_ISVTX != 0;
    meta.uid() == 0 && (meta.mode() & 0o022 == 0 || is_guarded)
}

/// The accounts in a file; none where there is no file.
pub fn read_usage(path: &Path) -> Result<Usage> {
    let text = atomic_file::read(path)?.unwrap_or_default();
    // Only an older form asks for it.
    let written = std::fs::metadata(path).and_then(|meta| meta.modified());
    let written = written.map_or_else(|_| wall_clock::today(), wall_clock::day);
    Usage::parse(&text, written).with_context(|| {
        let path = path.display();
        format!("{path} is damaged; remove it to begin the budgets' periods anew")
    })
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, chown};

    use crate::scratch::Scratch;

    use super::*;

    #[test]
    fn a_proxy_s_password_is_for_nobody_but_the_owner() {
        let scratch = Scratch::make();
        let file = scratch.path().join(POLICY_FILE);
        let mode = || file.metadata().unwrap().mode() & 0o777;
        let plain = "[[link]]\nproxy = \"http://proxy.example\"\n";
        write_policy(&file, plain).unwrap();
        assert_eq!(mode(), atomic_file::PUBLIC);
        let login = plain.replace("http://", "http://ann:secret@");
        write_policy(&file, &login).unwrap();
        assert_eq!(mode(), atomic_file::SECRET);
        // Whoever has shut it has shut it.
        std::fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        write_policy(&file, plain).unwrap();
        assert_eq!(mode(), 0o640);
    }

    #[test]
    fn root_runs_no_command_of_a_file_that_others_write() {
        if !nix::unistd::geteuid().is_root() {
            println!("skipped: only root has others' files");
            return;
        }
        let scratch = Scratch::make();
        let directory = scratch.path();
        let file = directory.join(POLICY_FILE);
        let run = "[[link]]\nuse = \"never\"\n[[on-event]]\nrun = \"/bin/true\"";
        std::fs::write(&file, run).unwrap();
        let read = || read_policy(directory).map_err(|error| format!("{error:#}"));
        assert_eq!(read().expect("root's").reactions().len(), 1);
        let refused = |of: &Path| {
            let error = read().expect_err("not root's alone");
            assert!(
                error.contains("line 3: on-event: run: root runs"),
                "{error}"
            );
            assert!(
                error.contains(&format!("chown root {}`", of.display())),
                "{error}"
            );
        };
        chown(&file, Some(1), None).unwrap();
        refused(&file);
        std::fs::write(
            &file,
            run.replace("run", "post")
                .replace("/bin/true", "http://127.0.0.1:1/"),
        )
        .unwrap();
        read().expect("a hook runs nothing");
        std::fs::write(&file, run).unwrap();
        chown(&file, Some(0), None).unwrap();
        for place in [&file, directory] {
            let before = place.metadata().unwrap().permissions();
            std::fs::set_permissions(place, Permissions::from_mode(0o777)).unwrap();
            refused(place);
            std::fs::set_permissions(place, before).unwrap();
        }
        read().expect("as before");
    }
}
