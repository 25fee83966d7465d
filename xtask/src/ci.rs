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
/// Without the advisories, which are a database of their own.
const DENY: &[&str] = &["deny", "--locked", "check", "bans", "licenses", "sources"];
const TEST: &[&str] = &["test", "--workspace", "--no-fail-fast"];

/// Formatting, lints, tidy, and what others' crates bring with them. `false` when any of them
/// failed.
pub(crate) fn check(root: &Path) -> Result<bool> {
    let results = [
        cargo(root, FORMAT)?,
        cargo(root, CLIPPY)?,
        tidy::run(root)?,
        supply(root)?,
    ];
    Ok(results.into_iter().all(|passed| passed))
}

/// Licences, bans, duplicates and sources by `deny.toml`, where cargo-deny is installed.
fn supply(root: &Path) -> Result<bool> {
    let version = Command::new("cargo-deny").arg("--version").output();
    if version.is_ok_and(|output| output.status.success()) {
        return cargo(root, DENY);
    }
    eprintln!("xtask: skipped: cargo deny (cargo install --locked cargo-deny)");
    Ok(true)
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
