//! The relay's door for clients whose networks let no UDP through: TLS on TCP, a web server to
//! everybody else.
//!
//! Owns how many visitors there are at once, and whom one more displaces: whoever is connected and
//! is not an admitted client. What comes of a visit is the carrier's affair, what packets are in
//! it the engine's.
//!
//! One worker stands at the door. It reads of each client's connection what the first packet is
//! for, and has the worker of that session carry the connection on.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::carrier::{Acceptor, BoxStream, Visit};
use tabane_base::Duration;
use tabane_core::{Addressee, Admitted, Lobby, SocketId, Steering};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};

use super::Shared;
use super::begun::Begun;
use crate::engine::Engine;

/// Visitors who have not said what they want, and connections that no admitted session goes by. At
/// this many, one more takes the place of the oldest of the address that has most, or finds none.
const MAX_VISITORS: usize = 256;
/// That begin in a second: a sixth of a core, by 0.2 ms each. Whoever comes beyond is sent away.
const MAX_VISITS: usize = 1_000;
/// After a failure to accept, which is want of descriptors as a rule.
const PAUSE: Duration = Duration::from_millis(100);
/// A connection that no admitted session goes by is closed after this: longer than a handshake may
/// take.
const UNPROVED: Duration = Duration::from_secs(12);

/// Bytes that are read to find the first packet; eight of one say whose it is.
const MAX_LOOK: usize = 1_024;
/// How often it is looked whether one does, so that its seat is others'.
const LOOK: Duration = Duration::from_secs(1);

/// Where the relay takes in TLS.
pub struct WebDoor {
    /// Its socket.
    pub listener: TcpListener,
    /// What is said there.
    pub acceptor: Acceptor,
}

/// A visitor's place; free when it goes.
struct Seat {
    lobby: Arc<Mutex<Lobby<AbortHandle>>>,
    number: u64,
}

/// A connection that carries packets; it ends with this.
struct Carrier {
    engine: Engine,
    socket: SocketId,
}

impl WebDoor {
    /// The TCP port it is at.
    #[must_use]
    pub fn port(&self) -> Option<u16> {
        self.listener.local_addr().ok().map(|at| at.port())
    }

    /// What the monitor calls the link of those who come here.
    pub(super) fn link(&self) -> String {
        match self.listener.local_addr() {
            Ok(address) => format!("tls {address}"),
            Err(_) => "tls".to_owned(),
        }
    }

    /// Takes in whoever comes, for ever; who asks for a name that leads to a client goes there.
    pub(super) async fn serve(self, engine: Engine, shared: Arc<Shared>) {
        let this = Rc::new(self);
        let lobby = Arc::new(Mutex::new(Lobby::new(MAX_VISITORS, MAX_VISITS)));
        let mut visits = JoinSet::new();
        let opened_at = Instant::now();
        let mut stage = shared.crew.watch();
        let mut is_open = true;
        loop {
            let accepted = tokio::select! {
                accepted = this.listener.accept(), if is_open => accepted,
                // Who comes from here on is the next process's; who is here stays.
                _ = stage.changed(), if is_open => {
                    is_open = !shared.crew.is_succeeded();
                    continue;
                }
                Some(_) = visits.join_next() => continue,
                else => std::future::pending().await,
            };
            let (stream, from) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::debug!(%error, "cannot accept");
                    sleep(PAUSE).await;
                    continue;
                }
            };
            let begin = |number| {
                let lobby = lobby.clone();
                let seat = Seat { lobby, number };
                let at = (engine.clone(), shared.clone());
                visits.spawn_local(this.clone().visit(at, stream, canonical(from), seat))
            };
            let now = tabane_base::Instant::EPOCH + opened_at.elapsed();
            let admitted = lock(&lobby).admit(now, from.ip(), begin);
            match admitted {
                Admitted::Yes => {}
                Admitted::For(displaced) => displaced.abort(),
                Admitted::No => tracing::debug!(%from, "too many of them are at the door"),
            }
        }
    }

    async fn visit(
        self: Rc<Self>,
        (engine, shared): (Engine, Arc<Shared>),
        stream: TcpStream,
        from: SocketAddr,
        seat: Seat,
    ) {
        let doors = &shared.front_doors;
        let Some((front, stream)) = doors.lead_away(self.port(), stream).await else {
            return;
        };
        match self.acceptor.visit_behind(front, stream).await {
            Ok(Visit::Client(stream)) => {
                let Some((worker, stream)) = find_worker(stream, shared.crew.len()).await else {
                    tracing::debug!(%from, "a client said nothing");
                    return;
                };
                let link = self.link();
                if worker == 0 {
                    let carrier = Carrier::new(engine, &link, stream, from);
                    carrier.last(|| drop(seat)).await;
                } else {
                    hand_over(&shared, worker, (link, stream, from), seat).await;
                }
            }
            Ok(Visit::Stranger) => tracing::debug!(%from, "a stranger saw the web page"),
            Err(error) => tracing::debug!(%from, %error, "a visit came to nothing"),
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        lock(&self.lobby).leave(self.number);
    }
}

impl Carrier {
    fn new(engine: Engine, link: &str, stream: BoxStream, from: SocketAddr) -> Self {
        let socket = engine.attach(link, stream, from);
        Self { engine, socket }
    }

    /// Until no admitted session goes by it. Once one does, that is told.
    async fn last(self, proved: impl FnOnce()) {
        let carries_client = || self.engine.carries_client(self.socket);
        let since = Instant::now();
        while !carries_client() {
            if since.elapsed() >= UNPROVED {
                return;
            }
            sleep(LOOK).await;
        }
        proved();
        while carries_client() {
            sleep(UNPROVED).await;
        }
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        self.engine.hang_up(self.socket);
    }
}

fn lock(lobby: &Mutex<Lobby<AbortHandle>>) -> MutexGuard<'_, Lobby<AbortHandle>> {
    lobby.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whom the first packet is for. What was read of it is read again.
async fn find_worker(stream: BoxStream, workers: usize) -> Option<(usize, BoxStream)> {
    let Ok(many @ 2..) = u8::try_from(workers) else {
        return Some((0, stream));
    };
    let steering = Steering::new(many, 0, false);
    let mut stream = Begun::new(stream);
    let reading = async {
        loop {
            let mut said = stream.read_on().await.ok()?;
            let is_enough = said.len() > MAX_LOOK;
            // The length of a packet comes first, and length 0 means nothing [P-12.2].
            while let [0, 0, rest @ ..] = said {
                said = rest;
            }
            let packet = said.get(2..).unwrap_or_default();
            match steering.addressee(packet) {
                Some(Addressee::Newcomers(worker) | Addressee::Session { worker, .. }) => {
                    return Some(usize::from(worker));
                }
                None if is_enough => return Some(0),
                None => {}
            }
        }
    };
    let worker = timeout(UNPROVED, reading).await.ok()??;
    Some((worker, Box::new(stream)))
}

/// Has another worker carry a connection, until it ends there or whoever visits is sent away.
async fn hand_over(
    shared: &Shared,
    worker: usize,
    (link, stream, from): (String, BoxStream, SocketAddr),
    seat: Seat,
) {
    let (leash, let_go) = oneshot::channel::<()>();
    let (tell, proved) = oneshot::channel::<()>();
    let (ended, has_ended) = oneshot::channel::<()>();
    shared.crew.tell(worker, move |relay| {
        let carrier = Carrier::new(relay.engine.clone(), &link, stream, from);
        let proved = || {
            // Whoever stood at the door may have been sent away.
            let _ = tell.send(());
        };
        tokio::task::spawn_local(async move {
            tokio::select! {
                () = carrier.last(proved) => {}
                _ = let_go => {}
            }
            drop(ended);
        });
    });
    if proved.await.is_ok() {
        drop(seat);
    }
    // It is dropped, and so tells.
    let _ = has_ended.await;
    drop(leash);
}

/// As UDP sockets show addresses.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use tabane_core::{Endpoint, Identity, ServerConfig, SessionConfig};
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpSocket;
    use tokio::task::{JoinSet, spawn_local};
    use tokio::time::timeout;

    use super::*;
    use crate::HostMonitor;
    use crate::carrier::{BoxStream, Certificate, Dial};

    /// Shorter than a seat is kept by who says nothing.
    const SOON: Duration = Duration::from_secs(5);
    const EVIL: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 1);
    const OTHER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

    /// A door that somebody stands at until the set is dropped.
    async fn door() -> (SocketAddr, JoinSet<()>) {
        let identity = Identity::from_seed([1; 32]);
        let key = identity.public_key().0;
        let (config, server) = (SessionConfig::default(), ServerConfig::default());
        let endpoint = Endpoint::server(identity, config, server, [2; 32]).unwrap();
        let engine = Engine::start(endpoint, HostMonitor::default()).unwrap();
        let listener = TcpListener::bind((EVIL, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let certificate = Certificate::made_up("localhost").unwrap();
        let acceptor = Acceptor::new(&key, certificate).unwrap();
        let mut doormen = JoinSet::new();
        let shared = super::super::tests::shared(crate::Access::Public);
        doormen.spawn_local(WebDoor { listener, acceptor }.serve(engine, Arc::new(shared)));
        (address, doormen)
    }

    async fn carrier(relay: SocketAddr, from: Ipv4Addr) -> BoxStream {
        let dial = Dial {
            interface: None,
            local: Some(IpAddr::from(from)),
            mark: None,
            relay,
            relay_udp: relay,
            name: None,
            relay_key: Identity::from_seed([1; 32]).public_key().0,
            proxy: None,
        };
        timeout(SOON, dial.connect())
            .await
            .expect("kept out")
            .expect("let in")
    }

    async fn is_over(stream: &mut BoxStream) {
        // An error is an end as well.
        while stream.read(&mut [0; 100]).await.is_ok_and(|n| n > 0) {}
    }

    #[test]
    fn whoever_says_nothing_keeps_no_other_address_out() {
        crate::block_on(async {
            let (address, _doormen) = door().await;
            let mut silent = Vec::new();
            for _ in 0..MAX_VISITORS {
                let socket = TcpSocket::new_v4().unwrap();
                socket.bind((EVIL, 0).into()).unwrap();
                silent.push(socket.connect(address).await.unwrap());
            }
            carrier(address, OTHER).await;
        })
        .unwrap();
    }

    #[test]
    fn carriers_without_a_session_are_as_many_as_visitors_and_do_not_last() {
        crate::block_on(async {
            let (address, _doormen) = door().await;
            let mut all = Vec::new();
            for _ in 0..MAX_VISITORS {
                all.push(carrier(address, EVIL).await);
            }
            let mut other = carrier(address, OTHER).await;
            timeout(SOON, is_over(&mut all[0]))
                .await
                .expect("the oldest goes");
            let last = spawn_local(async move { is_over(&mut all.pop().unwrap()).await });
            let patience = UNPROVED * 3;
            timeout(patience, is_over(&mut other))
                .await
                .expect("it ends");
            timeout(patience, last)
                .await
                .expect("they all end")
                .unwrap();
        })
        .unwrap();
    }
}
