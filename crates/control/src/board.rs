//! What instances give, completed: rates, shares, recent loss and problems.
//!
//! Owns the history that rates are taken from. Pure: the time is an argument.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use crate::problems;
use crate::state::{Link, LinkState, State, Traffic};

/// What a rate is taken over: short enough to follow, long enough for two samples.
const RATE_SPAN: Duration = Duration::from_secs(1);
/// What loss is taken over: a path that carries little has few packets a second.
const LOSS_SPAN: Duration = Duration::from_secs(10);
/// Samples closer together say nothing about a rate.
const MIN_SPAN: Duration = Duration::from_millis(100);
/// A longer time without samples is none that rates and losses are taken over.
pub(crate) const GAP: Duration = Duration::from_secs(3);
/// Sessions listed. A page of JSON stays below 1 MB.
const MAX_SESSIONS: usize = 256;

/// Completes states, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Board {
    meters: BTreeMap<Key, Meter>,
    /// Counts updates, to find meters whose thing is gone.
    round: u64,
}

/// What is measured.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    All,
    Link(String),
    LinkPath(String),
    Session(u64),
    Path(u64, u32),
}

#[derive(Debug, Default)]
struct Meter {
    samples: VecDeque<(Instant, Traffic)>,
    round: u64,
}

impl Board {
    /// Completes `state`, which was true `now`.
    pub(crate) fn complete(&mut self, now: Instant, mut state: State) -> State {
        self.round += 1;
        self.measure(now, Key::All, &mut state.totals.traffic);
        for link in &mut state.links {
            self.measure(now, Key::Link(link.name.clone()), &mut link.traffic);
            if let Some(path) = &mut link.path {
                self.measure(now, Key::LinkPath(link.name.clone()), &mut path.traffic);
            }
        }
        for session in &mut state.sessions {
            self.measure(now, Key::Session(session.number), &mut session.traffic);
            for path in &mut session.paths {
                self.measure(now, Key::Path(session.number, path.id), &mut path.traffic);
            }
        }
        self.meters.retain(|_, meter| meter.round == self.round);
        share(&mut state);
        shorten(&mut state);
        problems::find(&mut state);
        state
    }

    fn measure(&mut self, now: Instant, key: Key, traffic: &mut Traffic) {
        let meter = self.meters.entry(key).or_default();
        meter.round = self.round;
        meter.measure(now, traffic);
    }
}

impl Meter {
    fn measure(&mut self, now: Instant, traffic: &mut Traffic) {
        let age = |at: Instant| now.saturating_duration_since(at);
        // A path that was replaced counts from nothing.
        if let Some((at, last)) = self.samples.back()
            && (age(*at) > GAP
                || last.sent_bytes > traffic.sent_bytes
                || last.received_bytes > traffic.received_bytes)
        {
            self.samples.clear();
        }
        while let [_, (second, _), ..] = self.samples.make_contiguous()
            && age(*second) >= LOSS_SPAN
        {
            self.samples.pop_front();
        }
        let samples = self.samples.iter().rev();
        let base = samples.clone().find(|(at, _)| age(*at) >= RATE_SPAN);
        if let Some((at, base)) = base.or_else(|| self.samples.front())
            && age(*at) >= MIN_SPAN
        {
            let seconds = age(*at).as_secs_f64();
            let rate =
                |now: u64, then: u64| (now.saturating_sub(then) as f64 * 8.0 / seconds) as u64;
            traffic.sent_bps = rate(traffic.sent_bytes, base.sent_bytes);
            traffic.received_bps = rate(traffic.received_bytes, base.received_bytes);
        }
        if let Some((_, base)) = self.samples.front() {
            let sent = traffic.sent_packets.saturating_sub(base.sent_packets);
            let lost = traffic.lost_packets.saturating_sub(base.lost_packets);
            // A loss is found out after the sending, so there may be more of them in the span.
            traffic.loss = (sent > 0).then(|| (lost as f64 / sent as f64).min(1.0));
        }
        let newest = self.samples.back();
        if newest.is_none_or(|(at, _)| age(*at) >= MIN_SPAN) {
            self.samples.push_back((now, *traffic));
        }
    }
}

fn share(state: &mut State) {
    let both = |traffic: &Traffic| traffic.sent_bps.saturating_add(traffic.received_bps);
    let all: u64 = state.links.iter().map(|link| link.traffic.both()).sum();
    // What is sent over the others only asks whether they answer.
    let carries = |link: &Link| link.state == LinkState::Active;
    let carrying = state.links.iter().filter(|link| carries(link));
    let all_now: u64 = carrying.map(|link| both(&link.traffic)).sum();
    for link in &mut state.links {
        link.share = link.traffic.both() as f64 / all.max(1) as f64;
        let is_known = carries(link) && all_now > 0;
        link.share_now = is_known.then(|| both(&link.traffic) as f64 / all_now as f64);
    }
}

/// Leaves the busiest sessions.
fn shorten(state: &mut State) {
    if state.sessions.len() <= MAX_SESSIONS {
        return;
    }
    state.sessions.sort_by_key(|session| {
        let traffic = &session.traffic;
        let rate = traffic.sent_bps.saturating_add(traffic.received_bps);
        std::cmp::Reverse((rate, traffic.both()))
    });
    state.sessions_omitted = (state.sessions.len() - MAX_SESSIONS) as u64;
    state.sessions.truncate(MAX_SESSIONS);
    state.sessions.sort_by_key(|session| session.number);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::tests::{example, session};

    fn at(start: Instant, millis: u64) -> Instant {
        start + Duration::from_millis(millis)
    }

    #[test]
    fn rates_are_those_of_the_last_second_and_loss_that_of_ten() {
        let mut board = Board::default();
        let start = Instant::now();
        let mut state = example();
        for half in 0..=40_u64 {
            // 1 Mbit/s for 10 s, then 2 Mbit/s; every tenth packet lost in the first 10 s.
            let bytes = 62_500 * half + 62_500 * half.saturating_sub(20);
            let traffic = &mut state.links[0].traffic;
            traffic.received_bytes = bytes;
            traffic.sent_packets = 100 * half;
            traffic.lost_packets = 10 * half.min(20);
            let seen = board.complete(at(start, 500 * half), state.clone());
            let seen = seen.links[0].traffic;
            match half {
                0 => assert_eq!((seen.received_bps, seen.loss), (0, None)),
                2..=20 => {
                    assert_eq!(
                        (seen.received_bps, seen.loss),
                        (1_000_000, Some(0.1)),
                        "{half}"
                    );
                }
                22.. => assert_eq!(seen.received_bps, 2_000_000, "{half}"),
                _ => {}
            }
            if half == 40 {
                assert_eq!(seen.loss, Some(0.0));
            }
        }
    }

    #[test]
    fn a_rate_is_over_no_time_in_which_nobody_looked() {
        let mut board = Board::default();
        let start = Instant::now();
        let mut state = example();
        board.complete(start, state.clone());
        for (millis, bytes, bps) in [(60_000, 1_000_000, 0), (60_200, 1_025_000, 1_000_000)] {
            state.totals.traffic.received_bytes = bytes;
            let seen = board.complete(at(start, millis), state.clone());
            assert_eq!(seen.totals.traffic.received_bps, bps);
        }
    }

    #[test]
    fn a_silent_link_has_no_share_of_what_is_carried_now() {
        let mut board = Board::default();
        let start = Instant::now();
        let mut state = example();
        state.links[0].state = LinkState::Silent;
        board.complete(start, state.clone());
        for (link, bytes) in state.links.iter_mut().zip([70, 30]) {
            link.traffic.sent_bytes += bytes;
        }
        let seen = board.complete(at(start, 1_000), state);
        let now = seen.links.iter().map(|link| link.share_now);
        assert_eq!(now.collect::<Vec<_>>(), [None, Some(1.0)]);
    }

    #[test]
    fn counts_that_begin_anew_are_no_negative_rate() {
        let mut board = Board::default();
        let start = Instant::now();
        let mut state = example();
        board.complete(start, state.clone());
        state.links[0].traffic.received_bytes = 10;
        let seen = board.complete(at(start, 1_000), state.clone());
        assert_eq!(seen.links[0].traffic.received_bps, 0);
        state.links[0].traffic.received_bytes = 1_010;
        let seen = board.complete(at(start, 2_000), state);
        assert_eq!(seen.links[0].traffic.received_bps, 8_000);
    }

    #[test]
    fn of_very_many_sessions_the_busiest_are_told_and_nothing_of_gone_ones_is_kept() {
        let mut board = Board::default();
        let start = Instant::now();
        let mut state = example();
        state.sessions = (0..1_000).map(session).collect();
        board.complete(start, state.clone());
        state.sessions[777].traffic.sent_bytes += 1_000_000;
        let seen = board.complete(at(start, 1_000), state.clone());
        assert_eq!(seen.sessions.len(), MAX_SESSIONS);
        assert_eq!(seen.sessions_omitted, 1_000 - MAX_SESSIONS as u64);
        assert!(seen.sessions.iter().any(|session| session.number == 777));
        state.sessions.clear();
        state.links.clear();
        board.complete(at(start, 2_000), state);
        assert_eq!(board.meters.len(), 1);
    }
}
