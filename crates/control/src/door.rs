//! Who may come in over HTTP: whoever shows the token.

use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;

/// What a request without it is told.
pub(crate) const ASK: &str =
    "show the token of the instance's .token file: Authorization: Bearer TOKEN";

/// A door that opens to one token.
#[derive(Debug)]
pub(crate) struct Door {
    token: String,
}

impl Door {
    pub(crate) fn new(token: String) -> Self {
        Self { token }
    }

    pub(crate) fn admits(&self, headers: &HeaderMap) -> bool {
        let shown = headers.get(AUTHORIZATION);
        let shown = shown.and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
        shown.is_some_and(|shown| is_same(shown, self.token.as_bytes()))
    }
}

/// Takes the same time wherever they differ.
fn is_same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_compared_whole() {
        assert!(is_same(b"abc", b"abc"));
        assert!(!is_same(b"abc", b"abd") && !is_same(b"ab", b"abc") && !is_same(b"", b"a"));
    }
}
