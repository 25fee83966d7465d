//! A transfer in real time: its commands become requests, what comes back its input.
//!
//! Decides nothing about ranges. What a request's task does is `exchange`'s.

mod roll;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use hyper::http::response::Parts;
use tabane_base::Instant;
use tabane_ranges::{
    Answer, Command, Event, Failure, Fault, LinkId, Method, Request, RequestId, Settings, SourceId,
    Transfer, Version,
};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::connection::Client;
use crate::exchange::{Exchange, News, Reading};
use crate::job::{FetchError, Job, Outcome, Progress};
use crate::links::{Link, Links};
use crate::origin::{Source, Wish};
use crate::passage::Opened;
use crate::sink::Sink;
use roll::Roll;

/// Pieces of a body that may wait for the transfer, per request.
const READ_AHEAD: usize = 4;
/// How often who watches is told, and the sink notes where it is.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// A request's task; ends with it.
struct Running {
    task: JoinHandle<()>,
    /// What it may read.
    permits: Rc<Semaphore>,
    /// What it has read and not been given back.
    owed: usize,
    link: LinkId,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Engine<'a> {
    client: &'a Rc<Client>,
    links: &'a Links,
    sources: Vec<Rc<Source>>,
    sink: &'a mut dyn Sink,
    transfer: Transfer,
    epoch: std::time::Instant,
    running: BTreeMap<RequestId, Running>,
    outbox: mpsc::UnboundedSender<(RequestId, News)>,
    roll: Roll,
    /// The head of the answer that was taken first, until its event comes.
    head: Option<Box<Parts>>,
    restarts: u32,
    trouble: Option<String>,
    /// What refused, so that it can be told with the status.
    is_over: Option<Event>,
}

/// Fetches a file over all links into `sink`; `watch` is shown how far it is.
///
/// # Errors
/// The file cannot be had, or not be kept.
pub async fn fetch(
    client: &Rc<Client>,
    links: &Links,
    job: Job,
    sink: &mut dyn Sink,
    watch: impl FnMut(&Progress),
) -> Result<Outcome, FetchError> {
    drive(client, links, job, None, sink, watch).await
}

/// As [`fetch`], from an answer of the job's first URL on that is there already. Its head is not
/// told to `sink`.
///
/// # Errors
/// As [`fetch`].
pub async fn go_on(
    client: &Rc<Client>,
    links: &Links,
    job: Job,
    opened: Opened,
    sink: &mut dyn Sink,
    watch: impl FnMut(&Progress),
) -> Result<Outcome, FetchError> {
    drive(client, links, job, Some(opened), sink, watch).await
}

async fn drive(
    client: &Rc<Client>,
    links: &Links,
    job: Job,
    opened: Option<Opened>,
    sink: &mut dyn Sink,
    mut watch: impl FnMut(&Progress),
) -> Result<Outcome, FetchError> {
    let (outbox, mut news) = mpsc::unbounded_channel();
    let mut engine = Engine::new(client, links, job, sink, outbox);
    let consumption = engine.sink.consumption();
    let mut changes = links.changes();
    let mut progress = tokio::time::interval(PROGRESS_INTERVAL);
    progress.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    for link in links.all() {
        link.forget();
    }
    engine.follow_links();
    if let Some(opened) = opened {
        engine.go_on_from(opened);
    }
    loop {
        if let Some(consumption) = &consumption {
            let now = engine.now();
            engine.transfer.handle_consumed(now, consumption.position());
        }
        engine.drain()?;
        if let Some(end) = engine.is_over.take() {
            let last = engine.progress();
            watch(&last);
            engine.roll.remember(engine.now(), links, &engine.transfer);
            return engine.end(end, last);
        }
        let due = engine.transfer.poll_timeout();
        let pause = due.since(engine.now()).min(Duration::from_secs(3_600));
        let read = async {
            match &consumption {
                Some(consumption) => consumption.changed().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some((id, first)) = news.recv() => {
                engine.handle(id, first)?;
                // What else is there already costs no turn of its own.
                while let Ok((id, more)) = news.try_recv() {
                    engine.handle(id, more)?;
                }
            }
            () = sleep(pause) => {}
            _ = changes.changed() => engine.follow_links(),
            () = read => {}
            _ = progress.tick() => {
                watch(&engine.progress());
                let resumable = engine.transfer.can_be_resumed();
                engine.sink.checkpoint(engine.transfer.received(), resumable)?;
            }
        }
    }
}

impl<'a> Engine<'a> {
    fn new(
        client: &'a Rc<Client>,
        links: &'a Links,
        job: Job,
        sink: &'a mut dyn Sink,
        outbox: mpsc::UnboundedSender<(RequestId, News)>,
    ) -> Self {
        let settings = Settings {
            rule: job.rule,
            order: job.order,
            by_digest: job.by_digest,
            sources: u32::try_from(job.urls.len()).unwrap_or(u32::MAX),
            patience: client.patience.silence,
        };
        let transfer = match job.begun {
            Some((version, received)) => {
                Transfer::resume(Instant::EPOCH, settings, version, received)
            }
            None => Transfer::new(Instant::EPOCH, settings),
        };
        let source = |url| Rc::new(Source::new(url, job.headers.clone()));
        Self {
            client,
            links,
            sources: job.urls.into_iter().map(source).collect(),
            sink,
            transfer,
            epoch: std::time::Instant::now(),
            running: BTreeMap::new(),
            outbox,
            roll: Roll::default(),
            head: None,
            restarts: 0,
            trouble: None,
            is_over: None,
        }
    }

    fn now(&self) -> Instant {
        Instant::EPOCH + self.epoch.elapsed()
    }

    fn follow_links(&mut self) {
        let now = self.now();
        self.roll.follow(now, self.links, &mut self.transfer);
    }

    /// Events and commands until there is none, then what may be read on.
    fn drain(&mut self) -> Result<(), FetchError> {
        loop {
            while let Some(event) = self.transfer.poll_event() {
                self.handle_event(event)?;
            }
            let now = self.now();
            match self.transfer.poll_command(now) {
                Some(Command::Start(request)) => self.start(request),
                Some(Command::Cancel(id)) => {
                    self.running.remove(&id);
                }
                None => match self.transfer.poll_event() {
                    Some(event) => self.handle_event(event)?,
                    None => break,
                },
            }
        }
        for (id, running) in &mut self.running {
            if running.owed > 0 && self.transfer.wants(*id) {
                running
                    .permits
                    .add_permits(std::mem::take(&mut running.owed));
            }
        }
        Ok(())
    }

    fn handle_event(&mut self, event: Event) -> Result<(), FetchError> {
        match event {
            Event::Begun(version) => {
                if let Some(head) = self.head.take() {
                    self.sink.begin(&version, &head)?;
                }
            }
            Event::Restarted => {
                self.restarts += 1;
                self.sink.restart()?;
            }
            end @ (Event::Complete | Event::Failed(_)) => self.is_over = Some(end),
        }
        Ok(())
    }

    fn handle(&mut self, id: RequestId, news: News) -> Result<(), FetchError> {
        let now = self.now();
        let Some(running) = self.running.get_mut(&id) else {
            return Ok(());
        };
        match news {
            News::Answer(parts, answer, verdict) => {
                if let Answer::Refused { status } | Answer::Busy { status, .. } = answer {
                    tracing::debug!(status, "refused");
                }
                self.head = Some(parts);
                let judged = self.transfer.handle_answer(now, id, answer);
                // The sink hears of the head before it hears of bytes.
                while let Some(event) = self.transfer.poll_event() {
                    self.handle_event(event)?;
                }
                // The task may be gone already.
                let _ = verdict.send(judged);
            }
            News::Data(bytes) => {
                running.owed += 1;
                self.roll.on_data(running.link, bytes.len());
                for piece in self.transfer.handle_data(now, id, bytes.len()) {
                    let fresh = bytes.slice(piece.skip..piece.skip + piece.len);
                    self.sink.write(piece.offset, fresh)?;
                }
            }
            News::End => {
                self.running.remove(&id);
                self.transfer.handle_end(now, id);
            }
            News::Fault(fault, what) => {
                let link = self.roll.name(running.link);
                tracing::debug!(link, what, "request failed");
                self.trouble = Some(what);
                self.running.remove(&id);
                self.transfer.handle_fault(now, id, fault);
            }
        }
        Ok(())
    }

    fn start(&mut self, request: Request) {
        let Request {
            id, link, source, ..
        } = request;
        let permits = Rc::new(Semaphore::new(READ_AHEAD));
        let Some(link) = self.links.find(link) else {
            // Gone this very moment; the transfer will hear of it.
            let fault = News::Fault(Fault::Broken, "the link is gone".to_owned());
            let _ = self.outbox.send((id, fault));
            let task = tokio::task::spawn_local(async {});
            self.run(id, request.link, permits, task);
            return;
        };
        let SourceId(index) = source;
        let exchange = Exchange {
            reading: self.reading(id, link, &permits),
            source: self.sources[index as usize].clone(),
            wish: Wish {
                method: match request.method {
                    Method::Get => hyper::Method::GET,
                    Method::Head => hyper::Method::HEAD,
                },
                range: request.range,
                if_range: request.if_range,
            },
        };
        let task = tokio::task::spawn_local(exchange.run());
        self.run(id, request.link, permits, task);
    }

    /// The first request is answered already.
    fn go_on_from(&mut self, opened: Opened) {
        let now = self.now();
        let Opened {
            body,
            sender,
            link,
            origin,
            latency,
            version,
        } = opened;
        let id = self.transfer.handle_opened(now, link.id, latency, version);
        let permits = Rc::new(Semaphore::new(READ_AHEAD));
        let (link_id, reading) = (link.id, self.reading(id, link, &permits));
        let task = tokio::task::spawn_local(async move {
            reading.read(body, sender, &origin).await;
        });
        self.run(id, link_id, permits, task);
    }

    fn reading(&self, id: RequestId, link: Rc<Link>, permits: &Rc<Semaphore>) -> Reading {
        Reading {
            id,
            client: self.client.clone(),
            link,
            outbox: self.outbox.clone(),
            permits: permits.clone(),
        }
    }

    fn run(&mut self, id: RequestId, link: LinkId, permits: Rc<Semaphore>, task: JoinHandle<()>) {
        let running = Running {
            task,
            permits,
            owed: 0,
            link,
        };
        self.running.insert(id, running);
    }

    fn progress(&self) -> Progress {
        let now = self.now();
        Progress {
            received: self.transfer.received().total().get(),
            length: self.transfer.version().and_then(|version| version.length),
            links: self.roll.progress(now, self.links, &self.transfer),
            restarts: self.restarts,
            trouble: self.trouble.clone(),
        }
    }

    fn end(self, end: Event, progress: Progress) -> Result<Outcome, FetchError> {
        match end {
            Event::Failed(failure) => {
                // What a server says in an answer is told by its status.
                let is_network = matches!(
                    failure,
                    Failure::Unreachable | Failure::Silent(_) | Failure::NoLink
                );
                let trouble = self.trouble.filter(|_| is_network);
                Err(FetchError::Transfer { failure, trouble })
            }
            Event::Complete | Event::Begun(_) | Event::Restarted => {
                let received = self.transfer.received();
                self.sink.checkpoint(received, false)?;
                let version = self.transfer.version().cloned();
                let version = version.unwrap_or(Version {
                    length: Some(progress.received),
                    tag: None,
                });
                Ok(Outcome { version, progress })
            }
        }
    }
}
