//! A request on its way to an origin and the head of its answer, by one link.
//!
//! Nothing is sent twice that might do something twice: only a request of which nothing has left,
//! or one without a body whose method may be repeated (RFC 9110 §9.2.2), is sent again. One that
//! changes nothing (§9.2.1) is sent by another link while its own says nothing.

use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use hyper::header::{HOST, HeaderMap, HeaderValue};
use hyper::upgrade::OnUpgrade;
use hyper::{Method, Request, Response, Uri};
use tabane_fetch::{Client, Connection, Download, Link, RequestError, Unanswered, Upload, Url};
use tabane_ranges::LinkId;
use tokio::time::{Instant, timeout};

use crate::balance::{Balance, Seat};
use crate::doubt;
use crate::race;
use crate::refusal::Refusal;

/// How long an origin may take to begin its answer. Programs have less patience, mostly.
const ANSWER_TIME: Duration = Duration::from_secs(300);
/// A connection that has been idle may be closed just as it is used; that says nothing of its link,
/// twice in a row does.
const MOST_FAILURES: usize = 2;

/// A request without its body, as it is to be sent.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    pub(crate) method: Method,
    pub(crate) url: Url,
    /// What is passed on of the program's.
    pub(crate) headers: HeaderMap,
    /// The program's connection, where it would leave HTTP for another protocol.
    pub(crate) near: Option<OnUpgrade>,
}

/// An answer whose body has not been read.
pub(crate) struct Answered {
    pub(crate) response: Response<Download>,
    /// From the request to the answer.
    pub(crate) latency: Duration,
    /// The place on the link that brings it.
    pub(crate) seat: Seat,
}

/// A request came to no answer.
enum Failed {
    Unanswered(Box<Unanswered>),
    Late,
}

impl Wish {
    /// Sends the request by the best link, by another where that fails.
    pub(crate) async fn ask(
        &self,
        client: &Rc<Client>,
        balance: &Balance,
        upload: Upload,
    ) -> Result<Answered, Refusal> {
        self.ask_after(client, balance, upload, Vec::new()).await
    }

    /// As `ask`, where these links have failed, each as often as it stands there.
    async fn ask_after(
        &self,
        client: &Rc<Client>,
        balance: &Balance,
        mut upload: Upload,
        mut failed: Vec<LinkId>,
    ) -> Result<Answered, Refusal> {
        let host = &self.url.origin.host;
        let may_repeat = upload.is_empty() && self.method.is_idempotent();
        loop {
            let is_spent = |id: LinkId| {
                let failures = failed.iter().filter(|other| **other == id).count();
                failures >= MOST_FAILURES
            };
            let mut links = balance.order(Instant::now(), host);
            links.retain(|link| !is_spent(link.id()));
            let reached = race::first(balance, links, host, |link| {
                let (client, origin) = (client.clone(), self.url.origin.clone());
                let is_upgrade = self.near.is_some();
                async move {
                    let reached = match is_upgrade {
                        true => client.reach_to_upgrade(&link, &origin).await,
                        false => client.reach(&link, &origin).await,
                    };
                    reached.map_err(|error| Refusal::from(&error))
                }
            });
            let (link, seat, connection) = reached.await?;
            let is_kept = connection.is_kept();
            let answer = self.answer(connection, upload, seat);
            let answered = match may_repeat && self.method.is_safe() {
                true => {
                    let dead = doubt::dead(client, &link, &self.url.origin, is_kept);
                    let beside = self.ask_beside(client, balance, &link, &failed);
                    unless(answer, dead, beside).await
                }
                false => answer.await,
            };
            let Unanswered { error, request } = match answered {
                Ok(answered) => return Ok(answered),
                Err(Failed::Unanswered(unanswered)) => *unanswered,
                Err(Failed::Late) => return Err(Refusal::late(host)),
            };
            tracing::debug!(link = link.name(), %error, "no answer");
            upload = match request {
                Some(request) => request.into_body(),
                None if may_repeat => Upload::default(),
                None => return Err(Refusal::from(&error)),
            };
            failed.push(link.id());
            let is_last = failed.len() >= MOST_FAILURES * balance.links().all().len().max(1);
            if is_last || !is_connections_fault(&error) {
                return Err(Refusal::from(&error));
            }
        }
    }

    /// What comes back on this connection.
    async fn answer(
        &self,
        connection: Connection,
        upload: Upload,
        seat: Seat,
    ) -> Result<Answered, Failed> {
        let request = self.request(connection.is_http2(), upload);
        match timeout(ANSWER_TIME, connection.send(request)).await {
            Ok(Ok((response, latency))) => Ok(Answered {
                response,
                latency,
                seat,
            }),
            Ok(Err(unanswered)) => Err(Failed::Unanswered(Box::new(unanswered))),
            Err(_) => Err(Failed::Late),
        }
    }

    /// Asks by the links that have not failed but for this one, which seems dead.
    async fn ask_beside(
        &self,
        client: &Rc<Client>,
        balance: &Balance,
        dead: &Link,
        failed: &[LinkId],
    ) -> Result<Answered, Refusal> {
        tracing::debug!(link = dead.name(), "says nothing: another link is asked");
        client.forget(dead);
        let mut failed = failed.to_vec();
        failed.extend([dead.id(); MOST_FAILURES]);
        // Boxed, because it may come to this again.
        let ask = Box::pin(self.ask_after(client, balance, Upload::default(), failed));
        let answered = ask.await?;
        balance.avoid(Instant::now(), dead, &self.url.origin.host);
        Ok(answered)
    }

    fn request(&self, is_http2: bool, upload: Upload) -> Request<Upload> {
        let mut request = Request::new(upload);
        *request.method_mut() = self.method.clone();
        let Url { origin, target, .. } = &self.url;
        let target = match is_http2 {
            true => format!("{origin}{target}"),
            false => target.clone(),
        };
        // The URL was checked when it was read.
        *request.uri_mut() = target.parse().unwrap_or_else(|_| Uri::from_static("/"));
        *request.headers_mut() = self.headers.clone();
        request.headers_mut().remove(HOST);
        if !is_http2 && let Ok(host) = HeaderValue::from_str(&origin.authority()) {
            request.headers_mut().insert(HOST, host);
        }
        request
    }
}

/// The answer; once its link seems dead, the one from beside it if that is there first.
async fn unless<T, E, F>(
    answer: impl Future<Output = Result<T, E>>,
    dead: impl Future<Output = ()>,
    beside: impl Future<Output = Result<T, F>>,
) -> Result<T, E> {
    tokio::pin!(answer, beside);
    tokio::select! {
        biased;
        answered = &mut answer => return answered,
        () = dead => {}
    }
    tokio::select! {
        biased;
        answered = &mut answer => match answered {
            Ok(answered) => Ok(answered),
            Err(failed) => beside.await.map_err(|_| failed),
        },
        other = &mut beside => match other {
            Ok(answered) => Ok(answered),
            Err(_) => answer.await,
        },
    }
}

/// Whether the connection broke, so that another one may do better than an origin that answers with
/// nonsense.
fn is_connections_fault(error: &RequestError) -> bool {
    match error {
        RequestError::Http { source, .. } => !source.is_parse() && !source.is_user(),
        _ => true,
    }
}
