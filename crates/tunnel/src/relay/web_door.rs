//! The relay's door for clients whose networks let no UDP through: TLS on TCP, a web server to
//! everybody else.
//!
//! Owns how many visitors there are at once, and whom one more displaces: whoever is connected and
//! is not an admitted client. What comes of a visit is the carrier's affair, what packets are in
//! it the engine's.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;

use crate::carrier::{Acceptor, BoxStream, Visit};
use tabane_base::Duration;
use tabane_core::{Admitted, Lobby, SocketId};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep};

use super::front_doors::FrontDoors;
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
    lobby: Rc<RefCell<Lobby<AbortHandle>>>,
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

    /// Takes in whoever comes, for ever; who asks for a name that leads to a client is for `doors`.
    pub(super) async fn serve(self, engine: Engine, doors: Rc<FrontDoors>) {
        let this = Rc::new(self);
        let lobby = Rc::new(RefCell::new(Lobby::new(MAX_VISITORS, MAX_VISITS)));
        let mut visits = JoinSet::new();
        let opened_at = Instant::now();
        loop {
            let accepted = tokio::select! {
                accepted = this.listener.accept() => accepted,
                Some(_) = visits.join_next() => continue,
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
                let visit = this.clone().visit(
                    engine.clone(),
                    doors.clone(),
                    stream,
                    canonical(from),
                    seat,
                );
                visits.spawn_local(visit)
            };
            let now = tabane_base::Instant::EPOCH + opened_at.elapsed();
            let admitted = lobby.borrow_mut().admit(now, from.ip(), begin);
            match admitted {
                Admitted::Yes => {}
                Admitted::For(displaced) => displaced.abort(),
                Admitted::No => tracing::debug!(%from, "too many of them are at the door"),
            }
        }
    }

    async fn visit(
        self: Rc<Self>,
        engine: Engine,
        doors: Rc<FrontDoors>,
        stream: TcpStream,
        from: SocketAddr,
        seat: Seat,
    ) {
        let Some((front, stream)) = doors.lead_away(self.port(), stream).await else {
            return;
        };
        match self.acceptor.visit_behind(front, stream).await {
            Ok(Visit::Client(stream)) => {
                Carrier::new(engine, &self.link(), stream, from)
                    .last(seat)
                    .await;
            }
            Ok(Visit::Stranger) => tracing::debug!(%from, "a stranger saw the web page"),
            Err(error) => tracing::debug!(%from, %error, "a visit came to nothing"),
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.lobby.borrow_mut().leave(self.number);
    }
}

impl Carrier {
    fn new(engine: Engine, link: &str, stream: BoxStream, from: SocketAddr) -> Self {
        let socket = engine.attach(link, stream, from);
        Self { engine, socket }
    }

    /// Until no admitted session goes by it. Once one does, the seat is others'.
    async fn last(self, seat: Seat) {
        let carries_client = || self.engine.carries_client(self.socket);
        let since = Instant::now();
        while !carries_client() {
            if since.elapsed() >= UNPROVED {
                return;
            }
            sleep(LOOK).await;
        }
        drop(seat);
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
        let doors = FrontDoors::new(EVIL.into(), Vec::new());
        doormen.spawn_local(WebDoor { listener, acceptor }.serve(engine, doors));
        (address, doormen)
    }

    async fn carrier(relay: SocketAddr, from: Ipv4Addr) -> BoxStream {
        let dial = Dial {
            interface: None,
            local: Some(IpAddr::from(from)),
            mark: None,
            relay,
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
