//! UDP flows: datagrams whose flow has the number of the stream that stands for it [P-T].
//!
//! Owns sending and receiving at one end of a flow, and which flows are handed out in order. What
//! came and waits is the inboxes'; when a flow begins and ends is decided where its stream is.

use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::task::{Context, Poll};

use bytes::Bytes;
use tabane_core::{DatagramError, DatagramOrder, FlowId};

use crate::request::Status;
use crate::stream::Stream;
use crate::target::Target;

/// The most one datagram of a flow may carry, in bytes: what UDP over IPv4 does.
pub const MAX_FLOW_PAYLOAD: usize = 65_507;

/// Ports of protocols that ask and are answered, a datagram each: there is nothing to put in
/// order. DNS, NTP, SNMP, mDNS, STUN.
const AT_ONCE_PORTS: [u16; 5] = [53, 123, 161, 5353, 3478];

/// How flows to `target` are handed out when users want `wanted`.
pub(crate) fn order_for(target: &Target, wanted: DatagramOrder) -> DatagramOrder {
    let port = match target {
        Target::Resolver | Target::Anywhere => return DatagramOrder::AtOnce,
        Target::Address(address) => address.port(),
        Target::Name { port, .. } => *port,
    };
    match AT_ONCE_PORTS.contains(&port) {
        true => DatagramOrder::AtOnce,
        false => wanted,
    }
}

/// Why a datagram was not taken or none will come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlowError {
    /// Longer than [`MAX_FLOW_PAYLOAD`].
    #[error("a datagram may have at most {MAX_FLOW_PAYLOAD} bytes")]
    TooLarge,
    /// What was sent did not reach anybody, says the destination's host or a router. The flow goes
    /// on.
    #[error("{0}")]
    Undelivered(Status),
    /// The relay refused the flow.
    #[error("{0}")]
    Refused(Status),
    /// The relay ended the flow, usually because nothing passed for a while. Open another one.
    #[error("the flow has ended")]
    Ended,
    /// The session ended. Flows of the next session can be opened.
    #[error("the session to the relay ended")]
    SessionLost,
}

/// One end of a flow, at the client or at the relay. Ends with its stream.
pub(crate) struct Flow {
    stream: Stream,
    /// How what we send is to be handed out; `None`: as the other end wants what it sends.
    order: Option<DatagramOrder>,
    /// Datagrams that core's queue did not take; UDP promises no more.
    dropped: Cell<u64>,
}

impl Flow {
    /// The flow that `stream` stands for, with the order that this end wants, if it has a say.
    pub(crate) fn new(stream: Stream, order: Option<DatagramOrder>) -> Self {
        let id = stream.id();
        stream.visit(|visit| {
            visit.inbox(id);
        });
        let dropped = Cell::new(0);
        Self {
            stream,
            order,
            dropped,
        }
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    pub(crate) fn stream_mut(&mut self) -> &mut Stream {
        &mut self.stream
    }

    pub(crate) fn into_stream(self) -> Stream {
        self.stream
    }

    /// Sends a datagram that `fill` writes into the memory it is given, and returns its length.
    /// `Ok(0)` where it was empty or `fill` failed with `WouldBlock`.
    pub(crate) fn send_with(
        &self,
        fill: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<Result<usize, FlowError>> {
        self.send_part(self.order, |buffer| {
            Ok(0..fill(&mut buffer[..MAX_FLOW_PAYLOAD])?)
        })
    }

    /// The same with a datagram that wants this order, where `fill` has put it somewhere in the
    /// memory it is given: [`MAX_FLOW_PAYLOAD`] and more.
    pub(crate) fn send_part(
        &self,
        order: Option<DatagramOrder>,
        fill: impl FnOnce(&mut [u8]) -> io::Result<Range<usize>>,
    ) -> io::Result<Result<usize, FlowError>> {
        let id = self.stream.id();
        let sent = self.stream.visit(|visit| {
            let part = fill(visit.buffer)?;
            let len = part.len();
            let said = self.stream.label.as_ref();
            let said = said.and_then(|label| label.treatment().order);
            let order = said.or(order);
            let order = order.unwrap_or_else(|| visit.inbox(id).order());
            let datagram = &visit.buffer[part];
            let flow = FlowId(id.get());
            match visit
                .session
                .send_datagram(visit.now, flow, order, datagram)
            {
                Ok(()) => {
                    visit.touch();
                    if let Some(label) = &self.stream.label {
                        label.on_sent(len);
                    }
                }
                Err(DatagramError::TooLarge) => return Ok(Err(FlowError::TooLarge)),
                Err(_) => self.dropped.set(self.dropped.get() + 1),
            }
            Ok(Ok(len))
        });
        sent.unwrap_or(Ok(Err(FlowError::SessionLost)))
    }

    /// The next datagram; `None` once the session has ended.
    pub(crate) fn poll_recv(&self, cx: &Context<'_>) -> Poll<Option<Bytes>> {
        let id = self.stream.id();
        match self.stream.visit(|visit| visit.poll_datagram(id, cx)) {
            Some(Poll::Ready(payload)) => {
                if let Some(label) = &self.stream.label {
                    label.on_received(payload.len());
                }
                Poll::Ready(Some(payload))
            }
            Some(Poll::Pending) => Poll::Pending,
            None => Poll::Ready(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tabane_base::Duration;

    #[test]
    fn questions_are_answered_at_once_and_the_rest_comes_in_order() {
        let wanted = DatagramOrder::Within(Duration::from_millis(25));
        let to = |address: &str| Target::Address(address.parse().unwrap());
        for (target, order) in [
            (Target::Resolver, DatagramOrder::AtOnce),
            (to("192.0.2.1:53"), DatagramOrder::AtOnce),
            (to("[2001:db8::1]:123"), DatagramOrder::AtOnce),
            (to("192.0.2.1:443"), wanted),
            (Target::host("a.example", 5201).unwrap(), wanted),
        ] {
            assert_eq!(order_for(&target, wanted), order, "{target:?}");
        }
    }
}
