//! What has links and no session, as its control socket shows it: `web`, `get` and `sctp`.

use std::collections::BTreeMap;
use std::rc::Rc;

use tabane_control::{
    InstanceView, Link, LinkChange, LinkState, Pace, RuleAnswer, RuleQuestion, State, TraceBatch,
    Traffic,
};
use tabane_fetch::Links;
use tabane_policy::Reaction;

use tabane_tunnel::shown::add;
use tokio::sync::{mpsc, watch};

use crate::uplinks::Uplinks;

/// A link in use, as whoever uses it sees it; the number is that of no other, be it of this name.
pub type Seen = (u32, Link);

/// The links of a process, with what they carried.
pub struct LinksView {
    uplinks: Uplinks,
    seen: Box<dyn Fn() -> Vec<Seen>>,
    /// Others have come, gone or may be used otherwise.
    changes: watch::Receiver<()>,
    under_way: Box<dyn Fn() -> usize>,
    /// By everybody who was a link, as it was seen last.
    carried: BTreeMap<(String, u32), Traffic>,
}

impl LinksView {
    /// For the process whose links these are; `seen` gives those in use, `changes` tells when that
    /// is something else, `under_way` counts what they carry.
    pub fn new(
        uplinks: Uplinks,
        seen: impl Fn() -> Vec<Seen> + 'static,
        changes: watch::Receiver<()>,
        under_way: impl Fn() -> usize + 'static,
    ) -> Self {
        Self {
            uplinks,
            seen: Box::new(seen),
            changes,
            under_way: Box::new(under_way),
            carried: BTreeMap::new(),
        }
    }

    /// For links that fetch; `under_way` counts answers and tunnels.
    pub fn of_web(links: Links, uplinks: Uplinks, under_way: impl Fn() -> usize + 'static) -> Self {
        let changes = links.changes();
        Self::new(uplinks, move || fetching(&links), changes, under_way)
    }

    /// What the policy wants done when something happens.
    pub fn reactions(&self) -> Rc<[Reaction]> {
        self.uplinks.roll().reactions()
    }

    /// What a link has carried, also as it was there before.
    fn carried(&self, name: &str) -> Traffic {
        let mut all = Traffic::default();
        let of_link = self.carried.iter().filter(|((link, _), _)| link == name);
        of_link.for_each(|(_, carried)| add(&mut all, carried));
        all
    }
}

fn fetching(links: &Links) -> Vec<Seen> {
    let seen = |link: Rc<tabane_fetch::Link>| {
        let tally = link.tally();
        let traffic = Traffic {
            sent_bytes: tally.sent.get(),
            received_bytes: tally.received.get(),
            ..Traffic::default()
        };
        let facts = link.facts();
        let state = match tally.trouble {
            Some(_) => LinkState::Down,
            None => LinkState::Active,
        };
        let seen = Link {
            problem: tally.trouble,
            weight: facts.weight,
            traffic,
            failures: tally.failures,
            metered: facts.metered,
            ..Link::new(link.name(), state)
        };
        (link.id().0, seen)
    };
    links.all().into_iter().map(seen).collect()
}

impl InstanceView for LinksView {
    const PACE: Pace = Pace::ByItself;

    async fn look(&mut self, state: &mut State) {
        self.changes.mark_unchanged();
        for (number, link) in (self.seen)() {
            let key = (link.name.clone(), number);
            self.carried.insert(key, link.traffic);
            state.links.push(link);
        }
        let roll = self.uplinks.roll();
        // Whoever uses them hears of one that has just come a moment later.
        for name in roll.usable() {
            if !state.links.iter().any(|link| link.name == name) {
                state.links.push(Link::new(&name, LinkState::Opening));
            }
        }
        state.policy_fault = roll.policy_fault();
        roll.complete(&mut state.links, |_| Traffic::default());
        for link in &mut state.links {
            link.traffic = self.carried(&link.name);
        }
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

    fn change_link(&mut self, name: &str, change: LinkChange) -> Result<(), String> {
        if change.weight.is_some() {
            return Err("a weight is the policy's here: tabane policy set".to_owned());
        }
        if let Some(paused) = change.paused {
            self.uplinks.pause(name, paused);
        }
        Ok(())
    }

    fn explain(&self, _: RuleQuestion) -> Result<RuleAnswer, String> {
        Err("no rules are in force here".to_owned())
    }

    async fn record(&self, _: Option<u64>) -> Result<mpsc::Receiver<TraceBatch>, String> {
        Err("there is no session to trace here".to_owned())
    }
}
