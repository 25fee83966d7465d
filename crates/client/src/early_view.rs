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
use tokio::sync::{Notify, mpsc};

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
    ends: Rc<EarlyEnds>,
    later: Option<ClientView>,
}

/// How a client that waited comes by its far ends.
#[derive(Default)]
pub struct EarlyEnds {
    far_ends: OnceCell<FarEnds>,
    given: Notify,
    shown: Notify,
}

impl EarlyEnds {
    /// Gives the view its far ends, once; returns when they are shown, so that whoever asks next
    /// is told of them.
    pub async fn give(&self, far_ends: FarEnds) -> FarEnds {
        let far_ends = self.far_ends.get_or_init(|| far_ends).clone();
        self.given.notify_one();
        self.shown.notified().await;
        far_ends
    }
}

impl EarlyView {
    /// For a client that follows `plan`; the second is where its far ends go once they are there.
    pub fn new(plan: &SessionPlan) -> (Self, Rc<EarlyEnds>) {
        let ends = Rc::<EarlyEnds>::default();
        let view = Self {
            roll: plan.roll.clone(),
            relays: plan.relays(),
            ends: ends.clone(),
            later: None,
        };
        (view, ends)
    }

    /// What the policy wants done when something happens.
    pub fn reactions(&self) -> Rc<[Reaction]> {
        self.roll.reactions()
    }
}

impl InstanceView for EarlyView {
    const PACE: Pace = ClientView::PACE;

    async fn look(&mut self, state: &mut State) {
        if let (None, Some(far_ends)) = (&self.later, self.ends.far_ends.get()) {
            self.later = Some(ClientView::new(far_ends.clone(), self.relays.clone()));
        }
        if let Some(later) = &mut self.later {
            later.look(state).await;
            self.ends.shown.notify_one();
            return;
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
            None => self.ends.given.notified().await,
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
