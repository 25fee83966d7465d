//! A client as its control socket shows it from its first moment on, while it waits for its far
//! ends.
//!
//! Until then there is the roll of links alone; what is shown after that is [`ClientView`]'s.

use std::cell::OnceCell;
use std::rc::Rc;

use tabane_control::{
    InstanceView, Link, LinkChange, LinkState, Pace, RuleAnswer, RuleQuestion, State, TraceBatch,
    Traffic,
};
use tabane_policy::Reaction;
use tabane_tunnel::shown::NO_TRACE;
use tokio::sync::mpsc;

use crate::client_session::SessionPlan;
use crate::far_ends::FarEnds;
use crate::view::ClientView;
use tabane_uplinks::LinkRoll;

/// What cannot be done before there is a session.
const TOO_EARLY: &str = "the session is being set up; ask again";

/// See the module.
pub struct EarlyView {
    roll: LinkRoll,
    /// Those that it may use, by name and key, the preferred first.
    relays: Vec<(String, String)>,
    far_ends: Rc<OnceCell<FarEnds>>,
    later: Option<ClientView>,
}

impl EarlyView {
    /// For a client that follows `plan`; the second is where its far ends go once they are there.
    pub fn new(plan: &SessionPlan) -> (Self, Rc<OnceCell<FarEnds>>) {
        let far_ends = Rc::new(OnceCell::new());
        let view = Self {
            roll: plan.roll.clone(),
            relays: plan.relays(),
            far_ends: far_ends.clone(),
            later: None,
        };
        (view, far_ends)
    }

    /// What the policy wants done when something happens.
    pub fn reactions(&self) -> Rc<[Reaction]> {
        self.roll.reactions()
    }
}

impl InstanceView for EarlyView {
    const PACE: Pace = ClientView::PACE;

    async fn look(&mut self, state: &mut State) {
        if let (None, Some(far_ends)) = (&self.later, self.far_ends.get()) {
            self.later = Some(ClientView::new(far_ends.clone(), self.relays.clone()));
        }
        if let Some(later) = &mut self.later {
            return later.look(state).await;
        }
        let opening = |name: String| Link::new(&name, LinkState::Opening);
        state.links = self.roll.usable().into_iter().map(opening).collect();
        state.policy_fault = self.roll.policy_fault();
        let nothing = |_: &str| Traffic::default();
        self.roll.complete(&mut state.links, nothing);
    }

    async fn changed(&self) {
        match &self.later {
            Some(later) => later.changed().await,
            // Whoever watches looks again and again anyway.
            None => std::future::pending().await,
        }
    }

    fn change_link(&mut self, name: &str, change: LinkChange) -> Result<(), String> {
        let later = self.later.as_mut().ok_or(TOO_EARLY)?;
        later.change_link(name, change)
    }

    fn explain(&self, question: RuleQuestion) -> Result<RuleAnswer, String> {
        let later = self.later.as_ref().ok_or(TOO_EARLY)?;
        later.explain(question)
    }

    async fn record(&self, session: Option<u64>) -> Result<mpsc::Receiver<TraceBatch>, String> {
        match &self.later {
            Some(later) => later.record(session).await,
            None => Err(NO_TRACE.to_owned()),
        }
    }
}
