//! The project's own tools, run as `cargo xtask COMMAND`.
//!
//! Owns the dispatch and nothing else: one module per command. A plain `match`, because a few
//! words need no argument parser; a command with options of its own parses what follows its name.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

mod ci;
mod cross;
mod fuzz;
mod image;
mod instructions;
mod licences;
mod package;
mod repository;
mod router;
mod tidy;
mod tool;

const USAGE: &str = "\
usage: cargo xtask COMMAND
  tidy    what the compiler and clippy cannot check: layers, circles, sizes, nouns, dead files
  check   fmt, clippy and tidy
  test    every test, the packages, and 3 minutes of the soak
  ci      check, instructions and test: what the server runs
  bench   tabane against plain TCP and kernel MPTCP on emulated links; see bench --help
  instructions  what packets take in core, counted by valgrind; see crates/core/benches
  fuzz    one target under libFuzzer, or all; needs nightly and cargo-fuzz
  router  a small static program for routers; see router --help
  package Debian packages and archives of the program; see package --help
  cross   tests and checks for other processors; see cross --help
  image   the relay as an OCI image; see image --help
  repository  packages as apt takes them from a web server; see repository --help";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let root = repository_root();
    let outcome = match arguments
        .iter()
        .map(String::as_str)
        .collect::<Vec<_>>()
        .as_slice()
    {
        ["tidy"] => tidy::run(&root),
        ["check"] => Ok(ci::check(&root)),
        ["test"] => Ok(ci::test(&root)),
        ["ci"] => Ok(ci::check_and_test(&root)),
        ["bench", options @ ..] => bench(&root, options),
        ["instructions", options @ ..] => instructions::run(&root, options),
        ["fuzz", options @ ..] => fuzz::run(&root, options),
        ["router", options @ ..] => router::run(&root, options),
        ["repository", options @ ..] => repository::run(&root, options),
        ["cross", options @ ..] => cross::run(&root, options),
        ["image", options @ ..] => image::run(&root, options),
        ["package", options @ ..] => package::run(&root, options),
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Goes on as `tabane-bench`, a crate of its own; returns only if that fails.
fn bench(root: &Path, options: &[&str]) -> anyhow::Result<bool> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let manifest = root.join("Cargo.toml");
    let failed = Command::new(cargo)
        .args(["run", "--quiet", "--package", "tabane-bench"])
        .arg("--manifest-path")
        .arg(manifest)
        .arg("--")
        .args(options)
        .exec();
    Err(anyhow::Error::new(failed).context("cannot start cargo run --package tabane-bench"))
}

/// The directory above this crate's, wherever the command was called from.
fn repository_root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask
        .parent()
        .expect("xtask stands one level below the root")
        .to_path_buf()
}
