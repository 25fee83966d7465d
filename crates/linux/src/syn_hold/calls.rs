//! Connection requests under way, and the programs that wait for their answers.
//!
//! Owns which request is whose, and when one counts as given up. How packets reach the program's
//! kernel is the affair of a [`Door`].

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use tabane_base::Duration;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::packet::{Syn, SynRefusal};

/// Requests under way; beyond that they are dropped, as by a full backlog, and repeated.
const MAX_CALLS: usize = 4_096;
/// A request that is not repeated for so long was given up: the first repetition comes after one
/// second with Linux (RFC 6298 §2), after three with some others.
const MIN_PATIENCE: Duration = Duration::from_secs(5);
/// The same as a multiple of the time between the last two; senders double it each time.
const PATIENCE_FACTOR: u32 = 3;

/// The way to the kernel of the program that waits.
pub(crate) trait Door {
    /// Lets the request go on to our listener.
    fn release(&self, syn: &Syn) -> io::Result<()>;

    /// Hands over a packet that answers a request.
    fn answer(&self, packet: &[u8]) -> io::Result<()>;

    /// In whose name a destination is called unreachable.
    fn router(&self, syn: &Syn) -> IpAddr;
}

/// The requests under way at one listener, or several.
pub(crate) struct Calls {
    door: Box<dyn Door>,
    calls: RefCell<BTreeMap<(SocketAddr, SocketAddr), Call>>,
    next_serial: Cell<u64>,
}

/// One request under way.
struct Call {
    serial: u64,
    syn: Syn,
    patience: Patience,
    is_released: bool,
    accepted: oneshot::Sender<TcpStream>,
}

/// How long a sender is believed to wait still.
#[derive(Clone, Copy, Debug)]
struct Patience {
    seen_at: Instant,
    gap: Duration,
}

/// A program that waits in `connect()`. Dropped, it goes on waiting: its next repetition is a new
/// call, and its own time-out ends it at last.
pub struct HeldCall {
    calls: Rc<Calls>,
    key: (SocketAddr, SocketAddr),
    serial: u64,
    accepted: oneshot::Receiver<TcpStream>,
}

impl Calls {
    /// None yet.
    pub(crate) fn new(door: Box<dyn Door>) -> Rc<Self> {
        Rc::new(Self {
            door,
            calls: RefCell::default(),
            next_serial: Cell::new(0),
        })
    }

    /// A request has come; `None` for one that is under way already.
    pub(crate) fn on_syn(self: &Rc<Self>, syn: Syn, now: Instant) -> Option<HeldCall> {
        let mut calls = self.calls.borrow_mut();
        let key = (syn.from, syn.to);
        if let Some(call) = calls.get_mut(&key)
            && call.syn.sequence() == syn.sequence()
        {
            call.patience.on_repetition(now);
            call.syn = syn;
            if call.is_released {
                // The first was lost: the backlog was full.
                self.release(&call.syn);
            }
            return None;
        }
        if calls.len() >= MAX_CALLS {
            return None;
        }
        let serial = self.next_serial.get();
        self.next_serial.set(serial + 1);
        let (sender, accepted) = oneshot::channel();
        let call = Call {
            serial,
            syn,
            patience: Patience::new(now),
            is_released: false,
            accepted: sender,
        };
        calls.insert(key, call);
        Some(HeldCall {
            calls: self.clone(),
            key,
            serial,
            accepted,
        })
    }

    /// Forgets who has given up; says when the next may.
    pub(crate) fn expire(&self, now: Instant) -> Option<Instant> {
        let mut calls = self.calls.borrow_mut();
        calls.retain(|_, call| call.patience.ends_at() > now);
        calls.values().map(|call| call.patience.ends_at()).min()
    }

    /// Gives a connection to who waits for it by `key`; gives it back where nobody does.
    pub(crate) fn deliver(
        &self,
        stream: TcpStream,
        key: (SocketAddr, SocketAddr),
    ) -> Option<TcpStream> {
        match self.calls.borrow_mut().remove(&key) {
            Some(call) => call.accepted.send(stream).err(),
            None => Some(stream),
        }
    }

    fn release(&self, syn: &Syn) {
        // Lost like any packet: the request is repeated.
        if let Err(error) = self.door.release(syn) {
            tracing::debug!(%error, "cannot let a connection request go on");
        }
    }
}

impl Patience {
    fn new(seen_at: Instant) -> Self {
        let gap = Duration::ZERO;
        Self { seen_at, gap }
    }

    fn on_repetition(&mut self, now: Instant) {
        self.gap = now - self.seen_at;
        self.seen_at = now;
    }

    fn ends_at(self) -> Instant {
        self.seen_at + MIN_PATIENCE.max(self.gap * PATIENCE_FACTOR)
    }
}

impl HeldCall {
    /// The program's end.
    #[must_use]
    pub fn from(&self) -> SocketAddr {
        self.key.0
    }

    /// Where its packets go.
    #[must_use]
    pub fn to(&self) -> SocketAddr {
        self.key.1
    }

    /// Waits until the program has given up.
    pub async fn gone(&mut self) {
        // Nothing is accepted before `accept` is called.
        let _ = (&mut self.accepted).await;
    }

    /// Lets `connect()` succeed. `None` where the program has given up meanwhile.
    pub async fn accept(mut self) -> Option<TcpStream> {
        if let Some(call) = self.calls.calls.borrow_mut().get_mut(&self.key)
            && call.serial == self.serial
        {
            call.is_released = true;
            self.calls.release(&call.syn);
        }
        (&mut self.accepted).await.ok()
    }

    /// Lets `connect()` fail.
    pub fn refuse(self, why: SynRefusal) {
        let calls = self.calls.calls.borrow();
        let Some(call) = calls.get(&self.key) else {
            return;
        };
        let router = self.calls.door.router(&call.syn);
        let answer = match why {
            SynRefusal::Refused => call.syn.reset(),
            SynRefusal::NetworkUnreachable => call.syn.unreachable(router, true),
            SynRefusal::HostUnreachable => call.syn.unreachable(router, false),
        };
        if let Err(error) = self.calls.door.answer(&answer) {
            tracing::debug!(%error, "cannot answer a connection request");
        }
    }
}

impl Drop for HeldCall {
    fn drop(&mut self) {
        let mut calls = self.calls.calls.borrow_mut();
        if calls
            .get(&self.key)
            .is_some_and(|call| call.serial == self.serial)
        {
            calls.remove(&self.key);
        }
    }
}

impl fmt::Debug for HeldCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HeldCall").field(&self.key).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sender_that_doubles_its_time_is_waited_for() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut patience = Patience::new(start);
        assert!(patience.ends_at() > at(3));
        for (repeated, next) in [(1, 3), (3, 7), (7, 15), (15, 31), (31, 63), (63, 127)] {
            patience.on_repetition(at(repeated));
            assert!(patience.ends_at() > at(next), "{repeated}");
        }
        assert!(patience.ends_at() <= at(63 + 96));
    }
}
