//! The settings' files that make another table, and when one of them is to be read again.
//!
//! A policy that is gone counts only after a moment. What is in the files is others' affair.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::path::PathBuf;

use tabane_base::Duration;
use tabane_linux::{DirectoryWatch, FileEvent};
use tabane_store::{POLICY_FILE_NAME, Store, USAGE_FILE_NAME};
use tokio::time::{Instant, sleep_until};

/// How long the policy may be gone before that counts: editors rename the old file away before they
/// write the new one, and no forbidden link may be used for that moment.
const GONE_PATIENCE: Duration = Duration::from_millis(500);

/// What is to be read again.
pub(super) enum Renewed {
    Policy,
    Usage,
}

pub(super) struct Watched {
    directory: PathBuf,
    policy: Option<DirectoryWatch>,
    usage: Option<DirectoryWatch>,
    /// Since when there is no policy, or a list of it is missing, where that was not told yet.
    gone_at: Option<Instant>,
}

impl Watched {
    pub(super) fn new(store: &Store) -> Self {
        let mut watched = Self {
            directory: store.root().to_owned(),
            policy: None,
            usage: None,
            gone_at: None,
        };
        watched.begin();
        watched
    }

    /// Watches the files if they are not watched yet. `true` where that has begun.
    pub(super) fn begin(&mut self) -> bool {
        if self.policy.is_some() {
            return false;
        }
        let watch = || {
            DirectoryWatch::start(&self.directory).inspect_err(|error| {
                let directory = self.directory.display();
                tracing::debug!("changes of the policy are not noticed: {directory}: {error}");
            })
        };
        (self.policy, self.usage) = (watch().ok(), watch().ok());
        self.policy.is_some()
    }

    /// Waits until a file is to be read, of the policy or one of its `lists`, or the accounts; for
    /// ever, where they cannot be watched.
    pub(super) async fn renewed(&mut self, lists: &BTreeSet<String>) -> Renewed {
        let is_of_policy = |file: &CStr| {
            file == POLICY_FILE_NAME || file.to_str().is_ok_and(|name| lists.contains(name))
        };
        loop {
            tokio::select! {
                news = news(&mut self.policy, is_of_policy) => {
                    self.gone_at = (news == FileEvent::Gone).then(Instant::now);
                    if news == FileEvent::Version {
                        return Renewed::Policy;
                    }
                }
                () = lasts(self.gone_at) => {
                    self.gone_at = None;
                    return Renewed::Policy;
                }
                news = news(&mut self.usage, |file| file == USAGE_FILE_NAME) => {
                    if news == FileEvent::Version {
                        return Renewed::Usage;
                    }
                }
            }
        }
    }
}

async fn news(watch: &mut Option<DirectoryWatch>, is_wanted: impl Fn(&CStr) -> bool) -> FileEvent {
    if let Some(watched) = watch
        && let Ok(news) = watched.news(is_wanted).await
    {
        return news;
    }
    *watch = None;
    std::future::pending().await
}

/// Waits until what is gone has been so for long enough.
async fn lasts(gone_at: Option<Instant>) {
    match gone_at {
        Some(at) => sleep_until(at + GONE_PATIENCE).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tabane_store::{POLICY_FILE, Scratch};
    use tokio::task::yield_now;
    use tokio::time::timeout;

    /// A directory with a policy, and who watches it.
    fn watched() -> (Scratch, PathBuf, Watched) {
        let scratch = Scratch::make();
        let store = Store::locate(Some(scratch.path().to_owned())).unwrap();
        let policy = store.root().join(POLICY_FILE);
        std::fs::write(&policy, "").unwrap();
        let watched = Watched::new(&store);
        (scratch, policy, watched)
    }

    /// What is told before any time passes: the kernel's news take no time of this clock, which
    /// stands while somebody has something to do.
    async fn next(watched: &mut Watched, is_enough: impl Fn(&Watched) -> bool) -> Option<Renewed> {
        let lists = BTreeSet::new();
        while !is_enough(watched) {
            tokio::select! {
                biased;
                renewed = watched.renewed(&lists) => return Some(renewed),
                () = yield_now() => {}
            }
        }
        None
    }

    #[tokio::test(start_paused = true)]
    async fn a_policy_that_is_gone_counts_half_a_second_later() {
        let (_scratch, policy, mut watched) = watched();
        std::fs::remove_file(policy).unwrap();
        assert!(
            next(&mut watched, |it| it.gone_at.is_some())
                .await
                .is_none()
        );
        let (gone_at, lists) = (Instant::now(), BTreeSet::new());
        let renewed = watched.renewed(&lists).await;
        assert!(matches!(renewed, Renewed::Policy));
        assert_eq!(gone_at.elapsed().as_millis(), 500);
        // It is told once.
        let again = timeout(GONE_PATIENCE * 10, watched.renewed(&lists));
        assert!(again.await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_policy_that_an_editor_takes_away_first_is_read_at_once_and_once() {
        let (_scratch, policy, mut watched) = watched();
        std::fs::rename(&policy, policy.with_extension("old")).unwrap();
        assert!(
            next(&mut watched, |it| it.gone_at.is_some())
                .await
                .is_none()
        );
        let later = GONE_PATIENCE - Duration::from_millis(1);
        let lists = BTreeSet::new();
        assert!(timeout(later, watched.renewed(&lists)).await.is_err());
        let back_at = Instant::now();
        std::fs::write(&policy, "").unwrap();
        let renewed = next(&mut watched, |_| false).await;
        assert!(matches!(renewed, Some(Renewed::Policy)));
        assert_eq!(back_at.elapsed(), Duration::ZERO);
        let again = timeout(GONE_PATIENCE * 10, watched.renewed(&lists));
        assert!(again.await.is_err());
    }
}
