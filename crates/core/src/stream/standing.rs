//! How streams of a class stand, counted.
//!
//! Owns the numbers of those that a session asks for whenever it looks whether anything may leave:
//! however many streams a peer has opened, nobody looks through them. What a stream says of itself
//! is its sending half's.

use super::Stream;
use crate::class::ByClass;
use crate::memory_pool::take_off;

/// How one stream stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Standing {
    /// It waits for acknowledgements alone, or for credit.
    pub(super) is_draining: bool,
    /// It may send something without more credit of the session's.
    pub(super) needs_no_credit: bool,
}

/// How many of a class stand so.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) draining: usize,
    pub(super) need_no_credit: usize,
}

impl Stream {
    /// Counts it anew, once its sending half may have changed.
    pub(super) fn recount(&mut self, counts: &mut ByClass<Counts>) {
        self.stand(self.send.standing(), counts);
    }

    /// It leaves its class, or is no more.
    pub(super) fn uncount(&mut self, counts: &mut ByClass<Counts>) {
        self.stand(Standing::default(), counts);
    }

    fn stand(&mut self, now: Standing, counts: &mut ByClass<Counts>) {
        let before = std::mem::replace(&mut self.standing, now);
        if before == now {
            return;
        }
        let counts = counts.get_mut(self.class);
        for (count, before, now) in [
            (&mut counts.draining, before.is_draining, now.is_draining),
            (
                &mut counts.need_no_credit,
                before.needs_no_credit,
                now.needs_no_credit,
            ),
        ] {
            *count += usize::from(now);
            take_off(count, usize::from(before));
        }
    }
}

#[cfg(test)]
mod tests {
    use tabane_base::Bytes;

    use crate::class::ClassId;
    use crate::id::StreamId;
    use crate::memory_pool::{MemoryPool, Part, SessionPool};
    use crate::parameters::Parameters;
    use crate::recovery::{SentFrame, SentFrames};
    use crate::stream::Streams;
    use crate::stream::sending::Place;

    /// So many streams with something to send, for which the session has no credit.
    fn without_credit(streams: u64) -> Streams {
        let own = Parameters::default();
        let peer = Parameters {
            streams,
            session_credit: Bytes::ZERO,
            stream_credit: Bytes::mega(1),
            ..Parameters::default()
        };
        let memory = (Bytes::mega(1), Part::default());
        let pool = SessionPool::new(MemoryPool::default());
        let mut all = Streams::new(false, &own, memory, Bytes::mega(1), pool);
        all.on_parameters(&peer);
        all.set_send_limit(Bytes::mega(1));
        for _ in 0..streams {
            let id = all.open().expect("granted");
            assert_eq!(all.write(id, b"hello"), Ok(5));
        }
        all
    }

    /// What a thousand questions take whether anything may leave.
    #[expect(clippy::disallowed_methods, reason = "the work is what is measured")]
    fn asked(streams: &Streams) -> std::time::Duration {
        let since = std::time::Instant::now();
        for _ in 0..1_000 {
            assert!(!std::hint::black_box(streams).has_data(ClassId::ORDINARY));
        }
        since.elapsed()
    }

    /// Fills a packet: how much there is in it, in bytes.
    fn filled(streams: &mut Streams) -> usize {
        let mut out = Vec::new();
        let (place, mut sent) = (Place::default(), SentFrames::default());
        streams.fill_data(ClassId::ORDINARY, &mut out, 1_200, place, &mut sent);
        out.len()
    }

    /// A hostile client grants a byte at a time, or says of one packet after another that it was
    /// lost.
    #[test]
    fn streams_without_credit_are_not_looked_through_for_each_packet() {
        const STREAMS: u64 = 4_096;
        const PACKETS: u64 = 1_000;
        let mut streams = without_credit(STREAMS);
        for credit in 1..=PACKETS {
            streams.on_max_data(credit);
            assert!(filled(&mut streams) > 0);
        }
        let of_credit = std::mem::take(&mut streams.looked_at);
        assert!(of_credit < 2 * (STREAMS + PACKETS) as usize, "{of_credit}");
        for _ in 0..PACKETS {
            streams.on_lost(SentFrame::Stream {
                id: StreamId(1),
                offset: 0,
                len: 1,
                fin: false,
            });
            assert!(filled(&mut streams) > 0);
        }
        let of_losses = streams.looked_at;
        assert!(of_losses <= 4 * PACKETS as usize, "{of_losses}");
        // Whoever waited for credit has its turn.
        streams.on_max_data(5 * STREAMS);
        while filled(&mut streams) > 0 {}
        assert_eq!(streams.sent, 5 * STREAMS);
        assert_eq!(streams.pending(ClassId::ORDINARY).len(), 0);
    }

    #[test]
    fn streams_without_credit_are_not_looked_through_whether_one_may_send() {
        let (few, many) = (without_credit(1), without_credit(4_096));
        let rounds = (0..20).map(|_| (asked(&few), asked(&many)));
        let least = rounds.reduce(|least, next| (least.0.min(next.0), least.1.min(next.1)));
        let (one, all) = least.expect("twenty");
        println!("1,000 questions: {one:?} of one stream, {all:?} of 4,096");
        assert!(all < 10 * one.max(std::time::Duration::from_micros(1)));
    }
}
