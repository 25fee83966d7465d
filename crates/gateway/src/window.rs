//! The window that is told to the server: whose right edge never moves left.
//!
//! A window is told in units of 2^shift bytes, so an acknowledgement and a right edge go together
//! only if they are a whole number of units apart. [`Window::choose`] finds such a pair: it prefers
//! to acknowledge a few bytes more, and else raises the edge by less than a unit, for which the
//! edge always stays a little below what the mobile host allows.

use crate::seq::Seq;

/// Units that stay between the edge told and the mobile host's own.
const SLACK_UNITS: u32 = 8;
/// The largest window field.
const MAX_FIELD: u32 = 0xffff;

/// The right edges of one flow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    shift: u8,
    /// The mobile host's own edge, as it said last.
    edge: Seq,
    /// The edge the server knows.
    told: Seq,
}

/// What a fabricated acknowledgement may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    /// No less may be acknowledged: the server knows it.
    pub(crate) acked: Seq,
    /// What should be.
    pub(crate) ack: Seq,
    /// What may be, at most.
    pub(crate) ack_max: Seq,
    /// The edge may not be raised beyond.
    pub(crate) limit: Seq,
    /// It is raised by this much or not at all.
    pub(crate) step: u32,
    /// `ack` and no other: the mobile host said so itself. Its own edge goes with it.
    pub(crate) exact: bool,
}

/// What it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) ack: Seq,
    pub(crate) field: u16,
}

impl Window {
    /// The mobile host has told the server of `edge` itself.
    pub(crate) fn new(shift: u8, edge: Seq) -> Self {
        Self {
            shift,
            edge,
            told: edge,
        }
    }

    pub(crate) fn shift(&self) -> u8 {
        self.shift
    }

    pub(crate) fn edge(&self) -> Seq {
        self.edge
    }

    pub(crate) fn told(&self) -> Seq {
        self.told
    }

    /// The mobile host's last word.
    pub(crate) fn set_edge(&mut self, edge: Seq) {
        self.edge = edge;
    }

    /// A segment of the mobile host goes on as it is.
    pub(crate) fn passed(&mut self, edge: Seq) {
        self.told = self.told.later(edge);
    }

    const fn unit(&self) -> u32 {
        1 << self.shift
    }

    /// Bytes that the edge told stays below what is allowed.
    pub(crate) const fn slack(&self) -> u32 {
        if self.shift == 0 {
            0
        } else {
            SLACK_UNITS << self.shift
        }
    }

    /// Whether the edge can be raised by `step` up to `limit`.
    pub(crate) fn can_rise(&self, limit: Seq, step: u32) -> bool {
        (limit - self.slack()).beyond(self.told) >= step.max(1)
    }

    /// The acknowledgement that comes nearest to the wish; from now on the server knows its edge.
    pub(crate) fn choose(&mut self, wish: Wish) -> Choice {
        let unit = self.unit();
        let risen = self.can_rise(wish.limit, wish.step);
        let goal = if risen {
            wish.limit - self.slack()
        } else {
            self.told
        };
        let up = |ack: Seq| (unit - goal.beyond(ack) % unit) % unit;
        let raised = goal + up(wish.ack);
        let ack = if up(wish.ack) == 0 || wish.exact || risen {
            wish.ack
        } else {
            // Down to the last whole number of units is as far as up to the next one.
            let more = wish.ack + (unit - up(wish.ack));
            let less = wish.ack - up(wish.ack);
            if !more.is_after(wish.ack_max) {
                more
            } else if !raised.is_after(wish.limit) {
                wish.ack
            } else if !less.is_before(wish.acked) {
                less
            } else {
                wish.acked
            }
        };
        let units = goal.beyond(ack).div_ceil(unit).min(MAX_FIELD);
        self.told = self.told.later(ack + units * unit);
        Choice {
            ack,
            field: units as u16,
        }
    }
}

#[cfg(test)]
mod tests {
    use tabane_base::Seed;

    use super::*;

    #[test]
    fn edges_never_move_left_and_seldom_leave_the_mobile_hosts_window() {
        let seed = Seed(7);
        let mut rng = seed.rng("window");
        for shift in [0, 1, 7, 10, 14] {
            let mut edge = Seq(u32::MAX - 5_000) + 60_000;
            let mut window = Window::new(shift, edge);
            // A real segment's window is a whole number of units.
            let mut acked = edge - (60_000 >> shift << shift);
            let mut held = acked;
            let mut before = edge;
            for _ in 0..10_000 {
                let room = window.told().beyond(held);
                if rng.chance(0.6) {
                    held = held + (rng.below(2_000) as u32).min(room);
                } else {
                    edge = edge + rng.below(4_000) as u32;
                    window.set_edge(edge);
                }
                let all = rng.chance(0.2);
                let ack = if all { held } else { (held - 700).later(acked) };
                let chosen = window.choose(Wish {
                    acked,
                    ack,
                    ack_max: held,
                    limit: edge,
                    step: 1_448,
                    exact: false,
                });
                let told = chosen.ack + (u32::from(chosen.field) << shift);
                assert!(!told.is_before(before), "seed {seed}, shift {shift}");
                assert!(!told.is_after(edge), "seed {seed}, shift {shift}");
                assert!(!chosen.ack.is_before(acked) && !chosen.ack.is_after(held));
                before = told;
                acked = chosen.ack;
            }
        }
    }

    #[test]
    fn a_stall_closes_the_window_and_an_acknowledgement_opens_it_by_segments() {
        let mut window = Window::new(0, Seq(6_000));
        let wish = |acked: u32, ack: u32| Wish {
            acked: Seq(acked),
            ack: Seq(ack),
            ack_max: Seq(ack),
            limit: Seq(6_000),
            step: 1_000,
            exact: false,
        };
        let fields: Vec<u16> = (1..=6)
            .map(|n| window.choose(wish((n - 1) * 1_000, n * 1_000)).field)
            .collect();
        assert_eq!(fields, [5_000, 4_000, 3_000, 2_000, 1_000, 0]);
        assert!(!window.can_rise(Seq(6_999), 1_000));
        assert!(window.can_rise(Seq(7_000), 1_000));
    }
}
