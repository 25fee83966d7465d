//! `cargo xtask fuzz`: one target of `tabane-fuzz` under libFuzzer, which needs nightly Rust and
//! `cargo install cargo-fuzz`.
//!
//! Owns the package that cargo-fuzz wants to see, which is written under `target/`: a committed one
//! would say each target's name three times, in a workspace with a lock of its own.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

const USAGE: &str = "usage: cargo xtask fuzz TARGET [OPTIONS OF libFuzzer]";

/// Runs until something fails or somebody ends it. `false` where something failed.
pub(crate) fn run(root: &Path, arguments: &[&str]) -> Result<bool> {
    let (target, options) = arguments.split_first().context(USAGE)?;
    let kept = root.join("crates/fuzz/corpus").join(target);
    ensure!(
        kept.is_dir(),
        "there is no target {target}: crates/fuzz/src/lib.rs lists them"
    );
    let directory = root.join("target/fuzz");
    let found = directory.join("corpus").join(target);
    fs::create_dir_all(&found).with_context(|| found.display().to_string())?;
    write(&directory.join("Cargo.toml"), &manifest(root, target))?;
    write(&directory.join("target.rs"), &source(target))?;
    let status = Command::new("cargo")
        .args(["+nightly", "fuzz", "run", "--fuzz-dir"])
        .args([directory.as_os_str(), target.as_ref()])
        .args([found, kept])
        .arg("--")
        .args(options)
        .current_dir(&directory)
        .status()
        .context("cannot start cargo +nightly fuzz")?;
    Ok(status.success())
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| path.display().to_string())
}

fn manifest(root: &Path, target: &str) -> String {
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
name = "{target}"
path = "target.rs"
test = false
doc = false
bench = false
"#
    )
}

fn source(target: &str) -> String {
    let call = format!("tabane_fuzz::run({target:?}, data)");
    format!("#![no_main]\n\nlibfuzzer_sys::fuzz_target!(|data: &[u8]| {call});\n")
}
