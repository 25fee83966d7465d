//! Which relay is tried when, among several in the user's order of preference, and of one fleet's
//! by how near they were measured to be.
//!
//! Owns the order, the refusals, the head start each relay has over the next, and the back-off.
//! Pure: asked with the time, it names relays by their place in the list and sends nothing.

use std::collections::VecDeque;

use tabane_base::Duration;
use tokio::time::Instant;

/// A relay's head start: over the slowest links in use an answer takes less than this.
const HEAD_START: Duration = Duration::from_millis(1_500);
/// Waits before a relay that is liked better is asked again: first and longest.
const FIRST_KNOCK: Duration = Duration::from_secs(2);
const LAST_KNOCK: Duration = Duration::from_secs(60);
/// How often it is looked whether a session is idle, while a better relay may be back.
const IDLE_CHECK: Duration = Duration::from_secs(1);

/// What one relay has to be ahead of the present one to be preferred: so much nearer, and by a
/// third of its own distance, so that two that are as near as each other do not take turns.
const AHEAD: Duration = Duration::from_millis(5);

/// From which load on, in thousandths of what it is meant for, a relay has much to do, and below
/// which it has not any more: between them what was said before holds, so that those who went
/// elsewhere do not come back at once.
const HEAVY: u16 = 900;
const LIGHT: u16 = 700;
/// What a relay is meant for.
const WHOLE: u16 = 1_000;

/// How much of what it is meant for a relay has, as one client takes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RelayLoad {
    /// There is room, or nobody has said.
    #[default]
    Light,
    /// Whoever begins a session had better do so elsewhere; whoever has one stays.
    Heavy,
    /// It was heavy when this client first heard of loads, too late for its choice: while nothing
    /// is under way it goes where it would have begun.
    HeavyAtFirst,
    /// It is too much, and this client is one of those that make room.
    Full,
}

impl RelayLoad {
    /// What it is by the first word on loads that a client hears, `lot` as in [`next`](Self::next).
    #[must_use]
    pub fn at_first(thousandths: u16, lot: u16) -> Self {
        match Self::default().next(thousandths, lot) {
            Self::Heavy => Self::HeavyAtFirst,
            other => other,
        }
    }

    /// What it is now that the relay has `thousandths` of what it is meant for. Of its clients as
    /// many go as are too many, not all: `lot`, from 0 to 999 and drawn anew each time, says
    /// whether this one is among them.
    #[must_use]
    pub fn next(self, thousandths: u16, lot: u16) -> Self {
        let surplus = u32::from(thousandths.saturating_sub(HEAVY)) * u32::from(WHOLE);
        let too_many = surplus / u32::from(thousandths.max(1));
        match self {
            _ if thousandths < LIGHT => Self::Light,
            Self::Light if thousandths < HEAVY => Self::Light,
            Self::Full if thousandths >= HEAVY => Self::Full,
            _ if thousandths > WHOLE && u32::from(lot) < too_many => Self::Full,
            _ => Self::Heavy,
        }
    }
}

/// What is known of a relay, for choosing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelayMerit {
    /// Its place in the user's order; relays of one fleet have one.
    pub preference: usize,
    /// How far it is: the least round trip over any link. `None`: not measured.
    pub distance: Option<Duration>,
    /// How much of what it is meant for it has.
    pub load: RelayLoad,
    /// Its fleet wants nobody new there.
    pub is_draining: bool,
    /// It is not of its fleet any more.
    pub is_gone: bool,
}

impl RelayMerit {
    /// Relays of which no more is known than their order.
    #[must_use]
    pub fn in_order(relays: usize) -> Vec<Self> {
        let merit = |preference| Self {
            preference,
            distance: None,
            load: RelayLoad::Light,
            is_draining: false,
            is_gone: false,
        };
        (0..relays).map(merit).collect()
    }

    /// The better is less. For whoever begins a session, one that has much to do is twice as far,
    /// or as much farther as counts at all, and one that has too much comes after all others.
    fn rank(&self) -> (bool, usize, bool, Duration) {
        let distance = self.distance.unwrap_or(Duration::MAX);
        let distance = match self.load {
            RelayLoad::Light => distance,
            RelayLoad::Heavy | RelayLoad::HeavyAtFirst | RelayLoad::Full => {
                distance.saturating_add(distance.max(AHEAD))
            }
        };
        let is_full = self.load == RelayLoad::Full;
        (self.is_draining, self.preference, is_full, distance)
    }

    /// Whether it is worth to leave `other` for this one; never, where this has much to do.
    fn beats(&self, other: &Self) -> bool {
        let (own, theirs) = (self.rank(), other.rank());
        match (own.0, own.1).cmp(&(theirs.0, theirs.1)) {
            std::cmp::Ordering::Less => true,
            std::cmp::Ordering::Greater => false,
            std::cmp::Ordering::Equal if self.load != RelayLoad::Light => false,
            std::cmp::Ordering::Equal => match (self.distance, other.distance) {
                (Some(_), _) if other.load == RelayLoad::Full => true,
                (Some(_), Some(_)) if other.load == RelayLoad::HeavyAtFirst => own < theirs,
                (Some(own), Some(theirs)) => own + (own / 3).max(AHEAD) <= theirs,
                _ => false,
            },
        }
    }
}

/// The relays in the order in which a client tries them: by their places, those that are gone left
/// out.
#[must_use]
pub fn in_order_of_merit(merits: &[RelayMerit]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..merits.len()).collect();
    order.retain(|relay| !merits[*relay].is_gone);
    // Keeps the order of places among equals.
    order.sort_by_key(|relay| merits[*relay].rank());
    order
}

/// The relays a client knows.
#[derive(Debug)]
pub(super) struct Roster {
    merits: Vec<RelayMerit>,
    /// By place: its owner does not want us, and will not.
    refused: Vec<bool>,
    current: Option<usize>,
    knocks: u32,
    knock_at: Option<Instant>,
}

impl Roster {
    pub(super) fn new(merits: Vec<RelayMerit>) -> Self {
        Self {
            refused: vec![false; merits.len()],
            merits,
            current: None,
            knocks: 0,
            knock_at: None,
        }
    }

    /// Goes by what is known now; there may be more relays than before.
    pub(super) fn weigh(&mut self, now: Instant, merits: &[RelayMerit]) {
        if self.merits == merits {
            return;
        }
        self.refused.resize(merits.len(), false);
        self.merits = merits.to_vec();
        let is_better = !self.better().is_empty();
        self.knock_at = match self.knock_at {
            Some(at) if is_better => Some(at),
            None if is_better => Some(now),
            _ => None,
        };
    }

    pub(super) fn has_several(&self) -> bool {
        self.merits.iter().filter(|it| !it.is_gone).nth(1).is_some()
    }

    /// The relay of the present session, or the last.
    pub(super) const fn current(&self) -> Option<usize> {
        self.current
    }

    /// Every relay that may let us in, the preferred first.
    pub(super) fn order(&self) -> Vec<usize> {
        let mut order = in_order_of_merit(&self.merits);
        order.retain(|relay| !self.refused[*relay]);
        order
    }

    /// Those but the current one.
    pub(super) fn others(&self) -> Vec<usize> {
        let mut others = self.order();
        others.retain(|relay| Some(*relay) != self.current);
        others
    }

    /// Those liked better than the current one.
    pub(super) fn better(&self) -> Vec<usize> {
        let Some(current) = self.current else {
            return Vec::new();
        };
        let mut better = self.order();
        let current = self.merits[current];
        better.retain(|relay| self.merits[*relay].beats(&current) || current.is_gone);
        better.retain(|relay| Some(*relay) != self.current);
        better
    }

    pub(super) fn on_refused(&mut self, relay: usize) {
        self.refused[relay] = true;
    }

    /// There is a session with `relay`.
    pub(super) fn on_session(&mut self, now: Instant, relay: usize) {
        self.current = Some(relay);
        self.knocks = 0;
        self.knock_at = (!self.better().is_empty()).then(|| now + FIRST_KNOCK);
    }

    /// When to ask better relays again; `None` where there is none.
    pub(super) const fn knock_at(&self) -> Option<Instant> {
        self.knock_at
    }

    /// The better relays did not answer.
    pub(super) fn on_knock_failed(&mut self, now: Instant) {
        self.knocks = (self.knocks + 1).min(16);
        let wait = (FIRST_KNOCK * 2_u32.saturating_pow(self.knocks)).min(LAST_KNOCK);
        self.knock_at = (!self.better().is_empty()).then(|| now + wait);
    }

    /// Links or addresses are others: what did not answer may do so now.
    pub(super) fn renew(&mut self, now: Instant) {
        if self.knock_at.is_some() {
            self.knocks = 0;
            self.knock_at = Some(now);
        }
    }

    /// The present session is not to be disturbed now.
    pub(super) fn on_busy(&mut self, now: Instant) {
        self.knock_at = Some(now + IDLE_CHECK);
    }
}

/// One round of handshakes: each relay is tried while those before it still are.
#[derive(Debug)]
pub(super) struct Race {
    waiting: VecDeque<usize>,
    trying: Vec<usize>,
    next_at: Instant,
}

impl Race {
    pub(super) fn new(order: Vec<usize>, now: Instant) -> Self {
        Self {
            waiting: order.into(),
            trying: Vec::new(),
            next_at: now,
        }
    }

    /// The relay to try now.
    pub(super) fn next(&mut self, now: Instant) -> Option<usize> {
        if now < self.next_at {
            return None;
        }
        let relay = self.waiting.pop_front()?;
        self.trying.push(relay);
        self.next_at = now + HEAD_START;
        Some(relay)
    }

    /// When the next one is to be tried, where there is one.
    pub(super) fn next_at(&self) -> Option<Instant> {
        (!self.waiting.is_empty()).then_some(self.next_at)
    }

    /// `relay` said no, or nothing at all: the next one need not wait for it.
    pub(super) fn on_failed(&mut self, now: Instant, relay: usize) {
        self.trying.retain(|other| *other != relay);
        self.next_at = now;
    }

    /// All have been tried in vain.
    pub(super) fn is_lost(&self) -> bool {
        self.waiting.is_empty() && self.trying.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_relay_has_a_head_start_unless_the_one_before_failed() {
        let begin = Instant::now();
        let mut race = Race::new(vec![0, 1, 2], begin);
        assert_eq!(race.next(begin), Some(0));
        assert_eq!(race.next(begin), None);
        assert_eq!(race.next_at(), Some(begin + HEAD_START));
        assert_eq!(race.next(begin + HEAD_START), Some(1));
        race.on_failed(begin + HEAD_START, 1);
        assert_eq!(race.next(begin + HEAD_START), Some(2));
        assert_eq!(race.next_at(), None);
        race.on_failed(begin + HEAD_START, 2);
        assert!(!race.is_lost(), "the first is still being tried");
        race.on_failed(begin + HEAD_START, 0);
        assert!(race.is_lost());
    }

    #[test]
    fn better_relays_are_asked_again_ever_more_slowly() {
        let mut now = Instant::now();
        let mut roster = Roster::new(RelayMerit::in_order(3));
        roster.on_session(now, 0);
        assert_eq!(roster.knock_at(), None, "nothing is better than the first");
        assert_eq!(roster.others(), [1, 2]);
        roster.on_session(now, 2);
        assert_eq!(roster.better(), [0, 1]);
        let mut waits = Vec::new();
        for _ in 0..7 {
            let at = roster.knock_at().unwrap();
            waits.push((at - now).as_secs());
            now = at;
            roster.on_knock_failed(now);
        }
        assert_eq!(waits, [2, 4, 8, 16, 32, 60, 60]);
        roster.renew(now);
        assert_eq!(roster.knock_at(), Some(now));
        roster.on_session(now, 0);
        roster.renew(now);
        assert_eq!(roster.knock_at(), None, "there is nothing better to ask");
    }

    /// Relays of one fleet, at so many milliseconds.
    fn fleet(distances: &[Option<u64>]) -> Vec<RelayMerit> {
        let merit = |ms: &Option<u64>| RelayMerit {
            preference: 0,
            distance: ms.map(Duration::from_millis),
            load: RelayLoad::Light,
            is_draining: false,
            is_gone: false,
        };
        distances.iter().map(merit).collect()
    }

    #[test]
    fn of_a_fleet_the_nearest_is_first_and_is_left_only_for_one_that_is_much_nearer() {
        let now = Instant::now();
        let mut roster = Roster::new(fleet(&[Some(40), None, Some(10)]));
        assert_eq!(roster.order(), [2, 0, 1]);
        roster.on_session(now, 0);
        assert_eq!(roster.better(), [2]);
        for (distances, better) in [
            ([Some(40), None, Some(31)], &[][..]),
            ([Some(40), None, Some(30)], &[2]),
            ([Some(6), Some(2), Some(1)], &[2]),
            ([Some(6), Some(2), None], &[]),
            ([None, Some(1), Some(1)], &[]),
        ] {
            roster.weigh(now, &fleet(&distances));
            assert_eq!(roster.better(), better, "{distances:?}");
            assert_eq!(roster.knock_at().is_some(), !better.is_empty());
        }
    }

    #[test]
    fn a_fleets_relays_appear_drain_and_vanish_at_their_places() {
        let now = Instant::now();
        let mut merits = fleet(&[Some(10), Some(20)]);
        let mut roster = Roster::new(merits.clone());
        roster.on_session(now, 0);
        assert_eq!((roster.knock_at(), roster.others()), (None, vec![1]));
        merits.push(fleet(&[Some(15)])[0]);
        roster.weigh(now, &merits);
        assert_eq!(roster.others(), [2, 1]);
        merits[0].is_draining = true;
        roster.weigh(now, &merits);
        assert_eq!(
            (roster.order(), roster.better()),
            (vec![2, 1, 0], vec![2, 1])
        );
        assert_eq!(roster.knock_at(), Some(now));
        roster.on_session(now, 2);
        merits[0].is_gone = true;
        roster.weigh(now, &merits);
        assert_eq!((roster.order(), roster.knock_at()), (vec![2, 1], None));
        merits[2].is_gone = true;
        roster.weigh(now, &merits);
        assert_eq!((roster.better(), roster.has_several()), (vec![1], false));
        // The user's own order goes before distance.
        let mut two = fleet(&[Some(50), Some(1)]);
        two[1].preference = 1;
        assert_eq!(in_order_of_merit(&two), [0, 1]);
    }

    #[test]
    fn a_load_is_gone_by_with_hysteresis_and_as_many_leave_as_are_too_many() {
        use RelayLoad::{Full, Heavy, HeavyAtFirst, Light};
        for (before, thousandths, lot, after) in [
            (Light, 899, 0, Light),
            (Light, 900, 0, Heavy),
            (Heavy, 700, 0, Heavy),
            (Heavy, 699, 0, Light),
            (Heavy, 1_000, 0, Heavy),
            (Light, 1_200, 249, Full),
            (Light, 1_200, 250, Heavy),
            (Heavy, 1_200, 249, Full),
            (Full, 900, 999, Full),
            (Full, 899, 0, Heavy),
            (Full, 699, 0, Light),
            (Light, 0, 0, Light),
            (Light, u16::MAX, 985, Full),
            (Light, u16::MAX, 987, Heavy),
            (HeavyAtFirst, 700, 0, Heavy),
            (HeavyAtFirst, 699, 0, Light),
        ] {
            let next = before.next(thousandths, lot);
            assert_eq!(next, after, "{before:?} at {thousandths}, {lot}");
        }
        let now = Instant::now();
        let mut merits = fleet(&[Some(10), Some(15), Some(60), None]);
        merits[0].load = Heavy;
        assert_eq!(in_order_of_merit(&merits), [1, 0, 2, 3], "twice as far");
        let mut roster = Roster::new(merits.clone());
        roster.on_session(now, 0);
        assert!(roster.better().is_empty(), "whoever is there stays");
        roster.on_session(now, 2);
        assert_eq!(roster.better(), [1], "and nobody comes");
        merits[0].load = Full;
        assert_eq!(in_order_of_merit(&merits), [1, 2, 3, 0]);
        roster.weigh(now, &merits);
        roster.on_session(now, 0);
        assert_eq!(roster.better(), [1, 2], "whoever has to leave does");
        merits.iter_mut().for_each(|it| it.load = Full);
        roster.weigh(now, &merits);
        assert!(roster.better().is_empty(), "nowhere to go");
        merits[0].is_draining = true;
        roster.weigh(now, &merits);
        assert_eq!(roster.better(), [1, 2, 3], "better than none");
    }

    #[test]
    fn who_began_before_it_heard_of_loads_goes_where_it_would_have_begun_and_stays() {
        use RelayLoad::{Full, Heavy, HeavyAtFirst, Light};
        for (thousandths, lot, load) in [
            (899, 0, Light),
            (900, 0, HeavyAtFirst),
            (1_200, 249, Full),
            (1_200, 250, HeavyAtFirst),
        ] {
            assert_eq!(RelayLoad::at_first(thousandths, lot), load, "{thousandths}");
        }
        let now = Instant::now();
        // As near as each other, but for what measuring does; and one that is too far.
        let mut merits = fleet(&[Some(1), Some(2), Some(10)]);
        let mut roster = Roster::new(merits.clone());
        roster.on_session(now, 0);
        merits[0].load = HeavyAtFirst;
        roster.weigh(now, &merits);
        assert_eq!((roster.better(), roster.knock_at()), (vec![1], Some(now)));
        assert_eq!(roster.order(), [1, 0, 2]);
        roster.on_session(now, 1);
        // What it left has room now, and where it is there is much to do.
        (merits[0].load, merits[1].load) = (Light, Heavy);
        roster.weigh(now, &merits);
        assert_eq!((roster.better(), roster.knock_at()), (vec![], None));
        merits[0].load = HeavyAtFirst;
        merits[1].load = HeavyAtFirst;
        roster.weigh(now, &merits);
        assert!(roster.better().is_empty(), "neither is for the other's");
    }

    /// All clients are nearest to one relay, which is meant for a third of them; all hear of loads
    /// at once, which is the worst there is.
    #[test]
    fn clients_spread_over_a_fleet_and_do_not_swing() {
        const CLIENTS: usize = 900;
        const CAPACITY: usize = 330;
        let now = Instant::now();
        let mut rng = tabane_base::Seed(7).rng("loads");
        let mut merits = vec![fleet(&[Some(10), Some(20), Some(40)]); CLIENTS];
        let mut rosters: Vec<Roster> = merits.iter().cloned().map(Roster::new).collect();
        for roster in &mut rosters {
            let nearest = roster.order()[0];
            roster.on_session(now, nearest);
        }
        let mut moves = Vec::new();
        let mut has = [0; 3];
        for _ in 0..40 {
            has = [0, 1, 2].map(|relay| {
                let of = rosters.iter().filter(|it| it.current() == Some(relay));
                of.count()
            });
            let mut moved = 0;
            for (roster, merits) in rosters.iter_mut().zip(&mut merits) {
                for (merit, has) in merits.iter_mut().zip(has) {
                    let load = u16::try_from(has * 1_000 / CAPACITY).unwrap();
                    merit.load = merit.load.next(load, rng.below(1_000) as u16);
                }
                roster.weigh(now, merits);
                if let Some(better) = roster.better().first() {
                    roster.on_session(now, *better);
                    moved += 1;
                }
            }
            moves.push(moved);
        }
        println!("{has:?} of {CAPACITY} each; moves {moves:?}");
        assert!(has.iter().all(|it| *it <= CAPACITY * 105 / 100), "{has:?}");
        assert_eq!(moves[20..].iter().sum::<usize>(), 0, "{moves:?}");
        assert!(moves.iter().sum::<usize>() < 3 * CLIENTS, "{moves:?}");
    }

    #[test]
    fn who_refused_is_not_asked_again() {
        let now = Instant::now();
        let mut roster = Roster::new(RelayMerit::in_order(2));
        roster.on_refused(0);
        assert_eq!(roster.order(), [1]);
        roster.on_session(now, 1);
        assert_eq!(roster.knock_at(), None);
        roster.on_refused(1);
        assert!(roster.order().is_empty());
    }
}
