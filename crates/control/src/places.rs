//! Who has the places of a door.
//!
//! Anybody on this machine may knock at the one for HTTP. Whoever has shown the token keeps its
//! place; where there is none left, of all others the one that came first makes room for a
//! newcomer, so that connections that say nothing keep nobody out. Owns how often that is told.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::task::AbortHandle;

/// Connections at once by one door. A person's tools need a handful.
const MAX_CONNECTIONS: usize = 32;
/// That there were no more is told this often at the most.
const TELL_INTERVAL: Duration = Duration::from_secs(60);

/// The places of one door.
#[derive(Debug, Default)]
pub(crate) struct Places(RefCell<Book<AbortHandle>>);

/// One of them, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    places: Rc<Places>,
    /// As long as it may be taken away.
    stranger: Cell<Option<u64>>,
}

/// Those who have them, with what ends a stranger's connection.
#[derive(Debug)]
struct Book<T> {
    known: usize,
    strangers: BTreeMap<u64, T>,
    next: u64,
    told_at: Option<Instant>,
}

impl Places {
    /// A connection comes, which `begin` serves, if there is a place; `is_known` where it need show
    /// nothing.
    pub(crate) fn enter(self: &Rc<Self>, is_known: bool, begin: impl FnOnce(Place) -> AbortHandle) {
        let mut book = self.0.borrow_mut();
        let displaced = match book.make_room(Instant::now()) {
            Room::Free => None,
            Room::Of(displaced) => Some(displaced),
            Room::None => return,
        };
        let number = book.next;
        book.next += 1;
        book.known += usize::from(is_known);
        drop(book);
        let place = Place {
            places: self.clone(),
            stranger: Cell::new((!is_known).then_some(number)),
        };
        let ends = begin(place);
        if !is_known {
            self.0.borrow_mut().strangers.insert(number, ends);
        }
        // Not before: its place goes with it.
        if let Some(displaced) = displaced {
            displaced.abort();
        }
    }
}

impl Place {
    /// The token was shown.
    pub(crate) fn on_known(&self) {
        if let Some(number) = self.stranger.take() {
            let mut book = self.places.0.borrow_mut();
            book.strangers.remove(&number);
            book.known += 1;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut book = self.places.0.borrow_mut();
        match self.stranger.take() {
            Some(number) => drop(book.strangers.remove(&number)),
            None => book.known -= 1,
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Room<T> {
    Free,
    /// That of somebody whose connection is to end.
    Of(T),
    None,
}

impl<T> Default for Book<T> {
    fn default() -> Self {
        Self {
            known: 0,
            strangers: BTreeMap::new(),
            next: 0,
            told_at: None,
        }
    }
}

impl<T> Book<T> {
    fn make_room(&mut self, now: Instant) -> Room<T> {
        if self.known + self.strangers.len() < MAX_CONNECTIONS {
            return Room::Free;
        }
        if self.tells(now) {
            tracing::warn!(
                "more than {MAX_CONNECTIONS} control connections: those that have shown no token \
                 make room, and where there are none, new ones are closed"
            );
        }
        match self.strangers.pop_first() {
            Some((_, displaced)) => Room::Of(displaced),
            None => Room::None,
        }
    }

    fn tells(&mut self, now: Instant) -> bool {
        let tells = self.told_at.is_none_or(|at| now - at >= TELL_INTERVAL);
        if tells {
            self.told_at = Some(now);
        }
        tells
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_came_first_and_showed_nothing_makes_room_and_others_keep_theirs() {
        let now = Instant::now();
        let mut book = Book {
            known: MAX_CONNECTIONS - 2,
            ..Book::default()
        };
        for number in 0..2 {
            assert_eq!(book.make_room(now), Room::Free);
            book.strangers.insert(number, number);
        }
        assert_eq!(book.make_room(now), Room::Of(0));
        assert_eq!(book.make_room(now), Room::Free);
        book.known += 1;
        assert_eq!(book.make_room(now), Room::Of(1));
        book.known += 1;
        assert_eq!(book.make_room(now), Room::None);
    }

    #[test]
    fn a_flood_is_told_of_once_a_minute() {
        let mut book = Book::<()>::default();
        let start = Instant::now();
        let told = (0..120_000).filter(|ms| book.tells(start + Duration::from_millis(*ms)));
        assert_eq!(told.count(), 2);
    }
}
