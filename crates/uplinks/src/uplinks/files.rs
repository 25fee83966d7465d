//! The thread that reads and writes `policy.toml`, `usage.toml` and `networks.toml`, so that no
//! other waits for a disk.
//!
//! What is to be done stands on a board of fixed size: flags, and sums by link. A disk that hangs
//! makes the sums larger, and nothing longer.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result};
use tabane_base::{Bytes, Duration};
use tabane_linux::threads;
use tabane_policy::{Policy, Usage};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use tabane_store::{
    NETWORKS_FILE, Network, NetworkMemory, Store, USAGE_FILE, atomic_file, read_policy, read_usage,
    wall_clock::today,
};

/// How often what was counted is written down: what a crash loses.
const SAVE_INTERVAL: Duration = Duration::from_secs(2);
/// How long the end of the process waits for the last of it.
const LAST_WRITE_TIME: Duration = Duration::from_secs(2);

/// By link, what it carried.
pub(super) type Carried = BTreeMap<String, Bytes>;

/// By network, what is to be kept of it, or that nothing is.
type Notes = BTreeMap<Network, Option<String>>;

/// What the thread has to say.
pub(super) enum News {
    /// The policy file as it is now.
    Policy(Result<Policy>),
    /// The accounts as they are now, what other processes counted included; `written` is what was
    /// added to them from here.
    Usage { usage: Usage, written: Carried },
}

/// The door to the thread; it ends with this, after what was counted is written.
pub(super) struct Files {
    board: Arc<Board>,
    /// Closed when the thread has ended.
    ended: Receiver<()>,
}

#[derive(Default)]
struct Board {
    wishes: Mutex<Wishes>,
    changed: Condvar,
}

/// What is to be done.
#[derive(Default)]
struct Wishes {
    reads_policy: bool,
    reads_usage: bool,
    carried: Carried,
    is_urgent: bool,
    networks: Notes,
    is_over: bool,
}

/// What the thread works with.
struct Clerk {
    directory: PathBuf,
    board: Arc<Board>,
    news: UnboundedSender<News>,
    saved_at: Option<Instant>,
    /// Dropped with the thread.
    _ended: Sender<()>,
}

impl Files {
    /// Starts the thread. The second is what it has to say: no more than was asked.
    pub(super) fn start(store: &Store) -> Result<(Self, UnboundedReceiver<News>)> {
        let board = Arc::new(Board::default());
        let (news, heard) = unbounded_channel();
        let (end, ended) = channel();
        let clerk = Clerk {
            directory: store.root().to_owned(),
            board: board.clone(),
            news,
            saved_at: None,
            _ended: end,
        };
        threads::begin("tabane-files", move || clerk.work())
            .context("cannot start the thread for files")?;
        Ok((Self { board, ended }, heard))
    }

    /// The policy file may be another.
    pub(super) fn read_policy(&self) {
        self.board.wish(|wishes| wishes.reads_policy = true);
    }

    /// Another process may have counted.
    pub(super) fn read_usage(&self) {
        self.board.wish(|wishes| wishes.reads_usage = true);
    }

    /// A link has carried so much more; written at once where it `is_urgent`.
    pub(super) fn carried(&self, link: &str, bytes: Bytes, is_urgent: bool) {
        self.board.wish(|wishes| {
            *wishes.carried.entry(link.to_owned()).or_default() += bytes;
            wishes.is_urgent |= is_urgent;
        });
    }

    /// What is to be kept of a network; nothing, where it is to be forgotten.
    pub(super) fn note(&self, network: Network, word: Option<String>) {
        self.board
            .wish(|wishes| drop(wishes.networks.insert(network, word)));
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        self.board.wish(|wishes| wishes.is_over = true);
        if self.ended.recv_timeout(LAST_WRITE_TIME)
            == Err(std::sync::mpsc::RecvTimeoutError::Timeout)
        {
            tracing::warn!("what links have carried is not kept: the disk does not answer");
        }
    }
}

impl Board {
    fn lock(&self) -> MutexGuard<'_, Wishes> {
        // Plain values: whoever broke off left none half written.
        self.wishes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wish(&self, wish: impl FnOnce(&mut Wishes)) {
        wish(&mut self.lock());
        self.changed.notify_one();
    }

    /// Waits until there is something to do; what was carried waits until `save_at`.
    fn take(&self, save_at: Option<Instant>) -> Wishes {
        let mut wishes = self.lock();
        loop {
            let wait = save_at.map(|at| at.saturating_duration_since(Instant::now()));
            let wait = wait.filter(|wait| !wait.is_zero());
            let has_carried = !wishes.carried.is_empty();
            let may_save = wishes.is_urgent || wishes.is_over || wait.is_none();
            let has_reads = wishes.reads_policy || wishes.reads_usage;
            let has_notes = !wishes.networks.is_empty();
            if wishes.is_over || has_reads || has_notes || has_carried && may_save {
                let mut taken = std::mem::take(&mut *wishes);
                if !may_save {
                    wishes.carried = std::mem::take(&mut taken.carried);
                }
                return taken;
            }
            wishes = match wait.filter(|_| has_carried) {
                Some(wait) => {
                    let woken = self.changed.wait_timeout(wishes, wait);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
                None => {
                    let woken = self.changed.wait(wishes);
                    woken.unwrap_or_else(PoisonError::into_inner)
                }
            };
        }
    }
}

impl Clerk {
    fn work(mut self) {
        loop {
            let wishes = self.board.take(self.saved_at.map(|at| at + SAVE_INTERVAL));
            if wishes.reads_policy {
                self.tell(News::Policy(read_policy(&self.directory)));
            }
            if !wishes.carried.is_empty() {
                self.save(wishes.carried);
            } else if wishes.reads_usage {
                self.read_usage();
            }
            if let Err(error) = keep(&self.directory, wishes.networks) {
                tracing::warn!("what networks have taught is not kept: {error:#}");
            }
            if wishes.is_over {
                return;
            }
        }
    }

    fn save(&mut self, carried: Carried) {
        self.saved_at = Some(Instant::now());
        match add(&self.directory, &carried) {
            Ok(usage) => self.tell(News::Usage {
                usage,
                written: carried,
            }),
            Err(error) => {
                tracing::warn!("what links have carried is not kept: {error:#}");
                let mut wishes = self.board.lock();
                for (link, bytes) in carried {
                    *wishes.carried.entry(link).or_default() += bytes;
                }
            }
        }
    }

    fn read_usage(&self) {
        match read_usage(&self.directory.join(USAGE_FILE)) {
            Ok(usage) => self.tell(News::Usage {
                usage,
                written: Carried::new(),
            }),
            Err(error) => tracing::warn!("{error:#}"),
        }
    }

    fn tell(&self, news: News) {
        // Nobody listens any more at the end.
        let _ = self.news.send(news);
    }
}

/// Adds to the accounts what was carried, together with what other processes have counted.
fn add(directory: &Path, carried: &Carried) -> Result<Usage> {
    let path = directory.join(USAGE_FILE);
    let _lock = locked(&path)?;
    let mut usage = read_usage(&path)?;
    for (link, bytes) in carried {
        usage.add(link, today(), *bytes);
    }
    atomic_file::replace(&path, usage.to_toml().as_bytes(), atomic_file::PUBLIC)?;
    Ok(usage)
}

/// Keeps other processes from a file until it is dropped.
fn locked(path: &Path) -> Result<File> {
    let lock = File::create(path.with_extension("lock"));
    let lock = lock.with_context(|| format!("cannot lock {}", path.display()))?;
    lock.lock()?;
    Ok(lock)
}

/// Writes down what is to be kept of networks, beside what other processes have. A damaged file is
/// replaced.
fn keep(directory: &Path, notes: Notes) -> Result<()> {
    if notes.is_empty() {
        return Ok(());
    }
    let _lock = locked(&directory.join(NETWORKS_FILE))?;
    let mut memory = NetworkMemory::read(directory).unwrap_or_default();
    let mut is_news = false;
    for (network, word) in notes {
        is_news |= memory.note(network, word.as_deref(), today());
    }
    match is_news {
        true => memory.write(directory),
        false => Ok(()),
    }
}
