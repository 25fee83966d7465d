//! A door over loopback HTTP to an instance that has only its socket: what a browser needs.
//!
//! Passes requests on as they are, and owns nothing but the door: the instance answers. When it has
//! ended, the next one of its kind takes its place, and questions go there.

use std::cell::{Cell, RefCell};
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::SystemTime;

use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::task::yield_now;

use crate::dashboard;
use crate::directory::Directory;
use crate::door::{self, Door};
use crate::peer;
use crate::places::Places;
use crate::server::{self, ServeError};

type Answer = Response<Either<Full<Bytes>, Incoming>>;

/// An open door, not yet attended.
#[derive(Debug)]
pub struct Bridge {
    listener: std::net::TcpListener,
    address: SocketAddr,
    inner: Inner,
}

#[derive(Debug)]
struct Inner {
    door: Door,
    /// Of the instance that is shown.
    socket: RefCell<PathBuf>,
    /// When that one began. Who began before it is not the next one.
    since: Cell<SystemTime>,
}

impl Bridge {
    /// Opens a door at a loopback address (port 0: of the kernel's choice) to the instance behind
    /// `socket`, for whoever shows `token`.
    ///
    /// # Errors
    /// The address is not loopback, or taken.
    pub fn open(address: SocketAddr, token: String, socket: &Path) -> Result<Self, ServeError> {
        let (listener, address) = server::open_http(address)?;
        let inner = Inner {
            door: Door::new(token),
            socket: RefCell::new(socket.to_owned()),
            since: Cell::new(made_at(socket).unwrap_or_else(SystemTime::now)),
        };
        Ok(Self {
            listener,
            address,
            inner,
        })
    }

    /// Where it is.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Attends to it for ever. Must be called within a `LocalSet`.
    ///
    /// # Errors
    /// The event loop takes no more sockets.
    pub async fn serve(self) -> io::Result<()> {
        let listener = tokio::net::TcpListener::from_std(self.listener)?;
        let places = Rc::new(Places::default());
        let inner = Rc::new(self.inner);
        loop {
            let stream = server::accept_tcp(&listener).await;
            let (door, inner) = (inner.clone(), inner.clone());
            let admits = Box::new(move |headers: &HeaderMap| door.door.admits(headers));
            server::attend(stream, &places, Some(admits), move |request| {
                let inner = inner.clone();
                async move { inner.answer(request).await }
            });
            // As at an instance's own door.
            yield_now().await;
        }
    }
}

impl Inner {
    async fn answer(&self, request: Request<Incoming>) -> Answer {
        if let Some(file) = dashboard::file(request.uri().path()) {
            return file.map(Either::Left);
        }
        if !self.door.admits(request.headers()) {
            return refusal(StatusCode::UNAUTHORIZED, door::ASK);
        }
        match self.pass_on(request).await {
            Ok(answer) => answer.map(Either::Right),
            Err(error) => {
                let text = format!("the instance does not answer: {error}");
                refusal(StatusCode::SERVICE_UNAVAILABLE, &text)
            }
        }
    }

    async fn pass_on(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<Incoming>, Box<dyn std::error::Error>> {
        let stream = self.connect(request.method()).await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::task::spawn_local(async move {
            // What became of it, the sender and the body say as well.
            let _ = connection.await;
        });
        Ok(sender.send_request(request).await?)
    }

    /// To the instance, or to the next one. What is to be changed is meant for the instance that
    /// is on the screen, and goes to no other.
    async fn connect(&self, method: &Method) -> io::Result<UnixStream> {
        let socket = self.socket.borrow().clone();
        let connected = connect(&socket).await;
        if connected.is_ok() || method != Method::GET {
            return connected;
        }
        let Some((next, began)) = next_of(&socket, self.since.get()) else {
            return connected;
        };
        let stream = connect(&next).await?;
        self.socket.replace(next);
        self.since.set(began);
        Ok(stream)
    }
}

async fn connect(socket: &Path) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(socket).await?;
    match peer::is_believed(&stream)? {
        true => Ok(stream),
        false => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

fn refusal(status: StatusCode, text: &str) -> Answer {
    let body = serde_json::json!({ "error": text }).to_string();
    let mut answer = Response::new(Either::Left(Full::new(Bytes::from(body))));
    *answer.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    answer.headers_mut().insert(CONTENT_TYPE, json);
    answer
}

/// The socket of the instance that began last of those like the one at `socket`, if after `since`;
/// and when it began.
fn next_of(socket: &Path, since: SystemTime) -> Option<(PathBuf, SystemTime)> {
    let kind = kind_of(socket.file_stem()?.to_str()?);
    let running = Directory::at(socket.parent()?).running();
    running
        .into_iter()
        .filter(|it| kind_of(&it.name) == kind)
        .filter_map(|it| Some((made_at(&it.socket)?, it.socket)))
        .filter(|(began, _)| *began > since)
        .max()
        .map(|(began, socket)| (socket, began))
}

/// When a socket was made, which is when its instance began.
fn made_at(socket: &Path) -> Option<SystemTime> {
    fs::metadata(socket).ok()?.modified().ok()
}

/// A name without the process id behind it: `run` of `run-4510`.
fn kind_of(name: &str) -> &str {
    match name.rsplit_once('-') {
        Some((kind, pid)) if pid.bytes().all(|digit| digit.is_ascii_digit()) => kind,
        _ => name,
    }
}
