//! Web mode as its control socket shows it.

use std::collections::BTreeMap;
use std::rc::Rc;

use tabane_control::{
    InstanceView, Link, LinkChange, LinkState, Pace, RuleAnswer, RuleQuestion, State, TraceBatch,
    Traffic,
};
use tabane_fetch::Links;
use tabane_policy::Reaction;
use tabane_ranges::LinkId;

use tabane_tunnel::shown::add;
use tokio::sync::{mpsc, watch};

use crate::link_roll::LinkRoll;

/// The links of a process that fetches, with what they carried.
pub struct WebView {
    links: Links,
    /// Those that are known, used or not.
    roll: LinkRoll,
    /// Others have come, gone or may be used otherwise.
    changes: watch::Receiver<()>,
    under_way: Box<dyn Fn() -> usize>,
    /// By everybody who was a link, as it was seen last.
    carried: BTreeMap<LinkId, Traffic>,
}

impl WebView {
    /// For links, all that are known being on `roll`; `under_way` counts answers and tunnels.
    pub fn new(links: Links, roll: LinkRoll, under_way: impl Fn() -> usize + 'static) -> Self {
        Self {
            changes: links.changes(),
            links,
            roll,
            under_way: Box::new(under_way),
            carried: BTreeMap::new(),
        }
    }

    /// What the policy wants done when something happens.
    pub fn reactions(&self) -> Rc<[Reaction]> {
        self.roll.reactions()
    }
}

impl InstanceView for WebView {
    const PACE: Pace = Pace::ByItself;

    async fn look(&mut self, state: &mut State) {
        self.changes.mark_unchanged();
        for link in self.links.all() {
            let tally = link.tally();
            let traffic = Traffic {
                sent_bytes: tally.sent.get(),
                received_bytes: tally.received.get(),
                ..Traffic::default()
            };
            self.carried.insert(link.id(), traffic);
            let facts = link.facts();
            let link_state = match tally.trouble {
                Some(_) => LinkState::Down,
                None => LinkState::Active,
            };
            state.links.push(Link {
                problem: tally.trouble,
                weight: facts.weight,
                traffic,
                failures: tally.failures,
                metered: facts.metered,
                ..Link::new(link.name(), link_state)
            });
        }
        state.policy_fault = self.roll.policy_fault();
        self.roll.complete(&mut state.links, |_| Traffic::default());
        let totals = &mut state.totals;
        totals.streams = (self.under_way)() as u64;
        self.carried
            .values()
            .for_each(|carried| add(&mut totals.traffic, carried));
    }

    async fn changed(&self) {
        // Since the last look; whoever tells lives as long as we do.
        let _ = self.changes.clone().changed().await;
    }

    fn change_link(&mut self, _: &str, _: LinkChange) -> Result<(), String> {
        Err("web mode's links go by the policy: tabane policy set".to_owned())
    }

    fn explain(&self, _: RuleQuestion) -> Result<RuleAnswer, String> {
        Err("web mode knows no rules".to_owned())
    }

    async fn record(&self, _: Option<u64>) -> Result<mpsc::Receiver<TraceBatch>, String> {
        Err("web mode has no session to trace".to_owned())
    }
}
