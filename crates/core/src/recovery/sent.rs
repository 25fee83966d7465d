//! What left in one packet, for acknowledging or repeating it.
//!
//! Owns the frames of a packet on its way as they are kept, and what is known of the packet. Its
//! fate is [`Recovery`](super::Recovery)'s business.

use tabane_base::Instant;

use crate::class::ClassId;
use crate::delivery::SentState;
use crate::id::{PathId, StreamId};

/// What a packet carried, for acknowledging or repeating it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SentFrame {
    Stream {
        id: StreamId,
        offset: u64,
        len: u32,
        fin: bool,
    },
    ResetStream(StreamId),
    StopSending(StreamId),
    MaxData,
    MaxStreamData(StreamId),
    MaxStreams,
    Hello,
    Admitted,
    GoAway,
    PathAbandon(PathId),
    PathPolicy(PathId),
    Class(ClassId),
    StreamClass(StreamId),
    StreamHold(StreamId),
    AckFrequency,
    MtuProbe(u16),
    /// A packet of a train, by its place in it.
    Probe(u8),
    Ping,
}

impl SentFrame {
    /// Both as one, where `next` begins where the data of this one ends.
    pub(crate) fn joined(self, next: Self) -> Option<Self> {
        match (self, next) {
            (
                Self::Stream {
                    id,
                    offset,
                    len,
                    fin: false,
                },
                Self::Stream {
                    id: next_id,
                    offset: next_offset,
                    len: next_len,
                    fin,
                },
            ) if id == next_id && offset + u64::from(len) == next_offset => Some(Self::Stream {
                id,
                offset,
                len: len.checked_add(next_len)?,
                fin,
            }),
            _ => None,
        }
    }
}

/// The frames of one packet; the usual single one costs no allocation.
#[derive(Clone, Debug, Default)]
pub(crate) struct SentFrames {
    first: Option<SentFrame>,
    rest: Vec<SentFrame>,
}

impl SentFrames {
    pub(crate) fn push(&mut self, frame: SentFrame) {
        if self.first.is_none() {
            self.first = Some(frame);
        } else {
            self.rest.push(frame);
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = SentFrame> + '_ {
        self.first.into_iter().chain(self.rest.iter().copied())
    }
}

/// A packet on its way.
#[derive(Clone, Debug)]
pub(crate) struct SentPacket {
    pub(crate) sent_at: Instant,
    pub(crate) size: u16,
    pub(crate) ack_eliciting: bool,
    /// Counts against the window: everything but pure acknowledgements.
    pub(crate) in_flight: bool,
    /// Copies of its stream data travel on another path as well.
    pub(crate) reinjected: bool,
    pub(crate) key_generation: u32,
    pub(crate) delivery: SentState,
    pub(crate) frames: SentFrames,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_that_stands_together_is_joined_and_nothing_else() {
        let data = |id: u64, offset, len, fin| SentFrame::Stream {
            id: StreamId(id),
            offset,
            len,
            fin,
        };
        let first = data(4, 100, 50, false);
        assert_eq!(
            first.joined(data(4, 150, 7, true)),
            Some(data(4, 100, 57, true))
        );
        for other in [
            data(4, 151, 7, false),
            data(4, 100, 50, false),
            data(8, 150, 7, false),
            SentFrame::Ping,
        ] {
            assert_eq!(first.joined(other), None);
        }
        assert_eq!(data(4, 100, 50, true).joined(data(4, 150, 0, true)), None);
        assert_eq!(
            data(4, 0, u32::MAX, false).joined(data(4, u32::MAX.into(), 1, false)),
            None
        );
    }
}
