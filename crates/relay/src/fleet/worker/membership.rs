//! A relay's place in its fleet: whether it is on the list, and that no other machine runs with its
//! name; and how it goes from one process of a relay to the next.

use tabane_base::Duration;
use tabane_fleet::ListEntry;
use tokio::time::{Instant, sleep, sleep_until};

use super::super::exchange::{Order, Stage};
use super::super::records::{ALIVE, ASKS, Alive, Asking, LIST};
use super::{Balance, Post, Trouble, Worker};
use crate::etcd::{Change, EtcdError, Watch};

/// A relay that is killed is seen to be gone after this.
pub(in crate::fleet) const LEASE_S: u64 = 10;
/// Whoever has this relay's place is waited for: a machine that started anew is its own
/// predecessor, whose lease ends.
const PLACE_WAIT: Duration = Duration::from_secs(LEASE_S + 3);
const PLACE_PAUSE: Duration = Duration::from_millis(500);

impl Worker {
    /// This relay, as the fleet signed it.
    pub(super) fn own_entry(&self) -> Option<ListEntry> {
        self.relays()?.of_key(self.key).cloned()
    }

    /// Why it should not serve, now that it does.
    pub(super) fn sent_away(&self) -> Option<String> {
        match self.own_entry() {
            Some(entry) if entry.draining => Some("the fleet's owner drains this relay".to_owned()),
            Some(_) => None,
            None => Some("this relay is not of the fleet any more".to_owned()),
        }
    }

    /// Waits until the fleet's owner has let this relay in.
    pub(super) async fn join(&mut self, watch: &mut Watch) -> Result<(), Trouble> {
        // One that serves and is not of the fleet any more is sent away.
        if self.has_served || !self.check_own_entry()? {
            return Ok(());
        }
        let lease = self.etcd.grant(LEASE_S).await?;
        let asking = Asking {
            name: self.order.name.clone(),
            key: self.key.to_string(),
            addresses: self.addresses.iter().map(ToString::to_string).collect(),
            region: self.order.region.clone(),
        };
        let value = serde_json::to_vec(&asking).map_err(odd)?;
        let key = format!("{}{ASKS}{}", self.etcd.prefix(), self.key);
        let put = Change::Put { key, value, lease };
        self.etcd.change(&[], &[put]).await?;
        let name = &self.order.name;
        let message = format!(
            "this relay waits to be let into the fleet: run `tabane fleet add {name}` where the \
             fleet's key is (this relay's key is {})",
            self.key
        );
        self.news
            .send_modify(|news| news.stage = Stage::Waiting(message));
        let mut pulse_at = Instant::now() + super::PULSE;
        while self.check_own_entry()? {
            tokio::select! {
                changed = watch.next() => self.follow(changed?),
                order = self.orders.recv() => match order {
                    Some(Order::Close) | None => {
                        let why = "the relay closes before it was let in".to_owned();
                        return Err(Trouble::Fleet(why));
                    }
                    Some(_) => {}
                },
                () = sleep_until(pulse_at) => {
                    if !self.etcd.keep_alive(lease).await? {
                        return Err(EtcdError::Away("the lease is over".to_owned()).into());
                    }
                    pulse_at = Instant::now() + super::PULSE;
                }
            }
        }
        // Also takes away that it asks.
        self.etcd.revoke(lease).await?;
        Ok(())
    }

    /// Whether it has to be let in first.
    fn check_own_entry(&self) -> Result<bool, Trouble> {
        let Some(entry) = self.own_entry() else {
            return Ok(true);
        };
        let name = &entry.certificate.name;
        if *name != self.order.name {
            let why =
                format!("the fleet knows this relay's key as {name}: start it as --name {name}");
            return Err(Trouble::Fleet(why));
        }
        if entry.draining && !self.has_served {
            let why = format!(
                "the fleet's owner has drained this relay: `tabane fleet drain {name} --undo` has \
                 it serve again"
            );
            return Err(Trouble::Fleet(why));
        }
        Ok(false)
    }

    /// Takes this relay's place among those that run.
    pub(super) async fn claim(&mut self) -> Result<(), Trouble> {
        let until = Instant::now() + PLACE_WAIT;
        self.lease = self.etcd.grant(LEASE_S).await?;
        loop {
            self.refresh(&self.place()).await?;
            let holder: Option<Alive> = self.records.value(&self.place());
            let own = self.alive();
            let is_free =
                holder.is_none_or(|holder| is_predecessor(&holder, &own, self.predecessor));
            if is_free && self.say_alive().await? {
                return Ok(());
            }
            // One that serves goes on: whoever came later is told.
            if self.has_served || Instant::now() > until {
                let why = format!(
                    "another machine or process runs a relay with the name and key of {}: give \
                     each a state directory of its own, and let it into the fleet by itself",
                    self.order.name
                );
                if self.has_served {
                    tracing::error!("{why}");
                    return Ok(());
                }
                return Err(Trouble::Fleet(why));
            }
            self.news.send_modify(|news| {
                let what = "a relay of this name runs, or did until a moment ago: waiting for its \
                            lease to end";
                news.stage = Stage::Waiting(what.to_owned());
            });
            sleep(PLACE_PAUSE).await;
            self.etcd.keep_alive(self.lease).await?;
        }
    }

    /// Keeps the lease, and tells how this relay is where that has changed.
    pub(super) async fn pulse(&mut self) -> Result<(), Trouble> {
        if self.post != Post::Held {
            // Whether etcd answers is to be seen all the same.
            return self.refresh(&self.place()).await;
        }
        let is_kept = self.lease != 0 && self.etcd.keep_alive(self.lease).await?;
        if !is_kept {
            self.claim().await?;
        } else if self.has_rival() {
            tracing::error!(
                "another relay runs with this one's name and key and has its place, so this one \
                 lends nothing of volumes: give each machine a state directory of its own"
            );
        } else if self.records.value(&self.place()) != Some(self.alive()) {
            self.say_alive().await?;
        }
        if self.balance == Balance::Rivals {
            self.restore().await?;
        }
        self.tell_used().await?;
        self.mend_list().await?;
        self.publish(false);
        Ok(())
    }

    /// Puts the list back that the fleet signed last, where etcd has an older one or none: it was
    /// restored from a snapshot, or somebody has written there who cannot sign.
    async fn mend_list(&mut self) -> Result<(), Trouble> {
        let why = self.records.odd.get(LIST).cloned();
        let list = self.records.bytes(LIST).map(<[u8]>::to_vec);
        if let (Some(why), Some(list)) = (why, list) {
            tracing::warn!("the list of relays in etcd is replaced by the one before it: {why}");
            self.write(&[], vec![(LIST.to_owned(), Some((list, 0)))])
                .await?;
        }
        Ok(())
    }

    /// False where somebody else has the place.
    async fn say_alive(&mut self) -> Result<bool, Trouble> {
        let value = serde_json::to_vec(&self.alive()).map_err(odd)?;
        self.write(&[], vec![(self.place(), Some((value, self.lease)))])
            .await
    }

    /// Whether another machine or process has this relay's place. What was lent may be used there
    /// from then on.
    pub(super) fn has_rival(&mut self) -> bool {
        let holder: Option<Alive> = self.records.value(&self.place());
        let own = self.alive();
        let is_own = |it: &Alive| {
            (&it.machine, it.process, it.since) == (&own.machine, own.process, own.since)
        };
        let has_rival = self.post == Post::Held && holder.is_some_and(|holder| !is_own(&holder));
        if has_rival {
            self.balance = Balance::Rivals;
        }
        has_rival
    }

    /// The key under which a relay of this name is seen to run.
    pub(super) fn place(&self) -> String {
        format!("{ALIVE}{}", self.order.name)
    }

    fn alive(&self) -> Alive {
        Alive {
            key: self.key.to_string(),
            machine: self.machine.clone(),
            process: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            since: self.since,
            sessions: self.load.0,
            carried_bytes: self.load.1,
            clock_behind_s: self.ahead_s(),
        }
    }

    /// Gives back what was lent and not used, and the place, unless another process has both. What
    /// etcd does not take, one that is full say, ends with the lease or stays lent.
    pub(super) async fn leave(&mut self) {
        if self.post != Post::Held {
            return;
        }
        if let Err(trouble) = self.settle_all().await {
            tracing::warn!("what was lent and not used is not given back: {trouble}");
        }
        if let Err(error) = self.etcd.revoke(self.lease).await {
            tracing::warn!("others see that this relay is gone when its lease ends: {error}");
        }
        self.write_copy();
    }

    /// Leaves the place to another process of this relay, if it is to.
    pub(super) fn leave_post(&mut self, leaves: bool) {
        if leaves {
            (self.post, self.is_beside) = (Post::Left, true);
        }
    }

    /// Has the place, alone or beside a process that finishes its sessions.
    pub(super) fn take_post(&mut self, alone: bool) {
        let holder: Option<Alive> = self.records.value(&self.place());
        if let (true, Post::Left, Some(holder)) = (alone, self.post, holder)
            && holder.machine == self.machine
        {
            // It has ended, though nobody may have waited for it yet.
            self.predecessor = Some(holder.process);
        }
        self.post = Post::Held;
        self.is_beside = !alone;
        if alone {
            self.note_idle();
        }
    }
}

pub(super) fn odd(error: serde_json::Error) -> Trouble {
    EtcdError::Answer(error.to_string()).into()
}

/// Whether a place was held by a process of this machine that is no more, has left it, or is ours.
fn is_predecessor(holder: &Alive, own: &Alive, predecessor: Option<u32>) -> bool {
    let is_here = holder.machine == own.machine && holder.key == own.key;
    let process = std::path::PathBuf::from(format!("/proc/{}", holder.process));
    let is_left = predecessor == Some(holder.process);
    is_here && (holder.process == own.process || is_left || !process.exists())
}

/// The same on one machine until it is started anew.
pub(super) fn boot_id() -> String {
    let read = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    read.map(|text| text.trim().to_owned()).unwrap_or_default()
}
