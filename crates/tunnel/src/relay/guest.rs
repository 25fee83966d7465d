//! One admitted session at the relay: its streams, and how many of them it may have.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;

use tabane_base::Duration;
use tabane_core::{CloseReason, PublicKey, StreamId};
use tokio::time::{Instant, timeout};

use super::{Shared, destination, packets, udp};
use crate::connection::Connection;
use crate::engine::{Engine, SessionId};
use crate::flow::Flow;
use crate::request::{Request, RequestError, Status, Transport};
use crate::stream::{Stream, StreamEnd};

/// How long a stream may take to say what it wants: its request leaves in one packet, which is
/// repeated when lost.
const REQUEST_WAIT: Duration = Duration::from_secs(10);

pub(super) struct Guest {
    engine: Engine,
    shared: Rc<Shared>,
    session: SessionId,
    key: PublicKey,
    since: Instant,
    usage: Rc<Usage>,
}

/// What a session has at present.
#[derive(Default)]
struct Usage {
    connections: Cell<usize>,
    flows: Cell<usize>,
}

/// One connection or flow, counted while it lives.
struct Permit {
    usage: Rc<Usage>,
    transport: Transport,
}

impl Guest {
    pub(super) fn new(
        engine: Engine,
        shared: Rc<Shared>,
        session: SessionId,
        key: PublicKey,
    ) -> Self {
        tracing::info!(client = %key, session = session.serial(), "session up");
        Self {
            engine,
            shared,
            session,
            key,
            since: Instant::now(),
            usage: Rc::default(),
        }
    }

    /// Serves a stream that the client opened, in a task of its own.
    pub(super) fn serve(&self, id: StreamId) {
        let stream = Stream::new(self.engine.clone(), self.session, id);
        let (shared, usage) = (self.shared.clone(), self.usage.clone());
        tokio::task::spawn_local(async move {
            if let Err(end) = serve(stream, &shared, usage).await {
                tracing::debug!(?end, "a stream ended before it was served");
            }
        });
    }

    pub(super) fn log_closed(&self, reason: &CloseReason) {
        tracing::info!(
            client = %self.key,
            session = self.session.serial(),
            lasted_s = self.since.elapsed().as_secs(),
            %reason,
            "session closed",
        );
    }
}

impl Permit {
    fn take(usage: Rc<Usage>, transport: Transport, shared: &Shared) -> Option<Self> {
        let (taken, limit) = match transport {
            Transport::Tcp => (&usage.connections, shared.limits.connections),
            Transport::Udp | Transport::Packets => (&usage.flows, shared.limits.flows),
        };
        if taken.get() >= limit {
            return None;
        }
        taken.set(taken.get() + 1);
        Some(Self { usage, transport })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let taken = match self.transport {
            Transport::Tcp => &self.usage.connections,
            Transport::Udp | Transport::Packets => &self.usage.flows,
        };
        taken.set(taken.get() - 1);
    }
}

async fn serve(mut stream: Stream, shared: &Shared, usage: Rc<Usage>) -> Result<(), StreamEnd> {
    let request = match timeout(REQUEST_WAIT, stream.read_request()).await {
        Ok(request) => request?,
        Err(_) => return refuse(stream, Status::TimedOut).await,
    };
    let request = match request {
        Ok(request) => request,
        Err(error) => return refuse_malformed(stream, error).await,
    };
    let Some(permit) = Permit::take(usage, request.transport, shared) else {
        return refuse(stream, Status::Limit).await;
    };
    match request.transport {
        Transport::Tcp => serve_tcp(stream, shared, &request).await?,
        Transport::Udp => serve_udp(stream, shared, &request).await?,
        Transport::Packets => serve_packets(stream, shared).await?,
    }
    drop(permit);
    Ok(())
}

async fn serve_tcp(stream: Stream, shared: &Shared, request: &Request) -> Result<(), StreamEnd> {
    // A client that gives up meanwhile takes the attempts with it.
    let connected = tokio::select! {
        connected = destination::connect(shared, &request.target) => connected,
        end = poll_fn(|cx| stream.poll_reset(cx)) => return Err(end),
    };
    match connected {
        Ok(tcp) => {
            stream.write_all(&[Status::Open.emit()]).await?;
            Connection::new(stream, tcp, false).carry().await;
            Ok(())
        }
        Err(status) => refuse(stream, status).await,
    }
}

async fn serve_udp(stream: Stream, shared: &Shared, request: &Request) -> Result<(), StreamEnd> {
    // Before anything else: datagrams are on their way already.
    let flow = Flow::new(stream, None);
    match destination::bind_udp(shared, &request.target).await {
        Ok(socket) => {
            flow.stream().write_all(&[Status::Open.emit()]).await?;
            let idle = udp::idle_timeout(&request.target);
            udp::serve(flow, &socket, idle).await;
            Ok(())
        }
        Err(status) => refuse(flow.into_stream(), status).await,
    }
}

async fn serve_packets(stream: Stream, shared: &Shared) -> Result<(), StreamEnd> {
    if !packets::can_ping() {
        return refuse(stream, Status::Denied).await;
    }
    let flow = Flow::new(stream, None);
    flow.stream().write_all(&[Status::Open.emit()]).await?;
    packets::serve(flow, shared.mark, |ip| shared.access.allows(ip)).await;
    Ok(())
}

async fn refuse_malformed(stream: Stream, error: RequestError) -> Result<(), StreamEnd> {
    tracing::debug!(%error, "a request was not understood");
    refuse(stream, Status::Malformed).await
}

async fn refuse(mut stream: Stream, status: Status) -> Result<(), StreamEnd> {
    stream.write_all(&[status.emit()]).await?;
    stream.finish();
    stream.stop();
    Ok(())
}
