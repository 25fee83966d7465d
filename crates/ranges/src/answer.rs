//! What a server answered, and whether it is about the file we have begun with.
//!
//! Owns the one rule that keeps versions apart: bytes are used only where the answer names the
//! range that was asked for, the file's length, and the strong entity tag that the first answer
//! named (RFC 9110 §13.1.5, §14.4, §15.3.7). Reading headers into these values is the caller's.

use std::fmt;

use tabane_base::Duration;

/// A strong entity tag, with its quotes, as the server wrote it (RFC 9110 §8.8.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntityTag(String);

impl EntityTag {
    /// Reads the value of an `ETag` header; `None` where it is weak, or no tag at all: neither says
    /// that bytes are the same.
    #[must_use]
    pub fn strong(value: &str) -> Option<Self> {
        let value = value.trim();
        let inner = value.strip_prefix('"')?.strip_suffix('"')?;
        let is_etagc = |c: char| c != '"' && (c.is_ascii_graphic() || !c.is_ascii());
        (inner.chars().all(is_etagc) && value.len() > 1).then(|| Self(value.to_owned()))
    }

    /// As it goes into `If-Range`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for EntityTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A `Content-Range` header of an answer with one range (RFC 9110 §14.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentRange {
    /// `bytes first-last/total`; the total may be `*`.
    Part {
        /// Position of the first byte.
        first: u64,
        /// Position of the last byte.
        last: u64,
        /// The file's length.
        total: Option<u64>,
    },
    /// `bytes */total`: there is no such range.
    None {
        /// The file's length.
        total: u64,
    },
}

impl ContentRange {
    /// Reads the header's value; `None` where it makes no sense.
    #[must_use]
    pub fn parse(value: &str) -> Option<Self> {
        let (unit, rest) = value.trim().split_once(' ')?;
        if !unit.eq_ignore_ascii_case("bytes") {
            return None;
        }
        let (range, total) = rest.trim().split_once('/')?;
        if range == "*" {
            let total = number(total)?;
            return Some(Self::None { total });
        }
        let total = match total {
            "*" => None,
            digits => Some(number(digits)?),
        };
        let (first, last) = range.split_once('-')?;
        let (first, last) = (number(first)?, number(last)?);
        let is_sound = first <= last && last < u64::MAX && total.is_none_or(|total| last < total);
        is_sound.then_some(Self::Part { first, last, total })
    }
}

fn number(digits: &str) -> Option<u64> {
    // `parse` would take a sign as well.
    digits
        .bytes()
        .all(|b| b.is_ascii_digit())
        .then(|| digits.parse().ok())
        .flatten()
}

/// The head of an answer, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// 206 with one range of a file of known length.
    Part {
        /// Position of the first byte that follows.
        first: u64,
        /// Position of the last.
        last: u64,
        /// The file's length.
        total: u64,
        /// Its strong entity tag, if it has one.
        tag: Option<EntityTag>,
    },
    /// 200: the whole file follows (or, for HEAD, would follow).
    Whole {
        /// Its length, where it is told.
        length: Option<u64>,
        /// Its strong entity tag, if it has one.
        tag: Option<EntityTag>,
    },
    /// 416: the range lies outside the file.
    Outside {
        /// The file's length, where it is told.
        total: Option<u64>,
    },
    /// 429 or 503, or another error of the server that may pass.
    Busy {
        /// The status.
        status: u16,
        /// What `Retry-After` says.
        retry_after: Option<Duration>,
    },
    /// Any other status: there is nothing to be had here.
    Refused {
        /// The status.
        status: u16,
    },
    /// An answer that contradicts itself or the request: a wrong or missing `Content-Range`,
    /// several ranges, an encoding that was not asked for.
    Garbled,
}

/// Which bytes all ranges must be of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// The file's length in bytes; unknown while it comes as one stream without a length.
    pub length: Option<u64>,
    /// Its strong entity tag.
    pub tag: Option<EntityTag>,
}

impl Version {
    /// Whether an answer's length and tag are this version's. With `by_digest` the length is
    /// enough: somebody checks the whole file's digest at the end.
    #[must_use]
    pub fn is(&self, length: Option<u64>, tag: Option<&EntityTag>, by_digest: bool) -> bool {
        let same_tag = self.tag.is_some() && self.tag.as_ref() == tag;
        self.length == length && (same_tag || by_digest)
    }

    /// Whether ranges of it can be told from another version's.
    #[must_use]
    pub fn can_be_split(&self, by_digest: bool) -> bool {
        self.length.is_some() && (self.tag.is_some() || by_digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_strong_tags_count() {
        assert!(EntityTag::strong("\"5f-1\"").is_some());
        assert!(EntityTag::strong("\"\"").is_some());
        for weak in ["W/\"5f-1\"", "5f-1", "\"", "\"a\"b\"", "\"a b\"", ""] {
            assert_eq!(EntityTag::strong(weak), None, "{weak}");
        }
    }

    #[test]
    fn content_ranges_are_read_or_refused() {
        let part = |first, last, total| Some(ContentRange::Part { first, last, total });
        assert_eq!(ContentRange::parse("bytes 0-9/10"), part(0, 9, Some(10)));
        assert_eq!(ContentRange::parse("Bytes 5-9/*"), part(5, 9, None));
        assert_eq!(
            ContentRange::parse("bytes */7"),
            Some(ContentRange::None { total: 7 })
        );
        for wrong in [
            "bytes 9-0/10",
            "bytes 0-10/10",
            "bytes 0-/10",
            "bytes -5/10",
            "bytes +1-2/10",
            "bytes 0-9",
            "lines 0-9/10",
            "bytes 0-18446744073709551615/*",
            "bytes 0-99999999999999999999/*",
            "bytes */*",
            "",
        ] {
            assert_eq!(ContentRange::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_version_is_its_length_and_its_tag() {
        let tag = |text: &str| EntityTag::strong(text);
        let version = Version {
            length: Some(5),
            tag: tag("\"a\""),
        };
        assert!(version.is(Some(5), tag("\"a\"").as_ref(), false));
        assert!(!version.is(Some(6), tag("\"a\"").as_ref(), false));
        assert!(!version.is(Some(5), tag("\"b\"").as_ref(), false));
        assert!(version.is(Some(5), tag("\"b\"").as_ref(), true));
        let bare = Version {
            length: Some(5),
            tag: None,
        };
        assert!(!bare.is(Some(5), None, false), "no tag says nothing");
    }
}
