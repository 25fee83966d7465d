//! The licences of what is linked into the program, whose texts must go with it.
//!
//! Owns which crates and libraries those are, of each build, and the one file of them all.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::tool::{compress, crates_of_others, put, said};

/// How files with such texts begin.
const NAMES: [&str; 6] = [
    "LICENSE",
    "LICENCE",
    "COPYING",
    "COPYRIGHT",
    "NOTICE",
    "UNLICENSE",
];
/// Of the distribution's package that is linked.
const USRSCTP: &str = "/usr/share/doc/libusrsctp-dev/copyright";
const MUSL: &str = include_str!("../../packaging/licences/musl");

/// What a build links.
pub(crate) struct Linked {
    /// Rust's name of the target.
    pub(crate) triple: String,
    /// Cargo's; `None` for the usual ones.
    pub(crate) features: Option<&'static str>,
}

impl Linked {
    /// Puts the texts into `directory`, with ours.
    pub(crate) fn put(&self, root: &Path, directory: &Path) -> Result<()> {
        let own = copyright(&fs::read_to_string(root.join("LICENSE-MIT"))?);
        put(&directory.join("copyright"), own.as_bytes(), 0o644)?;
        let others = directory.join("third-party");
        put(&others, self.texts(root)?.as_bytes(), 0o644)?;
        compress(&others)
    }

    /// Every text once, below the names of those whose it is.
    fn texts(&self, root: &Path) -> Result<String> {
        let mut whose: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let mut list = String::new();
        let mut add = |name: &str, text: &str| {
            let text = text.replace("\r\n", "\n").trim_end().to_owned();
            whose.entry(text).or_default().insert(name.to_owned());
        };
        for (name, terms) in self.crates(root)? {
            list += &format!("{name}: {terms}\n");
            for text in texts_of(&name)? {
                add(&name, &text);
            }
        }
        let read = |path: &Path| {
            let text = fs::read_to_string(path);
            text.with_context(|| format!("no licence to go with the program: {}", path.display()))
        };
        let sysroot = said(Command::new("rustc").args(["--print", "sysroot"]))?;
        let library = Path::new(sysroot.trim()).join("share/doc/rust/COPYRIGHT-library.html");
        add("Rust's standard library", &read(&library)?);
        if self.triple.ends_with("musl") {
            add("musl", MUSL);
        }
        if self.features.is_none() {
            add("usrsctp", &read(Path::new(USRSCTP))?);
        }
        let mut texts: Vec<(String, String)> = whose
            .into_iter()
            .map(|(text, names)| (Vec::from_iter(names).join(", "), text))
            .collect();
        texts.sort_unstable();
        let rule = "=".repeat(78);
        let texts = texts
            .iter()
            .map(|(names, text)| format!("\n{rule}\n{names}\n\n{text}\n"));
        Ok(format!(
            "tabane contains these, under these terms; https://crates.io/crates/NAME has the \
             source of each.\n\n{list}{}",
            texts.collect::<String>()
        ))
    }

    /// Others' crates that are linked, as `NAME-VERSION`, with their terms.
    fn crates(&self, root: &Path) -> Result<BTreeSet<(String, String)>> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut tree = Command::new(cargo);
        tree.args(["tree", "--locked", "--package", "tabane", "--target"]);
        tree.arg(&self.triple)
            .args(["--edges", "normal,no-proc-macro"]);
        tree.args(["--prefix", "none", "--no-dedupe", "--format", "{p}|{l}"]);
        if let Some(features) = self.features {
            tree.args(["--no-default-features", "--features", features]);
        }
        let tree = said(tree.current_dir(root))?;
        let crates = tree.lines().filter_map(|line| {
            let (package, terms) = line.split_once('|')?;
            let (name, version) = package.split_once(" v")?;
            // Ours have a place behind them.
            (!version.contains(' ')).then(|| (format!("{name}-{version}"), terms.to_owned()))
        });
        let crates: BTreeSet<_> = crates.collect();
        ensure!(!crates.is_empty(), "cargo tree names no crate:\n{tree}");
        Ok(crates)
    }
}

/// With the licence's text in Debian's form: a space before each line, a full stop for none.
fn copyright(mit: &str) -> String {
    let mit = mit.lines().map(|line| match line.trim() {
        "" => " .\n".to_owned(),
        line => format!(" {line}\n"),
    });
    let text = include_str!("../../packaging/deb/copyright");
    format!("{text}License: Expat\n{}", mit.collect::<String>())
}

/// The texts that came with a crate.
fn texts_of(name: &str) -> Result<Vec<String>> {
    let registries = crates_of_others().context("no directory of cargo's crates")?;
    let mut found = Vec::new();
    let entries = fs::read_dir(&registries);
    for registry in entries.with_context(|| format!("no {}", registries.display()))? {
        let Ok(files) = fs::read_dir(registry?.path().join(name)) else {
            continue;
        };
        for file in files {
            let file = file?.path();
            let begins = file.file_name().unwrap_or_default().to_string_lossy();
            let begins = begins.to_uppercase();
            if file.is_file() && NAMES.iter().any(|name| begins.starts_with(name)) {
                found.push(file);
            }
        }
    }
    found.sort_unstable();
    ensure!(
        !found.is_empty(),
        "{name} has no licence in {}",
        registries.display()
    );
    let read = |file: &PathBuf| Ok(String::from_utf8_lossy(&fs::read(file)?).into_owned());
    found.iter().map(read).collect()
}
