//! The fleet's access list for commands: read and changed in etcd, from any member's machine.

use anyhow::{Context, Result, bail};
use tabane_base::Bytes;
use tabane_core::PublicKey;
use tabane_linux::threads;
use tabane_store::wall_clock::unix_seconds;

use super::file::FleetFile;
use super::records::{FOUNDING, Founding, Records, holdings, token_end};
use crate::access::AccessList;
use crate::etcd::{Change, Etcd, MAX_OPERATIONS};
use crate::usage::UsageCounters;

/// Others win at most so often in a row.
const ATTEMPTS: usize = 32;

/// What a fleet keeps, for commands.
#[derive(Debug, Clone)]
pub struct FleetBook {
    file: FleetFile,
}

impl FleetBook {
    /// Of the fleet that `file` names.
    #[must_use]
    pub const fn new(file: FleetFile) -> Self {
        Self { file }
    }

    /// The list as it is now.
    ///
    /// # Errors
    /// Etcd does not answer, or what is there is another fleet's.
    pub fn read(&self) -> Result<AccessList> {
        self.ask(async |etcd| Ok((*look(&etcd, self.file.key).await?.access()).clone()))
    }

    /// Changes the list; it is in etcd when this returns.
    ///
    /// # Errors
    /// As [`read`](Self::read), or others change the same all the time.
    pub fn update<T: Send>(
        &self,
        change: impl Fn(&mut AccessList) -> T + Send + Sync,
    ) -> Result<T> {
        self.ask(async |etcd| {
            for _ in 0..ATTEMPTS {
                let records = look(&etcd, self.file.key).await?;
                let before = records.access();
                let mut after = (*before).clone();
                let outcome = change(&mut after);
                let (unchanged, changes) = records.difference(etcd.prefix(), &before, &after)?;
                if changes.is_empty() || write(&etcd, unchanged, changes).await? {
                    return Ok(outcome);
                }
            }
            bail!("others change the same all the time; try again")
        })
    }

    /// The fleet's time of day, in seconds since 1970.
    ///
    /// # Errors
    /// Etcd does not answer.
    pub fn now(&self) -> Result<u64> {
        self.ask(async |etcd| {
            etcd.check_version().await?;
            Ok(now(&etcd))
        })
    }

    /// What users have used, at all relays together, as those last said.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn usage(&self) -> Result<UsageCounters> {
        self.ask(async |etcd| {
            let records = look(&etcd, self.file.key).await?;
            let mut counters = UsageCounters::default();
            for (user, holding) in holdings(&records) {
                counters.add(&user, &holding.period, Bytes::new(holding.used));
            }
            Ok(counters)
        })
    }

    /// Speaks with etcd on a thread of its own: whoever calls may have an event loop already.
    pub(super) fn ask<T: Send>(
        &self,
        question: impl AsyncFnOnce(Etcd) -> Result<T> + Send,
    ) -> Result<T> {
        let address = self.file.etcd.clone().with_password()?;
        std::thread::scope(|scope| {
            let asking = threads::begin_within(scope, || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .context("cannot set up the event loop")?;
                runtime.block_on(question(Etcd::new(address)))
            })?;
            asking.join().expect("it does not panic")
        })
    }
}

/// The time of day as etcd said it last.
pub(super) fn now(etcd: &Etcd) -> u64 {
    unix_seconds().saturating_add_signed(etcd.ahead_s())
}

/// Everything the fleet keeps, if it is this fleet.
pub(super) async fn look(etcd: &Etcd, fleet: PublicKey) -> Result<Records> {
    etcd.check_version().await?;
    let snapshot = etcd.list(etcd.prefix()).await?;
    let mut records = Records::default();
    records.replace(etcd.prefix(), snapshot.entries, snapshot.revision);
    let Some(founding) = records.value::<Founding>(FOUNDING) else {
        bail!("there is no fleet in this etcd under {}", etcd.prefix());
    };
    if founding.key != fleet.to_string() {
        bail!(
            "the fleet in this etcd has the key {}, and this machine is of the fleet {fleet}",
            founding.key
        );
    }
    Ok(records)
}

/// Writes all changes, at once where etcd takes so many at once.
async fn write(etcd: &Etcd, unchanged: Vec<(String, i64)>, changes: Vec<Change>) -> Result<bool> {
    let changes = with_leases(etcd, changes).await?;
    if changes.len() <= MAX_OPERATIONS {
        return Ok(etcd.change(&unchanged, &changes).await?.is_some());
    }
    // One part after the other; whoever is stopped between them does it again and finds less to do.
    for part in changes.chunks(MAX_OPERATIONS / 2) {
        let keys: Vec<&String> = part
            .iter()
            .map(|change| match change {
                Change::Put { key, .. } | Change::Delete { key } => key,
            })
            .collect();
        let of_part = unchanged.iter().filter(|(key, _)| keys.contains(&key));
        let of_part: Vec<(String, i64)> = of_part.cloned().collect();
        if etcd.change(&of_part, part).await?.is_none() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A token that expires goes with a lease of etcd's: no relay's clock keeps it.
async fn with_leases(etcd: &Etcd, changes: Vec<Change>) -> Result<Vec<Change>> {
    let now = now(etcd);
    let mut leased = Vec::new();
    for change in changes {
        leased.push(match change {
            Change::Put {
                key,
                value,
                lease: 0,
            } => {
                let lease = match token_end(&key, &value) {
                    Some(at) => etcd.grant(at.saturating_sub(now).max(1)).await?,
                    None => 0,
                };
                Change::Put { key, value, lease }
            }
            other => other,
        });
    }
    Ok(leased)
}
