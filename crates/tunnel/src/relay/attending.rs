//! What a client has asked the relay to lead to it, as long as its stream is open.
//!
//! Owns how such a thing is had and given up: who has it already is told, a client that asks again
//! has it once its earlier session is gone, and it ends with the stream, with the grant, or because
//! the client asks for the same in another session and shows no sign of life in this one. What is
//! led is others': ports, routes.

use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tabane_base::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::request::Status;
use crate::stream::Stream;

/// Those who wait for the task of who has it; one more finds nobody.
const MAX_WAITING: usize = 1_024;
/// How long a client has to show that it is there, when it asks for the same in another session.
const SIGN_WAIT: Duration = Duration::from_millis(1_500);
/// How long an earlier session of the same client has for that; longer than it takes itself to
/// find out.
const GONE_WAIT: Duration = Duration::from_secs(2);

/// What the task of who has it is told.
pub(super) enum Knock<E> {
    /// Somebody has come.
    Errand(E),
    /// Another client has asked for some of it, or the same one once more.
    Asked { by_the_same: bool },
}

/// What leads to that task, which ends with the last of them, and who is led there.
pub(super) struct Bell<E> {
    knocks: mpsc::Sender<Knock<E>>,
    pub(super) visits: Arc<Visits>,
}

/// Who is led there, at present and so far.
#[derive(Debug, Default)]
pub(super) struct Visits {
    now: AtomicU64,
    so_far: AtomicU64,
    /// The client is here again without this session: nobody answers those any more who came by it.
    is_forsaken: watch::Sender<bool>,
}

/// One of those, until this is dropped.
pub(super) struct Presence(Arc<Visits>);

/// Something that leads to a client, with what knocks at its task. It is given back before that
/// ends: whoever waits for the end finds it free.
pub(super) struct Held<L, E> {
    lease: L,
    knocks: mpsc::Receiver<Knock<E>>,
    visits: Arc<Visits>,
}

/// Why something is not to be had.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Conflict {
    /// These have some of it, by their numbers.
    With(Vec<u64>),
    /// There are as many as there may be.
    Full,
}

impl<E> Clone for Bell<E> {
    fn clone(&self) -> Self {
        Self {
            knocks: self.knocks.clone(),
            visits: self.visits.clone(),
        }
    }
}

impl<E> Bell<E> {
    /// False where nobody will hear it.
    pub(super) fn ring(&self, errand: E) -> bool {
        self.knocks.try_send(Knock::Errand(errand)).is_ok()
    }
}

impl Visits {
    pub(super) fn begin(self: &Arc<Self>) -> Presence {
        self.now.fetch_add(1, Ordering::Relaxed);
        self.so_far.fetch_add(1, Ordering::Relaxed);
        Presence(self.clone())
    }

    pub(super) fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    /// Those who are there included.
    pub(super) fn so_far(&self) -> u64 {
        self.so_far.load(Ordering::Relaxed)
    }
}

impl Presence {
    /// Ready once nobody answers any more.
    pub(super) async fn forsaken(&self) {
        // Its sender lives as long as this does.
        let _ = self.0.is_forsaken.subscribe().wait_for(|it| *it).await;
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A table that all workers look into.
pub(super) fn lock<T>(table: &Mutex<T>) -> MutexGuard<'_, T> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has `insert` put a new bell into the table, and gives what comes of that. Those in the way are
/// told, of whom `holder` gives the bell, and whether they are the same client's; its own make room
/// once they are gone.
///
/// # Errors
/// Somebody else has it, or there is no room.
pub(super) async fn lease<T, E: 'static, L>(
    table: &Mutex<T>,
    insert: impl Fn(&mut T, Bell<E>) -> Result<L, Conflict>,
    holder: impl Fn(&T, u64) -> Option<(Bell<E>, bool)>,
) -> Result<Held<L, E>, Status> {
    let (sender, knocks) = mpsc::channel(MAX_WAITING);
    let bell = Bell {
        knocks: sender,
        visits: Arc::default(),
    };
    let visits = bell.visits.clone();
    let first = insert(&mut lock(table), bell.clone());
    let leased = match first {
        Err(Conflict::With(others)) => {
            ask(table, &others, holder).await;
            insert(&mut lock(table), bell)
        }
        leased => leased,
    };
    let lease = leased.map_err(|conflict| match conflict {
        Conflict::With(_) => Status::PortTaken,
        Conflict::Full => Status::Limit,
    })?;
    Ok(Held {
        lease,
        knocks,
        visits,
    })
}

async fn ask<T, E: 'static>(
    table: &Mutex<T>,
    others: &[u64],
    holder: impl Fn(&T, u64) -> Option<(Bell<E>, bool)>,
) {
    let mut gone = JoinSet::new();
    for number in others {
        let found = holder(&lock(table), *number);
        let Some((Bell { knocks, .. }, by_the_same)) = found else {
            continue;
        };
        // Who has too much to do for this is there.
        if knocks.try_send(Knock::Asked { by_the_same }).is_ok() && by_the_same {
            gone.spawn_local(async move { knocks.closed().await });
        }
    }
    let _ = timeout(GONE_WAIT, gone.join_all()).await;
}

impl<L, E> Held<L, E> {
    pub(super) const fn lease_mut(&mut self) -> &mut L {
        &mut self.lease
    }

    /// Has `serve` do the errands until the client or those who send them have enough, it is not
    /// granted any more, or the client has vanished.
    pub(super) async fn attend(
        &mut self,
        stream: &mut Stream,
        is_granted: impl Fn() -> bool,
        serve: impl Fn(&Stream, E, &Arc<Visits>),
    ) {
        /// Whoever does not show itself meanwhile is gone.
        async fn at(deadline: Option<Instant>) {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        }
        let mut sign_until: Option<Instant> = None;
        loop {
            let knock = tokio::select! {
                knock = self.knocks.recv() => knock,
                _ = poll_fn(|cx| stream.poll_end(cx)) => return,
                () = at(sign_until) => {
                    sign_until = None;
                    let silent_for = stream.silent_for();
                    if silent_for.is_none_or(|silent_for| silent_for >= SIGN_WAIT) {
                        self.visits.is_forsaken.send_replace(true);
                        return;
                    }
                    continue;
                }
            };
            // What was granted may be so no longer.
            match knock.filter(|_| is_granted()) {
                Some(Knock::Errand(errand)) => serve(stream, errand, &self.visits),
                Some(Knock::Asked { by_the_same }) => {
                    // It answers this, if only by acknowledging it.
                    stream.write_some(&[Status::PortTaken.emit()]);
                    if by_the_same && sign_until.is_none() {
                        sign_until = Some(Instant::now() + SIGN_WAIT);
                    }
                }
                None => return,
            }
        }
    }

    /// The next errand.
    #[cfg(test)]
    pub(super) async fn knock(&mut self) -> Option<Knock<E>> {
        self.knocks.recv().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Says when it is given back.
    struct Probe(Bell<()>, Arc<Mutex<Vec<bool>>>);

    impl Drop for Probe {
        fn drop(&mut self) {
            lock(&self.1).push(self.0.knocks.is_closed());
        }
    }

    #[test]
    fn what_is_given_up_is_free_before_its_task_is_seen_to_end() {
        crate::block_on(async {
            let (table, ends) = (Mutex::new(()), Arc::<Mutex<Vec<bool>>>::default());
            let insert = |(): &mut (), bell: Bell<()>| Ok(Probe(bell, ends.clone()));
            let held = lease(&table, insert, |(), _| None).await;
            drop(held.unwrap());
            assert_eq!(*lock(&ends), [false]);
        })
        .unwrap();
    }

    /// A table of one place.
    type Place = Mutex<Option<(Bell<()>, bool)>>;

    /// Frees it.
    struct Taken<'a>(&'a Place);

    impl Drop for Taken<'_> {
        fn drop(&mut self) {
            *lock(self.0) = None;
        }
    }

    async fn take(place: &Place, by_the_same: bool) -> Result<Held<Taken<'_>, ()>, Status> {
        let insert = |taken: &mut Option<(Bell<()>, bool)>, bell| match taken {
            Some(_) => Err(Conflict::With(vec![0])),
            None => {
                *taken = Some((bell, by_the_same));
                Ok(Taken(place))
            }
        };
        lease(place, insert, |taken, _| taken.clone()).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_waits_for_the_end_of_its_earlier_session_and_no_longer() {
        let body = async {
            for (by_the_same, ends_after, expected, after) in [
                (true, 900, Ok(()), 900),
                (true, 5_000, Err(Status::PortTaken), 2_000),
                (false, 900, Err(Status::PortTaken), 0),
            ] {
                let place = &*Box::leak(Box::new(Place::default()));
                let mut earlier = take(place, by_the_same).await.ok().unwrap();
                let told = tokio::task::spawn_local(async move {
                    let told = earlier.knock().await;
                    tokio::time::sleep(Duration::from_millis(ends_after)).await;
                    drop(earlier);
                    matches!(told, Some(Knock::Asked { by_the_same: told }) if told == by_the_same)
                });
                let begin = Instant::now();
                let later = take(place, by_the_same).await;
                let waited = begin.elapsed().as_millis();
                // Timers go by milliseconds.
                assert!((after..=after + 2).contains(&waited), "{waited} {after}");
                assert_eq!(later.as_ref().map(drop).map_err(|status| *status), expected);
                drop(later);
                assert!(told.await.unwrap(), "it was not told");
            }
        };
        tokio::task::LocalSet::new().run_until(body).await;
    }
}
