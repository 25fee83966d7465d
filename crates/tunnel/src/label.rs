//! What becomes of a connection or flow beside the rest: its class, and how its datagrams are
//! handed out. Whoever opened it may change his mind while it runs.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use tabane_base::Bytes;
use tabane_core::{ClassId, DatagramOrder};

/// Which links carry what belongs to a class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkClass {
    /// The links that may carry it, by name; no other carries one byte of it. `None`: all.
    pub links: Option<Vec<String>>,
    /// All of them carry everything at once.
    pub redundant: bool,
}

/// How something is to be treated, and where it is counted. Copies share it.
#[derive(Clone, Debug, Default)]
pub struct Label(Rc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    treatment: Cell<Treatment>,
    tally: RefCell<Tally>,
    /// Where it is counted as well.
    second: RefCell<Option<Tally>>,
}

/// A label that does not keep itself alive.
#[derive(Clone, Debug)]
pub struct WeakLabel(Weak<Inner>);

/// What all that bears some label has carried. Copies are the same.
#[derive(Clone, Debug, Default)]
pub struct Tally(Rc<(Cell<u64>, Cell<u64>)>);

impl Tally {
    /// Into the tunnel: bytes of connections and datagrams, without what the tunnel adds.
    #[must_use]
    pub fn sent(&self) -> Bytes {
        Bytes::new(self.0.0.get())
    }

    /// Out of the tunnel.
    #[must_use]
    pub fn received(&self) -> Bytes {
        Bytes::new(self.0.1.get())
    }

    /// Labels under way that count here.
    #[must_use]
    pub fn bearers(&self) -> usize {
        Rc::strong_count(&self.0) - 1
    }

    /// Counts what another has counted, too.
    pub fn add(&self, other: &Self) {
        self.on_sent(other.sent().get());
        self.on_received(other.received().get());
    }

    fn on_sent(&self, bytes: u64) {
        self.0.0.set(self.0.0.get() + bytes);
    }

    fn on_received(&self, bytes: u64) {
        self.0.1.set(self.0.1.get() + bytes);
    }
}

/// What a label says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Treatment {
    /// The class it belongs to, as [`Client::set_class`](crate::Client::set_class) has it.
    pub class: ClassId,
    /// How its datagrams are handed out; `None`: as those of others.
    pub order: Option<DatagramOrder>,
}

impl Label {
    /// A label that says this.
    #[must_use]
    pub fn new(treatment: Treatment) -> Self {
        Self(Rc::new(Inner {
            treatment: Cell::new(treatment),
            tally: RefCell::default(),
            second: RefCell::default(),
        }))
    }

    /// What bears it counts here from now on.
    pub fn count_in(&self, tally: &Tally) {
        self.0.tally.replace(tally.clone());
    }

    /// It counts there as well, for as long as it is under way.
    pub fn count_in_as_well(&self, tally: &Tally) {
        self.0.second.replace(Some(tally.clone()));
    }

    pub(crate) fn on_sent(&self, bytes: usize) {
        self.count(|tally| tally.on_sent(bytes as u64));
    }

    pub(crate) fn on_received(&self, bytes: usize) {
        self.count(|tally| tally.on_received(bytes as u64));
    }

    fn count(&self, count: impl Fn(&Tally)) {
        count(&self.0.tally.borrow());
        self.0.second.borrow().iter().for_each(count);
    }

    /// What it says.
    #[must_use]
    pub fn treatment(&self) -> Treatment {
        self.0.treatment.get()
    }

    /// Whether what bears this one is treated and counted as what bears `other`.
    #[must_use]
    pub fn is_like(&self, other: &Self) -> bool {
        let counted = Rc::ptr_eq(&self.0.tally.borrow().0, &other.0.tally.borrow().0);
        counted && self.treatment() == other.treatment()
    }

    /// Says something else from here on; classes are followed once
    /// [`Client::follow_labels`](crate::Client::follow_labels) is called.
    pub fn set(&self, treatment: Treatment) {
        self.0.treatment.set(treatment);
    }

    /// The same, without keeping it.
    #[must_use]
    pub fn downgrade(&self) -> WeakLabel {
        WeakLabel(Rc::downgrade(&self.0))
    }
}

impl WeakLabel {
    /// The label, while what bears it is under way.
    #[must_use]
    pub fn upgrade(&self) -> Option<Label> {
        self.0.upgrade().map(Label)
    }
}
