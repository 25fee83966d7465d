//! What schedulers see of the paths, and data dealt out to them in advance.

use tabane_base::{Bytes, Duration, Instant, Rate};

use super::{Lane, Lanes};
use crate::class::{ClassId, ClassRule};
use crate::datagrams::Datagrams;
use crate::id::{PathId, PathIndex};
use crate::overflow::Supply;
use crate::path::{Path, Paths};
use crate::policy::{MAX_PRIORITY, Tier};
use crate::scheduler::{Dealing, PathView};
use crate::stream::Streams;
use crate::wire::TAG_LEN;

/// How much sooner one path brings something than another, at the least: zero says that there is no
/// other path.
pub(crate) const LEAD_MIN: Duration = Duration::from_millis(1);

/// What delays are counted from: the path that arrives first, and half its round trip.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nearest {
    forward: Option<i64>,
    delay: Duration,
}

impl Lanes {
    /// Up to which tier a class uses its paths: the first that has an active one, or as many
    /// priorities as the demand needs.
    fn last_tier(&self, rule: &ClassRule, paths: &Paths) -> Option<Tier> {
        let active = paths.iter().filter(|path| path.is_active());
        let active = active.filter(|path| rule.allows(path.id()));
        let first = active.map(|path| path.policies().tier()).min()?;
        Some(first.max(match first {
            Tier::Regular(_) if rule.redundant => Tier::Regular(MAX_PRIORITY),
            Tier::Regular(_) => Tier::Regular(self.overflow.level()),
            Tier::Backup | Tier::LastResort => first,
        }))
    }

    /// Reviews which priorities the demand needs.
    pub(crate) fn review_overflow(&mut self, now: Instant, paths: &Paths) {
        let priorities = || {
            let active = paths.iter().filter(|path| path.is_active());
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
            sent: paths.iter().map(|path| path.totals().sent).sum(),
        };
        if supply.next.is_some() || supply.previous.is_some() || first > self.overflow.level() {
            self.overflow.update(now, &supply);
        }
    }

    /// The paths that a class may use.
    pub(crate) fn look(
        &self,
        now: Instant,
        class: ClassId,
        paths: &Paths,
        datagrams: &Datagrams,
        views: &mut Vec<PathView>,
    ) -> Nearest {
        let active = || paths.active();
        let nearest = Nearest {
            forward: active().filter_map(|(_, path)| path.forward_delay()).min(),
            delay: active()
                .map(|(_, path)| path.rtt().smoothed())
                .min()
                .unwrap_or_default()
                / 2,
        };
        let lane = self.get(class);
        let rule = &lane.class.rule;
        let last = self.last_tier(rule, paths);
        let allowed = |path: &Path| Some(path.policies().tier()) <= last && rule.allows(path.id());
        let in_tier = || active().filter(|(_, path)| allowed(path));
        let all_rest = in_tier().all(|(_, path)| path.rests(now));
        let wanted = all_rest || datagrams.has_data(class);
        let usable = in_tier().filter(|(_, path)| wanted || !path.rests(now));
        views.clear();
        views.extend(usable.map(|it| lane.view(now, it, nearest)));
        nearest
    }
}

impl Lane {
    /// What the scheduler sees of a path.
    pub(crate) fn view(
        &self,
        now: Instant,
        (index, path): (PathIndex, &Path),
        nearest: Nearest,
    ) -> PathView {
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
            listed: self.distribution.listed(path.id()),
        }
    }

    /// Sets data aside for paths, if the scheduler wants that. `last` is the path that has sent
    /// since it was done before in this turn: no other has changed.
    pub(crate) fn deal(
        &mut self,
        now: Instant,
        class: ClassId,
        views: &mut [PathView],
        last: Option<PathId>,
        (streams, datagrams): (&mut Streams, &mut Datagrams),
    ) {
        let dealing = self.scheduler.dealing();
        if dealing == Dealing::AtOnce || views.is_empty() {
            return;
        }
        if last.is_none() {
            let is_usable = |path: PathId| views.iter().any(|view| view.id == path);
            self.distribution.retain(streams, is_usable);
        }
        match dealing {
            Dealing::AtOnce => {}
            Dealing::Ahead => self.deal_ahead(class, views, last, streams),
            Dealing::Everywhere => {
                self.forget_arrived(views, last, streams);
                self.set_copies_aside(now, class, views, streams, datagrams);
            }
        }
    }

    fn deal_ahead(
        &mut self,
        class: ClassId,
        views: &mut [PathView],
        last: Option<PathId>,
        streams: &mut Streams,
    ) {
        let Self {
            scheduler,
            distribution,
            ..
        } = self;
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

    /// Forgets what was set aside and has arrived, by whatever path.
    fn forget_arrived(
        &mut self,
        views: &mut [PathView],
        last: Option<PathId>,
        streams: &mut Streams,
    ) {
        let distribution = &mut self.distribution;
        // What arrives is known between turns only; but what a path sent brings up the next piece.
        let is_changed = |path: PathId| last.is_none_or(|last| last == path);
        // A path that joins is to bring what was dealt before it came, too: the others may be slow.
        if views.iter().any(|view| !distribution.knows(view.id)) {
            distribution.take_back_all(streams);
        }
        for view in views.iter_mut().filter(|view| is_changed(view.id)) {
            view.listed = distribution.drop_arrived(view.id, streams);
        }
    }

    /// A path with room that has sent everything set aside for it gets more, and with it all do.
    fn set_copies_aside(
        &mut self,
        now: Instant,
        class: ClassId,
        views: &mut [PathView],
        streams: &mut Streams,
        datagrams: &mut Datagrams,
    ) {
        if !streams.has_data(class) && !datagrams.has_data(class) {
            return;
        }
        let distribution = &mut self.distribution;
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
