//! What the server runs (`.ci/run`), and what to run before a commit: one list.
//!
//! Owns the list of steps. Every step runs even when an earlier one failed, so that one round
//! shows everything; a step's own output goes straight to the terminal, and what failed is named
//! once more at the end.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

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
pub(crate) fn check(root: &Path) -> bool {
    let mut round = Round::new(root);
    round.check();
    round.conclude()
}

/// [`check`] and [`test`], and what packets take in core.
pub(crate) fn check_and_test(root: &Path) -> bool {
    let mut round = Round::new(root);
    round.step("instructions", instructions::run(root, &[]));
    round.check();
    round.test();
    round.conclude()
}

/// Every test of the workspace, the packages, OpenWrt's settings, and a few minutes of an unquiet
/// network, which needs root.
pub(crate) fn test(root: &Path) -> bool {
    let mut round = Round::new(root);
    round.test();
    round.conclude()
}

/// Steps, and which of them failed.
struct Round<'a> {
    root: &'a Path,
    failed: Vec<String>,
}

impl<'a> Round<'a> {
    const fn new(root: &'a Path) -> Self {
        let failed = Vec::new();
        Self { root, failed }
    }

    fn check(&mut self) {
        for arguments in [FORMAT, CLIPPY, CLIPPY_ROUTER] {
            self.cargo(arguments);
        }
        self.step("tidy", tidy::run(self.root));
        self.supply();
    }

    fn test(&mut self) {
        self.tests();
        let root = self.root;
        let target = std::env::var_os("CARGO_TARGET_DIR");
        let target = target.map_or_else(|| root.join("target"), PathBuf::from);
        let (binary, out) = (target.join("debug/tabane"), target.join("packages-test"));
        let (binary, out) = (binary.to_string_lossy(), out.to_string_lossy());
        let packages = ["--check", "--out", &*out, "--binary", &*binary];
        self.step("package --check", package::run(root, &packages));
        let arguments = ["--check", "--packages", &*out];
        self.step("repository --check", repository::run(root, &arguments));
        let openwrt = Command::new(root.join("packaging/openwrt/test.sh")).status();
        let openwrt = openwrt.map(|status| status.success());
        self.step("packaging/openwrt/test.sh", openwrt.map_err(Into::into));
        if is_root() {
            self.cargo(&[SOAK, &["--binary", &*binary]].concat());
        } else {
            eprintln!("xtask: skipped: the soak (needs root)");
        }
    }

    /// Licences, bans, duplicates and sources by `deny.toml`, where cargo-deny is installed.
    fn supply(&mut self) {
        let version = Command::new("cargo-deny").arg("--version").output();
        if version.is_ok_and(|output| output.status.success()) {
            self.cargo(DENY);
        } else {
            eprintln!("xtask: skipped: cargo deny (cargo install --locked cargo-deny)");
        }
    }

    /// The tests that failed are named each.
    fn tests(&mut self) {
        let passed = (|| {
            let mut tests = self.command(TEST).stdout(Stdio::piped()).spawn()?;
            for line in BufReader::new(tests.stdout.take().context("no output")?).lines() {
                let line = line?;
                println!("{line}");
                if line.starts_with("test ") && line.ends_with(" ... FAILED") {
                    self.failed.push(line);
                }
            }
            Ok(tests.wait()?.success())
        })();
        self.step("the tests", passed);
    }

    fn cargo(&mut self, arguments: &[&str]) {
        let status = self.command(arguments).status();
        let passed = status.map(|status| status.success());
        self.step(
            &format!("cargo {}", arguments.join(" ")),
            passed.map_err(Into::into),
        );
    }

    fn command(&self, arguments: &[&str]) -> Command {
        eprintln!("xtask: cargo {}", arguments.join(" "));
        // Cargo names itself in the environment of what it runs; else the search path serves.
        let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(program);
        command.args(arguments).current_dir(self.root);
        command
    }

    fn step(&mut self, what: &str, passed: Result<bool>) {
        match passed {
            Ok(true) => return,
            Ok(false) => self.failed.push(what.to_owned()),
            Err(error) => self.failed.push(format!("{what}: {error:#}")),
        }
        eprintln!("xtask: failed: {}", self.failed[self.failed.len() - 1]);
    }

    fn conclude(self) -> bool {
        for what in &self.failed {
            eprintln!("xtask: failed: {what}");
        }
        self.failed.is_empty()
    }
}
