//! The workers of a relay: threads that each do what a relay of one thread does.
//!
//! Owns the threads, how one has another do something, and the stages that all go through
//! together. A session belongs to one worker from its first packet to its end; nothing of it is
//! seen by another. What one wants of another is a job: a closure that is run by the other's loop,
//! between its sessions' events. Worker 0 is the thread that the relay was made on.

use std::num::NonZeroU8;
use std::sync::Arc;
use std::thread::JoinHandle;

use aws_lc_rs::digest::{SHA256, digest};
use tabane_base::Duration;
use tabane_core::{Endpoint, Identity, ServerConfig, SessionConfig, Steering};
use tabane_linux::threads::{self, aside};
use tokio::sync::{mpsc, oneshot, watch};

use super::{Relay, RelayError, Shared};
use crate::block_on;
use crate::monitor::HostMonitor;

/// What one worker has another do.
pub(super) type Job = Box<dyn FnOnce(&mut Relay) + Send>;

/// Why a relay comes to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Parting {
    /// It goes down: clients had better go elsewhere.
    Down,
    /// Another process takes what is new, at the same addresses.
    Succeeded,
}

/// Where all workers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// Sockets are being opened.
    Opening,
    Serving,
    /// Nobody is let in any more; busy sessions have so long.
    Draining(Parting, Duration),
    /// They have no time left.
    Hurried,
    /// The relay is gone, without a word.
    Gone,
}

/// The way to every worker.
pub(super) struct Crew {
    jobs: Vec<mpsc::UnboundedSender<Job>>,
    stage: watch::Sender<Stage>,
    /// Every worker but the first has a receiver of it, until it ends.
    working: watch::Sender<()>,
    /// How many workers have not drained.
    undrained: watch::Sender<usize>,
}

/// What a worker begins with.
pub(super) struct Seat {
    pub(super) number: usize,
    pub(super) shared: Arc<Shared>,
    pub(super) jobs: mpsc::UnboundedReceiver<Job>,
    pub(super) endpoint: EndpointParts,
    pub(super) monitor: HostMonitor,
}

/// What the endpoints of all workers are made of.
#[derive(Clone)]
pub(super) struct EndpointParts {
    pub(super) identity: Identity,
    pub(super) session: SessionConfig,
    pub(super) server: ServerConfig,
    pub(super) seed: [u8; 32],
}

/// The threads beside worker 0. They are gone when this is.
#[derive(Default)]
pub(super) struct Threads {
    crew: Option<Arc<Shared>>,
    handles: Vec<JoinHandle<()>>,
}

impl Crew {
    /// A way to each of so many, with the other ends.
    pub(super) fn new(workers: NonZeroU8) -> (Self, Vec<mpsc::UnboundedReceiver<Job>>) {
        let ways = (0..workers.get()).map(|_| mpsc::unbounded_channel());
        let (jobs, ends) = ways.unzip();
        let crew = Self {
            jobs,
            stage: watch::Sender::new(Stage::Opening),
            working: watch::Sender::new(()),
            undrained: watch::Sender::new(usize::from(workers.get())),
        };
        (crew, ends)
    }

    pub(super) fn len(&self) -> usize {
        self.jobs.len()
    }

    /// Has a worker do something, unless it is gone.
    pub(super) fn tell(&self, worker: usize, job: impl FnOnce(&mut Relay) + Send + 'static) {
        if let Some(jobs) = self.jobs.get(worker) {
            // One that is gone has nothing left to do it with.
            let _ = jobs.send(Box::new(job));
        }
    }

    /// Has all workers but `own` do something.
    pub(super) fn tell_others(
        &self,
        own: usize,
        job: impl Fn(&mut Relay) + Clone + Send + 'static,
    ) {
        for worker in (0..self.len()).filter(|worker| *worker != own) {
            self.tell(worker, job.clone());
        }
    }

    /// What a worker says to a question; `None` once it is gone.
    pub(super) async fn ask<R: Send + 'static>(
        &self,
        worker: usize,
        question: impl FnOnce(&mut Relay) -> R + Send + 'static,
    ) -> Option<R> {
        let (tell, told) = oneshot::channel();
        self.tell(worker, move |relay| {
            // Whoever asked may have gone.
            let _ = tell.send(question(relay));
        });
        told.await.ok()
    }

    /// The same, before anything is served, by a thread that has nothing else to do.
    pub(super) fn ask_and_wait<R: Send + 'static>(
        &self,
        worker: usize,
        question: impl FnOnce(&mut Relay) -> R + Send + 'static,
    ) -> Option<R> {
        let (tell, told) = std::sync::mpsc::channel();
        self.tell(worker, move |relay| {
            let _ = tell.send(question(relay));
        });
        told.recv().ok()
    }

    pub(super) fn watch(&self) -> watch::Receiver<Stage> {
        self.stage.subscribe()
    }

    /// All go on to this stage, unless they are further.
    pub(super) fn advance(&self, to: Stage) {
        self.stage.send_if_modified(|stage| {
            let is_further = *stage < to;
            if is_further {
                *stage = to;
            }
            is_further
        });
    }

    /// Whether another process takes what is new.
    pub(super) fn is_succeeded(&self) -> bool {
        matches!(*self.stage.borrow(), Stage::Draining(Parting::Succeeded, _))
    }

    /// Counts a worker as drained, and waits until all are.
    pub(super) async fn drained(&self) {
        self.undrained.send_modify(|left| *left -= 1);
        // It ends with the crew alone, which is here.
        let _ = self.undrained.subscribe().wait_for(|left| *left == 0).await;
    }

    /// Waits until the other workers have come to their end.
    pub(super) async fn ended(&self) {
        self.working.closed().await;
    }
}

/// Waits for a stage, and gives the one that is reached.
pub(super) async fn reached(stage: &mut watch::Receiver<Stage>, wanted: Stage) -> Stage {
    match stage.wait_for(|stage| *stage >= wanted).await {
        Ok(stage) => *stage,
        Err(_) => Stage::Gone,
    }
}

impl EndpointParts {
    /// One worker's endpoint, with its part of what there may be at once.
    pub(super) fn endpoint(
        &self,
        workers: usize,
        number: usize,
        is_odd: bool,
    ) -> Result<(Endpoint, Steering), RelayError> {
        let mut server = self.server.clone();
        let (all, own) = (u8::try_from(workers), u8::try_from(number));
        if let (Ok(all), Ok(own)) = (all, own) {
            server.steering = Steering::new(all, own, is_odd);
        }
        let seed = match number {
            0 => self.seed,
            _ => nth_seed(&self.seed, number),
        };
        let server = share(server, workers);
        let steering = server.steering;
        let (identity, session) = (self.identity.clone(), self.session.clone());
        let endpoint = Endpoint::server(identity, session, server, seed)?;
        Ok((endpoint, steering))
    }
}

/// What is random is steered evenly, so each may have its part.
fn share(server: ServerConfig, workers: usize) -> ServerConfig {
    use tabane_core::RetryPolicy;
    ServerConfig {
        max_sessions: server.max_sessions.div_ceil(workers),
        max_handshakes: server.max_handshakes.div_ceil(workers),
        retry: match server.retry {
            RetryPolicy::Always => RetryPolicy::Always,
            RetryPolicy::UnderLoad(most) => RetryPolicy::UnderLoad(most.div_ceil(workers)),
        },
        ..server
    }
}

/// Names on the wire are drawn from it, and no two workers may draw the same.
fn nth_seed(seed: &[u8; 32], number: usize) -> [u8; 32] {
    let mut text = seed.to_vec();
    text.extend_from_slice(&number.to_be_bytes());
    let hash = digest(&SHA256, &text);
    let mut seed = [0; 32];
    seed.copy_from_slice(hash.as_ref());
    seed
}

impl Threads {
    /// Starts a thread for each seat.
    ///
    /// # Errors
    /// One could not begin; the others end with this.
    pub(super) fn start(shared: &Arc<Shared>, seats: Vec<Seat>) -> Result<Self, RelayError> {
        let mut threads = Self {
            crew: Some(shared.clone()),
            handles: Vec::new(),
        };
        for seat in seats {
            let (stage, working) = (shared.crew.watch(), shared.crew.working.subscribe());
            let name = format!("worker {}", seat.number);
            let (tell, told) = std::sync::mpsc::channel();
            let body = move || {
                let refused = tell.clone();
                if let Err(error) = block_on(work(seat, stage, tell)) {
                    let _ = refused.send(Err(RelayError::Runtime(error)));
                }
                drop(working);
            };
            threads
                .handles
                .push(threads::begin(&name, body).map_err(RelayError::Runtime)?);
            match told.recv() {
                Ok(begun) => begun?,
                Err(gone) => return Err(RelayError::Runtime(std::io::Error::other(gone))),
            }
        }
        Ok(threads)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if let Some(shared) = &self.crew {
            shared.crew.advance(Stage::Gone);
        }
        for handle in self.handles.drain(..) {
            if handle.join().is_err() {
                tracing::error!("a worker panicked");
            }
        }
    }
}

/// A worker's life.
async fn work(
    seat: Seat,
    stage: watch::Receiver<Stage>,
    begun: std::sync::mpsc::Sender<Result<(), RelayError>>,
) {
    match Relay::of_seat(seat) {
        Ok(relay) => {
            // From here on there is a thread for names, whatever the limit says later.
            if let Err(error) = aside(|| ()).await {
                return drop(begun.send(Err(RelayError::Runtime(error))));
            }
            // Whoever waits for it is the relay, which is there.
            let _ = begun.send(Ok(()));
            relay.work(stage).await;
        }
        Err(error) => drop(begun.send(Err(error))),
    }
}
