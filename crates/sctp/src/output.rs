//! Where the library's packets come out.
//!
//! Owns the function that stands in for the library's own sending (`build.rs` makes it give way),
//! and the queue that it fills. One thread of the library's, which carries out changes of addresses
//! for it, comes by here as well, so the queue has a lock.

use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr;
use std::sync::{Mutex, PoisonError};

use crate::ffi::{self, Mbuf};

/// Packets that nobody has taken yet. The library sends no more than its windows allow; what would
/// be beyond this is dropped, as a network would drop it.
const QUEUE_MAX: usize = 16_384;

/// Bytes of the header that the library puts before every packet: of IPv4 without options, of IPv6
/// without extensions.
const V4_HEADER: usize = 20;
const V6_HEADER: usize = 40;
/// The largest packet IP knows.
const PACKET_MAX: usize = 65_535;

static QUEUE: Mutex<VecDeque<Outgoing>> = Mutex::new(VecDeque::new());

/// A packet as the library meant it to leave.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    /// From the common header on.
    pub(crate) packet: Vec<u8>,
}

/// The next packet to send.
pub(crate) fn take() -> Option<Outgoing> {
    queue().pop_front()
}

/// Whether there is one.
pub(crate) fn waits() -> bool {
    !queue().is_empty()
}

fn queue() -> std::sync::MutexGuard<'static, VecDeque<Outgoing>> {
    QUEUE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the library calls to send a packet.
type Output = unsafe extern "C" fn(*mut c_int, *mut Mbuf, *mut c_void, *mut c_void, u32);

/// Makes sure that this file's object, and with it the functions below, is linked: the library must
/// not fall back to its own.
pub(crate) fn link() {
    let ours: [Output; 2] = [sctp_userspace_ip_output, sctp_userspace_ip6_output];
    std::hint::black_box(ours);
}

/// Takes over a packet of IPv4.
///
/// # Safety
/// Called by the library with `result` writable and `packet` a chain of buffers that is ours.
#[unsafe(no_mangle)]
unsafe extern "C" fn sctp_userspace_ip_output(
    result: *mut c_int,
    packet: *mut Mbuf,
    _route: *mut c_void,
    _endpoint: *mut c_void,
    _vrf: u32,
) {
    // SAFETY: as said above.
    unsafe { take_over(result, packet) }
}

/// Takes over a packet of IPv6.
///
/// # Safety
/// Called by the library with `result` writable and `packet` a chain of buffers that is ours.
#[unsafe(no_mangle)]
unsafe extern "C" fn sctp_userspace_ip6_output(
    result: *mut c_int,
    packet: *mut Mbuf,
    _route: *mut c_void,
    _endpoint: *mut c_void,
    _vrf: u32,
) {
    // SAFETY: as said above.
    unsafe { take_over(result, packet) }
}

/// Takes over a packet from the library, IP header first.
///
/// # Safety
/// `result` is writable, and `packet` a chain of buffers that is ours.
unsafe fn take_over(result: *mut c_int, packet: *mut Mbuf) {
    // SAFETY: the library passes the address of a variable of its own.
    unsafe { *result = 0 };
    // SAFETY: the chain is whole; asking its length changes nothing.
    let len = unsafe { ffi::m_length(packet, ptr::null_mut()) } as usize;
    let mut bytes = vec![0_u8; len.min(PACKET_MAX)];
    let copied = c_int::try_from(bytes.len()).unwrap_or(0);
    // SAFETY: the chain holds at least `copied` bytes, and so does the vector.
    unsafe { ffi::m_copydata(packet, 0, copied, bytes.as_mut_ptr().cast::<c_char>()) };
    // SAFETY: whoever takes the packet frees it, and nothing points into it any more.
    unsafe { ffi::m_freem(packet) };
    if let Some(outgoing) = outgoing(bytes) {
        let mut queue = queue();
        if queue.len() < QUEUE_MAX {
            queue.push_back(outgoing);
        }
    }
}

fn outgoing(mut bytes: Vec<u8>) -> Option<Outgoing> {
    let version = bytes.first()? >> 4;
    let (source, destination, header) = match version {
        4 => {
            let address = |at: usize| Some(Ipv4Addr::from(*bytes.get(at..)?.first_chunk::<4>()?));
            (address(12)?.into(), address(16)?.into(), V4_HEADER)
        }
        6 => {
            let address = |at: usize| Some(Ipv6Addr::from(*bytes.get(at..)?.first_chunk::<16>()?));
            (address(8)?.into(), address(24)?.into(), V6_HEADER)
        }
        _ => return None,
    };
    if bytes.len() <= header {
        return None;
    }
    let packet = bytes.split_off(header);
    Some(Outgoing {
        source,
        destination,
        packet,
    })
}
