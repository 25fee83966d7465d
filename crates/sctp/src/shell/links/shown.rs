//! The links of SCTP, and how their paths fare, for the control socket.

use std::cell::{Cell, RefCell};

use tabane_control::{self as control, LinkState, Traffic};
use tabane_uplinks::{LinksView, Seen};
use tokio::sync::watch;

use super::{Link, LinkSet};
use crate::{PathState, PathStatus};

/// Why a link is not used that may be.
const NO_SOCKET: &str = "it has no address of its own of the peer's kind";

/// What others see of the links.
#[derive(Debug, Default)]
pub(super) struct Shown {
    links: RefCell<Vec<Link>>,
    /// Those that may be used and cannot be.
    others: RefCell<Vec<String>>,
    changes: watch::Sender<()>,
    associations: Cell<usize>,
}

impl Shown {
    fn seen(&self) -> Vec<Seen> {
        let unused = |name: &String| {
            let link = control::Link {
                problem: Some(NO_SOCKET.to_owned()),
                ..control::Link::new(name, LinkState::Unused)
            };
            // No link has this number.
            (0, link)
        };
        let links = self.links.borrow();
        let others = self.others.borrow();
        let links = links.iter().map(Link::seen);
        links.chain(others.iter().map(unused)).collect()
    }
}

impl LinkSet {
    /// Has others see the links there are now.
    pub(super) fn show(&self) {
        let mut others = self.table.links();
        others.retain(|name, _| self.links.iter().all(|link| link.name != *name));
        self.shown.others.replace(others.into_keys().collect());
        self.shown.links.replace(self.links.clone());
        self.shown.changes.send_replace(());
    }

    /// What the control socket shows, and by which the user pauses links.
    pub(crate) fn view(&self) -> LinksView {
        let [links, count] = [self.shown.clone(), self.shown.clone()];
        let seen = move || links.seen();
        let changes = self.shown.changes.subscribe();
        let associations = move || count.associations.get();
        LinksView::new(self.uplinks.clone(), seen, changes, associations)
    }

    /// So many associations use them.
    pub(crate) fn set_associations(&self, count: usize) {
        self.shown.associations.set(count);
    }

    /// How the paths of an association are, for whoever looks. A link without any waits.
    pub(crate) fn note(&self, paths: &[PathStatus]) {
        for link in &self.links {
            let of_link = paths.iter().filter(|it| it.way.link == link.reach.link);
            let states = of_link.map(|status| match status.state {
                PathState::Active => (0, LinkState::Active),
                PathState::Unconfirmed => (1, LinkState::Opening),
                PathState::Inactive => (2, LinkState::Silent),
            });
            if let Some((_, best)) = states.min_by_key(|(rank, _)| *rank) {
                link.state.set(best);
            }
        }
    }
}

impl Link {
    fn seen(&self) -> Seen {
        let traffic = Traffic {
            sent_bytes: self.carried.sent.get().get(),
            received_bytes: self.carried.received.get().get(),
            ..Traffic::default()
        };
        let link = control::Link {
            weight: self.policy.weight,
            traffic,
            ..control::Link::new(&self.name, self.state.get())
        };
        (self.reach.link.0, link)
    }
}
