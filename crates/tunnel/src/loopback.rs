//! A TCP connection of this process with itself, where a carried one needs an end that is code.
//!
//! Owns that nobody else gets in between: whoever connects to the port meanwhile is sent away.

use std::io;
use std::net::Ipv4Addr;

use tokio::net::{TcpListener, TcpStream};

/// Strangers at the port before it is given up: nobody knows of it, and it exists for microseconds.
const MOST_STRANGERS: usize = 16;

/// Both ends of a connection on loopback.
///
/// # Errors
/// No descriptors or ports are left, there is no loopback, or strangers crowd the port.
pub async fn pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    // The kernel accepts on the listener's behalf.
    let near = TcpStream::connect(listener.local_addr()?).await?;
    let own = near.local_addr()?;
    for _ in 0..MOST_STRANGERS {
        let (far, from) = listener.accept().await?;
        if from == own {
            return Ok((near, far));
        }
    }
    Err(io::ErrorKind::ConnectionRefused.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_are_of_one_connection() {
        crate::block_on(async {
            let (near, far) = pair().await.unwrap();
            assert_eq!(near.local_addr().unwrap(), far.peer_addr().unwrap());
            assert_eq!(near.peer_addr().unwrap(), far.local_addr().unwrap());
        })
        .unwrap();
    }
}
