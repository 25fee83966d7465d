//! What sessions with peers have in common: the plan they are begun by, and what the user wishes of
//! links meanwhile.

use std::cell::RefCell;
use std::collections::BTreeMap;

use anyhow::Result;
use tabane_base::Duration;
use tabane_core::ClassId;
use tabane_store::Store;
use tabane_tunnel::{Client, Journal, LinkBind, LinkWish, RelayPeer};
use tokio::task::AbortHandle;

use crate::client_session::SessionPlan;
use crate::peer_memory::PeerMemory;

/// What sessions with peers have in common.
pub(crate) struct Surroundings {
    pub(crate) plan: SessionPlan,
    pub store: Store,
    mark: Option<u32>,
    pub memory: PeerMemory,
    /// The relay's client's, where there is one.
    pub journal: Journal,
    /// What the user wishes of links, for sessions that begin later.
    wishes: RefCell<BTreeMap<String, LinkWish>>,
}

impl Surroundings {
    pub(crate) fn new(
        plan: &SessionPlan,
        store: &Store,
        mark: Option<u32>,
        journal: Journal,
    ) -> Self {
        Self {
            plan: plan.clone(),
            store: store.clone(),
            mark,
            memory: PeerMemory::recall(),
            journal,
            wishes: RefCell::default(),
        }
    }

    /// Begins a session with a peer; the second is what keeps it on the links.
    pub(crate) async fn start(&self, peer: RelayPeer) -> Result<(Client, AbortHandle)> {
        let started = self.plan.start_peer(&self.store, peer, self.mark).await?;
        for (link, wish) in self.wishes.borrow().iter() {
            // A link that is gone has no wishes.
            let _ = started.0.wish_link(link, *wish);
        }
        Ok(started)
    }

    /// The links that may carry what belongs to `class`, but for those that the user has paused.
    pub(crate) async fn links_for(&self, class: ClassId) -> Result<Vec<LinkBind>> {
        let table = self.plan.uplinks(&self.store).await?.table();
        let mut links = self.plan.allowed(&table, class);
        let wishes = self.wishes.borrow();
        let is_paused = |link: &LinkBind| {
            wishes
                .get(&link.name)
                .is_some_and(|it| it.paused == Some(true))
        };
        links.retain(|link| !is_paused(link));
        Ok(links)
    }

    /// How long a session waits for an answer before it is given up.
    pub(crate) fn patience(&self) -> Duration {
        self.plan.patience()
    }

    /// Keeps what the user wishes of a link, for sessions that begin later.
    pub(crate) fn wish(&self, link: &str, wish: LinkWish) {
        let mut wishes = self.wishes.borrow_mut();
        let kept = wishes.entry(link.to_owned()).or_default();
        kept.weight = wish.weight.or(kept.weight);
        kept.paused = wish.paused.or(kept.paused);
    }
}
