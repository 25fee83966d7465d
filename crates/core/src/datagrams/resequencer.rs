//! Puts the datagrams of a flow back in order, within a deadline [P-7.5].
//!
//! What is next in its flow is handed out at once. What came too early waits for those before it
//! until one of three things happens:
//! - they come;
//! - every path that the flow uses has brought something sent well after them, so they are lost;
//! - they are later than the slowest path in use would bring them by more than the deadline.
//!
//! A flow that uses one path never waits. What comes after it was given up is handed out at once:
//! late is better than never for programs that know UDP. Nothing is handed out twice.
//!
//! Limits: bytes held per flow and per session; beyond them the oldest gaps are given up. Flows:
//! beyond their number the longest unused ones are forgotten.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tabane_base::{Duration, Instant};

use super::datagram_memory;
use super::label::{Datagram, FlowId, Place};
use crate::config::MAX_PATHS;
use crate::id::PathId;
use crate::memory_pool::{Part, take_off};
use crate::ranges::RangeSet;

/// Bytes held for one flow: 100 ms, more than most paths differ, at 300 Mbit/s.
const MAX_HELD_PER_FLOW: usize = 4 * 1024 * 1024;
/// Bytes held for all flows of a session.
const MAX_HELD: usize = 8 * 1024 * 1024;
/// Flows of which the place is remembered: as many as a client may have.
const MAX_FLOWS: usize = 1_024;
/// Of them, those forgotten when one more begins.
const FORGOTTEN_AT_ONCE: usize = 64;
/// Gaps remembered per flow, for telling what comes late from what comes twice.
const MAX_GAPS: usize = 256;
/// Nothing waits longer than this: more than geostationary satellites differ from anything else.
const MAX_WAIT: Duration = Duration::from_millis(500);
/// A path that has brought what was sent so many datagrams later brings no earlier one any more
/// (RFC 9002 §6.1.1 has the same threshold for packets).
const REORDERING: u64 = 3;
/// A path counts as used by a flow for so long; the sender's lead says the same.
const USED_FOR: Duration = Duration::from_secs(1);

/// A datagram that came before others of its flow.
#[derive(Debug)]
struct Held {
    datagram: Datagram,
    release_at: Instant,
}

/// How far a path has come with a flow.
#[derive(Clone, Copy, Debug)]
struct Progress {
    path: PathId,
    /// The latest number it brought.
    number: u64,
    at: Instant,
}

/// One flow.
#[derive(Debug, Default)]
struct Sequence {
    /// Everything below was handed out or given up.
    next: u64,
    /// What was given up and may come yet.
    missing: RangeSet,
    held: BTreeMap<u64, Held>,
    held_bytes: usize,
    progress: Vec<Progress>,
    used_at: Instant,
}

/// The flows of a session that are handed out in order.
#[derive(Debug, Default)]
pub(crate) struct Resequencer {
    sequences: BTreeMap<FlowId, Sequence>,
    /// When held datagrams are waited with no longer.
    due: BTreeSet<(Instant, FlowId, u64)>,
    /// Bytes of them.
    held: Part,
}

impl Resequencer {
    /// Holds what waits in `part` of a pool.
    pub(crate) fn new(part: Part) -> Self {
        Self {
            held: part,
            ..Self::default()
        }
    }

    /// A datagram came by `path`; what may be handed out goes to `out`.
    pub(crate) fn handle(
        &mut self,
        now: Instant,
        path: PathId,
        place: Place,
        datagram: Datagram,
        out: &mut VecDeque<Datagram>,
    ) {
        let (flow, number) = (datagram.flow, place.number);
        self.make_room_for(flow);
        let sequence = self.sequences.entry(flow).or_default();
        sequence.used_at = now;
        if !sequence.is_new(number) {
            return;
        }
        sequence.on_progress(now, path, number);
        if number < sequence.next {
            sequence.missing.remove(number..number + 1);
            out.push_back(datagram);
            return;
        }
        let wait = match place.lead {
            Duration::ZERO => Duration::ZERO,
            lead => lead.saturating_add(place.deadline).min(MAX_WAIT),
        };
        let release_at = now + wait;
        let bytes = datagram_memory(&datagram.data);
        let held = Held {
            datagram,
            release_at,
        };
        sequence.held.insert(number, held);
        sequence.held_bytes += bytes;
        self.held.set(self.held.bytes() + bytes);
        self.due.insert((release_at, flow, number));
        let up_to = if wait == Duration::ZERO {
            number
        } else {
            sequence.passed(now)
        };
        self.release(flow, up_to, out);
        self.keep_limits(flow, out);
    }

    /// Gives up what has been waited for long enough.
    pub(crate) fn expire(&mut self, now: Instant, out: &mut VecDeque<Datagram>) {
        while let Some(&(at, flow, number)) = self.due.first()
            && at <= now
        {
            self.release(flow, number, out);
        }
    }

    /// When something is given up next.
    pub(crate) fn expires_at(&self) -> Option<Instant> {
        self.due.first().map(|(at, ..)| *at)
    }

    /// The flow is over.
    pub(crate) fn forget(&mut self, flow: FlowId) {
        if let Some(sequence) = self.sequences.remove(&flow) {
            self.held.take_off(sequence.held_bytes);
            for (number, held) in sequence.held {
                self.due.remove(&(held.release_at, flow, number));
            }
        }
    }

    /// Bytes of datagrams that wait for others.
    pub(crate) const fn held_bytes(&self) -> usize {
        self.held.bytes()
    }

    /// Hands out everything up to `up_to`, and what follows without a gap.
    fn release(&mut self, flow: FlowId, up_to: u64, out: &mut VecDeque<Datagram>) {
        let Some(sequence) = self.sequences.get_mut(&flow) else {
            return;
        };
        while let Some(entry) = sequence.held.first_entry() {
            let number = *entry.key();
            if number > sequence.next && number > up_to {
                return;
            }
            let held = entry.remove();
            let bytes = datagram_memory(&held.datagram.data);
            take_off(&mut sequence.held_bytes, bytes);
            self.held.take_off(bytes);
            self.due.remove(&(held.release_at, flow, number));
            sequence.give_up(number);
            sequence.next = number + 1;
            out.push_back(held.datagram);
        }
    }

    fn holds_too_much(&self) -> bool {
        self.held.bytes() > MAX_HELD.min(self.held.limit())
    }

    /// Gives up gaps while more is held than may be: the flow's own, which has just grown.
    fn keep_limits(&mut self, flow: FlowId, out: &mut VecDeque<Datagram>) {
        while let Some(sequence) = self.sequences.get(&flow)
            && (sequence.held_bytes > MAX_HELD_PER_FLOW || self.holds_too_much())
            && let Some(first) = sequence.held.keys().next().copied()
        {
            self.release(flow, first, out);
        }
    }

    fn make_room_for(&mut self, flow: FlowId) {
        if self.sequences.len() < MAX_FLOWS || self.sequences.contains_key(&flow) {
            return;
        }
        // Several at once: looking for the oldest takes long, and each datagram may be of a flow
        // of its own.
        let flows = self.sequences.iter();
        let mut flows: Vec<_> = flows.map(|(flow, it)| (it.used_at, *flow)).collect();
        flows.select_nth_unstable(FORGOTTEN_AT_ONCE);
        for (_, oldest) in &flows[..FORGOTTEN_AT_ONCE] {
            self.forget(*oldest);
        }
    }
}

impl Sequence {
    /// Whether a number came neither before nor so late that it cannot be told.
    fn is_new(&self, number: u64) -> bool {
        if number < self.next {
            self.missing.contains(number)
        } else {
            !self.held.contains_key(&number)
        }
    }

    fn on_progress(&mut self, now: Instant, path: PathId, number: u64) {
        self.progress
            .retain(|other| other.path == path || now.since(other.at) <= USED_FOR);
        match self.progress.iter_mut().find(|other| other.path == path) {
            Some(progress) => {
                progress.number = progress.number.max(number);
                progress.at = now;
            }
            None => {
                // A peer that opens and closes them has no more known than may be open.
                if self.progress.len() >= MAX_PATHS {
                    let oldest = (0..MAX_PATHS).min_by_key(|at| self.progress[*at].at);
                    oldest.map(|at| self.progress.remove(at));
                }
                self.progress.push(Progress {
                    path,
                    number,
                    at: now,
                });
            }
        }
    }

    /// What every path in use has left behind: of the numbers up to it, nothing comes any more.
    /// While only one path is known, another has still to be heard of.
    fn passed(&self, now: Instant) -> u64 {
        let used = || {
            let used = |progress: &&Progress| now.since(progress.at) <= USED_FOR;
            self.progress.iter().filter(used)
        };
        if used().count() < 2 {
            return 0;
        }
        let least = used().map(|progress| progress.number).min();
        // A held number stands one beyond the gap before it.
        least.unwrap_or_default().saturating_sub(REORDERING - 1)
    }

    /// Remembers what is missing below `number`.
    fn give_up(&mut self, number: u64) {
        if self.next < number {
            self.missing.insert(self.next..number);
            if self.missing.len() > MAX_GAPS {
                self.missing.forget_first();
            }
        }
    }
}

#[cfg(test)]
mod tests;
