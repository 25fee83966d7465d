//! What was done for programs: one record for each request or tunnel, when it is over.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use hyper::StatusCode;

/// Gets the records.
pub type Journal = Rc<dyn Fn(&Record)>;

/// How something was carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carried {
    /// By one link, as it was.
    Whole,
    /// By several links, a file in parts.
    Split,
    /// A tunnel, by one link.
    Tunnel,
    /// Not at all.
    Not,
}

/// What was done for one request.
#[derive(Clone, Debug)]
pub struct Record {
    /// As the program wrote it.
    pub method: String,
    /// The URL, or host and port of a tunnel.
    pub target: String,
    /// The status that the program got.
    pub status: u16,
    /// How it was carried.
    pub carried: Carried,
    /// Whether it came by a tunnel that was ended here.
    pub intercepted: bool,
    /// Bytes by link; those asked for twice count twice.
    pub links: BTreeMap<String, u64>,
    /// Since the request's head was here.
    pub took: Duration,
    /// Why it ended early.
    pub trouble: Option<String>,
}

/// A record in the making; written when the last copy is dropped.
#[derive(Clone)]
pub(crate) struct Entry(Rc<Begun>);

struct Begun {
    journal: Journal,
    begun_at: Instant,
    record: RefCell<Record>,
    is_over: Cell<bool>,
    is_noted: Cell<bool>,
}

impl Entry {
    pub(crate) fn new(journal: &Journal, method: &str, target: String, intercepted: bool) -> Self {
        Self(Rc::new(Begun {
            journal: journal.clone(),
            begun_at: Instant::now(),
            record: RefCell::new(Record {
                method: method.to_owned(),
                target,
                status: 0,
                carried: Carried::Not,
                intercepted,
                links: BTreeMap::new(),
                took: Duration::ZERO,
                trouble: None,
            }),
            is_over: Cell::new(false),
            is_noted: Cell::new(true),
        }))
    }

    pub(crate) fn answered(&self, status: StatusCode, carried: Carried) {
        let mut record = self.0.record.borrow_mut();
        record.status = status.as_u16();
        record.carried = carried;
    }

    /// So much more passed over a link.
    pub(crate) fn add(&self, link: &str, amount: u64) {
        let mut record = self.0.record.borrow_mut();
        match record.links.get_mut(link) {
            Some(sum) => *sum += amount,
            None => drop(record.links.insert(link.to_owned(), amount)),
        }
    }

    /// So much has passed over a link, all in all.
    pub(crate) fn set(&self, link: &str, amount: u64) {
        let mut record = self.0.record.borrow_mut();
        record.links.insert(link.to_owned(), amount);
    }

    pub(crate) fn failed(&self, trouble: impl ToString) {
        self.0.record.borrow_mut().trouble = Some(trouble.to_string());
    }

    /// It was no more than the way to other requests, which are noted themselves.
    pub(crate) fn leave_out(&self) {
        self.0.is_noted.set(false);
    }

    /// All of it has passed.
    pub(crate) fn over(&self) {
        self.0.is_over.set(true);
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if !self.is_noted.get() {
            return;
        }
        let mut record = self.record.borrow_mut();
        record.took = self.begun_at.elapsed();
        if !self.is_over.get() && record.trouble.is_none() {
            record.trouble = Some("the program hung up".to_owned());
        }
        (self.journal)(&record);
    }
}
