//! `cargo xtask fuzz`: targets of `tabane-fuzz` under libFuzzer, which needs nightly Rust and
//! `cargo install cargo-fuzz`.
//!
//! Owns the package that cargo-fuzz wants to see, which is written under `target/` with one program
//! for all targets: committed ones would say each target's name three times, in a workspace with a
//! lock of its own. And when it is enough: `--still MINUTES` ends a run that has found no new edge
//! for so many minutes of its own processor time, which mean the same on a busy machine.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

const USAGE: &str = "usage: cargo xtask fuzz TARGET [--still MINUTES] [OPTIONS OF libFuzzer]
       cargo xtask fuzz all --still MINUTES [OPTIONS OF libFuzzer]";
/// The one program, and how it is told which target it is.
const PROGRAM: &str = "doors";
const VARIABLE: &str = "TABANE_FUZZ_TARGET";
/// Of the times in /proc/PID/stat: fixed for programs (`USER_HZ`, proc_pid_stat(5)).
const TICKS_PER_MINUTE: u64 = 100 * 60;
/// How often it is looked whether it is enough.
const LOOK: Duration = Duration::from_secs(10);

/// Runs until something fails, somebody ends it, or its coverage has stood still for as long as
/// was asked; `all` targets one after the other, the next one also after a failure. `false` where
/// something failed.
pub(crate) fn run(root: &Path, arguments: &[&str]) -> Result<bool> {
    let (target, options) = arguments.split_first().context(USAGE)?;
    let (still, options) = match options {
        ["--still", minutes, rest @ ..] => (Some(minutes.parse::<u64>().context(USAGE)?), rest),
        rest => (None, rest),
    };
    ensure!(*target != "all" || still.is_some(), USAGE);
    let corpora = root.join("crates/fuzz/corpus");
    let mut known = Vec::new();
    for corpus in fs::read_dir(&corpora).context("the corpora")? {
        known.push(corpus?.file_name().to_string_lossy().into_owned());
    }
    known.sort_unstable();
    known.retain(|known| *target == "all" || target == known);
    ensure!(
        !known.is_empty(),
        "there is no target {target}: crates/fuzz/src/lib.rs lists them"
    );
    let directory = root.join("target/fuzz");
    let program = build(root, &directory)?;
    let mut passed = true;
    for target in &known {
        let found = directory.join("corpus").join(target);
        fs::create_dir_all(&found).with_context(|| found.display().to_string())?;
        let mut command = Command::new(&program);
        command.args([found, corpora.join(target)]).args(options);
        // What fails is written there.
        command.current_dir(&directory).env(VARIABLE, target);
        passed &= match still {
            None => command.status().context("cannot start it")?.success(),
            Some(minutes) => until_still(target, command, minutes * TICKS_PER_MINUTE)?,
        };
    }
    Ok(passed)
}

fn build(root: &Path, directory: &Path) -> Result<PathBuf> {
    fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    write(&directory.join("Cargo.toml"), &manifest(root))?;
    write(&directory.join("doors.rs"), &source())?;
    let built = Command::new("cargo")
        .args(["+nightly", "fuzz", "build", "--fuzz-dir"])
        .args([directory.as_os_str(), PROGRAM.as_ref()])
        .current_dir(directory)
        .status();
    let built = built.context("cannot start cargo +nightly fuzz")?;
    ensure!(built.success(), "it does not build");
    program(directory)
}

/// The program that cargo-fuzz has built, in a directory by the machine's kind.
fn program(directory: &Path) -> Result<PathBuf> {
    let kinds = fs::read_dir(directory.join("target")).context("what was built")?;
    let built = kinds.filter_map(|kind| Some(kind.ok()?.path().join("release").join(PROGRAM)));
    let mut built = built.filter(|path| path.is_file());
    built.next().context("nothing was built")
}

/// Watches what libFuzzer says of its coverage, which is passed on; ends it in time.
fn until_still(target: &str, mut command: Command, most: u64) -> Result<bool> {
    command.arg("-print_final_stats=1").stderr(Stdio::piped());
    let mut child = command.spawn().context("cannot start the target")?;
    let said = BufReader::new(child.stderr.take().context("no output")?).lines();
    let (tell, lines) = mpsc::channel();
    thread::spawn(move || {
        said.map_while(Result::ok)
            .try_for_each(|line| tell.send(line))
    });
    let (mut edges, mut grown_at, mut now, mut is_asked) = (0, 0, 0, false);
    loop {
        // It may have nothing to say for long.
        match lines.recv_timeout(LOOK) {
            Ok(line) => {
                eprintln!("{line}");
                if let Some(covered) = covered(&line).filter(|covered| *covered > edges) {
                    (edges, grown_at) = (covered, ticks(child.id()).unwrap_or(now));
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        now = ticks(child.id()).unwrap_or(now);
        if now - grown_at >= most && !is_asked {
            is_asked = true;
            // As by Ctrl+C: it sums up.
            let id = child.id().to_string();
            let asked = Command::new("kill").args(["-INT", &id]).status();
            ensure!(asked.context("kill")?.success(), "it does not end");
        }
    }
    let status = child.wait().context("its end")?;
    let minutes = |ticks| ticks as f64 / TICKS_PER_MINUTE as f64;
    println!(
        "{target}: {edges} edges in {:.1} minutes of processor time, the last one after {:.1}",
        minutes(now),
        minutes(grown_at),
    );
    Ok(is_asked || status.success())
}

/// The edges that a line of libFuzzer's tells of.
fn covered(line: &str) -> Option<u64> {
    let (_, rest) = line.split_once(" cov: ")?;
    rest.split(' ').next()?.parse().ok()
}

/// Processor time of a process; its name may hold spaces.
fn ticks(process: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

/// What is there already stays as it is, or it would be built again.
fn write(path: &Path, text: &str) -> Result<()> {
    if fs::read_to_string(path).is_ok_and(|there| there == text) {
        return Ok(());
    }
    fs::write(path, text).with_context(|| path.display().to_string())
}

fn manifest(root: &Path) -> String {
    let fuzz = root.join("crates/fuzz");
    format!(
        r#"[package]
name = "tabane-libfuzzer"
version = "0.0.0"
publish = false
edition = "2024"

[package.metadata]
cargo-fuzz = true

[workspace]

[dependencies]
libfuzzer-sys = "0.4"
tabane-fuzz = {{ path = {fuzz:?} }}

[profile.release]
debug = 1
overflow-checks = true
debug-assertions = true

[[bin]]
name = "{PROGRAM}"
path = "doors.rs"
test = false
doc = false
bench = false
"#
    )
}

fn source() -> String {
    format!(
        r#"#![no_main]

static TARGET: std::sync::LazyLock<String> =
    std::sync::LazyLock::new(|| std::env::var("{VARIABLE}").expect("cargo xtask fuzz says it"));

libfuzzer_sys::fuzz_target!(|data: &[u8]| tabane_fuzz::run(&TARGET, data));
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coverage_is_read_from_what_libfuzzer_says() {
        let line = "#4096\tNEW    cov: 312 ft: 400 corp: 3/10b lim: 43 exec/s: 2048 rss: 40Mb";
        assert_eq!(covered(line), Some(312));
        assert_eq!(covered("INFO: Seed: 1"), None);
    }

    #[test]
    fn time_of_a_process_is_its_own() {
        let mut sum = 0_u64;
        let before = ticks(std::process::id()).expect("it runs");
        while ticks(std::process::id()).expect("it runs") == before {
            sum = (0..1_000_000).fold(sum, u64::wrapping_add);
        }
        assert_eq!(ticks(0), None);
    }
}
