//! IP packets of a client that belong to no connection or UDP flow [P-T.4, P-T.5].
//!
//! Owns which of them are passed on and how. A client that has an address of the relay's pool sends
//! from that one and no other; its packets go out by the [`Exit`](super::exit), pings too, for
//! there their time to live and the errors of routers survive. Where there is no address of a
//! family, echo requests go by sockets of the relay's own, and every other packet is dropped:
//! nothing was promised. What goes to other sites is handed to [`sites`](super::sites).

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll};

use socket2::Socket;
use tabane_core::PublicKey;
use tokio::sync::mpsc;

use super::Shared;
use super::exit::{Lodger, Refusal};
use super::gate::{Fate, Gate};
use super::host::Host;
use super::sites::SitePackets;
use super::user::{Asker, Direction, Meter};
use crate::echo::{Echo, Kind};
use crate::flow::Flow;
use crate::headcount::Counted;
use crate::ip_packet::{IpPacket, protocol};
use crate::pingers::Pingers;

/// Replies to pings that wait to go back; more are lost, as pings may be.
const MAX_WAITING: usize = 64;
/// Programs of all clients that ping, by sockets of the relay's own: a quarter of the numbers that
/// the kernel has for such sockets, which others of the host want as well. Pings beyond are lost.
const MOST_PINGING: usize = 16_384;
/// Packets in each direction before other tasks have their turn.
const BURST: usize = 64;

/// One client's packets.
pub(super) struct Packets<'a> {
    shared: &'a Shared,
    asker: Asker<'a>,
    flow: Flow,
    gate: Gate,
    pingers: Pingers<Counted<PublicKey>>,
    sites: SitePackets,
    replies: mpsc::Receiver<Vec<u8>>,
    /// Its addresses, where it has any.
    lodger: Option<Lodger>,
}

impl<'a> Packets<'a> {
    pub(super) fn new(host: &'a Host, flow: Flow, meter: Meter, lodger: Option<Lodger>) -> Self {
        let (sender, replies) = mpsc::channel(MAX_WAITING);
        Self {
            shared: &host.shared,
            asker: host.asker(),
            flow,
            gate: Gate::new(meter),
            sites: SitePackets::new(host, sender.clone()),
            pingers: Pingers::new(sender),
            replies,
            lodger,
        }
    }

    /// Passes packets on until the client ends the flow or its session ends.
    pub(super) async fn serve(mut self) {
        while poll_fn(|cx| self.poll_pass(cx)).await {
            // Lets the loop send, and the others have their turn.
            tokio::task::yield_now().await;
        }
        self.flow.stream_mut().end();
    }

    /// Passes on what there is; `false` at the end.
    fn poll_pass(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        if self.flow.stream_mut().poll_end(cx).is_ready() || self.gate.is_used_up() {
            return Poll::Ready(false);
        }
        let Poll::Ready(up) = self.poll_up(cx) else {
            return Poll::Ready(false);
        };
        match up + self.poll_down(cx) {
            0 => Poll::Pending,
            _ => Poll::Ready(true),
        }
    }

    /// From the client: how many; pending where none will come.
    fn poll_up(&mut self, cx: &Context<'_>) -> Poll<usize> {
        for passed in 0..BURST {
            let fate = self.gate.ask(Direction::Up, cx);
            if fate == Fate::Wait {
                return Poll::Ready(passed);
            }
            match self.flow.poll_recv(cx) {
                Poll::Ready(Some(packet)) => {
                    let sent = match fate {
                        Fate::Drop | Fate::Wait => Err(Refusal::Rate),
                        Fate::Pass => {
                            self.gate.spend(Direction::Up, packet.len());
                            self.send_on(&packet)
                        }
                    };
                    if let Some(lodger) = &self.lodger {
                        lodger.count_up(sent);
                    }
                }
                Poll::Ready(None) => return Poll::Pending,
                Poll::Pending => {
                    self.gate.on_empty(Direction::Up);
                    return Poll::Ready(passed);
                }
            }
        }
        Poll::Ready(BURST)
    }

    /// Lets a packet out, if it may.
    fn send_on(&mut self, packet: &[u8]) -> Result<(), Refusal> {
        let header = IpPacket::parse(packet).map_err(|_| Refusal::Malformed)?;
        let destination = SocketAddr::new(header.destination, header.port);
        let is_v4 = header.destination.is_ipv4();
        let lodges = self.lodger.as_ref().is_some_and(|it| it.has(is_v4));
        if let Some(taken) = self.sites.take(&header, packet, lodges) {
            return taken;
        }
        if !self.shared.allows(self.asker.user, destination) {
            return Err(Refusal::Denied);
        }
        match &self.lodger {
            Some(lodger) if lodger.has(is_v4) => {
                if !lodger.is_at(header.source) {
                    return Err(Refusal::Spoofed);
                }
                if matches!(header.protocol, protocol::TCP | protocol::UDP) {
                    // Counted, limited and seen elsewhere.
                    return Err(Refusal::Stream);
                }
                lodger.send(packet)
            }
            _ => {
                let echo = Echo::parse(packet).filter(|echo| echo.kind == Kind::Request);
                let echo = echo.ok_or(Refusal::NotServed)?;
                let departs = |socket: &Socket| {
                    let pinging = &self.shared.pinging;
                    let counted = pinging.count_among(self.asker.key, MOST_PINGING);
                    let departure = self.shared.departure(self.asker);
                    departure.prepare(socket, echo.destination)?;
                    counted.ok_or_else(|| io::ErrorKind::QuotaExceeded.into())
                };
                self.pingers.send(&echo, departs);
                Ok(())
            }
        }
    }

    /// To the client: how many.
    fn poll_down(&mut self, cx: &mut Context<'_>) -> usize {
        for passed in 0..BURST {
            let fate = self.gate.ask(Direction::Down, cx);
            if fate == Fate::Wait {
                return passed;
            }
            let Poll::Ready(packet) = self.poll_answer(cx) else {
                self.gate.on_empty(Direction::Down);
                return passed;
            };
            if fate == Fate::Pass {
                self.gate.spend(Direction::Down, packet.len());
                give(&self.flow, &packet);
            }
        }
        BURST
    }

    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<Vec<u8>> {
        if let Some(lodger) = &mut self.lodger
            && let Poll::Ready(packet) = lodger.poll_recv(cx)
        {
            return Poll::Ready(packet);
        }
        match self.replies.poll_recv(cx) {
            Poll::Ready(Some(reply)) => Poll::Ready(reply),
            // The pingers hold the other end.
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }
}

fn give(flow: &Flow, packet: &[u8]) {
    // Lost like any datagram.
    let _ = flow.send_with(|buffer| match buffer.get_mut(..packet.len()) {
        Some(space) => {
            space.copy_from_slice(packet);
            Ok(packet.len())
        }
        None => Err(io::ErrorKind::WouldBlock.into()),
    });
}
