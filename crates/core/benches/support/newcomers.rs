//! Clients that come to a server, are let in and go, in virtual time: what the benches of
//! handshakes work on. The server's part is a function of its own, which a caller may time, or
//! count by its name.

use std::hint::black_box;

use tabane_base::{Duration, Instant};
use tabane_core::{
    CloseReason, Endpoint, Event, FourTuple, Identity, PublicKey, ServerConfig, SessionConfig,
    SessionHandle, SocketId, TransmitBatch,
};

/// A server, with what it has to say.
pub(crate) struct Host {
    endpoint: Endpoint,
    batch: TransmitBatch,
    handle: Option<SessionHandle>,
}

/// What happens at the server, in these steps.
pub(crate) enum Step {
    /// These datagrams come, and are answered.
    Take(Vec<Vec<u8>>),
    /// The session ends.
    End,
}

/// A server and whoever comes to it.
pub(crate) struct Newcomers {
    pub(crate) host: Host,
    client: Endpoint,
    key: PublicKey,
    now: Instant,
}

fn tuple() -> FourTuple {
    FourTuple {
        socket: SocketId(0),
        local_ip: None,
        remote: ([10, 78, 0, 1], 4_510).into(),
    }
}

fn datagrams(batch: &TransmitBatch) -> Vec<Vec<u8>> {
    let each = batch.iter();
    each.flat_map(|it| it.contents.chunks(it.segment_size))
        .map(<[u8]>::to_vec)
        .collect()
}

impl Host {
    /// The server's part of a step.
    pub(crate) fn carry_out(&mut self, now: Instant, step: Step) {
        match step {
            Step::Take(datagrams) => self.take(now, datagrams),
            Step::End => self.end(now),
        }
    }

    fn take(&mut self, now: Instant, datagrams: Vec<Vec<u8>>) {
        for mut datagram in datagrams {
            self.endpoint.handle_datagram(now, tuple(), &mut datagram);
        }
        self.handle = self.handle.or_else(|| self.endpoint.poll_incoming());
        self.batch.clear();
        while self.endpoint.poll_transmit(now, &mut self.batch) {}
        let session = self.handle.and_then(|it| self.endpoint.session_mut(it));
        if let Some(session) = session {
            while let Some(event) = session.poll_event() {
                if let Event::Authorise { .. } = event {
                    session.admit(now);
                }
            }
            while session.poll_transmit(now, &mut self.batch) {}
            black_box(session.poll_timeout());
        }
    }

    fn end(&mut self, now: Instant) {
        let handle = self.handle.take().expect("it came");
        if let Some(session) = self.endpoint.session_mut(handle) {
            session.close(now, CloseReason::ShuttingDown);
            self.batch.clear();
            while session.poll_transmit(now, &mut self.batch) {}
        }
        assert!(self.endpoint.reap(now, handle));
    }
}

impl Newcomers {
    pub(crate) fn new() -> Self {
        let identity = Identity::from_seed([1; 32]);
        let key = identity.public_key();
        let (config, accept) = (SessionConfig::default(), ServerConfig::default());
        let endpoint = Endpoint::server(identity, config.clone(), accept, [2; 32]).expect("valid");
        let host = Host {
            endpoint,
            batch: TransmitBatch::new(262_028),
            handle: None,
        };
        let me = Identity::from_seed([3; 32]);
        Self {
            host,
            client: Endpoint::client(me, config, [4; 32]).expect("valid"),
            key,
            now: Instant::from_millis(1_000),
        }
    }

    /// One comes, is let in, and is gone. `carry_out` has the host do its part of each step.
    pub(crate) fn one(&mut self, mut carry_out: impl FnMut(&mut Host, Instant, Step)) {
        let ours = self.come(&mut carry_out);
        carry_out(&mut self.host, self.now, Step::End);
        self.leave(ours);
    }

    /// One comes, is let in, and stays: a session of the host's of which nothing is heard any more.
    #[allow(
        dead_code,
        reason = "not every bench has sessions beside those it looks at"
    )]
    pub(crate) fn one_that_stays(&mut self) {
        let ours = self.come(Host::carry_out);
        self.host.handle = None;
        self.leave(ours);
    }

    /// One comes and is let in: its session.
    fn come(&mut self, mut carry_out: impl FnMut(&mut Host, Instant, Step)) -> SessionHandle {
        self.now += Duration::from_millis(1);
        let (now, client) = (self.now, &mut self.client);
        let ours = client.connect(now, self.key, None, vec![tuple()]);
        let ours = ours.expect("a link");
        let (mut batch, mut is_up) = (TransmitBatch::new(65_000), false);
        while !is_up {
            let session = client.session_mut(ours).expect("it lives");
            batch.clear();
            while session.poll_transmit(now, &mut batch) {}
            carry_out(&mut self.host, now, Step::Take(datagrams(&batch)));
            for mut datagram in datagrams(&self.host.batch) {
                client.handle_datagram(now, tuple(), &mut datagram);
            }
            let session = client.session_mut(ours).expect("it lives");
            while let Some(event) = session.poll_event() {
                is_up |= event == Event::Connected;
            }
        }
        ours
    }

    /// The client's session is over, and nobody hears of it.
    fn leave(&mut self, ours: SessionHandle) {
        let (now, mut batch) = (self.now, TransmitBatch::new(65_000));
        let session = self.client.session_mut(ours).expect("it lives");
        session.close(now, CloseReason::ShuttingDown);
        while session.poll_transmit(now, &mut batch) {}
        assert!(self.client.reap(now, ours));
    }
}
