//! Visitors of a door, who have not shown that they may come in.
//!
//! Owns how many there are and whose place one more takes, as for sessions that begin: whoever sits
//! there and says nothing keeps no other address out. And how many may begin in a second, since
//! each costs a handshake: whoever comes again and again has no more turns than are left to
//! everybody else, as with lookups of names. What a visit is, and when a visitor is a stranger no
//! more, is the door's.

use std::collections::BTreeMap;
use std::net::IpAddr;

use tabane_base::{Duration, Instant};

use crate::endpoint::{Strangers, site};

/// Visits are counted over this.
const SPAN: Duration = Duration::from_secs(1);

/// Visitors, each with what ends its visit.
#[derive(Debug)]
pub struct Lobby<T> {
    strangers: Strangers<u64>,
    ends: BTreeMap<u64, T>,
    next: u64,
    most: usize,
    most_begun: usize,
    /// Visits that have begun within the span, by whom.
    begun: BTreeMap<IpAddr, usize>,
    /// Visits that may still begin within it.
    left: usize,
    span_began_at: Instant,
}

impl<T> Lobby<T> {
    /// For so many at once, and so many that begin in a second.
    #[must_use]
    pub fn new(most: usize, most_begun: usize) -> Self {
        Self {
            strangers: Strangers::default(),
            ends: BTreeMap::new(),
            next: 0,
            most,
            most_begun,
            begun: BTreeMap::new(),
            left: most_begun,
            span_began_at: Instant::EPOCH,
        }
    }

    /// One more from this address, if there is a place. `begin` gets its number and says what ends
    /// its visit; whoever made room for it is handed back to be ended.
    pub fn admit(
        &mut self,
        now: Instant,
        from: IpAddr,
        begin: impl FnOnce(u64) -> T,
    ) -> Admitted<T> {
        if now.since(self.span_began_at) >= SPAN {
            self.begun.clear();
            self.left = self.most_begun;
            self.span_began_at = now;
        }
        let own = self.begun.get(&site(from)).copied().unwrap_or(0);
        if own >= self.left {
            return Admitted::No;
        }
        let mut displaced = None;
        if self.strangers.len() >= self.most {
            let Some(number) = self.strangers.displaced_by(from) else {
                return Admitted::No;
            };
            displaced = self.leave(number);
        }
        let number = self.next;
        self.next += 1;
        self.strangers.insert(number, from);
        self.left -= 1;
        *self.begun.entry(site(from)).or_default() += 1;
        self.ends.insert(number, begin(number));
        displaced.map_or(Admitted::Yes, Admitted::For)
    }

    /// A visitor has gone, or is a stranger no more.
    pub fn leave(&mut self, number: u64) -> Option<T> {
        self.strangers.remove(number);
        self.ends.remove(&number)
    }
}

/// Whether one more has found a place.
#[derive(Debug, PartialEq, Eq)]
pub enum Admitted<T> {
    /// There was one.
    Yes,
    /// That of somebody whose visit is to end.
    For(T),
    /// There is none for this address.
    No,
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    #[test]
    fn whoever_has_most_makes_room_and_nobody_makes_it_for_itself() {
        let mut lobby = Lobby::new(4, 1_000);
        let [evil, other, third] = [1, 2, 3].map(|n| IpAddr::from(Ipv4Addr::new(10, 0, 0, n)));
        for _ in 0..4 {
            assert_eq!(
                lobby.admit(Instant::EPOCH, evil, |number| number),
                Admitted::Yes
            );
        }
        assert_eq!(
            lobby.admit(Instant::EPOCH, evil, |number| number),
            Admitted::No
        );
        assert_eq!(
            lobby.admit(Instant::EPOCH, other, |number| number),
            Admitted::For(0)
        );
        assert_eq!(
            lobby.admit(Instant::EPOCH, third, |number| number),
            Admitted::For(1)
        );
        // Two each at the most, from here on.
        assert_eq!(
            lobby.admit(Instant::EPOCH, other, |number| number),
            Admitted::No
        );
        assert_eq!(lobby.leave(2), Some(2));
        assert_eq!(lobby.leave(2), None);
        assert_eq!(
            lobby.admit(Instant::EPOCH, other, |number| number),
            Admitted::Yes
        );
        // A subscriber's addresses of IPv6 are one.
        let mut lobby = Lobby::new(2, 1_000);
        let subscriber = |n: u16| IpAddr::from(Ipv6Addr::new(0x2a00, 0, 0, n, 0, 0, 0, n));
        for n in [1, 2] {
            assert_eq!(
                lobby.admit(Instant::EPOCH, subscriber(n), |number| number),
                Admitted::Yes
            );
        }
        assert_eq!(
            lobby.admit(Instant::EPOCH, subscriber(3), |number| number),
            Admitted::No
        );
        assert_eq!(
            lobby.admit(Instant::EPOCH, evil, |number| number),
            Admitted::For(0)
        );
    }

    #[test]
    fn whoever_comes_again_and_again_has_half_of_all_turns_and_leaves_others_theirs() {
        let mut lobby = Lobby::new(10_000, 1_000);
        let evil = IpAddr::from(Ipv4Addr::new(10, 0, 0, 1));
        for second in 0..3 {
            let now = Instant::from_millis(second * 1_000 + 5);
            let mut come = |from: IpAddr, times: usize| {
                let mut visits = (0..times).map(|_| lobby.admit(now, from, |number| number));
                visits.by_ref().filter(|it| *it == Admitted::Yes).count()
            };
            assert_eq!(come(evil, 5_000), 500);
            for n in 0..=255 {
                let other = Ipv4Addr::new(10, 1, 0, n).into();
                assert_eq!(come(other, 1), 1, "the {n}th of the others");
            }
            assert_eq!(come(evil, 5_000), 0);
        }
    }
}
