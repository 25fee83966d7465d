//! Why a received datagram was thrown away. Expected, per packet, counted and never fatal.

/// One reason for dropping a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(usize)]
pub enum DropReason {
    /// Too short or not shaped like any packet of ours.
    Malformed,
    /// A version we do not speak.
    UnknownVersion,
    /// For a session or handshake that does not exist (any more).
    UnknownSession,
    /// Authentication failed: forged, corrupted, or under keys we no longer have.
    NotAuthentic,
    /// Seen before, or older than the replay window.
    Replayed,
    /// No keys for it yet.
    TooEarly,
    /// On a path that was abandoned, or beyond the number of paths allowed.
    NoSuchPath,
    /// Held data would exceed the receive memory; the sender repeats it [P-6.6].
    Shed,
    /// The endpoint serves as many sessions as it may.
    Overloaded,
    /// An address-validation token that is false or too old.
    BadToken,
}

const REASONS: [DropReason; 10] = [
    DropReason::Malformed,
    DropReason::UnknownVersion,
    DropReason::UnknownSession,
    DropReason::NotAuthentic,
    DropReason::Replayed,
    DropReason::TooEarly,
    DropReason::NoSuchPath,
    DropReason::Shed,
    DropReason::Overloaded,
    DropReason::BadToken,
];

impl DropReason {
    /// A short name for metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::UnknownVersion => "unknown_version",
            Self::UnknownSession => "unknown_session",
            Self::NotAuthentic => "not_authentic",
            Self::Replayed => "replayed",
            Self::TooEarly => "too_early",
            Self::NoSuchPath => "no_such_path",
            Self::Shed => "shed",
            Self::Overloaded => "overloaded",
            Self::BadToken => "bad_token",
        }
    }
}

/// How many datagrams were dropped for each reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drops([u64; REASONS.len()]);

impl Drops {
    pub(crate) fn count(&mut self, reason: DropReason) {
        self.0[reason as usize] += 1;
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (own, others) in self.0.iter_mut().zip(other.0) {
            *own += others;
        }
    }

    /// Packets dropped for `reason`.
    #[must_use]
    pub fn of(&self, reason: DropReason) -> u64 {
        self.0[reason as usize]
    }

    /// Every reason with its count.
    pub fn iter(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        REASONS.into_iter().map(|reason| (reason, self.of(reason)))
    }
}
