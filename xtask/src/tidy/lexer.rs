//! Rust text told apart into code and comments, so that a check looks at the one it means.
//!
//! Not a parser: it knows comments, strings, characters and lifetimes, and keeps every character
//! at its line and column. Contents of strings belong to neither part and come out as blanks.

/// A file's lines twice over, blanks standing for what belongs to the other part.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Parts {
    pub(super) code: Vec<String>,
    pub(super) comments: Vec<String>,
}

/// Splits `text`. Both parts have exactly the lines of `text`.
pub(super) fn split(text: &str) -> Parts {
    let mut lexer = Lexer {
        rest: text.chars().collect(),
        at: 0,
        code: String::with_capacity(text.len()),
        comments: String::with_capacity(text.len()),
    };
    while lexer.at < lexer.rest.len() {
        lexer.step();
    }
    let lines = |part: &str| part.lines().map(str::to_owned).collect();
    Parts {
        code: lines(&lexer.code),
        comments: lines(&lexer.comments),
    }
}

struct Lexer {
    rest: Vec<char>,
    at: usize,
    code: String,
    comments: String,
}

impl Lexer {
    fn step(&mut self) {
        match (self.peek(0), self.peek(1)) {
            ('/', '/') => self.line_comment(),
            ('/', '*') => self.block_comment(),
            ('"', _) => self.string(),
            ('\'', _) => self.character_or_lifetime(),
            (first, _) if first.is_alphabetic() || first == '_' => self.word(),
            _ => self.take_code(),
        }
    }

    fn line_comment(&mut self) {
        while self.at < self.rest.len() && self.peek(0) != '\n' {
            self.take_comment();
        }
    }

    fn block_comment(&mut self) {
        let mut depth = 0_usize;
        while self.at < self.rest.len() {
            match (self.peek(0), self.peek(1)) {
                ('/', '*') => {
                    depth += 1;
                    self.take_comment();
                }
                ('*', '/') => {
                    depth -= 1;
                    self.take_comment();
                }
                _ => {}
            }
            self.take_comment();
            if depth == 0 {
                return;
            }
        }
    }

    fn string(&mut self) {
        self.take_code();
        while self.at < self.rest.len() && self.peek(0) != '"' {
            if self.peek(0) == '\\' {
                self.blank();
            }
            self.blank();
        }
        self.take_code();
    }

    /// `r"…"` and `r#"…"#`; the opening quote is at `at + hashes`.
    fn raw_string(&mut self, hashes: usize) {
        for _ in 0..=hashes {
            self.take_code();
        }
        while self.at < self.rest.len() {
            if self.peek(0) == '"' && (1..=hashes).all(|i| self.peek(i) == '#') {
                for _ in 0..=hashes {
                    self.take_code();
                }
                return;
            }
            self.blank();
        }
    }

    fn character_or_lifetime(&mut self) {
        if self.peek(1) == '\\' {
            self.take_code();
            self.blank();
            self.blank();
            while self.at < self.rest.len() && self.peek(0) != '\'' {
                self.blank();
            }
        } else if self.peek(2) == '\'' {
            self.take_code();
            self.blank();
        }
        self.take_code();
    }

    /// An identifier or number with letters, whole, so that the `r` in `for"` opens no raw string.
    fn word(&mut self) {
        let start = self.at;
        while self.peek(0).is_alphanumeric() || self.peek(0) == '_' {
            self.take_code();
        }
        let word: String = self.rest[start..self.at].iter().collect();
        if matches!(word.as_str(), "r" | "br" | "cr") {
            let hashes = (0..).take_while(|&i| self.peek(i) == '#').count();
            if self.peek(hashes) == '"' {
                self.raw_string(hashes);
            }
        }
    }

    /// The character `ahead` of the current one; NUL past the end.
    fn peek(&self, ahead: usize) -> char {
        self.rest.get(self.at + ahead).copied().unwrap_or('\0')
    }

    fn take_code(&mut self) {
        self.take(|character| (character, ' '));
    }

    fn take_comment(&mut self) {
        self.take(|character| (' ', character));
    }

    fn blank(&mut self) {
        self.take(|_| (' ', ' '));
    }

    fn take(&mut self, place: impl FnOnce(char) -> (char, char)) {
        let Some(&character) = self.rest.get(self.at) else {
            return;
        };
        self.at += 1;
        let (code, comment) = if character == '\n' {
            ('\n', '\n')
        } else {
            place(character)
        };
        self.code.push(code);
        self.comments.push(comment);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> String {
        split(text).code.join("\n")
    }

    #[test]
    fn comments_and_strings_are_not_code() {
        assert_eq!(code("a(\"b // c\"); // d"), "a(\"      \");     ");
        assert_eq!(code("a /* b /* c */ d */ e"), "a                   e");
        assert_eq!(code(r#"f("\"", x)"#), r#"f("  ", x)"#);
    }

    #[test]
    fn raw_strings_end_at_their_own_mark() {
        assert_eq!(code("r#\"a\"b\"# c"), "r#\"   \"# c");
        assert_eq!(code("r#type = 1"), "r#type = 1");
        assert_eq!(code("br\"\\\" x"), "br\" \" x");
    }

    #[test]
    fn characters_and_lifetimes_are_told_apart() {
        assert_eq!(code("'\"' x"), "' ' x");
        assert_eq!(code(r"'\'' x"), "'  ' x");
        assert_eq!(code(r"'\u{41}' x"), "'      ' x");
        assert_eq!(code("fn f<'a>(x: &'a str)"), "fn f<'a>(x: &'a str)");
    }

    #[test]
    fn lines_and_columns_stay() {
        let parts = split("let a = \"x\ny\"; // z\nb");
        assert_eq!(parts.code, ["let a = \" ", " \";     ", "b"]);
        assert_eq!(parts.comments[1], "    // z");
        assert_eq!(parts.comments.len(), 3);
    }

    #[test]
    fn text_cut_short_ends() {
        for text in ["\"abc", "r#\"abc", "/* abc", "'\\", "'", "r#"] {
            assert_eq!(split(text).code.len(), 1, "{text}");
        }
    }
}
