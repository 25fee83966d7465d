//! What goes into a packet.

use tabane_base::{Duration, Instant};

use super::Session;
use crate::class::ClassId;
use crate::id::{PathId, PathIndex};
use crate::lane::LEAD_MIN;
use crate::recovery::{SentFrame, SentFrames};
use crate::scheduler::{Carries, Dealing, Grant};
use crate::stream::Place;
use crate::wire::{CLASS_MAX, Frame};

/// A path counts as used by datagrams for so long after the last; the receiver says the same.
const USED_FOR: Duration = Duration::from_secs(1);

impl Session {
    /// Frames of a data packet for a path, most urgent first, with data of one class.
    pub(super) fn fill(
        &mut self,
        now: Instant,
        class: ClassId,
        grant: Grant,
        out: &mut Vec<u8>,
        space: usize,
        frames: &mut SentFrames,
    ) -> bool {
        let path = self.paths[grant.index].id();
        let (start, end) = (out.len(), out.len() + space);
        let token = self.contact.token();
        self.due.fill(token, end, out, frames);
        self.fill_path_frames(end, out, frames);
        self.fill_class_frames(end, out, frames);
        self.streams.fill_control(out, end - out.len(), frames);
        let is_datagrams_turn = self.lanes.alternate();
        let has_pieces = grant.carries != Carries::Datagrams
            && (self.streams.has_data(class)
                || self.lanes.get(class).distribution.has_pieces(path));
        let has_datagrams = |session: &Self| {
            grant.carries != Carries::Streams
                && (session.datagrams.has_data(class)
                    || session.lanes.get(class).distribution.has_copies(path))
        };
        let datagrams_first = has_datagrams(self) && (is_datagrams_turn || !has_pieces);
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
            self.paths[grant.index].on_reinjected(self.streams.take_rescued());
        }
        out.len() > start
    }

    /// `space` and `whole` are what this packet holds, and what an empty one would.
    fn fill_datagrams(
        &mut self,
        now: Instant,
        (class, index): (ClassId, PathIndex),
        out: &mut Vec<u8>,
        (space, whole): (usize, usize),
    ) {
        let lane = self.lanes.get_mut(class);
        match lane.scheduler.dealing() {
            Dealing::Everywhere => {
                let path = self.paths[index].id();
                lane.distribution.fill_copies(path, out, space, whole);
            }
            Dealing::AtOnce | Dealing::Ahead => {
                let lead = self.lead(now, index);
                let datagrams = &mut self.datagrams;
                if datagrams.fill(now, class, lead, out, (space, whole)) {
                    self.paths[index].on_datagram(now);
                }
            }
        }
    }

    /// How much sooner a path brings a datagram than the slowest that datagrams use; zero when
    /// they use no other.
    fn lead(&self, now: Instant, index: PathIndex) -> Duration {
        let own = &self.paths[index];
        let others = self.paths.active().filter(|(other, path)| {
            let used = path.carried_datagram_at();
            *other != index && used.is_some_and(|at| now.since(at) <= USED_FOR)
        });
        let leads = others.map(|(_, path)| {
            let lead = match path.forward_delay().zip(own.forward_delay()) {
                Some((theirs, own)) => u64::try_from(theirs.saturating_sub(own)).unwrap_or(0),
                None => {
                    let lead = path.rtt().smoothed().saturating_sub(own.rtt().smoothed()) / 2;
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
        for path in self.paths.iter_mut() {
            if path.owes_frequency() && out.len() + LONGEST <= end {
                let (packets, delay) = path.take_frequency();
                Frame::AckFrequency {
                    path: path.id(),
                    packets,
                    delay,
                }
                .emit(out);
                frames.push(SentFrame::AckFrequency);
            }
            if path.policies().due
                && path.is_active()
                && out.len() + LONGEST <= end
                && let Some(wish) = path.take_policy()
            {
                wish.emit(out);
                frames.push(SentFrame::PathPolicy(path.id()));
            }
        }
    }
}
