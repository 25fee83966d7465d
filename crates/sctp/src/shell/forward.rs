//! `tabane sctp forward`: one association per TCP connection.
//!
//! Owns the loop that serves all of them, at either end; what passes through one is `bridge`'s.

use std::io;
use std::net::SocketAddr;
use std::task::Poll;
use std::time::Instant;

use crate::{EndpointId, Event, Incoming, path::ASSOCIATIONS_MAX};
use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use serde::Serialize;
use tabane_base::Duration;
use tabane_linux::{abortive::AbortiveStream, signals::Signals};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use super::bridge::Bridge;
use super::driver::Driver;
use super::home::Home;
use super::links::LinkSet;
use super::outgoing::Outgoing;
use super::scheduler::Scheduler;
use tabane_store::Store;
use tabane_uplinks::LinksView;

/// After a connection could not be accepted (no descriptors, say), others wait so long.
const REST: Duration = Duration::from_millis(200);
/// How often it is told that associations are turned away.
const SPELL: Duration = Duration::from_secs(60);

/// What was asked for.
pub struct Order {
    /// Which end this is.
    pub end: End,
    /// The SCTP port: the peer's at the programs' end, ours at the servers'.
    pub port: u16,
    /// How long a peer may be silent.
    pub patience: Duration,
}

/// Which end this is.
pub enum End {
    /// Takes TCP connections.
    Programs {
        /// Where connections are taken.
        listen: SocketAddr,
        /// The peer's addresses, with the UDP port.
        remotes: Vec<SocketAddr>,
        /// The links to use; none for all that may be.
        links: Vec<String>,
        /// Which path a message takes.
        scheduler: Scheduler,
        /// How long the set-up of an association may take.
        timeout: Duration,
    },
    /// Takes associations, and connects each to `server`.
    Servers {
        /// The TCP server, host and port.
        server: String,
        /// Where SCTP comes in UDP.
        udp_port: u16,
    },
}

/// A connection that has ended.
#[derive(Clone, Debug, Serialize)]
pub struct Carried {
    /// From TCP to SCTP.
    pub sent_bytes: u64,
    /// From SCTP to TCP.
    pub received_bytes: u64,
    /// From its beginning to its end.
    pub seconds: f64,
    /// Why both sides were reset; `None` where both ended in good order.
    pub reset: Option<String>,
}

/// Serves until a signal comes. `ready` is told where, `tell` of every connection that has ended;
/// what `show` makes of the view of the links is kept meanwhile. At the servers' end the peer
/// chooses, and there are none.
pub async fn forward<V>(
    order: Order,
    store: &Store,
    show: impl FnOnce(LinksView) -> Result<V>,
    ready: impl FnOnce(&str),
    tell: impl FnMut(&Carried) -> Result<()>,
) -> Result<()> {
    let signals = Signals::catch(&[Signal::SIGINT, Signal::SIGTERM])?;
    let scheduler = match &order.end {
        End::Programs { scheduler, .. } => *scheduler,
        End::Servers { .. } => Scheduler::default(),
    };
    let mut driver = Driver::start(&scheduler.settings())?;
    let patience = order.patience;
    let door = Door::open(order, &mut driver, store).await?;
    let _shown = match &door {
        Door::Programs { links, .. } => Some(show(links.view())?),
        Door::Servers { .. } => None,
    };
    ready(&door.name()?);
    let mut forwarding = Forwarding {
        driver,
        door,
        bridges: Vec::new(),
        turned_away_at: None,
        patience,
        tell,
    };
    loop {
        tokio::select! {
            signal = signals.next() => {
                signal?;
                return forwarding.end();
            }
            turn = forwarding.turn() => turn?,
        }
    }
}

/// A TCP connection to the server, or why there is none, for an accepted association.
type Connected = (EndpointId, io::Result<TcpStream>);

/// Where connections come in.
enum Door {
    Programs {
        listener: TcpListener,
        links: Box<LinkSet>,
        remotes: Vec<SocketAddr>,
        port: u16,
        scheduler: Scheduler,
        timeout: Duration,
        /// Nothing is accepted before.
        rest_until: Instant,
    },
    Servers {
        home: Home,
        server: String,
        connected: mpsc::Sender<Connected>,
        connections: mpsc::Receiver<Connected>,
        names: String,
    },
}

impl Door {
    async fn open(order: Order, driver: &mut Driver, store: &Store) -> Result<Self> {
        match order.end {
            End::Programs {
                listen,
                remotes,
                links,
                scheduler,
                timeout,
            } => {
                let listener = TcpListener::bind(listen)
                    .await
                    .with_context(|| format!("cannot listen on {listen}"))?;
                let links = LinkSet::open(driver, links, &remotes, store).await?;
                Ok(Self::Programs {
                    listener,
                    links: Box::new(links),
                    remotes,
                    port: order.port,
                    scheduler,
                    timeout,
                    rest_until: Instant::now(),
                })
            }
            End::Servers { server, udp_port } => {
                let home = Home::open(driver, order.port, udp_port).await?;
                let (connected, connections) = mpsc::channel(ASSOCIATIONS_MAX);
                Ok(Self::Servers {
                    home,
                    server,
                    connected,
                    connections,
                    names: format!("SCTP port {}, in UDP port {udp_port}", order.port),
                })
            }
        }
    }

    /// Where it is, for people.
    fn name(&self) -> Result<String> {
        match self {
            Self::Programs { listener, .. } => {
                let address = listener.local_addr().context("a listener has no address")?;
                Ok(format!("TCP connections at {address}"))
            }
            Self::Servers { names, server, .. } => {
                Ok(format!("associations at {names}, for {server}"))
            }
        }
    }

    /// There is another table of links, be it that a budget has just ended.
    fn has_news(&mut self) -> bool {
        match self {
            Self::Programs { links, .. } => {
                links.count_if_due();
                links.has_news()
            }
            Self::Servers { .. } => false,
        }
    }

    /// Waits for what concerns the door.
    async fn wait(&mut self, has_room: bool) -> Happened {
        match self {
            Self::Programs {
                listener,
                links,
                rest_until,
                ..
            } => tokio::select! {
                () = links.changed() => Happened::Links,
                accepted = listener.accept(), if has_room && Instant::now() >= *rest_until => {
                    match accepted {
                        Ok((stream, _)) => Happened::Accepted(stream),
                        Err(error) => {
                            tracing::warn!(%error, "a connection was not accepted");
                            *rest_until = Instant::now() + REST;
                            Happened::Nothing
                        }
                    }
                }
            },
            Self::Servers {
                home, connections, ..
            } => tokio::select! {
                () = home.changed() => Happened::Links,
                Some(connected) = connections.recv() => Happened::Connected(connected),
            },
        }
    }
}

enum Happened {
    Nothing,
    Accepted(TcpStream),
    Links,
    Connected(Connected),
}

struct Forwarding<T> {
    driver: Driver,
    door: Door,
    bridges: Vec<Bridge>,
    /// When that was told last: anybody may come without end.
    turned_away_at: Option<Instant>,
    patience: Duration,
    tell: T,
}

impl<T: FnMut(&Carried) -> Result<()>> Forwarding<T> {
    async fn turn(&mut self) -> Result<()> {
        let bridges = &self.bridges;
        let ready = std::future::poll_fn(|cx| {
            // All of them are asked, so that each wakes us.
            match bridges.iter().filter(|bridge| bridge.is_ready(cx)).count() {
                0 => Poll::Pending,
                _ => Poll::Ready(()),
            }
        });
        let has_room = bridges.len() < ASSOCIATIONS_MAX;
        let happened = tokio::select! {
            () = self.driver.wait() => Happened::Nothing,
            () = ready => Happened::Nothing,
            happened = self.door.wait(has_room) => happened,
        };
        match happened {
            Happened::Nothing => {}
            Happened::Accepted(stream) => self.begin(stream),
            Happened::Links => self.follow().await?,
            Happened::Connected((endpoint, stream)) => self.on_connected(endpoint, stream),
        }
        if self.door.has_news() {
            self.follow().await?;
        }
        self.driver.turn();
        self.accept();
        for bridge in &mut self.bridges {
            match &self.door {
                Door::Programs { links, timeout, .. } => {
                    bridge.turn(&mut self.driver, Some(links), self.patience);
                    bridge.lose_patience(&mut self.driver, links, *timeout);
                }
                Door::Servers { .. } => bridge.turn(&mut self.driver, None, self.patience),
            }
        }
        self.bury()?;
        self.driver.flush();
        Ok(())
    }

    /// A program has connected.
    fn begin(&mut self, stream: TcpStream) {
        let Door::Programs {
            links,
            remotes,
            port,
            scheduler,
            ..
        } = &self.door
        else {
            return;
        };
        let stream = AbortiveStream::from(stream);
        // Small messages of a conversation are not to wait for each other.
        let _ = stream.set_nodelay(true);
        match Outgoing::begin(&mut self.driver, links, remotes, *port, *scheduler) {
            Ok(outgoing) => self.bridges.push(Bridge::begun(stream, outgoing)),
            Err(error) => tracing::warn!("a connection is reset: {error:#}"),
        }
    }

    /// Addresses have come or gone.
    async fn follow(&mut self) -> Result<()> {
        match &mut self.door {
            Door::Programs { links, .. } => {
                let (come, gone) = links.update(&mut self.driver);
                for bridge in &mut self.bridges {
                    bridge.on_links(&mut self.driver.stack, links, &come, &gone);
                }
                Ok(())
            }
            Door::Servers { home, .. } => {
                let accepted = self.bridges.iter().map(|bridge| bridge.endpoint);
                home.follow(&mut self.driver, accepted).await
            }
        }
    }

    fn on_connected(&mut self, endpoint: EndpointId, stream: io::Result<TcpStream>) {
        let Door::Servers { server, .. } = &self.door else {
            return;
        };
        let mut bridges = self.bridges.iter_mut();
        // The association may have ended meanwhile.
        let Some(bridge) = bridges.find(|bridge| bridge.endpoint == endpoint) else {
            return;
        };
        match stream {
            Ok(stream) => {
                let _ = stream.set_nodelay(true);
                bridge.connect(stream.into());
            }
            Err(error) => {
                let why = format!("cannot connect to {server}: {error}");
                bridge.give_up(&mut self.driver.stack, why);
            }
        }
    }

    /// Takes associations that have come.
    fn accept(&mut self) {
        let Door::Servers {
            home,
            server,
            connected,
            ..
        } = &self.door
        else {
            return;
        };
        let stack = &mut self.driver.stack;
        while let Some(incoming) = stack.poll_event(home.endpoint) {
            let Incoming::Event(Event::Up { association, .. }) = incoming else {
                continue;
            };
            if self.bridges.len() >= ASSOCIATIONS_MAX {
                let is_told = self.turned_away_at.is_some_and(|at| at.elapsed() < SPELL);
                if !is_told {
                    self.turned_away_at = Some(Instant::now());
                    tracing::warn!("associations are turned away: there are {ASSOCIATIONS_MAX}");
                }
                // It may have ended by itself.
                let _ = stack.abort(home.endpoint, association);
                continue;
            }
            let accepted = match stack.accept(home.endpoint, association) {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "an association was not accepted");
                    continue;
                }
            };
            let bridge = Bridge::accepted(stack, accepted, association);
            self.bridges.push(bridge);
            let (server, connected) = (server.clone(), connected.clone());
            tokio::task::spawn_local(async move {
                let stream = TcpStream::connect(&server).await;
                // Nobody listens any more once all is over.
                let _ = connected.send((accepted, stream)).await;
            });
        }
    }

    /// Tells of those that are done, and forgets them.
    fn bury(&mut self) -> Result<()> {
        let (done, alive) = std::mem::take(&mut self.bridges)
            .into_iter()
            .partition(Bridge::is_done);
        self.bridges = alive;
        if let Door::Programs { links, .. } = &self.door {
            links.set_associations(self.bridges.len());
        }
        self.conclude(done)
    }

    /// What is still open is reset, so that nobody takes it for complete.
    fn end(mut self) -> Result<()> {
        let mut open = std::mem::take(&mut self.bridges);
        for bridge in &mut open {
            bridge.give_up(&mut self.driver.stack, "ended by a signal");
        }
        self.conclude(open)?;
        self.driver.flush();
        Ok(())
    }

    fn conclude(&mut self, bridges: Vec<Bridge>) -> Result<()> {
        for mut bridge in bridges {
            bridge.close();
            self.driver.stack.close(bridge.endpoint);
            (self.tell)(&Carried {
                sent_bytes: bridge.sent,
                received_bytes: bridge.received,
                seconds: bridge.begun_at.elapsed().as_secs_f64(),
                reset: bridge.fault().map(str::to_owned),
            })?;
        }
        Ok(())
    }
}
