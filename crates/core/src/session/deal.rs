//! What schedulers see of the paths, and data dealt out to them in advance.

use tabane_base::{Bytes, Duration, Instant, Rate};

use super::Session;
use super::fill::LEAD_MIN;
use crate::class::{ClassId, ClassRule};
use crate::id::{PathId, PathIndex};
use crate::lane::Lane;
use crate::overflow::Supply;
use crate::path::Path;
use crate::policy::{MAX_PRIORITY, Tier};
use crate::scheduler::{Dealing, PathView};
use crate::wire::TAG_LEN;

/// What delays are counted from: the path that arrives first, and half its round trip.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nearest {
    forward: Option<i64>,
    delay: Duration,
}

impl Session {
    /// Up to which tier a class uses its paths: the first that has an active one, or as many
    /// priorities as the demand needs.
    fn last_tier(&self, rule: &ClassRule) -> Option<Tier> {
        let active = self.paths.iter().filter(|path| path.is_active());
        let active = active.filter(|path| rule.allows(path.id()));
        let first = active.map(|path| path.policies().tier()).min()?;
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
            active.filter_map(|path| match path.policies().tier() {
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
        let rates = before.map(|(_, path)| path.policies().allowed(path.rate()).as_bps());
        let supply = Supply {
            first,
            next: numbers().filter(|priority| *priority > level).min(),
            previous: numbers().filter(|priority| *priority < level).max(),
            rate_before: Rate::from_bps(rates.fold(0, u64::saturating_add)),
            sent: self.paths.iter().map(|path| path.totals().sent).sum(),
        };
        if supply.next.is_some() || supply.previous.is_some() || first > self.overflow.level() {
            self.overflow.update(now, &supply);
        }
    }

    /// The paths that a class may use.
    pub(super) fn look(&self, now: Instant, class: ClassId, views: &mut Vec<PathView>) -> Nearest {
        let active = || self.paths.active();
        let nearest = Nearest {
            forward: active().filter_map(|(_, path)| path.forward_delay()).min(),
            delay: active()
                .map(|(_, path)| path.rtt().smoothed())
                .min()
                .unwrap_or_default()
                / 2,
        };
        let rule = &self.lanes.get(class).class.rule;
        let last = self.last_tier(rule);
        let allowed = |path: &Path| Some(path.policies().tier()) <= last && rule.allows(path.id());
        let in_tier = || active().filter(|(_, path)| allowed(path));
        let all_rest = in_tier().all(|(_, path)| path.rests(now));
        let wanted = all_rest || self.datagrams.has_data(class);
        let usable = in_tier().filter(|(_, path)| wanted || !path.rests(now));
        views.clear();
        views.extend(usable.map(|(index, _)| self.view(now, class, index, nearest)));
        nearest
    }

    pub(super) fn view(
        &self,
        now: Instant,
        class: ClassId,
        index: PathIndex,
        nearest: Nearest,
    ) -> PathView {
        let path = &self.paths[index];
        let packet = Bytes::from(path.packet_size());
        let paced = path.paced_at().since(now);
        let blocked = path.window_room() < packet;
        let beyond = path
            .forward_delay()
            .zip(nearest.forward)
            // Both are the peer's word: as far apart as it likes.
            .map(|(own, best)| own.saturating_sub(best));
        let drained = drained(path, now);
        let delay = match beyond {
            Some(nanos) => nearest.delay + Duration::from_nanos(nanos.unsigned_abs()),
            None => path.rtt().smoothed() / 2,
        };
        PathView {
            id: path.id(),
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
            rate: path.rate().min(path.policies().cap()),
            weight: path.policies().weight(),
            cwnd: path.cwnd(),
            rtt: path.rtt().smoothed(),
            delay: delay.saturating_sub(drained),
            late: path.late(),
            packet,
            sent_ago: now.since(path.last_sent_at()),
            listed: self.lanes.get(class).distribution.listed(path.id()),
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
        // A path that joins is to bring what was dealt before it came, too: the others may be slow.
        if views.iter().any(|view| !distribution.knows(view.id)) {
            distribution.take_back_all(streams);
        }
        for view in views.iter_mut().filter(|view| is_changed(view.id)) {
            view.listed = distribution.drop_arrived(view.id, streams);
        }
        if self.streams.has_data(class) || self.datagrams.has_data(class) {
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
        while datagrams.has_data(class)
            && with_room().any(|view| !distribution.has_copies(view.id))
            && let Some(copy) = datagrams.take_copy(now, class, lead, least)
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
}

/// How much shorter the queue has become since the path was last measured: with nothing in flight,
/// none of it is ours, and what others had in it has gone on as well.
fn drained(path: &Path, now: Instant) -> Duration {
    if path.window_room() < path.cwnd() {
        return Duration::ZERO;
    }
    let queue = path.rtt().smoothed().saturating_sub(path.rtt().min());
    queue.min(now.since(path.last_sent_at()))
}

/// Bytes for frames in a packet of the given size, for cutting pieces: first byte, connection id,
/// path and packet number as they mostly are. A piece that does not fit after all is split.
fn space(packet: Bytes) -> usize {
    const HEADER: usize = 1 + 4 + 1 + 3;
    packet.get() as usize - HEADER - TAG_LEN
}
