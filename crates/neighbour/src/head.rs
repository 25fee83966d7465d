//! Heads of what neighbours ask each other and answer within TLS: CONNECT and CONNECT-UDP.
//!
//! Owns how they are read and how long they may be. What is asked for is granted by `share`.

use std::io;
use std::net::SocketAddr;

use tabane_base::Destination;
use tokio::io::AsyncReadExt;

/// The answer's header that names the port.
pub(crate) const PORT_HEADER: &str = "udp-port";
/// The method that asks for a port for datagrams.
pub(crate) const METHOD: &str = "CONNECT-UDP";
/// A request is one line and a header or two; host names have 253 characters at most.
const MAX_REQUEST: usize = 2048;
/// The most the head of an answer may have.
pub(crate) const MAX_ANSWER: usize = 4096;

/// Where a CONNECT-UDP leads; `None`: it asks for something else. Names are not looked up for it.
pub(crate) async fn read_datagram_request(
    stream: &mut (impl AsyncReadExt + Unpin),
) -> io::Result<Option<SocketAddr>> {
    let head = read_head(stream, MAX_REQUEST).await?;
    Ok(asked_for(&head, METHOD, |target| target.parse().ok()))
}

/// Where a CONNECT leads; `None`: it asks for something else.
pub(crate) async fn read_request(
    stream: &mut (impl AsyncReadExt + Unpin),
) -> io::Result<Option<Destination>> {
    let head = read_head(stream, MAX_REQUEST).await?;
    let read = |target: &str| Destination::parse(target, None).ok();
    Ok(asked_for(&head, "CONNECT", read))
}

/// The target of a request by `method`.
fn asked_for<T>(head: &[u8], method: &str, read: impl Fn(&str) -> Option<T>) -> Option<T> {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut request = httparse::Request::new(&mut headers);
    let parsed = request.parse(head).is_ok() && request.method == Some(method);
    request.path.filter(|_| parsed).and_then(read)
}

/// The head of a message, byte by byte, so that what follows is left to whom it is for; from TLS's
/// buffer that costs nothing.
pub(crate) async fn read_head(
    stream: &mut (impl AsyncReadExt + Unpin),
    most: usize,
) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() == most {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a head too long",
            ));
        }
        head.push(stream.read_u8().await?);
    }
    Ok(head)
}

/// Whether a neighbour has connected us.
pub(crate) fn judge(head: &[u8]) -> io::Result<()> {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut answer = httparse::Response::new(&mut headers);
    let parsed = answer.parse(head);
    match (parsed, answer.code) {
        (Ok(_), Some(200)) => Ok(()),
        (Ok(_), Some(code)) => {
            let reason: String = answer.reason.unwrap_or_default().chars().take(80).collect();
            Err(io::Error::other(format!("it says {code} {reason}")))
        }
        _ => Err(io::Error::other("it does not answer as a neighbour does")),
    }
}

/// The port that an answer names.
pub(crate) fn lent_port(head: &[u8]) -> io::Result<u16> {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut answer = httparse::Response::new(&mut headers);
    let parsed = answer.parse(head).is_ok();
    let mut headers = answer.headers.iter();
    let header = headers.find(|header| header.name.eq_ignore_ascii_case(PORT_HEADER));
    let port = header.and_then(|header| str::from_utf8(header.value).ok()?.parse().ok());
    port.filter(|port| parsed && *port != 0)
        .ok_or_else(|| io::Error::other("it names no port"))
}
