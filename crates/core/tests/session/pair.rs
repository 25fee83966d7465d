//! Two endpoints and the wire between them.

use std::net::SocketAddr;

use tabane_base::{Duration, Instant};
use tabane_core::{
    CloseReason, Endpoint, Event, FourTuple, Identity, PathId, PublicKey, ServerConfig,
    SessionConfig, SessionHandle, SocketId, StreamId, TransmitBatch,
};

pub(super) const SERVER: SocketId = SocketId(100);
/// One way, unless the test gives a link its own.
pub(super) const DELAY: Duration = Duration::from_millis(5);

/// Client socket `n` has the address 10.0.n.2.
pub(super) fn client_address(n: u32) -> SocketAddr {
    SocketAddr::from(([10, 0, n as u8, 2], 4_000))
}

pub(super) fn server_address() -> SocketAddr {
    SocketAddr::from(([10, 78, 0, 1], 4_510))
}

pub(super) fn client_tuple(n: u32) -> FourTuple {
    FourTuple {
        socket: SocketId(n),
        local_ip: None,
        remote: server_address(),
    }
}

pub(super) struct Pair {
    pub(super) now: Instant,
    pub(super) client: Endpoint,
    pub(super) server: Endpoint,
    pub(super) handle: SessionHandle,
    pub(super) server_handle: Option<SessionHandle>,
    /// Arrival, towards the server, tuple at the receiver, datagram.
    pub(super) wire: Vec<(Instant, bool, FourTuple, Vec<u8>)>,
    pub(super) events: Vec<Event>,
    pub(super) server_events: Vec<Event>,
    pub(super) admit: bool,
    /// One way, of the client's sockets.
    pub(super) delays: [Duration; 9],
}

impl Pair {
    pub(super) fn new(pinned: Option<PublicKey>, token: Option<Vec<u8>>) -> Self {
        let identity = Identity::from_seed([1; 32]);
        let key = pinned.unwrap_or_else(|| identity.public_key());
        let config = SessionConfig::default();
        let server = ServerConfig::default();
        let server = Endpoint::server(identity, config.clone(), server, [2; 32]).expect("valid");
        let me = Identity::from_seed([3; 32]);
        let mut client = Endpoint::client(me, config, [4; 32]).expect("valid");
        let now = Instant::from_millis(1_000);
        let handle = client
            .connect(now, key, token, vec![client_tuple(0)])
            .expect("a link");
        Self {
            now,
            client,
            server,
            handle,
            server_handle: None,
            wire: Vec::new(),
            events: Vec::new(),
            server_events: Vec::new(),
            admit: true,
            delays: [DELAY; 9],
        }
    }

    /// With a session, and whatever its ends say at the beginning said.
    pub(super) fn connected() -> Self {
        let mut pair = Self::new(None, None);
        pair.run(Duration::from_millis(200));
        pair
    }

    /// The client's, from its socket `n`.
    pub(super) fn open_path(&mut self, n: u32) -> PathId {
        let now = self.now;
        let path = self.session().open_path(now, client_tuple(n));
        path.expect("connected")
    }

    pub(super) fn open_stream(&mut self) -> StreamId {
        let now = self.now;
        self.session().open_stream(now).expect("connected")
    }

    /// Has the client write; how many bytes there was room for.
    pub(super) fn write(&mut self, id: StreamId, bytes: &[u8]) -> usize {
        let now = self.now;
        self.session().write(now, id, bytes).expect("open")
    }

    pub(super) fn session(&mut self) -> &mut tabane_core::Session {
        self.client.session_mut(self.handle).expect("not reaped")
    }

    pub(super) fn server_session(&mut self) -> &mut tabane_core::Session {
        let handle = self.server_handle.expect("accepted");
        self.server.session_mut(handle).expect("not reaped")
    }

    pub(super) fn drain(&mut self) {
        self.server_handle = self.server_handle.or_else(|| self.server.poll_incoming());
        let mut batch = TransmitBatch::new(100_000);
        for to_server in [true, false] {
            let (endpoint, handle) = match to_server {
                true => (&mut self.client, Some(self.handle)),
                false => (&mut self.server, self.server_handle),
            };
            batch.clear();
            endpoint.poll_transmit(self.now, &mut batch);
            if let Some(session) = handle.and_then(|h| endpoint.session_mut(h)) {
                while session.poll_transmit(self.now, &mut batch) {}
                while let Some(event) = session.poll_event() {
                    match &event {
                        Event::Authorise { .. } if self.admit => session.admit(self.now),
                        Event::Authorise { .. } => {
                            session.close(self.now, CloseReason::Unauthorised);
                        }
                        _ => {}
                    }
                    let log = if to_server {
                        &mut self.events
                    } else {
                        &mut self.server_events
                    };
                    log.push(event);
                }
                while session.poll_transmit(self.now, &mut batch) {}
            }
            for transmit in batch.iter() {
                for datagram in transmit.contents.chunks(transmit.segment_size) {
                    let link;
                    let tuple = if to_server {
                        link = transmit.tuple.socket.0;
                        FourTuple {
                            socket: SERVER,
                            local_ip: Some(server_address().ip()),
                            remote: client_address(transmit.tuple.socket.0),
                        }
                    } else {
                        let n = (0..9).find(|n| client_address(*n) == transmit.tuple.remote);
                        link = n.expect("one of the client's");
                        client_tuple(link)
                    };
                    let arrives_at = self.now + self.delays[link as usize];
                    self.wire
                        .push((arrives_at, to_server, tuple, datagram.to_vec()));
                }
            }
        }
    }

    /// Runs for `span` of virtual time.
    pub(super) fn run(&mut self, span: Duration) {
        let end = self.now + span;
        let mut same = 0;
        loop {
            self.drain();
            let wire = self.wire.iter().map(|(at, ..)| *at).min();
            let timers = [
                self.client
                    .session(self.handle)
                    .and_then(|s| s.poll_timeout()),
                self.server_handle
                    .and_then(|h| self.server.session(h))
                    .and_then(|s| s.poll_timeout()),
            ];
            let timer = timers.iter().flatten().map(|(at, _)| *at).min();
            let Some(next) = wire.into_iter().chain(timer).min() else {
                break;
            };
            if next > end {
                break;
            }
            same = if next <= self.now { same + 1 } else { 0 };
            assert!(same < 1_000, "busy loop at {}: {timers:?}", self.now);
            self.now = self.now.max(next);
            let (due, rest) = std::mem::take(&mut self.wire)
                .into_iter()
                .partition(|(at, ..)| *at <= self.now);
            self.wire = rest;
            for (_, to_server, tuple, mut datagram) in due {
                let endpoint = if to_server {
                    &mut self.server
                } else {
                    &mut self.client
                };
                endpoint.handle_datagram(self.now, tuple, &mut datagram);
            }
            let now = self.now;
            self.session().handle_timeout(now);
            if self.server_handle.is_some() {
                self.server_session().handle_timeout(now);
            }
        }
        self.now = end;
    }
}
