//! The library's calls, made safe: every one is watched, none waits.
//!
//! Owns all unsafe code but the output function. What the calls mean together is the stack's.

use std::ffi::{CString, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fmt, io};

use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};

use crate::ffi::{self, Plain, SctpAssoc};
use crate::output;
use crate::settings::{Families, Settings};
use crate::watchdog::{self, Watchdog};

/// The interface's number that the library takes for "none in particular".
const NO_INTERFACE: u32 = u32::MAX;
/// The only routing domain there is.
const VRF: u32 = 0;
/// What a call answered instead of doing it.
#[derive(Debug)]
pub struct Failure {
    /// What was tried.
    pub what: &'static str,
    /// Why not.
    pub source: io::Error,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {}: {}", self.what, self.source)
    }
}

impl std::error::Error for Failure {}

/// The library, started. Its sockets must not be used by two threads at a time, hence not `Send`.
#[derive(Debug)]
pub(crate) struct Library {
    watchdog: Watchdog,
    _one_thread: PhantomData<*const ()>,
}

/// One socket.
#[derive(Debug)]
pub(crate) struct Socket(NonNull<ffi::Socket>);

/// What a socket has to tell.
#[derive(Debug)]
pub(crate) enum Received {
    /// Bytes of a message.
    Data {
        association: SctpAssoc,
        stream: u16,
        protocol: u32,
        len: usize,
        complete: bool,
    },
    /// A notification of this length.
    Notification { len: usize },
}

impl Library {
    /// Starts the library; `None` where this process did so before, since it has one of everything.
    pub(crate) fn start(settings: &Settings) -> Option<Self> {
        static STARTED: AtomicBool = AtomicBool::new(false);
        if STARTED.swap(true, Ordering::AcqRel) {
            return None;
        }
        output::link();
        let library = Self {
            watchdog: Watchdog::start(watchdog::LIMIT, watchdog::abort),
            _one_thread: PhantomData,
        };
        let _call = library.watchdog.enter();
        // SAFETY: called once in this process. Without a port there are no sockets; packets for
        // addresses of the kind that the output function is for do not occur.
        unsafe { ffi::usrsctp_init_nothreads(0, None, None) };
        for (set, value) in settings.tunables() {
            // SAFETY: sets a variable; values out of range are refused and change nothing.
            unsafe { set(value) };
        }
        drop(_call);
        Some(library)
    }

    /// Opens a socket for addresses of these families.
    pub(crate) fn socket(&self, families: Families) -> Result<Socket, Failure> {
        let _call = self.watchdog.enter();
        let (receive, send, info) = (ptr::null(), ptr::null(), ptr::null_mut());
        let domain = match families {
            Families::V4 => libc::AF_INET,
            Families::Both => libc::AF_INET6,
        };
        let kind = libc::SOCK_SEQPACKET;
        // SAFETY: no callbacks, so nothing is kept of the arguments.
        let socket =
            unsafe { ffi::usrsctp_socket(domain, kind, ffi::IPPROTO_SCTP, receive, send, 0, info) };
        let socket = Socket(NonNull::new(socket).ok_or_else(|| failure("open a socket"))?);
        // SAFETY: the socket is open.
        let done = unsafe { ffi::usrsctp_set_non_blocking(socket.0.as_ptr(), 1) };
        check(done, "make the socket non-blocking")?;
        Ok(socket)
    }

    pub(crate) fn close(&self, socket: Socket) {
        let _call = self.watchdog.enter();
        // SAFETY: the socket is open, and gone with this.
        unsafe { ffi::usrsctp_close(socket.0.as_ptr()) };
    }

    pub(crate) fn set<T: Plain>(
        &self,
        socket: &Socket,
        name: c_int,
        value: &T,
        what: &'static str,
    ) -> Result<(), Failure> {
        let _call = self.watchdog.enter();
        let value = ptr::from_ref(value).cast::<c_void>();
        // SAFETY: the value is as long as said, and only read.
        let done = unsafe {
            ffi::usrsctp_setsockopt(
                socket.0.as_ptr(),
                ffi::IPPROTO_SCTP,
                name,
                value,
                len_of::<T>(),
            )
        };
        check(done, what)
    }

    /// Asks for an option, of which `value` names the association or path.
    pub(crate) fn ask<T: Plain>(&self, socket: &Socket, name: c_int, mut value: T) -> Option<T> {
        let _call = self.watchdog.enter();
        let mut len = len_of::<T>();
        // SAFETY: the library writes at most `len` bytes, of which every pattern is a value.
        let done = unsafe {
            ffi::usrsctp_getsockopt(
                socket.0.as_ptr(),
                ffi::IPPROTO_SCTP,
                name,
                ptr::from_mut(&mut value).cast(),
                &raw mut len,
            )
        };
        (done == 0 && len == len_of::<T>()).then_some(value)
    }

    /// Tells the library of an address that this host has; again does no harm.
    pub(crate) fn know_address(&self, address: IpAddr) {
        let _call = self.watchdog.enter();
        let mut address = storage(SocketAddr::new(address, 0));
        let name = CString::default();
        // SAFETY: name and address are copied. The handles are only compared, never followed.
        unsafe {
            ffi::sctp_add_addr_to_vrf(
                VRF,
                ptr::null_mut(),
                NO_INTERFACE,
                0,
                name.as_ptr(),
                ptr::null_mut(),
                (&raw mut address).cast(),
                0,
                0,
            );
        }
    }

    pub(crate) fn bind(&self, socket: &Socket, address: SocketAddr) -> Result<(), Failure> {
        let _call = self.watchdog.enter();
        let len = match address {
            SocketAddr::V4(_) => len_of::<sockaddr_in>(),
            SocketAddr::V6(_) => len_of::<sockaddr_in6>(),
        };
        let mut address = storage(address);
        // SAFETY: the address is as long as said, and copied.
        let done = unsafe { ffi::usrsctp_bind(socket.0.as_ptr(), (&raw mut address).cast(), len) };
        check(done, "bind the SCTP socket")
    }

    /// Adds a local address; associations tell their peers (RFC 5061).
    pub(crate) fn add_address(&self, socket: &Socket, address: SocketAddr) -> Result<(), Failure> {
        let _call = self.watchdog.enter();
        let mut address = storage(address);
        let flag = ffi::SCTP_BINDX_ADD_ADDR;
        // SAFETY: one address, copied.
        let done =
            unsafe { ffi::usrsctp_bindx(socket.0.as_ptr(), (&raw mut address).cast(), 1, flag) };
        check(done, "change the addresses of the SCTP socket")
    }

    pub(crate) fn listen(&self, socket: &Socket) -> Result<(), Failure> {
        let _call = self.watchdog.enter();
        // SAFETY: the socket is open.
        let done = unsafe { ffi::usrsctp_listen(socket.0.as_ptr(), 1) };
        check(done, "listen for associations")
    }

    /// The port that the socket is bound to.
    pub(crate) fn port(&self, socket: &Socket) -> Option<u16> {
        let _call = self.watchdog.enter();
        let mut addresses: *mut sockaddr = ptr::null_mut();
        // SAFETY: the library writes a pointer to memory of its own, or fails.
        let count = unsafe { ffi::usrsctp_getladdrs(socket.0.as_ptr(), 0, &raw mut addresses) };
        if count < 1 || addresses.is_null() {
            return None;
        }
        // SAFETY: there is at least one address; those of IPv6 have their port in the same place.
        let port = unsafe { addresses.cast::<sockaddr_in>().read_unaligned().sin_port };
        // SAFETY: just obtained from the library, and not used any more.
        unsafe { ffi::usrsctp_freeladdrs(addresses) };
        Some(u16::from_be(port))
    }

    /// The addresses of an association's peer; none where it has ended.
    pub(crate) fn peers(&self, socket: &Socket, association: SctpAssoc) -> Vec<SocketAddr> {
        let _call = self.watchdog.enter();
        let mut addresses: *mut sockaddr = ptr::null_mut();
        // SAFETY: the library writes a pointer to memory of its own, or fails.
        let count =
            unsafe { ffi::usrsctp_getpaddrs(socket.0.as_ptr(), association, &raw mut addresses) };
        let Some(count) = usize::try_from(count)
            .ok()
            .filter(|n| *n > 0 && !addresses.is_null())
        else {
            return Vec::new();
        };
        let mut next = addresses.cast::<u8>();
        let mut read = |_| {
            // SAFETY: there are `count` addresses one behind the other, each as long as those of
            // its family are.
            unsafe {
                let (address, len) = match next.cast::<sockaddr_in>().read_unaligned() {
                    v4 if c_int::from(v4.sin_family) == libc::AF_INET => {
                        let host = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
                        let port = u16::from_be(v4.sin_port);
                        (SocketAddr::new(host.into(), port), size_of::<sockaddr_in>())
                    }
                    _ => {
                        let v6 = next.cast::<sockaddr_in6>().read_unaligned();
                        let host = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                        let port = u16::from_be(v6.sin6_port);
                        (
                            SocketAddr::new(host.into(), port),
                            size_of::<sockaddr_in6>(),
                        )
                    }
                };
                next = next.add(len);
                address
            }
        };
        let peers = (0..count).map(&mut read).collect();
        // SAFETY: just obtained from the library, and not used any more.
        unsafe { ffi::usrsctp_freepaddrs(addresses) };
        peers
    }

    /// Begins an association with the peer at an address.
    pub(crate) fn connect(
        &self,
        socket: &Socket,
        address: SocketAddr,
    ) -> Result<SctpAssoc, Failure> {
        let _call = self.watchdog.enter();
        let address = storage(address);
        let mut id: SctpAssoc = 0;
        // SAFETY: one address, which is copied.
        let done = unsafe {
            let address = (&raw const address).cast();
            ffi::usrsctp_connectx(socket.0.as_ptr(), address, 1, &raw mut id)
        };
        match done {
            0 => Ok(id),
            _ if errno().raw_os_error() == Some(libc::EINPROGRESS) => Ok(id),
            _ => Err(failure("begin an association")),
        }
    }

    /// Gives an association a socket of its own.
    pub(crate) fn peel_off(
        &self,
        socket: &Socket,
        association: SctpAssoc,
    ) -> Result<Socket, Failure> {
        let _call = self.watchdog.enter();
        // SAFETY: the socket is open; a new one comes out, or null.
        let peeled = unsafe { ffi::usrsctp_peeloff(socket.0.as_ptr(), association) };
        let peeled = Socket(NonNull::new(peeled).ok_or_else(|| failure("accept"))?);
        // SAFETY: the socket is open.
        let done = unsafe { ffi::usrsctp_set_non_blocking(peeled.0.as_ptr(), 1) };
        check(done, "make the socket non-blocking")?;
        Ok(peeled)
    }

    /// Queues a message. `Ok(false)`: there is no room at present.
    pub(crate) fn send(
        &self,
        socket: &Socket,
        data: &[u8],
        to: Option<SocketAddr>,
        mut info: ffi::SndInfo,
    ) -> Result<bool, Failure> {
        let _call = self.watchdog.enter();
        let mut to = to.map(storage);
        let (to, count) = match &mut to {
            Some(to) => (ptr::from_mut(to).cast::<sockaddr>(), 1),
            None => (ptr::null_mut(), 0),
        };
        // SAFETY: all lengths are those of what is pointed at, and everything is copied.
        let sent = unsafe {
            ffi::usrsctp_sendv(
                socket.0.as_ptr(),
                data.as_ptr().cast(),
                data.len(),
                to,
                count,
                ptr::from_mut(&mut info).cast(),
                len_of::<ffi::SndInfo>(),
                ffi::SCTP_SENDV_SNDINFO,
                0,
            )
        };
        match errno() {
            _ if sent >= 0 => Ok(true),
            error if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            source => Err(Failure {
                what: "send",
                source,
            }),
        }
    }

    /// Reads what is there; `None` where nothing is.
    pub(crate) fn receive(&self, socket: &Socket, buffer: &mut [u8]) -> Option<Received> {
        let _call = self.watchdog.enter();
        let mut info: ffi::RcvInfo = zero();
        let mut from = storage(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0));
        let (mut from_len, mut info_len) = (len_of::<sockaddr_storage>(), len_of::<ffi::RcvInfo>());
        let (mut kind, mut flags) = (0, 0);
        // SAFETY: all lengths are those of what is pointed at.
        let len = unsafe {
            ffi::usrsctp_recvv(
                socket.0.as_ptr(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                (&raw mut from).cast(),
                &raw mut from_len,
                (&raw mut info).cast(),
                &raw mut info_len,
                &raw mut kind,
                &raw mut flags,
            )
        };
        let len = usize::try_from(len).ok()?.min(buffer.len());
        if flags & ffi::MSG_NOTIFICATION != 0 {
            return Some(Received::Notification { len });
        }
        // The end of a socket that has one association alone, told as often as one asks. There are
        // no empty messages (RFC 9260 §3.3.10.9).
        if len == 0 {
            return None;
        }
        (kind == ffi::SCTP_RECVV_RCVINFO).then_some(Received::Data {
            association: info.rcv_assoc_id,
            stream: info.rcv_sid,
            protocol: u32::from_be(info.rcv_ppid),
            len,
            complete: flags & ffi::MSG_EOR != 0,
        })
    }

    /// A packet has come, from `source` to `destination`, ports included. Its checksum is right.
    pub(crate) fn input(&self, packet: &[u8], source: SocketAddr, destination: SocketAddr) {
        /// What the stack looks at before it takes the buffer: common header and chunk header.
        const HEADERS: usize = 16;
        let Some((headers, len)) = packet
            .first_chunk::<HEADERS>()
            .zip(c_int::try_from(packet.len()).ok())
        else {
            return;
        };
        let _call = self.watchdog.enter();
        let space = u32::try_from(packet.len().min(ffi::MCLBYTES)).unwrap_or(0);
        // SAFETY: gives a new buffer in one piece with room for `space` bytes, or null.
        let mut buffer =
            unsafe { ffi::sctp_get_mbuf_for_msg(space, 1, ffi::M_NOWAIT, 1, ffi::MT_DATA) };
        if buffer.is_null() {
            return;
        }
        // SAFETY: there is room for as many bytes in the first buffer; copying appends more where
        // the packet is larger.
        unsafe {
            (*buffer).len = c_int::try_from(space).unwrap_or(0);
            ffi::m_copyback(buffer, 0, len, packet.as_ptr().cast::<c_char>());
        }
        let mut source = storage(source);
        let mut destination = storage(destination);
        // Aligned as the library's structures want it.
        let mut words = [0_u32; HEADERS / 4];
        for (word, bytes) in words.iter_mut().zip(headers.chunks_exact(4)) {
            *word = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        let header = words.as_mut_ptr();
        // SAFETY: the buffer holds the packet, the headers a copy of its beginning, which is only
        // read; checksums are not looked at. The stack takes the buffer or leaves it to us.
        unsafe {
            ffi::sctp_common_input_processing(
                &raw mut buffer,
                0,
                12,
                len,
                (&raw mut source).cast(),
                (&raw mut destination).cast(),
                header.cast(),
                header.add(3).cast(),
                0,
                0,
                VRF,
                0,
            );
            if !buffer.is_null() {
                ffi::m_freem(buffer);
            }
        }
    }

    pub(crate) fn handle_timers(&self, elapsed_ms: u32) {
        let _call = self.watchdog.enter();
        // SAFETY: runs what is due, in this thread.
        unsafe { ffi::usrsctp_handle_timers(elapsed_ms) };
    }

    /// CRC32c as it stands in packets.
    pub(crate) fn checksum(&self, packet: &mut [u8]) -> [u8; 4] {
        // SAFETY: only reads the bytes.
        let sum = unsafe { ffi::usrsctp_crc32c(packet.as_mut_ptr().cast(), packet.len()) };
        sum.to_ne_bytes()
    }
}

/// All zero.
pub(crate) fn zero<T: Plain>() -> T {
    // SAFETY: every pattern is a value.
    unsafe { std::mem::zeroed() }
}

/// A structure out of the bytes of a notification.
pub(crate) fn read<T: Plain>(bytes: &[u8]) -> Option<T> {
    // SAFETY: there are enough bytes, and each pattern of them is a value.
    (bytes.len() >= size_of::<T>()).then(|| unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

/// An address of either family, with room behind it.
pub(crate) fn storage(address: SocketAddr) -> sockaddr_storage {
    // SAFETY: all zero is a value, and the larger structure begins as the smaller ones do.
    unsafe {
        let mut storage: sockaddr_storage = std::mem::zeroed();
        let place = &raw mut storage;
        match address {
            SocketAddr::V4(v4) => place.cast::<sockaddr_in>().write(ffi::sockaddr_in(v4)),
            SocketAddr::V6(v6) => place.cast::<sockaddr_in6>().write(ffi::sockaddr_in6(v6)),
        }
        storage
    }
}

fn len_of<T>() -> socklen_t {
    socklen_t::try_from(size_of::<T>()).unwrap_or(socklen_t::MAX)
}

fn errno() -> io::Error {
    io::Error::last_os_error()
}

fn failure(what: &'static str) -> Failure {
    Failure {
        what,
        source: errno(),
    }
}

fn check(done: c_int, what: &'static str) -> Result<(), Failure> {
    match done {
        0 => Ok(()),
        _ => Err(failure(what)),
    }
}
