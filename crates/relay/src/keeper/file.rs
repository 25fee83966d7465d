//! The list and the counters of a relay by itself, in its state directory.
//!
//! Files are read and written by threads of their own, for the relay's thread carries everybody's
//! packets.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use tabane_base::{Bytes, Duration};
use tabane_core::CloseReason;
use tabane_linux::DirectoryWatch;
use tabane_linux::threads::aside;
use tabane_store::wall_clock::unix_seconds;
use tabane_tunnel::{Seldom, User};

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
    counted: Arc<Counted>,
}

/// What users have used, and the file with that.
struct Counted {
    usage: Mutex<UsageCounters>,
    /// Whoever writes has it for so long: the relay's thread does so only at the end.
    file: Mutex<Written>,
    /// Another process writes them.
    is_put_down: AtomicBool,
}

/// `usage.toml`.
struct Written {
    file: UsageFile,
    /// What is in it; `None` where that is not known.
    usage: Option<UsageCounters>,
}

/// What other processes change in the directory.
pub(crate) struct Changes {
    watch: Option<DirectoryWatch>,
}

impl FileKeeper {
    pub(crate) fn new(state: &RelayState) -> Result<Self> {
        let file = state.usage_file();
        let usage = file.read()?;
        let written = Written {
            file,
            usage: Some(usage.clone()),
        };
        Ok(Self {
            state: state.clone(),
            file: state.access_file(),
            counted: Arc::new(Counted {
                usage: Mutex::new(usage),
                file: Mutex::new(written),
                is_put_down: AtomicBool::new(false),
            }),
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
        let read = aside(move || file.read_if_any()).await;
        read.context("the list of clients is not read").flatten()
    }

    /// One write burns the tokens of all.
    pub(super) async fn enrol(
        &self,
        shown: Shown,
    ) -> Result<(Vec<AccessAnswer>, Arc<AccessList>), Unanswered> {
        let file = self.file.clone();
        let decided = aside(move || {
            file.update_and_read(|list| {
                let now = unix_seconds();
                let decide = |(key, token): &(_, Option<Vec<u8>>)| {
                    list.authorise(*key, token.as_deref(), now)
                };
                shown.iter().map(decide).collect::<Vec<_>>()
            })
        });
        let decided = decided.await.map_err(anyhow::Error::from);
        match decided.flatten() {
            Ok(decided) => Ok(decided),
            Err(error) => {
                static TOLD: Seldom = Seldom::of(10, "new clients are refused");
                if TOLD.is_due() {
                    tracing::error!("new clients are refused: {error:#}");
                }
                Err(Unanswered(CloseReason::Overloaded))
            }
        }
    }

    pub(super) fn used(&self, entry: &UserEntry) -> Bytes {
        lock(&self.counted.usage).of(entry, unix_seconds())
    }

    /// Brings the counters up to date, and begins anew with those whose day or month is over.
    pub(super) fn count(&self, list: &AccessList, of: impl Fn(&UserName) -> Option<User>) {
        let now = unix_seconds();
        let mut usage = lock(&self.counted.usage);
        usage.retain(|name| list.users().iter().any(|user| user.name.as_str() == name));
        for entry in list.users() {
            if let Some(user) = of(&entry.name) {
                if usage.is_over(entry, now) {
                    user.set_volume_used(Bytes::ZERO);
                }
                usage.set(entry, user.usage().volume, now);
            }
        }
    }

    pub(super) async fn save(&self) {
        self.with_file(Counted::save).await;
    }

    pub(super) fn save_now(&self) {
        self.counted.save(&mut lock(&self.counted.file));
    }

    pub(super) async fn put_down(&self) {
        let put_down = |counted: &Counted, written: &mut Written| {
            counted.save(written);
            // From here on it has what the other process says.
            written.usage = None;
            counted.is_put_down.store(true, Ordering::Relaxed);
        };
        self.with_file(put_down).await;
    }

    pub(super) fn take_up(&self) {
        self.counted.is_put_down.store(false, Ordering::Relaxed);
    }

    /// Has a thread for files do this, once those before it have done theirs.
    async fn with_file(&self, f: impl FnOnce(&Counted, &mut Written) + Send + 'static) {
        let counted = self.counted.clone();
        let done = aside(move || f(&counted, &mut lock(&counted.file))).await;
        if let Err(error) = done {
            tracing::error!("what users have used is not on disk: {error}");
        }
    }
}

impl Counted {
    /// Writes what is counted by now, if that is not in the file.
    fn save(&self, written: &mut Written) {
        let now = lock(&self.usage).clone();
        if self.is_put_down.load(Ordering::Relaxed) || written.usage.as_ref() == Some(&now) {
            return;
        }
        match written.file.write(&now) {
            Ok(()) => written.usage = Some(now),
            // Counting goes on; the next time tries again.
            Err(error) => tracing::error!("what users have used is not on disk: {error:#}"),
        }
    }
}

fn lock<T>(it: &Mutex<T>) -> MutexGuard<'_, T> {
    it.lock().unwrap_or_else(PoisonError::into_inner)
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

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::os::unix::fs::OpenOptionsExt;
    use std::pin::{Pin, pin};
    use std::task::{Context, Waker};
    use std::time::Instant;

    use tabane_store::Scratch;
    use tabane_tunnel::block_on;

    use super::*;

    /// A keeper, and the list of its one user, ann.
    struct Kept {
        state: RelayState,
        keeper: FileKeeper,
        list: AccessList,
        ann: User,
    }

    impl Kept {
        fn start(scratch: &Scratch) -> Self {
            let state = RelayState::locate(Some(scratch.path().to_owned())).unwrap();
            let entry = UserEntry {
                volume: Some("1GB/month".parse().unwrap()),
                ..UserEntry::new("ann".parse().unwrap(), 0)
            };
            let ann = User::new("ann", entry.limits(), Bytes::ZERO);
            let mut list = AccessList::default();
            list.add_user(entry).unwrap();
            Self {
                keeper: FileKeeper::new(&state).unwrap(),
                state,
                list,
                ann,
            }
        }

        fn count(&self, bytes: u64) {
            self.ann.set_volume_used(Bytes::new(bytes));
            self.keeper.count(&self.list, |_| Some(self.ann.clone()));
        }

        /// What the next process would begin with.
        fn on_disk(&self) -> u64 {
            let usage = self.state.usage_file().read().unwrap();
            usage.of(&self.list.users()[0], unix_seconds()).get()
        }
    }

    /// Begins it, and says whether it is still under way.
    fn is_begun(it: Pin<&mut impl Future>) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        it.poll(&mut cx).is_pending()
    }

    #[test]
    fn what_is_counted_while_counters_are_written_is_written_next() {
        let scratch = Scratch::make();
        let kept = Kept::start(&scratch);
        block_on(async {
            kept.count(1);
            let mut saving = pin!(kept.keeper.save());
            let is_under_way = is_begun(saving.as_mut());
            kept.count(2);
            if is_under_way {
                saving.await;
            }
            kept.keeper.save().await;
            assert_eq!(kept.on_disk(), 2);
        })
        .unwrap();
    }

    /// A file that nobody writes to yet: whoever reads it waits.
    #[test]
    fn a_disk_that_hangs_holds_up_whoever_asked_and_not_the_thread_of_packets() {
        const COUNTS: u64 = 1_000;
        let scratch = Scratch::make();
        let kept = Kept::start(&scratch);
        let access = kept.state.root().join(AccessFile::NAME.to_str().unwrap());
        nix::unistd::mkfifo(&access, nix::sys::stat::Mode::S_IRWXU).unwrap();
        block_on(async {
            let mut reading = pin!(kept.keeper.read());
            assert!(is_begun(reading.as_mut()));
            let mut open = OpenOptions::new();
            open.write(true).custom_flags(nix::libc::O_NONBLOCK);
            // Succeeds as soon as the thread for files stands there.
            let disk = loop {
                match open.open(&access) {
                    Ok(disk) => break disk,
                    Err(_) => std::thread::yield_now(),
                }
            };
            let count = |bytes| {
                let began_at = Instant::now();
                kept.count(bytes);
                assert!(is_begun(reading.as_mut()));
                began_at.elapsed()
            };
            let mut times: Vec<_> = (1..=COUNTS).map(count).collect();
            // On a busy machine this thread has to wait for a processor now and then.
            times.sort_unstable();
            let most = times[times.len() * 99 / 100];
            assert!(most < std::time::Duration::from_millis(5), "{most:?}");
            kept.keeper.save().await;
            assert_eq!(kept.on_disk(), COUNTS);
            drop(disk);
            assert!(reading.await.unwrap().is_some(), "an empty list");
        })
        .unwrap();
    }

    #[test]
    fn what_was_put_down_is_left_to_the_other_process_until_that_is_gone() {
        let scratch = Scratch::make();
        let kept = Kept::start(&scratch);
        block_on(async {
            kept.count(1);
            let (mut saving, mut putting_down) =
                (pin!(kept.keeper.save()), pin!(kept.keeper.put_down()));
            {
                // Both wait for the file, and find what was counted meanwhile.
                let _writing = lock(&kept.keeper.counted.file);
                assert!(is_begun(saving.as_mut()));
                assert!(is_begun(putting_down.as_mut()));
                kept.count(2);
            }
            tokio::join!(saving, putting_down);
            assert_eq!(kept.on_disk(), 2);
            let others = lock(&kept.keeper.counted.usage).clone();
            kept.count(3);
            kept.keeper.save().await;
            kept.keeper.save_now();
            assert_eq!(kept.on_disk(), 2, "the other process's");
            kept.count(2);
            kept.state
                .usage_file()
                .write(&UsageCounters::default())
                .unwrap();
            kept.keeper.take_up();
            kept.keeper.save_now();
            assert_eq!(kept.on_disk(), 2, "whatever the other has left there");
            assert_eq!(kept.state.usage_file().read().unwrap(), others);
        })
        .unwrap();
    }
}
