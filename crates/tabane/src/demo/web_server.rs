//! The web server that the demonstration downloads from: any GET is answered with an endless body.
//!
//! Speaks as much of HTTP/1.1 (RFC 9112) as curl asks for. Serves on the caller's `LocalSet`; the
//! listening socket may come from another network namespace, where its connections stay.

use std::io;
use std::net::{SocketAddr, TcpListener};

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use tabane_base::{Content, Seed};

/// What is served; it has no end, whoever downloads it stops.
pub(super) const BODY: Content = Content::new(Seed(0));
/// A request longer than this is none of curl's.
const MAX_REQUEST: usize = 8 * 1024;
/// What is written at once.
const BLOCK: usize = 64 * 1024;

const HEADER: &str = "HTTP/1.1 200 OK\r\n\
                      Content-Type: application/octet-stream\r\n\
                      Cache-Control: no-store\r\n\
                      Connection: close\r\n\r\n";
const REFUSAL: &str = "HTTP/1.1 405 Method Not Allowed\r\n\
                       Allow: GET\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

/// Serves until dropped.
#[derive(Debug)]
pub(crate) struct WebServer {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl WebServer {
    /// Serves on a socket that listens already.
    pub(crate) fn start(listener: TcpListener) -> Result<Self> {
        let begin = || {
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            io::Result::Ok((address, tokio::net::TcpListener::from_std(listener)?))
        };
        let (address, listener) = begin().context("cannot start the web server")?;
        Ok(Self {
            address,
            task: tokio::task::spawn_local(serve(listener)),
        })
    }

    /// What curl is to be given.
    pub(crate) fn url(&self) -> String {
        format!("http://{}/", self.address)
    }
}

impl Drop for WebServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(listener: tokio::net::TcpListener) {
    // `accept` fails for want of descriptors only; the demonstration needs a handful.
    while let Ok((connection, _)) = listener.accept().await {
        tokio::task::spawn_local(async move {
            // Ends in a reset as a rule: curl stops in the middle.
            if let Err(error) = answer(connection).await {
                tracing::debug!(%error, "a download is over");
            }
        });
    }
}

async fn answer(mut connection: TcpStream) -> io::Result<()> {
    let mut request = Vec::new();
    while !request.windows(4).any(|four| four == b"\r\n\r\n") {
        if request.len() > MAX_REQUEST || connection.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
    }
    if !request.starts_with(b"GET ") {
        return connection.write_all(REFUSAL.as_bytes()).await;
    }
    connection.write_all(HEADER.as_bytes()).await?;
    let mut block = vec![0; BLOCK];
    for offset in (0..).step_by(BLOCK) {
        BODY.fill(offset, &mut block);
        connection.write_all(&block).await?;
    }
    Ok(())
}
