//! How a path may be used, as the owners of its two ends wish [P-4.7].
//!
//! Each end tells the other its wish for a path, and both follow both: weights multiply, a path is
//! a backup when either end calls it one, and the later of two priorities counts. So a client with
//! a metered link keeps downloads off it as well. What to do with a wish is the scheduler's
//! business; when a later priority is needed, `overflow` says.

use tabane_base::Rate;

use crate::wire::Frame;

/// Weights travel as whole thousandths.
const WEIGHT_SCALE: u64 = 1_000;
/// The highest [`PathPolicy::priority`].
pub const MAX_PRIORITY: u8 = 15;

/// One end's wish for a path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PathPolicy {
    /// What share of the path may be used, 0 to 1 (SBAM's α); 0: only when nothing else works.
    pub weight: f64,
    /// To be used only while no other path is active.
    pub backup: bool,
    /// What it carries costs money: nothing is sent only to measure it [P-10.6].
    pub metered: bool,
    /// Paths with a higher number, up to [`MAX_PRIORITY`], are used only while those with lower
    /// ones cannot carry the demand, or are down.
    pub priority: u8,
    /// The most that may be sent over the path by this end.
    pub send_cap: Option<Rate>,
    /// The most that the other end may send over it; told in whole kbit/s.
    pub receive_cap: Option<Rate>,
}

impl Default for PathPolicy {
    fn default() -> Self {
        Self {
            weight: 1.0,
            backup: false,
            metered: false,
            priority: 0,
            send_cap: None,
            receive_cap: None,
        }
    }
}

/// What a PATH_POLICY frame says: the part of a wish that concerns its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PathWish {
    pub(crate) backup: bool,
    pub(crate) metered: bool,
    /// In thousandths.
    pub(crate) weight: u64,
    pub(crate) priority: u64,
    /// What the receiver of the frame may send, in kbit/s; 0: as much as it can.
    pub(crate) cap: u64,
}

impl PathWish {
    fn of(policy: &PathPolicy) -> Self {
        Self {
            backup: policy.backup,
            metered: policy.metered,
            // Rounded up: a small share is not none, and a low cap does not lift itself.
            weight: (policy.weight * WEIGHT_SCALE as f64).ceil() as u64,
            priority: policy.priority.into(),
            cap: policy
                .receive_cap
                .map_or(0, |cap| cap.as_bps().div_ceil(1_000).max(1)),
        }
    }

    /// The wish as the sender of the frame has it; whatever was received makes one.
    fn policy(self) -> PathPolicy {
        PathPolicy {
            weight: self.weight.min(WEIGHT_SCALE) as f64 / WEIGHT_SCALE as f64,
            backup: self.backup,
            metered: self.metered,
            priority: self.priority.min(MAX_PRIORITY.into()) as u8,
            send_cap: None,
            receive_cap: (self.cap > 0).then(|| Rate::from_bps(self.cap.saturating_mul(1_000))),
        }
    }
}

/// In which order groups of paths are used: the first that has an active path carries all, or as
/// many as the demand needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tier {
    /// By priority.
    Regular(u8),
    Backup,
    /// Weight 0: in no other case than that nothing else works at all.
    LastResort,
}

/// Both ends' wishes for one path.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Policies {
    own: PathPolicy,
    peer: PathPolicy,
    /// Number of the newest wish of our own, and of the newest heard.
    own_number: u64,
    heard_number: u64,
    /// The peer has still to be told.
    pub(crate) due: bool,
}

impl Policies {
    pub(crate) const fn own(&self) -> PathPolicy {
        self.own
    }

    pub(crate) fn set_own(&mut self, policy: PathPolicy) {
        if PathWish::of(&self.own) != PathWish::of(&policy) {
            self.own_number += 1;
            self.due = true;
        }
        self.own = policy;
    }

    /// The peer's wish; older ones that were overtaken on the way are ignored.
    pub(crate) fn on_heard(&mut self, number: u64, wish: PathWish) {
        if number > self.heard_number {
            self.heard_number = number;
            self.peer = wish.policy();
        }
    }

    /// What the peer should hear of path `path`; nothing while nothing was ever wished.
    pub(crate) fn frame(&self, path: crate::id::PathId) -> Option<Frame<'static>> {
        (self.own_number > 0).then(|| Frame::PathPolicy {
            path,
            number: self.own_number,
            wish: PathWish::of(&self.own),
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
            Tier::Regular(self.own.priority.max(self.peer.priority))
        }
    }

    /// The share of the path that may be used; all of it when it is the last resort.
    pub(crate) fn weight(&self) -> f64 {
        match self.tier() {
            Tier::LastResort => 1.0,
            Tier::Regular(_) | Tier::Backup => self.own.weight * self.peer.weight,
        }
    }

    /// Of `rate`, what we may send.
    pub(crate) fn allowed(&self, rate: Rate) -> Rate {
        let weight = self.weight();
        let shared = if weight < 1.0 {
            rate.scaled(weight)
        } else {
            rate
        };
        shared.min(self.cap())
    }

    /// The most that we may send, whatever the path takes.
    pub(crate) fn cap(&self) -> Rate {
        let caps = [self.own.send_cap, self.peer.receive_cap];
        caps.into_iter().flatten().min().unwrap_or(Rate::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::PathId;

    const BACKUP: PathWish = PathWish {
        backup: true,
        metered: true,
        weight: 500,
        priority: 0,
        cap: 0,
    };

    #[test]
    fn both_ends_wishes_hold_and_late_ones_do_not_undo_newer_ones() {
        let mut policies = Policies::default();
        assert_eq!(policies.frame(PathId(1)), None);
        policies.set_own(PathPolicy {
            weight: 0.5,
            ..PathPolicy::default()
        });
        assert!(policies.due && policies.frame(PathId(1)).is_some());
        policies.on_heard(2, BACKUP);
        policies.on_heard(
            1,
            PathWish {
                weight: 0,
                ..BACKUP
            },
        );
        assert_eq!((policies.weight(), policies.tier()), (0.25, Tier::Backup));
        assert!(policies.metered());
        policies.on_heard(
            3,
            PathWish {
                weight: 0,
                ..BACKUP
            },
        );
        assert_eq!(
            (policies.weight(), policies.tier()),
            (1.0, Tier::LastResort)
        );
    }

    #[test]
    fn the_lower_cap_and_the_later_priority_count() {
        let mut policies = Policies::default();
        let fast = Rate::from_mbps(100);
        assert_eq!(policies.allowed(fast), fast);
        policies.set_own(PathPolicy {
            send_cap: Some(Rate::from_mbps(20)),
            receive_cap: Some(Rate::from_bps(1)),
            priority: 2,
            ..PathPolicy::default()
        });
        assert_eq!(policies.allowed(fast), Rate::from_mbps(20));
        let Some(Frame::PathPolicy { wish, .. }) = policies.frame(PathId(0)) else {
            panic!("a wish was made");
        };
        assert_eq!((wish.cap, wish.priority), (1, 2), "a low cap is still one");
        policies.on_heard(
            1,
            PathWish {
                backup: false,
                metered: false,
                weight: u64::MAX,
                priority: u64::MAX,
                cap: 5_000,
            },
        );
        assert_eq!(policies.allowed(fast), Rate::from_mbps(5));
        assert_eq!(policies.tier(), Tier::Regular(MAX_PRIORITY));
    }

    #[test]
    fn what_concerns_only_us_is_not_told() {
        let mut policies = Policies::default();
        policies.set_own(PathPolicy {
            send_cap: Some(Rate::from_mbps(1)),
            ..PathPolicy::default()
        });
        assert!(!policies.due && policies.frame(PathId(0)).is_none());
    }
}
