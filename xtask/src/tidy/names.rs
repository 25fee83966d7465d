//! Files and modules are nouns from the glossary.

use super::finding::Findings;
use super::source::Source;

/// Names that say nothing about what is inside.
const EMPTY_NAMES: [&str; 8] = [
    "utils", "util", "common", "helpers", "helper", "misc", "shared", "manager",
];

/// No `mod.rs`, and no file, directory or inline module with an empty name.
pub(super) fn check(sources: &[Source], findings: &mut Findings) {
    for source in sources {
        let stem = source.path.trim_end_matches(".rs");
        if stem.ends_with("/mod") {
            let message = "`foo/mod.rs`: call it `foo.rs`, beside the directory";
            findings.error(&source.path, 1, message);
        }
        for part in stem.split('/').filter(|part| EMPTY_NAMES.contains(part)) {
            let message = format!("`{part}` says nothing: name the noun it owns");
            findings.error(&source.path, 1, message);
        }
        let mut previous = "";
        for ((line, _), word) in source.words() {
            let is_inline = source.code[line].contains('{');
            if previous == "mod" && is_inline && EMPTY_NAMES.contains(&word) {
                let message = format!("`mod {word}` says nothing: name the noun it owns");
                findings.error(&source.path, line + 1, message);
            }
            previous = word;
        }
    }
}
