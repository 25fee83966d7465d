//! `cargo xtask tidy`: the rules of the house that neither the compiler nor clippy checks.
//!
//! Owns the order of the checks and the printing. Each check is a pure function from a [`Tree`]
//! (paths and contents) to findings, in a file of its own, so that its tests need no disk.
//! A finding says where, what is wrong and what to do; hints are printed and never fail.

use std::path::Path;

use anyhow::Result;

mod architecture;
mod circles;
mod crates;
mod finding;
mod glossary;
mod layers;
mod lexer;
mod names;
mod reach;
mod size;
mod source;
mod tree;
mod unsafety;
mod words;

#[cfg(test)]
mod tests;

use finding::Findings;
use tree::Tree;

/// Checks the repository at `root` and prints what was found. `false` when there is an error.
pub(crate) fn run(root: &Path) -> Result<bool> {
    let tree = Tree::read(root)?;
    let findings = check(&tree);
    for hint in findings.hints() {
        println!("hint: {hint}");
    }
    for error in findings.errors() {
        eprintln!("tidy: {error}");
    }
    let (errors, hints) = (findings.errors().count(), findings.hints().count());
    println!(
        "tidy: {} files, {errors} errors, {hints} hints",
        tree.paths().count()
    );
    Ok(errors == 0)
}

fn check(tree: &Tree) -> Findings {
    let mut findings = Findings::default();
    let crates = crates::read(tree, &mut findings);
    let layers = layers::read(tree, &mut findings);
    let sources = source::parse_all(tree);
    layers::check(tree, &crates, &layers, &mut findings);
    layers::check_pure(tree, &crates, &layers, &sources, &mut findings);
    architecture::check(tree, &crates, &mut findings);
    reach::check(tree, &crates, &sources, &mut findings);
    circles::check(&crates, &sources, &mut findings);
    unsafety::check(&crates, &layers, &sources, &mut findings);
    names::check(&sources, &mut findings);
    glossary::check(tree, &sources, &mut findings);
    words::check(&sources, &mut findings);
    size::check(tree, &sources, &mut findings);
    size::check_crates(crates.len(), &mut findings);
    size::check_command_line(&crates, &sources, &mut findings);
    findings.sort();
    findings
}
