//! What the server sends to addresses, beside what came from there: whether it could be had to
//! flood somebody who has not asked for it.

use tabane_base::{Bytes, Instant};

/// So little sent to somebody who has not asked for it is of no use to anybody.
const WORTHLESS: Bytes = Bytes::new(600);

/// UDP payload exchanged between the server and one client address.
#[derive(Clone, Copy, Debug, Default)]
pub struct Exchanged {
    /// Arrived at the server from there.
    pub to_server: Bytes,
    /// Sent by the server to there.
    pub from_server: Bytes,
    /// The most that `from_server` was, per byte of `to_server`, until something came from there
    /// that was sent after the server had been heard there: no earlier can the address be proved.
    pub amplification: f64,
    /// The same from a few hundred bytes on.
    pub amplification_of_much: f64,
    heard_at: Option<Instant>,
    may_be_proved: bool,
}

impl Exchanged {
    /// The server sends so much there.
    pub(crate) fn on_sent(&mut self, size: Bytes) {
        self.from_server += size;
        if self.may_be_proved {
            return;
        }
        let ratio = self.from_server.get() as f64 / self.to_server.get() as f64;
        self.amplification = self.amplification.max(ratio);
        if self.from_server > WORTHLESS {
            self.amplification_of_much = self.amplification_of_much.max(ratio);
        }
    }

    /// Something of the server's has arrived there.
    pub(crate) fn on_heard(&mut self, now: Instant) {
        self.heard_at.get_or_insert(now);
    }

    /// So much has come from there, which was sent then.
    pub(crate) fn on_received(&mut self, sent_at: Instant, size: Bytes) {
        self.may_be_proved |= self.heard_at.is_some_and(|heard_at| sent_at >= heard_at);
        self.to_server += size;
    }
}
