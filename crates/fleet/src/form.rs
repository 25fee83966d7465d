//! The serial form of what a fleet signs: numbers big-endian, texts and lists behind their length.
//!
//! Owns reading that never looks beyond the end. What the fields mean is said where they are used.

use thiserror::Error;

/// Bytes that are not what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FormError {
    /// They end too early.
    #[error("it is cut short")]
    CutShort,
    /// There is something behind the end.
    #[error("there are bytes behind its end")]
    TooLong,
    /// A version of the form that this program does not know.
    #[error("its form is of version {0}, which this program does not know: update it")]
    Version(u8),
    /// A field that says what it cannot; which one.
    #[error("its {0} is none")]
    Field(&'static str),
}

/// Reads fields from the front.
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], FormError> {
        let (front, rest) = self.0.split_first_chunk().ok_or(FormError::CutShort)?;
        self.0 = rest;
        Ok(*front)
    }

    pub(crate) fn byte(&mut self) -> Result<u8, FormError> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// A text behind its length in one byte.
    pub(crate) fn text(&mut self, field: &'static str) -> Result<&'a str, FormError> {
        let length = usize::from(self.byte()?);
        let split = self.0.split_at_checked(length);
        let (front, rest) = split.ok_or(FormError::CutShort)?;
        self.0 = rest;
        std::str::from_utf8(front).map_err(|_| FormError::Field(field))
    }

    /// Nothing is left.
    pub(crate) fn end(self) -> Result<(), FormError> {
        match self.0 {
            [] => Ok(()),
            _ => Err(FormError::TooLong),
        }
    }
}

/// Appends a text that is known to be short enough.
pub(crate) fn put_text(out: &mut Vec<u8>, text: &str) {
    let length = u8::try_from(text.len()).expect("checked when it was made");
    out.push(length);
    out.extend(text.as_bytes());
}
