//! Who may use the running relay, and how much: the access list in force.
//!
//! Owns the list as the relay goes by it, and its users with their limits. What another
//! `tabane relay …` changes is in force some milliseconds later, running sessions included. Where
//! the list is kept is the keeper's affair; clients that are known need nothing but memory.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use anyhow::Result;
use tabane_base::Bytes;
use tabane_core::CloseReason;
use tabane_tunnel::{Admission, Applicant, RelayMonitor, Seldom, User};
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep_until};

use crate::access::{AccessAnswer, AccessList, Leaving, UserName};
use crate::keeper::Keeper;
use crate::waiting_room::WaitingRoom;
use tabane_store::UsageError;

/// Decides who is let in.
pub(crate) struct Gatekeeper {
    keeper: Keeper,
    list: RefCell<Arc<AccessList>>,
    users: RefCell<BTreeMap<UserName, User>>,
    /// Told where little is left of what was lent to a user.
    asks: Arc<Notify>,
    /// Whether whoever comes is let in.
    door: Door,
    /// Those about whom the keeper has to be asked; core bounds how many there are.
    newcomers: mpsc::UnboundedSender<Newcomer>,
}

/// Who is let in without being known or having a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Door {
    /// Nobody.
    Shut,
    /// Anybody, all together within the limits of this user if there is one.
    Open(Option<UserName>),
}

/// Somebody about whom the keeper has to be asked, and whether it is known.
pub(crate) type Newcomer = (Applicant, bool);

/// What waits for [`Gatekeeper::work`].
pub(crate) type Newcomers = mpsc::UnboundedReceiver<Newcomer>;

impl Gatekeeper {
    /// Goes by what `keeper` keeps.
    ///
    /// # Errors
    /// It cannot be read, or the user in whose name `door` is open is not there.
    pub(crate) fn open(keeper: Keeper, door: Door) -> Result<(Rc<Self>, Newcomers)> {
        let (newcomers, waiting) = mpsc::unbounded_channel();
        let gatekeeper = Self {
            list: RefCell::new(keeper.open()?),
            users: RefCell::default(),
            asks: Arc::default(),
            keeper,
            door,
            newcomers,
        };
        if let Door::Open(Some(name)) = &gatekeeper.door
            && gatekeeper.list.borrow().user(name).is_none()
        {
            return Err(UsageError::new(format!(
                "there is no user {name}: `tabane relay user set {name} …` makes one"
            ))
            .into());
        }
        gatekeeper.renew_users();
        Ok((Rc::new(gatekeeper), waiting))
    }

    /// Decides about a client, at once if it is known.
    pub(crate) fn consider(&self, applicant: Applicant) {
        let (key, token) = (applicant.key, applicant.token.as_deref());
        let verdict = self.list.borrow().recognise(key, token, self.keeper.now());
        match verdict {
            Some(AccessAnswer::Known(Some(user))) if self.must_ask_for(&user) => {
                drop(self.newcomers.send((applicant, true)));
            }
            Some(verdict) => self.answer(applicant, verdict),
            // Fails only at the end of the relay, which ends the client's attempt as well.
            None => drop(self.newcomers.send((applicant, false))),
        }
    }

    fn must_ask_for(&self, name: &UserName) -> bool {
        let (list, users) = (self.list.borrow(), self.users.borrow());
        let found = list.user(name).zip(users.get(name));
        found.is_some_and(|(entry, user)| self.keeper.must_ask_for(entry, user))
    }

    fn answer(&self, applicant: Applicant, verdict: AccessAnswer) {
        let key = applicant.key;
        let admission = match verdict {
            AccessAnswer::Known(user) => self.admit(user),
            AccessAnswer::Enrolled(user) => {
                let name = user.as_ref().map(UserName::as_str);
                tracing::info!(client = %key, user = name, "new client, admitted by its token");
                self.admit(user)
            }
            AccessAnswer::RefusedRevoked => Admission::Refuse(CloseReason::Revoked),
            AccessAnswer::RefusedUnknown => match &self.door {
                Door::Shut => Admission::Refuse(CloseReason::Unauthorised),
                Door::Open(user) => self.admit(user.clone()),
            },
            AccessAnswer::RefusedFull => {
                static TOLD: Seldom = Seldom::of(1, "");
                if TOLD.is_due() {
                    tracing::error!(client = %key, "the list of clients is full");
                }
                Admission::Refuse(CloseReason::Overloaded)
            }
        };
        applicant.answer(admission);
    }

    fn admit(&self, user: Option<UserName>) -> Admission {
        match user {
            None => Admission::Admit(None),
            Some(name) => match self.users.borrow().get(&name) {
                Some(user) => Admission::Admit(Some(user.clone())),
                // Taken away between the two looks.
                None => Admission::Refuse(CloseReason::Revoked),
            },
        }
    }

    /// Looks after newcomers, changes of the list, and counters; does not return.
    pub(crate) async fn work(&self, mut newcomers: Newcomers, monitor: RelayMonitor) {
        let mut changes = self.keeper.changes();
        // What changed before the watch began.
        self.reload(&monitor).await;
        let mut save_at = Instant::now() + self.keeper.interval();
        // Whoever is asked about newcomers may take long: a change does not wait for that.
        let mut enrolling: Option<Pin<Box<dyn Future<Output = ()> + '_>>> = None;
        let mut waiting = WaitingRoom::default();
        loop {
            if enrolling.is_none() && !waiting.is_empty() {
                enrolling = self.enrol_next(&mut waiting, &monitor);
            }
            let enrolled = async {
                match &mut enrolling {
                    Some(enrolling) => enrolling.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = enrolled => enrolling = None,
                Some(first) = newcomers.recv() => {
                    let more = std::iter::from_fn(|| newcomers.try_recv().ok());
                    for (applicant, is_known) in std::iter::once(first).chain(more) {
                        waiting.enter(Instant::now(), applicant, is_known);
                    }
                }
                () = changes.changed() => self.reload(&monitor).await,
                () = self.asks.notified() => self.count(),
                () = sleep_until(save_at) => {
                    self.count();
                    self.keeper.save(&monitor).await;
                    save_at = Instant::now() + self.keeper.interval();
                }
            }
        }
    }

    /// Has those decided about whose turn it is; who has waited too long is told so.
    fn enrol_next<'a>(
        &'a self,
        waiting: &mut WaitingRoom<Applicant>,
        monitor: &'a RelayMonitor,
    ) -> Option<Pin<Box<dyn Future<Output = ()> + 'a>>> {
        for applicant in waiting.overdue(Instant::now()) {
            self.answer_unasked(applicant, &CloseReason::Unavailable);
        }
        let next = waiting.next();
        (!next.is_empty()).then(|| Box::pin(self.enrol(next, monitor)) as _)
    }

    /// Has all of them decided about, and their tokens burnt before anybody is let in.
    async fn enrol(&self, applicants: Vec<Applicant>, monitor: &RelayMonitor) {
        let shown = applicants.iter();
        let shown = shown.map(|applicant| (applicant.key, applicant.token.clone()));
        match self.keeper.enrol(shown.collect()).await {
            Ok((verdicts, list)) => {
                self.put_in_force(list, monitor);
                for (applicant, verdict) in applicants.into_iter().zip(verdicts) {
                    self.answer(applicant, verdict);
                }
            }
            Err(unanswered) => {
                for applicant in applicants {
                    self.answer_unasked(applicant, &unanswered.0);
                }
            }
        }
    }

    /// Who is known is let in though nobody could be asked.
    fn answer_unasked(&self, applicant: Applicant, reason: &CloseReason) {
        let (key, token) = (applicant.key, applicant.token.as_deref());
        let verdict = self.list.borrow().recognise(key, token, self.keeper.now());
        match verdict {
            Some(verdict) => self.answer(applicant, verdict),
            None => applicant.answer(Admission::Refuse(reason.clone())),
        }
    }

    async fn reload(&self, monitor: &RelayMonitor) {
        match self.keeper.read().await {
            Ok(Some(list)) => self.put_in_force(list, monitor),
            Ok(None) => {}
            Err(error) => tracing::error!("the list in force stays as it was: {error:#}"),
        }
    }

    fn put_in_force(&self, list: Arc<AccessList>, monitor: &RelayMonitor) {
        let before = self.list.replace(list.clone());
        self.renew_users();
        if Arc::ptr_eq(&before, &list) {
            return;
        }
        let leaving = list.leaving_since(&before);
        if leaving.is_empty() {
            return;
        }
        let (leaving, is_shut) = (Arc::new(leaving), self.door == Door::Shut);
        monitor.turn_out(move |key| match leaving.get(&key.0)? {
            Leaving::Revoked => Some(CloseReason::Revoked),
            Leaving::Forgotten => is_shut.then_some(CloseReason::Unauthorised),
        });
    }

    /// Gives every user of the list its limits, and forgets those that are gone.
    fn renew_users(&self) {
        let list = self.list.borrow();
        let mut users = self.users.borrow_mut();
        users.retain(|name, _| list.user(name).is_some());
        for entry in list.users() {
            match users.get(&entry.name) {
                Some(user) => self.keeper.renew(entry, user),
                None => {
                    let (limits, used) = self.keeper.terms(entry);
                    let (name, asks) = (entry.name.as_str(), self.asks.clone());
                    let user = User::asking(name, limits, used, asks);
                    users.insert(entry.name.clone(), user);
                }
            }
        }
    }

    fn count(&self) {
        let (list, users) = (self.list.borrow(), self.users.borrow());
        self.keeper.count(&list, |name| users.get(name).cloned());
    }

    /// The fleet that the relay is of, for whoever looks at it.
    #[cfg(feature = "fleet")]
    pub(crate) fn fleet_view(&self) -> Option<crate::fleet::FleetView> {
        self.keeper.fleet_view()
    }

    /// All users.
    pub(crate) fn users(&self) -> Vec<User> {
        self.users.borrow().values().cloned().collect()
    }

    /// Another process has passed on so much for a user.
    pub(crate) fn add_used(&self, name: &str, bytes: Bytes) {
        if let Some(user) = self.users.borrow().get(name) {
            user.add_volume_used(bytes);
        }
    }

    /// Keeps what was counted once more, and leaves that to another process from here on.
    ///
    /// # Errors
    /// What keeps it cannot be left to another process.
    pub(crate) async fn put_down(&self) -> Result<()> {
        self.count();
        self.keeper.put_down().await
    }

    /// Keeps it again, and alone.
    pub(crate) fn take_up(&self) {
        self.keeper.take_up();
    }

    /// Leaves the place in the fleet, if there is one, to the next process.
    ///
    /// # Errors
    /// The fleet cannot be told what was used until now.
    pub(crate) async fn leave_place(&self) -> Result<()> {
        self.count();
        self.keeper.leave_place().await
    }

    /// Has it from here on, from the process before this one.
    pub(crate) fn take_place(&self) {
        self.keeper.take_place();
    }

    /// Waits until the relay is to go down though nobody here says so.
    pub(crate) async fn sent_away(&self) -> String {
        self.keeper.sent_away().await
    }

    /// Keeps what was counted, at the end of the relay.
    pub(crate) fn close(&self) {
        self.count();
        self.keeper.close();
    }
}
