//! The side that lends: who may come in, what they may ask for, and who they then are connected to.
//!
//! Owns the listener's connections. The way out, with the addresses it refuses, is the caller's.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use tabane_base::{Destination, Host};
use tabane_core::{Admitted, Identity, Lobby, PublicKey};
use tabane_fetch::{DeviceWay, Way};
use tabane_linux::RecvBatch;
use tabane_linux::lookups::Lookups;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use crate::carry::carry;
use crate::code::Code;
use crate::forward::{DatagramOut, Forward};
use crate::friends::{Ended, Friend, Friends};
use crate::head::{PORT_HEADER, read_datagram_request, read_request};
use crate::pairing::{self, Ends};
use crate::tls;

/// What the web uses.
pub const DEFAULT_PORTS: [u16; 2] = [80, 443];
/// How long anybody may take to say who they are and what they want.
const GREETING_TIME: Duration = Duration::from_secs(10);
/// How long a connection outwards may take: what the way out needs to try some addresses.
const CONNECT_TIME: Duration = Duration::from_secs(20);
/// Connections that have not said yet who they are. At this many, one more takes the place of the
/// oldest of the address that has most, or finds none.
const MAX_STRANGERS: usize = 32;
/// Connections that begin in a second, friends' among them: what their browsers open at once.
const MAX_VISITS: usize = 1_000;
/// Connections of one friend: what a browser opens, twice.
const MAX_CONNECTIONS: usize = 512;
/// Addresses that one friend's datagrams may go to at a time: its relays', from a few programs.
const MAX_FORWARDS: usize = 16;

/// Where pairing codes come from, and new friends go.
pub trait Desk {
    /// Takes one try of the offer that stands; `None`: nobody is expected.
    fn attempt(&self) -> Option<Code>;
    /// Somebody knew the code, calls itself `name` and has this key: the offer is over. `false`
    /// where it no longer stood, or the friend cannot be remembered.
    fn paired(&self, name: &str, key: PublicKey) -> bool;
}

/// One link, lent to friends.
pub struct Share {
    acceptor: TlsAcceptor,
    key: PublicKey,
    name: String,
    friends: Friends,
    out: DeviceWay,
    /// So that names that nobody answers for keep no other friend's waiting.
    lookups: Rc<Lookups<PublicKey>>,
    ports: Vec<u16>,
    /// `None`: no datagrams are passed on.
    datagrams: Option<DatagramOut>,
    /// For all forwards: none holds it while it waits.
    batch: RefCell<RecvBatch>,
    desk: Rc<dyn Desk>,
    strangers: RefCell<Lobby<AbortHandle>>,
}

/// What a friend is told when there is no connection for it.
struct Refusal(u16, &'static str);

impl Share {
    /// Lends `out` under this name, to these ports only.
    ///
    /// # Errors
    /// Never with a sound build of the TLS library.
    pub fn new(
        identity: &Identity,
        name: &str,
        friends: Friends,
        out: DeviceWay,
        ports: &[u16],
        desk: Rc<dyn Desk>,
    ) -> Result<Self, rustls::Error> {
        Ok(Self {
            acceptor: tls::acceptor(identity)?,
            key: identity.public_key(),
            name: name.to_owned(),
            friends,
            out,
            lookups: Rc::default(),
            ports: ports.to_vec(),
            datagrams: None,
            batch: RefCell::default(),
            desk,
            strangers: RefCell::new(Lobby::new(MAX_STRANGERS, MAX_VISITS)),
        })
    }

    /// Passes friends' datagrams on as well, so that their sessions have a path by this link.
    #[must_use]
    pub fn with_datagrams(self, out: DatagramOut) -> Self {
        let datagrams = Some(out);
        Self { datagrams, ..self }
    }

    /// Serves whoever comes, until it is dropped; then all connections end.
    pub async fn serve(self: Rc<Self>, listener: TcpListener) {
        let mut guests = JoinSet::new();
        let opened_at = Instant::now();
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, from)) => {
                        let begin = |number| {
                            let share = Rc::clone(&self);
                            guests.spawn_local(async move {
                                if let Err(error) = share.receive(stream, number).await {
                                    tracing::debug!(%from, %error, "a guest came to nothing");
                                }
                            })
                        };
                        let now = tabane_base::Instant::EPOCH + opened_at.elapsed();
                        let admitted = self.strangers.borrow_mut().admit(now, from.ip(), begin);
                        match admitted {
                            Admitted::Yes => {}
                            Admitted::For(displaced) => displaced.abort(),
                            Admitted::No => tracing::debug!(%from, "too many at the door"),
                        }
                    }
                    Err(error) => {
                        // Out of descriptors, most likely: they come back as connections end.
                        tracing::warn!(%error, "cannot accept a connection");
                        sleep(Duration::from_millis(100)).await;
                    }
                },
                Some(_) = guests.join_next() => {}
            }
        }
    }

    async fn receive(&self, stream: TcpStream, number: u64) -> io::Result<()> {
        let stranger = Stranger(&self.strangers, number);
        stream.set_nodelay(true)?;
        let greeted = timeout(GREETING_TIME, self.acceptor.accept(stream)).await;
        let mut stream = greeted.map_err(|_| io::ErrorKind::TimedOut)??;
        let key = tls::peer_key(stream.get_ref().1).ok_or(io::ErrorKind::InvalidData)?;
        if stream.get_ref().1.alpn_protocol() == Some(tls::PAIR) {
            let paired = timeout(GREETING_TIME, self.pair(&mut stream, key)).await;
            return paired.map_err(|_| io::ErrorKind::TimedOut)?;
        }
        if stream.get_ref().1.alpn_protocol() == Some(tls::DATAGRAMS) {
            let asked = timeout(GREETING_TIME, read_datagram_request(&mut stream)).await;
            let to = asked.map_err(|_| io::ErrorKind::TimedOut)??;
            drop(stranger);
            return self.forward(stream, key, to).await;
        }
        let request = timeout(GREETING_TIME, read_request(&mut stream)).await;
        let destination = request.map_err(|_| io::ErrorKind::TimedOut)??;
        drop(stranger);
        self.lend(stream, key, destination).await
    }

    async fn pair(&self, stream: &mut TlsStream<TcpStream>, key: PublicKey) -> io::Result<()> {
        let ends = Ends {
            borrower: key,
            sharer: self.key,
        };
        let answered = pairing::answer(stream, || self.desk.attempt(), ends).await;
        let (name, secret) = answered.map_err(io::Error::other)?;
        if self.desk.paired(&name, key) {
            tracing::info!(name, "paired");
            pairing::welcome(stream, &secret, &self.name).await?;
        } else {
            pairing::refuse(stream).await?;
        }
        stream.shutdown().await
    }

    async fn lend(
        &self,
        mut stream: TlsStream<TcpStream>,
        key: PublicKey,
        to: Option<Destination>,
    ) -> io::Result<()> {
        let refusal = match self.admit(key, to.as_ref()) {
            Ok((friend, to)) => {
                let _held = Held::take(&friend.connections);
                let way = self.way_of(key);
                let far = timeout(CONNECT_TIME, way.connect(&host(&to.host), to.port)).await;
                match far {
                    Ok(Ok(far)) => {
                        stream.write_all(b"HTTP/1.1 200 Connected\r\n\r\n").await?;
                        let why = carry(&friend, stream, far).await;
                        let name = friend.terms.borrow().name.clone();
                        tracing::debug!(friend = name, host = %to.host, why, "ended");
                        return Ok(());
                    }
                    Ok(Err(error)) => {
                        tracing::debug!(host = %to.host, %error, "no connection outwards");
                        Refusal(502, "Cannot connect there")
                    }
                    Err(_) => Refusal(504, "There is no answer from there"),
                }
            }
            Err(refusal) => refusal,
        };
        refuse(stream, refusal).await
    }

    /// The way out, by which names are looked up in this friend's part.
    fn way_of(&self, key: PublicKey) -> DeviceWay {
        let lookups = Rc::clone(&self.lookups);
        self.out.clone().found_by(move |name| {
            let lookups = Rc::clone(&lookups);
            async move { lookups.find(key, &name, 0).await }
        })
    }

    async fn forward(
        &self,
        mut stream: TlsStream<TcpStream>,
        key: PublicKey,
        to: Option<SocketAddr>,
    ) -> io::Result<()> {
        let (friend, to, out) = match self.admit_datagrams(key, to) {
            Ok(admitted) => admitted,
            Err(refusal) => return refuse(stream, refusal).await,
        };
        let _held = Held::take(&friend.forwards);
        let (from, at) = (
            stream.get_ref().0.peer_addr()?.ip(),
            stream.get_ref().0.local_addr()?,
        );
        let name = friend.terms.borrow().name.clone();
        let forward = Forward::open(Rc::clone(&friend), from, at, to, out.device.clone());
        let forward = forward.map_err(io::Error::other)?;
        let port = forward.port()?;
        let answer = format!("HTTP/1.1 200 Passed on\r\n{PORT_HEADER}: {port}\r\n\r\n");
        stream.write_all(answer.as_bytes()).await?;
        stream.flush().await?;
        tracing::debug!(friend = name, %to, "datagrams pass");
        let why = forward.carry(stream, &self.batch).await;
        tracing::debug!(friend = name, %to, why, "datagrams pass no more");
        Ok(())
    }

    fn admit_datagrams(
        &self,
        key: PublicKey,
        to: Option<SocketAddr>,
    ) -> Result<(Rc<Friend>, SocketAddr, &DatagramOut), Refusal> {
        let friend = self.friend(key)?;
        let to = to.ok_or(Refusal(405, "Only CONNECT-UDP to an address is served"))?;
        let out = self.datagrams.as_ref();
        let out = out.ok_or(Refusal(501, "Datagrams are not lent"))?;
        if !out.ports.contains(&to.port()) || !(out.is_allowed)(to.ip()) {
            return Err(Refusal(403, "This address or port is not lent"));
        }
        match friend.forwards.get() {
            MAX_FORWARDS.. => Err(Refusal(429, "Too many at a time")),
            _ => Ok((friend, to, out)),
        }
    }

    /// The friend who has this key, if its terms let it begin anything now.
    fn friend(&self, key: PublicKey) -> Result<Rc<Friend>, Refusal> {
        let friend = self.friends.find(key);
        let friend = friend.ok_or(Refusal(403, "Not paired with you"))?;
        match friend.ended() {
            None => Ok(friend),
            Some(Ended::Revoked) => Err(Refusal(403, "Not paired with you")),
            Some(Ended::UsedUp) => Err(Refusal(429, "Your data budget is used up")),
            Some(Ended::NotNow) => Err(Refusal(503, "Not lent at this hour")),
        }
    }

    fn admit<'a>(
        &self,
        key: PublicKey,
        to: Option<&'a Destination>,
    ) -> Result<(Rc<Friend>, &'a Destination), Refusal> {
        let friend = self.friend(key)?;
        let to = to.ok_or(Refusal(405, "Only CONNECT is served"))?;
        if !self.ports.contains(&to.port) {
            return Err(Refusal(403, "This port is not lent"));
        }
        match friend.connections.get() {
            MAX_CONNECTIONS.. => Err(Refusal(429, "Too many connections")),
            _ => Ok((friend, to)),
        }
    }
}

/// Who has not said yet who it is; its place is others' when this goes.
struct Stranger<'a>(&'a RefCell<Lobby<AbortHandle>>, u64);

impl Drop for Stranger<'_> {
    fn drop(&mut self) {
        self.0.borrow_mut().leave(self.1);
    }
}

/// One more, until it is dropped.
struct Held<'a>(&'a Cell<usize>);

impl<'a> Held<'a> {
    fn take(count: &'a Cell<usize>) -> Self {
        count.set(count.get() + 1);
        Self(count)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

async fn refuse(mut stream: TlsStream<TcpStream>, refusal: Refusal) -> io::Result<()> {
    let Refusal(status, reason) = refusal;
    let answer = format!("HTTP/1.1 {status} {reason}\r\ncontent-length: 0\r\n\r\n");
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await
}

fn host(host: &Host) -> String {
    match host {
        Host::Ip(address) => address.to_string(),
        Host::Name(name) => name.clone(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Condvar, Mutex};

    use tabane_fetch::WayError;

    use super::*;

    struct NoDesk;

    impl Desk for NoDesk {
        fn attempt(&self) -> Option<Code> {
            None
        }

        fn paired(&self, _: &str, _: PublicKey) -> bool {
            false
        }
    }

    /// Names that nobody answers for, until the end.
    type Tarpit = Arc<(Mutex<(usize, bool)>, Condvar)>;

    fn resolve(tarpit: &Tarpit, name: &str) -> Vec<SocketAddr> {
        if name.ends_with(".tarpit.example") {
            let (state, is_over) = &**tarpit;
            let mut state = state.lock().unwrap();
            state.0 += 1;
            drop(is_over.wait_while(state, |(_, is_over)| !*is_over).unwrap());
        }
        vec![([127, 0, 0, 1], 0).into()]
    }

    #[tokio::test]
    async fn names_that_nobody_answers_for_keep_no_other_friend_waiting() {
        let tarpit = Tarpit::default();
        let asked = tarpit.clone();
        let way = DeviceWay::unbound().only(|_| false);
        let identity = Identity::from_seed([1; 32]);
        let desk = Rc::new(NoDesk);
        let share = Share::new(&identity, "desk", Friends::default(), way, &[80], desk);
        let share = Share {
            lookups: Rc::new(Lookups::by(move |name, _| Ok(resolve(&asked, name)))),
            ..share.unwrap()
        };
        let all = async {
            let [evil, other] = [1, 2].map(|n| share.way_of(PublicKey([n; 32])));
            for n in 0..MAX_CONNECTIONS {
                let evil = evil.clone();
                tokio::task::spawn_local(async move {
                    let name = format!("x{n}.tarpit.example");
                    evil.connect(&name, 80).await.map(drop)
                });
            }
            // As many as it gets.
            let mut held = 0;
            for _ in 0..10_000 {
                tokio::task::yield_now().await;
                held = tarpit.0.lock().unwrap().0;
            }
            assert!(held > 0 && held <= MAX_CONNECTIONS / 4, "{held}");
            // Not allowed, which is known once the name is found.
            let patience = Duration::from_secs(5);
            let found = timeout(patience, other.connect("a.example", 80)).await;
            assert!(matches!(found, Ok(Err(WayError::Family { .. }))));
        };
        tokio::task::LocalSet::new().run_until(all).await;
        tarpit.0.lock().unwrap().1 = true;
        tarpit.1.notify_all();
    }
}
