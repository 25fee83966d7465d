//! One Rust file as the checks see it: raw lines, code, comments, and which lines are tests.
//!
//! Owns the search for where an item ends. Lines count from 0 here and from 1 in findings.

use super::lexer;
use super::tree::Tree;

/// A `.rs` file, taken apart.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) path: String,
    pub(super) raw: Vec<String>,
    pub(super) code: Vec<String>,
    pub(super) comments: Vec<String>,
    /// Per line: belongs to a test, so that neither sizes nor purity are asked of it.
    pub(super) test: Vec<bool>,
}

/// A place in a file: line and column (in characters), both from 0.
pub(super) type Place = (usize, usize);

/// Every Rust file of the tree, in the order of the paths.
pub(super) fn parse_all(tree: &Tree) -> Vec<Source> {
    tree.paths()
        .filter(|path| path.ends_with(".rs"))
        .filter_map(|path| Some(Source::parse(path, &tree.text(path)?)))
        .collect()
}

impl Source {
    pub(super) fn parse(path: &str, text: &str) -> Self {
        let raw: Vec<String> = text.lines().map(str::to_owned).collect();
        let lexer::Parts { code, comments } = lexer::split(text);
        let all_tests = is_test_path(path);
        let mut source = Self {
            path: path.to_owned(),
            test: vec![all_tests; raw.len()],
            raw,
            code,
            comments,
        };
        if !all_tests {
            source.mark_test_items();
        }
        source
    }

    /// Lines outside tests, comments and blank lines included: what a reader scrolls through.
    pub(super) fn production_lines(&self) -> usize {
        self.test.iter().filter(|test| !**test).count()
    }

    /// Every identifier and keyword of the code, in order, with its place.
    pub(super) fn words(&self) -> impl Iterator<Item = (Place, &str)> {
        self.code.iter().enumerate().flat_map(|(line, code)| {
            words_of(code).map(move |(column, word)| ((line, column), word))
        })
    }

    /// The characters of the code from `from` on, line ends left out.
    pub(super) fn characters(&self, from: Place) -> impl Iterator<Item = (Place, char)> {
        self.code
            .iter()
            .enumerate()
            .skip(from.0)
            .flat_map(move |(line, code)| {
                let skipped = if line == from.0 { from.1 } else { 0 };
                let characters = code.chars().enumerate().skip(skipped);
                characters.map(move |(column, character)| ((line, column), character))
            })
    }

    /// The line on which the item that starts at `from` ends: at its `;`, or its closing brace.
    pub(super) fn item_end(&self, from: Place) -> usize {
        let mut depth = 0_i32;
        for ((line, _), character) in self.characters(from) {
            match character {
                '(' | '[' | '{' => depth += 1,
                ')' | ']' | '}' => {
                    depth -= 1;
                    if character == '}' && depth <= 0 {
                        return line;
                    }
                }
                ';' if depth == 0 => return line,
                _ => {}
            }
        }
        self.code.len().saturating_sub(1)
    }

    fn mark_test_items(&mut self) {
        let starts: Vec<Place> = self
            .code
            .iter()
            .enumerate()
            .filter(|(_, code)| {
                let code = code.trim_start();
                code.starts_with("#[cfg(test)]") || code.starts_with("#[cfg(all(test,")
            })
            .map(|(line, code)| (line, code.chars().take_while(|c| c.is_whitespace()).count()))
            .collect();
        for start in starts {
            let end = self.item_end(self.after_attributes(start));
            self.test[start.0..=end].fill(true);
        }
    }

    /// The place after the run of attributes that starts at `from`.
    fn after_attributes(&self, from: Place) -> Place {
        let mut depth = 0_i32;
        for (place, character) in self.characters(from) {
            match character {
                '[' => depth += 1,
                ']' => depth -= 1,
                '#' | ' ' => {}
                _ if depth == 0 => return place,
                _ => {}
            }
        }
        from
    }
}

/// The identifiers and keywords in a line of code, with their columns (in characters).
pub(super) fn words_of(code: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_word = |character: char| character.is_alphanumeric() || character == '_';
    let mut column = 0;
    code.split_inclusive(move |character| !is_word(character))
        .filter_map(move |piece| {
            let start = column;
            column += piece.chars().count();
            let word = piece.trim_end_matches(move |character| !is_word(character));
            (!word.is_empty()).then_some((start, word))
        })
}

fn is_test_path(path: &str) -> bool {
    let (directories, file) = path.rsplit_once('/').unwrap_or(("", path));
    file == "tests.rs"
        || file.ends_with("_tests.rs")
        || directories
            .split('/')
            .any(|directory| matches!(directory, "tests" | "benches"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_modules_are_no_production_lines() {
        let text = "//! x\nfn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\nfn c() {}\n";
        let source = Source::parse("src/a.rs", text);
        assert_eq!(source.production_lines(), 3);
        let whole = Source::parse("src/a/tests.rs", text);
        assert_eq!(whole.production_lines(), 0);
    }

    #[test]
    fn a_test_only_import_ends_at_its_semicolon() {
        let text = "#[cfg(test)]\n#[allow(dead_code)]\nuse a::{b, c};\nfn d() {}\n";
        assert_eq!(Source::parse("src/a.rs", text).production_lines(), 1);
        let declared = "#[cfg(test)]\nmod tests;\nfn d() {}\n";
        assert_eq!(Source::parse("src/a.rs", declared).production_lines(), 1);
    }

    #[test]
    fn words_carry_their_columns() {
        let words: Vec<_> = words_of("  fn a_b(x: u8) -> é {").collect();
        assert_eq!(
            words,
            [(2, "fn"), (5, "a_b"), (9, "x"), (12, "u8"), (19, "é")]
        );
    }

    #[test]
    fn items_end_where_their_braces_close() {
        let source = Source::parse("src/a.rs", "fn a(x: [u8; 3]) {\n  { ; }\n}\nfn b() {}\n");
        assert_eq!(source.item_end((0, 0)), 2);
    }
}
