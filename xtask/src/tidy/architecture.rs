//! The map of the repository names every crate.

use super::crates::Crate;
use super::finding::Findings;
use super::tree::Tree;

const FILE: &str = "ARCHITECTURE.md";

/// Each crate stands in `ARCHITECTURE.md`, as `` `name` `` or `crates/name`.
pub(super) fn check(tree: &Tree, crates: &[Crate], findings: &mut Findings) {
    let Some(text) = tree.text(FILE) else {
        findings.error(
            FILE,
            1,
            "missing: one sitting, each crate with its invariant",
        );
        return;
    };
    for member in crates {
        let (short, name) = (member.short_name(), &member.name);
        let directory = format!("{}`", member.directory);
        let forms = [format!("`{short}`"), format!("`{name}`"), directory];
        if !forms.iter().any(|form| text.contains(form)) {
            let message = format!("`{short}` is not described: say what it owns and never knows");
            findings.error(FILE, 1, message);
        }
    }
}
