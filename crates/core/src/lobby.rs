//! Visitors of a door, who have not shown that they may come in.
//!
//! Owns how many there are and whose place one more takes, as for sessions that begin: whoever sits
//! there and says nothing keeps no other address out. What a visit is, and when a visitor is a
//! stranger no more, is the door's.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::endpoint::Strangers;

/// Visitors, each with what ends its visit.
#[derive(Debug)]
pub struct Lobby<T> {
    strangers: Strangers<u64>,
    ends: BTreeMap<u64, T>,
    next: u64,
    most: usize,
}

impl<T> Lobby<T> {
    /// For so many at once.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self {
            strangers: Strangers::default(),
            ends: BTreeMap::new(),
            next: 0,
            most,
        }
    }

    /// One more from this address, if there is a place. `begin` gets its number and says what ends
    /// its visit; whoever made room for it is handed back to be ended.
    pub fn admit(&mut self, from: IpAddr, begin: impl FnOnce(u64) -> T) -> Admitted<T> {
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
        let mut lobby = Lobby::new(4);
        let [evil, other, third] = [1, 2, 3].map(|n| IpAddr::from(Ipv4Addr::new(10, 0, 0, n)));
        for _ in 0..4 {
            assert_eq!(lobby.admit(evil, |number| number), Admitted::Yes);
        }
        assert_eq!(lobby.admit(evil, |number| number), Admitted::No);
        assert_eq!(lobby.admit(other, |number| number), Admitted::For(0));
        assert_eq!(lobby.admit(third, |number| number), Admitted::For(1));
        // Two each at the most, from here on.
        assert_eq!(lobby.admit(other, |number| number), Admitted::No);
        assert_eq!(lobby.leave(2), Some(2));
        assert_eq!(lobby.leave(2), None);
        assert_eq!(lobby.admit(other, |number| number), Admitted::Yes);
        // A subscriber's addresses of IPv6 are one.
        let mut lobby = Lobby::new(2);
        let subscriber = |n: u16| IpAddr::from(Ipv6Addr::new(0x2a00, 0, 0, n, 0, 0, 0, n));
        for n in [1, 2] {
            assert_eq!(lobby.admit(subscriber(n), |number| number), Admitted::Yes);
        }
        assert_eq!(lobby.admit(subscriber(3), |number| number), Admitted::No);
        assert_eq!(lobby.admit(evil, |number| number), Admitted::For(0));
    }
}
