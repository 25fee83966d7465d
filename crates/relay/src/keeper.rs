//! Where the access list in force is kept, and what users have of their volumes counted: in the
//! files of this relay alone, or by its fleet.
//!
//! The gatekeeper goes by the list and asks here for what it cannot decide from memory; everything
//! that differs between one relay and a fleet's is behind this.

mod file;

use std::sync::Arc;

use anyhow::Result;
use tabane_base::{Bytes, Duration};
use tabane_core::{CloseReason, PublicKey};
use tabane_tunnel::{FleetList, FleetLoads, RelayMonitor, User, UserLimits};

use crate::access::{AccessAnswer, AccessList, UserEntry, UserName};
#[cfg(feature = "fleet")]
use crate::fleet::{FleetKeeper, FleetView};
pub(crate) use file::FileKeeper;
use tabane_store::wall_clock::unix_seconds;

/// Those who want to be let in: the key each has proved, and the token it showed.
pub(crate) type Shown = Vec<(PublicKey, Option<Vec<u8>>)>;

/// Where the list is kept.
pub(crate) enum Keeper {
    /// `access.toml` and `usage.toml`.
    File(FileKeeper),
    /// A fleet's.
    #[cfg(feature = "fleet")]
    Fleet(FleetKeeper),
}

/// What tells that the list may be another one.
pub(crate) enum Changes {
    File(file::Changes),
    #[cfg(feature = "fleet")]
    Fleet(tokio::sync::watch::Receiver<crate::fleet::News>),
}

/// Nobody could be asked; newcomers are told this.
pub(crate) struct Unanswered(pub(crate) CloseReason);

impl Keeper {
    /// The list to begin with.
    pub(crate) fn open(&self) -> Result<Arc<AccessList>> {
        match self {
            Self::File(keeper) => keeper.open(),
            #[cfg(feature = "fleet")]
            Self::Fleet(keeper) => Ok(keeper.list()),
        }
    }

    /// The list of its fleet's relays, for clients.
    pub(crate) fn fleet_list(&self) -> Option<FleetList> {
        match self {
            Self::File(_) => None,
            #[cfg(feature = "fleet")]
            Self::Fleet(keeper) => Some(keeper.fleet_list()),
        }
    }

    /// What the relays of its fleet have to do, for clients.
    pub(crate) fn fleet_loads(&self) -> Option<FleetLoads> {
        match self {
            Self::File(_) => None,
            #[cfg(feature = "fleet")]
            Self::Fleet(keeper) => Some(keeper.fleet_loads()),
        }
    }

    /// The fleet, for whoever looks at the relay.
    #[cfg(feature = "fleet")]
    pub(crate) fn fleet_view(&self) -> Option<FleetView> {
        match self {
            Self::File(_) => None,
            Self::Fleet(keeper) => Some(keeper.view()),
        }
    }

    /// The time by which tokens expire and periods begin, in seconds since 1970.
    pub(crate) fn now(&self) -> u64 {
        match self {
            Self::File(_) => unix_seconds(),
            #[cfg(feature = "fleet")]
            Self::Fleet(keeper) => keeper.now(),
        }
    }

    /// Tells of changes from here on.
    pub(crate) fn changes(&self) -> Changes {
        match self {
            Self::File(keeper) => Changes::File(keeper.changes()),
            #[cfg(feature = "fleet")]
            Self::Fleet(keeper) => Changes::Fleet(keeper.news()),
        }
    }

    /// The list as it is now; `None` where there is none, and that in force stays.
    pub(crate) async fn read(&self) -> Result<Option<Arc<AccessList>>> {
        match self {
            Self::File(keeper) => keeper.read().await,
            #[cfg(feature = "fleet")]
            Self::Fleet(keeper) => Ok(Some(keeper.list())),
        }
    }

    /// Whether this user's device cannot be let in from memory: nothing of its volume is here.
    pub(crate) fn must_ask_for(&self, entry: &UserEntry, user: &User) -> bool {
        match self {
            Self::File(_) => {
                let _ = (entry, user);
                false
            }
            #[cfg(feature = "fleet")]
            Self::Fleet(keeper) => keeper.must_ask_for(entry, user),
        }
    }

    /// Looks at the tokens of all of `shown`, and burns them for good before anybody is let in.
    pub(crate) async fn enrol(
        &self,
        shown: Shown,
    ) -> Result<(Vec<AccessAnswer>, Arc<AccessList>), Unanswered> {
        match self {
            Self::File(keeper) => keeper.enrol(shown).await,
            #[cfg(feature = "fleet")]
            Self::Fleet(keeper) => keeper.enrol(shown).await,
        }
    }

    /// What a user may have at this relay, and what of its volume is used.
    pub(crate) fn terms(&self, entry: &UserEntry) -> (UserLimits, Bytes) {
        match self {
            Self::File(keeper) => (entry.limits(), keeper.used(entry)),
            #[cfg(feature = "fleet")]
            Self::Fleet(keeper) => keeper.terms(entry),
        }
    }

    /// Gives a user what it may have from now on.
    pub(crate) fn renew(&self, entry: &UserEntry, user: &User) {
        match self {
            Self::File(_) => user.set_limits(entry.limits()),
            #[cfg(feature = "fleet")]
            Self::Fleet(keeper) => keeper.renew(entry, user),
        }
    }

    /// How often [`count`](Self::count) and [`save`](Self::save) are called.
    pub(crate) fn interval(&self) -> Duration {
        match self {
            Self::File(_) => file::SAVE_INTERVAL,
            #[cfg(feature = "fleet")]
            Self::Fleet(_) => crate::fleet::COUNT_INTERVAL,
        }
    }

    /// Notes what users have used.
    pub(crate) fn count(&self, list: &AccessList, of: impl Fn(&UserName) -> Option<User>) {
        match self {
            Self::File(keeper) => keeper.count(list, of),
            #[cfg(feature = "fleet")]
            Self::Fleet(keeper) => keeper.count(list, of),
        }
    }

    /// Keeps it.
    pub(crate) async fn save(&self, monitor: &RelayMonitor) {
        match self {
            Self::File(keeper) => {
                let _ = monitor;
                keeper.save().await;
            }
            #[cfg(feature = "fleet")]
            Self::Fleet(keeper) => keeper.tell_load(monitor).await,
        }
    }

    /// Keeps it, at the end of the relay.
    pub(crate) fn close(&self) {
        match self {
            Self::File(keeper) => keeper.save_now(),
            #[cfg(feature = "fleet")]
            Self::Fleet(keeper) => keeper.close(),
        }
    }

    /// Keeps what was counted, and leaves that to another process from here on; a fleet's relay
    /// does so only with [its place](Self::leave_place).
    ///
    /// # Errors
    /// The fleet cannot be told now.
    pub(crate) async fn put_down(&self) -> Result<()> {
        match self {
            Self::File(keeper) => {
                keeper.put_down().await;
                Ok(())
            }
            #[cfg(feature = "fleet")]
            Self::Fleet(keeper) => keeper.tell_all().await,
        }
    }

    /// Leaves the relay's place in its fleet to another process of this machine.
    ///
    /// # Errors
    /// The fleet cannot be told what was used until now.
    pub(crate) async fn leave_place(&self) -> Result<()> {
        match self {
            Self::File(_) => Ok(()),
            #[cfg(feature = "fleet")]
            Self::Fleet(keeper) => keeper.leave_place().await,
        }
    }

    /// Has that place, while the process before this one finishes its sessions.
    pub(crate) fn take_place(&self) {
        match self {
            Self::File(_) => {}
            #[cfg(feature = "fleet")]
            Self::Fleet(keeper) => keeper.take_place(false),
        }
    }

    /// Keeps it again: the other process is gone.
    pub(crate) fn take_up(&self) {
        match self {
            Self::File(keeper) => keeper.take_up(),
            #[cfg(feature = "fleet")]
            Self::Fleet(keeper) => keeper.take_place(true),
        }
    }

    /// Waits until the relay's fleet wants it to go down, and says why.
    pub(crate) async fn sent_away(&self) -> String {
        match self {
            Self::File(_) => std::future::pending().await,
            #[cfg(feature = "fleet")]
            Self::Fleet(keeper) => keeper.sent_away().await,
        }
    }
}

impl Changes {
    /// Waits for the next one. Nothing is missed where this is given up and called again.
    pub(crate) async fn changed(&mut self) {
        match self {
            Self::File(changes) => changes.changed().await,
            #[cfg(feature = "fleet")]
            Self::Fleet(news) => {
                if news.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        }
    }
}
