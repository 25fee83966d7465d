//! Connection requests that wait for their answer: the program stays in `connect()` meanwhile.
//!
//! A filter on our listening socket (`ebpf/syn.bpf.c`) shows us every SYN and keeps it from the
//! socket. When the destination has answered, the SYN is sent once more, with a mark that the
//! filter lets pass, and the kernel does the rest; or a reset or an ICMP error is sent in its
//! place. So the program's kernel itself reports what a plain connection would: to blocking and
//! non-blocking callers, to epoll and io_uring, with its own time-outs. Everything lives in
//! descriptors: no rule of a packet filter outlives us.
//!
//! Owns the filter and the raw sockets. The requests under way are those of `calls`; what the
//! answer is, others say.

mod calls;
pub(crate) mod packet;

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use aya::maps::{MapData, RingBuf};
use aya::programs::{ProgramError, SocketFilter};
use aya::{Ebpf, EbpfLoader, include_bytes_aligned};
use tokio::io::unix::AsyncFd;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until};

use crate::heap;
use crate::hooks::HookError;
use crate::raw_ip::RawIp;
use crate::reactor::watch_reading;

pub use calls::HeldCall;
pub(crate) use calls::{Calls, Door};
use packet::Syn;
pub use packet::SynRefusal;

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
    calls: Rc<Calls>,
    /// Keeps the program.
    _ebpf: Ebpf,
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
        let (mut ebpf, door) = load(scope, mark)?;
        heap::trim();
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
            calls: Calls::new(Box::new(door)),
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
            let expiry = self.calls.expire(Instant::now());
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
            let call = parse(&item).and_then(|syn| self.calls.on_syn(syn, Instant::now()));
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
        self.calls.deliver(stream, (from, to))
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
fn load(scope: Scope, mark: u32) -> Result<(Ebpf, RawDoor), HookError> {
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
    let door = RawDoor {
        release: open(Some(mark))?,
        answer: open(None)?,
    };
    Ok((ebpf, door))
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

/// Packets by raw sockets: the request once more with a mark that passes.
struct RawDoor {
    release: RawIp,
    answer: RawIp,
}

impl Door for RawDoor {
    fn release(&self, syn: &Syn) -> io::Result<()> {
        self.release.send(&syn.again())
    }

    fn answer(&self, packet: &[u8]) -> io::Result<()> {
        self.answer.send(packet)
    }

    fn router(&self, syn: &Syn) -> IpAddr {
        own_address(syn.from)
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

/// Reads what the filter has written of a stranger's request, for fuzzing.
///
/// # Panics
/// When an answer to it is no packet to who has sent it.
pub fn fuzz_syns(raw: &[u8]) {
    let Some(syn) = parse(raw) else {
        return;
    };
    let [own, own6] = [
        IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        "2001:db8::1".parse().expect("an address"),
    ];
    let own = if syn.from.is_ipv4() { own } else { own6 };
    let answers = [
        (syn.again(), syn.to.ip()),
        (syn.reset(), syn.from.ip()),
        (syn.unreachable(own, true), syn.from.ip()),
        (syn.unreachable(own, false), syn.from.ip()),
    ];
    for (packet, to) in answers {
        let octets = match to {
            IpAddr::V4(to) => to.octets().to_vec(),
            IpAddr::V6(to) => to.octets().to_vec(),
        };
        let (header, end) = if to.is_ipv4() { (0x45, 20) } else { (0x60, 40) };
        assert_eq!(packet[0], header);
        assert!(packet[..end].ends_with(&octets), "to somebody else");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
