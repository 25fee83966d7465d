//! A request passed on as it is, over one link, and its answer on the way back: for a proxy.
//!
//! Owns connections taken and given back, and the counting of what passes. Which request goes over
//! which link, and what its head says, is the proxy's; redirects are not followed here.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::http::response::Parts;
use hyper::{Request, Response, StatusCode};
use tabane_ranges::{Answer, Version};
use thiserror::Error;
use tokio::time::{Sleep, sleep_until};

use crate::connection::{Client, RequestError, Sender, Speech, http_error};
use crate::head::{self, Head};
use crate::links::Link;
use crate::upload::Upload;
use crate::url::Origin;

/// A connection to an origin that a request may be sent on.
pub struct Connection {
    client: Rc<Client>,
    link: Rc<Link>,
    origin: Origin,
    sender: Sender,
    is_kept: bool,
}

/// A request came to no answer.
pub struct Unanswered {
    /// What went wrong.
    pub error: RequestError,
    /// The request, where nothing of it was sent.
    pub request: Option<Request<Upload>>,
}

/// An answer's body. When it has come whole, its connection is used again.
pub struct Download {
    body: Incoming,
    connection: Option<Connection>,
    link: Rc<Link>,
    gone: Pin<Box<dyn Future<Output = ()>>>,
    /// With a cap: until when nothing more is read.
    pause: Option<Pin<Box<Sleep>>>,
}

/// Why an answer's body ended early.
#[derive(Debug, Error)]
pub enum DownloadError {
    /// The connection broke.
    #[error("the answer broke off: {0}")]
    Broken(hyper::Error),
    /// Its link is gone, or may not be used any more.
    #[error("the link is gone")]
    LinkGone,
}

/// An answer that a fetch goes on from; see [`Download::open`].
pub struct Opened {
    pub(crate) body: Incoming,
    pub(crate) sender: Sender,
    pub(crate) link: Rc<Link>,
    pub(crate) origin: Origin,
    pub(crate) latency: Duration,
    pub(crate) version: Version,
}

impl Client {
    /// A connection over this link, idle or new.
    ///
    /// # Errors
    /// There is none to be had.
    pub async fn reach(
        self: &Rc<Self>,
        link: &Rc<Link>,
        origin: &Origin,
    ) -> Result<Connection, RequestError> {
        let kept = self.take_idle(link.id, origin);
        let is_kept = kept.is_some();
        let sender = match kept {
            Some(sender) => sender,
            None => self.fresh_connection(link, origin, Speech::Any).await?,
        };
        Ok(Connection {
            client: self.clone(),
            link: link.clone(),
            origin: origin.clone(),
            sender,
            is_kept,
        })
    }

    /// A new connection over this link that speaks HTTP/1.1, for a request that would change to
    /// another protocol (RFC 9110 §7.8). When the answer's status says 101, `hyper::upgrade::on`
    /// gives what it has become.
    ///
    /// # Errors
    /// There is none to be had.
    pub async fn reach_to_upgrade(
        self: &Rc<Self>,
        link: &Rc<Link>,
        origin: &Origin,
    ) -> Result<Connection, RequestError> {
        Ok(Connection {
            client: self.clone(),
            link: link.clone(),
            origin: origin.clone(),
            sender: self.fresh_connection(link, origin, Speech::Http1).await?,
            is_kept: false,
        })
    }
}

impl Connection {
    /// Whether it has been idle, so that nobody knows whether its link still leads anywhere.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.is_kept
    }

    /// Whether requests name their scheme and host in the target: RFC 9113 §8.3.1.
    #[must_use]
    pub fn is_http2(&self) -> bool {
        self.sender.is_http2()
    }

    /// Sends a request; comes back with the answer's head and how long that took. For HTTP/1.1 the
    /// target must be in origin form and `Host` there.
    ///
    /// # Errors
    /// No answer came.
    pub async fn send(
        mut self,
        mut request: Request<Upload>,
    ) -> Result<(Response<Download>, Duration), Unanswered> {
        request.body_mut().link = Some(self.link.clone());
        let sent_at = Instant::now();
        match self.sender.try_send(request).await {
            Ok(response) => {
                let (parts, body) = response.into_parts();
                let link = self.link.clone();
                let gone = self.link.clone();
                // What has become something else takes no more requests.
                let is_http = parts.status != StatusCode::SWITCHING_PROTOCOLS;
                let mut body = Download {
                    body,
                    connection: is_http.then_some(self),
                    link,
                    gone: Box::pin(async move { gone.gone().await }),
                    pause: None,
                };
                body.give_back_at_end();
                Ok((Response::from_parts(parts, body), sent_at.elapsed()))
            }
            Err((error, request)) => Err(Unanswered {
                error: http_error(&self.origin, error),
                request,
            }),
        }
    }
}

impl Download {
    /// The link it comes over.
    #[must_use]
    pub fn link(&self) -> &Rc<Link> {
        &self.link
    }

    /// For a fetch to go on from, where other links can take parts of it: a whole file of a length
    /// and a strong tag, of a server that says that it knows ranges. `None`, with the body as it
    /// was, where that is not so.
    ///
    /// # Errors
    /// It is not; the body is given back.
    pub fn open(self, head: &Parts, latency: Duration) -> Result<Opened, Box<Self>> {
        let knows_ranges = head::knows_ranges(&head.headers);
        let version = match head::read(head) {
            Head::Answer(Answer::Whole { length, tag }) => Version { length, tag },
            Head::Answer(_) | Head::Redirect(_) => return Err(Box::new(self)),
        };
        let is_exact = self.body.size_hint().exact() == version.length;
        let can_be_split = knows_ranges && is_exact && version.can_be_split(false);
        match self.connection {
            Some(connection) if can_be_split => Ok(Opened {
                body: self.body,
                sender: connection.sender,
                link: self.link,
                origin: connection.origin,
                latency,
                version,
            }),
            connection => Err(Box::new(Self { connection, ..self })),
        }
    }

    /// Whoever reads a body of known length need not ask for what comes after it.
    fn give_back_at_end(&mut self) {
        if self.body.is_end_stream() {
            self.give_back();
        }
    }

    fn give_back(&mut self) {
        if let Some(connection) = self.connection.take()
            && !connection.is_http2()
        {
            let Connection {
                client,
                link,
                origin,
                sender,
                is_kept: _,
            } = connection;
            client.keep(link.id, &origin, sender);
        }
    }
}

impl Body for Download {
    type Data = Bytes;
    type Error = DownloadError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, DownloadError>>> {
        if self.gone.as_mut().poll(context).is_ready() {
            self.connection = None;
            return Poll::Ready(Some(Err(DownloadError::LinkGone)));
        }
        if let Some(pause) = &mut self.pause {
            ready!(pause.as_mut().poll(context));
            self.pause = None;
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        match &frame {
            Some(Ok(frame)) => {
                let amount = frame.data_ref().map_or(0, Bytes::len);
                let due = self.link.due_after(amount);
                self.pause = due.map(|due| Box::pin(sleep_until(due)));
                self.give_back_at_end();
            }
            Some(Err(_)) => self.connection = None,
            None => self.give_back(),
        }
        Poll::Ready(frame.map(|frame| frame.map_err(DownloadError::Broken)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
