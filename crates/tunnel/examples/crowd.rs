//! Many clients in one process, for measuring a relay: `cargo xtask bench relay` runs it.
//!
//! `crowd RELAY KEY TOKEN SOURCE SESSIONS SECONDS FIRST` opens so many sessions, each over a socket
//! of its own, and prints how long that took; a line on stdin then makes each fetch what the TCP
//! server SOURCE sends, for so many seconds, and it prints what arrived. Each line on stdout is
//! `NAME NUMBER`. As many share a key as a relay allows; keys are numbered from FIRST, below 256.
//! The sessions are core's, without the tunnel's client: a thousand of those would have a thousand
//! event loops.

#![forbid(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::error::Error;
use std::future::poll_fn;
use std::io::BufRead;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Instant as WallInstant;

use tabane_base::{Duration, Instant};
use tabane_core::{
    Endpoint, Event, FourTuple, Identity, PublicKey, ReadState, SessionConfig, SessionHandle,
    SocketId, StreamId, TransmitBatch,
};
use tabane_linux::{HostClock, RecvBatch, Transmit, UdpBind, UdpSocket};
use tabane_tunnel::{Request, Target, Transport};
use tokio::sync::watch;

/// Sessions that may be in their handshakes at once: the relay is to work, not to be flooded.
const AT_ONCE: usize = 64;
/// Of one key, at most, by a relay's default limits.
const OF_A_KEY: u32 = 8;
/// Longest wait for a timer; also where a session has none.
const IDLE: Duration = Duration::from_secs(3_600);

struct Options {
    relay: SocketAddr,
    key: PublicKey,
    token: Vec<u8>,
    source: SocketAddr,
    sessions: u32,
    seconds: u64,
    first: u8,
}

/// What all sessions share; one thread, so nothing is ever waited for.
struct Crowd {
    options: Options,
    clock: HostClock,
    received: RefCell<RecvBatch>,
    transmits: RefCell<TransmitBatch>,
    connected: watch::Sender<usize>,
    fetching: watch::Sender<bool>,
    bytes: Cell<u64>,
}

struct Guest {
    crowd: Rc<Crowd>,
    endpoint: Rc<RefCell<Endpoint>>,
    socket: UdpSocket,
    id: SocketId,
    handle: SessionHandle,
    stream: Option<StreamId>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = parse().ok_or("usage: crowd RELAY KEY TOKEN SOURCE SESSIONS SECONDS FIRST")?;
    tabane_linux::descriptors::raise_limit()?;
    tabane_tunnel::block_on(run(options))?
}

fn parse() -> Option<Options> {
    let mut words = std::env::args().skip(1);
    let mut next = || words.next();
    Some(Options {
        relay: next()?.parse().ok()?,
        key: next()?.parse().ok()?,
        token: next()?.into_bytes(),
        source: next()?.parse().ok()?,
        sessions: next()?.parse().ok()?,
        seconds: next()?.parse().ok()?,
        first: next()?.parse().ok()?,
    })
}

async fn run(options: Options) -> Result<(), Box<dyn Error>> {
    let (sessions, seconds, first) = (options.sessions, options.seconds, options.first);
    let crowd = Rc::new(Crowd {
        options,
        clock: HostClock::new(),
        received: RefCell::new(RecvBatch::new()),
        transmits: RefCell::new(TransmitBatch::new(65_000)),
        connected: watch::Sender::new(0),
        fetching: watch::Sender::new(false),
        bytes: Cell::new(0),
    });
    let begin = WallInstant::now();
    let mut connected = crowd.connected.subscribe();
    let mut endpoint = None;
    for id in 0..sessions {
        if id % OF_A_KEY == 0 {
            endpoint = Some(machine(first + u8::try_from(id / OF_A_KEY)?)?);
        }
        let endpoint = endpoint.clone().ok_or("the first has one")?;
        let guest = Guest::begin(crowd.clone(), endpoint, SocketId(id))?;
        tokio::task::spawn_local(guest.run());
        let enough = (id as usize + 1).saturating_sub(AT_ONCE);
        connected.wait_for(|count| *count >= enough).await?;
    }
    connected
        .wait_for(|count| *count == sessions as usize)
        .await?;
    println!("connected_s {}", begin.elapsed().as_secs_f64());

    let told = tabane_linux::threads::aside(|| std::io::stdin().lock().lines().next());
    told.await?.ok_or("nobody said to go on")??;
    crowd.fetching.send_replace(true);
    // What TCP and the windows need to grow is not counted.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (before, begin) = (crowd.bytes.get(), WallInstant::now());
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let bytes = crowd.bytes.get() - before;
    println!("bytes {bytes}");
    println!("seconds {}", begin.elapsed().as_secs_f64());
    Ok(())
}

/// A client with a key of its own. Nothing here is worth guessing.
fn machine(number: u8) -> Result<Rc<RefCell<Endpoint>>, Box<dyn Error>> {
    let identity = Identity::from_seed([number; 32]);
    let endpoint = Endpoint::client(identity, SessionConfig::default(), [number; 32])?;
    Ok(Rc::new(RefCell::new(endpoint)))
}

impl Guest {
    fn begin(
        crowd: Rc<Crowd>,
        endpoint: Rc<RefCell<Endpoint>>,
        id: SocketId,
    ) -> Result<Self, Box<dyn Error>> {
        let local = SocketAddr::new(crowd.options.relay.ip(), 0);
        let interface = None;
        let socket = UdpSocket::bind(UdpBind { interface, local })?;
        let tuple = FourTuple {
            socket: id,
            local_ip: None,
            remote: crowd.options.relay,
        };
        let (key, token) = (crowd.options.key, crowd.options.token.clone());
        let now = crowd.clock.now();
        let opened = endpoint
            .borrow_mut()
            .connect(now, key, Some(token), vec![tuple]);
        Ok(Self {
            socket,
            id,
            handle: opened?,
            stream: None,
            endpoint,
            crowd,
        })
    }

    async fn run(mut self) {
        let mut fetching = self.crowd.fetching.subscribe();
        // Until the runtime has asked once, a socket counts as full: its first packet is lost.
        let _ = poll_fn(|cx| self.socket.poll_writable(cx)).await;
        loop {
            let deadline = self.drain();
            let wait = deadline.map_or(IDLE, |at| at.since(self.crowd.clock.now()));
            let is_idle = !*fetching.borrow();
            tokio::select! {
                _ = poll_fn(|cx| self.socket.poll_readable(cx)) => self.receive(),
                () = tokio::time::sleep(wait) => self.expire(),
                _ = fetching.changed(), if is_idle => self.fetch(),
            }
            // The others' turn, so that one that is never done starves nobody.
            tokio::task::yield_now().await;
        }
    }

    fn receive(&self) {
        let mut received = self.crowd.received.borrow_mut();
        if self.socket.try_recv(&mut received).is_err() {
            return;
        }
        let now = self.crowd.clock.now();
        for datagram in received.datagrams() {
            let tuple = FourTuple {
                socket: self.id,
                local_ip: None,
                remote: datagram.meta.remote,
            };
            let mut endpoint = self.endpoint.borrow_mut();
            endpoint.handle_datagram(now, tuple, datagram.payload);
        }
    }

    fn expire(&self) {
        let now = self.crowd.clock.now();
        if let Some(session) = self.endpoint.borrow_mut().session_mut(self.handle) {
            session.handle_timeout(now);
        }
    }

    fn fetch(&mut self) {
        let now = self.crowd.clock.now();
        let mut request = Vec::new();
        let source = Request {
            transport: Transport::Tcp,
            target: Target::Address(self.crowd.options.source),
        };
        source.emit(&mut request);
        let mut endpoint = self.endpoint.borrow_mut();
        let session = endpoint
            .session_mut(self.handle)
            .expect("it is never reaped");
        let stream = session.open_stream(now).expect("the session is up");
        session.write(now, stream, &request).expect("it is new");
        self.stream = Some(stream);
    }

    /// Reads and sends what there is; gives the next deadline.
    fn drain(&self) -> Option<Instant> {
        let crowd = &self.crowd;
        let now = crowd.clock.now();
        let mut endpoint = self.endpoint.borrow_mut();
        let session = endpoint.session_mut(self.handle)?;
        while let Some(event) = session.poll_event() {
            match event {
                Event::Connected => crowd.connected.send_modify(|count| *count += 1),
                Event::Closed(reason) => {
                    eprintln!("session {}: {reason}", self.id.0);
                    std::process::exit(1);
                }
                _ => {}
            }
        }
        if let Some(stream) = self.stream {
            while let Ok(ReadState::Data(data)) = session.peek(stream) {
                let n = data.len();
                crowd.bytes.set(crowd.bytes.get() + n as u64);
                session.consume(now, stream, n);
            }
        }
        let mut batch = crowd.transmits.borrow_mut();
        loop {
            batch.clear();
            while session.poll_transmit(now, &mut batch) {}
            if batch.is_empty() {
                break;
            }
            for transmit in batch.iter() {
                // A full socket loses it, as a network would.
                let _ = self.socket.try_send(Transmit {
                    remote: transmit.tuple.remote,
                    local_ip: None,
                    segment_size: Some(transmit.segment_size),
                    contents: transmit.contents,
                });
            }
        }
        session.poll_timeout().map(|(at, _)| at)
    }
}
