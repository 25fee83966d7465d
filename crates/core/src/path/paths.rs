//! The paths of one session, in the order in which they were opened, and what is left of those that
//! were closed.
//!
//! Owns their places and their numbers, of which none comes back, the numbers they ask with, and
//! what they come to together.

use std::ops::{Index, IndexMut};

use tabane_base::{Bytes, Duration, Instant, Rate, Seed};

use super::retired::Retired;
use super::{Path, State};
use crate::close::Violation;
use crate::config::MAX_PATHS;
use crate::congestion::Kind;
use crate::id::{FourTuple, PathId, PathIndex};
use crate::rest::Shedding;
use crate::secret_rng::SecretRng;
use crate::snapshot::ClosedPaths;

/// What a stream may hold unacknowledged beside what its paths can use. No more: programs take for
/// sent what lies here.
const SEND_FLOOR: Bytes = Bytes::kilo(32);

/// All paths of a session.
pub(crate) struct Paths {
    open: Vec<Path>,
    /// Client: the number of the next.
    next: u32,
    retired: Retired,
    closed: ClosedPaths,
    shedding: Shedding,
    rng: SecretRng,
    /// When data of the application last left or came.
    data_at: Instant,
    /// What streams may hold follows the windows, which may have moved since it was set.
    have_moved: bool,
}

impl Paths {
    pub(crate) fn new(now: Instant, seed: [u8; 32]) -> Self {
        Self {
            open: Vec::new(),
            next: 0,
            retired: Retired::default(),
            closed: ClosedPaths::default(),
            shedding: Shedding::new(now),
            rng: SecretRng::new(seed),
            data_at: now,
            have_moved: false,
        }
    }

    /// The number of a path that we open.
    pub(crate) const fn next_id(&mut self) -> PathId {
        self.next += 1;
        PathId(self.next - 1)
    }

    /// Whether the other end may begin one of this number.
    pub(crate) fn may_appear(&self, id: PathId) -> bool {
        let has_room = self.len() < MAX_PATHS || self.in_the_way().is_some();
        has_room && self.retired.may_begin(id)
    }

    /// What makes room for a path that appears where as many are open as may be: of those that
    /// never proved their address, the one heard last the longest ago. The client has given up one
    /// at least, and could not tell; those it has not ask all the time.
    pub(crate) fn in_the_way(&self) -> Option<PathIndex> {
        if self.len() < MAX_PATHS || !self.retired.has_room() {
            return None;
        }
        let is_opening = |index: &PathIndex| matches!(self[*index].state(), State::Opening { .. });
        let opening = self.indices().filter(is_opening);
        opening.min_by_key(|index| self[*index].last_received_at())
    }

    /// # Panics
    /// Where there is, or was, a path of this number.
    pub(crate) fn add(
        &mut self,
        now: Instant,
        (id, tuple): (PathId, FourTuple),
        controller: Kind,
        max_udp_payload: u16,
    ) -> PathIndex {
        let is_new = !self.retired.knows(id) && self.index_of(id).is_none();
        assert!(is_new, "nonces are made of a path's number");
        let seed = Seed(self.rng.next_u64());
        let path = Path::new(now, id, tuple, controller, max_udp_payload, seed);
        self.have_moved = true;
        self.open.push(path);
        PathIndex(self.len() - 1)
    }

    /// Those that were opened later move up.
    /// It is gone in either case.
    pub(crate) fn remove(&mut self, index: PathIndex) -> Result<(), Violation> {
        let path = self.open.remove(index.0);
        self.closed.add(&path.snapshot());
        self.have_moved = true;
        self.retire(path.id())
    }

    /// No path has this number from here on. Fails where too many are left out between such.
    pub(crate) fn retire(&mut self, id: PathId) -> Result<(), Violation> {
        self.retired.insert(id)
    }

    pub(crate) const fn closed(&self) -> ClosedPaths {
        self.closed
    }

    /// Packets that were lost, but for those that arrived after all, over all there ever were.
    pub(crate) fn lost_packets(&self) -> u64 {
        let open = self.iter().map(|path| path.totals().lost_for_good());
        open.sum::<u64>() + self.closed.lost_packets
    }

    /// Has `tuple` prove itself.
    pub(crate) fn challenge(&mut self, now: Instant, index: PathIndex, tuple: FourTuple) {
        let data = self.rng.bytes();
        self[index].address_mut().challenge(now, tuple, data);
    }

    /// What a path's question about its round trip asks, if one is due.
    pub(crate) fn take_round_trip(&mut self, now: Instant, index: PathIndex) -> Option<[u8; 8]> {
        let Self { open, rng, .. } = self;
        open[index.0].take_round_trip(now, || rng.bytes())
    }

    /// Data of the application leaves or has come, by a path if it is still there.
    pub(crate) fn on_used(&mut self, now: Instant, index: Option<PathIndex>) {
        self.data_at = now;
        if let Some(index) = index {
            self[index].on_used(now);
        }
    }

    pub(crate) const fn data_at(&self) -> Instant {
        self.data_at
    }

    /// Something came or was settled that may move windows.
    pub(crate) const fn on_moved(&mut self) {
        self.have_moved = true;
    }

    /// Whether [`send_limit`](Self::send_limit) may say something else than it did.
    pub(crate) const fn take_moved(&mut self) -> bool {
        std::mem::replace(&mut self.have_moved, false)
    }

    /// A stream may hold what all paths together can have on their way, twice, and what the near
    /// ones deliver while the farthest one's is under way: that one's round trip, and how much.
    pub(crate) fn send_limit(&self) -> (Duration, Bytes) {
        let windows: Bytes = self.iter().map(Path::cwnd).sum();
        let farthest = self.iter().map(|path| path.rtt().smoothed()).max();
        let farthest = farthest.unwrap_or_default();
        // A fresh path's rate is a guess: none has more to show than what was acknowledged of it
        // and what it may have in flight.
        let delivered = |path: &Path| {
            let most = path.totals().acked + path.cwnd();
            path.rate().amount_in(farthest).min(most)
        };
        let delivered: Bytes = self.iter().map(delivered).sum();
        (farthest, windows + windows + delivered + SEND_FLOOR)
    }

    /// The peer has too little memory for all paths: the farthest rests.
    pub(crate) fn rest_farthest(&mut self, now: Instant, sent_at: Instant, shed: Bytes) {
        let awake = || {
            let active = self.active();
            active.filter(|(_, path)| !path.rests(now))
        };
        let farthest = awake().max_by_key(|(_, path)| path.rtt().smoothed());
        let Some((index, path)) = farthest else {
            return;
        };
        let round_trip = path.rtt().smoothed();
        let arrived = self.iter().map(|path| path.totals().acked).sum();
        let others = awake().filter(|(other, _)| *other != index);
        let others = others.map(|(_, path)| path.rate().as_bps());
        let others = Rate::from_bps(others.fold(0, u64::saturating_add));
        let too_much = self
            .shedding
            .on_shed(now, round_trip, (sent_at, shed), arrived, others);
        if too_much {
            self[index].begin_rest(now, round_trip);
        }
    }

    pub(crate) const fn len(&self) -> usize {
        self.open.len()
    }

    /// The places of all that there are now.
    pub(crate) fn indices(&self) -> impl Iterator<Item = PathIndex> + use<> {
        (0..self.open.len()).map(PathIndex)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Path> + Clone {
        self.open.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Path> {
        self.open.iter_mut()
    }

    pub(crate) fn first(&self) -> Option<&Path> {
        self.open.first()
    }

    pub(crate) fn first_mut(&mut self) -> Option<&mut Path> {
        self.open.first_mut()
    }

    /// All that carry data, with their places.
    pub(crate) fn active(&self) -> impl Iterator<Item = (PathIndex, &Path)> + Clone {
        let all = self.open.iter().enumerate();
        let all = all.map(|(place, path)| (PathIndex(place), path));
        all.filter(|(_, path)| path.is_active())
    }

    pub(crate) fn index_of(&self, id: PathId) -> Option<PathIndex> {
        self.position(|path| path.id() == id)
    }

    pub(crate) fn get_mut(&mut self, id: PathId) -> Option<&mut Path> {
        self.open.iter_mut().find(|path| path.id() == id)
    }

    pub(crate) fn position(&self, is_wanted: impl FnMut(&Path) -> bool) -> Option<PathIndex> {
        self.open.iter().position(is_wanted).map(PathIndex)
    }

    /// Whether a path carries data that is not this one.
    pub(crate) fn is_other_active(&self, index: PathIndex) -> bool {
        self.active().any(|(other, _)| other != index)
    }
}

impl Index<PathIndex> for Paths {
    type Output = Path;

    fn index(&self, index: PathIndex) -> &Path {
        &self.open[index.0]
    }
}

impl IndexMut<PathIndex> for Paths {
    fn index_mut(&mut self, index: PathIndex) -> &mut Path {
        &mut self.open[index.0]
    }
}
