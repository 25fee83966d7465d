//! Connection requests that wait for their answer: the program stays in `connect()` meanwhile.
//!
//! A filter on our listening socket (`ebpf/syn.bpf.c`) shows us every SYN and keeps it from the
//! socket. When the destination has answered, the SYN is sent once more, with a mark that the
//! filter lets pass, and the kernel does the rest; or a reset or an ICMP error is sent in its
//! place. So the program's kernel itself reports what a plain connection would: to blocking and
//! non-blocking callers, to epoll and io_uring, with its own time-outs. Everything lives in
//! descriptors: no rule of a packet filter outlives us.
//!
//! Owns the requests under way, and when one counts as given up. What the answer is, others say.

mod packet;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use aya::maps::{MapData, RingBuf};
use aya::programs::{ProgramError, SocketFilter};
use aya::{Ebpf, EbpfLoader, include_bytes_aligned};
use tabane_base::Duration;
use tokio::io::unix::AsyncFd;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use crate::hooks::HookError;
use crate::raw_ip::RawIp;
use crate::reactor::watch_reading;

use packet::Syn;
pub use packet::SynRefusal;

/// Requests under way; beyond that they are dropped, as by a full backlog, and repeated.
const MAX_CALLS: usize = 4_096;
/// A request that is not repeated for so long was given up: the first repetition comes after one
/// second with Linux (RFC 6298 §2), after three with some others.
const MIN_PATIENCE: Duration = Duration::from_secs(5);
/// The same as a multiple of the time between the last two; senders double it each time.
const PATIENCE_FACTOR: u32 = 3;

/// What `struct held` in `ebpf/syn.bpf.c` has.
const RAW_SYN: usize = 108;

/// Which requests a listener is meant to get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Those to addresses of the socket hooks' flows; whatever else comes is dropped.
    Flows,
    /// All.
    Everything,
}

/// Holds back what asks for connections to some listening sockets.
pub(crate) struct SynHold {
    ring: RefCell<RingBuf<MapData>>,
    ready: AsyncFd<OwnedFd>,
    table: Rc<Table>,
    /// Keeps the program.
    _ebpf: Ebpf,
}

struct Table {
    /// Sends with the mark that passes.
    release: RawIp,
    answer: RawIp,
    calls: RefCell<BTreeMap<(SocketAddr, SocketAddr), Call>>,
    next_serial: Cell<u64>,
}

/// One request under way.
struct Call {
    serial: u64,
    syn: Syn,
    patience: Patience,
    is_released: bool,
    accepted: oneshot::Sender<TcpStream>,
}

/// How long a sender is believed to wait still.
#[derive(Clone, Copy, Debug)]
struct Patience {
    seen_at: Instant,
    gap: Duration,
}

/// A program that waits in `connect()`. Dropped, it goes on waiting: its next repetition is a new
/// call, and its own time-out ends it at last.
pub struct HeldCall {
    table: Rc<Table>,
    key: (SocketAddr, SocketAddr),
    serial: u64,
    accepted: oneshot::Receiver<TcpStream>,
}

impl SynHold {
    /// Holds back what comes for `listeners` from here on. Packets that carry `mark` pass.
    ///
    /// # Errors
    /// The kernel is too old, or we may not; then the listeners are as they were.
    ///
    /// # Panics
    /// Outside a tokio runtime with its I/O driver enabled.
    pub(crate) fn attach(
        listeners: &[BorrowedFd<'_>],
        scope: Scope,
        mark: u32,
    ) -> Result<Self, HookError> {
        let (mut ebpf, table) = load(scope, mark)?;
        let ring = ebpf.take_map("held_syns").expect("the object defines it");
        let ring = RingBuf::try_from(ring).map_err(HookError::from_map)?;
        let ready = ring.as_fd().try_clone_to_owned().and_then(watch_reading);
        let program = program(&mut ebpf);
        for listener in listeners {
            program.attach(listener).map_err(refused)?;
        }
        Ok(Self {
            ring: RefCell::new(ring),
            ready: ready.map_err(HookError::Raw)?,
            table: Rc::new(table),
            _ebpf: ebpf,
        })
    }

    /// The next program that asks for a connection.
    ///
    /// # Errors
    /// Where the runtime is shutting down.
    pub(crate) async fn next(&self) -> io::Result<HeldCall> {
        loop {
            if let Some(call) = self.read() {
                return Ok(call);
            }
            let expiry = self.table.expire(Instant::now());
            tokio::select! {
                ready = self.ready.readable() => {
                    let mut ready = ready?;
                    // Cleared first: what comes while the ring is read wakes us once more.
                    ready.clear_ready();
                }
                () = sleep_until(expiry.unwrap_or_else(Instant::now)), if expiry.is_some() => {}
            }
        }
    }

    fn read(&self) -> Option<HeldCall> {
        let mut ring = self.ring.borrow_mut();
        while let Some(item) = ring.next() {
            let call = parse(&item).and_then(|syn| self.table.on_syn(syn, Instant::now()));
            if call.is_some() {
                return call;
            }
        }
        None
    }

    /// Gives a connection to who waits for it; gives it back where nobody does.
    pub(crate) fn deliver(&self, stream: TcpStream, from: SocketAddr) -> Option<TcpStream> {
        let Ok(to) = stream.local_addr() else {
            return Some(stream);
        };
        match self.table.calls.borrow_mut().remove(&(from, to)) {
            Some(call) => call.accepted.send(stream).err(),
            None => Some(stream),
        }
    }
}

/// Whether requests can be held back on this machine; nothing is left behind.
///
/// # Errors
/// What stands in the way.
pub fn try_out() -> Result<(), HookError> {
    load(Scope::Flows, 0).map(drop)
}

const PROGRAM: &str = "hold_syn";

/// Loads the filter, and opens what answers.
fn load(scope: Scope, mark: u32) -> Result<(Ebpf, Table), HookError> {
    let flows_only = u8::from(scope == Scope::Flows);
    let mut ebpf = EbpfLoader::new()
        .override_global("RELEASE_MARK", &mark, true)
        .override_global("FLOWS_ONLY", &flows_only, true)
        .load(include_bytes_aligned!(concat!(
            env!("OUT_DIR"),
            "/syn.bpf.o"
        )))
        .map_err(HookError::from_load)?;
    program(&mut ebpf).load().map_err(refused)?;
    let open = |mark| RawIp::open(mark).map_err(HookError::Raw);
    let table = Table {
        release: open(Some(mark))?,
        answer: open(None)?,
        calls: RefCell::default(),
        next_serial: Cell::new(0),
    };
    Ok((ebpf, table))
}

fn program(ebpf: &mut Ebpf) -> &mut SocketFilter {
    ebpf.program_mut(PROGRAM)
        .expect("the object defines it")
        .try_into()
        .expect("it is a socket filter")
}

fn refused(error: ProgramError) -> HookError {
    HookError::from_program(PROGRAM, error)
}

impl fmt::Debug for SynHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SynHold").finish_non_exhaustive()
    }
}

impl Table {
    /// A request has come; `None` for one that is under way already.
    fn on_syn(self: &Rc<Self>, syn: Syn, now: Instant) -> Option<HeldCall> {
        let mut calls = self.calls.borrow_mut();
        let key = (syn.from, syn.to);
        if let Some(call) = calls.get_mut(&key)
            && call.syn.sequence() == syn.sequence()
        {
            call.patience.on_repetition(now);
            call.syn = syn;
            if call.is_released {
                // The first was lost: the backlog was full.
                self.send(&self.release, &call.syn.again());
            }
            return None;
        }
        if calls.len() >= MAX_CALLS {
            return None;
        }
        let serial = self.next_serial.get();
        self.next_serial.set(serial + 1);
        let (sender, accepted) = oneshot::channel();
        let call = Call {
            serial,
            syn,
            patience: Patience::new(now),
            is_released: false,
            accepted: sender,
        };
        calls.insert(key, call);
        Some(HeldCall {
            table: self.clone(),
            key,
            serial,
            accepted,
        })
    }

    /// Forgets who has given up; says when the next may.
    fn expire(&self, now: Instant) -> Option<Instant> {
        let mut calls = self.calls.borrow_mut();
        calls.retain(|_, call| call.patience.ends_at() > now);
        calls.values().map(|call| call.patience.ends_at()).min()
    }

    fn send(&self, raw: &RawIp, packet: &[u8]) {
        // Lost like any packet: the request is repeated.
        if let Err(error) = raw.send(packet) {
            tracing::debug!(%error, "cannot answer a connection request");
        }
    }
}

impl Patience {
    fn new(seen_at: Instant) -> Self {
        let gap = Duration::ZERO;
        Self { seen_at, gap }
    }

    fn on_repetition(&mut self, now: Instant) {
        self.gap = now - self.seen_at;
        self.seen_at = now;
    }

    fn ends_at(self) -> Instant {
        self.seen_at + MIN_PATIENCE.max(self.gap * PATIENCE_FACTOR)
    }
}

impl HeldCall {
    /// The program's end.
    #[must_use]
    pub fn from(&self) -> SocketAddr {
        self.key.0
    }

    /// Where its packets go.
    #[must_use]
    pub fn to(&self) -> SocketAddr {
        self.key.1
    }

    /// Waits until the program has given up.
    pub async fn gone(&mut self) {
        // Nothing is accepted before `accept` is called.
        let _ = (&mut self.accepted).await;
    }

    /// Lets `connect()` succeed. `None` where the program has given up meanwhile.
    pub async fn accept(mut self) -> Option<TcpStream> {
        if let Some(call) = self.table.calls.borrow_mut().get_mut(&self.key)
            && call.serial == self.serial
        {
            call.is_released = true;
            self.table.send(&self.table.release, &call.syn.again());
        }
        (&mut self.accepted).await.ok()
    }

    /// Lets `connect()` fail.
    pub fn refuse(self, why: SynRefusal) {
        let calls = self.table.calls.borrow();
        let Some(call) = calls.get(&self.key) else {
            return;
        };
        let own = own_address(call.syn.from);
        let answer = match why {
            SynRefusal::Refused => call.syn.reset(),
            SynRefusal::NetworkUnreachable => call.syn.unreachable(own, true),
            SynRefusal::HostUnreachable => call.syn.unreachable(own, false),
        };
        self.table.send(&self.table.answer, &answer);
    }
}

impl Drop for HeldCall {
    fn drop(&mut self) {
        let mut calls = self.table.calls.borrow_mut();
        if calls
            .get(&self.key)
            .is_some_and(|call| call.serial == self.serial)
        {
            calls.remove(&self.key);
        }
    }
}

impl fmt::Debug for HeldCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HeldCall").field(&self.key).finish()
    }
}

/// Our address towards `remote`; nothing is sent.
fn own_address(remote: SocketAddr) -> IpAddr {
    let unspecified = match remote {
        SocketAddr::V4(_) => return Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => "[::]:0",
    };
    // Port 0: hooks of ours leave it alone.
    let asked = UdpSocket::bind(unspecified).and_then(|socket| {
        socket.connect((remote.ip(), 0))?;
        socket.local_addr()
    });
    asked.map_or_else(|_| remote.ip(), |own| own.ip())
}

/// Reads what the filter has written: family, length of the TCP header, both headers.
fn parse(raw: &[u8]) -> Option<Syn> {
    let raw: &[u8; RAW_SYN] = raw.first_chunk()?;
    let word = |at: usize| u32::from_ne_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]]);
    let ip = if word(0) == 0 {
        &raw[8..28]
    } else {
        &raw[8..48]
    };
    let tcp = usize::try_from(word(4)).ok()?;
    Syn::parse(ip, raw[48..].get(..tcp)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sender_that_doubles_its_time_is_waited_for() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut patience = Patience::new(start);
        assert!(patience.ends_at() > at(3));
        for (repeated, next) in [(1, 3), (3, 7), (7, 15), (15, 31), (31, 63), (63, 127)] {
            patience.on_repetition(at(repeated));
            assert!(patience.ends_at() > at(next), "{repeated}");
        }
        assert!(patience.ends_at() <= at(63 + 96));
    }

    #[test]
    fn what_the_filter_writes_is_read_and_garbage_is_not() {
        let mut raw = [0; RAW_SYN];
        assert!(parse(&raw).is_none());
        raw[4..8].copy_from_slice(&20_u32.to_ne_bytes());
        raw[8] = 0x45;
        raw[60] = 5 << 4;
        assert!(parse(&raw).is_some());
        assert!(parse(&raw[1..]).is_none());
        raw[4..8].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert!(parse(&raw).is_none());
    }
}
