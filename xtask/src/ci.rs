//! What the server runs (`.ci/run`), and what to run before a commit: one list.
//!
//! Owns the list of steps. Every step runs even when an earlier one failed, so that one round
//! shows everything; a step's own output goes straight to the terminal, and what failed is named
//! once more at the end, after how long each step took.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

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
/// Apart from running them, so that each has its time.
const BUILD: &[&str] = &["test", "--workspace", "--no-run"];
const TEST: &[&str] = &[
    "test",
    "--workspace",
    "--no-fail-fast",
    "--config",
    "target.'cfg(unix)'.runner = '.ci/test-runner'",
];
const SOAK: &[&str] = &["soak", "--minutes", "3"];

/// So long after the end of the tests the rest of their output is read, where it has no end.
const LEFT_OVER: Duration = Duration::from_secs(2);

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

/// Steps, how long each took, and which of them failed.
struct Round<'a> {
    root: &'a Path,
    began: Instant,
    took: Vec<(Duration, String)>,
    failed: Vec<String>,
}

impl<'a> Round<'a> {
    fn new(root: &'a Path) -> Self {
        Self {
            root,
            began: Instant::now(),
            took: Vec::new(),
            failed: Vec::new(),
        }
    }

    fn check(&mut self) {
        for arguments in [FORMAT, CLIPPY, CLIPPY_ROUTER] {
            self.cargo(arguments);
        }
        self.step("tidy", tidy::run(self.root));
        self.supply();
    }

    fn test(&mut self) {
        let root = self.root;
        if let Some(directory) = closed_to_others(root).filter(|_| is_root()) {
            let shown = directory.display();
            let what = format!("tests run tabane as `nobody`, who may not enter {shown}");
            let advice = format!("clone to another place, or: chmod o+x {shown}");
            self.step(
                "a place for tests",
                Err(anyhow::anyhow!("{what} ({advice})")),
            );
        }
        self.cargo(BUILD);
        self.tests();
        let target = std::env::var_os("CARGO_TARGET_DIR");
        let target = target.map_or_else(|| root.join("target"), PathBuf::from);
        // Both were built with the tests; `cargo run` would do it again, with other features.
        let bench = target.join("debug/tabane-bench");
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
            let soak = Command::new(bench)
                .args(SOAK)
                .args(["--binary", &*binary])
                .status();
            let passed = soak.map(|status| status.success());
            self.step("soak", passed.map_err(Into::into));
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
            let output = tests.stdout.take().context("no output")?;
            let (sender, names) = mpsc::channel();
            std::thread::spawn(move || {
                pass_on(BufReader::new(output), std::io::stdout(), |name| {
                    // Nobody hears it when the tests are long over.
                    drop(sender.send(name));
                })
            });
            let status = tests.wait()?;
            // What a test left running may hold the pipe open: it is not waited for.
            while let Ok(name) = names.recv_timeout(LEFT_OVER) {
                self.failed.push(name);
            }
            Ok(status.success())
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

    /// What has been done since the step before.
    fn step(&mut self, what: &str, passed: Result<bool>) {
        let before = self.took.iter().map(|(took, _)| *took).sum();
        let took = self.began.elapsed().saturating_sub(before);
        self.took.push((took, what.to_owned()));
        match passed {
            Ok(true) => return,
            Ok(false) => self.failed.push(what.to_owned()),
            Err(error) => self.failed.push(format!("{what}: {error:#}")),
        }
        eprintln!("xtask: failed: {}", self.failed[self.failed.len() - 1]);
    }

    fn conclude(self) -> bool {
        for (took, what) in &self.took {
            eprintln!("xtask: {:5} s  {what}", took.as_secs());
        }
        eprintln!("xtask: {:5} s  in all", self.began.elapsed().as_secs());
        for what in &self.failed {
            eprintln!("xtask: failed: {what}");
        }
        self.failed.is_empty()
    }
}

/// The directory on the way to `root` that only its owner and group may pass.
fn closed_to_others(root: &Path) -> Option<&Path> {
    let is_closed = |path: &&Path| {
        std::fs::metadata(path).is_ok_and(|found| found.permissions().mode() & 0o001 == 0)
    };
    root.ancestors().find(is_closed)
}

/// Passes the output of tests on as it is, and tells the lines that name one that failed.
fn pass_on(
    mut output: impl BufRead,
    mut to: impl Write,
    mut tell: impl FnMut(String),
) -> std::io::Result<()> {
    let mut line = Vec::new();
    while output.read_until(b'\n', &mut line)? > 0 {
        to.write_all(&line)?;
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end();
        if text.starts_with("test ") && text.ends_with(" ... FAILED") {
            tell(text.to_owned());
        }
        line.clear();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_tests_are_named_and_everything_is_passed_on() {
        let said =
            b"test a ... ok\ntest b::c ... FAILED\n\xff\ntest result: FAILED.\ntest d ... FAILED";
        let (mut passed_on, mut failed) = (Vec::new(), Vec::new());
        pass_on(&said[..], &mut passed_on, |name| failed.push(name)).unwrap();
        assert_eq!(passed_on, said);
        assert_eq!(failed, ["test b::c ... FAILED", "test d ... FAILED"]);
    }
}
