//! A UDP mapping at the client: one stream, and datagrams to and from many addresses.

use std::cell::RefCell;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::task::{Context, Poll};

use bytes::Bytes;
use tabane_core::DatagramOrder;

use super::Client;
use crate::flow::{Flow, FlowError, MAX_FLOW_PAYLOAD, order_for};
use crate::mapping::{MAX_HEADER, Notice, emit_remote, split};
use crate::request::Status;
use crate::stream::StreamEnd;
use crate::target::Target;

/// A port of the relay's that stands for a UDP socket here; dropping it ends it.
pub struct UdpMapping {
    state: RefCell<State>,
    /// What is sent to it has the shortest form.
    usual: SocketAddr,
    /// How datagrams are to be handed out.
    wanted: DatagramOrder,
    /// Keeps the session up.
    _client: Client,
}

struct State {
    flow: Flow,
    is_open: bool,
    /// The beginning of a notice.
    notice: Vec<u8>,
    /// What ended it, once something has.
    ended: Option<FlowError>,
}

/// What came for a mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UdpArrival {
    /// A datagram and its source.
    Datagram(SocketAddr, Bytes),
    /// What was sent to this address reaches nobody, and why.
    Undelivered(SocketAddr, Status),
}

impl UdpMapping {
    pub(super) fn new(
        client: Client,
        flow: Flow,
        usual: SocketAddr,
        wanted: DatagramOrder,
    ) -> Self {
        Self {
            state: RefCell::new(State {
                flow,
                is_open: false,
                notice: Vec::new(),
                ended: None,
            }),
            usual,
            wanted,
            _client: client,
        }
    }

    /// Sends one datagram; like UDP, it may be lost on the way or for want of room.
    ///
    /// # Errors
    /// It is too large, or the session ended.
    pub fn send(&self, remote: SocketAddr, payload: &[u8]) -> Result<(), FlowError> {
        if payload.len() > MAX_FLOW_PAYLOAD {
            return Err(FlowError::TooLarge);
        }
        let order = order_for(&Target::Address(remote), self.wanted);
        let sent = self.state.borrow().flow.send_part(Some(order), |buffer| {
            let (room, rest) = buffer
                .split_first_chunk_mut::<MAX_HEADER>()
                .ok_or(std::io::ErrorKind::OutOfMemory)?;
            let len = emit_remote(remote, Some(self.usual), room);
            rest[..payload.len()].copy_from_slice(payload);
            Ok(MAX_HEADER - len..MAX_HEADER + payload.len())
        });
        match sent {
            Ok(result) => result.map(drop),
            // Copying cannot fail.
            Err(_) => Err(FlowError::SessionLost),
        }
    }

    /// Waits for what comes next.
    ///
    /// # Errors
    /// The relay refused the mapping, or ended it, or the session ended. No more will come.
    pub async fn recv(&self) -> Result<UdpArrival, FlowError> {
        poll_fn(|cx| self.state.borrow_mut().poll(cx, self.usual)).await
    }
}

impl State {
    fn poll(&mut self, cx: &Context<'_>, usual: SocketAddr) -> Poll<Result<UdpArrival, FlowError>> {
        loop {
            match self.flow.poll_recv(cx) {
                Poll::Ready(Some(datagram)) => {
                    if let Some((remote, payload)) = split(datagram, usual) {
                        return Poll::Ready(Ok(UdpArrival::Datagram(remote, payload)));
                    }
                }
                Poll::Ready(None) => return Poll::Ready(Err(FlowError::SessionLost)),
                Poll::Pending => break,
            }
        }
        if let Some(error) = self.ended {
            return Poll::Ready(Err(error));
        }
        self.poll_stream(cx)
            .map(|come| come.inspect_err(|error| self.ended = Some(*error)))
    }

    /// The relay's first byte, and the notices behind it.
    fn poll_stream(&mut self, cx: &Context<'_>) -> Poll<Result<UdpArrival, FlowError>> {
        loop {
            match Notice::parse(&self.notice) {
                Ok(Some((notice, used))) => {
                    self.notice.drain(..used);
                    let Notice { status, remote } = notice;
                    return Poll::Ready(Ok(UdpArrival::Undelivered(remote, status)));
                }
                Ok(None) => {}
                Err(()) => return Poll::Ready(Err(FlowError::Refused(Status::Malformed))),
            }
            let Poll::Ready(read) = self.flow.stream_mut().poll_byte(cx) else {
                return Poll::Pending;
            };
            let byte = match read {
                Ok(byte) => byte,
                Err(StreamEnd::SessionLost) => return Poll::Ready(Err(FlowError::SessionLost)),
                Err(StreamEnd::Reset | StreamEnd::Finished) => {
                    return Poll::Ready(Err(FlowError::Ended));
                }
            };
            if self.is_open {
                self.notice.push(byte);
                continue;
            }
            match Status::parse(byte).unwrap_or(Status::Malformed) {
                Status::Open => self.is_open = true,
                status => return Poll::Ready(Err(FlowError::Refused(status))),
            }
        }
    }
}
