//! The fleet's thread at one relay: follows etcd, and changes there what the relay asks for.
//!
//! Owns the order of things: first what etcd has, then this relay's place among the others, then
//! its changes as they come. While etcd is away what was known last stays in force, and whoever
//! asks for more is told so. Of two processes in an upgrade one has the relay's place ([`Post`]);
//! both follow, and go by what the fleet lends to the relay.

mod admitting;
mod changing;
mod membership;
mod restoring;
mod telling;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use tabane_base::{Bytes, Destination, Duration};
use tabane_core::PublicKey;
use tabane_fleet::{Allotment, RelayList};
use tabane_store::wall_clock::unix_seconds;
use thiserror::Error;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use super::copy::CopyFile;
use super::exchange::{FleetOrder, News, Order, Stage, Wish};
use super::file::FleetFile;
use super::records::{self, FORM, FOUNDING, Founding, Records};
use crate::access::UserName;
use crate::etcd::{Changed, Etcd, EtcdError, FleetAddress};

/// Waits before etcd is tried again: first and longest.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LAST_PAUSE: Duration = Duration::from_secs(5);
/// How often the lease is kept, and whether the cluster still answers is seen.
const PULSE: Duration = Duration::from_secs(2);
/// How often the copy on disk is made anew, where anything has changed.
const COPY_INTERVAL: Duration = Duration::from_secs(2);
/// A clock that differs from etcd's by more is not gone by; `Date` has whole seconds.
const CLOCK_TOLERANCE_S: i64 = 3;

/// Why the thread has to begin anew, or cannot.
#[derive(Debug, Error)]
enum Trouble {
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    /// What is there is not this relay's fleet.
    #[error("{0}")]
    Fleet(String),
}

/// A list's epoch, and the list as it was signed.
type Signed = (u64, Arc<[u8]>);

/// How much each relay has to do.
type Loads = Arc<[(PublicKey, u16)]>;

/// Whether this process stands for the relay in the fleet: says that it runs, and gives back what
/// is not used.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Post {
    /// It does.
    Held,
    /// The process before this one does.
    Awaited,
    /// The process after this one does.
    Left,
}

/// What is left here of what etcd says this relay was lent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Balance {
    /// What was not used in this life.
    Own,
    /// Nothing: the life before this one may have used it.
    LastLifes,
    /// Nothing, nor is anything lent: another machine or process has this relay's place, or had it.
    Rivals,
}

/// The thread.
pub(super) struct Worker {
    order: FleetOrder,
    directory: PathBuf,
    key: PublicKey,
    addresses: Vec<Destination>,
    /// The fleet's key, once it is known.
    fleet: Option<PublicKey>,
    etcd: Etcd,
    records: Records,
    copy: CopyFile,
    is_copied: bool,
    news: watch::Sender<News>,
    /// For clients.
    list: watch::Sender<Signed>,
    loads: watch::Sender<Loads>,
    /// Etcd's version, once it is known.
    version: String,
    orders: mpsc::UnboundedReceiver<Order>,
    /// By which this relay is seen to run; 0: none.
    lease: i64,
    post: Post,
    /// The process that has left the place to this one.
    predecessor: Option<u32>,
    /// Another process of this relay has sessions.
    is_beside: bool,
    /// The relay has served in this life, by etcd or by its copy.
    has_served: bool,
    /// Counts how often etcd was there.
    times_served: u64,
    used: BTreeMap<UserName, Used>,
    /// What was lent last, of users that have sessions here.
    lent: BTreeMap<UserName, Lent>,
    /// What etcd does not know any more of what this relay was lent.
    owed: BTreeMap<UserName, Allotment>,
    balance: Balance,
    /// This machine, until it is started anew.
    machine: String,
    /// Of whom etcd was told last.
    told_last: Option<UserName>,
    load: (u64, u64),
    since: u64,
}

/// What a user has used of the present holding.
struct Used {
    wish: Wish,
    /// Bytes that etcd has been told of.
    told: Bytes,
    idle_since: Option<Instant>,
}

/// The part of a user's volume that was lent last: when, how large, and what was used by then.
struct Lent {
    at: Instant,
    part: Bytes,
    used: Bytes,
}

impl Worker {
    pub(super) fn new(
        order: FleetOrder,
        directory: &Path,
        (key, predecessor): (PublicKey, Option<u32>),
        addresses: Vec<Destination>,
        (news, list, loads): (
            watch::Sender<News>,
            watch::Sender<Signed>,
            watch::Sender<Loads>,
        ),
        orders: mpsc::UnboundedReceiver<Order>,
    ) -> Result<Self> {
        let known = FleetFile::read(directory)?;
        let etcd: FleetAddress = order.etcd.clone().with_password()?;
        Ok(Self {
            order,
            directory: directory.to_owned(),
            key,
            addresses,
            fleet: known.map(|file| file.key),
            etcd: Etcd::new(etcd),
            records: Records::default(),
            copy: CopyFile::new(directory),
            is_copied: true,
            news,
            list,
            loads,
            version: String::new(),
            orders,
            lease: 0,
            post: match predecessor {
                Some(_) => Post::Awaited,
                None => Post::Held,
            },
            is_beside: predecessor.is_some(),
            predecessor,
            has_served: false,
            times_served: 0,
            used: BTreeMap::new(),
            lent: BTreeMap::new(),
            owed: BTreeMap::new(),
            balance: match predecessor {
                Some(_) => Balance::Own,
                None => Balance::LastLifes,
            },
            machine: membership::boot_id(),
            told_last: None,
            load: (0, 0),
            since: unix_seconds(),
        })
    }

    /// Follows etcd until the relay closes.
    pub(super) async fn run(mut self) {
        self.recall();
        let mut pause = FIRST_PAUSE;
        // The members have been gone through once more since they were there.
        let mut is_again = false;
        loop {
            let (before, since) = (self.times_served, Instant::now());
            let trouble = match self.serve().await {
                Ok(()) => return,
                Err(trouble) => trouble,
            };
            is_again &= self.times_served == before;
            // One that ends each watch as soon as it has begun is not gone for another.
            let was_there = self.has_served
                && self.news.borrow().away.is_none()
                && since.elapsed() >= FIRST_PAUSE;
            if was_there && !is_again && matches!(trouble, Trouble::Etcd(EtcdError::Away(_))) {
                // Another member may be: newcomers wait that long, and are told nothing.
                tracing::debug!("looking for another member of etcd: {trouble}");
                (is_again, pause) = (true, FIRST_PAUSE);
                continue;
            }
            is_again = false;
            self.say_away(&trouble);
            if matches!(self.news.borrow().stage, Stage::Failed(_)) {
                return;
            }
            if self.wait(pause, &trouble.to_string()).await {
                return;
            }
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }

    /// Does without etcd for a time; true where the relay closes meanwhile.
    async fn wait(&mut self, pause: Duration, why: &str) -> bool {
        let until = Instant::now() + pause;
        loop {
            tokio::select! {
                () = sleep_until(until) => return false,
                order = self.orders.recv() => match order {
                    Some(Order::Enrol { answer, .. }) => drop(answer.send(Err(why.to_owned()))),
                    Some(Order::Used(wishes)) => self.note(wishes),
                    Some(Order::Load { sessions, carried_bytes }) => {
                        self.load = (sessions, carried_bytes);
                    }
                    Some(Order::Tell { leaves, answer }) => {
                        self.leave_post(leaves);
                        drop(answer.send(Err(why.to_owned())));
                    }
                    Some(Order::Take { alone }) => self.take_post(alone),
                    Some(Order::Report { answer }) => self.tell_report(answer),
                    Some(Order::Close) | None => {
                        self.write_copy();
                        return true;
                    }
                    #[cfg(test)]
                    Some(Order::Die) => return true,
                }
            }
        }
    }

    /// Etcd is away: what is known stays in force, from the last copy if nothing was heard yet.
    fn say_away(&mut self, trouble: &Trouble) {
        let why = trouble.to_string();
        let is_new = self.news.borrow().away.as_ref() != Some(&why);
        let failed = match self.has_served {
            true => None,
            false => self.serve_from_copy(trouble).err(),
        };
        if let Some(failed) = failed {
            let waits_for_etcd = matches!(trouble, Trouble::Etcd(EtcdError::Away(_)));
            self.news.send_modify(|news| {
                news.stage = match waits_for_etcd {
                    true => Stage::Waiting(failed),
                    false => Stage::Failed(failed),
                };
            });
        } else if is_new {
            tracing::error!("known clients are served, new ones wait: {why}");
        }
        self.news.send_modify(|news| news.away = Some(why));
    }

    fn serve_from_copy(&mut self, trouble: &Trouble) -> Result<(), String> {
        // One that takes no changes (NOSPACE) has said all there is, which is newer than the copy.
        if self.records.revision == 0 {
            let read = self.copy.read(self.etcd.prefix());
            let Ok(Some((entries, revision))) = read else {
                let why = read.err().map(|error| format!("; {error:#}"));
                return Err(format!("{trouble}{}", why.unwrap_or_default()));
            };
            let prefix = self.etcd.prefix().to_owned();
            self.records.replace(&prefix, entries, revision);
        }
        if let Trouble::Fleet(why) = trouble {
            return Err(why.clone());
        }
        if self.own_entry().is_none() {
            return Err(format!("{trouble}"));
        }
        // Whatever this relay was lent may have been used in its last life.
        self.records.count_as_used(&self.order.name);
        self.publish(true);
        self.has_served = true;
        Ok(())
    }

    /// Follows etcd; ends well when the relay closes.
    async fn serve(&mut self) -> Result<(), Trouble> {
        self.version = self.etcd.check_version().await?;
        let prefix = self.etcd.prefix().to_owned();
        let snapshot = self.etcd.list(&prefix).await?;
        let before = self.records.revision;
        if snapshot.revision < before {
            tracing::error!(
                revision = snapshot.revision,
                known = before,
                "etcd is older than what this relay knew: it was restored from a snapshot, or is \
                 another one; what was lent of volumes is written down again, but look at users \
                 and revoked clients"
            );
        }
        let mut entries = Records::default();
        entries.replace(&prefix, snapshot.entries, snapshot.revision);
        let fleet = self.check_founding(&entries)?;
        entries.believe(&prefix, fleet);
        self.adopt(entries);
        let mut watch = self.etcd.watch(&prefix, self.records.revision + 1).await?;
        let mut generation = self.etcd.generation();
        self.join(&mut watch).await?;
        if self.post == Post::Held {
            self.claim().await?;
            self.restore().await?;
        }
        self.has_served = true;
        self.times_served += 1;
        self.publish(false);
        // Whoever waits for more has asked before this, and does not ask again.
        self.lend_where_needed().await?;
        let (mut pulse_at, mut copy_at) = (Instant::now() + PULSE, Instant::now());
        // When what has changed is told, and before when not.
        let (mut tell_at, mut rested_at) = (None, Instant::now());
        loop {
            if generation != self.etcd.generation() {
                watch = self.etcd.watch(&prefix, self.records.revision + 1).await?;
                generation = self.etcd.generation();
            }
            tokio::select! {
                changed = watch.next() => {
                    self.follow(changed?);
                    tell_at.get_or_insert(rested_at);
                }
                () = sleep_until(tell_at.unwrap_or(pulse_at)), if tell_at.is_some() => {
                    (tell_at, rested_at) = (None, self.tell_changes());
                }
                order = self.orders.recv() => match order {
                    Some(Order::Close) | None => {
                        self.leave().await;
                        return Ok(());
                    }
                    #[cfg(test)]
                    Some(Order::Die) => return Ok(()),
                    Some(order) => self.carry_out(order).await?,
                },
                () = sleep_until(pulse_at) => {
                    self.pulse().await?;
                    pulse_at = Instant::now() + PULSE;
                }
                () = sleep_until(copy_at), if !self.is_copied && self.post != Post::Left => {
                    self.write_copy();
                    copy_at = Instant::now() + COPY_INTERVAL;
                }
            }
        }
    }

    /// Whether what stands there is this relay's fleet; the first time, it becomes that.
    fn check_founding(&mut self, records: &Records) -> Result<PublicKey, Trouble> {
        let at = &self.order.etcd;
        let Some(founding) = records.value::<Founding>(FOUNDING) else {
            return Err(Trouble::Fleet(match records.odd.get(FOUNDING) {
                Some(why) => format!("what stands in etcd under {at} is no fleet: {why}"),
                None => {
                    format!("there is no fleet yet in {at}: `tabane fleet init {at}` makes one")
                }
            }));
        };
        if founding.form > FORM {
            let why = format!("the fleet in {at} is kept by a newer tabane: update this one");
            return Err(Trouble::Fleet(why));
        }
        let key: PublicKey = founding.key.parse().map_err(|error| {
            Trouble::Fleet(format!("the key of the fleet in {at} is damaged: {error}"))
        })?;
        match self.fleet {
            Some(known) if known != key => {
                return Err(Trouble::Fleet(format!(
                    "the fleet in {at} has the key {key}, and this relay is of the fleet {known}: \
                     is it the right etcd, and the right name behind the slash?"
                )));
            }
            Some(_) => {}
            None => self.fleet = Some(key),
        }
        let file = FleetFile {
            etcd: self.order.etcd.clone(),
            key,
        };
        file.write(&self.directory)
            .map_err(|error| Trouble::Fleet(format!("{error:#}")))?;
        Ok(key)
    }

    /// Goes by `records` from here on; values that were good and are odd now stay as they were.
    fn adopt(&mut self, records: Records) {
        self.note_owed(&records);
        let odd_before = std::mem::take(&mut self.records);
        self.records = records;
        self.records.keep_good_of(odd_before);
        self.is_copied = false;
    }

    fn follow(&mut self, changed: Changed) {
        let prefix = self.etcd.prefix().to_owned();
        self.is_copied &= changed.entries.is_empty();
        for (key, entry) in changed.entries {
            if let (None, Some(user)) = (&entry, records::user_of(&prefix, &key)) {
                self.forget(&user);
            }
            self.records.apply(&prefix, &key, entry);
        }
        self.records.revision = self.records.revision.max(changed.revision);
    }

    async fn carry_out(&mut self, order: Order) -> Result<(), Trouble> {
        match order {
            Order::Enrol { shown, answer } => {
                let decided = self.enrol(&shown).await;
                self.publish(false);
                let told = match &decided {
                    Ok(answers) => Ok(answers.clone()),
                    Err(error) => Err(error.to_string()),
                };
                // Whoever asked may have lost patience.
                drop(answer.send(told));
                decided.map(drop)?;
            }
            Order::Used(wishes) => {
                self.note(wishes);
                self.lend_where_needed().await?;
            }
            Order::Load {
                sessions,
                carried_bytes,
            } => self.load = (sessions, carried_bytes),
            Order::Tell { leaves, answer } => {
                let told = self.tell_all().await;
                self.leave_post(leaves);
                let said = told.as_ref().map_err(ToString::to_string);
                drop(answer.send(said.copied()));
                told?;
            }
            Order::Take { alone } => {
                let had_it = self.post == Post::Held;
                self.take_post(alone);
                if !had_it {
                    self.claim().await?;
                    tracing::info!("the place in the fleet is this process's");
                }
            }
            Order::Report { answer } => self.tell_report(answer),
            Order::Close => {}
            #[cfg(test)]
            Order::Die => {}
        }
        Ok(())
    }

    /// How far etcd's clock is ahead, where that is more than its answers can be late.
    fn ahead_s(&self) -> i64 {
        let ahead_s = self.etcd.ahead_s();
        let counts = ahead_s.abs() >= CLOCK_TOLERANCE_S;
        if counts && self.news.borrow().ahead_s == 0 {
            tracing::warn!(
                "this machine's clock is {} s {} etcd's, which is gone by for tokens and volumes",
                ahead_s.abs(),
                if ahead_s > 0 { "behind" } else { "ahead of" }
            );
        }
        if counts { ahead_s } else { 0 }
    }

    fn now(&self) -> u64 {
        unix_seconds().saturating_add_signed(self.ahead_s())
    }

    fn relays(&self) -> Option<Arc<RelayList>> {
        self.records.relays(self.fleet?)
    }

    fn write_copy(&mut self) {
        if self.post == Post::Left {
            return;
        }
        match self.copy.write(&self.records) {
            Ok(()) => self.is_copied = true,
            // The next change tries again.
            Err(error) => tracing::error!("the copy of what the fleet knows is old: {error:#}"),
        }
    }
}
