//! A program's first words on an accepted connection, read until it is clear what it wants.
//!
//! Owns the time limit, the reading and the answers. Nothing is opened here: the caller opens the
//! destination and then accepts or refuses, so a program learns the truth in its own dialect.

use super::association::UdpAssociation;
use super::http::{HttpError, HttpRequest, MAX_HEAD, parse_request};
use super::refusal::Refusal;
use super::socks5::{self, Command, Socks5Error};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::Duration;
use tabane_base::Destination;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// How long a program may take to say what it wants; longer than any program that means it, and
/// short enough that idle connections do not pile up.
const NEGOTIATION_TIME: Duration = Duration::from_secs(30);

/// How long, and how much, we go on reading after a refusal: closing with unread bytes would reset
/// the connection and could take the answer away from the program.
const LINGER_TIME: Duration = Duration::from_millis(500);
const LINGER_BYTES: usize = 256 * 1024;

/// Bytes looked at to read one head, since each piece that comes has all of it looked at again:
/// enough for the longest one in packets of the internet, and for a short one byte by byte.
const MOST_LOOKS: usize = 32 * MAX_HEAD;

/// What the program wants.
#[derive(Debug)]
pub enum Request {
    /// Carry a TCP connection.
    Tcp(TcpRequest),
    /// Carry datagrams.
    Udp(UdpRequest),
}

/// Why an accepted connection came to nothing. Where the dialect is known, the program was told.
#[derive(Debug, thiserror::Error)]
pub enum NegotiationError {
    /// Reading or writing failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The program closed before it had said what it wants.
    #[error("the program closed the connection")]
    Closed,
    /// It took longer than 30 s to say what it wants.
    #[error("the program said nothing for {} s", NEGOTIATION_TIME.as_secs())]
    TimedOut,
    /// A broken SOCKS5 message.
    #[error(transparent)]
    Socks5(#[from] Socks5Error),
    /// A broken HTTP request.
    #[error(transparent)]
    Http(#[from] HttpError),
}

/// A wish to open a TCP connection; must be accepted or refused.
#[derive(Debug)]
pub struct TcpRequest {
    client: TcpStream,
    destination: Destination,
    early: Vec<u8>,
    dialect: Dialect,
}

/// A wish to carry datagrams; must be accepted or refused.
#[derive(Debug)]
pub struct UdpRequest {
    client: TcpStream,
}

/// An accepted connection.
#[derive(Debug)]
pub struct Accepted {
    /// The program's connection; every byte it reads or writes is application data.
    pub client: TcpStream,
    /// What must be sent to the destination before anything the program sends.
    pub early: Vec<u8>,
}

#[derive(Debug, Clone, Copy)]
enum Dialect {
    Socks5,
    HttpConnect,
    HttpForward,
}

/// Reads what the program on `client` wants.
pub async fn negotiate(client: TcpStream) -> Result<Request, NegotiationError> {
    tokio::time::timeout(NEGOTIATION_TIME, listen(client))
        .await
        .unwrap_or(Err(NegotiationError::TimedOut))
}

async fn listen(mut client: TcpStream) -> Result<Request, NegotiationError> {
    let mut buffer = Vec::with_capacity(1024);
    read_more(&mut client, &mut buffer).await?;
    if buffer[0] == socks5::VERSION {
        listen_socks5(client, buffer).await
    } else {
        listen_http(client, buffer).await
    }
}

async fn listen_socks5(
    mut client: TcpStream,
    mut buffer: Vec<u8>,
) -> Result<Request, NegotiationError> {
    let greeting = loop {
        match socks5::parse_greeting(&buffer) {
            Ok(Some(n)) => break n,
            Ok(None) => read_more(&mut client, &mut buffer).await?,
            Err(error) => {
                answer_and_close(&mut client, &socks5::METHOD_UNACCEPTABLE).await;
                return Err(error.into());
            }
        }
    };
    buffer.drain(..greeting);
    client.write_all(&socks5::METHOD_NONE).await?;
    let request = loop {
        match socks5::parse_socks5_request(&buffer) {
            Ok(Some((request, n))) => {
                buffer.drain(..n);
                break request;
            }
            Ok(None) => read_more(&mut client, &mut buffer).await?,
            Err(error) => {
                let code = match error {
                    Socks5Error::Command(_) => 7,
                    Socks5Error::AddressType(_) => 8,
                    Socks5Error::Version(_)
                    | Socks5Error::NoAcceptableMethod
                    | Socks5Error::Name
                    | Socks5Error::Short
                    | Socks5Error::Fragment => 1,
                };
                let reply = socks5::emit_reply(code, ANY);
                answer_and_close(&mut client, &reply).await;
                return Err(error.into());
            }
        }
    };
    Ok(match request.command {
        Command::Connect => Request::Tcp(TcpRequest {
            client,
            destination: request.destination,
            early: buffer,
            dialect: Dialect::Socks5,
        }),
        Command::UdpAssociate => Request::Udp(UdpRequest { client }),
    })
}

async fn listen_http(
    mut client: TcpStream,
    mut buffer: Vec<u8>,
) -> Result<Request, NegotiationError> {
    let request = match read_head(&mut client, &mut buffer).await {
        Err(NegotiationError::Http(error)) => {
            let reply = http_answer("400 Bad Request", &error.to_string());
            answer_and_close(&mut client, reply.as_bytes()).await;
            return Err(error.into());
        }
        read => read?,
    };
    Ok(Request::Tcp(match request {
        HttpRequest::Connect {
            destination,
            consumed,
        } => {
            let early = buffer.split_off(consumed);
            TcpRequest {
                client,
                destination,
                early,
                dialect: Dialect::HttpConnect,
            }
        }
        HttpRequest::Forward {
            destination,
            head: mut early,
            consumed,
        } => {
            early.extend_from_slice(&buffer[consumed..]);
            TcpRequest {
                client,
                destination,
                early,
                dialect: Dialect::HttpForward,
            }
        }
    }))
}

/// Reads on until the head is whole.
async fn read_head(
    client: &mut (impl AsyncRead + Unpin),
    buffer: &mut Vec<u8>,
) -> Result<HttpRequest, NegotiationError> {
    let mut looks = 0;
    loop {
        if let Some(request) = parse_request(buffer)? {
            return Ok(request);
        }
        looks += buffer.len();
        if looks > MOST_LOOKS {
            return Err(HttpError::Crumbs.into());
        }
        read_more(client, buffer).await?;
    }
}

/// What replies carry where no address matters.
const ANY: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0));

impl TcpRequest {
    /// Tells the program that the destination answered.
    pub async fn accept(mut self) -> io::Result<Accepted> {
        match self.dialect {
            Dialect::Socks5 => self.client.write_all(&socks5::emit_reply(0, ANY)).await?,
            Dialect::HttpConnect => {
                self.client
                    .write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")
                    .await?;
            }
            Dialect::HttpForward => {}
        }
        Ok(Accepted {
            client: self.client,
            early: self.early,
        })
    }

    /// Tells the program why not, and closes.
    pub async fn refuse(mut self, why: Refusal) {
        match self.dialect {
            Dialect::Socks5 => {
                let reply = socks5::emit_reply(why.socks5_code(), ANY);
                answer_and_close(&mut self.client, &reply).await;
            }
            Dialect::HttpConnect | Dialect::HttpForward => {
                let text = format!("{}: {}", self.destination, why.sentence());
                let reply = http_answer(why.http_status(), &text);
                answer_and_close(&mut self.client, reply.as_bytes()).await;
            }
        }
    }

    /// Where to.
    pub fn destination(&self) -> &Destination {
        &self.destination
    }
}

impl UdpRequest {
    /// Binds a socket beside the connection and tells the program where it is.
    pub async fn accept(self) -> io::Result<UdpAssociation> {
        UdpAssociation::open(self.client).await
    }
}

fn http_answer(status: &str, text: &str) -> String {
    let length = text.len() + "tabane: \n".len();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\ntabane: {text}\n"
    )
}

async fn read_more(
    client: &mut (impl AsyncRead + Unpin),
    buffer: &mut Vec<u8>,
) -> Result<(), NegotiationError> {
    match client.read_buf(buffer).await? {
        0 => Err(NegotiationError::Closed),
        _ => Ok(()),
    }
}

/// Best effort: the program may be gone already, and nothing depends on it.
async fn answer_and_close(client: &mut TcpStream, answer: &[u8]) {
    let farewell = async {
        client.write_all(answer).await?;
        client.shutdown().await?;
        let mut sink = [0; 4096];
        let mut drained = 0;
        while drained < LINGER_BYTES {
            match client.read(&mut sink).await? {
                0 => break,
                n => drained += n,
            }
        }
        io::Result::Ok(())
    };
    let _ = tokio::time::timeout(LINGER_TIME, farewell).await;
}

#[cfg(test)]
mod tests;
