//! No circle of files: what a file imports of its crate leads nowhere that imports it.
//!
//! Owns who imports whom: the paths by `crate::` and `super::` outside tests, and the file that
//! each leads to, which is the deepest module it names. A parent and its children are one noun
//! with parts, so what a parent says of its own children (`mod a; use a::B;`) is no import.
//! Imports by macros are not seen.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::crates::Crate;
use super::finding::Findings;
use super::source::Source;

/// A module's path below the crate's root.
type Module<'a> = Vec<&'a str>;
/// A crate's files.
type Files<'a> = BTreeMap<Module<'a>, &'a Source>;
/// By module: what it imports, with the line of the first such import, counted from 1.
type Imports<'a> = BTreeMap<Module<'a>, BTreeMap<Module<'a>, usize>>;

/// A circle is told once, at the import by which its first file begins it.
pub(super) fn check(crates: &[Crate], sources: &[Source], findings: &mut Findings) {
    for member in crates {
        let root = format!("{}/src/", member.directory);
        let files: Files<'_> = sources
            .iter()
            .filter(|file| file.production_lines() > 0)
            .filter_map(|file| Some((module(file.path.strip_prefix(&root)?), file)))
            .collect();
        let imports: Imports<'_> = files
            .iter()
            .map(|(module, file)| (module.clone(), imports(module, file, &files)))
            .collect();
        let mut told = BTreeSet::new();
        for module in imports.keys() {
            if told.contains(module) {
                continue;
            }
            let Some(circle) = circle(module, &imports) else {
                continue;
            };
            let others: Vec<&str> = circle[1..]
                .iter()
                .map(|module| files[module].path.as_str())
                .collect();
            let message = format!(
                "a circle of imports by way of {}: move what both need below them",
                others.join(", ")
            );
            let line = imports[module][&circle[1]];
            findings.error(&files[module].path, line, message);
            told.extend(circle);
        }
    }
}

/// `a/b.rs` is `a::b`; a target's own file is the root.
fn module(path: &str) -> Module<'_> {
    match path {
        "lib.rs" | "main.rs" => Vec::new(),
        _ => path.trim_end_matches(".rs").split('/').collect(),
    }
}

/// What a file imports, but for itself.
fn imports<'a>(
    module: &Module<'a>,
    file: &'a Source,
    files: &Files<'a>,
) -> BTreeMap<Module<'a>, usize> {
    let mut imports = BTreeMap::new();
    let mut reader = Reader {
        tokens: tokens(file),
        at: 0,
    };
    while let Some((line, paths)) = reader.next_paths() {
        for path in paths {
            if let Some(to) = leads_to(&path, module, files)
                && to != *module
            {
                imports.entry(to).or_insert(line + 1);
            }
        }
    }
    imports
}

/// The deepest module that `path`, written in `module`, names.
fn leads_to<'a>(path: &[&'a str], module: &Module<'a>, files: &Files<'a>) -> Option<Module<'a>> {
    let ups = path.iter().take_while(|word| **word == "super").count();
    let base: &[&str] = match path.first() {
        Some(&"crate") => &[],
        _ => &module[..module.len().saturating_sub(ups)],
    };
    let below = &path[ups.max(1)..];
    let mut named: Module<'a> = base.iter().chain(below).copied().collect();
    while !files.contains_key(&named) {
        named.pop()?;
    }
    Some(named)
}

/// The shortest way from `module` back to it: what lies on it, itself first.
fn circle<'a>(module: &Module<'a>, imports: &Imports<'a>) -> Option<Vec<Module<'a>>> {
    let mut ways = VecDeque::from([vec![module]]);
    let mut seen = BTreeSet::new();
    while let Some(way) = ways.pop_front() {
        for next in imports[way[way.len() - 1]].keys() {
            if next == module {
                return Some(way.into_iter().cloned().collect());
            }
            if seen.insert(next) {
                ways.push_back(way.iter().copied().chain([next]).collect());
            }
        }
    }
    None
}

/// Words, `::` and other characters outside tests, each with its line from 0.
fn tokens(file: &Source) -> Vec<(usize, &str)> {
    let is_word = |character: char| character.is_alphanumeric() || character == '_';
    let mut tokens = Vec::new();
    let lines = file.code.iter().zip(&file.test).enumerate();
    for (line, (code, _)) in lines.filter(|(_, (_, is_test))| !**is_test) {
        let mut rest = code.trim_start();
        while let Some(first) = rest.chars().next() {
            let length = match first {
                _ if is_word(first) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
                ':' if rest.starts_with("::") => 2,
                _ => first.len_utf8(),
            };
            tokens.push((line, &rest[..length]));
            rest = rest[length..].trim_start();
        }
    }
    tokens
}

struct Reader<'a> {
    tokens: Vec<(usize, &'a str)>,
    at: usize,
}

impl<'a> Reader<'a> {
    /// The next tree of paths that begins with `crate` or `super`, with its line.
    fn next_paths(&mut self) -> Option<(usize, Vec<Vec<&'a str>>)> {
        loop {
            let line = self.tokens.get(self.at)?.0;
            let before = self.at.checked_sub(1).map(|at| self.tokens[at].1);
            // `pub(in crate::a)` says who may see; `$crate` is a macro's.
            let is_other = matches!(before, Some("in" | "::" | "$"));
            if !is_other && matches!(self.peek(0), "crate" | "super") && self.peek(1) == "::" {
                let mut paths = Vec::new();
                self.read_tree(&[], &mut paths);
                return Some((line, paths));
            }
            self.at += 1;
        }
    }

    /// `a::b`, `a::{b, c as d}`, `a::*`: every path behind `before`.
    fn read_tree(&mut self, before: &[&'a str], paths: &mut Vec<Vec<&'a str>>) {
        let mut path = before.to_vec();
        while let Some((_, token)) = self.tokens.get(self.at).copied() {
            self.at += 1;
            if token == "{" {
                while !matches!(self.peek(0), "}" | "") {
                    self.read_tree(&path, paths);
                    while !matches!(self.peek(0), "," | "}" | "") {
                        self.at += 1;
                    }
                    self.at += usize::from(self.peek(0) == ",");
                }
                self.at += 1;
                return;
            }
            path.push(token);
            if self.peek(0) != "::" {
                break;
            }
            self.at += 1;
        }
        paths.push(path);
    }

    /// The token `ahead` of the current one; nothing past the end.
    fn peek(&self, ahead: usize) -> &'a str {
        self.tokens.get(self.at + ahead).map_or("", |token| token.1)
    }
}

#[cfg(test)]
mod tests {
    use super::super::crates;
    use super::super::source;
    use super::super::tree::Tree;
    use super::*;

    /// What is found in a crate of these files.
    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let mut tree = Tree::default();
        tree.insert("Cargo.toml", "[workspace]\n");
        tree.insert(
            "crates/a/Cargo.toml",
            "[package]\nname = \"tabane-a\"\n[lints]\nworkspace = true\n",
        );
        for (path, text) in files {
            tree.insert(&format!("crates/a/src/{path}"), *text);
        }
        let mut findings = Findings::default();
        let crates = crates::read(&tree, &mut findings);
        check(&crates, &source::parse_all(&tree), &mut findings);
        findings.errors().map(ToString::to_string).collect()
    }

    #[test]
    fn a_circle_is_told_once_with_all_that_are_on_it() {
        let files = [
            ("lib.rs", "mod x;\nmod y;\nmod z;\n"),
            ("x.rs", "\nuse crate::y::{self, Y as N};\n"),
            ("y.rs", "pub struct Y(super::z::deep::Z);\n"),
            ("z.rs", "mod deep;\n"),
            ("z/deep.rs", "use super::super::{x::X};\npub struct Z;\n"),
        ];
        let told = "crates/a/src/x.rs:2: a circle of imports by way of crates/a/src/y.rs, \
                    crates/a/src/z/deep.rs: move what both need below them";
        assert_eq!(found(&files), [told]);
    }

    #[test]
    fn what_is_no_import_makes_no_circle() {
        let files = [
            ("lib.rs", "mod x;\nmod y;\nuse x::X;\n"),
            ("x.rs", "use crate::y::Y;\nuse crate::x::own;\n"),
            (
                "y.rs",
                "// crate::x::X\npub(in crate::x) struct Y;\n\
                 macro_rules! m { () => { $crate::x::X } }\n\
                 #[cfg(test)]\nmod tests {\n    use crate::x::X;\n}\n",
            ),
            ("y/tests.rs", "use crate::x::X;\n"),
        ];
        assert_eq!(found(&files), [""; 0]);
    }

    #[test]
    fn paths_in_braces_and_names_that_begin_alike_are_told_apart() {
        let files = [
            ("main.rs", "mod x;\nmod x_y;\n"),
            ("x.rs", "use crate::{x_y};\n"),
            ("x_y.rs", "use super::x_z::{A};\nuse {super::x};\n"),
        ];
        assert_eq!(found(&files).len(), 1);
    }
}
