//! Nouns of ours are explained in the glossary, and nowhere else invented.
//!
//! Owns which noun a public type is: the last word of its name, `PathError` is an error. It is the
//! last word of something bold in `docs/glossary.md`, or one of its last section, which everybody
//! uses so.

use std::collections::BTreeSet;

use super::finding::Findings;
use super::source::Source;
use super::tree::Tree;

const GLOSSARY: &str = "docs/glossary.md";
/// Where the words begin that need no explanation.
const ORDINARY: &str = "## Ordinary words";

/// A public type whose noun nobody explains, or an ordinary word that no type is called by.
pub(super) fn check(tree: &Tree, sources: &[Source], findings: &mut Findings) {
    let Some(text) = tree.text(GLOSSARY) else {
        return;
    };
    let (explained, ordinary) = text.split_once(ORDINARY).unwrap_or((&text, ""));
    let bold = explained.split("**").skip(1).step_by(2);
    // "One-way delay" explains a delay, and no way.
    let explained: BTreeSet<String> = bold.filter_map(|it| words(it).last()).collect();
    // The first paragraph there says what the words are for.
    let ordinary = ordinary.splitn(3, "\n\n").nth(2).unwrap_or_default();
    let ordinary: BTreeSet<String> = words(ordinary).collect();
    let mut used = BTreeSet::new();
    for source in sources.iter().filter(|it| it.path.starts_with("crates/")) {
        for (line, name) in public_types(source) {
            let noun = noun(name);
            let one = noun.strip_suffix('s').unwrap_or(&noun);
            let is_known = |words: &BTreeSet<String>| words.contains(&noun) || words.contains(one);
            if !is_known(&explained) && !is_known(&ordinary) {
                let message = format!(
                    "`{name}`: {noun} is no word of {GLOSSARY}: take one that is, or explain it \
                     there"
                );
                findings.error(&source.path, line + 1, message);
            }
            used.extend([one.to_owned(), noun]);
        }
    }
    for word in ordinary.difference(&used) {
        let message = format!("no type is called {word}: take it off the ordinary words");
        findings.error(GLOSSARY, 1, message);
    }
}

/// Of a text, in small letters.
fn words(text: &str) -> impl Iterator<Item = String> {
    let words = text.split(|character: char| !character.is_alphanumeric());
    words.filter(|word| !word.is_empty()).map(str::to_lowercase)
}

/// The last word of a name in capitals and small letters.
fn noun(name: &str) -> String {
    let start = name.rfind(char::is_uppercase).unwrap_or(0);
    name[start..].to_lowercase()
}

/// Types that other crates may name, with their lines from 0.
fn public_types(source: &Source) -> impl Iterator<Item = (usize, &str)> {
    let mut before = ["", ""];
    source.words().filter_map(move |((line, _), word)| {
        let is_type = matches!(
            before,
            ["pub", "struct" | "enum" | "trait" | "type" | "union"]
        );
        before = [before[1], word];
        (is_type && !source.test[line]).then_some((line, word))
    })
}

#[cfg(test)]
mod tests {
    use super::super::source;
    use super::*;

    const WORDS: &str =
        "| **leash**, rein | A rope. |\n\n## Ordinary words\n\nSee tidy.\n\nError, id";

    fn found(glossary: &str, code: &str) -> Vec<String> {
        let mut tree = Tree::default();
        tree.insert(GLOSSARY, glossary);
        tree.insert("crates/a/src/lib.rs", code);
        let mut findings = Findings::default();
        check(&tree, &source::parse_all(&tree), &mut findings);
        findings.errors().map(ToString::to_string).collect()
    }

    #[test]
    fn a_noun_is_explained_or_ordinary() {
        let known = "pub struct LongLeash;\npub enum ReadErrors {}\npub type Id = u8;\n";
        assert_eq!(found(WORDS, known), [""; 0]);
        let inner = "struct Rein;\npub(crate) struct Rein;\npub fn rein() {}\n";
        assert_eq!(found(WORDS, &format!("{known}{inner}")), [""; 0]);
        let ours = "crates/a/src/lib.rs:4: `LeashRein`: rein is no word of docs/glossary.md";
        let errors = found(WORDS, &format!("{known}pub trait LeashRein {{}}\n"));
        assert!(
            errors.len() == 1 && errors[0].starts_with(ours),
            "{errors:?}"
        );
    }

    #[test]
    fn an_ordinary_word_that_nobody_uses_goes() {
        let errors = found(WORDS, "pub struct Leash;\npub struct PathId;\n");
        let unused = "docs/glossary.md:1: no type is called error: take it off the ordinary words";
        assert_eq!(errors, [unused]);
    }
}
