//! The map of the repository names every crate, and no file that is not there.

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
    check_files(tree, &text, findings);
}

/// Each file that the map names is there: `client/via.rs` is `crates/client/src/via.rs`.
fn check_files(tree: &Tree, text: &str, findings: &mut Findings) {
    let short = |path: &str| format!("/{}", path.replace("/src/", "/"));
    let files: Vec<String> = tree.paths().map(short).collect();
    let is_path = |it: char| it.is_alphanumeric() || matches!(it, '/' | '_' | '.');
    for (line, text) in text.lines().enumerate() {
        let words = text.split(|it| !is_path(it));
        for name in words.filter(|word| word.len() > 3 && word.ends_with(".rs")) {
            if !files.iter().any(|file| file.ends_with(&format!("/{name}"))) {
                let message = format!("no file is called `{name}`: where is its noun now?");
                findings.error(FILE, line + 1, message);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_on_the_map_are_there() {
        let mut tree = Tree::default();
        tree.insert(
            FILE,
            "`client/via.rs`, `via.rs`: pure\n a ─► client/gone.rs x",
        );
        tree.insert("crates/client/src/via.rs", "");
        let mut findings = Findings::default();
        check(&tree, &[], &mut findings);
        let errors: Vec<String> = findings.errors().map(ToString::to_string).collect();
        assert_eq!(
            errors,
            ["ARCHITECTURE.md:2: no file is called `client/gone.rs`: where is its noun now?"]
        );
    }
}
