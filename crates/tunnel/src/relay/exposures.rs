//! Which ports of the relay lead to which of its clients, and under which names.
//!
//! Owns that no two have the same port, or the same name at it, and how many visitors each may be
//! called for in a second. A table and nothing else: sockets are the doors', visitors the
//! exposure's. Its holders are values that cost nothing to copy, so that a lock around it is held
//! for a look and no longer.

use std::collections::{BTreeMap, BTreeSet};

use tabane_base::Protocol;
use tabane_core::PublicKey;
use tokio::time::Instant;

use super::attending::Conflict;
use super::turnstile::Turnstile;
use crate::request::PortClaim;
use crate::target::HostName;

/// Ports that lead to clients, and names at them, of all of them; each port costs a descriptor. No
/// user has more than are left to everybody else.
const MAX_PLACES: usize = 4_096;

/// A port of the relay's host.
pub(super) type Place = (Protocol, u16);

/// The table; holders are what leads to whoever serves an exposure.
pub(super) struct Exposures<T> {
    exposed: BTreeMap<u64, Exposed<T>>,
    places: BTreeMap<Place, Taken>,
    next: u64,
}

/// Who claims something: a client, and the user whose it is.
#[derive(Clone, Copy)]
pub(super) struct Claimant<'a> {
    pub(super) key: PublicKey,
    pub(super) user: &'a str,
}

/// One claim that was granted.
pub(super) struct Exposed<T> {
    pub(super) claim: PortClaim,
    /// In small letters; `None`: whatever name is asked for.
    pub(super) name: Option<HostName>,
    pub(super) key: PublicKey,
    user: String,
    pub(super) holder: T,
    turnstile: Turnstile,
}

/// Who has a port, by the numbers of exposures.
enum Taken {
    Whole(u64),
    Named(BTreeMap<HostName, u64>),
}

/// Whom a visitor of a port is for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Called<T> {
    /// This one.
    Holder(T),
    /// It depends on the name that the visitor asks for.
    ByName,
    /// The holder, but not before then.
    At(Instant),
    /// Nobody.
    Nobody,
}

impl<T> Default for Exposures<T> {
    fn default() -> Self {
        Self {
            exposed: BTreeMap::new(),
            places: BTreeMap::new(),
            next: 0,
        }
    }
}

impl<T: Clone> Exposures<T> {
    /// Gives a client what it claims, and says by which number it is called here.
    ///
    /// # Errors
    /// Others have some of it; then nothing is given.
    pub(super) fn insert(
        &mut self,
        (claim, name): (PortClaim, Option<&HostName>),
        Claimant { key, user }: Claimant<'_>,
        holder: T,
        now: Instant,
    ) -> Result<u64, Conflict> {
        let name = name.map(in_small_letters);
        let others = self.in_the_way(claim, name.as_ref());
        if !others.is_empty() {
            return Err(Conflict::With(others.into_iter().collect()));
        }
        let wanted = claim.ports.count();
        let all = self.count(|_| true) + wanted;
        let own = self.count(|it| it.user == user) + wanted;
        if all > MAX_PLACES || own > MAX_PLACES - all {
            return Err(Conflict::Full);
        }
        let number = self.next;
        self.next += 1;
        for place in places(claim) {
            match (&name, self.places.get_mut(&place)) {
                (Some(name), Some(Taken::Named(names))) => {
                    names.insert(name.clone(), number);
                }
                (Some(name), _) => {
                    let names = BTreeMap::from([(name.clone(), number)]);
                    self.places.insert(place, Taken::Named(names));
                }
                (None, _) => {
                    self.places.insert(place, Taken::Whole(number));
                }
            }
        }
        let exposed = Exposed {
            claim,
            name,
            key,
            user: user.to_owned(),
            holder,
            turnstile: Turnstile::new(now),
        };
        self.exposed.insert(number, exposed);
        Ok(number)
    }

    fn count(&self, is_meant: impl Fn(&Exposed<T>) -> bool) -> usize {
        let meant = self.exposed.values().filter(|it| is_meant(it));
        meant.map(|it| it.claim.ports.count()).sum()
    }

    fn in_the_way(&self, claim: PortClaim, name: Option<&HostName>) -> BTreeSet<u64> {
        let mut others = BTreeSet::new();
        for place in places(claim) {
            match (self.places.get(&place), name) {
                (None, _) => {}
                (Some(Taken::Whole(number)), _) => drop(others.insert(*number)),
                (Some(Taken::Named(names)), None) => others.extend(names.values()),
                (Some(Taken::Named(names)), Some(name)) => others.extend(names.get(name)),
            }
        }
        others
    }

    /// Takes back what was given; the ports that lead to nobody any more.
    pub(super) fn remove(&mut self, number: u64) -> Vec<Place> {
        let Some(exposed) = self.exposed.remove(&number) else {
            return Vec::new();
        };
        let mut left = Vec::new();
        for place in places(exposed.claim) {
            let is_left = match self.places.get_mut(&place) {
                Some(Taken::Whole(_)) => true,
                Some(Taken::Named(names)) => {
                    names.retain(|_, other| *other != number);
                    names.is_empty()
                }
                None => false,
            };
            if is_left {
                self.places.remove(&place);
                left.push(place);
            }
        }
        left
    }

    /// The one of this number.
    pub(super) fn get(&self, number: u64) -> Option<&Exposed<T>> {
        self.exposed.get(&number)
    }

    /// Takes all back. Their numbers are not given again.
    pub(super) fn clear(&mut self) {
        self.exposed.clear();
        self.places.clear();
    }

    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Exposed<T>> {
        self.exposed.values()
    }

    /// Whom somebody is for who comes to a port now.
    pub(super) fn call(&mut self, place: Place, now: Instant) -> Called<T> {
        match self.places.get(&place) {
            None => Called::Nobody,
            Some(Taken::Named(_)) => Called::ByName,
            Some(Taken::Whole(number)) => self.pass(*number, now),
        }
    }

    /// The same of somebody who has asked for a name.
    pub(super) fn call_named(&mut self, place: Place, name: &HostName, now: Instant) -> Called<T> {
        let found = match self.places.get(&place) {
            Some(Taken::Named(names)) => names.get(&in_small_letters(name)).copied(),
            Some(Taken::Whole(_)) | None => None,
        };
        found.map_or(Called::Nobody, |number| self.pass(number, now))
    }

    fn pass(&mut self, number: u64, now: Instant) -> Called<T> {
        let Some(exposed) = self.exposed.get_mut(&number) else {
            return Called::Nobody;
        };
        match exposed.turnstile.pass(now) {
            Ok(()) => Called::Holder(exposed.holder.clone()),
            Err(at) => Called::At(at),
        }
    }
}

pub(super) fn places(claim: PortClaim) -> impl Iterator<Item = Place> {
    claim.ports.ports().map(move |port| (claim.protocol, port))
}

fn in_small_letters(name: &HostName) -> HostName {
    let small = name.as_str().trim_end_matches('.').to_ascii_lowercase();
    HostName::new(&small).unwrap_or_else(|_| name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tabane_base::PortRange;

    const ANN: Claimant<'_> = claimant(1, "ann");
    const BOB: Claimant<'_> = claimant(2, "bob");

    const fn claimant(key: u8, user: &str) -> Claimant<'_> {
        let key = PublicKey([key; 32]);
        Claimant { key, user }
    }

    fn tcp(ports: &str) -> PortClaim {
        PortClaim {
            protocol: Protocol::Tcp,
            ports: PortRange::parse(ports).unwrap(),
        }
    }

    fn name(text: &str) -> HostName {
        HostName::new(text).unwrap()
    }

    #[test]
    fn no_two_have_the_same_port_and_one_that_is_given_back_is_free() {
        let now = Instant::now();
        let mut exposures = Exposures::default();
        let first = exposures
            .insert((tcp("80-82"), None), ANN, 'a', now)
            .unwrap();
        let second = exposures.insert((tcp("90"), None), BOB, 'b', now).unwrap();
        let both = exposures.insert((tcp("82-90"), None), BOB, 'c', now);
        assert_eq!(both, Err(Conflict::With(vec![first, second])));
        assert_eq!(exposures.call((Protocol::Tcp, 85), now), Called::Nobody);
        assert_eq!(
            exposures.call((Protocol::Tcp, 81), now),
            Called::Holder('a')
        );
        assert_eq!(exposures.call((Protocol::Udp, 81), now), Called::Nobody);
        let udp = PortClaim {
            protocol: Protocol::Udp,
            ..tcp("80-82")
        };
        assert!(exposures.insert((udp, None), BOB, 'd', now).is_ok());
        assert_eq!(exposures.remove(first).len(), 3);
        assert!(exposures.remove(first).is_empty());
        assert!(exposures.insert((tcp("82"), None), BOB, 'e', now).is_ok());
    }

    #[test]
    fn names_share_a_port_that_nobody_has_whole() {
        let now = Instant::now();
        let mut exposures = Exposures::default();
        let place = (Protocol::Tcp, 443);
        let a = name("A.example");
        let first = exposures
            .insert((tcp("443"), Some(&a)), ANN, 'a', now)
            .unwrap();
        let b = name("b.example.");
        let second = exposures
            .insert((tcp("443"), Some(&b)), BOB, 'b', now)
            .unwrap();
        let again = exposures.insert((tcp("443"), Some(&name("a.EXAMPLE"))), BOB, 'c', now);
        assert_eq!(again, Err(Conflict::With(vec![first])));
        let whole = exposures.insert((tcp("443"), None), BOB, 'd', now);
        assert_eq!(whole, Err(Conflict::With(vec![first, second])));
        assert_eq!(exposures.call(place, now), Called::ByName);
        let call =
            |exposures: &mut Exposures<char>, text| exposures.call_named(place, &name(text), now);
        assert_eq!(call(&mut exposures, "a.example."), Called::Holder('a'));
        assert_eq!(call(&mut exposures, "B.Example"), Called::Holder('b'));
        assert_eq!(call(&mut exposures, "c.example"), Called::Nobody);
        assert!(exposures.remove(first).is_empty(), "the other has it still");
        assert_eq!(call(&mut exposures, "a.example"), Called::Nobody);
        assert_eq!(exposures.remove(second), [place]);
        assert!(exposures.insert((tcp("443"), None), BOB, 'e', now).is_ok());
        let named = exposures.insert((tcp("443"), Some(&a)), ANN, 'f', now);
        assert!(
            matches!(named, Err(Conflict::With(_))),
            "a whole port has no names"
        );
    }

    /// Whatever keys a user has, and whether it claims ports or names at them.
    #[test]
    fn one_user_leaves_as_many_to_all_others_as_it_has() {
        let now = Instant::now();
        let mut exposures = Exposures::default();
        let ports: u16 = 100;
        let mut taken = 0;
        loop {
            let name = name(&format!("n{taken}.example"));
            let claim = tcp(&format!("1-{ports}"));
            let ann = claimant((taken % 200) as u8, "ann");
            match exposures.insert((claim, Some(&name)), ann, 'a', now) {
                Ok(_) => taken += usize::from(ports),
                Err(conflict) => break assert_eq!(conflict, Conflict::Full),
            }
            assert!(taken <= MAX_PLACES / 2, "{taken}");
        }
        assert!(taken + usize::from(ports) > MAX_PLACES / 2, "{taken}");
        let last = u16::try_from(5_000 + MAX_PLACES / 4).unwrap();
        let claim = tcp(&format!("5001-{last}"));
        assert!(exposures.insert((claim, None), BOB, 'b', now).is_ok());
    }

    #[test]
    fn ports_and_visitors_are_so_many() {
        let now = Instant::now();
        let mut exposures = Exposures::default();
        let most = u16::try_from(MAX_PLACES / 2).unwrap();
        let half = tcp(&format!("1-{most}"));
        exposures.insert((half, None), ANN, 'a', now).unwrap();
        let mut calls = 0;
        // By whichever port of the exposure they come.
        let at = loop {
            match exposures.call((Protocol::Tcp, calls % 100 + 1), now) {
                Called::Holder('a') => calls += 1,
                Called::At(at) => break at,
                other => panic!("{other:?}"),
            }
        };
        assert!(calls > 1_000 && at > now, "{calls}");
        assert_eq!(exposures.call((Protocol::Tcp, 1), at), Called::Holder('a'));
    }
}
