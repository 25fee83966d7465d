//! What a session keeps per class: its rule, and a scheduler of its own with what that set aside.
//!
//! Each class is scheduled as if the others were not there, over the paths that may carry it; so
//! one whose paths are busy or down holds up nobody else. Owns what they have in common: whose turn
//! it is, and which paths the demand needs.

mod deal;

use tabane_base::Instant;

use crate::class::{Class, ClassId, ClassRule};
use crate::config::MAX_PATHS;
use crate::distribution::Distribution;
use crate::overflow::Overflow;
use crate::scheduler::{PathView, Scheduler, SchedulerKind};
use crate::stream::Streams;
pub(crate) use deal::LEAD_MIN;

/// One class of a session.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) class: Class,
    pub(crate) scheduler: Scheduler,
    pub(crate) distribution: Distribution,
    /// When it is next asked whether the peer's reader waits for what a slow path has.
    pub(crate) looks_back_at: Instant,
}

/// All classes of a session, the ordinary one first. By default it is alone.
#[derive(Debug)]
pub(crate) struct Lanes {
    /// What spreads data that is not redundant.
    kind: SchedulerKind,
    lanes: Vec<Lane>,
    /// Whose turn it is.
    turn: usize,
    /// It is datagrams' turn and not streams'.
    datagram_turn: bool,
    overflow: Overflow,
    /// Scratch for the scheduler's views of paths, kept for its memory.
    views: Vec<PathView>,
    /// When everything had left that window, pacer and scheduler let out.
    drained_at: Instant,
}

impl Lanes {
    pub(crate) fn new(now: Instant, kind: SchedulerKind) -> Self {
        let ordinary = Lane {
            class: Class::ORDINARY,
            scheduler: Scheduler::new(kind),
            distribution: Distribution::default(),
            looks_back_at: Instant::EPOCH,
        };
        Self {
            kind,
            lanes: vec![ordinary],
            turn: 0,
            datagram_turn: false,
            overflow: Overflow::new(now),
            views: Vec::with_capacity(MAX_PATHS),
            drained_at: now,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.lanes.len()
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = ClassId> + use<> {
        (0..self.lanes.len() as u8).filter_map(ClassId::new)
    }

    /// Gives the turn to the next class.
    pub(crate) fn next_turn(&mut self) -> ClassId {
        self.turn = (self.turn + 1) % self.lanes.len();
        ClassId::new(self.turn as u8).unwrap_or_default()
    }

    /// Datagrams and streams alternate; whether it is datagrams' turn now.
    pub(crate) const fn alternate(&mut self) -> bool {
        self.datagram_turn = !self.datagram_turn;
        self.datagram_turn
    }

    /// Nothing waits.
    pub(crate) const fn on_empty(&mut self) {
        self.overflow.on_empty();
    }

    /// Paths up to this priority are used.
    pub(crate) const fn level(&self) -> u8 {
        self.overflow.level()
    }

    pub(crate) const fn on_drained(&mut self, now: Instant) {
        self.drained_at = now;
    }

    pub(crate) const fn drained_at(&self) -> Instant {
        self.drained_at
    }

    pub(crate) fn take_views(&mut self) -> Vec<PathView> {
        std::mem::take(&mut self.views)
    }

    pub(crate) fn keep_views(&mut self, mut views: Vec<PathView>) {
        views.clear();
        self.views = views;
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Lane> {
        self.lanes.iter()
    }

    pub(crate) fn get(&self, class: ClassId) -> &Lane {
        &self.lanes[class.index()]
    }

    /// The class, begun without any path that may carry it where it was not known.
    pub(crate) fn get_mut(&mut self, class: ClassId) -> &mut Lane {
        while self.lanes.len() <= class.index() {
            self.lanes.push(Lane {
                class: Class::unknown(),
                scheduler: Scheduler::new(self.kind),
                distribution: Distribution::default(),
                looks_back_at: Instant::EPOCH,
            });
        }
        &mut self.lanes[class.index()]
    }

    /// Makes a rule of our own.
    pub(crate) fn set_rule(&mut self, class: ClassId, rule: ClassRule, streams: &mut Streams) {
        if self.get_mut(class).class.set(rule) {
            self.on_rule(class, streams);
        }
    }

    /// The other end made a rule.
    pub(crate) fn on_heard(
        &mut self,
        class: ClassId,
        number: u64,
        rule: ClassRule,
        streams: &mut Streams,
    ) {
        if self.get_mut(class).class.on_heard(number, rule) {
            self.on_rule(class, streams);
        }
    }

    /// Has a changed rule followed: what was set aside is given back.
    fn on_rule(&mut self, class: ClassId, streams: &mut Streams) {
        let kind = self.kind;
        let lane = self.get_mut(class);
        let kind = if lane.class.rule.redundant {
            SchedulerKind::Redundant
        } else {
            kind
        };
        lane.scheduler = Scheduler::new(kind);
        lane.give_back(streams);
    }

    /// The rules that the other end has still to be told.
    pub(crate) fn due(&mut self) -> impl Iterator<Item = (ClassId, &mut Class)> {
        let lanes = self.lanes.iter_mut().enumerate();
        let due = lanes.filter(|(_, lane)| lane.class.due);
        due.filter_map(|(index, lane)| {
            Some((ClassId::new(u8::try_from(index).ok()?)?, &mut lane.class))
        })
    }
}

impl Lane {
    /// Gives back what was set aside; copies of datagrams are lost.
    pub(crate) fn give_back(&mut self, streams: &mut Streams) {
        self.distribution.take_back_all(streams);
        self.distribution = Distribution::default();
    }
}
