//! What the user asked for and cannot have meant.

/// Something that the user said and that cannot be: another wish would do. A program ends with the
/// status of wrong usage, 2.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(String);

impl UsageError {
    /// With what to do about it.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}
