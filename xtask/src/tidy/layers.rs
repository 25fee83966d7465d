//! Which crate may depend on what, and what a pure crate promises.
//!
//! Owns the meaning of `layers.toml`, whose last table, `[reasons]`, has a sentence for each
//! third-party crate. Direct dependencies only: a pure crate's third-party
//! dependencies are judged by the person who writes them into that file.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::crates::{Crate, Dependency, Kind};
use super::finding::Findings;
use super::source::Source;
use super::tree::Tree;

const FILE: &str = "layers.toml";
const REASONS: &str = "[reasons]\n";

/// One crate's entry.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Layer {
    /// No sockets, files, threads, clock, async runtime or global randomness.
    #[serde(default)]
    pub(super) pure: bool,
    #[serde(default)]
    pub(super) may_use_unsafe: bool,
    #[serde(default)]
    dependencies: Vec<String>,
    /// On top of `dependencies`, for tests.
    #[serde(default)]
    dev_dependencies: Vec<String>,
    /// On top of `dependencies`, for the build script.
    #[serde(default)]
    build_dependencies: Vec<String>,
}

/// Entries by crate name.
pub(super) type Layers = BTreeMap<String, Layer>;

impl Layer {
    fn allows(&self, dependency: &Dependency) -> bool {
        let extra: &[String] = match dependency.kind {
            Kind::Normal => &[],
            Kind::Dev => &self.dev_dependencies,
            Kind::Build => &self.build_dependencies,
        };
        self.dependencies
            .iter()
            .chain(extra)
            .any(|name| *name == dependency.name)
    }

    fn names(&self) -> impl Iterator<Item = &String> {
        self.dependencies
            .iter()
            .chain(&self.dev_dependencies)
            .chain(&self.build_dependencies)
    }
}

/// Reads `layers.toml`; when it is missing or wrong, that is a finding and nothing is allowed.
pub(super) fn read(tree: &Tree, findings: &mut Findings) -> Layers {
    let Some(text) = tree.text(FILE) else {
        findings.error(FILE, 1, "missing: it lists what each crate may depend on");
        return Layers::new();
    };
    let layers = text
        .split_once(REASONS)
        .map_or(&*text, |(before, _)| before);
    toml::from_str(layers).unwrap_or_else(|error: toml::de::Error| {
        let before = &text[..error.span().map_or(0, |span| span.start)];
        findings.error(FILE, before.matches('\n').count() + 1, error.message());
        Layers::new()
    })
}

/// Every third-party crate that an entry names has a reason, and no other has one.
fn check_reasons(text: &str, layers: &Layers, findings: &mut Findings) {
    let (before, table) = text.split_once(REASONS).unwrap_or((text, ""));
    let first_line = before.matches('\n').count() + 1;
    let reasons: BTreeMap<String, String> = match toml::from_str(table) {
        Ok(reasons) => reasons,
        Err(error) => return findings.error(FILE, first_line, error.message()),
    };
    let named: BTreeSet<&String> = layers.values().flat_map(Layer::names).collect();
    for name in named.iter().filter(|name| !layers.contains_key(**name)) {
        if reasons.get(*name).is_none_or(|reason| reason.is_empty()) {
            let message = format!("{name} has no reason under [reasons]: say what it is for");
            findings.error(FILE, first_line, message);
        }
    }
    for name in reasons.keys().filter(|name| !named.contains(name)) {
        let message = format!("no crate may depend on {name}: take its reason out");
        findings.error(FILE, first_line, message);
    }
}

/// Every direct dependency must be in its crate's entry, and purity must not leak downwards.
pub(super) fn check(tree: &Tree, crates: &[Crate], layers: &Layers, findings: &mut Findings) {
    let text = tree.text(FILE).unwrap_or_default();
    check_reasons(&text, layers, findings);
    for member in crates {
        let manifest = member.manifest();
        let Some(layer) = layers.get(&member.name) else {
            let message = format!("{} has no entry in {FILE}: add one", member.name);
            findings.error(&manifest, 1, message);
            continue;
        };
        for dependency in &member.dependencies {
            let (name, from) = (&dependency.name, &member.name);
            if !layer.allows(dependency) {
                let message = format!(
                    "{from} may not depend on {name}: do without, or add it to {FILE} and say \
                     in the commit what we would otherwise write"
                );
                findings.error(&manifest, dependency.line, message);
            }
            if layer.pure && layers.get(name).is_some_and(|target| !target.pure) {
                let message = format!("{from} is pure and {name} is not: turn the arrow round");
                findings.error(&manifest, dependency.line, message);
            }
        }
        for name in layer.names() {
            if !member
                .dependencies
                .iter()
                .any(|dependency| dependency.name == *name)
            {
                let message = format!("{} does not use {name}: take it out", member.name);
                findings.hint(FILE, entry_line(&text, &member.name), message);
            }
        }
    }
    for name in layers.keys() {
        if !crates.iter().any(|member| member.name == *name) {
            let message = format!("there is no crate {name}: take its entry out");
            findings.error(FILE, entry_line(&text, name), message);
        }
    }
}

/// Pure crates carry the same `clippy.toml`, forbid `unsafe`, and silence no purity lint.
pub(super) fn check_pure(
    tree: &Tree,
    crates: &[Crate],
    layers: &Layers,
    sources: &[Source],
    findings: &mut Findings,
) {
    let mut first: Option<(String, String)> = None;
    let is_pure = |member: &&Crate| layers.get(&member.name).is_some_and(|layer| layer.pure);
    for member in crates.iter().filter(is_pure) {
        let path = format!("{}/clippy.toml", member.directory);
        match (tree.text(&path), &first) {
            (None, _) => {
                let message = "missing: every pure crate has the copy that bans the impure";
                findings.error(&path, 1, message);
            }
            (Some(text), None) => first = Some((path, text)),
            (Some(text), Some((model, expected))) if text != *expected => {
                let line = first_difference(&text, expected);
                findings.error(
                    &path,
                    line,
                    format!("differs from {model}: make them the same"),
                );
            }
            (Some(_), Some(_)) => {}
        }
        let root = format!("{}/src/lib.rs", member.directory);
        if let Some(source) = sources.iter().find(|source| source.path == root)
            && !source
                .code
                .iter()
                .any(|line| line.trim() == "#![forbid(unsafe_code)]")
        {
            findings.error(
                &root,
                1,
                "a pure crate forbids it: add #![forbid(unsafe_code)]",
            );
        }
        for source in sources.iter().filter(|source| member.owns(&source.path)) {
            check_silencing(source, findings);
        }
    }
}

fn check_silencing(source: &Source, findings: &mut Findings) {
    for ((line, _), word) in source.words() {
        let bans = matches!(
            word,
            "disallowed_methods" | "disallowed_types" | "disallowed_macros"
        );
        if bans && !source.test[line] {
            let message = format!("{word} holds in pure crates: let the caller hand the value in");
            findings.error(&source.path, line + 1, message);
        }
    }
}

fn first_difference(text: &str, expected: &str) -> usize {
    text.lines()
        .zip(expected.lines())
        .take_while(|(left, right)| left == right)
        .count()
        + 1
}

fn entry_line(text: &str, name: &str) -> usize {
    let header = format!("[{name}]");
    text.lines()
        .position(|line| line.trim() == header)
        .map_or(1, |index| index + 1)
}
