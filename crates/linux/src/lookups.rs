//! Name lookups of all clients of a relay, in fair parts.
//!
//! A lookup is the system's own (getaddrinfo(3): its files, its resolver, its order), which holds a
//! thread until it ends, whoever still waits for it. A client that asks for names that nobody
//! answers for must not keep those threads from others: a client has no more of them at once than
//! are left to everybody else (the dynamic thresholds of Choudhury and Hahne, as memory is shared
//! among sessions), and the rest of its questions wait for its own to end. Owns the threads and
//! whose turn it is; how long anybody waits is the caller's to say.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tabane_core::PublicKey;
use tabane_linux::threads::aside;
use tokio::sync::oneshot;

/// Lookups under way at once: half of the threads for what blocks, so that files never
/// wait for names. One client alone has half of that.
const MOST: usize = 256;

/// A client, as its lookups are counted.
type Asker = [u8; 32];

/// Looks a name up; blocks until it is found or is not.
type Resolve = dyn Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync;

/// The lookups of one relay.
pub(crate) struct Lookups {
    turns: Arc<Mutex<Turns>>,
    resolve: Arc<Resolve>,
}

/// Who looks up and who waits.
#[derive(Default)]
struct Turns {
    running: usize,
    askers: BTreeMap<Asker, Lane>,
    /// Those of whom somebody waits, in turn.
    order: VecDeque<Asker>,
}

/// One client's part.
#[derive(Default)]
struct Lane {
    running: usize,
    waiting: VecDeque<oneshot::Sender<Place>>,
}

/// Leave to look something up; the next one's when it goes.
struct Place {
    turns: Arc<Mutex<Turns>>,
    asker: Asker,
}

impl Default for Lookups {
    fn default() -> Self {
        Self::by(|name, port| Ok((name, port).to_socket_addrs()?.collect()))
    }
}

impl Lookups {
    fn by(
        resolve: impl Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static,
    ) -> Self {
        Self {
            turns: Arc::default(),
            resolve: Arc::new(resolve),
        }
    }

    /// Looks `name` up on behalf of a client. Whoever stops waiting gives up its turn, but not what
    /// has begun.
    ///
    /// # Errors
    /// The name was not found.
    pub(crate) async fn find(
        &self,
        client: PublicKey,
        name: &str,
        port: u16,
    ) -> io::Result<Vec<SocketAddr>> {
        let place = self.place(client.0).await?;
        let (resolve, name) = (self.resolve.clone(), name.to_owned());
        let job = move || {
            let found = resolve(&name, port);
            drop(place);
            found
        };
        aside(job).await?
    }

    async fn place(&self, asker: Asker) -> io::Result<Place> {
        let (tell, told) = oneshot::channel();
        {
            let mut turns = lock(&self.turns);
            let lane = turns.askers.entry(asker).or_default();
            lane.waiting.push_back(tell);
            if lane.waiting.len() == 1 {
                turns.order.push_back(asker);
            }
        }
        grant(&self.turns);
        told.await.map_err(io::Error::other)
    }
}

fn lock(turns: &Mutex<Turns>) -> MutexGuard<'_, Turns> {
    turns.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives out the places that are free.
fn grant(turns: &Arc<Mutex<Turns>>) {
    loop {
        let Some((asker, waiter)) = lock(turns).next() else {
            return;
        };
        let turns = turns.clone();
        // Whoever has stopped waiting gives its place back at once, which is why nothing is locked.
        drop(waiter.send(Place { turns, asker }));
    }
}

impl Turns {
    /// The next who may look something up; counts as doing so.
    fn next(&mut self) -> Option<(Asker, oneshot::Sender<Place>)> {
        let left = MOST - self.running;
        for _ in 0..self.order.len() {
            let asker = self.order.pop_front()?;
            let lane = self.askers.get_mut(&asker)?;
            // Whoever came first stops waiting first.
            while lane.waiting.front().is_some_and(oneshot::Sender::is_closed) {
                lane.waiting.pop_front();
            }
            if lane.running < left
                && let Some(waiter) = lane.waiting.pop_front()
            {
                lane.running += 1;
                self.running += 1;
                if !lane.waiting.is_empty() {
                    self.order.push_back(asker);
                }
                return Some((asker, waiter));
            }
            if lane.waiting.is_empty() {
                self.forget_idle(asker);
            } else {
                self.order.push_back(asker);
            }
        }
        None
    }

    fn forget_idle(&mut self, asker: Asker) {
        let is_idle = |lane: &Lane| lane.running == 0 && lane.waiting.is_empty();
        if self.askers.get(&asker).is_some_and(is_idle) {
            self.askers.remove(&asker);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        {
            let mut turns = lock(&self.turns);
            turns.running -= 1;
            if let Some(lane) = turns.askers.get_mut(&self.asker) {
                lane.running -= 1;
            }
            turns.forget_idle(self.asker);
        }
        grant(&self.turns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;
    use std::sync::Condvar;
    use std::time::{Duration, Instant};
    use tokio::time::timeout;

    const EVIL: PublicKey = PublicKey([1; 32]);
    const OTHER: PublicKey = PublicKey([2; 32]);

    /// Names that nobody answers for, until they do.
    #[derive(Default)]
    struct Tarpit {
        stuck: Mutex<usize>,
        opened: Condvar,
        is_open: Mutex<bool>,
    }

    impl Tarpit {
        fn lookups(self: &Arc<Self>) -> Lookups {
            let tarpit = self.clone();
            Lookups::by(move |name, port| {
                if name.ends_with(".tarpit.example") {
                    *tarpit.stuck.lock().unwrap() += 1;
                    let is_shut = |open: &mut bool| !*open;
                    let open = tarpit.is_open.lock().unwrap();
                    drop(tarpit.opened.wait_while(open, is_shut).unwrap());
                    *tarpit.stuck.lock().unwrap() -= 1;
                }
                Ok(vec![SocketAddr::from(([192, 0, 2, 1], port))])
            })
        }

        fn open(&self) {
            *self.is_open.lock().unwrap() = true;
            self.opened.notify_all();
        }
    }

    #[test]
    fn names_that_nobody_answers_for_keep_no_other_client_waiting() {
        const QUESTIONS: usize = 1_000;
        let tarpit = Arc::new(Tarpit::default());
        let lookups = Rc::new(tarpit.lookups());
        crate::block_on(async {
            let ask = |n: usize| {
                let lookups = lookups.clone();
                tokio::task::spawn_local(async move {
                    lookups
                        .find(EVIL, &format!("x{n}.tarpit.example"), 80)
                        .await
                })
            };
            let mut asked: Vec<_> = (0..QUESTIONS).map(ask).collect();
            while *tarpit.stuck.lock().unwrap() < MOST / 2 {
                tokio::task::yield_now().await;
            }
            let patience = Duration::from_secs(5);
            let (mut others, mut files) = (Vec::new(), Vec::new());
            for _ in 0..QUESTIONS {
                let asked_at = Instant::now();
                let found = timeout(patience, lookups.find(OTHER, "a.example", 80)).await;
                assert!(found.expect("no thread is left").is_ok());
                others.push(asked_at.elapsed());
                // Files are read by the same runtime, the list of clients among them.
                let asked_at = Instant::now();
                let file = timeout(patience, aside(|| ())).await;
                assert!(file.expect("no thread is left").is_ok());
                files.push(asked_at.elapsed());
            }
            // One in the middle: on a busy machine any one of them may be late.
            let middle = |mut waits: Vec<Duration>| {
                waits.sort_unstable();
                (waits[waits.len() / 2], waits[waits.len() - 1])
            };
            let (others, files) = (middle(others), middle(files));
            println!("others wait {others:?}, files {files:?}: in the middle and at most");
            assert!(others.0 <= Duration::from_millis(50), "{others:?}");
            assert!(files.0 <= Duration::from_secs(1), "{files:?}");
            assert_eq!(*tarpit.stuck.lock().unwrap(), MOST / 2);

            // Those who go leave nothing behind, and those who stay get their answer.
            asked.drain(QUESTIONS / 2..).for_each(|task| task.abort());
            tarpit.open();
            for task in asked {
                assert!(task.await.expect("not aborted").is_ok());
            }
        })
        .unwrap();
        let turns = lock(&lookups.turns);
        assert_eq!((turns.running, turns.askers.len()), (0, 0));
    }

    /// As when a relay goes down.
    #[test]
    fn what_nobody_waits_for_holds_up_no_end() {
        let tarpit = Arc::new(Tarpit::default());
        let lookups = tarpit.lookups();
        crate::block_on(async {
            let wait = std::time::Duration::from_millis(10);
            let found = timeout(wait, lookups.find(EVIL, "x.tarpit.example", 80)).await;
            assert!(found.is_err());
        })
        .unwrap();
        tarpit.open();
    }
}
