//! Somebody who has come to a port that leads to clients.
//!
//! Owns what is known of a visitor before a client is asked about it: where it comes from and what
//! it came to, and the name that it asks for, which is read at a port of several.

use std::io;
use std::net::SocketAddr;

use tabane_base::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::asked_name::{Asked, Front};
use crate::target::HostName;

/// How long a visitor may take to say which name it wants.
const NAME_WAIT: Duration = Duration::from_secs(5);
/// Bytes that are read of it at a time.
const MAX_PIECE: usize = 4 * 1024;

/// Somebody at a port.
pub(super) struct Visitor {
    /// Is reset when it is dropped.
    pub(super) tcp: TcpStream,
    pub(super) from: SocketAddr,
    pub(super) at: SocketAddr,
    /// Read from it already.
    pub(super) front: Front,
}

impl Visitor {
    pub(super) fn new((tcp, from): (TcpStream, SocketAddr)) -> io::Result<Self> {
        // What is not served ends by a reset, not as if all were said.
        tcp.set_zero_linger()?;
        let canonical = |it: SocketAddr| SocketAddr::new(it.ip().to_canonical(), it.port());
        Ok(Self {
            from: canonical(from),
            at: canonical(tcp.local_addr()?),
            front: Front::default(),
            tcp,
        })
    }

    /// The same, watched by this thread's loop: the worker that took it in may end before this one.
    ///
    /// # Errors
    /// Out of descriptors to watch.
    pub(super) fn at_home(self) -> io::Result<Self> {
        let tcp = TcpStream::from_std(self.tcp.into_std()?)?;
        Ok(Self { tcp, ..self })
    }

    /// Reads until it says which host it is for; `None` where it does not, or takes too long.
    pub(super) async fn read_name(&mut self) -> Option<HostName> {
        timeout(NAME_WAIT, self.read_front()).await.ok().flatten()
    }

    async fn read_front(&mut self) -> Option<HostName> {
        loop {
            self.tcp.readable().await.ok()?;
            // Who waits keeps no memory for it.
            let mut piece = [0; MAX_PIECE];
            let room = self.front.room().min(MAX_PIECE);
            let len = match self.tcp.try_read(&mut piece[..room]) {
                Ok(0) => return None,
                Ok(len) => len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(_) => return None,
            };
            match self.front.take(&piece[..len]) {
                Asked::More(_) => {}
                Asked::For(name) => return Some(name),
                Asked::Nobody => return None,
            }
        }
    }
}
