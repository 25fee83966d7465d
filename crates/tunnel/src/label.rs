//! What becomes of a connection or flow beside the rest: its class, and how its datagrams are
//! handed out. Whoever opened it may change his mind while it runs.

use std::cell::Cell;
use std::rc::{Rc, Weak};

use tabane_core::{ClassId, DatagramOrder};

/// Which links carry what belongs to a class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkClass {
    /// The links that may carry it, by name; no other carries one byte of it. `None`: all.
    pub links: Option<Vec<String>>,
    /// All of them carry everything at once.
    pub redundant: bool,
}

/// How something is to be treated. Copies share it.
#[derive(Clone, Debug, Default)]
pub struct Label(Rc<Cell<Treatment>>);

/// A label that does not keep itself alive.
#[derive(Clone, Debug)]
pub struct WeakLabel(Weak<Cell<Treatment>>);

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
        Self(Rc::new(Cell::new(treatment)))
    }

    /// What it says.
    #[must_use]
    pub fn treatment(&self) -> Treatment {
        self.0.get()
    }

    /// Says something else from here on; classes are followed once
    /// [`Client::follow_labels`](crate::Client::follow_labels) is called.
    pub fn set(&self, treatment: Treatment) {
        self.0.set(treatment);
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
