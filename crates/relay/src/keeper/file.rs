//! The list and the counters of a relay by itself, in its state directory.
//!
//! Files are read and written by threads of their own, for the relay's thread carries everybody's
//! packets.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use anyhow::{Context, Result};
use tabane_base::{Bytes, Duration};
use tabane_core::CloseReason;
use tabane_linux::DirectoryWatch;
use tabane_store::wall_clock::unix_seconds;
use tabane_tunnel::User;
use tokio::task::spawn_blocking;

use super::{Shown, Unanswered};
use crate::access::{AccessAnswer, AccessFile, AccessList, UserEntry, UserName};
use crate::state::RelayState;
use crate::usage::{UsageCounters, UsageFile};

/// How often counters are written: what a crash loses.
pub(super) const SAVE_INTERVAL: Duration = Duration::from_secs(10);

/// Keeps them in files.
pub(crate) struct FileKeeper {
    state: RelayState,
    file: AccessFile,
    usage: RefCell<UsageCounters>,
    /// The counters are not on disk as they are.
    is_unsaved: Cell<bool>,
    /// Another process writes them.
    is_put_down: Cell<bool>,
    usage_file: UsageFile,
}

/// What other processes change in the directory.
pub(crate) struct Changes {
    watch: Option<DirectoryWatch>,
}

impl FileKeeper {
    pub(crate) fn new(state: &RelayState) -> Result<Self> {
        let usage_file = state.usage_file();
        Ok(Self {
            state: state.clone(),
            file: state.access_file(),
            usage: RefCell::new(usage_file.read()?),
            is_unsaved: Cell::new(false),
            is_put_down: Cell::new(false),
            usage_file,
        })
    }

    pub(super) fn open(&self) -> Result<Arc<AccessList>> {
        let list = self.file.read_if_any()?;
        Ok(list.unwrap_or_default())
    }

    pub(super) fn changes(&self) -> Changes {
        let watch = DirectoryWatch::start(self.state.root())
            .inspect_err(|error| tracing::error!(%error, "changes take effect at a restart only"));
        Changes { watch: watch.ok() }
    }

    pub(super) async fn read(&self) -> Result<Option<Arc<AccessList>>> {
        let file = self.file.clone();
        let read = spawn_blocking(move || file.read_if_any()).await;
        read.context("the thread for files broke").flatten()
    }

    /// One write burns the tokens of all.
    pub(super) async fn enrol(
        &self,
        shown: Shown,
    ) -> Result<(Vec<AccessAnswer>, Arc<AccessList>), Unanswered> {
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
        let decided = decided.await.context("the thread for files broke");
        match decided.flatten() {
            Ok(decided) => Ok(decided),
            Err(error) => {
                tracing::error!("new clients are refused: {error:#}");
                Err(Unanswered(CloseReason::Overloaded))
            }
        }
    }

    pub(super) fn used(&self, entry: &UserEntry) -> Bytes {
        self.usage.borrow().of(entry, unix_seconds())
    }

    /// Brings the counters up to date, and begins anew with those whose day or month is over.
    pub(super) fn count(&self, list: &AccessList, of: impl Fn(&UserName) -> Option<User>) {
        let now = unix_seconds();
        let mut usage = self.usage.borrow_mut();
        let before = usage.clone();
        usage.retain(|name| list.users().iter().any(|user| user.name.as_str() == name));
        for entry in list.users() {
            if let Some(user) = of(&entry.name) {
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

    pub(super) async fn save(&self) {
        if self.is_unsaved.get() && !self.is_put_down.get() {
            let (file, usage) = (self.usage_file.clone(), self.usage.borrow().clone());
            let written = spawn_blocking(move || file.write(&usage)).await;
            self.note_written(written.context("the thread for files broke").flatten());
        }
    }

    pub(super) fn save_now(&self) {
        if self.is_unsaved.get() && !self.is_put_down.get() {
            self.note_written(self.usage_file.write(&self.usage.borrow()));
        }
    }

    pub(super) async fn put_down(&self) {
        self.save().await;
        self.is_put_down.set(true);
    }

    pub(super) fn take_up(&self) {
        self.is_put_down.set(false);
    }

    fn note_written(&self, written: Result<()>) {
        match written {
            Ok(()) => self.is_unsaved.set(false),
            // Counting goes on; the next time tries again.
            Err(error) => tracing::error!("what users have used is not on disk: {error:#}"),
        }
    }
}

impl Changes {
    pub(super) async fn changed(&mut self) {
        let changed = match &self.watch {
            Some(watch) => watch.changed(AccessFile::NAME).await,
            None => std::future::pending().await,
        };
        if let Err(error) = changed {
            tracing::error!(%error, "changes take effect at a restart only");
            self.watch = None;
        }
    }
}
