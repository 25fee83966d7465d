//! Whether the server has let the client in, and what that end shows or has shown for it.

use tabane_base::Instant;

/// The steps, the same at both ends.
#[derive(Debug)]
pub(super) enum Admission {
    Applying {
        /// Client: with what it says hello. Server: with what it was said; `None` before that.
        token: Option<Vec<u8>>,
        /// When the session began.
        since: Instant,
    },
    Admitted,
}

impl Admission {
    pub(super) const fn is_granted(&self) -> bool {
        matches!(self, Self::Admitted)
    }

    /// `false` where it was granted before.
    pub(super) fn grant(&mut self) -> bool {
        let before = std::mem::replace(self, Self::Admitted);
        !before.is_granted()
    }

    /// What the client shows.
    pub(super) fn token(&self) -> &[u8] {
        match self {
            Self::Applying { token, .. } => token.as_deref().unwrap_or_default(),
            Self::Admitted => &[],
        }
    }

    /// The client says hello; `true` for the first time.
    pub(super) fn apply(&mut self, shown: &[u8]) -> bool {
        match self {
            // Remembered, so that a repeated hello asks no second time.
            Self::Applying { token, .. } if token.is_none() => {
                *token = Some(shown.to_vec());
                true
            }
            Self::Applying { .. } | Self::Admitted => false,
        }
    }
}
