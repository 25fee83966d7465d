//! A session beside the world's own, between the same two hosts, with a small model of its streams.
//!
//! What a stream is to its user is a queue of bytes: what was written and not read yet, then an
//! end. Every byte that is read is compared with the front of that queue, so the model keeps copies
//! where a [`Job`](crate::Job) knows its contents by their place.

use std::collections::{BTreeMap, VecDeque};

use tabane_base::Instant;
use tabane_core::{ReadState, Session, SessionHandle, StreamError, StreamId};

use crate::side::Side;

/// One direction of a stream.
#[derive(Debug, Default)]
struct Queue {
    /// Not taken by the session yet.
    unsent: VecDeque<u8>,
    /// Written, and not read at the other end.
    under_way: VecDeque<u8>,
    finishes: bool,
    is_read: bool,
}

/// A session at the same relay.
#[derive(Debug)]
pub(crate) struct Beside {
    pub(crate) client: SessionHandle,
    /// What the client shows, by which the server's end of it is known.
    pub(crate) token: Vec<u8>,
    /// From the client, and to it.
    streams: BTreeMap<StreamId, [Queue; 2]>,
    /// To be written once the client is let in.
    waiting: Vec<Said>,
}

/// A stream's contents each way.
#[derive(Clone, Debug)]
struct Said {
    up: Vec<u8>,
    down: Vec<u8>,
}

impl Beside {
    pub(crate) const fn new(client: SessionHandle, token: Vec<u8>) -> Self {
        Self {
            client,
            token,
            streams: BTreeMap::new(),
            waiting: Vec::new(),
        }
    }

    /// A stream is opened when the session stands; each end writes this and finishes.
    pub(crate) fn say(&mut self, up: Vec<u8>, down: Vec<u8>) {
        self.waiting.push(Said { up, down });
    }

    /// Everything was read, to the end.
    pub(crate) fn is_over(&self) -> bool {
        let queues = self.streams.values().flatten();
        self.waiting.is_empty() && queues.into_iter().all(|queue| queue.is_read)
    }

    /// Opens, writes and reads what can be at one end.
    pub(crate) fn run(&mut self, clock: Instant, side: Side, session: &mut Session) {
        if !session.is_connected() {
            return;
        }
        while side == Side::Client
            && let Some(said) = self.waiting.pop()
        {
            let Ok(id) = session.open_stream(clock) else {
                // When there are fewer of them.
                self.waiting.push(said);
                break;
            };
            let queue = |bytes: Vec<u8>| Queue {
                unsent: bytes.into(),
                ..Queue::default()
            };
            self.streams.insert(id, [queue(said.up), queue(said.down)]);
        }
        for (id, [up, down]) in &mut self.streams {
            let (out, into) = match side {
                Side::Client => (up, down),
                Side::Server => (down, up),
            };
            out.write(clock, *id, session);
            into.read(clock, *id, session);
        }
    }
}

impl Queue {
    fn write(&mut self, clock: Instant, id: StreamId, session: &mut Session) {
        while !self.unsent.is_empty() {
            let piece = self.unsent.as_slices().0;
            let n = match session.write(clock, id, piece) {
                Ok(n) => n,
                // The server has not heard of it yet.
                Err(StreamError::Unknown) => return,
                Err(error) => panic!("{id} cannot be written: {error}"),
            };
            if n == 0 {
                return;
            }
            self.under_way.extend(self.unsent.drain(..n));
        }
        if !self.finishes {
            self.finishes = session.finish(clock, id).is_ok();
        }
    }

    fn read(&mut self, clock: Instant, id: StreamId, session: &mut Session) {
        while !self.is_read {
            let n = match session.peek(id) {
                Ok(ReadState::Data(data)) => {
                    assert!(
                        data.len() <= self.under_way.len(),
                        "{id}: more than written"
                    );
                    let model = self.under_way.iter().take(data.len());
                    assert!(model.eq(data), "{id}: not what was written");
                    data.len()
                }
                Ok(ReadState::Empty) | Err(StreamError::Unknown) => return,
                Ok(ReadState::Finished) => {
                    assert!(self.finishes, "{id}: an end that nobody wrote");
                    let left = self.unsent.len() + self.under_way.len();
                    assert_eq!(left, 0, "{id}: ends too early");
                    self.is_read = true;
                    return;
                }
                Ok(ReadState::Reset(code)) => panic!("{id}: reset with {code}"),
                Err(error) => panic!("{id} cannot be read: {error}"),
            };
            session.consume(clock, id, n);
            self.under_way.drain(..n);
        }
    }
}
