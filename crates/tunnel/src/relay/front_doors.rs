//! The ports by which visitors come to clients: who is called when somebody is at one.
//!
//! Owns what attends the ports of all exposures: one is opened with the first that has it and
//! closed with the last. Whoever comes is handed to the holder's task, at the pace that its
//! turnstile allows; at a port of several names, once the visitor has said which it wants. What is
//! too much waits in the kernel, whose queue has an end, or is reset, and is counted.
//!
//! All workers of a relay have the same doors: a port is attended by the worker that opened it, and
//! visitors are handed to the holder's, wherever that is.

use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use socket2::{Domain, SockRef, Socket, Type};
use tabane_base::{Duration, Protocol};
use tabane_core::{Admitted, Lobby, PublicKey};
use tabane_linux::answering::AnsweringSocket;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until};

use super::attending::{self, Held, lock};
use super::exposures::{Called, Claimant, Exposures, Place, places};
use super::open_ports::OpenPorts;
use super::udp_door::{self, UdpVisitor, Waiting};
use super::visitor::Visitor;
use crate::request::{PortClaim, Status};
use crate::target::HostName;

/// Visitors who wait in the kernel for their turn: as many as one session may have. Beyond, the
/// kernel goes over to SYN cookies, and one whose last segment of the handshake finds the queue
/// full is connected without our knowing: where the server speaks first, it waits for ever.
const BACKLOG: i32 = 2_048;
/// Visitors of one port who have not said which name they want, and how many may begin in a second.
const MAX_NAMELESS: usize = 256;
const MAX_BEGUN: usize = 1_000;
/// After a failure to accept, which is want of descriptors as a rule.
const PAUSE: Duration = Duration::from_millis(100);
/// Who comes, as the holder's task is told; whoever finds no room there is reset.
pub(super) enum Arrival {
    Visitor(Visitor),
    Datagrams(UdpVisitor),
}

type Bell = attending::Bell<Arrival>;

/// All of them.
pub(super) struct FrontDoors {
    exposures: Mutex<Exposures<Bell>>,
    ports: OpenPorts,
    /// Of the relay's host, where it listens.
    local: IpAddr,
    /// Where the relay takes in TLS itself: names may be had there, and no whole port.
    own_ports: Vec<u16>,
    /// Datagrams of visitors that wait for tasks, at all ports.
    waiting: Waiting,
    /// Visitors who were sent away without being asked about.
    turned_away: AtomicU64,
}

/// Ports that a client has, until this is dropped.
pub(super) struct Lease {
    doors: Arc<FrontDoors>,
    number: u64,
}

/// What leads to a client at one moment.
#[derive(Clone, Debug)]
pub struct ExposureSnapshot {
    /// The ports.
    pub claim: PortClaim,
    /// The name at them; `None`: any.
    pub name: Option<HostName>,
    /// The client.
    pub client: PublicKey,
    /// Visitors that the client was asked about and who are here.
    pub visitors: u64,
    /// The same so far.
    pub visitors_so_far: u64,
}

impl FrontDoors {
    pub(super) fn new(local: IpAddr, own_ports: Vec<u16>) -> Arc<Self> {
        Arc::new(Self {
            exposures: Mutex::default(),
            ports: OpenPorts::default(),
            local,
            own_ports,
            waiting: Waiting::default(),
            turned_away: AtomicU64::new(0),
        })
    }

    fn exposures(&self) -> MutexGuard<'_, Exposures<Bell>> {
        lock(&self.exposures)
    }

    /// Leads to a client what comes there, from now on.
    ///
    /// # Errors
    /// Somebody else has it, or the host does not let us.
    pub(super) async fn lease(
        self: &Arc<Self>,
        claim: PortClaim,
        name: Option<&HostName>,
        claimant: Claimant<'_>,
    ) -> Result<Held<Lease, Arrival>, Status> {
        let insert = |exposures: &mut Exposures<Bell>, bell| {
            let number = exposures.insert((claim, name), claimant, bell, Instant::now())?;
            let doors = self.clone();
            Ok(Lease { doors, number })
        };
        let holder = |exposures: &Exposures<Bell>, number| {
            let exposed = exposures.get(number)?;
            Some((exposed.holder.clone(), exposed.key == claimant.key))
        };
        let held = attending::lease(&self.exposures, insert, holder).await?;
        let is_wanted = |place: &Place| name.is_none() || !self.own_ports.contains(&place.1);
        let wanted = places(claim).filter(is_wanted);
        self.ports
            .open(wanted, |place| self.attended(place))
            .await?;
        Ok(held)
    }

    fn attended(self: &Arc<Self>, place: Place) -> io::Result<JoinHandle<()>> {
        let local = SocketAddr::new(self.local, place.1);
        let doors = self.clone();
        Ok(match place.0 {
            Protocol::Tcp => {
                let listener = listen(local)?;
                tokio::task::spawn_local(doors.attend(place, listener))
            }
            Protocol::Udp => {
                let socket = AnsweringSocket::open(local)?;
                let (told, waiting) = (doors.clone(), self.waiting.clone());
                let call = move || told.call_for_datagrams(place);
                let turn_away = move || doors.turn_away();
                tokio::task::spawn_local(udp_door::attend(socket, waiting, call, turn_away))
            }
        })
    }

    /// Takes in whoever comes, for ever.
    async fn attend(self: Arc<Self>, place: Place, listener: TcpListener) {
        let lobby = Rc::new(RefCell::new(Lobby::new(MAX_NAMELESS, MAX_BEGUN)));
        let mut readings = JoinSet::new();
        let opened_at = Instant::now();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted.and_then(Visitor::new),
                Some(_) = readings.join_next() => continue,
            };
            let visitor = match accepted {
                Ok(visitor) => visitor,
                Err(error) => {
                    tracing::debug!(%error, "cannot accept");
                    sleep(PAUSE).await;
                    continue;
                }
            };
            match self.whom(place).await {
                Called::Holder(bell) => self.ring(&bell, Arrival::Visitor(visitor)),
                Called::ByName => {
                    let now = tabane_base::Instant::EPOCH + opened_at.elapsed();
                    let from = visitor.from.ip();
                    let begin = |number| {
                        let reading = self.clone().read_name(place, visitor);
                        let lobby = lobby.clone();
                        readings.spawn_local(async move {
                            reading.await;
                            lobby.borrow_mut().leave(number);
                        })
                    };
                    let admitted = lobby.borrow_mut().admit(now, from, begin);
                    match admitted {
                        Admitted::Yes => {}
                        Admitted::For(displaced) => displaced.abort(),
                        Admitted::No => self.turn_away(),
                    }
                }
                Called::Nobody | Called::At(_) => {}
            }
        }
    }

    /// Whom somebody at a port is for, once that one may be called.
    async fn whom(&self, place: Place) -> Called<Bell> {
        loop {
            let called = self.exposures().call(place, Instant::now());
            match called {
                Called::At(at) => sleep_until(at).await,
                called => return called,
            }
        }
    }

    /// Who is told of somebody's datagrams; what would have to wait is lost.
    fn call_for_datagrams(
        self: &Arc<Self>,
        place: Place,
    ) -> Option<impl FnOnce(UdpVisitor) + use<>> {
        let called = self.exposures().call(place, Instant::now());
        let Called::Holder(bell) = called else {
            return None;
        };
        let doors = self.clone();
        Some(move |visitor| doors.ring(&bell, Arrival::Datagrams(visitor)))
    }

    async fn read_name(self: Arc<Self>, place: Place, visitor: Visitor) {
        if self.lead_by_name(place, visitor).await.is_some() {
            self.turn_away();
        }
    }

    /// Leads somebody to whoever has the name that is asked for; given back where nobody has it.
    async fn lead_by_name(&self, place: Place, mut visitor: Visitor) -> Option<Visitor> {
        let Some(name) = visitor.read_name().await else {
            return Some(visitor);
        };
        loop {
            let now = Instant::now();
            let called = self.exposures().call_named(place, &name, now);
            match called {
                Called::Holder(bell) => {
                    self.ring(&bell, Arrival::Visitor(visitor));
                    return None;
                }
                Called::At(at) => sleep_until(at).await,
                Called::Nobody | Called::ByName => return Some(visitor),
            }
        }
    }

    /// The same of somebody at a port where the relay takes in TLS itself: given back with what was
    /// read already, where no name there leads to a client, or none that is asked for.
    pub(super) async fn lead_away(
        &self,
        port: Option<u16>,
        tcp: TcpStream,
    ) -> Option<(Vec<u8>, TcpStream)> {
        let place = (Protocol::Tcp, port?);
        let called = self.exposures().call(place, Instant::now());
        if !matches!(called, Called::ByName) {
            return Some((Vec::new(), tcp));
        }
        let from = tcp.peer_addr().ok()?;
        let visitor = Visitor::new((tcp, from)).ok()?;
        let Visitor { tcp, front, .. } = self.lead_by_name(place, visitor).await?;
        SockRef::from(&tcp).set_linger(None).ok()?;
        Some((front.into_bytes(), tcp))
    }

    fn ring(&self, bell: &Bell, arrival: Arrival) {
        if !bell.ring(arrival) {
            self.turn_away();
        }
    }

    /// One more who found nobody.
    pub(super) fn turn_away(&self) {
        self.turned_away.fetch_add(1, Ordering::Relaxed);
    }

    /// Visitors so far who found nobody.
    pub(super) fn turned_away(&self) -> u64 {
        self.turned_away.load(Ordering::Relaxed)
    }

    /// What leads where.
    pub(super) fn snapshot(&self) -> Vec<ExposureSnapshot> {
        let exposures = self.exposures();
        let exposed = exposures.iter().map(|exposed| ExposureSnapshot {
            claim: exposed.claim,
            name: exposed.name.clone(),
            client: exposed.key,
            visitors: exposed.holder.visits.now(),
            visitors_so_far: exposed.holder.visits.so_far(),
        });
        exposed.collect()
    }

    /// Lets nobody in any more, for good; whoever is in by TCP stays.
    pub(super) fn close(&self) {
        // Their tasks end with their bells, and find nothing to give back.
        self.exposures().clear();
        self.ports.close_all();
    }
}

fn listen(local: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(local), Type::STREAM, None)?;
    if local.is_ipv6() {
        socket.set_only_v6(!local.ip().is_unspecified())?;
    }
    // Connections of before do not keep the port.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&local.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

impl Drop for Lease {
    fn drop(&mut self) {
        // Nobody is given what is closed here before it is closed.
        let mut exposures = self.doors.exposures();
        self.doors.ports.close(exposures.remove(self.number));
    }
}

#[cfg(test)]
mod tests;
