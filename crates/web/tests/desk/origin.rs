//! A web server that a test writes the answers of.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use tabane_base::Seed;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy, split};
use tokio::net::TcpListener;
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;

/// What the server says to a request.
pub(crate) enum Reply {
    /// These bytes; the connection goes on.
    Say(Vec<u8>),
    /// These bytes, and no more.
    SayAndClose(Vec<u8>),
    /// These bytes, after a while.
    SayLater(Duration, Vec<u8>),
    /// These bytes, and from then on what is heard.
    SayAndEcho(Vec<u8>),
}

pub(crate) struct Origin {
    pub(crate) port: u16,
    heard: Rc<RefCell<Vec<String>>>,
    /// How many connections have ended on the client's side.
    left: Rc<Cell<usize>>,
}

impl Origin {
    /// Answers each request's head and body by `answer`.
    pub(crate) async fn start(answer: impl Fn(&str, &[u8]) -> Reply + 'static) -> Self {
        Self::listen(None, answer).await
    }

    /// The same with TLS.
    pub(crate) async fn secure(
        tls: TlsAcceptor,
        answer: impl Fn(&str, &[u8]) -> Reply + 'static,
    ) -> Self {
        Self::listen(Some(tls), answer).await
    }

    async fn listen(
        tls: Option<TlsAcceptor>,
        answer: impl Fn(&str, &[u8]) -> Reply + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (heard, left) = (
            Rc::<RefCell<Vec<String>>>::default(),
            Rc::<Cell<usize>>::default(),
        );
        let (noted, counted) = (heard.clone(), Rc::clone(&left));
        let answer = Rc::new(answer);
        tokio::task::spawn_local(async move {
            while let Ok((connection, _)) = listener.accept().await {
                let (answer, noted, counted) = (answer.clone(), noted.clone(), counted.clone());
                let tls = tls.clone();
                tokio::task::spawn_local(async move {
                    let served = match tls {
                        None => serve(connection, &*answer, &noted).await,
                        Some(tls) => match tls.accept(connection).await {
                            Ok(connection) => serve(connection, &*answer, &noted).await,
                            Err(error) => Err(error),
                        },
                    };
                    if served.is_err() {
                        counted.set(counted.get() + 1);
                    }
                });
            }
        });
        Self { port, heard, left }
    }

    /// A file of a version that its tag tells; knows ranges.
    pub(crate) async fn with_file(size: usize) -> Self {
        Self::start(move |head, _| Reply::Say(file_answer(head, &file(size), "\"1\""))).await
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}/file", self.port)
    }

    /// The heads of requests, in lower case.
    pub(crate) fn heard(&self) -> Vec<String> {
        self.heard.borrow().clone()
    }

    pub(crate) fn left(&self) -> usize {
        self.left.get()
    }
}

pub(crate) fn file(size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    Seed(1).rng("file").fill(&mut bytes);
    bytes
}

/// 200 or 206, as nginx would.
pub(crate) fn file_answer(head: &str, file: &[u8], tag: &str) -> Vec<u8> {
    let line = |name: &str| head.lines().find_map(|line| line.strip_prefix(name));
    let is_current = line("if-range: ").is_none_or(|wanted| wanted == tag);
    let range = line("range: bytes=").filter(|_| is_current);
    let mut span = 0..file.len();
    let mut text = String::from("HTTP/1.1 200 OK");
    if let Some((first, last)) = range.and_then(|range| range.split_once('-')) {
        span.start = first.parse().unwrap();
        span.end = last.parse().map_or(file.len(), |last: usize| last + 1);
        let (last, total) = (span.end - 1, file.len());
        text = format!("HTTP/1.1 206 Part\r\nContent-Range: bytes {first}-{last}/{total}");
    }
    let head_only = head.starts_with("head ");
    text += &format!(
        "\r\nETag: {tag}\r\nAccept-Ranges: bytes\r\nContent-Length: {}\r\n\r\n",
        span.len()
    );
    let mut bytes = text.into_bytes();
    if !head_only {
        bytes.extend_from_slice(&file[span]);
    }
    bytes
}

async fn serve(
    mut connection: impl AsyncRead + AsyncWrite + Unpin,
    answer: &impl Fn(&str, &[u8]) -> Reply,
    heard: &RefCell<Vec<String>>,
) -> std::io::Result<()> {
    loop {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(connection.read_u8().await?);
        }
        let head = String::from_utf8_lossy(&head).to_lowercase();
        heard.borrow_mut().push(head.clone());
        let mut body = Vec::new();
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "));
        if let Some(length) = length {
            body.resize(length.parse().unwrap(), 0);
            connection.read_exact(&mut body).await?;
        } else if head.contains("transfer-encoding: chunked") {
            while !body.ends_with(b"0\r\n\r\n") {
                body.push(connection.read_u8().await?);
            }
        }
        match answer(&head, &body) {
            Reply::Say(bytes) => connection.write_all(&bytes).await?,
            Reply::SayAndClose(bytes) => {
                connection.write_all(&bytes).await?;
                return connection.shutdown().await;
            }
            Reply::SayLater(pause, bytes) => {
                sleep(pause).await;
                connection.write_all(&bytes).await?;
            }
            Reply::SayAndEcho(bytes) => {
                connection.write_all(&bytes).await?;
                let (mut from, mut to) = split(connection);
                copy(&mut from, &mut to).await?;
                return to.shutdown().await;
            }
        }
    }
}
