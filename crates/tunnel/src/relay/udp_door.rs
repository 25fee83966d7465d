//! A UDP port that leads to a client: a flow for each address that datagrams come from.
//!
//! Owns which flows there are, and how much of what comes waits for their tasks. Each lasts as long
//! as its task, and no longer than the port; who was never answered is forgotten sooner, and gives
//! its place to who comes next where there is no other, so that made-up addresses keep nobody out.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use tabane_base::Duration;
use tabane_linux::answering::{AnsweringSocket, UdpTuple};
use tokio::sync::mpsc;

use super::udp::{IDLE, Outside};
use crate::flow::Flow;

/// Addresses at one port that are spoken with at once.
const MAX_FLOWS: usize = 1_024;
/// Datagrams of one that wait for its task.
const MAX_WAITING: usize = 128;
/// Bytes of memory that they take while they wait, of all flows at all ports of a relay: no flow
/// has more than are left to all others.
const MAX_WAITING_BYTES: usize = 64 << 20;
/// What a datagram takes besides its own bytes: empty ones are not free.
const OVERHEAD: usize = 128;
/// How long a flow may be silent that the client has not answered yet.
const IDLE_UNANSWERED: Duration = Duration::from_secs(10);
/// The longest datagram.
const MAX_DATAGRAM: usize = 65_535;

/// Somebody whose datagrams come to a port.
pub(super) struct UdpVisitor {
    pub(super) from: SocketAddr,
    pub(super) at: SocketAddr,
    tuple: UdpTuple,
    /// Ends with the place at the port.
    datagrams: RefCell<mpsc::Receiver<Datagram>>,
    /// Ends with the port.
    socket: Weak<AnsweringSocket>,
    is_answered: Arc<AtomicBool>,
}

/// Who is spoken with, at most so many at once.
struct Places {
    flows: BTreeMap<UdpTuple, Place>,
    next: u64,
    most: usize,
}

struct Place {
    datagrams: mpsc::Sender<Datagram>,
    /// What waits of them.
    waiting: Waiting,
    is_answered: Arc<AtomicBool>,
    number: u64,
}

/// How much memory what waits takes, in bytes.
#[derive(Clone, Default)]
pub(super) struct Waiting(Arc<AtomicUsize>);

/// What waits for a task, counted until it is dropped.
struct Datagram {
    payload: Vec<u8>,
    counted: [Waiting; 2],
}

/// Takes in what comes, for ever. `call` says who is told of somebody who is new, if anybody may be
/// now; `turn_away` is told of those for whom there is nobody, or no room.
pub(super) async fn attend<T: FnOnce(UdpVisitor)>(
    socket: AnsweringSocket,
    waiting: Waiting,
    call: impl Fn() -> Option<T>,
    turn_away: impl Fn(),
) {
    let socket = Arc::new(socket);
    let mut places = Places::new(MAX_FLOWS);
    let mut buffer = vec![0; MAX_DATAGRAM];
    loop {
        let (len, tuple) = match socket.recv(&mut buffer).await {
            Ok(received) => received,
            // Of an answer that found nobody.
            Err(error) => {
                tracing::trace!(%error, "a visitor's host has spoken");
                continue;
            }
        };
        let datagram = &buffer[..len];
        if let Some(place) = places.flows.get(&tuple)
            && !place.datagrams.is_closed()
        {
            // Beyond what waits it is lost, as in a full queue.
            place.keep(datagram, &waiting);
            continue;
        }
        // Whose turn it is first: looking for room takes longer.
        let told = (tuple.remote.port() != 0).then(&call).flatten();
        let visitor = told.and_then(|tell| Some((tell, places.admit(tuple, &socket)?)));
        let Some((tell, visitor)) = visitor else {
            turn_away();
            continue;
        };
        if let Some(place) = places.flows.get(&tuple) {
            place.keep(datagram, &waiting);
        }
        tell(visitor);
    }
}

impl Place {
    /// Has its task find a datagram. Beyond what may wait it is lost, as in a full queue.
    fn keep(&self, payload: &[u8], all: &Waiting) {
        let Ok(turn) = self.datagrams.try_reserve() else {
            return;
        };
        let memory = payload.len() + OVERHEAD;
        let left = MAX_WAITING_BYTES.saturating_sub(all.bytes() + memory);
        if self.waiting.bytes() + memory <= left {
            turn.send(Datagram::counted(payload, [&self.waiting, all]));
        }
    }
}

impl Waiting {
    fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Datagram {
    fn counted(payload: &[u8], counted: [&Waiting; 2]) -> Self {
        let counted = counted.map(|waiting| {
            waiting
                .0
                .fetch_add(payload.len() + OVERHEAD, Ordering::Relaxed);
            waiting.clone()
        });
        let payload = payload.to_vec();
        Self { payload, counted }
    }
}

impl Drop for Datagram {
    fn drop(&mut self) {
        for Waiting(waiting) in &self.counted {
            waiting.fetch_sub(self.payload.len() + OVERHEAD, Ordering::Relaxed);
        }
    }
}

impl Places {
    fn new(most: usize) -> Self {
        Self {
            flows: BTreeMap::new(),
            next: 0,
            most,
        }
    }

    /// One more, if there is room; of those who were never answered the first makes some.
    fn admit(&mut self, tuple: UdpTuple, socket: &Arc<AnsweringSocket>) -> Option<UdpVisitor> {
        self.flows.retain(|_, place| !place.datagrams.is_closed());
        if self.flows.len() >= self.most {
            let places = self.flows.iter();
            let unanswered = places.filter(|(_, place)| !place.is_answered.load(Ordering::Relaxed));
            let first = unanswered.min_by_key(|(_, place)| place.number);
            let first = first.map(|(tuple, _)| *tuple)?;
            self.flows.remove(&first);
        }
        let (sender, datagrams) = mpsc::channel(MAX_WAITING);
        let is_answered = Arc::new(AtomicBool::new(false));
        let place = Place {
            datagrams: sender,
            waiting: Waiting::default(),
            is_answered: is_answered.clone(),
            number: self.next,
        };
        self.next += 1;
        self.flows.insert(tuple, place);
        let own = socket.local_addr().unwrap_or(tuple.remote);
        let at = tuple.local_ip.unwrap_or_else(|| own.ip().to_canonical());
        Some(UdpVisitor {
            from: tuple.remote,
            at: SocketAddr::new(at, own.port()),
            tuple,
            datagrams: RefCell::new(datagrams),
            socket: Arc::downgrade(socket),
            is_answered,
        })
    }
}

impl Outside for UdpVisitor {
    fn idle(&self) -> Duration {
        match self.is_answered.load(Ordering::Relaxed) {
            true => IDLE,
            false => IDLE_UNANSWERED,
        }
    }

    fn takes(&self, _: &mut Context<'_>) -> bool {
        true
    }

    fn take(&self, payload: &[u8], _: &Flow) {
        self.is_answered.store(true, Ordering::Relaxed);
        if let Some(socket) = self.socket.upgrade() {
            // A socket that is full costs this datagram, as a full queue would.
            let _ = socket.try_answer(payload, self.tuple);
        }
    }

    fn poll_give(&self, flow: &Flow, is_lost: bool, cx: &mut Context<'_>) -> Poll<Option<usize>> {
        let received = self.datagrams.borrow_mut().poll_recv(cx);
        received.map(|datagram| {
            let datagram = datagram?;
            if is_lost {
                return Some(0);
            }
            let sent = flow.send_with(|buffer| {
                let len = datagram.payload.len().min(buffer.len());
                buffer[..len].copy_from_slice(&datagram.payload[..len]);
                Ok(len)
            });
            Some(sent.ok().and_then(Result::ok).unwrap_or(0))
        })
    }

    async fn failed(&self) {
        std::future::pending().await
    }

    fn tell_failure(&self, _: &Flow) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The client takes none of it, and whoever is outside sends on and on.
    #[test]
    fn what_waits_for_tasks_is_bounded_and_leaves_room_for_others() {
        crate::block_on(async {
            let socket = AnsweringSocket::open("127.0.0.1:0".parse().unwrap());
            let socket = Arc::new(socket.unwrap());
            let (mut places, all) = (Places::new(MAX_FLOWS), Waiting::default());
            let mut visitors = Vec::new();
            for port in 1..=32 {
                let tuple = UdpTuple {
                    remote: SocketAddr::from(([192, 0, 2, 1], port)),
                    local_ip: None,
                };
                visitors.extend(places.admit(tuple, &socket));
                let place = &places.flows[&tuple];
                place.keep(&[0; 100], &all);
                let one = 100 + OVERHEAD;
                assert_eq!(place.waiting.bytes(), one, "each has room for something");
                (0..MAX_WAITING).for_each(|_| place.keep(&[0; 65_507], &all));
            }
            let waiting = all.bytes();
            assert!(waiting > MAX_WAITING_BYTES / 2, "{waiting}");
            assert!(waiting <= MAX_WAITING_BYTES, "{waiting}");
            drop((visitors, places));
            assert_eq!(all.bytes(), 0);
        })
        .unwrap();
    }

    #[test]
    fn datagrams_of_nothing_take_room_as_others_do() {
        crate::block_on(async {
            let socket = AnsweringSocket::open("127.0.0.1:0".parse().unwrap());
            let socket = Arc::new(socket.unwrap());
            let (mut places, all) = (Places::new(MAX_FLOWS), Waiting::default());
            let tuple = UdpTuple {
                remote: SocketAddr::from(([192, 0, 2, 1], 1)),
                local_ip: None,
            };
            let _visitor = places.admit(tuple, &socket);
            (0..MAX_WAITING).for_each(|_| places.flows[&tuple].keep(&[], &all));
            assert!(all.bytes() >= MAX_WAITING * size_of::<Datagram>());
            drop(places);
        })
        .unwrap();
    }

    #[test]
    fn who_was_never_answered_makes_room() {
        crate::block_on(async {
            let socket = AnsweringSocket::open("127.0.0.1:0".parse().unwrap());
            let socket = Arc::new(socket.unwrap());
            let mut places = Places::new(2);
            let mut admit = |port| {
                let tuple = UdpTuple {
                    remote: SocketAddr::from(([192, 0, 2, 1], port)),
                    local_ip: None,
                };
                places.admit(tuple, &socket)
            };
            let is_here = |visitor: &UdpVisitor| !visitor.datagrams.borrow().is_closed();
            let (first, second) = (admit(1).unwrap(), admit(2).unwrap());
            first.is_answered.store(true, Ordering::Relaxed);
            let third = admit(3).unwrap();
            assert!(is_here(&first) && !is_here(&second) && is_here(&third));
            third.is_answered.store(true, Ordering::Relaxed);
            assert!(admit(4).is_none(), "those who are spoken with stay");
            drop(first);
            assert!(admit(5).is_some_and(|fifth| is_here(&fifth)));
        })
        .unwrap();
    }
}
