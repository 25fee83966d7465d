//! Who may use the running relay, and how much: the access list in force.
//!
//! Owns the list as the relay goes by it, its users with their limits, and their counters. What
//! another `tabane relay …` writes is in force some milliseconds later, running sessions included.
//! Files are read and written by threads of their own, for the relay's thread carries everybody's
//! packets; clients that are known need no file at all.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use anyhow::{Context, Result};
use tabane_base::{Bytes, Duration};
use tabane_core::CloseReason;
use tabane_linux::DirectoryWatch;
use tabane_tunnel::{Admission, Applicant, RelayMonitor, User};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until};

use crate::access::{AccessAnswer, AccessFile, AccessList, UserName};
use crate::state::RelayState;
use crate::usage::{UsageCounters, UsageFile};
use tabane_store::{Mistake, wall_clock::unix_seconds};

/// How often counters are written: what a crash loses.
const SAVE_INTERVAL: Duration = Duration::from_secs(10);

/// Decides who is let in.
pub(crate) struct Gatekeeper {
    state: RelayState,
    file: AccessFile,
    list: RefCell<AccessList>,
    users: RefCell<BTreeMap<UserName, User>>,
    usage: RefCell<UsageCounters>,
    /// The counters are not on disk as they are.
    is_unsaved: Cell<bool>,
    /// Another process writes them.
    is_put_down: Cell<bool>,
    usage_file: UsageFile,
    /// Whether whoever comes is let in.
    door: Door,
    /// Those whose token has to be looked at on disk; core bounds how many there are.
    newcomers: mpsc::UnboundedSender<Applicant>,
}

/// Who is let in without being known or having a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Door {
    /// Nobody.
    Shut,
    /// Anybody, all together within the limits of this user if there is one.
    Open(Option<UserName>),
}

/// What waits for [`Gatekeeper::work`].
pub(crate) type Newcomers = mpsc::UnboundedReceiver<Applicant>;

impl Gatekeeper {
    /// Reads the list and the counters.
    ///
    /// # Errors
    /// They cannot be read, or the user in whose name `door` is open is not among them.
    pub(crate) fn open(state: &RelayState, door: Door) -> Result<(Rc<Self>, Newcomers)> {
        let (newcomers, waiting) = mpsc::unbounded_channel();
        let file = state.access();
        let usage_file = state.usage();
        let gatekeeper = Self {
            state: state.clone(),
            list: RefCell::new(file.read()?),
            users: RefCell::default(),
            usage: RefCell::new(usage_file.read()?),
            is_unsaved: Cell::new(false),
            is_put_down: Cell::new(false),
            file,
            usage_file,
            door,
            newcomers,
        };
        if let Door::Open(Some(name)) = &gatekeeper.door
            && gatekeeper.list.borrow().user(name).is_none()
        {
            return Err(Mistake::new(format!(
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
        let verdict = self.list.borrow().recognise(key, token, unix_seconds());
        match verdict {
            Some(verdict) => self.answer(applicant, verdict),
            // Fails only at the end of the relay, which ends the client's attempt as well.
            None => drop(self.newcomers.send(applicant)),
        }
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
                tracing::error!(client = %key, "the list of clients is full");
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
        let watch = DirectoryWatch::start(self.state.root())
            .inspect_err(|error| tracing::error!(%error, "changes take effect at a restart only"))
            .ok();
        // What changed before the watch began.
        self.reload(&monitor).await;
        let mut save_at = Instant::now() + SAVE_INTERVAL;
        let mut watch = watch;
        loop {
            let changed = async {
                match &watch {
                    Some(watch) => watch.changed(AccessFile::NAME).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                Some(first) = newcomers.recv() => self.enrol(first, &mut newcomers, &monitor).await,
                changed = changed => match changed {
                    Ok(()) => self.reload(&monitor).await,
                    Err(error) => {
                        tracing::error!(%error, "changes take effect at a restart only");
                        watch = None;
                    }
                },
                () = sleep_until(save_at) => {
                    self.save().await;
                    save_at = Instant::now() + SAVE_INTERVAL;
                }
            }
        }
    }

    /// Looks at the tokens of all who wait, and burns them on disk before anybody is let in.
    async fn enrol(&self, first: Applicant, others: &mut Newcomers, monitor: &RelayMonitor) {
        let mut applicants = vec![first];
        applicants.extend(std::iter::from_fn(|| others.try_recv().ok()));
        let shown: Vec<_> = applicants
            .iter()
            .map(|applicant| (applicant.key, applicant.token.clone()))
            .collect();
        let file = self.file.clone();
        let decided = spawn_blocking(move || {
            file.update_and_read(|list| {
                let now = unix_seconds();
                let decide = |(key, token): &(_, Option<Vec<u8>>)| {
                    list.authorise(*key, token.as_deref(), now)
                };
                shown.iter().map(decide).collect::<Vec<_>>()
            })
        });
        match decided
            .await
            .context("the thread for files broke")
            .flatten()
        {
            Ok((verdicts, list)) => {
                self.put_in_force(list, monitor);
                for (applicant, verdict) in applicants.into_iter().zip(verdicts) {
                    self.answer(applicant, verdict);
                }
            }
            Err(error) => {
                tracing::error!("new clients are refused: {error:#}");
                for applicant in applicants {
                    applicant.answer(Admission::Refuse(CloseReason::Overloaded));
                }
            }
        }
    }

    async fn reload(&self, monitor: &RelayMonitor) {
        let file = self.file.clone();
        let read = spawn_blocking(move || file.read_if_any()).await;
        match read.context("the thread for files broke").flatten() {
            Ok(Some(list)) => self.put_in_force(list, monitor),
            Ok(None) => {}
            Err(error) => tracing::error!("the list in force stays as it was: {error:#}"),
        }
    }

    fn put_in_force(&self, list: AccessList, monitor: &RelayMonitor) {
        if *self.list.borrow() == list {
            return;
        }
        *self.list.borrow_mut() = list;
        self.renew_users();
        let list = self.list.borrow();
        let clients = list
            .clients()
            .iter()
            .map(|client| (client.key, client.revoked));
        let clients: BTreeMap<_, _> = clients.map(|(key, revoked)| (key.0, revoked)).collect();
        let (clients, is_shut) = (Arc::new(clients), self.door == Door::Shut);
        monitor.turn_out(move |key| match clients.get(&key.0) {
            Some(false) => None,
            Some(true) => Some(CloseReason::Revoked),
            None => is_shut.then_some(CloseReason::Unauthorised),
        });
    }

    /// Gives every user of the list its limits, and forgets those that are gone.
    fn renew_users(&self) {
        let (list, usage) = (self.list.borrow(), self.usage.borrow());
        let mut users = self.users.borrow_mut();
        users.retain(|name, _| list.user(name).is_some());
        for entry in list.users() {
            match users.get(&entry.name) {
                Some(user) => user.set_limits(entry.limits()),
                None => {
                    let used = usage.of(entry, unix_seconds());
                    let user = User::new(entry.name.as_str(), entry.limits(), used);
                    users.insert(entry.name.clone(), user);
                }
            }
        }
    }

    /// Brings the counters up to date, and begins anew with those whose day or month is over.
    fn count(&self, now: u64) {
        let (list, users) = (self.list.borrow(), self.users.borrow());
        let mut usage = self.usage.borrow_mut();
        let before = usage.clone();
        usage.retain(|name| users.keys().any(|user| user.as_str() == name));
        for entry in list.users() {
            if let Some(user) = users.get(&entry.name) {
                if usage.is_over(entry, now) {
                    user.set_volume_used(Bytes::ZERO);
                }
                usage.set(entry, user.usage().volume, now);
            }
        }
        if *usage != before {
            self.is_unsaved.set(true);
        }
    }

    /// All users.
    pub(crate) fn users(&self) -> Vec<User> {
        self.users.borrow().values().cloned().collect()
    }

    /// Another process has passed on so much for a user.
    pub(crate) fn add_used(&self, name: &str, bytes: Bytes) {
        let users = self.users.borrow();
        if let Some((_, user)) = users.iter().find(|(user, _)| user.as_str() == name) {
            user.add_volume_used(bytes);
        }
    }

    /// Writes the counters once more, and leaves that to another process from here on.
    pub(crate) async fn put_down(&self) {
        self.save().await;
        self.is_put_down.set(true);
    }

    /// Writes them again.
    pub(crate) fn take_up(&self) {
        self.is_put_down.set(false);
    }

    async fn save(&self) {
        self.count(unix_seconds());
        if self.is_unsaved.get() && !self.is_put_down.get() {
            let (file, usage) = (self.usage_file.clone(), self.usage.borrow().clone());
            let written = spawn_blocking(move || file.write(&usage)).await;
            self.note_written(written.context("the thread for files broke").flatten());
        }
    }

    /// Writes the counters, at the end of the relay.
    pub(crate) fn save_now(&self) {
        self.count(unix_seconds());
        if self.is_unsaved.get() && !self.is_put_down.get() {
            self.note_written(self.usage_file.write(&self.usage.borrow()));
        }
    }

    fn note_written(&self, written: Result<()>) {
        match written {
            Ok(()) => self.is_unsaved.set(false),
            // Counting goes on; the next time tries again.
            Err(error) => tracing::error!("what users have used is not on disk: {error:#}"),
        }
    }
}
