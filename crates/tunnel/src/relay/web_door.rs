//! The relay's door for clients whose networks let no UDP through: TLS on TCP, a web server to
//! everybody else.
//!
//! Owns how many visitors are heard at once. What comes of a visit is the carrier's affair, what
//! packets are in it the engine's.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::carrier::{Acceptor, Visit};
use tabane_base::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::engine::Engine;

/// Visitors who have not said what they want. More wait in the kernel's queue; none is heard for
/// longer than ten seconds.
const MAX_VISITORS: usize = 256;
/// After a failure to accept, which is want of descriptors as a rule.
const PAUSE: Duration = Duration::from_millis(100);

/// Where the relay takes in TLS.
pub struct WebDoor {
    /// Its socket.
    pub listener: TcpListener,
    /// What is said there.
    pub acceptor: Acceptor,
}

impl WebDoor {
    /// What the monitor calls the link of those who come here.
    pub(super) fn link(&self) -> String {
        match self.listener.local_addr() {
            Ok(address) => format!("tls {address}"),
            Err(_) => "tls".to_owned(),
        }
    }

    /// Takes in whoever comes, for ever.
    pub(super) async fn serve(self, engine: Engine) {
        let link = self.link();
        let visitors = Arc::new(Semaphore::new(MAX_VISITORS));
        loop {
            let Ok(seat) = visitors.clone().acquire_owned().await else {
                return;
            };
            let (stream, from) = match self.listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::debug!(%error, "cannot accept");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            let (acceptor, engine, link) = (self.acceptor.clone(), engine.clone(), link.clone());
            tokio::task::spawn_local(async move {
                match acceptor.visit(stream).await {
                    Ok(Visit::Client(stream)) => {
                        engine.attach(&link, stream, canonical(from));
                    }
                    Ok(Visit::Stranger) => tracing::debug!(%from, "a stranger saw the web page"),
                    Err(error) => tracing::debug!(%from, %error, "a visit came to nothing"),
                }
                drop(seat);
            });
        }
    }
}

/// As UDP sockets show addresses.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
