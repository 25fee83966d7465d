//! Spans of time as users write them: `90s`, `5m`, `2h`.

use std::str::FromStr;

use tabane_base::{Duration, scaled_number};

use crate::as_text::read_as_text;

/// A span of whole seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span(pub Duration);

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // Whole numbers only, and nothing between them and their unit.
        let is_plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric());
        scaled_number(text, &[("s", 1), ("m", 60), ("h", 3_600)])
            .filter(|_| is_plain)
            .map(|seconds| Self(Duration::from_secs(seconds)))
            .ok_or_else(|| format!("'{text}' is no span of time; write it like 90s, 5m or 2h"))
    }
}

read_as_text!(Span);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_a_unit() {
        let seconds = |text: &str| text.parse::<Span>().map(|span| span.0.as_secs());
        assert_eq!(seconds("90s"), Ok(90));
        assert_eq!(seconds("5m"), Ok(300));
        assert_eq!(seconds("2h"), Ok(7_200));
        for bad in ["", "5", "m", "-1s", "+1s", "1.5h", "5 m", "5ä"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}
