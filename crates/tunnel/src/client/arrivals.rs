//! Who waits for visitors, and visitors on their way to them.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use tabane_core::StreamId;
use tokio::sync::mpsc;

use crate::engine::SessionId;
use crate::stream::Stream;

/// A visitor on its way to whoever has the exposure.
pub(super) struct Arrival {
    pub(super) stream: Stream,
    pub(super) from: SocketAddr,
    pub(super) at: SocketAddr,
}

/// By the session and the stream that asked for them.
#[derive(Default)]
pub(super) struct Arrivals(BTreeMap<(u64, StreamId), mpsc::Sender<Arrival>>);

impl Arrivals {
    /// From here on, whoever comes because of this stream is told to `waiting`.
    pub(super) fn await_by(&mut self, asked_by: &Stream, waiting: mpsc::Sender<Arrival>) {
        self.0.insert(place(asked_by), waiting);
    }

    /// Nobody waits any more.
    pub(super) fn forget(&mut self, asked_by: &Stream) {
        self.0.remove(&place(asked_by));
    }

    /// Tells of a visitor; false where nobody waits, or too many are waited for.
    pub(super) fn tell(&self, asked_by: StreamId, arrival: Arrival) -> bool {
        let place = (arrival.stream.session().serial(), asked_by);
        let waiting = self.0.get(&place);
        waiting.is_some_and(|waiting| waiting.try_send(arrival).is_ok())
    }

    /// How many wait in a session.
    pub(super) fn count(&self, session: SessionId) -> usize {
        let keys = self.0.keys();
        keys.filter(|(serial, _)| *serial == session.serial())
            .count()
    }
}

fn place(stream: &Stream) -> (u64, StreamId) {
    (stream.session().serial(), stream.id())
}
