//! A program that uses the proxy: says bytes, and takes answers apart.

use std::io;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tabane_fetch::BoxStream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

pub(crate) struct Program {
    connection: BoxStream,
    /// What has come beyond the last answer.
    early: Vec<u8>,
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// In lower case.
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
    /// The body is as long as the head, or its chunks, say.
    pub(crate) is_whole: bool,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines();
        let mut pairs = lines.filter_map(|line| line.split_once(": "));
        pairs
            .find(|(other, _)| *other == name)
            .map(|(_, value)| value)
    }
}

impl Program {
    pub(crate) async fn connect(port: u16) -> Self {
        let connection = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        Self {
            connection: Box::new(connection),
            early: Vec::new(),
        }
    }

    /// Speaks TLS from here on, with whom it believes to be `name`.
    pub(crate) async fn secure(self, name: &str, tls: &Arc<ClientConfig>) -> io::Result<Self> {
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let connector = TlsConnector::from(tls.clone());
        let connection = connector.connect(name, self.connection).await?;
        Ok(Self {
            connection: Box::new(connection),
            early: Vec::new(),
        })
    }

    pub(crate) async fn say(&mut self, bytes: &[u8]) {
        self.connection.write_all(bytes).await.unwrap();
    }

    /// Asks a proxy for a URL, with these header lines.
    pub(crate) async fn get(&mut self, url: &str, lines: &str) -> Answer {
        self.ask("GET", url, lines).await
    }

    pub(crate) async fn ask(&mut self, method: &str, url: &str, lines: &str) -> Answer {
        let text = format!("{method} {url} HTTP/1.1\r\nHost: 127.0.0.1\r\n{lines}\r\n");
        self.say(text.as_bytes()).await;
        self.answer(method == "HEAD").await
    }

    /// The head of an answer, in lower case.
    pub(crate) async fn head(&mut self) -> String {
        let end = loop {
            match find(&self.early, b"\r\n\r\n") {
                Some(at) => break at + 4,
                None => assert!(self.more().await, "no answer: {:?}", self.early),
            }
        };
        String::from_utf8(self.raw(end).await)
            .unwrap()
            .to_lowercase()
    }

    pub(crate) async fn answer(&mut self, is_head: bool) -> Answer {
        let head = self.head().await;
        let status: u16 = head.split(' ').nth(1).unwrap().parse().unwrap();
        let mut answer = Answer {
            status,
            head,
            body: Vec::new(),
            is_whole: true,
        };
        let length = answer.header("content-length").map(|n| n.parse().unwrap());
        if is_head || matches!(status, 204 | 304) {
            return answer;
        }
        if answer.header("transfer-encoding") == Some("chunked") {
            answer.is_whole = self.chunks(&mut answer.body).await;
            return answer;
        }
        let length: usize = length.unwrap_or(usize::MAX);
        while self.early.len() < length && self.more().await {}
        let rest = self.early.split_off(length.min(self.early.len()));
        answer.body = std::mem::replace(&mut self.early, rest);
        answer.is_whole = length == usize::MAX || answer.body.len() == length;
        answer
    }

    /// Bytes beyond an answer, as many as there are wanted.
    pub(crate) async fn raw(&mut self, count: usize) -> Vec<u8> {
        while self.early.len() < count {
            assert!(self.more().await, "only {:?}", self.early);
        }
        let rest = self.early.split_off(count);
        std::mem::replace(&mut self.early, rest)
    }

    pub(crate) async fn say_no_more(&mut self) {
        self.connection.shutdown().await.unwrap();
    }

    /// Whether the other side has closed.
    pub(crate) async fn is_closed(&mut self) -> bool {
        !self.more().await
    }

    async fn chunks(&mut self, body: &mut Vec<u8>) -> bool {
        loop {
            while let Some(at) = find(&self.early, b"\r\n") {
                let text = String::from_utf8_lossy(&self.early[..at]);
                let length = usize::from_str_radix(&text, 16).unwrap();
                let end = at + 2 + length + 2;
                if self.early.len() < end {
                    break;
                }
                body.extend_from_slice(&self.early[at + 2..end - 2]);
                self.early.drain(..end);
                if length == 0 {
                    return true;
                }
            }
            if !self.more().await {
                return false;
            }
        }
    }

    async fn more(&mut self) -> bool {
        matches!(self.connection.read_buf(&mut self.early).await, Ok(1..))
    }
}

fn find(bytes: &[u8], pattern: &[u8]) -> Option<usize> {
    bytes
        .windows(pattern.len())
        .position(|window| window == pattern)
}
