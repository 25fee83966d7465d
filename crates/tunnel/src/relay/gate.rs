//! What lets a flow's datagrams through as fast as its user's rate allows.

use std::task::{Context, Poll};

use tabane_base::Duration;
use tokio::time::Instant;

use super::user::{Direction, Meter};

/// How long datagrams may stand in a queue because of the user's rate. UDP has no other way of
/// telling its sender; what would come later than this is worth little.
const MOST_STANDING: Duration = Duration::from_millis(50);

pub(super) struct Gate {
    meter: Meter,
    /// Since when datagrams have stood before it, on their way to the client and from it.
    down_since: Option<Instant>,
    up_since: Option<Instant>,
}

/// What becomes of the next datagram.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Pass,
    Wait,
    Drop,
}

impl Gate {
    pub(super) fn new(meter: Meter) -> Self {
        Self {
            meter,
            down_since: None,
            up_since: None,
        }
    }

    pub(super) fn ask(&mut self, way: Direction, cx: &Context<'_>) -> Fate {
        match self.meter.poll(way, cx) {
            Poll::Ready(0) => return Fate::Drop,
            Poll::Ready(_) => return Fate::Pass,
            Poll::Pending => {}
        }
        let now = Instant::now();
        match self.since(way).get_or_insert(now) {
            since if now - *since > MOST_STANDING => Fate::Drop,
            _ => Fate::Wait,
        }
    }

    /// The queue was seen empty.
    pub(super) fn on_empty(&mut self, way: Direction) {
        *self.since(way) = None;
    }

    /// So many bytes have passed.
    pub(super) fn spend(&mut self, way: Direction, bytes: usize) {
        self.meter.spend(way, bytes);
    }

    /// The user's volume is used up: nothing passes any more.
    pub(super) fn is_used_up(&self) -> bool {
        self.meter.is_used_up()
    }

    fn since(&mut self, way: Direction) -> &mut Option<Instant> {
        match way {
            Direction::Down => &mut self.down_since,
            Direction::Up => &mut self.up_since,
        }
    }
}
