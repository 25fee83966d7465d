//! What a relay's own thread and its fleet's thread say to each other.

use std::collections::BTreeMap;
use std::sync::Arc;

use tabane_base::Bytes;
use tabane_control::Fleet;
use tabane_fleet::Allotment;
use tabane_store::UsageError;
use tokio::sync::oneshot;

use crate::access::{AccessAnswer, AccessList, UserName};
use crate::etcd::FleetAddress;
use crate::keeper::Shown;

/// Of which fleet a relay is to be.
#[derive(Debug, Clone)]
pub struct FleetOrder {
    /// Where its etcd is.
    pub etcd: FleetAddress,
    /// What the relay is called there.
    pub name: String,
    /// Where it stands; may be empty.
    pub region: String,
}

/// Whether a relay may be called `name` and stand in `region`.
///
/// # Errors
/// Which of them is none.
pub fn check_fleet_words(name: &str, region: &str) -> Result<(), UsageError> {
    if !tabane_fleet::is_name(name) {
        return Err(UsageError::new(format!(
            "'{name}' is no name for a relay: letters, digits and -_. (--name gives another)"
        )));
    }
    match region.len() <= 32 && region.chars().all(|c| c.is_ascii_graphic()) {
        true => Ok(()),
        false => Err(UsageError::new(format!(
            "'{region}' is no region: a word of at most 32 letters"
        ))),
    }
}

/// What the fleet's thread last said.
#[derive(Debug, Clone, Default)]
pub(crate) struct News {
    pub(super) stage: Stage,
    pub(super) list: Arc<AccessList>,
    /// What this relay holds of users' volumes.
    pub(super) holdings: BTreeMap<UserName, Allotment>,
    /// Of whose volumes more may be lent, and from how much used on it should be asked for.
    pub(super) ask_from: BTreeMap<UserName, Bytes>,
    /// Seconds that the fleet's clock is ahead of this machine's.
    pub(super) ahead_s: i64,
    /// Why etcd is away, while it is.
    pub(super) away: Option<String>,
    /// Why this relay is to go down.
    pub(super) sent_away: Option<String>,
}

/// How far the relay is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum Stage {
    /// Nothing is known yet; what is waited for.
    #[default]
    Starting,
    Waiting(String),
    Serving,
    /// It cannot be; why.
    Failed(String),
}

/// What the relay asks of its fleet's thread.
pub(super) enum Order {
    /// To decide about newcomers, and to lend what their users need.
    Enrol {
        shown: Shown,
        answer: oneshot::Sender<Result<Vec<AccessAnswer>, String>>,
    },
    /// What users have used of what was lent.
    Used(Vec<Wish>),
    /// How busy the relay is.
    Load { sessions: u64, carried_bytes: u64 },
    /// To have etcd know what was used until now; with it, to leave this relay's place to another
    /// process.
    Tell {
        leaves: bool,
        answer: oneshot::Sender<Result<(), String>>,
    },
    /// To have that place, alone or beside a process that finishes its sessions.
    Take { alone: bool },
    /// To say how the fleet is.
    Report { answer: oneshot::Sender<Fleet> },
    /// To give everything back, and end.
    Close,
    /// To end as a process does that is killed.
    #[cfg(test)]
    Die,
}

/// What one user has used of the volume that this relay holds.
#[derive(Debug, Clone)]
pub(super) struct Wish {
    pub(super) user: UserName,
    /// The day or month it was counted in.
    pub(super) period: String,
    pub(super) used: Bytes,
    pub(super) sessions: usize,
}
