//! The proxy's own side: programs' connections, and what becomes of each request.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, COOKIE, HeaderValue, LOCATION, VIA};
use hyper::rt::{Read, Write};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, Version};
use hyper_util::rt::{TokioIo, TokioTimer};
use tabane_fetch::{Client, Download, Links, Origin, Upload, Url};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::balance::Balance;
use crate::body::AnswerBody;
use crate::forward;
use crate::interception::Interception;
use crate::journal::{Carried, Entry, Journal};
use crate::map::Map;
use crate::passage::{Answered, Wish};
use crate::refusal::Refusal;
use crate::split;
use crate::target::{self, Target};
use crate::tunnel::Tunnel;

mod within;

/// Programs' connections at a time; more wait until some end.
const MOST_CONNECTIONS: usize = 1_024;
/// Tunnels at a time; browsers keep some hundred. More are refused: each holds memory and two
/// descriptors for as long as its ends like.
const MOST_TUNNELS: usize = 1_024;
/// How long a program may take to say what it wants; between requests, too.
const HEAD_TIME: Duration = Duration::from_secs(120);
/// Pause after `accept` failed for want of descriptors: some close meanwhile.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// What is read of an answer that nobody gets, so that its connection can be used again.
const MOST_DRAINED: usize = 64 * 1024;
const DRAIN_TIME: Duration = Duration::from_millis(300);
/// Redirects followed in a row for a program: as many as browsers do.
const MOST_REDIRECTS: usize = 20;

/// A proxy.
pub struct Web {
    client: Rc<Client>,
    balance: Balance,
    maps: Vec<Map>,
    interception: Option<Interception>,
    journal: Journal,
    /// Where programs find us.
    address: SocketAddr,
    /// What we are called in `Via`.
    name: String,
    /// One more copy of it for each file that is being split.
    splits: Rc<()>,
    /// The same for tunnels.
    tunnels: Rc<()>,
}

/// How requests have come to us.
#[derive(Clone)]
enum Door {
    /// By the proxy's own port.
    Open,
    /// By a tunnel to this origin that is ended here.
    Within(Origin),
}

impl Web {
    /// A proxy that programs find at `address`.
    #[must_use]
    pub fn new(
        client: Rc<Client>,
        links: Links,
        maps: Vec<Map>,
        interception: Option<Interception>,
        journal: Journal,
        address: SocketAddr,
    ) -> Rc<Self> {
        Rc::new(Self {
            client,
            balance: Balance::new(links),
            maps,
            interception,
            journal,
            // Different for each of them: a request may pass through several, but none twice.
            name: format!("tabane-{:x}-{}", std::process::id(), address.port()),
            address,
            splits: Rc::new(()),
            tunnels: Rc::new(()),
        })
    }

    /// Answers and tunnels that are being carried at present.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.balance.taken() + Rc::strong_count(&self.splits) - 1
    }

    /// Serves programs until it is dropped; then all connections end.
    pub async fn serve(self: Rc<Self>, listener: TcpListener) {
        let slots = Arc::new(Semaphore::new(MOST_CONNECTIONS));
        let mut connections = JoinSet::new();
        let watch = self.balance.watch();
        tokio::pin!(watch);
        loop {
            let accept = async {
                let slot = slots.clone().acquire_owned().await;
                (slot, listener.accept().await)
            };
            tokio::select! {
                (slot, accepted) = accept => match accepted {
                    Ok((program, _)) => {
                        let web = self.clone();
                        connections.spawn_local(async move {
                            if let Err(error) = web.receive(program).await {
                                tracing::debug!(%error, "a program's connection broke");
                            }
                            drop(slot);
                        });
                    }
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection to the proxy");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
                Some(_) = connections.join_next() => {}
                () = &mut watch => {}
            }
        }
    }

    async fn receive(self: &Rc<Self>, program: TcpStream) -> io::Result<()> {
        program.set_nodelay(true)?;
        self.receive_by(TokioIo::new(program), &Door::Open).await
    }

    async fn receive_by(
        self: &Rc<Self>,
        program: impl Read + Write + Unpin + Send + 'static,
        door: &Door,
    ) -> io::Result<()> {
        let service = service_fn(|request| {
            let (web, door) = (self.clone(), door.clone());
            async move { Ok::<_, Infallible>(web.answer(request, &door).await) }
        });
        let served = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIME)
            .serve_connection(program, service)
            .with_upgrades();
        served.await.map_err(io::Error::other)
    }

    async fn answer(
        self: &Rc<Self>,
        request: Request<Incoming>,
        door: &Door,
    ) -> Response<AnswerBody> {
        let method = request.method().clone();
        let shown = match (door, request.uri().scheme()) {
            // What follows a question mark may be a secret, of all the more where TLS keeps it.
            (Door::Within(origin), _) => format!("{origin}{}", request.uri().path()),
            (Door::Open, Some(_)) => request.uri().to_string(),
            (Door::Open, None) if method == Method::CONNECT => request.uri().to_string(),
            (Door::Open, None) => request.uri().path().to_owned(),
        };
        let is_within = matches!(door, Door::Within(_));
        if let (Door::Within(origin), Some(interception)) = (door, &self.interception) {
            interception.on_trusted(&origin.host);
        }
        let entry = Entry::new(&self.journal, method.as_str(), shown, is_within);
        let answered = self.judge(request, door, &entry).await;
        answered.unwrap_or_else(|refusal| {
            entry.answered(refusal.status, Carried::Not);
            entry.failed(&refusal.text);
            say(&refusal)
        })
    }

    async fn judge(
        self: &Rc<Self>,
        mut request: Request<Incoming>,
        door: &Door,
        entry: &Entry,
    ) -> Result<Response<AnswerBody>, Refusal> {
        let (method, uri) = (request.method().clone(), request.uri().clone());
        let is_loop = forward::has_passed(request.headers(), &self.name);
        if is_loop {
            return Err(looped());
        }
        let (url, own) = match door {
            Door::Within(origin) => {
                let url = target::within(origin, &method, &uri, request.headers())?;
                (url, None)
            }
            Door::Open => match Target::of(&method, &uri, request.headers(), &self.maps)? {
                Target::Tunnel { host, port } => {
                    return self.tunnel(request, host, port, entry).await;
                }
                Target::Url(url) => (url, None),
                Target::Mapped(url, own) => (url, Some(own)),
            },
        };
        if self.is_own(&url.origin.host, url.origin.port) {
            return Err(looped());
        }
        if !forward::count_hop(&method, request.headers_mut()) {
            let text = "the request was to go no further than this proxy";
            return Err(Refusal::new(StatusCode::OK, text));
        }
        let protocol = match door {
            Door::Within(_) => forward::wanted_protocol(request.headers()),
            Door::Open => None,
        };
        let version = request.version();
        forward::pass_on(request.headers_mut(), version, &self.name);
        let near = protocol.map(|protocol| {
            forward::change_protocol(request.headers_mut(), protocol);
            hyper::upgrade::on(&mut request)
        });
        let (head, body) = request.into_parts();
        let wish = Wish {
            method,
            url,
            headers: head.headers,
            near,
        };
        self.fetch(wish, Upload::new(body), own, entry).await
    }

    async fn fetch(
        self: &Rc<Self>,
        mut wish: Wish,
        upload: Upload,
        own: Option<String>,
        entry: &Entry,
    ) -> Result<Response<AnswerBody>, Refusal> {
        let may_follow = upload.is_empty() && matches!(wish.method, Method::GET | Method::HEAD);
        let mut answered = wish.ask(&self.client, &self.balance, upload).await?;
        if answered.response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return self.change_over(wish, answered, entry);
        }
        if let Some(own) = own {
            for _ in 0..MOST_REDIRECTS {
                match self.lead(&wish.url, &mut answered, &own) {
                    Some(url) if may_follow => {
                        wish = elsewhere(wish, url);
                        drain(answered.response.into_body()).await;
                        let nothing = Upload::default();
                        answered = wish.ask(&self.client, &self.balance, nothing).await?;
                    }
                    _ => break,
                }
            }
        }
        Ok(self.hand_over(&wish, answered, entry))
    }

    /// Where an answer to a mapped request redirects to, if a program could not find it by way of
    /// us; where it could, the answer says so.
    fn lead(&self, url: &Url, answered: &mut Answered, own: &str) -> Option<Url> {
        if !answered.response.status().is_redirection() {
            return None;
        }
        let headers = answered.response.headers_mut();
        let location = headers.get(LOCATION)?.to_str().ok()?;
        let next = url.join(location).ok()?;
        let local = self.maps.iter().find_map(|map| map.local(&next));
        match local {
            Some(local) => {
                let location = HeaderValue::from_str(&format!("http://{own}{local}")).ok()?;
                headers.insert(LOCATION, location);
                None
            }
            // From TLS to plain text nobody is led unasked.
            None if url.origin.is_https && !next.origin.is_https => None,
            None => Some(next),
        }
    }

    /// The answer as the program gets it.
    fn hand_over(&self, wish: &Wish, answered: Answered, entry: &Entry) -> Response<AnswerBody> {
        let Answered {
            response,
            latency,
            seat,
        } = answered;
        let (mut head, body) = response.into_parts();
        let is_worth_it = self.balance.links().all().len() > 1
            && Rc::strong_count(&self.splits) <= split::MOST_SPLIT
            && split::may_be_split(wish);
        let opened = match is_worth_it {
            true => split::open(&head, body, latency),
            false => Err(Box::new(body)),
        };
        forward::pass_on(&mut head.headers, head.version, &self.name);
        head.version = Version::HTTP_11;
        match opened {
            Ok(opened) => {
                entry.answered(head.status, Carried::Split);
                let (client, links) = (&self.client, self.balance.links());
                let place = self.splits.clone();
                let body = split::body(client, links, wish, opened, entry.clone(), place);
                Response::from_parts(head, body)
            }
            Err(body) => {
                entry.answered(head.status, Carried::Whole);
                Response::from_parts(head, AnswerBody::whole(*body, entry.clone(), seat))
            }
        }
    }

    async fn tunnel(
        self: &Rc<Self>,
        request: Request<Incoming>,
        host: String,
        port: u16,
        entry: &Entry,
    ) -> Result<Response<AnswerBody>, Refusal> {
        if self.is_own(&host, port) {
            return Err(looped());
        }
        let place = self.place()?;
        let is_concerned = |it: &Interception| it.concerns(&host, port, SystemTime::now());
        if self.interception.as_ref().is_some_and(is_concerned) {
            self.intercept(request, host, place, entry);
            return Ok(Response::new(AnswerBody::Text(Bytes::new())));
        }
        let tunnel = Tunnel::open(&self.balance, &host, port).await?;
        entry.answered(StatusCode::OK, Carried::Tunnel);
        let entry = entry.clone();
        // The near side is there when our answer has been written.
        let near = hyper::upgrade::on(request);
        tokio::task::spawn_local(async move {
            match near.await {
                Ok(near) => tunnel.carry(near, &entry).await,
                Err(error) => entry.failed(error),
            }
            drop(place);
        });
        Ok(Response::new(AnswerBody::Text(Bytes::new())))
    }

    /// A tunnel's place, until it is dropped.
    fn place(&self) -> Result<Rc<()>, Refusal> {
        let place = self.tunnels.clone();
        if Rc::strong_count(&place) > MOST_TUNNELS + 1 {
            let text = "too many tunnels at a time";
            return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, text));
        }
        Ok(place)
    }

    fn is_own(&self, host: &str, port: u16) -> bool {
        let is_here = |address: IpAddr| address.is_loopback() || address.is_unspecified();
        let is_here = host == "localhost" || host.parse().is_ok_and(is_here);
        is_here && port == self.address.port()
    }
}

/// The same, of another place: what the program says to one origin no other hears.
fn elsewhere(mut wish: Wish, url: Url) -> Wish {
    if url.origin != wish.url.origin {
        wish.headers.remove(AUTHORIZATION);
        wish.headers.remove(COOKIE);
    }
    Wish { url, ..wish }
}

async fn drain(mut body: Download) {
    let mut drained = 0;
    let drain = async {
        while let Some(Ok(frame)) = body.frame().await {
            drained += frame.data_ref().map_or(0, Bytes::len);
            if drained > MOST_DRAINED {
                return;
            }
        }
    };
    // In vain: another connection is made.
    let _ = timeout(DRAIN_TIME, drain).await;
}

fn looped() -> Refusal {
    let text = "the request leads back to this proxy";
    Refusal::new(StatusCode::LOOP_DETECTED, text)
}

fn say(refusal: &Refusal) -> Response<AnswerBody> {
    let text = format!("tabane: {}\n", refusal.text);
    let mut response = Response::new(AnswerBody::Text(text.into()));
    *response.status_mut() = refusal.status;
    let headers = response.headers_mut();
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    // Whose words these are.
    headers.insert(VIA, HeaderValue::from_static("1.1 tabane"));
    response
}
