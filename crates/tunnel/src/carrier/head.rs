//! Heads of HTTP/1 answers, as far as a client of relays and proxies needs them.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

/// Bytes of a head. Proxies' answers that ask for passwords are the longest.
pub(crate) const MAX_HEAD: usize = 16 * 1024;
/// Header lines in one.
const MAX_LINES: usize = 64;

/// Bytes looked at to read one, since each piece that comes has all of it looked at again.
const MAX_LOOKS: usize = 16 * MAX_HEAD;

/// What was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// What the server says of itself, where it does.
    pub server: Option<String>,
}

/// Reads a head; `None` while it is not complete.
///
/// # Errors
/// It is none.
pub fn parse_answer(bytes: &[u8]) -> Result<Option<(Answer, usize)>, httparse::Error> {
    let mut lines = [httparse::EMPTY_HEADER; MAX_LINES];
    let mut response = httparse::Response::new(&mut lines);
    let httparse::Status::Complete(end) = response.parse(bytes)? else {
        return Ok(None);
    };
    let server = response
        .headers
        .iter()
        .find(|line| line.name.eq_ignore_ascii_case("server"));
    let printable = |c: &char| !c.is_control();
    let server = server.map(|line| String::from_utf8_lossy(line.value));
    let server = server.map(|text| text.chars().filter(printable).take(60).collect());
    let status = response.code.unwrap_or(0);
    Ok(Some((Answer { status, server }, end)))
}

/// Reads an answer's head, of which nothing may follow yet: whoever answers waits for us then.
pub(crate) async fn read_answer(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Answer> {
    let mut head = Vec::new();
    let mut chunk = [0; 1024];
    let mut looks = 0;
    loop {
        let n = stream.read(&mut chunk).await?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        head.extend_from_slice(&chunk[..n]);
        looks += head.len();
        let garbage = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        match parse_answer(&head) {
            // A body may follow where nothing of ours does.
            Ok(Some((answer, end))) if end == head.len() || answer.status >= 300 => {
                return Ok(answer);
            }
            Ok(Some((answer, _))) if answer.status >= 200 => return Ok(answer),
            Ok(Some(_)) => return Err(garbage("more than was asked for")),
            Ok(None) if head.len() < MAX_HEAD && looks < MAX_LOOKS => {}
            Ok(None) => return Err(garbage("a head without end")),
            Err(_) => return Err(garbage("no HTTP")),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWriteExt, duplex};

    use super::*;

    #[test]
    fn a_long_answer_in_crumbs_is_not_heard_to_its_end() {
        let answer = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "y".repeat(MAX_HEAD / 2));
        for (piece, is_heard) in [(1_000, true), (1, false)] {
            crate::block_on(async {
                let (mut server, mut client) = duplex(piece);
                let says = server.write_all(answer.as_bytes());
                let hears = async {
                    let answer = read_answer(&mut client).await;
                    drop(client);
                    answer
                };
                let (_, heard) = tokio::join!(says, hears);
                assert_eq!(heard.is_ok(), is_heard, "in pieces of {piece}");
            })
            .unwrap();
        }
    }
}
