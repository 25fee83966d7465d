//! A borrowed link for datagrams: what a friend sends to a port of ours goes on to one address, and
//! what comes back from there goes to the friend.
//!
//! Owns the sockets and who may use them. Datagrams pass as they are: they are those of a session
//! that its ends have encrypted, and we have no key. The TLS connection by which the friend asked
//! is the leash; with it the ports end.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use tabane_linux::{RecvBatch, Transmit, UdpBind, UdpError, UdpSocket, udp::MAX_TRANSMIT_BYTES};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, sleep_until, timeout};

use crate::friends::{Ended, Friend};

/// What sessions use: the port that passes most firewalls, and tabane's own.
pub const DATAGRAM_PORTS: [u16; 2] = [443, 4510];
/// A friend that has said nothing over the leash for so long is gone: some of its beats.
const SILENCE: Duration = Duration::from_secs(20);
/// Sockets of the friend that are served at once: one, and others while it changes them.
const MAX_FLOWS: usize = 4;
/// A turn that is nearer than this is now: timers tell no less.
const SLACK: Duration = Duration::from_millis(1);
/// What the kernel takes in one call, by number.
const MAX_SEGMENTS: usize = 64;

/// Where datagrams of friends may leave, and to whom.
#[derive(Clone)]
pub struct DatagramOut {
    /// The interface; `None`: as the routing table says.
    pub device: Option<String>,
    /// Whether an address may be sent to.
    pub is_allowed: Rc<dyn Fn(IpAddr) -> bool>,
    /// The ports that may be sent to.
    pub ports: Vec<u16>,
}

/// What one friend sends to one address.
pub(crate) struct Forward {
    friend: Rc<Friend>,
    friend_ip: IpAddr,
    to: SocketAddr,
    device: Option<String>,
    near: UdpSocket,
    flows: Vec<Flow>,
    /// For the next flow: nothing can be sent before the kernel has said that a socket is ready.
    spare: Option<UdpSocket>,
    /// That there can be none at present was said.
    is_told: bool,
    run: Run,
    queue: Queue,
}

/// One socket of the friend's has one of ours, so that the far end tells them apart.
struct Flow {
    from: SocketAddr,
    far: UdpSocket,
    used_at: Instant,
}

impl Forward {
    /// For a friend at `from`, who has come to our address `at`.
    pub(crate) fn open(
        friend: Rc<Friend>,
        from: IpAddr,
        at: SocketAddr,
        to: SocketAddr,
        device: Option<String>,
    ) -> Result<Self, UdpError> {
        let local = SocketAddr::new(at.ip().to_canonical(), 0);
        let local = match (local, at) {
            // A link-local address means something on its interface only.
            (SocketAddr::V6(mut local), SocketAddr::V6(at)) => {
                local.set_scope_id(at.scope_id());
                SocketAddr::V6(local)
            }
            (local, _) => local,
        };
        let interface = None;
        Ok(Self {
            friend,
            friend_ip: from.to_canonical(),
            to,
            device,
            near: UdpSocket::bind(UdpBind { interface, local })?,
            flows: Vec::new(),
            spare: None,
            is_told: false,
            run: Run::default(),
            queue: Queue::default(),
        })
    }

    /// Where the friend sends to.
    pub(crate) fn port(&self) -> io::Result<u16> {
        Ok(self.near.local_addr()?.port())
    }

    /// Passes datagrams on until the friend lets go of the leash, or its terms end.
    pub(crate) async fn carry(
        mut self,
        leash: impl AsyncRead + AsyncWrite + Unpin,
        batch: &RefCell<RecvBatch>,
    ) -> &'static str {
        let friend = Rc::clone(&self.friend);
        let ended = tokio::select! {
            ended = self.pass(batch) => ended,
            ended = friend.end() => ended,
            () = held(leash) => return "let go",
        };
        ended.word()
    }

    async fn pass(&mut self, batch: &RefCell<RecvBatch>) -> Ended {
        // Fails only where the runtime ends.
        let _ = self.near.writable().await;
        loop {
            if self.spare.is_none() {
                self.prepare().await;
            }
            let due = self.queue.next_at();
            tokio::select! {
                () = poll_fn(|cx| self.poll_readable(cx)) => {}
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
            }
            self.release(Instant::now());
            if let Err(ended) = self.turn(&mut batch.borrow_mut()) {
                return ended;
            }
        }
    }

    /// Sends what waits and has its turn.
    fn release(&mut self, now: Instant) {
        while let Some(waiting) = self.queue.pop(now) {
            if let Some(flow) = find(&self.flows, waiting.of) {
                let (socket, to) = match waiting.is_outward {
                    true => (&flow.far, self.to),
                    false => (&self.near, flow.from),
                };
                self.run.add(&waiting.payload, socket, to);
                self.run.send(socket, to);
            }
        }
    }

    async fn prepare(&mut self) {
        let local: IpAddr = match self.to {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let far = UdpSocket::bind(UdpBind {
            interface: self.device.as_deref(),
            local: (local, 0).into(),
        });
        match far {
            Ok(far) => {
                let _ = far.writable().await;
                self.spare = Some(far);
                self.is_told = false;
            }
            // Once: it is tried again with every datagram that comes.
            Err(error) if !std::mem::replace(&mut self.is_told, true) => {
                tracing::warn!(%error, "a friend's datagrams cannot leave");
            }
            Err(error) => tracing::debug!(%error, "a friend's datagrams still cannot leave"),
        }
    }

    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        // All are asked, so that each wakes us.
        let far = self.flows.iter().map(|flow| &flow.far);
        let ready = far.chain([&self.near]);
        let ready = ready.filter(|socket| socket.poll_readable(cx).is_ready());
        match ready.count() {
            0 => Poll::Pending,
            _ => Poll::Ready(()),
        }
    }

    /// Takes from every socket once, and sends what need not wait; errors are what the network says
    /// of datagrams that were sent before, and these count as lost.
    fn turn(&mut self, batch: &mut RecvBatch) -> Result<(), Ended> {
        let now = Instant::now();
        if self.near.try_recv(batch).is_ok() {
            self.outwards(now, batch)?;
        }
        for flow in &mut self.flows {
            if flow.far.try_recv(batch).is_err() {
                continue;
            }
            for datagram in batch.datagrams() {
                if datagram.meta.remote != self.to {
                    continue;
                }
                let payload = datagram.payload;
                let turn = self.friend.on_datagram(now, payload.len())?;
                if self.queue.admits(now, turn, (flow.from, false), payload) {
                    self.run.add(payload, &self.near, flow.from);
                }
            }
            self.run.send(&self.near, flow.from);
        }
        Ok(())
    }

    fn outwards(&mut self, now: Instant, batch: &mut RecvBatch) -> Result<(), Ended> {
        let mut last = None;
        for datagram in batch.datagrams() {
            let (from, payload) = (datagram.meta.remote, datagram.payload);
            if from.ip() != self.friend_ip {
                continue;
            }
            let turn = self.friend.on_datagram(now, payload.len())?;
            if last != Some(from) {
                if let Some(flow) = last.and_then(|last| find(&self.flows, last)) {
                    self.run.send(&flow.far, self.to);
                }
                last = Some(from);
                take_flow(&mut self.flows, &mut self.spare, from);
            }
            if let Some(flow) = last.and_then(|last| find(&self.flows, last))
                && self.queue.admits(now, turn, (from, true), payload)
            {
                self.run.add(payload, &flow.far, self.to);
            }
        }
        if let Some(flow) = last.and_then(|last| find(&self.flows, last)) {
            self.run.send(&flow.far, self.to);
        }
        Ok(())
    }
}

fn find(flows: &[Flow], from: SocketAddr) -> Option<&Flow> {
    flows.iter().find(|flow| flow.from == from)
}

/// Sees to it that there is one for this socket of the friend's, in the place of the one that was
/// not used for longest where there are too many. Two new ones at once get theirs one after the
/// other, and what the second has sent is lost.
fn take_flow(flows: &mut Vec<Flow>, spare: &mut Option<UdpSocket>, from: SocketAddr) {
    let used_at = Instant::now();
    if let Some(known) = flows.iter_mut().find(|flow| flow.from == from) {
        known.used_at = used_at;
        return;
    }
    let Some(far) = spare.take() else {
        return;
    };
    if flows.len() >= MAX_FLOWS {
        let oldest = flows
            .iter()
            .enumerate()
            .min_by_key(|(_, flow)| flow.used_at);
        if let Some((oldest, _)) = oldest {
            flows.swap_remove(oldest);
        }
    }
    flows.push(Flow { from, far, used_at });
}

/// Datagrams over the friend's rate, in the order of their turns, which is that of their coming.
/// Their number is limited by how long any may wait.
#[derive(Default)]
struct Queue(VecDeque<Waiting>);

struct Waiting {
    turn: Instant,
    /// The friend's socket that it is from or for.
    of: SocketAddr,
    is_outward: bool,
    payload: Vec<u8>,
}

impl Queue {
    /// `true`: it goes now. Else it waits for its turn, or is dropped where it has none.
    fn admits(
        &mut self,
        now: Instant,
        turn: Option<Instant>,
        (of, is_outward): (SocketAddr, bool),
        payload: &[u8],
    ) -> bool {
        let Some(turn) = turn else {
            return false;
        };
        if self.0.is_empty() && turn <= now + SLACK {
            return true;
        }
        self.0.push_back(Waiting {
            turn,
            of,
            is_outward,
            payload: payload.to_vec(),
        });
        false
    }

    fn next_at(&self) -> Option<Instant> {
        Some(self.0.front()?.turn)
    }

    /// The next one, if it is its turn.
    fn pop(&mut self, now: Instant) -> Option<Waiting> {
        let next = self.0.front()?;
        (next.turn <= now + SLACK).then(|| self.0.pop_front())?
    }
}

/// Datagrams of one size that leave in one call; the last may be shorter.
#[derive(Default)]
struct Run {
    contents: Vec<u8>,
    /// The size of all but the last.
    segment: usize,
    count: usize,
    is_full: bool,
}

impl Run {
    /// Adds one; what does not go with it is sent before.
    fn add(&mut self, payload: &[u8], socket: &UdpSocket, to: SocketAddr) {
        let is_larger = payload.len() > self.segment;
        let is_long = self.contents.len() + payload.len() > MAX_TRANSMIT_BYTES;
        if self.count > 0 && (self.is_full || is_larger || is_long) {
            self.send(socket, to);
        }
        if self.count == 0 {
            self.segment = payload.len();
        }
        self.contents.extend_from_slice(payload);
        self.count += 1;
        self.is_full = payload.len() < self.segment || self.count == MAX_SEGMENTS;
    }

    /// Sends what there is. A full socket drops, as a router does.
    fn send(&mut self, socket: &UdpSocket, to: SocketAddr) {
        if self.count > 0 {
            let sent = socket.try_send(Transmit {
                remote: to,
                local_ip: None,
                segment_size: (self.count > 1).then_some(self.segment),
                contents: &self.contents,
            });
            if let Err(error) = sent {
                tracing::debug!(%error, %to, "datagrams were lost");
            }
        }
        self.contents.clear();
        self.count = 0;
        self.is_full = false;
    }
}

/// Gives each beat of the friend's back; ends when it lets go or has fallen silent.
async fn held(mut leash: impl AsyncRead + AsyncWrite + Unpin) {
    while let Ok(Ok(beat)) = timeout(SILENCE, leash.read_u8()).await {
        let answered = timeout(SILENCE, async {
            leash.write_u8(beat).await?;
            leash.flush().await
        });
        if !matches!(answered.await, Ok(Ok(()))) {
            return;
        }
    }
}
