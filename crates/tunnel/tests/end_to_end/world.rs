//! A relay on a thread of its own, a client here, and programs and servers around them, all on
//! loopback.
//!
//! ```text
//!  program ── tcp ── client ══ udp, one or two paths ══ relay ── tcp, udp ── server
//! ```

use std::future::pending;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket as StdUdpSocket};
use std::num::NonZeroU8;
use std::sync::mpsc;
use std::thread::JoinHandle;

use tabane_base::Duration;
use tabane_core::{
    CloseReason, DatagramOrder, EndpointCounters, Identity, PublicKey, ServerConfig, SessionConfig,
};
use tabane_linux::UdpError;
use tabane_tunnel::{
    Access, Admission, Carried, Client, ClientConfig, HostMonitor, LinkBind, OpenError, Parting,
    Relay, RelayConfig, RelayError, RelayLimits, RelayPeer, RelaySnapshot, SessionNumbers, Silence,
    Target, User, WebDoor,
    carrier::{Acceptor, Certificate},
};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc as unbounded, oneshot};
use tracing::Dispatch;

use super::cables::serve_counting;

pub(crate) const TOKEN: &[u8] = b"let me in";

/// Longer than any of these tests takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a test's body with a runtime around it; a test that hangs fails.
pub(crate) fn run<F: Future<Output = ()>>(body: F) {
    tabane_tunnel::block_on(async {
        tokio::time::timeout(PATIENCE, body)
            .await
            .expect("the test hangs");
    })
    .unwrap();
}

pub(crate) struct RelayOptions {
    pub(crate) listen: SocketAddr,
    pub(crate) identity: [u8; 32],
    pub(crate) access: Access,
    pub(crate) limits: RelayLimits,
    pub(crate) resolvers: Vec<SocketAddr>,
    /// Have a server beside the relay, whose bytes count through 0..251.
    pub(crate) server: bool,
    /// Take in TLS, by this port.
    pub(crate) tls: Option<u16>,
    /// Listen for UDP at this port as well.
    pub(crate) also: Option<u16>,
    pub(crate) workers: NonZeroU8,
    /// Whose clients are.
    pub(crate) user: Option<User>,
    /// How long sessions with connections have when it is stopped.
    pub(crate) grace: Duration,
    /// Where its first worker's log goes.
    pub(crate) log: Option<Dispatch>,
}

impl Default for RelayOptions {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:0".parse().unwrap(),
            identity: [1; 32],
            access: Access::Private,
            limits: RelayLimits::default(),
            resolvers: Vec::new(),
            server: false,
            tls: None,
            also: None,
            workers: usual_workers(),
            user: None,
            grace: Duration::ZERO,
            log: None,
        }
    }
}

/// One, or as many as the variable says: all of these tests hold for any number.
fn usual_workers() -> NonZeroU8 {
    let told = std::env::var("TABANE_TEST_WORKERS").ok();
    told.map_or(NonZeroU8::MIN, |text| text.parse().unwrap())
}

/// What a relay is asked while it runs.
enum Asked {
    Look(oneshot::Sender<RelaySnapshot>),
    TurnOut(PublicKey),
    /// Time, and a word once it has passed.
    LetPass(Duration, oneshot::Sender<()>),
}

/// A relay that runs until it is stopped.
pub(crate) struct RunningRelay {
    pub(crate) address: SocketAddr,
    pub(crate) key: PublicKey,
    /// The server beside it.
    pub(crate) server: Option<SocketAddr>,
    asked: unbounded::UnboundedSender<Asked>,
    stop: Option<oneshot::Sender<()>>,
    vanish: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<EndpointCounters>>,
}

impl RunningRelay {
    pub(crate) fn start(options: RelayOptions) -> Self {
        let identity = Identity::from_seed(options.identity);
        let key = identity.public_key();
        let (stop, stopped) = oneshot::channel();
        let (vanish, vanished) = oneshot::channel();
        let (tell, told) = mpsc::channel();
        let (asked, mut questions) = unbounded::unbounded_channel::<Asked>();
        let thread = std::thread::spawn(move || {
            let _log = options.log.as_ref().map(tracing::dispatcher::set_default);
            tabane_tunnel::block_on(async {
                let mut relay = bind(&options, identity).await;
                if let Some(port) = options.also {
                    let also = SocketAddr::new(options.listen.ip(), port);
                    relay.listen_also(also).unwrap();
                }
                let server = if options.server {
                    let (listener, address) = listener().await;
                    tokio::task::spawn_local(serve_counting(listener));
                    Some(address)
                } else {
                    None
                };
                tell.send((relay.local_addrs()[0], server)).unwrap();
                let monitor = relay.monitor();
                let answering = monitor.clone();
                tokio::task::spawn_local(async move {
                    while let Some(question) = questions.recv().await {
                        match question {
                            Asked::Look(reply) => drop(reply.send(answering.look().await)),
                            Asked::TurnOut(key) => answering
                                .turn_out(move |it| (it == key).then_some(CloseReason::Revoked)),
                            Asked::LetPass(span, reply) => {
                                tokio::time::pause();
                                tokio::time::advance(span).await;
                                tokio::time::resume();
                                let _ = reply.send(());
                            }
                        }
                    }
                });
                let stopped = async {
                    let _ = stopped.await;
                    Parting::Down
                };
                let running = relay.run_and_drain(stopped, |_| options.grace, pending());
                tokio::select! {
                    () = running => {}
                    Ok(()) = vanished => {}
                }
                monitor.look().await.counters
            })
            .unwrap()
        });
        let (address, server) = told.recv().unwrap();
        Self {
            address,
            key,
            server,
            asked,
            stop: Some(stop),
            vanish: Some(vanish),
            thread: Some(thread),
        }
    }

    /// What it is doing.
    pub(crate) async fn look(&self) -> RelaySnapshot {
        let (reply, answer) = oneshot::channel();
        self.asked.send(Asked::Look(reply)).ok().unwrap();
        answer.await.unwrap()
    }

    /// Has this client turned out.
    pub(crate) fn turn_out(&self, key: PublicKey) {
        self.asked.send(Asked::TurnOut(key)).ok().unwrap();
    }

    /// Has so much time pass for the tasks of its first worker, but not for sessions.
    pub(crate) async fn let_pass(&self, span: Duration) {
        let (reply, passed) = oneshot::channel();
        self.asked.send(Asked::LetPass(span, reply)).ok().unwrap();
        passed.await.unwrap();
    }

    /// Ends it without a word to its clients, as if it were killed.
    pub(crate) fn vanish(mut self) {
        self.vanish.take().unwrap().send(()).unwrap();
        self.thread.take().unwrap().join().unwrap();
    }

    /// Stops it and gives what it counted.
    pub(crate) fn stop(mut self) -> EndpointCounters {
        let _ = self.stop.take().unwrap().send(());
        self.thread.take().unwrap().join().unwrap()
    }
}

/// Binds the relay; tries again where a child process that another test is about to start still
/// holds a descriptor of the relay before, as it does between fork and exec.
pub(crate) async fn bind(options: &RelayOptions, identity: Identity) -> Relay {
    for _ in 0..200 {
        let user = options.user.clone();
        let bound = Relay::bind(RelayConfig {
            identity: identity.clone(),
            listen: vec![options.listen],
            access: options.access,
            limits: options.limits,
            server: ServerConfig::default(),
            session: SessionConfig::default(),
            mark: None,
            own_addresses: Vec::new(),
            authorise: Box::new(move |applicant| {
                let verdict = match applicant.token.as_deref() {
                    Some(TOKEN) => Admission::Admit(user.clone()),
                    _ => Admission::Refuse(CloseReason::Unauthorised),
                };
                applicant.answer(verdict);
            }),
            resolvers: options.resolvers.clone(),
            monitor: HostMonitor::default(),
            seed: [2; 32],
            exit: None,
            workers: options.workers,
            inheritance: None,
            fleet_list: None,
            fleet_loads: None,
            web_doors: options
                .tls
                .map(|port| web_door(port, &identity))
                .into_iter()
                .collect(),
        });
        match bound {
            Ok(relay) => return relay,
            Err(RelayError::Listen(UdpError::BindAddress { source, .. }))
                if source.kind() == ErrorKind::AddrInUse =>
            {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
    panic!("{} stays in use", options.listen);
}

fn web_door(port: u16, identity: &Identity) -> WebDoor {
    let listener = std::net::TcpListener::bind(("0.0.0.0", port)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let certificate = Certificate::made_up("localhost").unwrap();
    WebDoor {
        listener: TcpListener::from_std(listener).unwrap(),
        acceptor: Acceptor::new(&identity.public_key().0, certificate).unwrap(),
    }
}

pub(crate) fn relay_peer(relay: &RunningRelay) -> RelayPeer {
    RelayPeer {
        name: "relay".to_owned(),
        key: relay.key,
        addrs: vec![relay.address],
        token: Some(TOKEN.to_vec()),
        udp_ports: Vec::new(),
        tls: None,
    }
}

pub(crate) fn client_config(relay: &RunningRelay) -> ClientConfig {
    ClientConfig {
        merits: Vec::new(),
        identity: Identity::from_seed([3; 32]),
        relays: vec![relay_peer(relay)],
        links: vec![link("a", 2), link("b", 3)],
        session: SessionConfig::default(),
        monitor: HostMonitor::default(),
        udp_order: DatagramOrder::Within(Duration::from_millis(25)),
        seed: [4; 32],
        numbers: SessionNumbers::default(),
        proxy: None,
        mark: None,
    }
}

/// A link that is an address of loopback: 127.0.0.`host`.
pub(crate) fn link(name: &str, host: u8) -> LinkBind {
    LinkBind {
        name: name.to_owned(),
        egress: None,
        translators: Vec::new(),
        v4: Some(Ipv4Addr::new(127, 0, 0, host)),
        v6: None,
        relay_addrs: None,
        policy: tabane_core::PathPolicy::default(),
        carrier: tabane_tunnel::CarrierWish::default(),
        memory: None,
    }
}

/// A relay, and a client connected to it.
pub(crate) async fn world() -> (RunningRelay, Client) {
    let relay = RunningRelay::start(RelayOptions::default());
    let client = Client::connect(client_config(&relay)).await.unwrap();
    (relay, client)
}

/// Both ends of a TCP connection: the program's, and the one to carry.
pub(crate) async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (program, carried) = tokio::join!(TcpStream::connect(address), listener.accept());
    (program.unwrap(), carried.unwrap().0)
}

/// A TCP listener and its address.
/// Carries `tcp` to `target`, as the hooks do.
pub(crate) fn carry(
    client: &Client,
    tcp: TcpStream,
    target: Target,
) -> impl Future<Output = Result<Carried, OpenError>> + use<> {
    let client = client.clone();
    async move {
        let flow = client.open_tcp(target, Silence::Waits).await?;
        Ok(flow.carry(tcp).await)
    }
}

pub(crate) async fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// An address where nobody listens.
pub(crate) async fn refusing() -> SocketAddr {
    listener().await.1
}

/// Echoes UDP datagrams until the process ends.
pub(crate) fn udp_echo() -> SocketAddr {
    // An address of its own, so that its port is free for TCP as well.
    let socket = StdUdpSocket::bind("127.0.0.9:0").unwrap();
    let address = socket.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut buffer = vec![0; 65_536];
        while let Ok((len, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&buffer[..len], from);
        }
    });
    address
}

/// Waits until `holds`; state that no future tells of is looked at every few milliseconds.
pub(crate) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..10_000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("never happened: {what}");
}
