//! What a client has opened: a TCP connection that the relay has confirmed, or a UDP flow.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Context, Poll};

use bytes::Bytes;
use tabane_base::Duration;
use tabane_linux::abortive::AbortiveStream;
use tokio::time::timeout;

use super::{Client, OpenError};
use crate::connection::{Carried, Connection};
use crate::flow::{Flow, FlowError, MAX_FLOW_PAYLOAD};
use crate::request::Status;
use crate::stream::{Stream, StreamEnd};

/// Longer than the relay takes to resolve a name and to try its addresses, plus a slow link.
const STATUS_WAIT: Duration = Duration::from_secs(30);

/// A TCP connection that the relay has opened; dropping it ends it.
pub struct TcpFlow {
    stream: Stream,
    /// Keeps the session up.
    client: Client,
}

impl TcpFlow {
    pub(super) const fn new(client: Client, stream: Stream) -> Self {
        Self { stream, client }
    }

    /// Waits for the relay's word.
    pub(super) async fn confirm(client: Client, mut stream: Stream) -> Result<Self, OpenError> {
        let status = poll_fn(|cx| stream.poll_status(cx));
        match timeout(STATUS_WAIT, status).await {
            Ok(Ok(Status::Open)) => Ok(Self { stream, client }),
            Ok(Ok(status)) => Err(OpenError::Refused(status)),
            Ok(Err(StreamEnd::SessionLost)) => Err(OpenError::SessionLost),
            Ok(Err(StreamEnd::Reset | StreamEnd::Finished)) => {
                Err(OpenError::Refused(Status::Unreachable))
            }
            Err(_) => Err(OpenError::TimedOut),
        }
    }

    /// Sends `early` ahead of what comes from `tcp`, then carries `tcp` as [`carry`](Self::carry).
    pub async fn carry_after(self, early: &[u8], tcp: impl Into<AbortiveStream>) -> Carried {
        let tcp = tcp.into();
        // What fails here shows at once when carrying.
        let _ = self.stream.write_all(early).await;
        self.carry(tcp).await
    }

    /// Carries `tcp` through it until both directions have ended.
    pub async fn carry(self, tcp: impl Into<AbortiveStream>) -> Carried {
        let carried = Connection::new(self.stream, tcp.into()).carry().await;
        drop(self.client);
        carried
    }
}

/// A UDP flow to one destination; dropping it ends it.
pub struct UdpFlow {
    flow: RefCell<Flow>,
    /// What ended it, once something has.
    ended: RefCell<Option<FlowError>>,
    /// The relay has said that it is open.
    is_open: Cell<bool>,
    /// Keeps the session up.
    _client: Client,
}

impl UdpFlow {
    pub(super) fn new(client: Client, flow: Flow) -> Self {
        Self {
            flow: RefCell::new(flow),
            ended: RefCell::new(None),
            is_open: Cell::new(false),
            _client: client,
        }
    }

    /// Sends one datagram; like UDP, it may be lost on the way or for want of room.
    ///
    /// # Errors
    /// It is too large, or the session ended.
    pub fn send(&self, payload: &[u8]) -> Result<(), FlowError> {
        if payload.len() > MAX_FLOW_PAYLOAD {
            return Err(FlowError::TooLarge);
        }
        let sent = self.flow.borrow().send_with(|buffer| {
            buffer[..payload.len()].copy_from_slice(payload);
            Ok(payload.len())
        });
        match sent {
            Ok(result) => result.map(drop),
            // Copying cannot fail.
            Err(_) => Err(FlowError::SessionLost),
        }
    }

    /// Waits for the next datagram.
    ///
    /// # Errors
    /// The relay refused the flow, or ended it, or the session ended, and no more will come; but
    /// [`FlowError::Undelivered`] tells of a datagram, and the flow goes on.
    pub async fn recv(&self) -> Result<Bytes, FlowError> {
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// Ready with the next datagram; see [`recv`](Self::recv).
    ///
    /// # Errors
    /// As [`recv`](Self::recv).
    pub fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<Result<Bytes, FlowError>> {
        let mut flow = self.flow.borrow_mut();
        match flow.poll_recv(cx) {
            Poll::Ready(Some(payload)) => return Poll::Ready(Ok(payload)),
            Poll::Ready(None) => return Poll::Ready(Err(FlowError::SessionLost)),
            Poll::Pending => {}
        }
        let mut ended = self.ended.borrow_mut();
        while ended.is_none() {
            *ended = match flow.stream_mut().poll_status(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(Status::Open)) => {
                    self.is_open.set(true);
                    continue;
                }
                Poll::Ready(Ok(status)) if self.is_open.get() => {
                    return Poll::Ready(Err(FlowError::Undelivered(status)));
                }
                Poll::Ready(Ok(status)) => Some(FlowError::Refused(status)),
                Poll::Ready(Err(StreamEnd::SessionLost)) => Some(FlowError::SessionLost),
                Poll::Ready(Err(StreamEnd::Reset | StreamEnd::Finished)) => Some(FlowError::Ended),
            };
        }
        match *ended {
            Some(error) => Poll::Ready(Err(error)),
            None => Poll::Pending,
        }
    }
}
