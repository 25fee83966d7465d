//! The ports by which visitors come to clients: who is called when somebody is at one.
//!
//! Owns the listening sockets of all exposures: a port is opened with the first that has it and
//! closed with the last. Whoever comes is handed to the holder's task, at the pace that its
//! turnstile allows; at a port of several names, once the visitor has said which it wants. What is
//! too much waits in the kernel, whose queue has an end, or is reset, and is counted.
//!
//! All workers of a relay have the same doors: a port is attended by the worker that opened it, and
//! visitors are handed to the holder's, wherever that is.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use socket2::{Domain, SockRef, Socket, Type};
use tabane_base::{Duration, Protocol};
use tabane_core::{Admitted, Lobby, PublicKey};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::asked_name::{Asked, MAX_FRONT, asked_name};
use super::exposures::{Called, Conflict, Exposed, Exposures, Place, places};
use super::udp_door::{self, UdpVisitor};
use crate::request::{PortClaim, Status};
use crate::target::HostName;

/// Visitors who wait in the kernel for their turn.
const BACKLOG: i32 = 1_024;
/// Visitors who wait for the holder's task; one more is reset.
const MAX_WAITING: usize = 1_024;
/// Visitors of one port who have not said which name they want, and how many may begin in a second.
const MAX_NAMELESS: usize = 256;
const MAX_BEGUN: usize = 1_000;
/// How long a visitor may take to say it.
const NAME_WAIT: Duration = Duration::from_secs(5);
/// Into how many pieces it may be cut: each has all before it looked at once more.
const MAX_PIECES: usize = 256;
/// After a failure to accept, which is want of descriptors as a rule.
const PAUSE: Duration = Duration::from_millis(100);
/// How long an earlier session of the same client has to show that it is there; longer than it
/// takes itself to find out.
const GONE_WAIT: Duration = Duration::from_secs(2);

/// Somebody at a port.
pub(super) struct Visitor {
    /// Is reset when it is dropped.
    pub(super) tcp: TcpStream,
    pub(super) from: SocketAddr,
    pub(super) at: SocketAddr,
    /// Read from it already.
    pub(super) front: Vec<u8>,
}

/// What the task of an exposure is told.
pub(super) enum Knock {
    Visitor(Visitor),
    Datagrams(UdpVisitor),
    /// Another client has asked for a port of it, or the same one once more.
    Asked {
        by_the_same: bool,
    },
}

/// What leads to that task; it ends with the last.
pub(super) type Bell = mpsc::Sender<Knock>;

/// All of them.
pub(super) struct FrontDoors {
    exposures: Mutex<Exposures<Bell>>,
    open: Mutex<BTreeMap<Place, AbortHandle>>,
    /// Of the relay's host, where it listens.
    local: IpAddr,
    /// Where the relay takes in TLS itself: names may be had there, and no whole port.
    own_ports: Vec<u16>,
    /// Visitors who were sent away without being asked about.
    turned_away: AtomicU64,
}

/// Ports that a client has, until this is dropped.
pub(super) struct Lease {
    doors: Arc<FrontDoors>,
    number: u64,
}

/// A visitor who is here.
pub(super) struct Presence {
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
            open: Mutex::default(),
            local,
            own_ports,
            turned_away: AtomicU64::new(0),
        })
    }

    fn exposures(&self) -> MutexGuard<'_, Exposures<Bell>> {
        self.exposures
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn opened(&self) -> MutexGuard<'_, BTreeMap<Place, AbortHandle>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has what comes there knock at the receiver, from now on. A client that is here again is
    /// given what an earlier session has, once that one turns out to be gone.
    ///
    /// # Errors
    /// Somebody else has it, or the host does not let us.
    pub(super) async fn lease(
        self: &Arc<Self>,
        claim: PortClaim,
        name: Option<&HostName>,
        key: PublicKey,
    ) -> Result<(Lease, mpsc::Receiver<Knock>), Status> {
        let (bell, knocks) = mpsc::channel(MAX_WAITING);
        let insert = || {
            let bell = bell.clone();
            let mut exposures = self.exposures();
            exposures.insert((claim, name), key, bell, Instant::now())
        };
        let number = match insert() {
            Err(Conflict::With(others)) => {
                self.ask(&others, key).await;
                insert()
            }
            inserted => inserted,
        };
        let number = number.map_err(|conflict| match conflict {
            Conflict::With(_) => Status::PortTaken,
            Conflict::Full => Status::Limit,
        })?;
        let doors = self.clone();
        let lease = Lease { doors, number };
        for place in places(claim) {
            if name.is_some() && self.own_ports.contains(&place.1) {
                continue;
            }
            if let Err(error) = self.open(place) {
                tracing::warn!(port = place.1, protocol = %place.0, %error, "cannot listen there");
                return Err(Status::PortUnavailable);
            }
        }
        Ok((lease, knocks))
    }

    /// Tells those who have what `key` wants. Waits for the end of what it has itself.
    async fn ask(&self, others: &[u64], key: PublicKey) {
        let mut gone = JoinSet::new();
        for number in others {
            let exposures = self.exposures();
            let Some(other) = exposures.get(*number) else {
                continue;
            };
            let by_the_same = other.key == key;
            // Who has too much to do for this is there.
            let asked = other.holder.try_send(Knock::Asked { by_the_same });
            if asked.is_ok() && by_the_same {
                let bell = other.holder.clone();
                gone.spawn_local(async move { bell.closed().await });
            }
        }
        let _ = timeout(GONE_WAIT, gone.join_all()).await;
    }

    fn open(self: &Arc<Self>, place: Place) -> io::Result<()> {
        let mut open = self.opened();
        if open.contains_key(&place) {
            return Ok(());
        }
        let socket = self.bind(place)?;
        let task = match place.0 {
            Protocol::Tcp => {
                let listener = TcpListener::from_std(socket.into())?;
                tokio::task::spawn_local(self.clone().attend(place, listener))
            }
            Protocol::Udp => {
                let socket = tokio::net::UdpSocket::from_std(socket.into())?;
                let doors = self.clone();
                let let_in = move |visitor| doors.let_in(place, visitor);
                tokio::task::spawn_local(udp_door::attend(socket, let_in))
            }
        };
        open.insert(place, task.abort_handle());
        Ok(())
    }

    fn bind(&self, (protocol, port): Place) -> io::Result<Socket> {
        let local = SocketAddr::new(self.local, port);
        let kind = match protocol {
            Protocol::Tcp => Type::STREAM,
            Protocol::Udp => Type::DGRAM,
        };
        let socket = Socket::new(Domain::for_address(local), kind, None)?;
        if local.is_ipv6() {
            socket.set_only_v6(!local.ip().is_unspecified())?;
        }
        if protocol == Protocol::Tcp {
            // Connections of before do not keep the port.
            socket.set_reuse_address(true)?;
        }
        socket.set_nonblocking(true)?;
        socket.bind(&local.into())?;
        if protocol == Protocol::Tcp {
            socket.listen(BACKLOG)?;
        }
        Ok(socket)
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
                Called::Holder(bell) => self.ring(&bell, Knock::Visitor(visitor)),
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

    /// Somebody's datagrams: what would have to wait is lost.
    fn let_in(&self, place: Place, visitor: Option<UdpVisitor>) {
        let called = self.exposures().call(place, Instant::now());
        match (called, visitor) {
            (Called::Holder(bell), Some(visitor)) => self.ring(&bell, Knock::Datagrams(visitor)),
            _ => self.turn_away(),
        }
    }

    async fn read_name(self: Arc<Self>, place: Place, visitor: Visitor) {
        if self.lead_by_name(place, visitor).await.is_some() {
            self.turn_away();
        }
    }

    /// Leads somebody to whoever has the name that is asked for; given back where nobody has it.
    async fn lead_by_name(&self, place: Place, mut visitor: Visitor) -> Option<Visitor> {
        let Ok(Some(name)) = timeout(NAME_WAIT, visitor.read_name()).await else {
            return Some(visitor);
        };
        loop {
            let now = Instant::now();
            let called = self.exposures().call_named(place, &name, now);
            match called {
                Called::Holder(bell) => {
                    self.ring(&bell, Knock::Visitor(visitor));
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
        Some((front, tcp))
    }

    fn ring(&self, bell: &Bell, knock: Knock) {
        if bell.try_send(knock).is_err() {
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
            visitors: exposed.visitors,
            visitors_so_far: exposed.visitors_so_far,
        });
        exposed.collect()
    }

    /// Lets nobody in any more; whoever is in stays.
    pub(super) fn close(&self) {
        // Their tasks end with their bells, and find nothing to give back.
        let all = std::mem::take(&mut *self.exposures());
        drop(all);
        let open = std::mem::take(&mut *self.opened());
        open.values().for_each(AbortHandle::abort);
    }
}

impl Lease {
    /// Counts a visitor until the result is dropped.
    pub(super) fn count(&self) -> Presence {
        let change = |exposed: &mut Exposed<Bell>| {
            exposed.visitors += 1;
            exposed.visitors_so_far += 1;
        };
        self.doors.exposures().change(self.number, change);
        Presence {
            doors: self.doors.clone(),
            number: self.number,
        }
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        let change = |exposed: &mut Exposed<Bell>| exposed.visitors -= 1;
        self.doors.exposures().change(self.number, change);
    }
}

impl Visitor {
    fn new((tcp, from): (TcpStream, SocketAddr)) -> io::Result<Self> {
        // What is not served ends by a reset, not as if all were said.
        tcp.set_zero_linger()?;
        let canonical = |it: SocketAddr| SocketAddr::new(it.ip().to_canonical(), it.port());
        Ok(Self {
            from: canonical(from),
            at: canonical(tcp.local_addr()?),
            front: Vec::new(),
            tcp,
        })
    }

    /// The same, watched by this thread's loop: the worker that took it in may end before this one.
    ///
    /// # Errors
    /// Out of descriptors to watch.
    pub(super) fn at_home(self) -> io::Result<Self> {
        let tcp = TcpStream::from_std(self.tcp.into_std()?)?;
        Ok(Self { tcp, ..self })
    }

    /// Reads until it says which host it is for; `None` where it never will.
    async fn read_name(&mut self) -> Option<HostName> {
        for _ in 0..MAX_PIECES {
            let room = MAX_FRONT - self.front.len();
            self.tcp.readable().await.ok()?;
            let mut piece = vec![0; room.min(MAX_FRONT / 4)];
            match self.tcp.try_read(&mut piece) {
                Ok(0) => return None,
                Ok(len) => self.front.extend_from_slice(&piece[..len]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(_) => return None,
            }
            match asked_name(&self.front) {
                Asked::More => {}
                Asked::For(name) => return Some(name),
                Asked::Nobody => return None,
            }
        }
        None
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // Nobody is given what is closed here before it is closed.
        let mut exposures = self.doors.exposures();
        let mut open = self.doors.opened();
        for place in exposures.remove(self.number) {
            if let Some(task) = open.remove(&place) {
                task.abort();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use tabane_base::PortRange;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    const ANN: PublicKey = PublicKey([1; 32]);
    const BOB: PublicKey = PublicKey([2; 32]);

    fn doors() -> Arc<FrontDoors> {
        FrontDoors::new(Ipv4Addr::LOCALHOST.into(), Vec::new())
    }

    /// A port that is free at this moment.
    fn port() -> PortClaim {
        let probe = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = probe.local_addr().unwrap().port();
        PortClaim {
            protocol: Protocol::Tcp,
            ports: PortRange::new(port, port).unwrap(),
        }
    }

    async fn connect(claim: PortClaim) -> io::Result<TcpStream> {
        TcpStream::connect((Ipv4Addr::LOCALHOST, claim.ports.first())).await
    }

    #[test]
    fn visitors_knock_while_there_is_a_lease_and_a_closed_port_refuses() {
        crate::block_on(async {
            let (doors, claim) = (doors(), port());
            assert!(connect(claim).await.is_err());
            let (lease, mut knocks) = doors.lease(claim, None, ANN).await.unwrap();
            let visitor = connect(claim).await.unwrap();
            let Some(Knock::Visitor(seen)) = knocks.recv().await else {
                panic!("nobody knocks");
            };
            assert_eq!(seen.from, visitor.local_addr().unwrap());
            assert_eq!(seen.at, visitor.peer_addr().unwrap());
            let other = doors.lease(claim, None, BOB).await.err();
            assert_eq!(other, Some(Status::PortTaken));
            let told = knocks.recv().await;
            assert!(matches!(told, Some(Knock::Asked { by_the_same: false })));
            drop(lease);
            assert!(knocks.recv().await.is_none());
            // The door's task is gone with the next turn.
            tokio::task::yield_now().await;
            assert!(connect(claim).await.is_err());
            assert!(doors.lease(claim, None, BOB).await.is_ok());
        })
        .unwrap();
    }

    #[test]
    fn the_same_client_has_the_port_again_once_its_earlier_session_is_gone() {
        crate::block_on(async {
            let (doors, claim) = (doors(), port());
            let (lease, mut knocks) = doors.lease(claim, None, ANN).await.unwrap();
            let earlier = tokio::task::spawn_local(async move {
                let asked = knocks.recv().await;
                assert!(matches!(asked, Some(Knock::Asked { by_the_same: true })));
                drop((lease, knocks));
            });
            assert!(doors.lease(claim, None, ANN).await.is_ok());
            earlier.await.unwrap();
        })
        .unwrap();
    }

    #[test]
    fn a_port_of_somebody_else_s_is_told_and_nothing_of_a_range_is_kept() {
        crate::block_on(async {
            let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let port = taken.local_addr().unwrap().port();
            let claim = PortClaim {
                protocol: Protocol::Tcp,
                ports: PortRange::new(port - 1, port).unwrap(),
            };
            let doors = doors();
            let refused = doors.lease(claim, None, ANN).await.err();
            assert_eq!(refused, Some(Status::PortUnavailable));
            assert!(doors.snapshot().is_empty() && doors.opened().is_empty());
        })
        .unwrap();
    }

    #[test]
    fn visitors_of_a_shared_port_go_by_the_name_they_ask_for() {
        crate::block_on(async {
            let (doors, claim) = (doors(), port());
            let [a, b] = ["a.example", "b.example"].map(|name| HostName::new(name).unwrap());
            let (_first, mut at_a) = doors.lease(claim, Some(&a), ANN).await.unwrap();
            let (_second, mut at_b) = doors.lease(claim, Some(&b), BOB).await.unwrap();
            let ask = async |name: &str| {
                let mut visitor = connect(claim).await.unwrap();
                let (head, rest) = ("GET / HTTP/1.1\r\nHo", format!("st: {name}\r\n\r\n"));
                visitor.write_all(head.as_bytes()).await.unwrap();
                visitor.write_all(rest.as_bytes()).await.unwrap();
                (visitor, format!("{head}{rest}"))
            };
            for (name, at) in [("b.example", &mut at_b), ("A.Example:80", &mut at_a)] {
                let (_visitor, asked) = ask(name).await;
                let Some(Knock::Visitor(seen)) = at.recv().await else {
                    panic!("nobody knocks at {name}");
                };
                assert_eq!(seen.front, asked.as_bytes());
            }
            let (mut visitor, _) = ask("c.example").await;
            let ended = visitor.read(&mut [0; 1]).await.unwrap_err();
            assert_eq!(ended.kind(), io::ErrorKind::ConnectionReset);
            assert_eq!(doors.turned_away(), 1);
        })
        .unwrap();
    }

    #[test]
    fn those_who_say_nothing_keep_nobody_else_out() {
        crate::block_on(async {
            let (doors, claim) = (doors(), port());
            let a = HostName::new("a.example").unwrap();
            let (_lease, mut at_a) = doors.lease(claim, Some(&a), ANN).await.unwrap();
            let mut silent = Vec::new();
            for _ in 0..MAX_NAMELESS + 10 {
                // Those beyond are reset, some before they know that they are connected.
                silent.extend(connect(claim).await);
            }
            // Somebody else, for those share what their address has.
            let other = tokio::net::TcpSocket::new_v4().unwrap();
            other.bind("127.0.0.2:0".parse().unwrap()).unwrap();
            let door = SocketAddr::from((Ipv4Addr::LOCALHOST, claim.ports.first()));
            let mut visitor = other.connect(door).await.unwrap();
            let request = b"GET / HTTP/1.0\r\nHost: a.example\r\n\r\n";
            visitor.write_all(request).await.unwrap();
            assert!(matches!(at_a.recv().await, Some(Knock::Visitor(_))));
        })
        .unwrap();
    }

    /// While a relay drains, a worker without sessions ends before one that serves the visitor.
    #[test]
    fn a_visitor_stays_when_the_worker_that_took_it_in_has_ended() {
        let (doors, claim) = (doors(), port());
        let (hand, handed) = std::sync::mpsc::channel();
        let worker = std::thread::spawn(move || {
            crate::block_on(async {
                let (_lease, mut knocks) = doors.lease(claim, None, ANN).await.unwrap();
                let outside =
                    std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, claim.ports.first()));
                let Some(Knock::Visitor(visitor)) = knocks.recv().await else {
                    panic!("nobody came");
                };
                hand.send((outside.unwrap(), visitor)).unwrap();
            })
            .unwrap();
        });
        let (mut outside, visitor) = handed.recv().unwrap();
        crate::block_on(async {
            let mut visitor = visitor.at_home().unwrap();
            worker.join().unwrap();
            std::io::Write::write_all(&mut outside, b"here").unwrap();
            let mut heard = [0; 4];
            visitor.tcp.read_exact(&mut heard).await.unwrap();
            assert_eq!(&heard, b"here");
        })
        .unwrap();
    }

    #[test]
    fn closed_doors_keep_no_port() {
        crate::block_on(async {
            let (doors, claim) = (doors(), port());
            let (lease, mut knocks) = doors.lease(claim, None, ANN).await.unwrap();
            doors.close();
            assert!(knocks.recv().await.is_none());
            tokio::task::yield_now().await;
            assert!(connect(claim).await.is_err());
            drop(lease);
        })
        .unwrap();
    }
}
