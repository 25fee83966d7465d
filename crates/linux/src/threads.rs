//! Threads: those that have a work of their own, and those that take what blocks (files, names)
//! off a thread that carries packets.
//!
//! Where the kernel gives no more of them (a user's limit, a control group's), std's and tokio's
//! own ways to begin one panic, which ends a daemon. Here that is an error for whoever asked.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};
use std::time::Duration;

use tokio::sync::oneshot;

/// Threads of one pool; what comes then waits for one of them.
const MOST: usize = 512;
/// How long one waits for more work. The last one stays, so that there is one whatever the limit
/// says later.
const PATIENCE: Duration = Duration::from_secs(10);

/// Begins a thread.
///
/// # Errors
/// The kernel gives none; says what helps.
pub fn begin<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let begun = Builder::new().name(name.to_owned()).spawn(work);
    begun.map_err(|error| refused(&error))
}

/// The same for one that ends with its scope.
///
/// # Errors
/// As [`begin`].
pub fn begin_within<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, T>> {
    let begun = Builder::new().spawn_scoped(scope, work);
    begun.map_err(|error| refused(&error))
}

fn refused(error: &io::Error) -> io::Error {
    let text = format!(
        "no further thread may begin: {error}; raise the limit of processes (`ulimit -u`, a \
         service's TasksMax=)"
    );
    io::Error::new(error.kind(), text)
}

/// Has what blocks done beside this thread: begins at once, and goes on whoever waits for it. The
/// threads are of the thread that asks, as its namespaces are.
///
/// # Errors
/// There is no thread, and none may begin.
#[must_use = "what it comes to is lost"]
pub fn aside<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> impl Future<Output = io::Result<T>> + Send {
    let (tell, told) = oneshot::channel();
    // Whoever has stopped waiting does not want it.
    let put = POOL.with(|pool| put(&pool.0, Box::new(move || drop(tell.send(work())))));
    async move {
        put?;
        told.await.map_err(|_| io::Error::other("its thread broke"))
    }
}

/// The addresses of a name, by the system's own means.
///
/// # Errors
/// It has none, or nobody can be asked.
pub async fn lookup_host((name, port): (&str, u16)) -> io::Result<std::vec::IntoIter<SocketAddr>> {
    let name = name.to_owned();
    aside(move || (name.as_str(), port).to_socket_addrs()).await?
}

type Work = Box<dyn FnOnce() + Send>;

/// The threads that do what one thread asks for.
#[derive(Default)]
struct Pool {
    state: Mutex<State>,
    is_another: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Work>,
    threads: usize,
    idle: usize,
    is_over: bool,
}

/// What ends with the thread that asks.
struct Owner(Arc<Pool>);

thread_local! {
    static POOL: Owner = Owner(Arc::default());
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.lock().is_over = true;
        self.0.is_another.notify_all();
    }
}

fn put(pool: &Arc<Pool>, work: Work) -> io::Result<()> {
    let mut state = pool.lock();
    state.waiting.push_back(work);
    if state.idle >= state.waiting.len() {
        pool.is_another.notify_one();
        return Ok(());
    }
    if state.threads < MOST {
        let theirs = pool.clone();
        match begin("aside", move || theirs.work()) {
            Ok(_) => state.threads += 1,
            Err(error) if state.threads == 0 => {
                state.waiting.pop_back();
                return Err(error);
            }
            // One of those that are there takes it.
            Err(_) => pool.is_another.notify_one(),
        }
    }
    Ok(())
}

impl Pool {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread's life.
    fn work(&self) {
        let mut state = self.lock();
        loop {
            while let Some(work) = state.waiting.pop_front() {
                drop(state);
                work();
                state = self.lock();
            }
            if state.is_over {
                return;
            }
            state.idle += 1;
            state = self.wait(state);
            state.idle -= 1;
            if state.waiting.is_empty() && state.threads > 1 {
                state.threads -= 1;
                return;
            }
        }
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let nothing = |state: &mut State| state.waiting.is_empty() && !state.is_over;
        if state.threads == 1 {
            let waited = self.is_another.wait_while(state, nothing);
            return waited.unwrap_or_else(PoisonError::into_inner);
        }
        let waited = self.is_another.wait_timeout_while(state, PATIENCE, nothing);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(future)
    }

    #[test]
    fn work_begins_unasked_is_done_side_by_side_and_its_threads_are_used_again() {
        block_on(async {
            let barrier = Arc::new(std::sync::Barrier::new(3));
            let (one, other) = (barrier.clone(), barrier.clone());
            // Neither ends without the other, nor without this thread, which waits for neither yet.
            let (one, other) = (aside(move || one.wait()), aside(move || other.wait()));
            barrier.wait();
            one.await.unwrap();
            other.await.unwrap();
            let of_pool = |which: fn(&State) -> usize| POOL.with(|pool| which(&pool.0.lock()));
            for n in 0..100 {
                // An answer comes before its thread has nothing to do again.
                while of_pool(|state| state.idle) < of_pool(|state| state.threads) {
                    tokio::task::yield_now().await;
                }
                assert_eq!(aside(move || n).await.unwrap(), n);
            }
            assert_eq!(of_pool(|state| state.threads), 2);
        });
    }

    #[test]
    fn names_and_literal_addresses_are_found() {
        block_on(async {
            let found = lookup_host(("2001:db8::1", 80)).await.unwrap();
            assert_eq!(
                found.map(|it| it.to_string()).collect::<Vec<_>>(),
                ["[2001:db8::1]:80"]
            );
            assert!(
                lookup_host(("localhost", 1))
                    .await
                    .unwrap()
                    .all(|it| it.ip().is_loopback())
            );
            assert!(lookup_host(("no name", 1)).await.is_err());
        });
    }
}
