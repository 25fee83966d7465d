//! One request of a transfer: a task of its own, which reads no further than it is told to, so that
//! what nobody has room for stays in its connection.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::http::response::Parts;
use tabane_ranges::{Answer, BodyUse, Fault, RequestId};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::timeout;

use crate::connection::{Client, Sender, http_error};
use crate::head::Head;
use crate::links::Link;
use crate::origin::{Answered, Source, Wish};
use crate::url::Origin;

/// What is dropped of an answer that is not wanted, to keep its connection.
const MOST_DRAINED: usize = 64 * 1024;
const DRAIN_TIME: Duration = Duration::from_millis(500);

/// What a request's task has to say.
pub(crate) enum News {
    Answer(Box<Parts>, Answer, oneshot::Sender<BodyUse>),
    Data(Bytes),
    End,
    Fault(Fault, String),
}

/// A request with what it needs.
pub(crate) struct Exchange {
    pub(crate) reading: Reading,
    pub(crate) source: Rc<Source>,
    pub(crate) wish: Wish,
}

/// The reading of an answer.
pub(crate) struct Reading {
    pub(crate) id: RequestId,
    pub(crate) client: Rc<Client>,
    pub(crate) link: Rc<Link>,
    pub(crate) outbox: mpsc::UnboundedSender<(RequestId, News)>,
    /// Pieces that may be read.
    pub(crate) permits: Rc<Semaphore>,
}

impl Exchange {
    pub(crate) async fn run(self) {
        let Reading { client, link, .. } = &self.reading;
        match self.source.ask(client, link, &self.wish).await {
            Ok(answered) => self.reading.judge(answered).await,
            Err(error) => {
                let news = News::Fault(error.fault(), error.to_string());
                self.reading.tell(news);
            }
        }
    }
}

impl Reading {
    /// Has the transfer look at an answer's head, and reads the body if it is wanted.
    async fn judge(&self, answered: Answered) {
        let Answered {
            response,
            head,
            sender,
            url,
        } = answered;
        let Head::Answer(answer) = head else {
            let what = "a redirect to nowhere".to_owned();
            return self.tell(News::Fault(Fault::Hopeless, what));
        };
        let (parts, body) = response.into_parts();
        let (verdict, judged) = oneshot::channel();
        self.tell(News::Answer(Box::new(parts), answer, verdict));
        if judged.await == Ok(BodyUse::Take) {
            self.read(body, sender, &url.origin).await;
        } else {
            self.drain(body, sender, &url.origin).await;
        }
    }

    /// Reads a body to its end, as far as it is wanted.
    pub(crate) async fn read(&self, mut body: Incoming, sender: Sender, origin: &Origin) {
        loop {
            match self.permits.acquire().await {
                Ok(permit) => permit.forget(),
                Err(_) => return,
            }
            match body.frame().await {
                None => break,
                Some(Ok(frame)) => {
                    let Ok(bytes) = frame.into_data() else {
                        self.permits.add_permits(1);
                        continue;
                    };
                    let amount = bytes.len();
                    self.tell(News::Data(bytes));
                    self.link.on_read(amount).await;
                }
                Some(Err(error)) => {
                    let what = http_error(origin, error).to_string();
                    self.link.on_failed(&what);
                    return self.tell(News::Fault(Fault::Broken, what));
                }
            }
        }
        if !sender.is_http2() {
            self.client.keep(self.link.id, origin, sender);
        }
        self.tell(News::End);
    }

    /// Reads a little of what is not wanted, so that its connection can be used again.
    async fn drain(&self, mut body: Incoming, sender: Sender, origin: &Origin) {
        let mut drained = 0;
        let drain = async {
            while let Some(Ok(frame)) = body.frame().await {
                drained += frame.data_ref().map_or(0, Bytes::len);
                if drained > MOST_DRAINED {
                    return;
                }
            }
            self.client.keep(self.link.id, origin, sender);
        };
        // In vain: another connection is made.
        let _ = timeout(DRAIN_TIME, drain).await;
    }

    fn tell(&self, news: News) {
        // Nobody listens where the fetch has ended.
        let _ = self.outbox.send((self.id, news));
    }
}
