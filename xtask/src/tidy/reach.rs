//! Every Rust file of a crate is compiled by somebody.
//!
//! Owns the walk from the targets (`lib.rs`, `main.rs`, tests, build script) along `mod`
//! declarations. Declarations made by macros are not seen.

use std::collections::BTreeSet;

use super::crates::Crate;
use super::finding::Findings;
use super::source::Source;
use super::tree::Tree;

/// A file that no target reaches is dead.
pub(super) fn check(tree: &Tree, crates: &[Crate], sources: &[Source], findings: &mut Findings) {
    for member in crates {
        let own: Vec<&Source> = sources
            .iter()
            .filter(|file| member.owns(&file.path))
            .collect();
        let mut reached = BTreeSet::new();
        let mut waiting: Vec<String> = own
            .iter()
            .filter(|file| is_target(member, &file.path))
            .map(|file| file.path.clone())
            .collect();
        while let Some(path) = waiting.pop() {
            if reached.insert(path.clone())
                && let Some(file) = own.iter().find(|file| file.path == path)
            {
                waiting.extend(declared_files(file, is_target(member, &path), tree));
            }
        }
        for file in own.iter().filter(|file| !reached.contains(&file.path)) {
            let message = "no `mod` names this file: declare it or delete it";
            findings.error(&file.path, 1, message);
        }
    }
}

/// Whether cargo compiles the file by itself, without anybody naming it.
fn is_target(member: &Crate, path: &str) -> bool {
    let inside = path.strip_prefix(&member.directory).unwrap_or(path);
    let parts: Vec<&str> = inside.trim_start_matches('/').split('/').collect();
    let by_name = matches!(
        parts.as_slice(),
        ["build.rs"] | ["src", "lib.rs" | "main.rs"] | ["src", "bin", _, "main.rs"]
    );
    let by_place = matches!(
        parts.as_slice(),
        ["src", "bin", _]
            | ["tests" | "benches" | "examples", _]
            | ["tests" | "benches" | "examples", _, "main.rs"]
    );
    by_name || by_place || member.named_targets.iter().any(|target| target == path)
}

/// The files that `mod` and `include!` in `file` name and that exist.
fn declared_files(file: &Source, is_target: bool, tree: &Tree) -> Vec<String> {
    let (directory, name) = file.path.rsplit_once('/').unwrap_or(("", &file.path));
    let children = if is_target || name == "mod.rs" {
        directory.to_owned()
    } else {
        file.path.trim_end_matches(".rs").to_owned()
    };
    let by_name = declared_modules(file).into_iter().flat_map(|module| {
        [
            format!("{children}/{module}.rs"),
            format!("{children}/{module}/mod.rs"),
        ]
    });
    let by_path = quoted_paths(file).map(|path| format!("{directory}/{path}"));
    by_name
        .chain(by_path)
        .filter(|path| tree.contains(path))
        .collect()
}

/// `a` for `mod a;` and `b/a` for `mod b { mod a; }`.
fn declared_modules(file: &Source) -> Vec<String> {
    let mut found = Vec::new();
    // One entry per open brace; the name when it is a module's.
    let mut open: Vec<Option<String>> = Vec::new();
    let mut words = file.words().peekable();
    let mut previous = "";
    let mut named: Option<&str> = None;
    for (place, character) in file.characters((0, 0)) {
        if let Some((_, word)) = words.next_if(|(start, _)| *start == place) {
            named = (previous == "mod").then_some(word);
            previous = word;
        }
        match character {
            '{' => open.push(named.take().map(str::to_owned)),
            '}' => drop(open.pop()),
            ';' => {
                if let Some(name) = named.take() {
                    let above = open.iter().flatten().map(String::as_str);
                    found.push(above.chain([name]).collect::<Vec<_>>().join("/"));
                }
            }
            _ => {}
        }
    }
    found
}

/// What stands in quotes on lines with `#[path = "…"]` or `include!("…")`.
fn quoted_paths(file: &Source) -> impl Iterator<Item = &str> {
    file.code.iter().zip(&file.raw).filter_map(|(code, raw)| {
        let names_file = code.contains("#[path") || code.contains("include!(");
        names_file.then(|| raw.split('"').nth(1)).flatten()
    })
}
