//! What a client has opened: a TCP connection that the relay has confirmed, or a UDP flow.

use std::cell::RefCell;
use std::future::poll_fn;
use std::task::{Context, Poll};

use bytes::Bytes;
use tabane_base::Duration;
use tokio::net::TcpStream;
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
    pub async fn carry_after(self, early: &[u8], tcp: TcpStream) -> Carried {
        // What fails here shows at once when carrying.
        let _ = self.stream.write_all(early).await;
        self.carry(tcp).await
    }

    /// Carries `tcp` through it until both directions have ended.
    pub async fn carry(self, tcp: TcpStream) -> Carried {
        let carried = Connection::new(self.stream, tcp, false).carry().await;
        drop(self.client);
        carried
    }
}

/// A program's TCP connection that nobody serves yet.
#[derive(Debug)]
pub struct Offer {
    /// The connection to the program; nothing was written to it.
    pub tcp: TcpStream,
    /// What was read from it, to be sent first wherever it goes.
    pub early: Vec<u8>,
}

impl From<TcpStream> for Offer {
    fn from(tcp: TcpStream) -> Self {
        let early = Vec::new();
        Self { tcp, early }
    }
}

/// A TCP connection that could not be served through the session, given back.
#[derive(Debug)]
pub struct Unserved {
    /// The connection, as it was but for what was read from it.
    pub offer: Offer,
    /// Why.
    pub why: OpenError,
}

/// A UDP flow to one destination; dropping it ends it.
pub struct UdpFlow {
    flow: RefCell<Flow>,
    /// What ended it, once something has.
    ended: RefCell<Option<FlowError>>,
    /// Keeps the session up.
    _client: Client,
}

impl UdpFlow {
    pub(super) fn new(client: Client, flow: Flow) -> Self {
        Self {
            flow: RefCell::new(flow),
            ended: RefCell::new(None),
            _client: client,
        }
    }

    /// Waits for the relay's word on the flow, which [`recv`](Self::recv) then does not tell again.
    ///
    /// # Errors
    /// The relay refused it, or the session ended.
    pub async fn opened(&self) -> Result<(), FlowError> {
        let status = poll_fn(|cx| self.flow.borrow_mut().stream_mut().poll_status(cx)).await;
        match status {
            Ok(Status::Open) => Ok(()),
            Ok(status) => Err(FlowError::Refused(status)),
            Err(StreamEnd::SessionLost) => Err(FlowError::SessionLost),
            Err(StreamEnd::Reset | StreamEnd::Finished) => Err(FlowError::Ended),
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
    /// The relay refused the flow, or ended it, or the session ended. No more will come.
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
                Poll::Ready(Ok(Status::Open)) => continue,
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
