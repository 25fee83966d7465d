//! Sockets that speak in the name of another host (IP_TRANSPARENT).
//!
//! Owns how they are made. What is said to them goes to the other host's address, so a packet
//! filter rule has to bring it here: by `socket transparent` for connections, for datagrams by the
//! socket's mark as well, since sockets that hear of everybody match, too. Needs `CAP_NET_ADMIN`.

use std::io;
use std::net::SocketAddr;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};

use crate::transparent::set_transparent;

/// Connects to `dest` as `source`; from another of its ports where this one is in use. `mark` is
/// the socket's.
///
/// # Errors
/// Those of `connect(2)`, and `PermissionDenied`.
pub async fn connect_tcp(source: SocketAddr, dest: SocketAddr, mark: u32) -> io::Result<TcpStream> {
    match connect_tcp_from(source, dest, mark).await {
        Err(error) if is_taken(&error) => {
            let any = SocketAddr::new(source.ip(), 0);
            connect_tcp_from(any, dest, mark).await
        }
        connected => connected,
    }
}

async fn connect_tcp_from(
    source: SocketAddr,
    dest: SocketAddr,
    mark: u32,
) -> io::Result<TcpStream> {
    let socket = socket(source, Type::STREAM, Protocol::TCP, mark)?;
    TcpSocket::from_std_stream(socket.into())
        .connect(dest)
        .await
}

/// A UDP socket that speaks with `dest` alone, as `source`. Its mark is `mark` while it connects,
/// and `then` from there on.
///
/// # Errors
/// As those of [`connect_tcp`].
pub fn connect_udp(
    source: SocketAddr,
    dest: SocketAddr,
    mark: u32,
    then: u32,
) -> io::Result<UdpSocket> {
    let connect = |source| {
        let socket = socket(source, Type::DGRAM, Protocol::UDP, mark)?;
        socket.connect(&dest.into())?;
        socket.set_mark(then)?;
        UdpSocket::from_std(socket.into())
    };
    match connect(source) {
        Err(error) if is_taken(&error) => connect(SocketAddr::new(source.ip(), 0)),
        connected => connected,
    }
}

fn is_taken(error: &io::Error) -> bool {
    use io::ErrorKind::{AddrInUse, AddrNotAvailable};
    matches!(error.kind(), AddrInUse | AddrNotAvailable)
}

fn socket(source: SocketAddr, kind: Type, protocol: Protocol, mark: u32) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(source), kind, Some(protocol))?;
    socket.set_nonblocking(true)?;
    // One host asks several from one port.
    socket.set_reuse_address(true)?;
    set_transparent(&socket, source.ip())?;
    socket.set_mark(mark)?;
    socket.bind(&source.into())?;
    Ok(socket)
}
