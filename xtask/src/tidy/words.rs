//! What a line may hold: its length, and words that mean the work is not done.
//!
//! Also owns the rule that every file opens with its own description.

use super::finding::Findings;
use super::source::{Source, words_of};

/// In characters. Two files side by side on a laptop, as rustfmt has it.
const MAX_LINE: usize = 100;

/// In code, with what to do.
const BANNED_CALLS: [(&str, &str); 3] = [
    ("todo!", "write it, or leave the whole function out"),
    (
        "unimplemented!",
        "write it, or leave the whole function out",
    ),
    ("dbg!", "take it out"),
];

/// In comments, as whole words, with what to do.
const BANNED_MARKS: [(&str, &str); 2] = [
    ("FIXME", "fix it, or open an issue and describe the limit"),
    ("XXX", "say in words what is wrong"),
];

pub(super) fn check(sources: &[Source], findings: &mut Findings) {
    for source in sources {
        check_opening(source, findings);
        for (index, raw) in source.raw.iter().enumerate() {
            let path = &source.path;
            let (code, comment, line) = (&source.code[index], &source.comments[index], index + 1);
            let length = raw.chars().count();
            // An address cannot be broken.
            if length > MAX_LINE && !comment.contains("https://") {
                let message = format!("{length} characters, at most {MAX_LINE}: break the line");
                findings.error(path, line, message);
            }
            for (call, remedy) in BANNED_CALLS {
                if has_call(code, call) {
                    findings.error(path, line, format!("`{call}`: {remedy}"));
                }
            }
            if code.contains("#[ignore") {
                let message = "a test that never runs: mend it, or skip with a printed reason";
                findings.error(path, line, message);
            }
            check_comment(source, index, comment, findings);
        }
    }
}

fn check_opening(source: &Source, findings: &mut Findings) {
    let opening = source.raw.first().map(String::as_str).unwrap_or_default();
    let Some(words) = opening.strip_prefix("//!") else {
        let message = "does not open with `//!`: say what it owns and what it leaves to others";
        findings.error(&source.path, 1, message);
        return;
    };
    if words.trim().is_empty() || words.contains("(being written)") {
        findings.error(
            &source.path,
            1,
            "the `//!` says nothing yet: say what the file owns",
        );
    }
}

fn check_comment(source: &Source, index: usize, comment: &str, findings: &mut Findings) {
    for (column, word) in words_of(comment) {
        for (mark, remedy) in BANNED_MARKS {
            if word == mark {
                findings.error(&source.path, index + 1, format!("`{mark}`: {remedy}"));
            }
        }
        let after = comment.chars().nth(column + word.chars().count());
        if word == "TODO" && after != Some('(') {
            let message = "`TODO` without a name: write `TODO(name)` and what follows from it";
            findings.error(&source.path, index + 1, message);
        }
    }
}

/// Whether `call` stands in `code` and is not the end of a longer name.
fn has_call(code: &str, call: &str) -> bool {
    code.match_indices(call).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        !before.is_some_and(|character| character.is_alphanumeric() || character == '_')
    })
}
