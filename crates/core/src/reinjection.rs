//! What sits on a slow path is sent again on a faster one that has nothing else to do.
//!
//! At the end of a transfer, or when credit blocks, the last bytes would otherwise arrive when the
//! slowest path delivers them. While there is more to send, only what a new path is slow with goes
//! again. Each packet is repeated once, and repeats stay a small share of what is sent.

use tabane_base::{Bytes, Duration, Instant};

use crate::class::ClassId;
use crate::path::{Path, Paths};
use crate::recovery::SentFrame;
use crate::scheduler::PathView;
use crate::stream::Streams;

/// Repeats may be this part of everything sent …
const SHARE: u64 = 16;
/// … and so much more, which lets a short transfer repeat its whole tail.
const ALLOWANCE: Bytes = Bytes::kilo(256);
/// Arriving earlier by less than this is not worth the bytes.
const MARGIN: Duration = Duration::from_millis(2);
/// In place of something else only what a path has that was new so recently: nobody knew how slow
/// it is, and start-up lets out too much. Later it is rarely worth the bytes …
const YOUNG_FOR: Duration = Duration::from_secs(2);
/// … but where so many times more is held for them: waiting has then cost more than repeating
/// will, since the link is much slower than others, and slower than it was.
const WORTH: u64 = 2;
const WORTH_LEAST: Bytes = Bytes::kilo(256);
/// What is repeated in place of something else is to save its reader more.
const MARGIN_AWAITED: Duration = Duration::from_millis(20);

/// What is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Nothing else is to be sent.
    Everything,
    /// There is more to send: what the peer's reader has waited for while later data came.
    Awaited,
}

impl Wanted {
    const fn margin(self) -> Duration {
        match self {
            Self::Everything => MARGIN,
            Self::Awaited => MARGIN_AWAITED,
        }
    }
}

/// Marks for repetition what would arrive earlier over `fast` than where it is. `true` when
/// something was marked.
pub(crate) fn reinject(
    now: Instant,
    paths: &mut Paths,
    fast: &PathView,
    views: &[PathView],
    (streams, class, wanted): (&mut Streams, ClassId, Wanted),
) -> bool {
    let sent: Bytes = paths.iter().map(|path| path.totals().sent).sum();
    let repeated: Bytes = paths.iter().map(|path| path.totals().reinjected).sum();
    let mut budget = (Bytes::new(sent.get() / SHARE) + ALLOWANCE - repeated).min(fast.room);
    let mut any = false;
    let earliest = now + fast.delay + wanted.margin();
    for view in views.iter().filter(|view| view.index != fast.index) {
        let path = &mut paths[view.index];
        let is_old = path.carries_for(now) > YOUNG_FOR;
        if wanted == Wanted::Awaited && is_old && !streams.is_held_up(class, worth(path)) {
            continue;
        }
        let overdue = path.rtt().smoothed() + 4 * path.rtt().variation() + MARGIN;
        // A link that has become slow brings the last of what it was given much later.
        let oldest = path.in_flight_mut().next().map(|packet| packet.sent_at);
        let arrival = path.arrival(now, view.delay, oldest);
        // On its way and late, or so old that it may well be lost.
        let is_late = |sent_at: Instant, ahead: Bytes| {
            let arrives = (sent_at + view.delay).max(now + arrival.of(ahead));
            arrives > earliest || sent_at + overdue < now
        };
        // The newest arrives last, and the oldest is overdue first: where neither is late, none is,
        // as nearly always while a program writes in small pieces.
        let all = path.recovery().in_flight();
        let any_overdue = oldest.is_some_and(|sent_at| is_late(sent_at, Bytes::ZERO));
        if !any_overdue && !is_late(path.last_eliciting_at(), all) {
            continue;
        }
        let (mut again, mut is_spent) = (Bytes::ZERO, false);
        let (mut ahead, unrepeated) = path.unrepeated_mut();
        for packet in unrepeated {
            let size = Bytes::new(packet.size.into());
            ahead += size;
            if packet.reinjected || !is_late(packet.sent_at, ahead) {
                continue;
            }
            if wanted == Wanted::Awaited && !streams.is_awaited_by_peer(&packet.frames) {
                continue;
            }
            is_spent = budget < size;
            if is_spent {
                break;
            }
            // A packet has data of one class, which may have other ways than this one's.
            if streams.has_other_class(class, &packet.frames) {
                continue;
            }
            packet.reinjected = true;
            let frames = packet.frames.iter();
            let data = frames.filter(|frame| matches!(frame, SentFrame::Stream { .. }));
            let useful = data.fold(false, |any, it| any | streams.repeat(class, it));
            if useful {
                budget -= size;
                again += size;
            }
        }
        any |= again > Bytes::ZERO;
        path.on_reinjected(again);
        if is_spent {
            return any;
        }
    }
    any
}

/// So much held up is worth what the path has in flight.
fn worth(path: &Path) -> Bytes {
    let in_flight = path.recovery().in_flight().get();
    Bytes::new(in_flight * WORTH).max(WORTH_LEAST)
}
