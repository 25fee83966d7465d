//! A program that asks for a connection, and what it is told.
//!
//! Owns the difference between one that waits in `connect()` still and, where the kernel could not
//! hold it back, one that has been told yes already.

use std::net::SocketAddr;

use tokio::net::TcpStream;

use crate::abortive::AbortiveStream;
use crate::syn_hold::{HeldCall, SynRefusal};

/// Who asks for a connection. Dropped, it is told nothing: one that waits goes on waiting.
#[derive(Debug)]
pub struct Caller {
    /// The program's end of the connection.
    pub from: SocketAddr,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Held(HeldCall),
    Accepted(AbortiveStream),
}

impl Caller {
    pub(crate) fn held(call: HeldCall) -> Self {
        Self {
            from: call.from(),
            kind: Kind::Held(call),
        }
    }

    pub(crate) fn accepted(stream: TcpStream, from: SocketAddr) -> Self {
        Self {
            from,
            kind: Kind::Accepted(prepared(stream)),
        }
    }

    /// Waits until the program has given up.
    pub async fn gone(&mut self) {
        match &mut self.kind {
            Kind::Held(call) => call.gone().await,
            // Its own reset shows when its data is read.
            Kind::Accepted(_) => std::future::pending().await,
        }
    }

    /// Tells the program that it is connected. `None` where it has given up meanwhile.
    pub async fn accept(self) -> Option<AbortiveStream> {
        match self.kind {
            Kind::Held(call) => call.accept().await.map(prepared),
            Kind::Accepted(stream) => Some(stream),
        }
    }

    /// Tells the program why it is not.
    pub fn refuse(self, why: SynRefusal) {
        match self.kind {
            Kind::Held(call) => call.refuse(why),
            // A reset: whoever is told no after a yes must not take the end for an orderly one.
            Kind::Accepted(stream) => drop(stream),
        }
    }
}

/// A connection to a program, ready to be carried.
fn prepared(stream: TcpStream) -> AbortiveStream {
    // Reset by the program since; whoever reads will see.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY");
    }
    // It was the listener's, and each packet would go through it.
    if let Err(error) = socket2::SockRef::from(&stream).detach_filter() {
        tracing::debug!(%error, "SO_DETACH_FILTER");
    }
    stream.into()
}
