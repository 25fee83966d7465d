//! UDP sockets that are bound and belong to no event loop yet, alone or several at one address.
//!
//! Owns how they are opened, and the group of those that share an address (`SO_REUSEPORT`): the
//! kernel gives each datagram to one of them, by a classic BPF program (`SO_ATTACH_REUSEPORT_CBPF`)
//! that returns its place in the order of binding. A group begins with a socket that was bound
//! alone, so that an address which another process has is refused as always.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::AttachReusePortCbpf;
use socket2::{Domain, Protocol, Socket, Type};

use super::{UdpBind, UdpError};
use crate::buffers::{grow_receive, grow_send};

/// Receive buffer asked for, in bytes: 6 ms at 10 Gbit/s, the longest we expect to be descheduled
/// on a busy two-core machine. Too small shows as loss that no link caused.
const RECV_BUFFER_BYTES: usize = 8 << 20;

/// Send buffer asked for, in bytes. The kernel counts the whole `sk_buff`, about twice the payload;
/// pacing keeps the queue short, so this only has to hold a few GSO batches.
const SEND_BUFFER_BYTES: usize = 4 << 20;

/// An instruction of classic BPF, as `struct sock_filter` has it (`linux/filter.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// What it does.
    pub code: u16,
    /// How many instructions are left out where a condition holds.
    pub if_true: u8,
    /// The same where it does not.
    pub if_false: u8,
    /// Its constant.
    pub k: u32,
}

/// A UDP socket that is bound.
#[derive(Debug)]
pub struct BoundUdp {
    socket: Socket,
    local: SocketAddr,
}

impl BoundUdp {
    /// Opens, configures and binds a socket. Nobody else has its address.
    ///
    /// # Errors
    /// See [`UdpError`]; each message says what to do.
    pub fn bind(bind: UdpBind<'_>) -> Result<Self, UdpError> {
        let local = bind.local;
        let socket = open(local)?;
        if let Some(interface) = bind.interface {
            bind_to_interface(&socket, interface)?;
        }
        bind_to(socket, local)
    }

    /// One more socket at this one's address, which is the next in the order of its group.
    ///
    /// # Errors
    /// See [`UdpError`].
    pub fn sibling(&self) -> Result<Self, UdpError> {
        let local = self.local_addr();
        let configure = |source| UdpError::Configure {
            local,
            option: "SO_REUSEPORT",
            source,
        };
        // Only now: whoever binds alone is told that the address is taken.
        self.socket.set_reuse_port(true).map_err(configure)?;
        let socket = open(local)?;
        socket.set_reuse_port(true).map_err(configure)?;
        bind_to(socket, local)
    }

    /// A socket that another process has bound.
    ///
    /// # Errors
    /// It is none.
    pub fn inherit(socket: OwnedFd) -> io::Result<Self> {
        let socket = Socket::from(socket);
        let local = socket.local_addr()?.as_socket();
        let local = local.ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))?;
        Ok(Self { socket, local })
    }

    /// Has the kernel choose among the sockets of the group by this program from here on. It sees
    /// the payload of the datagram; where it returns no place, addresses decide.
    ///
    /// # Errors
    /// The program is refused, or the socket is in no group.
    pub fn steer(&self, program: &[Instruction]) -> io::Result<()> {
        steer(self.socket.as_fd(), program)
    }

    /// The address bound to, with the port the kernel chose where 0 was asked for.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        let bound = self.socket.local_addr().ok();
        bound
            .and_then(|bound| bound.as_socket())
            .unwrap_or(self.local)
    }

    pub(super) fn into_parts(self) -> (Socket, SocketAddr) {
        (self.socket, self.local)
    }
}

impl AsFd for BoundUdp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

pub(super) fn steer(socket: BorrowedFd<'_>, program: &[Instruction]) -> io::Result<()> {
    let mut filter: Vec<_> = program
        .iter()
        .map(|it| libc::sock_filter {
            code: it.code,
            jt: it.if_true,
            jf: it.if_false,
            k: it.k,
        })
        .collect();
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).map_err(io::Error::other)?,
        filter: filter.as_mut_ptr(),
    };
    // The kernel copies it.
    Ok(setsockopt(&socket, AttachReusePortCbpf, &program)?)
}

fn open(local: SocketAddr) -> Result<Socket, UdpError> {
    let socket = Socket::new(Domain::for_address(local), Type::DGRAM, Some(Protocol::UDP))
        .map_err(|source| UdpError::Open { local, source })?;
    if local.is_ipv6() {
        let dual_stack = local.ip().is_unspecified();
        socket
            .set_only_v6(!dual_stack)
            .map_err(|source| UdpError::Configure {
                local,
                option: "IPV6_V6ONLY",
                source,
            })?;
    }
    Ok(socket)
}

fn bind_to(socket: Socket, local: SocketAddr) -> Result<BoundUdp, UdpError> {
    grow_buffers(&socket);
    socket
        .bind(&local.into())
        .map_err(|source| UdpError::BindAddress { local, source })?;
    Ok(BoundUdp { socket, local })
}

fn bind_to_interface(socket: &Socket, interface: &str) -> Result<(), UdpError> {
    socket
        .bind_device(Some(interface.as_bytes()))
        .map_err(|source| {
            let interface = interface.to_owned();
            match source.raw_os_error() {
                Some(libc::EPERM) => UdpError::BindToInterfaceDenied { interface },
                Some(libc::ENODEV) => UdpError::NoSuchInterface { interface },
                _ => UdpError::BindToInterface { interface, source },
            }
        })
}

/// Asks for large buffers. A small buffer costs throughput only, so failure is not an error.
fn grow_buffers(socket: &Socket) {
    if let Err(error) = grow_receive(socket, RECV_BUFFER_BYTES) {
        tracing::debug!(%error, "SO_RCVBUF stays as it is");
    }
    if let Err(error) = grow_send(socket, SEND_BUFFER_BYTES) {
        tracing::debug!(%error, "SO_SNDBUF stays as it is");
    }
}
