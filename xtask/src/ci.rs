//! What the server runs, and what to run before a commit.
//!
//! Owns the list of steps. Every step runs even when an earlier one failed, so that one round
//! shows everything; a step's own output goes straight to the terminal.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::tidy;

const FORMAT: &[&str] = &["fmt", "--all", "--check"];
const CLIPPY: &[&str] = &[
    "clippy",
    "--workspace",
    "--all-targets",
    "--",
    "-D",
    "warnings",
];
const TEST: &[&str] = &["test", "--workspace", "--no-fail-fast"];

/// Formatting, lints and tidy. `false` when any of them failed.
pub(crate) fn check(root: &Path) -> Result<bool> {
    let results = [cargo(root, FORMAT)?, cargo(root, CLIPPY)?, tidy::run(root)?];
    Ok(results.into_iter().all(|passed| passed))
}

/// [`check`], and every test of the workspace.
pub(crate) fn check_and_test(root: &Path) -> Result<bool> {
    let results = [check(root)?, cargo(root, TEST)?];
    Ok(results.into_iter().all(|passed| passed))
}

fn cargo(root: &Path, arguments: &[&str]) -> Result<bool> {
    let line = format!("cargo {}", arguments.join(" "));
    eprintln!("xtask: {line}");
    // Cargo names itself in the environment of what it runs; outside it, the search path serves.
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(program)
        .args(arguments)
        .current_dir(root)
        .status()
        .with_context(|| format!("cannot start `{line}`"))?;
    if !status.success() {
        eprintln!("xtask: failed: {line}");
    }
    Ok(status.success())
}
