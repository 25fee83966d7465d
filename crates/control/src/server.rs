//! The thread that serves an instance's state.
//!
//! Owns the listeners, who may connect, and the limits per connection. What a request means is the
//! routes' affair. The thread ends with its [`Server`]; the socket's file goes with it.

use std::convert::Infallible;
use std::error::Error;
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::thread::JoinHandle;
use std::time::Duration;

use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use thiserror::Error as ThisError;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{LocalSet, spawn_local, yield_now};

use crate::command::{Command, Pace};
use crate::directory::{Directory, DirectoryError, Naming, Running, write_private};
use crate::patient::Patient;
use crate::peer;
use crate::places::Places;
use crate::policy_file::PolicyFile;
use crate::routes::{self, Routes};
use crate::state::State;

/// How long a client may take for the head of a request.
const HEAD_WAIT: Duration = Duration::from_secs(5);
/// The most a head may have.
const MAX_HEAD_BYTES: usize = 16 * 1024;
/// Commands that may wait for the instance.
const MAX_COMMANDS: usize = 16;
/// Before the next connection is taken when there are no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Where and as what to serve.
pub struct ServerConfig {
    /// Where the socket goes.
    pub directory: Directory,
    /// The instance's name.
    pub name: String,
    /// What if another one has it.
    pub naming: Naming,
    /// Whether to serve over loopback HTTP as well.
    pub http: Option<HttpConfig>,
    /// The file that rules its links, where there is one.
    pub policy: Option<Box<dyn PolicyFile>>,
    /// When it publishes its state.
    pub pace: Pace,
}

/// The door for programs that cannot use a Unix socket.
#[derive(Debug)]
pub struct HttpConfig {
    /// A loopback address; port 0 leaves the choice to the kernel.
    pub address: SocketAddr,
    /// What whoever comes in has to show (`Authorization: Bearer TOKEN`).
    pub token: String,
}

/// Why nothing is served.
#[derive(Debug, ThisError)]
pub enum ServeError {
    /// No place for the socket.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// An address that others can reach.
    #[error(
        "{address} is no loopback address: the API is served on 127.0.0.1 or [::1] only; a proxy \
         in front of it can add TLS"
    )]
    NotLoopback {
        /// What was asked for.
        address: SocketAddr,
    },
    /// The HTTP door cannot be opened.
    #[error("cannot serve HTTP on {address}: {source}")]
    Http {
        /// What was asked for.
        address: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// The system gave no thread, descriptors or file.
    #[error("cannot start the control server: {0}")]
    System(#[from] io::Error),
}

/// The instance's end: where it tells its state. Costs its thread one move per call.
#[derive(Debug)]
pub struct Publisher(watch::Sender<Option<State>>);

/// A running server, until dropped.
#[derive(Debug)]
pub struct Server {
    name: String,
    files: Vec<PathBuf>,
    http: Option<SocketAddr>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Opens the socket, and the HTTP door where asked, and serves from a thread of its own.
    ///
    /// # Errors
    /// See [`ServeError`]; nothing stays behind.
    pub fn start(
        config: ServerConfig,
    ) -> Result<(Self, Publisher, mpsc::Receiver<Command>), ServeError> {
        let tcp = config.http.as_ref().map(|door| open_http(door.address));
        let tcp = tcp.transpose()?;
        let http = tcp.as_ref().map(|(_, address)| *address);
        let ServerConfig {
            directory,
            name,
            naming,
            http: door,
            policy,
            pace,
        } = config;
        let (unix, Running { name, socket }) = directory.bind(&name, naming)?;
        let (stop, stopped) = oneshot::channel();
        let mut server = Self {
            files: vec![socket],
            http,
            stop: Some(stop),
            thread: None,
            name,
        };
        let token = door.map(|door| door.token);
        if let Some(token) = &token {
            let path = directory.token_file(&server.name);
            write_private(&path, &format!("{token}\n"))?;
            server.files.push(path);
        }
        let (publisher, states) = watch::channel(None);
        let (commands, received) = mpsc::channel(MAX_COMMANDS);
        let routes = move || Routes::new(states, commands, token, policy, pace);
        let tcp = tcp.map(|(listener, _)| listener);
        let thread = std::thread::Builder::new()
            .name("tabane-control".to_owned())
            .spawn(move || {
                let local = LocalSet::new();
                let serving = local.run_until(serve(unix, tcp, routes(), stopped));
                // Not made before: one that is dropped where another runs is a panic, and there
                // may be no thread to take it.
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build();
                if let Err(error) = runtime.and_then(|runtime| runtime.block_on(serving)) {
                    tracing::error!(%error, "the control socket is dead");
                }
            })?;
        server.thread = Some(thread);
        Ok((server, Publisher(publisher), received))
    }

    /// The instance's name, which may have got the process id behind it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where HTTP is served.
    #[must_use]
    pub fn http(&self) -> Option<SocketAddr> {
        self.http
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for file in &self.files {
            // Somebody may have tidied up; then there is nothing to do.
            let _ = fs::remove_file(file);
        }
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It has panicked, which its message has told already.
            let _ = thread.join();
        }
    }
}

impl Publisher {
    /// Tells what is true from here on.
    pub fn publish(&self, state: State) {
        self.0.send_replace(Some(state));
    }
}

pub(crate) fn open_http(address: SocketAddr) -> Result<(TcpListener, SocketAddr), ServeError> {
    if !address.ip().is_loopback() {
        return Err(ServeError::NotLoopback { address });
    }
    let open = || {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let bound = listener.local_addr()?;
        Ok((listener, bound))
    };
    open().map_err(|source| ServeError::Http { address, source })
}

async fn serve(
    unix: UnixListener,
    tcp: Option<TcpListener>,
    routes: Routes,
    stopped: oneshot::Receiver<()>,
) -> io::Result<()> {
    unix.set_nonblocking(true)?;
    let unix = tokio::net::UnixListener::from_std(unix)?;
    let tcp = tcp.map(tokio::net::TcpListener::from_std).transpose()?;
    let routes = Rc::new(routes);
    let [unix_places, tcp_places] = [(); 2].map(|()| Rc::new(Places::default()));
    spawn_local(routes.clone().follow());
    tokio::select! {
        () = serve_unix(&unix, &routes, &unix_places) => {}
        () = serve_tcp(tcp.as_ref(), &routes, &tcp_places) => {}
        _ = stopped => {}
    }
    Ok(())
}

async fn serve_unix(listener: &tokio::net::UnixListener, routes: &Rc<Routes>, places: &Rc<Places>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => match stream.peer_cred() {
                Ok(peer) if peer::is_same_or_root(peer.uid()) => {
                    attend(stream, places, None, answers(routes, true));
                }
                Ok(peer) => tracing::warn!(uid = peer.uid(), "a stranger at the control socket"),
                Err(error) => tracing::warn!(%error, "nobody knows who is at the control socket"),
            },
            Err(error) => pause(&error).await,
        }
    }
}

async fn serve_tcp(
    listener: Option<&tokio::net::TcpListener>,
    routes: &Rc<Routes>,
    places: &Rc<Places>,
) {
    let Some(listener) = listener else {
        return std::future::pending().await;
    };
    loop {
        let stream = accept_tcp(listener).await;
        let door = routes.clone();
        let admits = Box::new(move |headers: &HeaderMap| door.admits(headers));
        attend(stream, places, Some(admits), answers(routes, false));
        // Who asks at once is heard before others take its place.
        yield_now().await;
    }
}

/// How the routes answer one connection.
fn answers(
    routes: &Rc<Routes>,
    is_trusted: bool,
) -> impl Fn(Request<Incoming>) -> Pin<Box<dyn Future<Output = routes::Answer>>> + 'static {
    let routes = routes.clone();
    move |request| {
        let routes = routes.clone();
        Box::pin(async move { routes.answer(request, is_trusted).await })
    }
}

pub(crate) async fn accept_tcp(
    listener: &tokio::net::TcpListener,
) -> Patient<tokio::net::TcpStream> {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return Patient::new(stream),
            Err(error) => pause(&error).await,
        }
    }
}

async fn pause(error: &io::Error) {
    tracing::debug!(%error, "cannot take a control connection");
    tokio::time::sleep(ACCEPT_PAUSE).await;
}

/// Whether the head of a request shows what has to be shown.
pub(crate) type Admits = Box<dyn Fn(&HeaderMap) -> bool>;

/// Serves one connection in a task of its own, within the limits. Where there is something to show
/// (`admits`), its place may be taken away until that was shown.
pub(crate) fn attend<S, H, F, B>(stream: S, places: &Rc<Places>, admits: Option<Admits>, answer: H)
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
    H: Fn(Request<Incoming>) -> F + 'static,
    F: Future<Output = Response<B>> + 'static,
    B: Body + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    places.enter(admits.is_none(), |place| {
        let serving = async move {
            let service = service_fn(move |request: Request<Incoming>| {
                if admits.as_ref().is_some_and(|it| it(request.headers())) {
                    place.on_known();
                }
                let answer = answer(request);
                async move { Ok::<_, Infallible>(answer.await) }
            });
            let served = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_WAIT)
                .max_buf_size(MAX_HEAD_BYTES)
                .serve_connection(TokioIo::new(stream), service);
            if let Err(error) = served.await {
                tracing::debug!(%error, "a control connection");
            }
        };
        spawn_local(serving).abort_handle()
    });
}
