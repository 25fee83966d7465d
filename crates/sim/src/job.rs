//! What the application moves: one stream's worth of seeded content each way.
//!
//! A job is a stream that the client opens. Both ends know the job by the stream's number, write
//! what the job says and check what they read, byte by byte. Owns how far each end has come;
//! sessions are borrowed for each step.

use tabane_base::{Bytes, Content, Instant, Rate, Seed};
use tabane_core::{ClassId, ReadState, Session, StreamError, StreamId};

use crate::side::Side;

/// Bytes handed to a stream at once.
const CHUNK: usize = 65_536;

/// A limited reader comes for so much at once.
const SIP: Bytes = Bytes::kilo(16);

/// What a program on a real machine has read when its kernel's offers show that it reads.
const READER_KNOWN_AFTER: u64 = 65_536;

/// A job, by the order in which they were added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub usize);

/// How fast an end reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Whatever is there.
    Eager,
    /// Nothing at all.
    Stalled,
    /// So much on average.
    Limited(Rate),
}

/// What is to be moved. `Bytes::MAX` never ends.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// From client to server.
    pub up: Bytes,
    /// From server to client.
    pub down: Bytes,
    /// When the client opens the stream.
    pub starts_at: Instant,
}

impl Transfer {
    /// A download without end, from the moment there is a session.
    #[must_use]
    pub const fn download() -> Self {
        Self {
            up: Bytes::ZERO,
            down: Bytes::MAX,
            starts_at: Instant::EPOCH,
        }
    }

    /// An upload without end, from the moment there is a session.
    #[must_use]
    pub const fn upload() -> Self {
        Self {
            up: Bytes::MAX,
            down: Bytes::ZERO,
            starts_at: Instant::EPOCH,
        }
    }
}

/// How a job's reading at one end stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobState {
    /// More is to come.
    Open,
    /// Everything came, and its end.
    Finished,
    /// The other end abandoned it, with this code.
    Reset(u64),
    /// This end asked for no more.
    Stopped,
}

/// One end of a job.
#[derive(Debug)]
struct End {
    content_out: Content,
    content_in: Content,
    total_out: u64,
    total_in: u64,
    written: u64,
    write_over: bool,
    read: u64,
    state: JobState,
    pace: Pace,
    pace_since: (Instant, u64),
    /// When it last came to read.
    tried_at: Instant,
    last_read_at: Option<Instant>,
    first_read_at: Option<Instant>,
    finished_at: Option<Instant>,
}

/// A transfer under way.
#[derive(Debug)]
pub struct Job {
    transfer: Transfer,
    /// What its stream belongs to from its first byte on.
    pub(crate) class: ClassId,
    stream: Option<StreamId>,
    client: End,
    server: End,
    disturbed: bool,
    /// The server was told of the stream.
    accepted: bool,
}

impl Job {
    pub(crate) fn new(transfer: Transfer, seed: Seed) -> Self {
        let up = Content::new(seed.split("up"));
        let down = Content::new(seed.split("down"));
        let end = |content_out, content_in, total_out: Bytes, total_in: Bytes| End {
            content_out,
            content_in,
            total_out: total_out.get(),
            total_in: total_in.get(),
            written: 0,
            write_over: false,
            read: 0,
            state: JobState::Open,
            pace: Pace::Eager,
            pace_since: (Instant::EPOCH, 0),
            tried_at: Instant::EPOCH,
            last_read_at: None,
            first_read_at: None,
            finished_at: None,
        };
        Self {
            transfer,
            class: ClassId::ORDINARY,
            stream: None,
            client: end(up, down, transfer.up, transfer.down),
            server: end(down, up, transfer.down, transfer.up),
            disturbed: false,
            accepted: false,
        }
    }

    pub(crate) const fn starts_at(&self) -> Instant {
        self.transfer.starts_at
    }

    /// Its stream, once opened.
    #[must_use]
    pub const fn stream(&self) -> Option<StreamId> {
        self.stream
    }

    pub(crate) fn set_stream(&mut self, id: StreamId) {
        self.stream = Some(id);
    }

    pub(crate) fn on_accepted(&mut self) {
        self.accepted = true;
    }

    /// The stream, if `side` knows of it.
    pub(crate) fn stream_at(&self, side: Side) -> Option<StreamId> {
        self.stream
            .filter(|_| side == Side::Client || self.accepted)
    }

    /// How its reading at `side` stands.
    #[must_use]
    pub fn state(&self, side: Side) -> JobState {
        self.end(side).state
    }

    /// Bytes read at `side` so far, all of them right.
    #[must_use]
    pub fn read(&self, side: Side) -> Bytes {
        Bytes::new(self.end(side).read)
    }

    /// When `side` had read everything.
    #[must_use]
    pub fn finished_at(&self, side: Side) -> Option<Instant> {
        self.end(side).finished_at
    }

    /// Whether either end abandoned or stopped it.
    #[must_use]
    pub const fn was_disturbed(&self) -> bool {
        self.disturbed
    }

    /// Whether nothing is left to do at either end.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let over = |end: &End| end.state != JobState::Open && end.write_over;
        over(&self.client) && over(&self.server)
    }

    fn end(&self, side: Side) -> &End {
        match side {
            Side::Client => &self.client,
            Side::Server => &self.server,
        }
    }

    fn end_mut(&mut self, side: Side) -> &mut End {
        match side {
            Side::Client => &mut self.client,
            Side::Server => &mut self.server,
        }
    }

    pub(crate) fn set_pace(&mut self, now: Instant, side: Side, pace: Pace) {
        let end = self.end_mut(side);
        end.pace = pace;
        end.pace_since = (now, end.read);
    }

    /// When a limited reader comes again.
    pub(crate) fn reads_at(&self, side: Side) -> Option<Instant> {
        let end = self.end(side);
        let open = end.state == JobState::Open && self.stream_at(side).is_some();
        match end.pace {
            Pace::Limited(rate) if open => Some(end.tried_at + rate.time_for(SIP)),
            Pace::Limited(_) | Pace::Eager | Pace::Stalled => None,
        }
    }

    /// The end abandoned its writing side.
    pub(crate) fn on_write_over(&mut self, side: Side) {
        self.end_mut(side).write_over = true;
        self.disturbed = true;
    }

    /// The end asked for no more.
    pub(crate) fn on_stopped(&mut self, side: Side) {
        self.disturbed = true;
        let end = self.end_mut(side);
        if end.state == JobState::Open {
            end.state = JobState::Stopped;
        }
    }

    /// Writes what the stream takes.
    ///
    /// # Panics
    /// When the session refuses what it must take.
    pub(crate) fn write(&mut self, now: Instant, side: Side, session: &mut Session) {
        let Some(id) = self.stream_at(side) else {
            return;
        };
        let disturbed = self.disturbed;
        let end = self.end_mut(side);
        let mut chunk = [0; CHUNK];
        while !end.write_over {
            let want = (end.total_out - end.written).min(CHUNK as u64) as usize;
            if want == 0 {
                let finished = session.finish(now, id).is_ok();
                assert!(
                    finished || disturbed,
                    "{side:?}: stream {id} cannot be finished"
                );
                end.write_over = true;
                return;
            }
            // Content costs more than asking first.
            let want = want.min(session.stream_capacity(id).max(1));
            end.content_out.fill(end.written, &mut chunk[..want]);
            let Ok(n) = session.write(now, id, &chunk[..want]) else {
                // The other end has stopped it; the news is still to be taken.
                assert!(disturbed, "{side:?}: stream {id} cannot be written");
                end.write_over = true;
                return;
            };
            end.written += n as u64;
            if n < want {
                return;
            }
        }
    }

    /// Reads and checks what is there, as far as the pace allows; `clock` is the session's time.
    /// Gives how much that was.
    ///
    /// # Panics
    /// When a byte is not what the other end wrote, or comes after the end.
    pub(crate) fn read_on(
        &mut self,
        (now, clock): (Instant, Instant),
        side: Side,
        session: &mut Session,
    ) -> u64 {
        let Some(id) = self.stream_at(side) else {
            return 0;
        };
        let end = self.end_mut(side);
        let mut allowed = match end.pace {
            Pace::Eager => u64::MAX,
            Pace::Stalled => 0,
            Pace::Limited(rate) => {
                let (since, from) = end.pace_since;
                rate.amount_in(now - since)
                    .get()
                    .saturating_sub(end.read - from)
            }
        };
        end.tried_at = now;
        let before = end.read;
        while end.state == JobState::Open && allowed > 0 {
            let n = match session.peek(id) {
                Ok(ReadState::Data(data)) => {
                    assert!(!data.is_empty(), "{side:?} {id}: an empty piece of data");
                    let n = data
                        .len()
                        .min(usize::try_from(allowed).unwrap_or(usize::MAX));
                    let wrong = end.content_in.first_difference(end.read, &data[..n]);
                    assert_eq!(
                        wrong, None,
                        "{side:?} {now}: stream {id} is wrong at an offset"
                    );
                    n
                }
                Ok(ReadState::Empty) => break,
                Ok(ReadState::Finished) => {
                    assert_eq!(
                        end.read, end.total_in,
                        "{side:?}: stream {id} ends too early"
                    );
                    end.state = JobState::Finished;
                    end.finished_at = Some(now);
                    break;
                }
                Ok(ReadState::Reset(code)) => {
                    end.state = JobState::Reset(code);
                    break;
                }
                // Not opened here yet, or the session is over.
                Err(StreamError::Unknown) => break,
                Err(error) => panic!("{side:?}: stream {id} cannot be read: {error}"),
            };
            if end.read >= READER_KNOWN_AFTER {
                session.on_reader_known(id);
            }
            session.consume(clock, id, n);
            end.read += n as u64;
            allowed -= n as u64;
            end.last_read_at = Some(now);
            end.first_read_at.get_or_insert(now);
        }
        assert!(
            end.read <= end.total_in,
            "{side:?}: stream {id} has more than was written"
        );
        end.read - before
    }
}
