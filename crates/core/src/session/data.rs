//! Which data leaves, and by which path: between scheduler, streams, datagrams and paths.

use std::ops::ControlFlow;

use tabane_base::{Bytes, Duration, Instant, Rate};

use super::Session;
use crate::class::{ClassId, ClassRule};
use crate::id::PathId;
use crate::lane::Lane;
use crate::overflow::Supply;
use crate::path::Path;
use crate::policy::{MAX_PRIORITY, Tier};
use crate::recovery::{SentFrame, SentFrames};
use crate::reinjection::reinject;
use crate::scheduler::{Backlog, Carries, Dealing, Grant, PathView};
use crate::stream::Place;
use crate::transmit::TransmitBatch;
use crate::wire::{CLASS_MAX, Frame, TAG_LEN};

/// A path counts as used by datagrams for so long after the last; the receiver says the same.
const USED_FOR: Duration = Duration::from_secs(1);
/// Zero says that there is no other path.
const LEAD_MIN: Duration = Duration::from_millis(1);

/// What delays are counted from: the path that arrives first, and half its round trip.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nearest {
    forward: Option<i64>,
    delay: Duration,
}

impl Session {
    pub(super) fn wants_to_send(&self) -> bool {
        self.has_control() || self.lanes.ids().any(|class| self.has_data(class))
    }

    /// Whether anything of a class could leave, if paths let it.
    pub(super) fn has_data(&self, class: ClassId) -> bool {
        let lane = self.lanes.get(class);
        let waits = self.datagrams.has_data(class.index())
            || self.streams.has_data(class)
            || lane.distribution.has_any();
        // What has no path to take waits for one and not for its turn.
        waits && (class == ClassId::ORDINARY || self.has_path(class))
    }

    fn has_path(&self, class: ClassId) -> bool {
        let rule = &self.lanes.get(class).class.rule;
        let mut paths = self.paths.iter();
        paths.any(|path| path.is_active() && rule.allows(path.id))
    }

    /// Whether anything else than data waits.
    fn has_control(&self) -> bool {
        self.due.hello
            || self.due.admitted
            || self.due.go_away
            || !self.due.abandon.is_empty()
            || self.streams.has_control()
            || self.lanes.iter().any(|lane| lane.class.due)
            || self
                .paths
                .iter()
                .any(|path| path.policies.due && path.is_active())
    }

    /// The class whose data may be sent over a path as a probe.
    pub(super) fn class_for_probe(&self, index: usize) -> Option<ClassId> {
        let path = self.paths[index].id;
        let may = |class: ClassId| self.lanes.get(class).class.rule.allows(path);
        let mut waiting = self.lanes.ids().filter(|class| self.has_data(*class));
        let waiting = waiting.find(|class| may(*class));
        waiting.or_else(|| self.has_control().then_some(ClassId::ORDINARY))
    }

    /// Streams, datagrams and control frames, on the paths the scheduler names.
    pub(super) fn send_data(&mut self, now: Instant, batch: &mut TransmitBatch) {
        let mut views = std::mem::take(&mut self.views);
        self.send_scheduled(now, &mut views, batch);
        views.clear();
        self.views = views;
    }

    fn send_scheduled(
        &mut self,
        now: Instant,
        views: &mut Vec<PathView>,
        batch: &mut TransmitBatch,
    ) {
        if !self.wants_to_send() && !self.lanes.ids().any(|class| self.may_reinject(class)) {
            self.overflow.on_empty();
            return self.mark_app_limited(now);
        }
        self.review_overflow(now);
        if self.lanes.len() == 1 {
            let is_empty = self.serve(now, ClassId::ORDINARY, views, batch);
            if is_empty {
                self.overflow.on_empty();
            }
            return;
        }
        self.serve_in_turn(now, views, batch);
        if batch.is_full() {
            return;
        }
        self.mark_app_limited(now);
        if !self.lanes.ids().any(|class| self.needs_more(class)) {
            self.overflow.on_empty();
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
        let level = Tier::Regular(self.overflow.level());
        let rule = &self.lanes.get(class).class.rule;
        let is_later = |path: &Path| {
            let tier = path.policies.tier();
            path.is_active() && rule.allows(path.id) && tier > level && tier < Tier::Backup
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
        let nearest = self.look(now, class, views);
        let mut last = None;
        while !batch.is_full() && (is_alone || last.is_none()) {
            self.datagrams.drop_stale(now, class.index());
            self.deal(now, class, views, last);
            if !wants(self) && !self.reinject(now, class, views) {
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
                *view = self.view(now, class, grant.index, nearest);
                last = Some(view.id);
            }
        }
        false
    }

    pub(super) fn backlog(&self, class: ClassId) -> Backlog {
        Backlog {
            streams: self.streams.backlog(class),
            datagrams: Bytes::from(self.datagrams.queued_in(class.index())),
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
            if path.amplification_room().get() < path.packet_size() as u64
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
        self.data_at = now;
        let path = &self.paths[grant.index];
        let (place, size) = ((grant.index, path.tuple), (path.packet_size(), false));
        self.send_packet(now, place, size, batch, |session, out, space, frames| {
            session.fill(now, class, grant, out, space, frames)
        })
    }

    fn may_reinject(&self, class: ClassId) -> bool {
        self.lanes.get(class).scheduler.reinjects() && self.streams.is_draining(class)
    }

    /// Sends again, where it arrives earlier, what a slow path is slow with.
    fn reinject(&mut self, now: Instant, class: ClassId, views: &[PathView]) -> bool {
        if views.len() < 2 || !self.may_reinject(class) {
            return false;
        }
        let with_room = views.iter().filter(|view| view.room >= view.packet);
        let Some(fast) = with_room.min_by_key(|view| view.delay) else {
            return false;
        };
        let streams = (&mut self.streams, class);
        reinject(now, &mut self.paths, fast, views, streams)
    }

    // What schedulers see.

    /// Up to which tier a class uses its paths: the first that has an active one, or as many
    /// priorities as the demand needs.
    fn last_tier(&self, rule: &ClassRule) -> Option<Tier> {
        let active = self.paths.iter().filter(|path| path.is_active());
        let active = active.filter(|path| rule.allows(path.id));
        let first = active.map(|path| path.policies.tier()).min()?;
        Some(first.max(match first {
            Tier::Regular(_) if rule.redundant => Tier::Regular(MAX_PRIORITY),
            Tier::Regular(_) => Tier::Regular(self.overflow.level()),
            Tier::Backup | Tier::LastResort => first,
        }))
    }

    /// Reviews which priorities the demand needs.
    pub(super) fn review_overflow(&mut self, now: Instant) {
        let priorities = || {
            let active = self.paths.iter().filter(|path| path.is_active());
            active.filter_map(|path| match path.policies.tier() {
                Tier::Regular(priority) => Some((priority, path)),
                Tier::Backup | Tier::LastResort => None,
            })
        };
        let numbers = || priorities().map(|(priority, _)| priority);
        let Some(first) = numbers().min() else {
            return;
        };
        let level = self.overflow.level().max(first);
        let before = priorities().filter(|(priority, _)| *priority < level);
        let rates = before.map(|(_, path)| path.policies.allowed(path.rate()).as_bps());
        let supply = Supply {
            first,
            next: numbers().filter(|priority| *priority > level).min(),
            previous: numbers().filter(|priority| *priority < level).max(),
            rate_before: Rate::from_bps(rates.fold(0, u64::saturating_add)),
            sent: self.paths.iter().map(|path| path.totals.sent).sum(),
        };
        if supply.next.is_some() || supply.previous.is_some() || first > self.overflow.level() {
            self.overflow.update(now, &supply);
        }
    }

    /// The paths that a class may use.
    pub(super) fn look(&self, now: Instant, class: ClassId, views: &mut Vec<PathView>) -> Nearest {
        let active = || {
            self.paths
                .iter()
                .enumerate()
                .filter(|(_, path)| path.is_active())
        };
        let nearest = Nearest {
            forward: active()
                .filter_map(|(_, path)| path.forward.relative())
                .min(),
            delay: active()
                .map(|(_, path)| path.rtt.smoothed())
                .min()
                .unwrap_or_default()
                / 2,
        };
        let rule = &self.lanes.get(class).class.rule;
        let last = self.last_tier(rule);
        let allowed = |path: &Path| Some(path.policies.tier()) <= last && rule.allows(path.id);
        let in_tier = || active().filter(|(_, path)| allowed(path));
        let all_rest = in_tier().all(|(_, path)| !path.rest.is_over(now));
        let wanted = all_rest || self.datagrams.has_data(class.index());
        let usable = in_tier().filter(|(_, path)| wanted || path.rest.is_over(now));
        views.clear();
        views.extend(usable.map(|(index, _)| self.view(now, class, index, nearest)));
        nearest
    }

    pub(super) fn view(
        &self,
        now: Instant,
        class: ClassId,
        index: usize,
        nearest: Nearest,
    ) -> PathView {
        let path = &self.paths[index];
        let packet = Bytes::from(path.packet_size());
        let paced = path.paced_at().since(now);
        let blocked = path.window_room() < packet;
        let beyond = path
            .forward
            .relative()
            .zip(nearest.forward)
            .map(|(own, best)| own - best);
        let drained = drained(path, now);
        let delay = match beyond {
            Some(nanos) => nearest.delay + Duration::from_nanos(nanos.unsigned_abs()),
            None => path.rtt.smoothed() / 2,
        };
        PathView {
            id: path.id,
            index,
            // Somebody else may keep the queue: a few packets will tell.
            room: if drained == Duration::ZERO {
                path.room(now)
            } else {
                path.room(now).min(packet + packet)
            },
            wait: if blocked {
                paced.max(path.rate().time_for(packet))
            } else {
                paced
            },
            rate: path.rate().min(path.policies.cap()),
            weight: path.policies.weight(),
            cwnd: path.cwnd(),
            rtt: path.rtt.smoothed(),
            delay: delay.saturating_sub(drained),
            packet,
            sent_ago: now.since(path.last_sent_at()),
            listed: self.lanes.get(class).distribution.listed(path.id),
        }
    }

    // Dealing out in advance.

    /// Sets data aside for paths, if the scheduler wants that. `last` is the path that has sent
    /// since it was done before in this turn: no other has changed.
    pub(super) fn deal(
        &mut self,
        now: Instant,
        class: ClassId,
        views: &mut [PathView],
        last: Option<PathId>,
    ) {
        let Self { lanes, streams, .. } = self;
        let lane = lanes.get_mut(class);
        let dealing = lane.scheduler.dealing();
        if dealing == Dealing::AtOnce || views.is_empty() {
            return;
        }
        if last.is_none() {
            let is_usable = |path: PathId| views.iter().any(|view| view.id == path);
            lane.distribution.retain(streams, is_usable);
        }
        match dealing {
            Dealing::AtOnce => {}
            Dealing::Ahead => self.deal_ahead(class, views, last),
            Dealing::Everywhere => self.deal_everywhere(now, class, views, last),
        }
    }

    fn deal_ahead(&mut self, class: ClassId, views: &mut [PathView], last: Option<PathId>) {
        let Self { lanes, streams, .. } = self;
        let Lane {
            scheduler,
            distribution,
            ..
        } = lanes.get_mut(class);
        // What was lost is needed first, and has to go in front of what was dealt before.
        let must_deal_again =
            last.is_none() && scheduler.must_deal_again(views) || streams.has_waiting(class);
        if must_deal_again && distribution.has_any() {
            distribution.take_back_all(streams);
            views.iter_mut().for_each(|view| view.listed = 0);
        }
        while streams.has_data(class)
            && let Some(place) = scheduler.deal(views)
            && let Some(piece) = streams.set_aside(class, space(views[place].packet))
        {
            distribution.push(views[place].id, piece);
            views[place].listed += 1;
        }
    }

    /// A path with room that has sent everything set aside for it gets more, and with it all do.
    fn deal_everywhere(
        &mut self,
        now: Instant,
        class: ClassId,
        views: &mut [PathView],
        last: Option<PathId>,
    ) {
        let Self { lanes, streams, .. } = self;
        let distribution = &mut lanes.get_mut(class).distribution;
        // What arrives is known between turns only; but what a path sent brings up the next piece.
        let is_changed = |path: PathId| last.is_none_or(|last| last == path);
        for view in views.iter_mut().filter(|view| is_changed(view.id)) {
            view.listed = distribution.drop_arrived(view.id, streams);
        }
        if self.streams.has_data(class) || self.datagrams.has_data(class.index()) {
            self.set_copies_aside(now, class, views);
        }
    }

    fn set_copies_aside(&mut self, now: Instant, class: ClassId, views: &mut [PathView]) {
        let Self {
            lanes,
            streams,
            datagrams,
            ..
        } = self;
        let distribution = &mut lanes.get_mut(class).distribution;
        let least = views
            .iter()
            .map(|view| space(view.packet))
            .min()
            .unwrap_or_default();
        let with_room = || views.iter().filter(|view| view.room >= view.packet);
        let delays = || views.iter().map(|view| view.delay);
        let lead = match views.len() {
            0 | 1 => Duration::ZERO,
            _ => (delays().max().unwrap_or_default() - delays().min().unwrap_or_default())
                .max(LEAD_MIN),
        };
        while datagrams.has_data(class.index())
            && with_room().any(|view| !distribution.has_copies(view.id))
            && let Some(copy) = datagrams.take_copy(now, class.index(), lead, least)
        {
            views
                .iter()
                .for_each(|view| distribution.push_copy(view.id, copy.clone()));
        }
        while streams.has_data(class)
            && with_room().any(|view| !distribution.has_pieces(view.id))
            && let Some(piece) = streams.set_aside(class, least)
        {
            views
                .iter()
                .for_each(|view| distribution.push(view.id, piece.clone()));
        }
        for view in views {
            view.listed = distribution.listed(view.id);
        }
    }

    // What goes into a packet.

    /// Frames of a data packet for a path, most urgent first, with data of one class.
    fn fill(
        &mut self,
        now: Instant,
        class: ClassId,
        grant: Grant,
        out: &mut Vec<u8>,
        space: usize,
        frames: &mut SentFrames,
    ) -> bool {
        let path = self.paths[grant.index].id;
        let (start, end) = (out.len(), out.len() + space);
        self.fill_session_frames(out, frames);
        self.fill_path_frames(end, out, frames);
        self.fill_class_frames(end, out, frames);
        self.streams.fill_control(out, end - out.len(), frames);
        self.datagram_turn = !self.datagram_turn;
        let has_pieces = grant.carries != Carries::Datagrams
            && (self.streams.has_data(class)
                || self.lanes.get(class).distribution.has_pieces(path));
        let has_datagrams = |session: &Self| {
            grant.carries != Carries::Streams
                && (session.datagrams.has_data(class.index())
                    || session.lanes.get(class).distribution.has_copies(path))
        };
        let datagrams_first = has_datagrams(self) && (self.datagram_turn || !has_pieces);
        if datagrams_first {
            self.fill_datagrams(now, (class, grant.index), out, (end - out.len(), space));
        }
        if has_pieces && (!datagrams_first || !has_datagrams(self)) {
            let arrives_at = grant
                .arrival
                .filter(|_| self.lanes.get(class).scheduler.reinjects());
            let place = Place {
                ahead: grant.ahead,
                arrives_at: arrives_at.map(|arrival| now + arrival),
            };
            self.fill_streams(class, (path, place), out, end - out.len(), frames);
            self.paths[grant.index].totals.reinjected += self.streams.take_rescued();
        }
        out.len() > start
    }

    /// `space` and `whole` are what this packet holds, and what an empty one would.
    fn fill_datagrams(
        &mut self,
        now: Instant,
        (class, index): (ClassId, usize),
        out: &mut Vec<u8>,
        (space, whole): (usize, usize),
    ) {
        let lane = self.lanes.get_mut(class);
        match lane.scheduler.dealing() {
            Dealing::Everywhere => {
                let path = self.paths[index].id;
                lane.distribution.fill_copies(path, out, space, whole);
            }
            Dealing::AtOnce | Dealing::Ahead => {
                let lead = self.lead(now, index);
                let datagrams = &mut self.datagrams;
                if datagrams.fill(now, class.index(), lead, out, (space, whole)) {
                    self.paths[index].carried_datagram_at = Some(now);
                }
            }
        }
    }

    /// How much sooner a path brings a datagram than the slowest that datagrams use; zero when
    /// they use no other.
    fn lead(&self, now: Instant, index: usize) -> Duration {
        let own = &self.paths[index];
        let others = self.paths.iter().enumerate().filter(|(other, path)| {
            let used = path.carried_datagram_at;
            *other != index && path.is_active() && used.is_some_and(|at| now.since(at) <= USED_FOR)
        });
        let leads = others.map(|(_, path)| {
            let lead = match path.forward.relative().zip(own.forward.relative()) {
                Some((theirs, own)) => u64::try_from(theirs.saturating_sub(own)).unwrap_or(0),
                None => {
                    let lead = path.rtt.smoothed().saturating_sub(own.rtt.smoothed()) / 2;
                    u64::try_from(lead.as_nanos()).unwrap_or(u64::MAX)
                }
            };
            Duration::from_nanos(lead).max(LEAD_MIN)
        });
        leads.max().unwrap_or_default()
    }

    fn fill_streams(
        &mut self,
        class: ClassId,
        (path, place): (PathId, Place),
        out: &mut Vec<u8>,
        space: usize,
        frames: &mut SentFrames,
    ) {
        let distribution = &mut self.lanes.get_mut(class).distribution;
        if distribution.has_pieces(path) {
            distribution.fill(path, &mut self.streams, out, space, frames);
        } else {
            self.streams.fill_data(class, out, space, place, frames);
        }
    }

    fn fill_session_frames(&mut self, out: &mut Vec<u8>, frames: &mut SentFrames) {
        if std::mem::take(&mut self.due.hello) {
            let token = self.token.as_deref().unwrap_or_default();
            Frame::Hello { token }.emit(out);
            frames.push(SentFrame::Hello);
        }
        if std::mem::take(&mut self.due.admitted) {
            Frame::Admitted.emit(out);
            frames.push(SentFrame::Admitted);
        }
        if std::mem::take(&mut self.due.go_away) {
            Frame::GoAway.emit(out);
            frames.push(SentFrame::GoAway);
        }
        for id in self.due.abandon.drain(..) {
            Frame::PathAbandon(id).emit(out);
            frames.push(SentFrame::PathAbandon(id));
        }
    }

    fn fill_class_frames(&mut self, end: usize, out: &mut Vec<u8>, frames: &mut SentFrames) {
        for (id, class) in self.lanes.due() {
            if out.len() + CLASS_MAX > end {
                return;
            }
            class.due = false;
            class.frame(id).emit(out);
            frames.push(SentFrame::Class(id));
        }
    }

    fn fill_path_frames(&mut self, end: usize, out: &mut Vec<u8>, frames: &mut SentFrames) {
        /// No frame about a path is longer: PATH_POLICY's type, path, number, flags, weight,
        /// priority and cap.
        const LONGEST: usize = 1 + 4 + 8 + 1 + 2 + 1 + 8;
        for path in &mut self.paths {
            if path.frequency_due && out.len() + LONGEST <= end {
                let (packets, delay) = path.take_frequency();
                Frame::AckFrequency {
                    path: path.id,
                    packets,
                    delay,
                }
                .emit(out);
                frames.push(SentFrame::AckFrequency);
            }
            if path.policies.due && path.is_active() && out.len() + LONGEST <= end {
                path.policies.due = false;
                if let Some(wish) = path.policies.frame(path.id) {
                    wish.emit(out);
                    frames.push(SentFrame::PathPolicy(path.id));
                }
            }
        }
    }
}

/// How much shorter the queue has become since the path was last measured: with nothing in flight,
/// none of it is ours, and what others had in it has gone on as well.
fn drained(path: &Path, now: Instant) -> Duration {
    if path.window_room() < path.cwnd() {
        return Duration::ZERO;
    }
    let queue = path.rtt.smoothed().saturating_sub(path.rtt.min());
    queue.min(now.since(path.last_sent_at()))
}

/// Bytes for frames in a packet of the given size, for cutting pieces: first byte, connection id,
/// path and packet number as they mostly are. A piece that does not fit after all is split.
fn space(packet: Bytes) -> usize {
    const HEADER: usize = 1 + 4 + 1 + 3;
    packet.get() as usize - HEADER - TAG_LEN
}
