//! `tabane sctp send`: one file, or standard input, to one receiver.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Instant;

use crate::{Event, Incoming, Message, PathState, PathStatus, Sent};
use anyhow::{Result, bail};
use tabane_base::{Bytes, Duration};
use tokio::sync::mpsc::error::TryRecvError;

use super::conversation::{NOTES, Note, NoteReader, STREAM, Tally};
use super::driver::Driver;
use super::feed::Source;
use super::links::LinkSet;
use super::outgoing::{Outgoing, Stage};
use super::report::{LinkReport, PathReport, Progress, Report};
use super::scheduler::Scheduler;
use tabane_store::Store;
use tabane_uplinks::LinksView;

/// How often paths are looked after.
const TEND: Duration = Duration::from_millis(200);
/// How long the receiver may take to compare and write what it has.
const VERDICT: Duration = Duration::from_secs(60);

/// What was asked for.
pub struct Order {
    /// What is sent; `None` or `-` is standard input.
    pub file: Option<PathBuf>,
    /// The peer's addresses, with the UDP port.
    pub remotes: Vec<SocketAddr>,
    /// The peer's SCTP port.
    pub port: u16,
    /// The links to use; none for all that may be.
    pub links: Vec<String>,
    /// Which path a message takes.
    pub scheduler: Scheduler,
    /// How long the set-up may take.
    pub timeout: Duration,
    /// And how long the receiver may be silent after that.
    pub patience: Duration,
}

/// Sends it; what is told comes after the receiver has everything. What `show` makes of the view of
/// the links is kept meanwhile.
pub async fn send<T>(
    order: Order,
    store: &Store,
    show: impl FnOnce(LinksView) -> Result<T>,
) -> Result<Report> {
    let source = Source::open(order.file.as_deref())?;
    let mut driver = Driver::start(&order.scheduler.settings())?;
    let (remotes, port) = (&order.remotes, order.port);
    let links = LinkSet::open(&mut driver, order.links.clone(), remotes, store).await?;
    let outgoing = Outgoing::begin(&mut driver, &links, remotes, port, order.scheduler)?;
    links.set_associations(1);
    let _shown = show(links.view())?;
    let mut sending = Sending {
        length: source.length,
        source: Some(source),
        begun_at: Instant::now(),
        tended_at: Instant::now(),
        done_at: None,
        pending: Vec::new(),
        offset: 0,
        tally: Tally::new(),
        notes: NoteReader::default(),
        verdict: None,
        spoilt: None,
        is_ending: false,
        paths: Vec::new(),
        outgoing,
        driver,
        links,
        order,
    };
    sending.connect().await?;
    let mut progress = Progress::new();
    let outcome = sending.run(&mut progress).await;
    progress.clear();
    let report = sending.report();
    // What is left to say leaves with these.
    sending.driver.stack.close(sending.outgoing.endpoint);
    sending.driver.flush();
    outcome.map(|()| report)
}

struct Sending {
    order: Order,
    driver: Driver,
    links: LinkSet,
    outgoing: Outgoing,
    source: Option<Source>,
    length: Option<u64>,
    /// The block being sent, and how much of it has been.
    pending: Vec<u8>,
    offset: usize,
    tally: Tally,
    notes: NoteReader,
    verdict: Option<Note>,
    spoilt: Option<anyhow::Error>,
    /// The association is being ended.
    is_ending: bool,
    /// As they were last seen.
    paths: Vec<PathReport>,
    begun_at: Instant,
    tended_at: Instant,
    /// When the last byte was handed to the stack, and the end with it.
    done_at: Option<Instant>,
}

impl Sending {
    async fn connect(&mut self) -> Result<()> {
        let deadline = Instant::now() + self.order.timeout;
        while self.outgoing.stage == Stage::Connecting {
            self.step().await?;
            if Instant::now() >= deadline {
                let (links, timeout) = (&self.links, self.order.timeout);
                return Err(self.outgoing.silence(&self.driver, links, timeout));
            }
        }
        if self.outgoing.stage == Stage::Lost {
            bail!(
                "{} refused the association: does an SCTP receiver (such as `tabane sctp recv`) \
                 listen on SCTP port {}?",
                self.peer(),
                self.order.port
            );
        }
        self.begun_at = Instant::now();
        Ok(())
    }

    fn peer(&self) -> String {
        let remotes = self.order.remotes.iter().map(ToString::to_string);
        remotes.collect::<Vec<_>>().join(", ")
    }

    /// How many bytes there are, for people.
    fn whole(&self) -> String {
        let known = self.length.map(|length| length.to_string());
        known.unwrap_or_else(|| "?".to_owned())
    }

    async fn run(&mut self, progress: &mut Progress) -> Result<()> {
        loop {
            match self.outgoing.stage {
                Stage::Closed => return self.judge(),
                Stage::Lost => bail!(
                    "the association with {} was aborted, or no path answers any more; {} of {} \
                     bytes were handed over",
                    self.peer(),
                    self.tally.length,
                    self.whole()
                ),
                Stage::Connecting | Stage::Up => {}
            }
            self.fill()?;
            let (links, driver) = (&self.links, &self.driver);
            progress.show(self.tally.length, self.length, || {
                let sent = links.sent(driver).into_iter();
                sent.map(|(link, sent)| (link, sent.get())).collect()
            });
            self.step().await?;
            let (endpoint, association) = (self.outgoing.endpoint, self.outgoing.association);
            let silence = self.driver.stack.silence(endpoint, association);
            if self.outgoing.stage == Stage::Up && silence > Some(self.order.patience) {
                bail!(
                    "nothing was heard of {} for {} s; {} of {} bytes were handed over",
                    self.peer(),
                    self.order.patience.as_secs(),
                    self.tally.length,
                    self.whole()
                );
            }
            if self.done_at.is_some_and(|at| at.elapsed() > VERDICT)
                && self.driver.stack.backlog(endpoint, association) == Some(0)
            {
                bail!("the receiver has everything but does not say that it is complete");
            }
        }
    }

    /// The end: whether the other side has what was meant.
    fn judge(&mut self) -> Result<()> {
        if let Some(error) = self.spoilt.take() {
            return Err(error);
        }
        match (&self.verdict, self.outgoing.is_ours) {
            (Some(Note::Complete { length, sha256 }), _)
                if *length == self.tally.length && *sha256 == self.tally.sha256() =>
            {
                Ok(())
            }
            (Some(Note::Different { why }), _) => bail!("the receiver has not got it: {why}"),
            (_, true) => bail!("the receiver ended without saying that it is complete"),
            (_, false) if self.done_at.is_some() => Ok(()),
            (_, false) => bail!(
                "the receiver ended after {} bytes were handed over, before everything was sent",
                self.tally.length
            ),
        }
    }

    /// Hands the stack as much as it takes.
    fn fill(&mut self) -> Result<()> {
        if self.outgoing.stage != Stage::Up || self.done_at.is_some() {
            return Ok(());
        }
        loop {
            if self.offset == self.pending.len() {
                let ready = self.source.as_mut().map(|source| source.blocks.try_recv());
                match ready {
                    Some(Ok(block)) => self.take(Some(block)),
                    Some(Err(TryRecvError::Empty)) => break,
                    Some(Err(TryRecvError::Disconnected)) => self.take(None),
                    None => return self.finish(),
                }
                continue;
            }
            let end = self
                .pending
                .len()
                .min(self.offset + self.outgoing.message_bytes);
            let data = &self.pending[self.offset..end];
            let stack = &mut self.driver.stack;
            match self.outgoing.send(stack, &self.links, data)? {
                Sent::Full => break,
                Sent::Queued => {
                    self.tally.add(&self.pending[self.offset..end]);
                    self.offset = end;
                }
            }
        }
        self.driver.flush();
        Ok(())
    }

    /// What the reading thread gave; `None`: nothing any more.
    fn take(&mut self, block: Option<Result<Vec<u8>>>) {
        match block {
            Some(Ok(block)) => {
                self.pending = block;
                self.offset = 0;
            }
            Some(Err(error)) => {
                self.spoilt = Some(error);
                self.source = None;
            }
            None => self.source = None,
        }
    }

    /// Everything is handed over: says so, and ends with whom there is nothing to hear from.
    fn finish(&mut self) -> Result<()> {
        let (endpoint, association) = (self.outgoing.endpoint, self.outgoing.association);
        let stack = &mut self.driver.stack;
        match (&self.spoilt, self.outgoing.is_ours) {
            // Whoever gets an end without an abort takes what it has for complete.
            (Some(_), false) => {
                stack.abort(endpoint, association)?;
                self.driver.flush();
                self.outgoing.stage = Stage::Closed;
            }
            (spoilt, true) => {
                let note = match spoilt {
                    Some(error) => Note::Spoilt {
                        why: format!("{error:#}"),
                    },
                    None => Note::Sent {
                        length: self.tally.length,
                        sha256: self.tally.sha256(),
                    },
                };
                let message = Message {
                    data: &note.to_bytes(),
                    stream: STREAM,
                    protocol: NOTES,
                    path: None,
                };
                if stack.send(endpoint, association, message)? == Sent::Full {
                    return Ok(());
                }
            }
            (None, false) => stack.shutdown(endpoint, association)?,
        }
        self.done_at = Some(Instant::now());
        self.driver.flush();
        Ok(())
    }

    /// Waits for something to happen, and takes it in.
    async fn step(&mut self) -> Result<()> {
        let wants_data = self.outgoing.stage == Stage::Up
            && self.offset == self.pending.len()
            && self.source.is_some();
        let mut fresh = None;
        let changed = tokio::select! {
            () = self.driver.wait() => false,
            () = self.links.changed() => true,
            block = next_block(&mut self.source), if wants_data => {
                fresh = Some(block);
                false
            }
        };
        if let Some(block) = fresh {
            self.take(block);
        }
        self.links.count_if_due();
        if changed || self.links.has_news() {
            let (come, gone) = self.links.update(&mut self.driver);
            let stack = &mut self.driver.stack;
            self.outgoing.on_links(stack, &self.links, &come, &gone);
        }
        self.driver.turn();
        self.listen()?;
        if self.tended_at.elapsed() >= TEND {
            self.tended_at = Instant::now();
            let paths = self.driver.stack.paths(self.outgoing.endpoint);
            if self.outgoing.stage == Stage::Up {
                let report = |status: &PathStatus| self.path_report(status);
                self.paths = paths.iter().map(report).collect();
            }
            self.outgoing.tend(&mut self.driver, &self.links);
        }
        self.driver.flush();
        Ok(())
    }

    fn listen(&mut self) -> Result<()> {
        let endpoint = self.outgoing.endpoint;
        let mut news: Vec<Event> = Vec::new();
        while let Some(incoming) = self.driver.stack.poll_event(endpoint) {
            match incoming {
                Incoming::Event(event) => news.push(event),
                Incoming::Piece(piece) if piece.protocol == NOTES => {
                    if let Some(note) = self.notes.read(piece.data, piece.complete) {
                        self.verdict = Some(note);
                    }
                }
                // A receiver that answers is not listened to.
                Incoming::Piece(_) => {}
            }
        }
        for event in news {
            let stack = &mut self.driver.stack;
            self.outgoing.on_event(stack, &self.links, &event);
        }
        let is_judged = self.done_at.is_some() && self.verdict.is_some();
        if is_judged && !self.is_ending && self.outgoing.stage == Stage::Up {
            self.is_ending = true;
            let association = self.outgoing.association;
            self.driver.stack.shutdown(endpoint, association)?;
        }
        Ok(())
    }

    fn path_report(&self, status: &PathStatus) -> PathReport {
        let link = self.links.get(status.way.link);
        let stack = &self.driver.stack;
        let outstanding = stack.outstanding(self.outgoing.endpoint, status.path);
        PathReport {
            link: link.map_or_else(|| "gone".to_owned(), |link| link.name.clone()),
            remote: status.way.remote.to_string(),
            state: match status.state {
                PathState::Active => "active",
                PathState::Unconfirmed => "unconfirmed",
                PathState::Inactive => "inactive",
            },
            cwnd_bytes: status.cwnd.get(),
            outstanding_bytes: outstanding.get(),
            srtt_ms: millis(status.srtt),
            rto_ms: millis(status.rto),
            mtu_bytes: status.mtu,
        }
    }

    fn report(&self) -> Report {
        let confirmed = matches!(self.verdict, Some(Note::Complete { .. }));
        let sha256 = self.tally.sha256();
        let mut report = Report::new(self.tally.length, self.begun_at, sha256, confirmed);
        let link_report = |(link, sent): (String, Bytes)| LinkReport {
            link,
            sent_bytes: sent.get(),
        };
        let sent = self.links.sent(&self.driver).into_iter();
        report.links = sent.map(link_report).collect();
        report.paths.clone_from(&self.paths);
        report
    }
}

async fn next_block(source: &mut Option<Source>) -> Option<Result<Vec<u8>>> {
    match source {
        Some(source) => source.blocks.recv().await,
        None => std::future::pending().await,
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
