//! What each request means.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/state` | the [`State`], as JSON |
//! | `GET /v1/events` | server-sent events: a `state` at once and with every change |
//! | `PUT /v1/links/NAME` | carries out a [`LinkChange`] and answers with the link |
//! | `PUT /v1/explain` | which rule a connection would fall under; changes nothing |
//! | `GET /v1/trace` | what a session does, packet by packet, a line of JSON per batch |
//! | `GET /v1/policy` | the policy file's text |
//! | `PUT /v1/policy` | replaces it, if it is sound |
//! | `PUT /v1/policy/link` | changes one link's entry in it, if that is sound |
//! | `GET /` | the dashboard |
//! | `GET /metrics` | Prometheus text |
//! | `GET /v1/schema` | the JSON schema of all this |
//!
//! Errors are `{"error": "…"}` with a fitting status. On the socket everybody who could connect is
//! trusted; over HTTP the token is asked for first, for whatever but the dashboard's own files.

use std::cell::RefCell;
use std::convert::Infallible;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Either, Full, Limited};
use hyper::body::{Body, Frame, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{Mutex, mpsc, oneshot, watch};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use crate::board::{self, Board};
use crate::command::{Command, LinkChange, Pace};
use crate::door::{self, Door};
use crate::metrics;
use crate::policy_file::{LinkEntryChange, PolicyChange, PolicyFile, PolicyRefusal, PolicyText};
use crate::process;
use crate::state::{Link, State};

/// The most the body of a request may have.
const MAX_BODY_BYTES: usize = 64 * 1024;
/// How long a body may take.
const BODY_WAIT: Duration = Duration::from_secs(5);
/// How long an instance may take to carry out a command. Its thread turns every few milliseconds.
const COMMAND_WAIT: Duration = Duration::from_secs(2);
/// How long the first state may take, while the instance is setting up.
const FIRST_STATE_WAIT: Duration = Duration::from_secs(2);
/// How often an instance that wants to be asked is asked while somebody reads its events: twice in
/// the second that rates are taken over.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// Between two looks, however many clients want one. Long enough for a rate to be taken over.
const LOOK_PAUSE: Duration = Duration::from_millis(150);

pub(crate) type Answer = Response<Either<Full<Bytes>, Stream>>;

/// Everything that connections share.
pub(crate) struct Routes {
    /// From the instance.
    incoming: RefCell<watch::Receiver<Option<State>>>,
    board: RefCell<Board>,
    /// Completed, for everybody here.
    completed: watch::Sender<Option<Rc<State>>>,
    commands: mpsc::Sender<Command>,
    /// For those who come over HTTP.
    door: Option<Door>,
    policy: Option<Box<dyn PolicyFile>>,
    pace: Pace,
    /// At [`Pace::WhenAsked`]: when the instance was asked last. Locked while it is asked.
    looked_at: Mutex<Option<Instant>>,
}

/// A body that goes on for as long as both ends like.
pub(crate) struct Stream(mpsc::Receiver<Bytes>);

impl Body for Stream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0
            .poll_recv(cx)
            .map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}

/// A request that is not served.
struct Refusal(StatusCode, String);

impl Routes {
    pub(crate) fn new(
        incoming: watch::Receiver<Option<State>>,
        commands: mpsc::Sender<Command>,
        token: Option<String>,
        policy: Option<Box<dyn PolicyFile>>,
        pace: Pace,
    ) -> Self {
        Self {
            incoming: RefCell::new(incoming),
            board: RefCell::default(),
            completed: watch::Sender::new(None),
            commands,
            door: token.map(Door::new),
            policy,
            pace,
            looked_at: Mutex::default(),
        }
    }

    /// Completes states as they come, for as long as the instance gives any.
    pub(crate) async fn follow(self: Rc<Self>) {
        let mut news = self.incoming.borrow().clone();
        news.mark_changed();
        let mut looks = interval(LOOK_INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                changed = news.changed() => match changed {
                    Ok(()) => self.catch_up(),
                    Err(_) => break,
                },
                _ = looks.tick(), if self.pace == Pace::WhenAsked => {
                    // Whoever waits for the next state reads events.
                    if self.completed.receiver_count() > 0 {
                        // An instance that does not answer is told of when a client asks.
                        let _ = self.look().await;
                    }
                }
            }
        }
        // Streams end when nothing more can come.
        self.completed.send_replace(None);
    }

    /// Completes what the instance has told last, where that has not been done.
    fn catch_up(&self) {
        let mut incoming = self.incoming.borrow_mut();
        if !incoming.has_changed().unwrap_or(false) {
            return;
        }
        let Some(mut state) = incoming.borrow_and_update().clone() else {
            return;
        };
        state.process = process::look();
        let state = self.board.borrow_mut().complete(Instant::now(), state);
        self.completed.send_replace(Some(Rc::new(state)));
    }

    /// Sees to it that what the instance has published is no older than this call. Looks that many
    /// clients want at once are one, and a second one follows the first after a while without any,
    /// or there would be nothing to take rates over.
    async fn look(&self) -> Result<(), Refusal> {
        if self.pace == Pace::ByItself {
            return Ok(());
        }
        let called_at = Instant::now();
        let mut looked_at = self.looked_at.lock().await;
        if looked_at.is_some_and(|at| at >= called_at) {
            return Ok(());
        }
        if looked_at.is_none_or(|at| called_at.saturating_duration_since(at) > board::GAP) {
            self.look_now(&mut looked_at).await?;
        }
        if let Some(at) = *looked_at {
            sleep(LOOK_PAUSE.saturating_sub(at.elapsed())).await;
        }
        self.look_now(&mut looked_at).await
    }

    async fn look_now(&self, looked_at: &mut Option<Instant>) -> Result<(), Refusal> {
        *looked_at = Some(Instant::now());
        let (reply, replied) = oneshot::channel();
        self.command(Command::Look { reply }, replied).await?;
        self.catch_up();
        Ok(())
    }

    pub(crate) async fn answer(&self, request: Request<Incoming>, is_trusted: bool) -> Answer {
        #[cfg(feature = "dashboard")]
        if request.method() == Method::GET
            && let Some(file) = crate::dashboard::file(request.uri().path())
        {
            return file.map(Either::Left);
        }
        let answered = match is_trusted || self.admits(request.headers()) {
            true => self.route(request, is_trusted).await,
            false => Err(Refusal(StatusCode::UNAUTHORIZED, door::ASK.to_owned())),
        };
        answered.unwrap_or_else(|Refusal(status, text)| {
            let mut answer = json(&serde_json::json!({ "error": text }));
            *answer.status_mut() = status;
            if status == StatusCode::METHOD_NOT_ALLOWED {
                let methods = HeaderValue::from_static("GET, PUT");
                answer.headers_mut().insert(ALLOW, methods);
            }
            answer
        })
    }

    /// Whether a request has shown the token.
    pub(crate) fn admits(&self, headers: &HeaderMap) -> bool {
        let door = self.door.as_ref();
        door.is_some_and(|door| door.admits(headers))
    }

    async fn route(&self, request: Request<Incoming>, is_trusted: bool) -> Result<Answer, Refusal> {
        let path = request.uri().path().to_owned();
        let is_get = request.method() == Method::GET;
        match (&path[..], is_get) {
            ("/v1/state", true) => Ok(json(&*self.state().await?)),
            ("/v1/events", true) => {
                self.look().await?;
                Ok(self.stream())
            }
            ("/v1/trace", true) => self.trace(request.uri().query()).await,
            ("/v1/schema", true) => Ok(text("application/json", crate::schema::TEXT.to_owned())),
            ("/metrics", true) => Ok(text(
                metrics::CONTENT_TYPE,
                metrics::render(&*self.state().await?),
            )),
            ("/v1/policy", true) => Ok(json(&self.policy_text()?)),
            ("/v1/policy", false) if request.method() == Method::PUT => {
                let PolicyChange { text, was } = parse(&read_body(request).await?)?;
                Ok(json(&self.change_policy(was, is_trusted, |_, _| Ok(text))?))
            }
            ("/v1/policy/link", false) if request.method() == Method::PUT => {
                let mut change: LinkEntryChange = parse(&read_body(request).await?)?;
                let was = change.was.take();
                let edit = |file: &dyn PolicyFile, now: &str| file.with_link(now, &change);
                Ok(json(&self.change_policy(was, is_trusted, edit)?))
            }
            ("/v1/policy/link", _) => Err(wrong_method(&request)),
            ("/v1/explain", false) if request.method() == Method::PUT => {
                let question = parse(&read_body(request).await?)?;
                let (reply, replied) = oneshot::channel();
                let command = Command::Explain { question, reply };
                Ok(json(&self.command(command, replied).await?))
            }
            ("/v1/explain", _) => Err(wrong_method(&request)),
            (
                "/v1/policy" | "/v1/trace" | "/v1/state" | "/v1/events" | "/v1/schema" | "/metrics",
                false,
            ) => Err(wrong_method(&request)),
            _ => match path.strip_prefix("/v1/links/") {
                Some(name) if request.method() == Method::PUT => {
                    let name = percent_decoded(name).ok_or_else(|| {
                        let text = format!("{name:?} is no name of a link");
                        Refusal(StatusCode::BAD_REQUEST, text)
                    })?;
                    Ok(json(&self.change_link(name, request).await?))
                }
                Some(_) => Err(wrong_method(&request)),
                None => {
                    let text = format!("there is nothing at {path}; GET /v1/schema");
                    Err(Refusal(StatusCode::NOT_FOUND, text))
                }
            },
        }
    }

    async fn state(&self) -> Result<Rc<State>, Refusal> {
        self.look().await?;
        let mut completed = self.completed.subscribe();
        let first = completed.wait_for(Option::is_some);
        let state = match timeout(FIRST_STATE_WAIT, first).await {
            Ok(Ok(state)) => state.clone(),
            Ok(Err(_)) | Err(_) => None,
        };
        state.ok_or_else(|| unavailable("the instance is starting or ending"))
    }

    /// Tells the state and every change. A slow reader misses states, and none is kept for it.
    fn stream(&self) -> Answer {
        let mut completed = self.completed.subscribe();
        completed.mark_changed();
        let (sender, receiver) = mpsc::channel(1);
        tokio::task::spawn_local(async move {
            let mut was_seen = false;
            loop {
                tokio::select! {
                    changed = completed.changed() => if changed.is_err() { return },
                    () = sender.closed() => return,
                }
                let state = completed.borrow_and_update().clone();
                let Some(state) = state else {
                    if was_seen {
                        return;
                    }
                    continue;
                };
                was_seen = true;
                let json = serde_json::to_string(&*state).expect("plain values become JSON");
                let message = format!("event: state\ndata: {json}\n\n");
                if sender.send(Bytes::from(message)).await.is_err() {
                    return;
                }
            }
        });
        let mut answer = Response::new(Either::Right(Stream(receiver)));
        let headers = answer.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        answer
    }

    fn policy_file(&self) -> Result<&dyn PolicyFile, Refusal> {
        let why = "no policy rules this instance: it has no links of its own";
        let none = || Refusal(StatusCode::NOT_FOUND, why.to_owned());
        self.policy.as_deref().ok_or_else(none)
    }

    fn policy_text(&self) -> Result<PolicyText, Refusal> {
        let file = self.policy_file()?;
        let path = file.path().display().to_string();
        let text = file.read().map_err(|error| {
            let text = format!("cannot read {path}: {error}");
            Refusal(StatusCode::INTERNAL_SERVER_ERROR, text)
        })?;
        let links = file.links(&text);
        Ok(PolicyText { path, text, links })
    }

    /// Nothing awaits between the comparison and the writing, so of two clients one is told. `edit`
    /// makes the new text of the present one.
    fn change_policy(
        &self,
        was: Option<String>,
        is_trusted: bool,
        edit: impl FnOnce(&dyn PolicyFile, &str) -> Result<String, PolicyRefusal>,
    ) -> Result<PolicyText, Refusal> {
        let file = self.policy_file()?;
        let now = self.policy_text()?.text;
        if was.is_some_and(|was| now != was) {
            let text = "the file was changed in the meantime: load it again".to_owned();
            return Err(Refusal(StatusCode::CONFLICT, text));
        }
        let replaced = edit(file, &now).and_then(|new| file.replace_by(is_trusted, &now, &new));
        replaced.map_err(|refusal| match refusal {
            PolicyRefusal::Unsound(text) => Refusal(StatusCode::UNPROCESSABLE_ENTITY, text),
            PolicyRefusal::NotAllowed(text) => Refusal(StatusCode::FORBIDDEN, text),
            PolicyRefusal::NotWritten(text) => Refusal(StatusCode::INTERNAL_SERVER_ERROR, text),
        })?;
        self.policy_text()
    }

    /// Tells what a session does, a line of JSON per batch, for as long as somebody reads.
    async fn trace(&self, query: Option<&str>) -> Result<Answer, Refusal> {
        let session = match query.map(|query| query.strip_prefix("session=").map(str::parse)) {
            None => None,
            Some(Some(Ok(number))) => Some(number),
            Some(_) => {
                let text = "which session? ?session=NUMBER".to_owned();
                return Err(Refusal(StatusCode::BAD_REQUEST, text));
            }
        };
        let (reply, replied) = oneshot::channel();
        let mut batches = self
            .command(Command::Trace { session, reply }, replied)
            .await?;
        let (sender, receiver) = mpsc::channel(1);
        tokio::task::spawn_local(async move {
            loop {
                let batch = tokio::select! {
                    batch = batches.recv() => batch,
                    () = sender.closed() => return,
                };
                let Some(batch) = batch else { return };
                let line = serde_json::to_string(&batch).expect("plain values become JSON") + "\n";
                if sender.send(Bytes::from(line)).await.is_err() {
                    return;
                }
            }
        });
        let mut answer = Response::new(Either::Right(Stream(receiver)));
        let headers = answer.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/jsonl"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        Ok(answer)
    }

    /// Has the instance carry out a command, and gives what came of it.
    async fn command<T>(
        &self,
        command: Command,
        replied: oneshot::Receiver<Result<T, String>>,
    ) -> Result<T, Refusal> {
        let carried_out = async {
            self.commands.send(command).await.ok()?;
            replied.await.ok()
        };
        match timeout(COMMAND_WAIT, carried_out).await {
            Ok(Some(Ok(done))) => Ok(done),
            Ok(Some(Err(text))) => Err(Refusal(StatusCode::CONFLICT, text)),
            Ok(None) => Err(unavailable("the instance is ending")),
            Err(_) => Err(unavailable("the instance is too busy to answer")),
        }
    }

    async fn change_link(&self, name: String, request: Request<Incoming>) -> Result<Link, Refusal> {
        let body = read_body(request).await?;
        let bad = |text: String| Refusal(StatusCode::BAD_REQUEST, text);
        let change: LinkChange = parse(&body)?;
        let change = change.check().map_err(bad)?;
        let state = self.state().await?;
        if !state.links.iter().any(|link| link.name == name) {
            return Err(unknown_link(&name, &state));
        }
        let (reply, replied) = oneshot::channel();
        let command = Command::ChangeLink {
            name: name.clone(),
            change,
            reply,
        };
        self.command(command, replied).await?;
        self.catch_up();
        let state = self.state().await?;
        let link = state.links.iter().find(|link| link.name == name);
        link.cloned().ok_or_else(|| unknown_link(&name, &state))
    }
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    let bad = |error: serde_json::Error| Refusal(StatusCode::BAD_REQUEST, error.to_string());
    serde_json::from_slice(body).map_err(bad)
}

async fn read_body(request: Request<Incoming>) -> Result<Bytes, Refusal> {
    let body = Limited::new(request.into_body(), MAX_BODY_BYTES);
    match timeout(BODY_WAIT, body.collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => Err(Refusal(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("a body may have {MAX_BODY_BYTES} bytes"),
        )),
        Ok(Err(error)) => Err(Refusal(StatusCode::BAD_REQUEST, error.to_string())),
        Err(_) => Err(Refusal(
            StatusCode::REQUEST_TIMEOUT,
            "the body did not arrive".to_owned(),
        )),
    }
}

fn unknown_link(name: &str, state: &State) -> Refusal {
    let names: Vec<&str> = state.links.iter().map(|link| &link.name[..]).collect();
    let there_is = match &names[..] {
        [] => "this instance has no links".to_owned(),
        names => format!("there is: {}", names.join(", ")),
    };
    let text = format!("there is no link {name} ({there_is})");
    Refusal(StatusCode::NOT_FOUND, text)
}

fn unavailable(text: &str) -> Refusal {
    Refusal(StatusCode::SERVICE_UNAVAILABLE, text.to_owned())
}

fn wrong_method(request: &Request<Incoming>) -> Refusal {
    let text = format!("{} is not possible here", request.method());
    Refusal(StatusCode::METHOD_NOT_ALLOWED, text)
}

fn json(value: &impl Serialize) -> Answer {
    let text = serde_json::to_string(value).expect("plain values become JSON");
    self::text("application/json", text + "\n")
}

fn text(kind: &'static str, text: String) -> Answer {
    let mut answer = Response::new(Either::Left(Full::from(text)));
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

/// An interface may have any name without a slash or blank (RFC 3986 §2.1).
fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let mut digit = || char::from(rest.next()?).to_digit(16);
            bytes.push(u8::try_from(digit()? * 16 + digit()?).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes)
        .ok()
        .filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_decoded() {
        assert_eq!(percent_decoded("wlan0").as_deref(), Some("wlan0"));
        assert_eq!(percent_decoded("a%20b%C3%a9").as_deref(), Some("a bé"));
        for bad in ["", "%", "%2", "%zz", "%ff"] {
            assert_eq!(percent_decoded(bad), None, "{bad}");
        }
    }
}
