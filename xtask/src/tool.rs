//! What steps share: programs of the system, whether they have the right to do much, where cargo
//! keeps others' crates, and files as packages have them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// What a command printed; an error with its own words where it failed.
pub(crate) fn said(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.env("TZ", "UTC").output();
    let output = output.with_context(|| format!("cannot start {program}"))?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        bail!("{program}: {}: {}", output.status, words.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether this runs as root.
pub(crate) fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|id| id.stdout.trim_ascii() == b"0")
}

/// Where cargo has unpacked others' crates.
pub(crate) fn crates_of_others() -> Option<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")))?;
    Some(home.join("registry/src"))
}

/// As `gzip` does it to the same bytes everywhere.
pub(crate) fn compress(path: &Path) -> Result<()> {
    said(Command::new("gzip").arg("-9nf").arg(path)).map(drop)
}

/// Writes a file with these permissions, whatever the umask, and the directories above it.
pub(crate) fn put(path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    let parent = path.parent().context("a file has a directory")?;
    fs::create_dir_all(parent)?;
    fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    Ok(())
}
