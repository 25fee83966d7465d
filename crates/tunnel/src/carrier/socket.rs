//! What the kernel is told of TCP connections that carry packets.

use std::io;
use std::time::Duration;

use socket2::SockRef;
use tokio::net::TcpStream;

/// What may wait in the kernel unsent. What is behind it can still take another link; two full
/// bursts keep a fast link busy.
const NOT_SENT: u32 = 128 * 1024;
/// What was sent and is not acknowledged for so long ends the connection, and another is dialled.
const UNHEARD: Duration = Duration::from_secs(10);
/// Connections on which nothing passes are asked for a sign of life, for the sake of NATs.
const IDLE: Duration = Duration::from_secs(45);

/// Keeps queues short and ends in view.
pub(crate) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    socket.set_tcp_notsent_lowat(NOT_SENT)?;
    socket.set_tcp_user_timeout(Some(UNHEARD))?;
    socket.set_tcp_keepalive(&socket2::TcpKeepalive::new().with_time(IDLE))?;
    // A loss is no reason to halve on a radio link; a kernel without it goes on as it is.
    if let Err(error) = socket.set_tcp_congestion(b"bbr") {
        tracing::debug!(%error, "TCP without BBR");
    }
    Ok(())
}
