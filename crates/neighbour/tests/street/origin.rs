//! A web server on loopback for one file, in ranges; and one that sends back what it gets.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_local;

/// A file whose bytes tell where they are.
pub(crate) fn file(size: usize) -> Vec<u8> {
    (0..size)
        .map(|at| (at ^ at >> 8 ^ at >> 16) as u8)
        .collect()
}

/// Serves `size` bytes of [`file`], one request per connection after the other.
pub(crate) async fn web(size: usize) -> SocketAddr {
    serve(move |stream| web_connection(stream, size)).await
}

pub(crate) async fn echo() -> SocketAddr {
    serve(|mut stream| async move {
        let (mut from, mut to) = stream.split();
        tokio::io::copy(&mut from, &mut to).await?;
        to.shutdown().await
    })
    .await
}

/// Serves connections on a port of its own.
pub(crate) async fn serve<F>(connection: impl Fn(TcpStream) -> F + 'static) -> SocketAddr
where
    F: Future<Output = io::Result<()>> + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    spawn_local(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let served = connection(stream);
            // Clients that go away are part of the tests.
            spawn_local(async move { drop(served.await) });
        }
    });
    address
}

async fn web_connection(mut stream: TcpStream, size: usize) -> io::Result<()> {
    let file = file(size);
    loop {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await?);
        }
        let head = String::from_utf8_lossy(&head).to_lowercase();
        let range = head.split_once("range: bytes=").map(|(_, rest)| {
            let (first, rest) = rest.split_once('-').unwrap();
            let last = rest.split("\r\n").next().unwrap();
            let last = last.parse().unwrap_or(size - 1).min(size - 1);
            (first.parse::<usize>().unwrap(), last)
        });
        let (status, (first, last)) = match range {
            Some(range) => ("206 Partial Content", range),
            None => ("200 OK", (0, size - 1)),
        };
        let answer = format!(
            "HTTP/1.1 {status}\r\netag: \"one\"\r\ncontent-length: {}\r\n\
             content-range: bytes {first}-{last}/{size}\r\n\r\n",
            last + 1 - first
        );
        stream.write_all(answer.as_bytes()).await?;
        stream.write_all(&file[first..=last]).await?;
    }
}
