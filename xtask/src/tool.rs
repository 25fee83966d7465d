//! Programs of the system that steps call, and whether they have the right to do much.

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
