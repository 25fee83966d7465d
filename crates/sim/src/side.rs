//! The two ends of a world.

/// Which end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// Opens the session and its paths.
    Client,
    /// Answers.
    Server,
}
