//! How large a file, a function, a blob, the command line's crate and the workspace may grow.
//!
//! Lines count outside tests, with comments and blank lines: what a reader scrolls through.

use super::crates::Crate;
use super::finding::Findings;
use super::source::{Place, Source};
use super::tree::Tree;

/// Past this, look for a second noun.
const FILE_SOFT: usize = 400;
/// Past this, there is a second noun.
const FILE_HARD: usize = 500;
/// A screen.
const FUNCTION_HARD: usize = 70;
/// Each crate is one more thing to know before anything is found.
const MOST_MANIFESTS: usize = 24;
/// The crate that parses, calls and prints, which is where things end up that have no place.
const COMMAND_LINE: &str = "tabane";
/// Past this, something in it decides, measures or runs a protocol.
const COMMAND_LINE_HARD: usize = 12_000;
/// Kilo is 1,000. Large traces and captures belong beside the repository.
const BLOB_HARD: usize = 200_000;
/// Written by cargo; nobody chooses its size.
const GENERATED: [&str; 1] = ["Cargo.lock"];

pub(super) fn check(tree: &Tree, sources: &[Source], findings: &mut Findings) {
    for source in sources {
        check_file(source, findings);
        check_functions(source, findings);
    }
    for (path, bytes) in tree.files() {
        if bytes.len() > BLOB_HARD && !GENERATED.contains(&path) {
            let message = format!(
                "{} KB, at most {}: generate it, or fetch it where it is used",
                bytes.len() / 1_000,
                BLOB_HARD / 1_000
            );
            findings.error(path, 1, message);
        }
    }
}

/// No more crates than a newcomer can keep in mind.
pub(super) fn check_crates(crates: usize, findings: &mut Findings) {
    if crates > MOST_MANIFESTS {
        let message = format!("{crates} crates, at most {MOST_MANIFESTS}: which two are one?");
        findings.error("Cargo.toml", 1, message);
    }
}

/// The command line's crate is not where everything lands.
pub(super) fn check_command_line(crates: &[Crate], sources: &[Source], findings: &mut Findings) {
    for member in crates.iter().filter(|member| member.name == COMMAND_LINE) {
        let own = sources.iter().filter(|source| member.owns(&source.path));
        let lines: usize = own.map(Source::production_lines).sum();
        if lines > COMMAND_LINE_HARD {
            let message = format!(
                "{lines} lines, at most {COMMAND_LINE_HARD}: it parses, calls and prints; what \
                 decides, measures or runs a protocol goes to the crate of that noun"
            );
            findings.error(&member.manifest(), 1, message);
        }
    }
}

fn check_file(source: &Source, findings: &mut Findings) {
    let lines = source.production_lines();
    if lines > FILE_HARD {
        let message = format!("{lines} lines, at most {FILE_HARD}: give its second noun a file");
        findings.error(&source.path, 1, message);
    } else if lines > FILE_SOFT {
        let message = format!("{lines} lines, more than {FILE_SOFT}: a second noun inside?");
        findings.hint(&source.path, 1, message);
    }
}

fn check_functions(source: &Source, findings: &mut Findings) {
    let mut previous: Option<Place> = None;
    for (place, word) in source.words() {
        // `fn` without a name beside it is a type, not a function.
        if let Some((start_line, start_column)) = previous
            && !source.test[start_line]
            && place.0 == start_line
            && place.1 == start_column + "fn ".len()
        {
            let lines = source.item_end((start_line, start_column)) - start_line + 1;
            if lines > FUNCTION_HARD {
                let message = format!("`{word}` has {lines} lines, at most {FUNCTION_HARD}");
                findings.error(&source.path, start_line + 1, message);
            }
        }
        previous = (word == "fn").then_some(place);
    }
}
