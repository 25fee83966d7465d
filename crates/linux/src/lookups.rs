//! Name lookups on behalf of others (clients of a relay, friends of who lends a link), in fair
//! parts.
//!
//! A lookup is the system's own (getaddrinfo(3): its files, its resolver, its order), which holds a
//! thread until it ends, whoever still waits for it. A client that asks for names that nobody
//! answers for must not keep those threads from others: a party has no more of them at once than
//! are left to everybody else (the dynamic thresholds of Choudhury and Hahne, as memory is shared
//! among sessions), and the rest of its questions wait for its own to end. Owns whose turn it is;
//! how long anybody waits is the caller's to say.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::threads::aside;

/// Lookups under way at once: half of the threads for what blocks, so that files never
/// wait for names. One party alone has half of that.
const MOST: usize = 256;

/// Looks a name up; blocks until it is found or is not.
type Resolve = dyn Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync;

/// The lookups of one program, by party.
pub struct Lookups<K: Ord + Copy> {
    turns: Arc<Mutex<Turns<K>>>,
    resolve: Arc<Resolve>,
}

/// Who looks up and who waits.
struct Turns<K: Ord + Copy> {
    running: usize,
    parties: BTreeMap<K, Lane<K>>,
    /// Those of whom somebody waits, in turn.
    order: VecDeque<K>,
}

/// One party's part.
struct Lane<K: Ord + Copy> {
    running: usize,
    waiting: VecDeque<oneshot::Sender<Place<K>>>,
}

/// Leave to look something up; the next one's when it goes.
struct Place<K: Ord + Copy> {
    turns: Arc<Mutex<Turns<K>>>,
    party: K,
}

impl<K: Ord + Copy> Default for Turns<K> {
    fn default() -> Self {
        Self {
            running: 0,
            parties: BTreeMap::new(),
            order: VecDeque::new(),
        }
    }
}

impl<K: Ord + Copy> Default for Lane<K> {
    fn default() -> Self {
        Self {
            running: 0,
            waiting: VecDeque::new(),
        }
    }
}

impl<K: Ord + Copy + Send + 'static> Default for Lookups<K> {
    fn default() -> Self {
        Self::by(|name, port| Ok((name, port).to_socket_addrs()?.collect()))
    }
}

impl<K: Ord + Copy + Send + 'static> Lookups<K> {
    /// By another resolver than the system's, which may block.
    pub fn by(
        resolve: impl Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static,
    ) -> Self {
        Self {
            turns: Arc::default(),
            resolve: Arc::new(resolve),
        }
    }

    /// Looks `name` up on behalf of somebody. Whoever stops waiting gives up its turn, but not what
    /// has begun.
    ///
    /// # Errors
    /// The name was not found.
    pub async fn find(&self, party: K, name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let place = self.place(party).await?;
        let (resolve, name) = (self.resolve.clone(), name.to_owned());
        let job = move || {
            let found = resolve(&name, port);
            drop(place);
            found
        };
        aside(job).await?
    }

    async fn place(&self, party: K) -> io::Result<Place<K>> {
        let (tell, told) = oneshot::channel();
        {
            let mut turns = lock(&self.turns);
            let lane = turns.parties.entry(party).or_default();
            lane.waiting.push_back(tell);
            if lane.waiting.len() == 1 {
                turns.order.push_back(party);
            }
        }
        grant(&self.turns);
        told.await.map_err(io::Error::other)
    }
}

fn lock<K: Ord + Copy>(turns: &Mutex<Turns<K>>) -> MutexGuard<'_, Turns<K>> {
    turns.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives out the places that are free.
fn grant<K: Ord + Copy>(turns: &Arc<Mutex<Turns<K>>>) {
    loop {
        let Some((party, waiter)) = lock(turns).next() else {
            return;
        };
        let turns = turns.clone();
        // Whoever has stopped waiting gives its place back at once, which is why nothing is locked.
        drop(waiter.send(Place { turns, party }));
    }
}

impl<K: Ord + Copy> Turns<K> {
    /// The next who may look something up; counts as doing so.
    fn next(&mut self) -> Option<(K, oneshot::Sender<Place<K>>)> {
        let left = MOST - self.running;
        for _ in 0..self.order.len() {
            let party = self.order.pop_front()?;
            let lane = self.parties.get_mut(&party)?;
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
                    self.order.push_back(party);
                }
                return Some((party, waiter));
            }
            if lane.waiting.is_empty() {
                self.forget_idle(party);
            } else {
                self.order.push_back(party);
            }
        }
        None
    }

    fn forget_idle(&mut self, party: K) {
        let is_idle = |lane: &Lane<K>| lane.running == 0 && lane.waiting.is_empty();
        if self.parties.get(&party).is_some_and(is_idle) {
            self.parties.remove(&party);
        }
    }
}

impl<K: Ord + Copy> Drop for Place<K> {
    fn drop(&mut self) {
        {
            let mut turns = lock(&self.turns);
            turns.running -= 1;
            if let Some(lane) = turns.parties.get_mut(&self.party) {
                lane.running -= 1;
            }
            turns.forget_idle(self.party);
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

    const EVIL: u8 = 1;
    const OTHER: u8 = 2;

    /// Names that nobody answers for, until they do.
    #[derive(Default)]
    struct Tarpit {
        stuck: Mutex<usize>,
        opened: Condvar,
        is_open: Mutex<bool>,
    }

    impl Tarpit {
        fn lookups(self: &Arc<Self>) -> Lookups<u8> {
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

    /// As the threads of a relay, or of who lends a link, do.
    fn block_on<T>(work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build().unwrap();
        let done = runtime.block_on(tokio::task::LocalSet::new().run_until(work));
        runtime.shutdown_background();
        done
    }

    #[test]
    fn names_that_nobody_answers_for_keep_no_other_client_waiting() {
        const QUESTIONS: usize = 1_000;
        let tarpit = Arc::new(Tarpit::default());
        let lookups = Rc::new(tarpit.lookups());
        block_on(async {
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
        });
        let turns = lock(&lookups.turns);
        assert_eq!((turns.running, turns.parties.len()), (0, 0));
    }

    /// As when a relay goes down.
    #[test]
    fn what_nobody_waits_for_holds_up_no_end() {
        let tarpit = Arc::new(Tarpit::default());
        let lookups = tarpit.lookups();
        block_on(async {
            let wait = std::time::Duration::from_millis(10);
            let found = timeout(wait, lookups.find(EVIL, "x.tarpit.example", 80)).await;
            assert!(found.is_err());
        });
        tarpit.open();
    }
}
