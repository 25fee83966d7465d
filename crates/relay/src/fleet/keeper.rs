//! A fleet's access list and volumes, as the relay's own thread has them.
//!
//! Owns the thread that speaks with etcd, and the reading of what it last said. Nothing here waits
//! but newcomers.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::{Context, Result, bail};
use tabane_base::{Bytes, Destination, Duration};
use tabane_control::Fleet;
use tabane_core::{CloseReason, PublicKey};
use tabane_fleet::Allotment;
use tabane_linux::threads;
use tabane_store::wall_clock::unix_seconds;
use tabane_tunnel::{FleetList, FleetLoads, RelayMonitor, Seldom, User, UserLimits};
use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, timeout};

use super::exchange::{FleetOrder, News, Order, Stage, Wish};
use super::worker::Worker;
use crate::access::{AccessAnswer, AccessList, UserEntry, UserName};
use crate::keeper::{Shown, Unanswered};

/// How often what users have used is looked at, beside when more is wanted.
pub(crate) const COUNT_INTERVAL: Duration = Duration::from_millis(100);
/// How often the relay says how busy it is.
const LOAD_INTERVAL: Duration = Duration::from_secs(5);
/// What a newcomer is given to be looked up: a handshake's patience is 10 s.
const ENROL_WAIT: Duration = Duration::from_secs(4);
/// Whoever looks at the relay is not kept longer; then what was known last is shown.
const REPORT_WAIT: Duration = Duration::from_millis(200);
/// What is given back at the end may take so long.
const CLOSE_WAIT: Duration = Duration::from_secs(4);

/// The fleet, for whoever looks at the relay.
pub(crate) struct FleetView {
    orders: mpsc::UnboundedSender<Order>,
    last: Option<Fleet>,
}

/// The relay's end of the fleet's thread.
pub(crate) struct FleetKeeper {
    news: watch::Receiver<News>,
    fleet_list: FleetList,
    fleet_loads: FleetLoads,
    orders: mpsc::UnboundedSender<Order>,
    thread: Cell<Option<JoinHandle<()>>>,
    /// What was used of each volume when it was last told, and in which day or month.
    counted: RefCell<BTreeMap<UserName, (String, Bytes, usize)>>,
    load_at: Cell<Instant>,
    /// The answer that was not waited for any longer: until it comes, others need not wait either.
    late: RefCell<Option<oneshot::Receiver<Enrolled>>>,
}

/// What is decided about newcomers, or why nothing is.
type Enrolled = Result<Vec<AccessAnswer>, String>;

impl FleetKeeper {
    /// Starts the thread, and waits until the relay with this key is of the fleet: until etcd says
    /// so, or its last copy does. A process before this one has its place until it is left.
    ///
    /// # Errors
    /// It cannot be; each says what to do.
    pub(crate) async fn start(
        order: FleetOrder,
        directory: &Path,
        of: (PublicKey, Option<u32>),
        addresses: Vec<Destination>,
    ) -> Result<Self> {
        let (news_sender, mut news) = watch::channel(News::default());
        let (orders, to_do) = mpsc::unbounded_channel();
        let (list_sender, fleet_list) = watch::channel((0, Arc::from([])));
        let (loads_sender, fleet_loads) = watch::channel(Arc::from([]));
        let tells = (news_sender, list_sender, loads_sender);
        let worker = Worker::new(order, directory, of, addresses, tells, to_do)?;
        let thread = threads::begin("fleet", move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            match runtime {
                Ok(runtime) => runtime.block_on(worker.run()),
                Err(error) => tracing::error!(%error, "the fleet's thread cannot begin"),
            }
        });
        let thread = thread.context("cannot start the fleet's thread")?;
        loop {
            let stage = news.borrow_and_update().stage.clone();
            match stage {
                Stage::Starting => {}
                Stage::Waiting(what) => tracing::warn!("{what}"),
                Stage::Serving => break,
                Stage::Failed(why) => bail!(why),
            }
            news.changed().await.context("the fleet's thread ended")?;
        }
        Ok(Self {
            news,
            fleet_list,
            fleet_loads,
            orders,
            thread: Cell::new(Some(thread)),
            counted: RefCell::default(),
            load_at: Cell::new(Instant::now()),
            late: RefCell::default(),
        })
    }

    pub(crate) fn news(&self) -> watch::Receiver<News> {
        self.news.clone()
    }

    pub(crate) fn fleet_list(&self) -> FleetList {
        self.fleet_list.clone()
    }

    pub(crate) fn fleet_loads(&self) -> FleetLoads {
        self.fleet_loads.clone()
    }

    pub(crate) fn view(&self) -> FleetView {
        FleetView {
            orders: self.orders.clone(),
            last: None,
        }
    }

    pub(crate) fn list(&self) -> Arc<AccessList> {
        self.news.borrow().list.clone()
    }

    /// By the fleet's clock.
    pub(crate) fn now(&self) -> u64 {
        unix_seconds().saturating_add_signed(self.news.borrow().ahead_s)
    }

    /// Nothing of its volume is left here, or what there is is of a day or month that is over.
    pub(crate) fn must_ask_for(&self, entry: &UserEntry, user: &User) -> bool {
        let Some(volume) = entry.volume else {
            return false;
        };
        let news = self.news.borrow();
        let period = volume.per.name_at(self.now());
        let holding = news.holdings.get(&entry.name);
        news.away.is_none()
            && holding
                .is_none_or(|it| it.period != period || user.usage().volume >= Bytes::new(it.lent))
    }

    pub(crate) async fn enrol(
        &self,
        shown: Shown,
    ) -> Result<(Vec<AccessAnswer>, Arc<AccessList>), Unanswered> {
        let unanswered = |why: &str| {
            static TOLD: Seldom = Seldom::of(10, "new clients wait");
            if TOLD.is_due() {
                tracing::warn!("new clients wait: {why}");
            }
            Unanswered(CloseReason::Unavailable)
        };
        if let Some(why) = &self.news.borrow().away {
            return Err(unanswered(why));
        }
        if self.is_late() {
            return Err(unanswered("etcd is slow"));
        }
        let (answer, mut answered) = oneshot::channel();
        // Fails where the thread is gone, and so does waiting for its answer.
        drop(self.orders.send(Order::Enrol { shown, answer }));
        match timeout(ENROL_WAIT, &mut answered).await {
            Ok(Ok(Ok(answers))) => Ok((answers, self.list())),
            Ok(Ok(Err(why))) => Err(unanswered(&why)),
            Ok(Err(_)) => Err(unanswered("the fleet's thread has ended")),
            Err(_) => {
                self.late.replace(Some(answered));
                Err(unanswered("etcd is slow"))
            }
        }
    }

    /// Whether the fleet's thread still waits for etcd, on behalf of somebody who does not.
    fn is_late(&self) -> bool {
        let mut late = self.late.borrow_mut();
        let is_late = late
            .as_mut()
            .is_some_and(|late| matches!(late.try_recv(), Err(TryRecvError::Empty)));
        if !is_late {
            late.take();
        }
        is_late
    }

    pub(crate) fn terms(&self, entry: &UserEntry) -> (UserLimits, Bytes) {
        let news = self.news.borrow();
        let holding = news.holdings.get(&entry.name).cloned().unwrap_or_default();
        let used = Bytes::new(holding.used);
        let known = (holding.period.clone(), used, 0);
        self.counted.borrow_mut().insert(entry.name.clone(), known);
        (limits(entry, &holding, &news), used)
    }

    pub(crate) fn renew(&self, entry: &UserEntry, user: &User) {
        let news = self.news.borrow();
        let none = Allotment::default();
        let holding = news.holdings.get(&entry.name).unwrap_or(&none);
        let mut counted = self.counted.borrow_mut();
        let known = counted.entry(entry.name.clone()).or_default();
        if known.0 != holding.period {
            *known = (holding.period.clone(), Bytes::new(holding.used), 0);
            user.set_volume_used(known.1);
        }
        user.set_limits(limits(entry, holding, &news));
    }

    /// Tells what has been used since it was last told, so that more is lent before it is used up.
    pub(crate) fn count(&self, list: &AccessList, of: impl Fn(&UserName) -> Option<User>) {
        let mut wishes = Vec::new();
        let mut counted = self.counted.borrow_mut();
        counted.retain(|name, _| list.user(name).is_some());
        for entry in list.users().iter().filter(|entry| entry.volume.is_some()) {
            let (Some(user), Some(known)) = (of(&entry.name), counted.get_mut(&entry.name)) else {
                continue;
            };
            let usage = user.usage();
            let is_other = (known.1, known.2) != (usage.volume, usage.sessions);
            if is_other || usage.sessions > 0 && user.wants_more() {
                (known.1, known.2) = (usage.volume, usage.sessions);
                wishes.push(Wish {
                    user: entry.name.clone(),
                    period: known.0.clone(),
                    used: usage.volume,
                    sessions: usage.sessions,
                });
            }
        }
        if !wishes.is_empty() {
            drop(self.orders.send(Order::Used(wishes)));
        }
    }

    /// Tells now and then how busy this relay is.
    pub(crate) async fn tell_load(&self, monitor: &RelayMonitor) {
        if self.load_at.get() <= Instant::now() {
            self.load_at.set(Instant::now() + LOAD_INTERVAL);
            let carried = monitor.volume().await;
            let order = Order::Load {
                sessions: monitor.sessions() as u64,
                carried_bytes: (carried.sent + carried.received).get(),
            };
            drop(self.orders.send(order));
        }
    }

    pub(crate) async fn sent_away(&self) -> String {
        let mut news = self.news.clone();
        let told = news.wait_for(|news| news.sent_away.is_some()).await;
        match told.ok().and_then(|news| news.sent_away.clone()) {
            Some(why) => why,
            // The thread is gone; the relay goes on by what it knows.
            None => std::future::pending().await,
        }
    }

    /// Has etcd know what was used until now.
    ///
    /// # Errors
    /// It is away.
    pub(crate) async fn tell_all(&self) -> Result<()> {
        if let Some(why) = &self.news.borrow().away {
            bail!("a relay of a fleet is upgraded when its etcd is there: {why}");
        }
        self.tell(false).await
    }

    /// The same, and leaves the relay's place to another process.
    ///
    /// # Errors
    /// Etcd is away; the place is left all the same.
    pub(crate) async fn leave_place(&self) -> Result<()> {
        self.tell(true).await
    }

    async fn tell(&self, leaves: bool) -> Result<()> {
        let (answer, answered) = oneshot::channel();
        drop(self.orders.send(Order::Tell { leaves, answer }));
        match timeout(ENROL_WAIT, answered).await {
            Ok(Ok(told)) => told.map_err(anyhow::Error::msg),
            Ok(Err(_)) => bail!("the fleet's thread has ended"),
            Err(_) => bail!("etcd is slow"),
        }
    }

    /// Has the relay's place: alone, or while another process finishes its sessions.
    pub(crate) fn take_place(&self, alone: bool) {
        drop(self.orders.send(Order::Take { alone }));
    }

    /// Gives back what was lent and not used, and says good-bye.
    pub(crate) fn close(&self) {
        drop(self.orders.send(Order::Close));
        let Some(thread) = self.thread.take() else {
            return;
        };
        let (done, is_done) = std::sync::mpsc::channel::<()>();
        std::thread::spawn(move || {
            // A thread that panicked has said so.
            drop(thread.join());
            drop(done);
        });
        let _ = is_done.recv_timeout(CLOSE_WAIT);
    }
}

impl FleetView {
    /// How the fleet is, by what its thread has heard.
    pub(crate) async fn look(&mut self) -> Option<Fleet> {
        let (answer, answered) = oneshot::channel();
        drop(self.orders.send(Order::Report { answer }));
        if let Ok(Ok(fleet)) = timeout(REPORT_WAIT, answered).await {
            self.last = Some(fleet);
        }
        self.last.clone()
    }
}

#[cfg(test)]
impl FleetKeeper {
    pub(super) fn order(&self, order: Order) {
        self.orders.send(order).unwrap();
    }

    /// Ends as a process does that is killed.
    pub(super) fn die(self) {
        self.orders.send(Order::Die).unwrap();
        self.thread.take().unwrap().join().unwrap();
    }
}

/// A user's limits at this relay: of its volume, what was lent. While etcd is away, nothing more
/// comes.
fn limits(entry: &UserEntry, holding: &Allotment, news: &News) -> UserLimits {
    let limits = entry.limits();
    let ask_from = news.ask_from.get(&entry.name).copied();
    UserLimits {
        volume: limits.volume.map(|_| Bytes::new(holding.lent)),
        ask_from: ask_from.filter(|_| limits.volume.is_some() && news.away.is_none()),
        ..limits
    }
}
