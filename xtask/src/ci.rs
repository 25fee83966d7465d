//! What the server runs (`.ci/run`), and what to run before a commit: one list.
//!
//! Owns the list of steps. Every step runs even when an earlier one failed, so that one round
//! shows everything; a step's own output goes straight to the terminal.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::tool::is_root;
use crate::{instructions, package, repository, tidy};

const FORMAT: &[&str] = &["fmt", "--all", "--check"];
const CLIPPY: &[&str] = &[
    "clippy",
    "--workspace",
    "--all-targets",
    "--",
    "-D",
    "warnings",
];
/// What a router's build leaves out must not be needed by what it has.
const CLIPPY_ROUTER: &[&str] = &[
    "clippy",
    "--package",
    "tabane",
    "--no-default-features",
    "--",
    "-D",
    "warnings",
];
/// Without the advisories, which are a database of their own.
const DENY: &[&str] = &["deny", "--locked", "check", "bans", "licenses", "sources"];
const TEST: &[&str] = &["test", "--workspace", "--no-fail-fast"];
const SOAK: &[&str] = &[
    "run",
    "--quiet",
    "--package",
    "tabane-bench",
    "--",
    "soak",
    "--minutes",
    "3",
];

/// Formatting, lints, tidy, and what others' crates bring with them. `false` when any of them
/// failed.
pub(crate) fn check(root: &Path) -> Result<bool> {
    let results = [
        cargo(root, FORMAT)?,
        cargo(root, CLIPPY)?,
        cargo(root, CLIPPY_ROUTER)?,
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

/// [`check`] and [`test`], and what packets take in core.
pub(crate) fn check_and_test(root: &Path) -> Result<bool> {
    let counts = instructions::run(root, &[]).unwrap_or_else(|error| {
        eprintln!("xtask: failed: instructions: {error:#}");
        false
    });
    let results = [check(root)?, counts, test(root)?];
    Ok(results.into_iter().all(|passed| passed))
}

/// Every test of the workspace, the packages, OpenWrt's settings, and a few minutes of an unquiet
/// network, which needs root.
pub(crate) fn test(root: &Path) -> Result<bool> {
    let tests = cargo(root, TEST)?;
    let target = std::env::var_os("CARGO_TARGET_DIR");
    let target = target.map_or_else(|| root.join("target"), PathBuf::from);
    let (binary, out) = (target.join("debug/tabane"), target.join("packages-test"));
    let (binary, out) = (binary.to_string_lossy(), out.to_string_lossy());
    let packages = ["--check", "--out", &*out, "--binary", &*binary];
    let packages = package::run(root, &packages).unwrap_or_else(|error| {
        eprintln!("xtask: failed: package --check: {error:#}");
        false
    });
    let arguments = ["--check", "--packages", &*out];
    let repository = repository::run(root, &arguments).unwrap_or_else(|error| {
        eprintln!("xtask: failed: repository --check: {error:#}");
        false
    });
    let openwrt = Command::new(root.join("packaging/openwrt/test.sh")).status();
    let openwrt = openwrt.is_ok_and(|status| status.success());
    let soak = match is_root() {
        true => cargo(root, &[SOAK, &["--binary", &*binary]].concat())?,
        false => {
            eprintln!("xtask: skipped: the soak (needs root)");
            true
        }
    };
    Ok(tests && packages && repository && openwrt && soak)
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
