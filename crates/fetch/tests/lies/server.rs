//! A web server with one file, honest or not.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use tabane_base::Seed;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What is wrong with a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lie {
    None,
    NoRanges,
    NoRangesNoLength,
    ShiftedRange,
    OtherTotal,
    NoContentRange,
    /// 416 for bytes that are there.
    Outside,
    WeakTag,
    NoTag,
    TagPerConnection,
    Encoded,
    EncodedParts,
    EarlyClose,
    ShortParts,
    Busy(u16),
    Error500,
    SilentBodies,
    /// A byte now and then.
    DrippingBodies,
    SilentHeads,
    Changes,
    ChangesAndBreaks,
    Gone,
    EndlessRedirect,
    RedirectElsewhere,
    HugeHead,
    NoHttp,
    ComeBackTomorrow,
}

struct State {
    lie: Lie,
    size: usize,
    version: Cell<u64>,
    has_changed: Cell<bool>,
    requests: Cell<u64>,
    connections: Cell<u64>,
    heard: RefCell<Vec<String>>,
    redirect: RefCell<Option<String>>,
}

pub(crate) struct Server {
    state: Rc<State>,
    port: u16,
}

impl Server {
    pub(crate) async fn start(size: usize, lie: Lie) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Rc::new(State {
            lie,
            size,
            version: Cell::new(1),
            has_changed: Cell::new(false),
            requests: Cell::new(0),
            connections: Cell::new(0),
            heard: RefCell::default(),
            redirect: RefCell::default(),
        });
        let shared = state.clone();
        tokio::task::spawn_local(async move {
            while let Ok((connection, _)) = listener.accept().await {
                shared.connections.set(shared.connections.get() + 1);
                let state = shared.clone();
                let number = shared.connections.get();
                // A client that goes away is no concern of a server.
                tokio::task::spawn_local(
                    async move { drop(state.serve(connection, number).await) },
                );
            }
        });
        Self { state, port }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}/file", self.port)
    }

    pub(crate) fn file(&self) -> Vec<u8> {
        self.state.file()
    }

    pub(crate) fn change(&self) {
        self.state.change();
    }

    pub(crate) fn has_changed(&self) -> bool {
        self.state.has_changed.get()
    }

    pub(crate) fn heard(&self) -> Vec<String> {
        self.state.heard.borrow().clone()
    }

    pub(crate) fn redirect_to(&self, url: &str) {
        self.state.redirect.replace(Some(url.to_owned()));
    }
}

impl State {
    fn file(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.size];
        Seed(self.version.get()).rng("file").fill(&mut bytes);
        bytes
    }

    fn change(&self) {
        self.version.set(self.version.get() + 1);
        self.has_changed.set(true);
    }

    async fn serve(&self, mut connection: TcpStream, number: u64) -> std::io::Result<()> {
        loop {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(connection.read_u8().await?);
            }
            let head = String::from_utf8_lossy(&head).to_lowercase();
            self.heard.borrow_mut().push(head.clone());
            self.requests.set(self.requests.get() + 1);
            if !self.answer(&mut connection, &head, number).await? {
                return Ok(());
            }
        }
    }

    /// `false`: the connection is over.
    async fn answer(
        &self,
        connection: &mut TcpStream,
        head: &str,
        number: u64,
    ) -> std::io::Result<bool> {
        let request = self.requests.get();
        let redirect = self.redirect.borrow().clone();
        let elsewhere = match self.lie {
            Lie::EndlessRedirect => Some("/again".to_owned()),
            Lie::RedirectElsewhere => Some("ftp://elsewhere/".to_owned()),
            _ => redirect,
        };
        if let Some(location) = elsewhere {
            let text = format!("302 Found\r\nLocation: {location}");
            return say(connection, &text, b"").await;
        }
        match self.lie {
            Lie::Busy(status) if request % 3 == 1 => {
                let text = format!("{status} Busy\r\nRetry-After: 0");
                return say(connection, &text, b"later").await;
            }
            Lie::Outside if request % 3 == 2 => {
                let text = format!("416 No\r\nContent-Range: bytes */{}", self.size);
                return say(connection, &text, b"").await;
            }
            Lie::Error500 if request % 3 == 1 => return say(connection, "500 Oh", b"").await,
            Lie::ComeBackTomorrow => {
                return say(connection, "503 No\r\nRetry-After: 86400", b"").await;
            }
            Lie::Gone => return say(connection, "404 Not Found", b"gone").await,
            Lie::NoHttp => {
                connection.write_all(b"220 mail.example ESMTP\r\n").await?;
                return Ok(false);
            }
            Lie::HugeHead => {
                let text = format!("200 OK\r\nX: {}", "x".repeat(1_000_000));
                return say(connection, &text, b"").await;
            }
            Lie::SilentHeads if request % 3 == 2 => {
                tokio::time::sleep(Duration::from_secs(3_600)).await;
            }
            _ => {}
        }
        self.file_over(connection, head, number).await
    }

    async fn file_over(
        &self,
        connection: &mut TcpStream,
        head: &str,
        number: u64,
    ) -> std::io::Result<bool> {
        let request = self.requests.get();
        let file = self.file();
        let tag = match self.lie {
            Lie::NoTag => None,
            Lie::WeakTag => Some(format!("W/\"{}\"", self.version.get())),
            Lie::TagPerConnection => Some(format!("\"{number}\"")),
            _ => Some(format!("\"{}\"", self.version.get())),
        };
        let line = |name: &str| {
            let line = head.lines().find_map(|line| line.strip_prefix(name));
            line.map(|value| value.trim().to_owned())
        };
        let is_current = line("if-range:").is_none_or(|wanted| Some(wanted) == tag);
        let knows = !matches!(
            self.lie,
            Lie::NoRanges | Lie::NoRangesNoLength | Lie::Encoded
        );
        let range = line("range: bytes=").filter(|_| is_current && knows);
        let mut text = String::new();
        if let Some(tag) = tag {
            text += &format!("\r\nETag: {tag}");
        }
        let mut span = 0..file.len();
        let status = match range {
            Some(range) => {
                let (first, last) = range.split_once('-').unwrap();
                span.start = first.parse().unwrap();
                if span.start >= file.len() {
                    let text = format!("416 No\r\nContent-Range: bytes */{}", file.len());
                    return say(connection, &text, b"").await;
                }
                let last = last.parse().map_or(file.len(), |last: usize| last + 1);
                span.end = last.min(file.len());
                if self.lie == Lie::ShortParts {
                    span.end = span.end.min(span.start + 150_000);
                }
                let shift = usize::from(self.lie == Lie::ShiftedRange && request > 1);
                if self.lie != Lie::NoContentRange {
                    let (first, last) = (span.start + shift, span.end - 1);
                    let more = usize::from(self.lie == Lie::OtherTotal && request > 1);
                    let total = file.len() + more;
                    text += &format!("\r\nContent-Range: bytes {first}-{last}/{total}");
                }
                "206 Partial Content"
            }
            None => "200 OK",
        };
        if matches!(self.lie, Lie::Encoded | Lie::EncodedParts) {
            text += "\r\nContent-Encoding: gzip";
        }
        let has_length = self.lie != Lie::NoRangesNoLength;
        if has_length {
            text += &format!("\r\nContent-Length: {}", span.len());
        } else {
            text += "\r\nConnection: close";
        }
        let text = format!("HTTP/1.1 {status}{text}\r\n\r\n");
        connection.write_all(text.as_bytes()).await?;
        let breaks = match self.lie {
            Lie::EarlyClose if request % 2 == 1 => Some(span.len() / 2),
            Lie::SilentBodies | Lie::DrippingBodies if request.is_multiple_of(2) => {
                Some(span.len() / 3)
            }
            Lie::Changes if request == 2 => Some(span.len() / 2),
            Lie::ChangesAndBreaks if request == 1 => Some(span.len() / 2),
            _ => None,
        };
        let body = &file[span];
        let sent = &body[..breaks.unwrap_or(body.len())];
        connection.write_all(sent).await?;
        match (self.lie, breaks) {
            (Lie::DrippingBodies, Some(sent)) => {
                for byte in &body[sent..] {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    connection.write_all(&[*byte]).await?;
                }
            }
            (Lie::SilentBodies, Some(_)) => tokio::time::sleep(Duration::from_secs(3_600)).await,
            (Lie::Changes | Lie::ChangesAndBreaks, Some(_)) => self.change(),
            _ => {}
        }
        Ok(breaks.is_none() && has_length)
    }
}

async fn say(connection: &mut TcpStream, text: &str, body: &[u8]) -> std::io::Result<bool> {
    let length = body.len();
    let head = format!("HTTP/1.1 {text}\r\nContent-Length: {length}\r\n\r\n");
    connection.write_all(head.as_bytes()).await?;
    connection.write_all(body).await?;
    Ok(true)
}
