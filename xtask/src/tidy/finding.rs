//! One thing that is not as it should be, and the list of them.
//!
//! Owns how a finding prints: `path:line: what is wrong; what to do`.

use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Weight {
    Error,
    Hint,
}

/// Where, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    path: String,
    /// Counted from 1.
    line: usize,
    message: String,
    weight: Weight,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

/// What a run of tidy has found.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    all: Vec<Finding>,
}

impl Findings {
    /// Something that fails the run. `line` counts from 1.
    pub(crate) fn error(&mut self, path: &str, line: usize, message: impl Into<String>) {
        self.push(Weight::Error, path, line, message.into());
    }

    /// Something worth a look. `line` counts from 1.
    pub(crate) fn hint(&mut self, path: &str, line: usize, message: impl Into<String>) {
        self.push(Weight::Hint, path, line, message.into());
    }

    /// By path and line, so that the output does not depend on the order of the checks.
    pub(crate) fn sort(&mut self) {
        self.all.sort();
    }

    pub(crate) fn errors(&self) -> impl Iterator<Item = &Finding> {
        self.all
            .iter()
            .filter(|finding| finding.weight == Weight::Error)
    }

    pub(crate) fn hints(&self) -> impl Iterator<Item = &Finding> {
        self.all
            .iter()
            .filter(|finding| finding.weight == Weight::Hint)
    }

    fn push(&mut self, weight: Weight, path: &str, line: usize, message: String) {
        self.all.push(Finding {
            path: path.to_owned(),
            line,
            message,
            weight,
        });
    }
}
