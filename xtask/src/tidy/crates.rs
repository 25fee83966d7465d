//! The workspace's crates as their manifests describe them.
//!
//! Owns the reading of `Cargo.toml`: names, direct dependencies of every kind, target files. What
//! a dependency is allowed to be is decided in `layers`.

use toml::{Table, Value};

use super::finding::Findings;
use super::tree::Tree;

/// When a dependency is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Normal,
    Dev,
    Build,
}

/// A direct dependency, under the name it has in the registry.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Dependency {
    pub(super) name: String,
    pub(super) kind: Kind,
    /// Where the manifest names it, counted from 1.
    pub(super) line: usize,
}

/// A member of the workspace.
#[derive(Debug)]
pub(super) struct Crate {
    pub(super) name: String,
    /// `crates/core`, without a slash at the end.
    pub(super) directory: String,
    pub(super) dependencies: Vec<Dependency>,
    /// Target files that the manifest names, beside those that cargo finds by itself.
    pub(super) named_targets: Vec<String>,
}

impl Crate {
    pub(super) fn manifest(&self) -> String {
        format!("{}/Cargo.toml", self.directory)
    }

    /// The last part of the directory, which is what people call the crate.
    pub(super) fn short_name(&self) -> &str {
        self.directory.rsplit('/').next().unwrap_or(&self.directory)
    }

    /// Whether `path` is one of its files.
    pub(super) fn owns(&self, path: &str) -> bool {
        path.strip_prefix(&self.directory)
            .is_some_and(|rest| rest.starts_with('/'))
    }
}

/// Reads every member's manifest; one that cannot be read is a finding.
pub(super) fn read(tree: &Tree, findings: &mut Findings) -> Vec<Crate> {
    let root = tree
        .text("Cargo.toml")
        .and_then(|text| text.parse::<Table>().ok());
    let shared = root.as_ref().and_then(|root| {
        root.get("workspace")?
            .as_table()?
            .get("dependencies")?
            .as_table()
            .cloned()
    });
    let shared = shared.unwrap_or_default();
    let mut crates = Vec::new();
    for path in tree.paths() {
        let Some(directory) = path.strip_suffix("/Cargo.toml") else {
            continue;
        };
        let is_member = directory == "xtask"
            || directory
                .strip_prefix("crates/")
                .is_some_and(|name| !name.contains('/'));
        if !is_member {
            continue;
        }
        let text = tree.text(path).unwrap_or_default();
        match text.parse::<Table>() {
            Ok(manifest) => crates.push(read_one(directory, &text, &manifest, &shared, findings)),
            Err(error) => findings.error(path, 1, format!("no valid TOML: {error}")),
        }
    }
    crates
}

fn read_one(
    directory: &str,
    text: &str,
    manifest: &Table,
    shared: &Table,
    findings: &mut Findings,
) -> Crate {
    let name = manifest
        .get("package")
        .and_then(|package| package.get("name")?.as_str())
        .unwrap_or_default()
        .to_owned();
    let member = Crate {
        name,
        directory: directory.to_owned(),
        dependencies: dependencies(text, manifest, shared),
        named_targets: named_targets(directory, manifest),
    };
    let short = member.short_name();
    if member.name != short && member.name != format!("tabane-{short}") {
        let message = format!("the crate in {directory} is called tabane-{short}: rename it");
        findings.error(&member.manifest(), line_of(text, "name"), message);
    }
    let inherits = manifest
        .get("lints")
        .and_then(|lints| lints.get("workspace")?.as_bool());
    if inherits != Some(true) {
        let message = "the workspace's lints are not asked for: add `[lints] workspace = true`";
        findings.error(&member.manifest(), 1, message);
    }
    member
}

fn dependencies(text: &str, manifest: &Table, shared: &Table) -> Vec<Dependency> {
    let per_platform = manifest
        .get("target")
        .and_then(Value::as_table)
        .into_iter()
        .flat_map(Table::values)
        .filter_map(Value::as_table);
    let sections = [
        ("dependencies", Kind::Normal),
        ("dev-dependencies", Kind::Dev),
        ("build-dependencies", Kind::Build),
    ];
    let mut found = Vec::new();
    for owner in std::iter::once(manifest).chain(per_platform) {
        for (section, kind) in sections {
            let Some(entries) = owner.get(section).and_then(Value::as_table) else {
                continue;
            };
            for (key, value) in entries {
                // Either place may rename; the registry's name is the one that counts.
                let renamed = |value: &Value| Some(value.get("package")?.as_str()?.to_owned());
                let name = renamed(value).or_else(|| renamed(shared.get(key)?));
                let name = name.unwrap_or_else(|| key.clone());
                found.push(Dependency {
                    name,
                    kind,
                    line: line_of(text, key),
                });
            }
        }
    }
    found
}

fn named_targets(directory: &str, manifest: &Table) -> Vec<String> {
    let path_of = |target: &Value| {
        let path = target.get("path")?.as_str()?;
        Some(format!("{directory}/{path}"))
    };
    let lists = ["bin", "test", "bench", "example"]
        .into_iter()
        .filter_map(|kind| manifest.get(kind)?.as_array())
        .flatten();
    let build = manifest
        .get("package")
        .and_then(|package| package.get("build")?.as_str())
        .map(|path| format!("{directory}/{path}"));
    lists
        .chain(manifest.get("lib"))
        .filter_map(path_of)
        .chain(build)
        .collect()
}

/// The line, from 1, on which `key` is set; the first when it is not found as a plain key.
fn line_of(text: &str, key: &str) -> usize {
    let sets_key = |line: &str| {
        line.strip_prefix(key)
            .is_some_and(|rest| rest.starts_with(['.', ' ', '=']))
    };
    text.lines()
        .position(|line| sets_key(line.trim_start()))
        .map_or(1, |index| index + 1)
}
