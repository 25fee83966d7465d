//! A client that begins one handshake per link, as the tunnel's does (`client/handshakes.rs`
//! there): each link's has a head start over the next one's, which begins at once when one fails;
//! the first that is let in wins. When all have failed they begin anew.

use std::collections::VecDeque;

use tabane_base::{Duration, Instant};
use tabane_core::{CloseReason, SessionHandle};

use super::World;
use crate::network::LinkId;
use crate::side::Side;

/// A link's head start over the next.
const HEAD_START: Duration = Duration::from_millis(250);
/// The first link's over the second.
const HEAD_START_FIRST: Duration = Duration::from_millis(50);
/// Between two rounds, at first.
const BACK_OFF: Duration = Duration::from_millis(100);
/// And at last.
const BACK_OFF_MAX: Duration = Duration::from_secs(5);

/// Handshakes under way.
#[derive(Debug)]
pub(super) struct Race {
    waiting: VecDeque<LinkId>,
    pub(super) next_at: Instant,
    begun: Vec<(SessionHandle, Vec<u8>)>,
    number: u32,
    back_off: Duration,
    /// The relay has said for good that it will not have us.
    refused: bool,
}

impl World {
    /// The client begins a session by handshakes of their own over all links.
    pub fn connect_by_each_link(&mut self) {
        self.race = Some(Race {
            waiting: self.links_present().collect(),
            next_at: self.now,
            begun: Vec::new(),
            number: 0,
            back_off: BACK_OFF,
            refused: false,
        });
        self.run_race();
    }

    /// Whether the client was told for good that it is not wanted.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.race.as_ref().is_some_and(|race| race.refused)
    }

    /// Begins what is due.
    pub(super) fn run_race(&mut self) {
        let Some(mut race) = self.race.take() else {
            return;
        };
        while race.next_at <= self.now && !race.refused && self.session.is_none() {
            if race.waiting.is_empty() && race.begun.is_empty() {
                race.waiting = self.links_present().collect();
            }
            let Some(link) = race.waiting.pop_front() else {
                race.next_at = Instant::NEVER;
                break;
            };
            race.number += 1;
            let token = race.number.to_be_bytes().to_vec();
            let handle = self.begin(Some(token.clone()), vec![self.network.client_tuple(link)]);
            race.begun.push((handle, token));
            race.next_at = self.now
                + match race.number {
                    1 => HEAD_START_FIRST,
                    _ => HEAD_START,
                };
        }
        self.race = Some(race);
    }

    /// A handshake was let in: the others are given up.
    pub(super) fn on_race_won(&mut self, handle: SessionHandle) {
        let Some(race) = self.race.as_mut().filter(|_| self.session.is_none()) else {
            return;
        };
        let begun = std::mem::take(&mut race.begun);
        race.next_at = Instant::NEVER;
        let clock = self.client.clock(self.now);
        for (other, token) in begun {
            if other == handle {
                self.session = Some(handle);
                self.token = Some(token);
            } else if let Some(session) = self.client.endpoint_mut().session_mut(other) {
                session.close(clock, CloseReason::Finished);
                self.client.touch(other);
            }
        }
    }

    /// A handshake failed: the next one need not wait.
    pub(super) fn on_race_lost(&mut self, handle: SessionHandle, reason: &CloseReason) {
        let now = self.now;
        let Some(race) = self.race.as_mut() else {
            return;
        };
        let before = race.begun.len();
        race.begun.retain(|(begun, _)| *begun != handle);
        if race.begun.len() == before {
            return;
        }
        race.refused |= matches!(reason, CloseReason::Unauthorised | CloseReason::Revoked);
        race.next_at = match race.refused {
            true => Instant::NEVER,
            false => now,
        };
        let is_over = race.waiting.is_empty() && race.begun.is_empty();
        if is_over && !race.refused {
            race.next_at = now + race.back_off;
            race.back_off = (race.back_off * 2).min(BACK_OFF_MAX);
        }
    }

    /// The server's end of the client's session.
    pub(super) fn server_handle(&self) -> Option<SessionHandle> {
        let known = self.server.session_by_token(self.token.as_deref());
        let newest = || self.host(Side::Server).endpoint().handles().last().copied();
        known.or_else(newest)
    }
}
