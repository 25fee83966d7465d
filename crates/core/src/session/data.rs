//! Which data leaves, and by which path: between scheduler, streams, datagrams and paths.

use std::ops::ControlFlow;

use tabane_base::{Bytes, Duration, Instant};

use super::Session;
use crate::class::ClassId;
use crate::id::PathIndex;
use crate::path::Path;
use crate::policy::Tier;
use crate::reinjection::{Wanted, reinject};
use crate::scheduler::{Backlog, Grant, PathView};
use crate::transmit::TransmitBatch;

/// Looking through all that is in flight takes time: no more often than this.
const LOOK_BACK_INTERVAL: Duration = Duration::from_millis(5);
/// A reader waits where its end holds what all paths bring in this time, and more than a few
/// packets: they overtake each other.
const HELD_FOR: Duration = Duration::from_millis(50);
const HELD_LEAST: Bytes = Bytes::new(8 * 1024);
/// Where the peer holds so much out of order, its reader waits, however fast the paths.
const HELD_UP: Bytes = Bytes::new(64 * 1024);

impl Session {
    pub(super) fn wants_to_send(&self) -> bool {
        self.has_control() || self.lanes.ids().any(|class| self.has_data(class))
    }

    /// Whether anything of a class could leave, if paths let it.
    pub(super) fn has_data(&self, class: ClassId) -> bool {
        let lane = self.lanes.get(class);
        let waits = self.datagrams.has_data(class)
            || self.streams.has_data(class)
            || lane.distribution.has_any();
        // What has no path to take waits for one and not for its turn.
        waits && (class == ClassId::ORDINARY || self.has_path(class))
    }

    fn has_path(&self, class: ClassId) -> bool {
        let rule = &self.lanes.get(class).class.rule;
        let mut paths = self.paths.iter();
        paths.any(|path| path.is_active() && rule.allows(path.id()))
    }

    /// Whether anything else than data waits.
    fn has_control(&self) -> bool {
        self.due.has_any()
            || self.streams.has_control()
            || self.lanes.iter().any(|lane| lane.class.due)
            || self
                .paths
                .iter()
                .any(|path| path.policies().due && path.is_active())
    }

    /// The class whose data may be sent over a path as a probe.
    pub(super) fn class_for_probe(&self, index: PathIndex) -> Option<ClassId> {
        let path = self.paths[index].id();
        let may = |class: ClassId| self.lanes.get(class).class.rule.allows(path);
        let mut waiting = self.lanes.ids().filter(|class| self.has_data(*class));
        let waiting = waiting.find(|class| may(*class));
        waiting.or_else(|| self.has_control().then_some(ClassId::ORDINARY))
    }

    /// Streams, datagrams and control frames, on the paths the scheduler names.
    pub(super) fn send_data(&mut self, now: Instant, batch: &mut TransmitBatch) {
        let mut views = self.lanes.take_views();
        self.send_scheduled(now, &mut views, batch);
        self.lanes.keep_views(views);
    }

    fn send_scheduled(
        &mut self,
        now: Instant,
        views: &mut Vec<PathView>,
        batch: &mut TransmitBatch,
    ) {
        if !self.wants_to_send() && !self.lanes.ids().any(|class| self.may_reinject(class)) {
            self.lanes.on_empty();
            return self.mark_app_limited(now);
        }
        self.lanes.review_overflow(now, &self.paths);
        if self.lanes.len() == 1 {
            let is_empty = self.serve(now, ClassId::ORDINARY, views, batch);
            if is_empty {
                self.lanes.on_empty();
            }
            return;
        }
        self.serve_in_turn(now, views, batch);
        if batch.is_full() {
            return;
        }
        self.mark_app_limited(now);
        if !self.lanes.ids().any(|class| self.needs_more(class)) {
            self.lanes.on_empty();
        }
    }

    /// Serves the classes grant by grant, beginning with the one after who was served last, until
    /// nothing more may leave.
    fn serve_in_turn(
        &mut self,
        now: Instant,
        views: &mut Vec<PathView>,
        batch: &mut TransmitBatch,
    ) {
        let mut vain = 0;
        while vain < self.lanes.len() && !batch.is_full() {
            let class = self.lanes.next_turn();
            let before = batch.buf.len();
            self.serve(now, class, views, batch);
            vain = if batch.buf.len() > before {
                0
            } else {
                vain + 1
            };
        }
    }

    /// Whether data of a class waits that a later priority could carry.
    fn needs_more(&self, class: ClassId) -> bool {
        let level = Tier::Regular(self.lanes.level());
        let rule = &self.lanes.get(class).class.rule;
        let is_later = |path: &Path| {
            let tier = path.policies().tier();
            path.is_active() && rule.allows(path.id()) && tier > level && tier < Tier::Backup
        };
        self.has_data(class) && self.paths.iter().any(is_later)
    }

    /// Sends what waits of a class, as far as its paths let it; one grant's worth where there are
    /// several classes. `true` when nothing of it is left.
    fn serve(
        &mut self,
        now: Instant,
        class: ClassId,
        views: &mut Vec<PathView>,
        batch: &mut TransmitBatch,
    ) -> bool {
        let wants = |session: &Self| match class {
            ClassId::ORDINARY => session.has_control() || session.has_data(class),
            _ => session.has_data(class),
        };
        if !wants(self) && !self.may_reinject(class) {
            return true;
        }
        let is_alone = self.lanes.len() == 1;
        let Self { lanes, paths, .. } = self;
        let nearest = lanes.look(now, class, paths, &self.datagrams, views);
        self.look_back(now, class, views);
        let mut last = None;
        while !batch.is_full() && (is_alone || last.is_none()) {
            self.datagrams.drop_stale(now, class);
            let sources = (&mut self.streams, &mut self.datagrams);
            let lane = self.lanes.get_mut(class);
            lane.deal(now, class, views, last, sources);
            if !wants(self) && !self.reinject(now, class, views, Wanted::Everything) {
                if is_alone {
                    self.mark_app_limited(now);
                }
                return true;
            }
            let backlog = self.backlog(class);
            let lane = self.lanes.get_mut(class);
            let Some(grant) = lane.scheduler.choose(views, backlog) else {
                if is_alone {
                    self.mark_app_limited(now);
                }
                return false;
            };
            if self.send_granted(now, class, grant, batch).is_break() {
                return false;
            }
            // The other paths are as they were: time stands still here.
            if let Some(view) = views.iter_mut().find(|view| view.index == grant.index) {
                let path = (grant.index, &self.paths[grant.index]);
                *view = self.lanes.get(class).view(now, path, nearest);
                last = Some(view.id);
            }
        }
        false
    }

    pub(super) fn backlog(&self, class: ClassId) -> Backlog {
        let [streams, beyond, latter] = self.streams.backlog(class);
        Backlog {
            streams,
            beyond,
            latter,
            datagrams: Bytes::from(self.datagrams.queued_in(class)),
        }
    }

    /// Paths that would take more than they get, for want of data or because waiting for another
    /// is earlier, measure the application and not themselves.
    fn mark_app_limited(&mut self, now: Instant) {
        for path in self.paths.iter_mut().filter(|path| path.is_active()) {
            if path.room(now).get() >= path.packet_size() as u64 {
                path.on_app_limited();
            }
        }
    }

    /// Breaks when there is nothing (more) that credit lets out.
    fn send_granted(
        &mut self,
        now: Instant,
        class: ClassId,
        grant: Grant,
        batch: &mut TransmitBatch,
    ) -> ControlFlow<()> {
        for _ in 0..grant.packets {
            if batch.is_full() {
                break;
            }
            let path = &self.paths[grant.index];
            if path.address().amplification_room().get() < path.packet_size() as u64
                || !self.send_data_packet(now, class, grant, batch)
            {
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }

    /// A packet of what the grant is for, of one class.
    pub(super) fn send_data_packet(
        &mut self,
        now: Instant,
        class: ClassId,
        grant: Grant,
        batch: &mut TransmitBatch,
    ) -> bool {
        self.paths.on_used(now, Some(grant.index));
        let path = &self.paths[grant.index];
        let (place, size) = ((grant.index, path.tuple()), (path.packet_size(), false));
        let is_sent = self.send_packet(now, place, size, batch, |session, out, space, frames| {
            session.fill(now, class, grant, out, space, frames)
        });
        if self.streams.has_renewed() {
            self.send_renewed(now, grant.index, batch);
        }
        is_sent
    }

    /// Sends credit that has just left by one path by the next best as well: whoever waits for it
    /// would wait for as long as the first stands still.
    fn send_renewed(&mut self, now: Instant, first: PathIndex, batch: &mut TransmitBatch) {
        let tier = self.paths[first].policies().tier();
        let newest = self.paths[first].last_received_at();
        let others = self.paths.active().filter(|(index, path)| {
            *index != first
                && path.policies().tier() <= tier
                && path.is_fresh(newest)
                && path.room(now).get() >= path.packet_size() as u64
        });
        let other = others.min_by_key(|(_, path)| path.rtt().smoothed());
        let place = other.map(|(index, path)| ((index, path.tuple()), (path.packet_size(), false)));
        let Some((place, size)) = place.filter(|_| !batch.is_full()) else {
            return self.streams.forget_renewed();
        };
        self.send_packet(now, place, size, batch, |session, out, space, _| {
            session.streams.fill_renewed(out, space);
            true
        });
    }

    fn may_reinject(&self, class: ClassId) -> bool {
        self.lanes.get(class).scheduler.reinjects() && self.streams.is_draining(class)
    }

    /// Sends again, where it arrives earlier, what a slow path is slow with.
    fn reinject(
        &mut self,
        now: Instant,
        class: ClassId,
        views: &[PathView],
        wanted: Wanted,
    ) -> bool {
        if views.len() < 2 || wanted == Wanted::Everything && !self.may_reinject(class) {
            return false;
        }
        let with_room = views.iter().filter(|view| view.room >= view.packet);
        let Some(fast) = with_room.min_by_key(|view| view.delay) else {
            return false;
        };
        let streams = (&mut self.streams, class, wanted);
        reinject(now, &mut self.paths, fast, views, streams)
    }

    /// The same while there is more to send, where the peer's reader waits.
    fn look_back(&mut self, now: Instant, class: ClassId, views: &[PathView]) {
        let lane = self.lanes.get_mut(class);
        if views.len() < 2 || now < lane.looks_back_at || !lane.scheduler.reinjects() {
            return;
        }
        let brought: Bytes = views.iter().map(|it| it.rate.amount_in(HELD_FOR)).sum();
        if !self
            .streams
            .is_held_up(class, brought.max(HELD_LEAST).min(HELD_UP))
        {
            return;
        }
        lane.looks_back_at = now + LOOK_BACK_INTERVAL;
        self.reinject(now, class, views, Wanted::Awaited);
    }
}
