//! `unsafe` stays behind the doors made for it, and says why it holds.
//!
//! Owns where `unsafe` may stand: in crates whose entry in `layers.toml` allows it. Clippy asks
//! for the same comment; this check also sees code that is compiled out on this machine.

use super::crates::Crate;
use super::finding::Findings;
use super::layers::Layers;
use super::source::{Source, words_of};

/// No `unsafe` outside, and a `// SAFETY:` comment on every block and impl inside.
pub(super) fn check(
    crates: &[Crate],
    layers: &Layers,
    sources: &[Source],
    findings: &mut Findings,
) {
    let may = |path: &str| {
        let member = crates.iter().find(|member| member.owns(path));
        let layer = member.and_then(|member| layers.get(&member.name));
        layer.is_some_and(|layer| layer.may_use_unsafe)
    };
    for source in sources {
        let allowed = may(&source.path);
        for ((line, column), word) in source.words() {
            if word != "unsafe" {
                continue;
            }
            if !allowed {
                let message = "`unsafe` outside the crates made for it: use or extend tabane-linux";
                findings.error(&source.path, line + 1, message);
            } else if opens_block(source, line, column) && !is_explained(source, line) {
                let message = "no `// SAFETY:` above: say why this cannot go wrong";
                findings.error(&source.path, line + 1, message);
            }
        }
    }
}

/// `unsafe {` and `unsafe impl`, not `unsafe fn`, whose callers owe the explanation.
fn opens_block(source: &Source, line: usize, column: usize) -> bool {
    let after = (line, column + "unsafe".len());
    let rest: String = source
        .characters(after)
        .map(|(_, character)| character)
        .take(200)
        .collect();
    let rest = rest.trim_start();
    rest.starts_with('{')
        || words_of(rest)
            .next()
            .is_some_and(|(_, word)| word == "impl")
}

/// Looks on the line itself, and upwards through comments, attributes and the same statement.
fn is_explained(source: &Source, line: usize) -> bool {
    let says = |line: usize| source.comments[line].contains("SAFETY:");
    if says(line) {
        return true;
    }
    for above in (0..line).rev() {
        if says(above) {
            return true;
        }
        let code = source.code[above].trim();
        let only_comment = code.is_empty() && !source.comments[above].trim().is_empty();
        let statement_goes_on = !code.is_empty() && !code.ends_with([';', '{', '}', ',']);
        if !only_comment && !statement_goes_on {
            return false;
        }
    }
    false
}
