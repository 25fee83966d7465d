//! How a path may be used, as the owners of its two ends wish [P-4.7].
//!
//! Each end tells the other its wish for a path, and both follow both: weights multiply, and a
//! path is a backup when either end calls it one. So a client with a metered link keeps downloads
//! off it as well. What to do with a wish is the scheduler's business.

use crate::wire::Frame;

/// Weights travel as whole thousandths.
pub(crate) const WEIGHT_SCALE: u64 = 1_000;

/// One end's wish for a path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Policy {
    /// What share of the path may be used, 0 to 1 (SBAM's α); 0: only when nothing else works.
    pub(crate) weight: f64,
    /// To be used only while no other path is active.
    pub(crate) backup: bool,
    /// What it carries costs money: nothing is sent only to measure it [P-10.6].
    pub(crate) metered: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            weight: 1.0,
            backup: false,
            metered: false,
        }
    }
}

/// In which order groups of paths are used: the first that has an active path carries all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tier {
    Regular,
    Backup,
    /// Weight 0: in no other case than that nothing else works at all.
    LastResort,
}

/// Both ends' wishes for one path.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Policies {
    own: Policy,
    peer: Policy,
    /// Number of the newest wish of our own, and of the newest heard.
    own_number: u64,
    heard_number: u64,
    /// The peer has still to be told.
    pub(crate) due: bool,
}

impl Policies {
    pub(crate) fn change(&mut self, change: impl FnOnce(&mut Policy)) {
        let before = self.own;
        change(&mut self.own);
        if self.own != before {
            self.own_number += 1;
            self.due = true;
        }
    }

    /// The peer's wish; older ones that were overtaken on the way are ignored.
    pub(crate) fn on_heard(&mut self, number: u64, policy: Policy) {
        if number > self.heard_number {
            self.heard_number = number;
            self.peer = policy;
        }
    }

    /// What the peer should hear of path `path`; nothing while nothing was ever wished.
    pub(crate) fn frame(&self, path: crate::id::PathId) -> Option<Frame<'static>> {
        (self.own_number > 0).then(|| Frame::PathPolicy {
            path,
            number: self.own_number,
            backup: self.own.backup,
            metered: self.own.metered,
            // Rounded up: a small share is not none.
            weight: (self.own.weight * WEIGHT_SCALE as f64).ceil() as u64,
        })
    }

    pub(crate) fn backup(&self) -> bool {
        self.own.backup || self.peer.backup
    }

    pub(crate) fn metered(&self) -> bool {
        self.own.metered || self.peer.metered
    }

    pub(crate) fn tier(&self) -> Tier {
        if self.own.weight * self.peer.weight <= 0.0 {
            Tier::LastResort
        } else if self.backup() {
            Tier::Backup
        } else {
            Tier::Regular
        }
    }

    /// The share of the path that may be used; all of it when it is the last resort.
    pub(crate) fn weight(&self) -> f64 {
        match self.tier() {
            Tier::LastResort => 1.0,
            Tier::Regular | Tier::Backup => self.own.weight * self.peer.weight,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::PathId;

    #[test]
    fn both_ends_wishes_hold_and_late_ones_do_not_undo_newer_ones() {
        let mut policies = Policies::default();
        assert_eq!(policies.frame(PathId(1)), None);
        policies.change(|own| own.weight = 0.5);
        assert!(policies.due && policies.frame(PathId(1)).is_some());
        policies.on_heard(
            2,
            Policy {
                weight: 0.5,
                backup: true,
                metered: true,
            },
        );
        policies.on_heard(
            1,
            Policy {
                weight: 0.0,
                backup: false,
                metered: false,
            },
        );
        assert_eq!((policies.weight(), policies.tier()), (0.25, Tier::Backup));
        assert!(policies.metered());
        policies.on_heard(
            3,
            Policy {
                weight: 0.0,
                backup: true,
                metered: true,
            },
        );
        assert_eq!(
            (policies.weight(), policies.tier()),
            (1.0, Tier::LastResort)
        );
    }
}
