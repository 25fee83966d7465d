//! `tabane sctp recv`: one transfer, from any SCTP sender.
//!
//! A sender of ours tells length and digest at the end, and is told whether they are right. From
//! any other, what has come when it ends the association in good order is all there is.

use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::{AssociationId, Event, Incoming, Message, Settings};
use anyhow::{Result, anyhow, bail};
use tabane_base::{Bytes, Duration};

use super::conversation::{NOTES, Note, NoteReader, STREAM, Tally};
use super::driver::Driver;
use super::feed::{Sink, part_of};
use super::home::Home;
use super::report::{Progress, Report, megabytes};

/// How long the last words may take to arrive.
const FAREWELL: Duration = Duration::from_secs(10);

/// What was asked for.
pub struct Order {
    /// Where the data goes; `-` is standard output.
    pub file: PathBuf,
    /// The SCTP port.
    pub port: u16,
    /// Where SCTP comes in UDP.
    pub udp_port: u16,
    /// How much the stack may hold for us; `None` for its own measure.
    pub receive_buffer: Option<Bytes>,
    /// How long the sender may be silent.
    pub patience: Duration,
}

/// Waits for a sender, and takes what it sends.
pub async fn receive(order: &Order, ready: impl FnOnce()) -> Result<Report> {
    let mut settings = Settings::default();
    if let Some(buffer) = order.receive_buffer {
        settings.receive_buffer = buffer;
    }
    let mut driver = Driver::start(&settings)?;
    let home = Home::open(&mut driver, order.port, order.udp_port).await?;
    let mut receiving = Receiving {
        sink: Sink::create(&order.file)?,
        driver,
        home,
        patience: order.patience,
        association: None,
        begun_at: None,
        heard_at: None,
        longest_silence: Duration::ZERO,
        tally: Tally::new(),
        notes: NoteReader::default(),
        told: None,
        end: None,
    };
    ready();
    let mut progress = Progress::new();
    let end = receiving.run(&mut progress).await;
    progress.clear();
    receiving.conclude(end, &order.file).await
}

/// How the association ended.
#[derive(Debug)]
enum End {
    InOrder,
    Lost,
    /// Nothing was heard for as long as one waits.
    Silent,
}

struct Receiving {
    driver: Driver,
    home: Home,
    patience: Duration,
    sink: Sink,
    /// The first that came; others are turned away.
    association: Option<AssociationId>,
    begun_at: Option<Instant>,
    heard_at: Option<Instant>,
    longest_silence: Duration,
    tally: Tally,
    notes: NoteReader,
    /// What a sender of ours said at the end.
    told: Option<Note>,
    end: Option<End>,
}

impl Receiving {
    /// Until everything there is has come.
    async fn run(&mut self, progress: &mut Progress) -> Result<()> {
        while self.end.is_none() && self.told.is_none() {
            self.step().await?;
            let (stack, endpoint) = (&self.driver.stack, self.home.endpoint);
            let silence = |association| stack.silence(endpoint, association);
            if self.end.is_none() && self.association.and_then(silence) > Some(self.patience) {
                self.end = Some(End::Silent);
            }
            if self.sink.has_failed() {
                // `conclude` says why.
                return Ok(());
            }
            if self.association.is_some() {
                progress.show(self.tally.length, None, Vec::new);
            }
        }
        Ok(())
    }

    async fn step(&mut self) -> Result<()> {
        let changed = tokio::select! {
            () = self.driver.wait() => false,
            () = self.home.changed() => true,
        };
        if changed {
            self.home
                .follow(&mut self.driver, std::iter::empty())
                .await?;
        }
        self.driver.turn();
        self.listen();
        self.driver.flush();
        Ok(())
    }

    fn listen(&mut self) {
        let mut turned_away = Vec::new();
        while self.sink.has_room() {
            let Some(incoming) = self.driver.stack.poll_event(self.home.endpoint) else {
                break;
            };
            match incoming {
                Incoming::Event(Event::Up { association, .. }) => {
                    match self.association {
                        None => {
                            self.association = Some(association);
                            self.begun_at = Some(Instant::now());
                        }
                        // The same sender beginning anew would mix two transfers.
                        Some(known) if known == association => self.end = Some(End::Lost),
                        Some(_) => turned_away.push(association),
                    }
                }
                Incoming::Event(Event::Closed { association })
                    if is_same(self.association, association) =>
                {
                    self.end = Some(End::InOrder);
                }
                Incoming::Event(Event::Lost { association, .. })
                    if is_same(self.association, association) =>
                {
                    self.end = Some(End::Lost);
                }
                Incoming::Event(_) => {}
                Incoming::Piece(piece) if !is_same(self.association, piece.association) => {}
                Incoming::Piece(piece) if piece.protocol == NOTES => {
                    if let Some(note) = self.notes.read(piece.data, piece.complete) {
                        self.told = Some(note);
                    }
                }
                Incoming::Piece(piece) => {
                    let now = Instant::now();
                    let silence = self.heard_at.map(|at| now - at).unwrap_or_default();
                    self.longest_silence = self.longest_silence.max(silence);
                    self.heard_at = Some(now);
                    self.tally.add(piece.data);
                    self.sink.write(piece.data);
                }
            }
        }
        for association in turned_away {
            // It may have gone by itself.
            let _ = self.driver.stack.abort(self.home.endpoint, association);
        }
    }

    /// Writes everything, says what is to be said, and gives the file its name.
    async fn conclude(mut self, end: Result<()>, file: &Path) -> Result<Report> {
        let part = part_of(file);
        let is_file = file != Path::new("-");
        let kept = match is_file {
            true => format!("; what came is in {}", part.display()),
            false => String::new(),
        };
        end?;
        let sink = std::mem::replace(&mut self.sink, Sink::closed());
        let mut finish = std::pin::pin!(sink.finish());
        // A slow disk is not to look like a dead receiver.
        let written = loop {
            tokio::select! {
                written = &mut finish => break written,
                () = self.driver.wait() => self.driver.turn(),
            }
        };
        let (length, sha256) = (self.tally.length, self.tally.sha256());
        let outcome = match (&self.told, &self.end, written) {
            (_, _, Err(error)) => Err(error),
            (
                Some(Note::Sent {
                    length: l,
                    sha256: d,
                }),
                _,
                Ok(finish),
            ) => {
                match (*l, d) == (length, &sha256) {
                    // The name first: whoever is told that it is complete finds it.
                    true => finish.commit().map(|()| true),
                    false => Err(anyhow!(
                        "{l} bytes were sent and {length} came, or others than were sent{kept}"
                    )),
                }
            }
            (Some(Note::Spoilt { why }), _, Ok(_)) => {
                Err(anyhow!("the sender gave up: {why}{kept}"))
            }
            (Some(_), _, Ok(_)) => Err(anyhow!("the sender said something out of place{kept}")),
            (None, Some(End::InOrder), Ok(finish)) => finish.commit().map(|()| false),
            (None, Some(End::Silent), Ok(_)) => Err(anyhow!(
                "the sender was lost after {}: nothing was heard of it for {} s{kept}",
                megabytes(length),
                self.patience.as_secs()
            )),
            (None, _, Ok(_)) => Err(anyhow!(
                "the sender was lost after {}: it aborted, or no path answers any more{kept}",
                megabytes(length)
            )),
        };
        let note = match &outcome {
            Ok(_) => Note::Complete {
                length,
                sha256: sha256.clone(),
            },
            Err(error) => Note::Different {
                why: format!("{error:#}"),
            },
        };
        let begun_at = self.begun_at.unwrap_or_else(Instant::now);
        let mut report = Report::new(length, begun_at, sha256, matches!(outcome, Ok(true)));
        let silence = self.longest_silence.as_millis();
        report.longest_silence_ms = Some(u64::try_from(silence).unwrap_or(u64::MAX));
        self.say_goodbye(&note).await?;
        outcome.map(|_| report)
    }

    /// Tells a sender of ours, and lets it end the association.
    async fn say_goodbye(&mut self, note: &Note) -> Result<()> {
        let Some(association) = self.association else {
            bail!("the sender has gone");
        };
        if self.told.is_some() {
            let message = Message {
                data: &note.to_bytes(),
                stream: STREAM,
                protocol: NOTES,
                path: None,
            };
            let sent = self
                .driver
                .stack
                .send(self.home.endpoint, association, message);
            let deadline = Instant::now() + FAREWELL;
            while sent.is_ok() && self.end.is_none() && Instant::now() < deadline {
                self.driver.flush();
                self.step().await?;
            }
        }
        self.driver.stack.close(self.home.endpoint);
        self.driver.flush();
        Ok(())
    }
}

fn is_same(known: Option<AssociationId>, association: AssociationId) -> bool {
    known == Some(association)
}
