//! The links that fetches may use, for all fetches of a process.
//!
//! Owns their numbers, what they have carried, and what one fetch learnt for the next: rates and
//! latencies. Who adds and removes them follows interfaces, neighbours and the policy.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use tabane_base::{Bytes, Rate};
use tabane_ranges::{LinkId, LinkLimits};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::way::{BoxStream, Way, WayError};

/// A link with the way over it.
pub struct Link {
    pub(crate) id: LinkId,
    pub(crate) name: String,
    pub(crate) way: Rc<dyn Way>,
    pub(crate) facts: RefCell<LinkLimits>,
    /// Carried over it by everybody, in both directions.
    carried: Cell<u64>,
    /// Of that, sent.
    sent: Cell<u64>,
    /// Connections and answers that failed over it.
    failures: Cell<u64>,
    /// Of those, since something worked last.
    in_a_row: Cell<u32>,
    /// Why the last one failed.
    trouble: RefCell<Option<String>>,
    /// With a cap: when the next bytes may be read.
    next_read: Cell<Option<Instant>>,
    gone: watch::Sender<bool>,
    /// When the rate in `facts` was measured.
    learnt_at: Cell<Option<Instant>>,
}

/// What a link has come to since it was added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Sent over it, as far as it goes through here: not requests' heads.
    pub sent: Bytes,
    /// All that came.
    pub received: Bytes,
    /// Connections that did not come about, and answers that broke off.
    pub failures: u64,
    /// Why the last try failed, once three have in a row: one may be the fault of a server.
    pub trouble: Option<String>,
}

/// Failures in a row that make a link one in trouble.
const TROUBLE: u32 = 3;
/// A fetch that brought less over a link says little about its rate.
const TELLING: Bytes = Bytes::kilo(256);
/// A rate counts for so long. Without an end a link once taken for slow would never be tried again.
const MEMORY: Duration = Duration::from_secs(60);
/// A link counts at least so much of what it was before: what a fetch sees may be the program, or
/// another fetch, and not the link.
const CAUTION: f64 = 0.7;

/// A reader may be so late and still catch up: timers wake in whole milliseconds, and HTTP/2 brings
/// pieces that last less.
const LATENESS: Duration = Duration::from_millis(20);

/// The links of a process; copies are the same.
#[derive(Clone)]
pub struct Links {
    links: Rc<RefCell<BTreeMap<LinkId, Rc<Link>>>>,
    next: Rc<Cell<u32>>,
    changes: watch::Sender<()>,
}

impl Default for Links {
    fn default() -> Self {
        Self {
            links: Rc::default(),
            next: Rc::default(),
            changes: watch::Sender::new(()),
        }
    }
}

impl Links {
    /// A link is there, by this way. One of the same name is replaced.
    pub fn add(&self, name: &str, way: Rc<dyn Way>, facts: LinkLimits) -> LinkId {
        self.remove(name);
        let id = LinkId(self.next.get());
        self.next.set(id.0 + 1);
        let link = Link {
            id,
            name: name.to_owned(),
            way,
            facts: RefCell::new(facts),
            carried: Cell::new(0),
            sent: Cell::new(0),
            failures: Cell::new(0),
            in_a_row: Cell::new(0),
            trouble: RefCell::default(),
            next_read: Cell::new(None),
            gone: watch::Sender::new(false),
            learnt_at: Cell::new(None),
        };
        self.links.borrow_mut().insert(id, Rc::new(link));
        self.changes.send_replace(());
        id
    }

    /// What a link may be used for has changed; hints that are missing stay what they were.
    pub fn set_facts(&self, name: &str, facts: LinkLimits) {
        let Some(link) = self.named(name) else {
            return;
        };
        let before = link.facts.borrow().clone();
        let facts = LinkLimits {
            rate_hint: facts.rate_hint.or(before.rate_hint),
            latency_hint: facts.latency_hint.or(before.latency_hint),
            ..facts
        };
        if facts != before {
            link.facts.replace(facts);
            self.changes.send_replace(());
        }
    }

    /// A link is gone.
    pub fn remove(&self, name: &str) {
        let Some(link) = self.named(name) else {
            return;
        };
        self.links.borrow_mut().remove(&link.id);
        link.gone.send_replace(true);
        self.changes.send_replace(());
    }

    /// The names of those there are.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let links = self.links.borrow();
        links.values().map(|link| link.name.clone()).collect()
    }

    /// What a link has carried since it was added, as far as it goes through here: all that came,
    /// and what was sent but for requests' heads.
    #[must_use]
    pub fn carried(&self, name: &str) -> Bytes {
        let link = self.named(name);
        Bytes::new(link.map_or(0, |link| link.carried.get()))
    }

    fn named(&self, name: &str) -> Option<Rc<Link>> {
        let links = self.links.borrow();
        links.values().find(|link| link.name == name).cloned()
    }

    /// Those there are, in the order in which they came.
    #[must_use]
    pub fn all(&self) -> Vec<Rc<Link>> {
        self.links.borrow().values().cloned().collect()
    }

    pub(crate) fn find(&self, id: LinkId) -> Option<Rc<Link>> {
        self.links.borrow().get(&id).cloned()
    }

    /// Tells when others come, go or may be used otherwise.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }
}

impl Link {
    /// Its number, never used twice.
    #[must_use]
    pub fn id(&self) -> LinkId {
        self.id
    }

    /// What it is called.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it may be used for, with the hints that fetches have left.
    #[must_use]
    pub fn facts(&self) -> LinkLimits {
        self.facts.borrow().clone()
    }

    /// As [`Links::carried`].
    #[must_use]
    pub fn carried(&self) -> Bytes {
        Bytes::new(self.carried.get())
    }

    /// Of that, what came.
    #[must_use]
    pub fn received(&self) -> Bytes {
        Bytes::new(self.carried.get() - self.sent.get())
    }

    /// What it has come to.
    #[must_use]
    pub fn tally(&self) -> Tally {
        Tally {
            sent: Bytes::new(self.sent.get()),
            received: self.received(),
            failures: self.failures.get(),
            trouble: match self.in_a_row.get() {
                0..TROUBLE => None,
                _ => self.trouble.borrow().clone(),
            },
        }
    }

    /// Connects over it.
    ///
    /// # Errors
    /// As its way says.
    pub async fn connect(&self, host: &str, port: u16) -> Result<BoxStream, WayError> {
        let connected = self.way.connect(host, port).await;
        match &connected {
            Ok(_) => self.in_a_row.set(0),
            Err(error) => self.on_failed(error),
        }
        connected
    }

    /// Something that was begun over it failed.
    pub(crate) fn on_failed(&self, trouble: impl ToString) {
        self.failures.set(self.failures.get() + 1);
        self.in_a_row.set(self.in_a_row.get().saturating_add(1));
        self.trouble.replace(Some(trouble.to_string()));
    }

    /// Comes back when the link is gone, or may not be used any more.
    pub async fn gone(&self) {
        let mut gone = self.gone.subscribe();
        // The sender lives as long as we do.
        let _ = gone.wait_for(|gone| *gone).await;
    }

    /// So much was sent.
    pub fn on_sent(&self, amount: usize) {
        self.carried.set(self.carried.get() + amount as u64);
        self.sent.set(self.sent.get() + amount as u64);
    }

    /// So much was read; comes back when more may be.
    pub async fn on_read(&self, amount: usize) {
        if let Some(due) = self.due_after(amount) {
            sleep_until(due).await;
        }
    }

    /// So much was read; with a cap, when more may be.
    pub(crate) fn due_after(&self, amount: usize) -> Option<Instant> {
        self.carried.set(self.carried.get() + amount as u64);
        let cap = self.facts.borrow().cap?;
        let span = cap
            .time_for(Bytes::from(amount))
            .min(Duration::from_secs(60));
        let due = due_in(self.next_read.get(), Instant::now(), span);
        self.next_read.set(Some(due));
        Some(due)
    }

    /// For the next fetch: how fast this one, which got so much over it, has seen it.
    pub(crate) fn remember(&self, rate: Option<Rate>, carried: Bytes) {
        let Some(rate) = rate.filter(|_| carried >= TELLING) else {
            return;
        };
        let mut facts = self.facts.borrow_mut();
        let before = facts.rate_hint.unwrap_or(Rate::ZERO);
        facts.rate_hint = Some(rate.max(before.scaled(CAUTION)));
        self.learnt_at.set(Some(Instant::now()));
    }

    /// What was learnt too long ago counts no more.
    pub(crate) fn forget(&self) {
        if self.learnt_at.get().is_some_and(|at| at.elapsed() > MEMORY) {
            self.learnt_at.set(None);
            self.facts.borrow_mut().rate_hint = None;
        }
    }
}

/// When what comes after a read is due that takes so long at the cap, and was due itself at
/// `before`.
fn due_in(before: Option<Instant>, now: Instant, span: Duration) -> Instant {
    let begun = before.map_or(now, |due| due.max(now - LATENESS));
    begun + span
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::way::{Connecting, Way};

    /// A link to nowhere, or to somewhere.
    struct Fickle(Cell<bool>);

    impl Way for Fickle {
        fn connect<'a>(&'a self, host: &'a str, _port: u16) -> Connecting<'a> {
            let host = host.to_owned();
            Box::pin(async move {
                match self.0.get() {
                    true => Ok(Box::new(tokio::io::empty()) as BoxStream),
                    false => Err(WayError::Family { host }),
                }
            })
        }
    }

    #[test]
    fn a_cap_is_reached_by_small_pieces_and_late_timers_and_is_no_credit() {
        // 8 kB at 80 Mbit/s.
        let span = Duration::from_micros(800);
        let start = Instant::now();
        let (mut now, mut due, mut pieces) = (start, None, 0);
        while now < start + Duration::from_secs(1) {
            let next = due_in(due, now, span);
            due = Some(next);
            pieces += 1;
            let millis = (next.max(now) - start).as_micros().div_ceil(1_000);
            now = start + Duration::from_millis(millis as u64);
        }
        assert!((1_240..=1_260).contains(&pieces), "{pieces} of 1250");
        let later = now + Duration::from_secs(60);
        assert_eq!(due_in(due, later, span), later - LATENESS + span);
    }

    #[tokio::test]
    async fn three_failures_in_a_row_are_trouble_and_a_success_ends_it() {
        let links = Links::default();
        let way = Rc::new(Fickle(Cell::new(false)));
        links.add("a", way.clone(), LinkLimits::default());
        let link = links.all().remove(0);
        for failures in 1..=4 {
            assert!(link.connect("there", 80).await.is_err());
            let tally = link.tally();
            assert_eq!(tally.failures, failures);
            assert_eq!(tally.trouble.is_some(), failures >= 3, "{failures}");
        }
        way.0.set(true);
        assert!(link.connect("there", 80).await.is_ok());
        assert_eq!(link.tally().trouble, None);
        assert_eq!(link.tally().failures, 4);
    }
}
