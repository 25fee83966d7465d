//! A UDP flow of the application at a steady rate, and what becomes of it.
//!
//! As `iperf3 -u` sends: datagrams of one size, evenly spaced, each with its number in front. Owns
//! when each was sent and how it came; sessions are borrowed for each step.

use tabane_base::{Bytes, Duration, Instant, Rate};
use tabane_core::{DatagramOrder, FlowId, Session};

use crate::side::Side;

/// What a flow sends.
#[derive(Clone, Copy, Debug)]
pub struct UdpLoad {
    /// Who sends.
    pub from: Side,
    /// Bytes of one datagram, at least eight.
    pub size: usize,
    /// Of the datagrams' bytes.
    pub rate: Rate,
    /// How they are to be handed out.
    pub order: DatagramOrder,
    /// When the first is sent, or later when there is a session.
    pub starts_at: Instant,
    /// None is sent from here on.
    pub ends_at: Instant,
}

/// A datagram that came.
#[derive(Clone, Copy, Debug)]
struct Arrival {
    number: usize,
    delay: Duration,
    /// All that came before it had been sent before it.
    in_order: bool,
}

/// A flow under way.
#[derive(Debug)]
pub struct Flow {
    id: FlowId,
    load: UdpLoad,
    begun_at: Option<Instant>,
    sent_at: Vec<Instant>,
    arrivals: Vec<Arrival>,
    /// One more than the largest number that came.
    next: usize,
    came: Vec<bool>,
}

impl Flow {
    pub(crate) fn new(id: FlowId, load: UdpLoad) -> Self {
        Self {
            id,
            load,
            begun_at: None,
            sent_at: Vec::new(),
            arrivals: Vec::new(),
            next: 0,
            came: Vec::new(),
        }
    }

    pub(crate) const fn id(&self) -> FlowId {
        self.id
    }

    pub(crate) const fn from(&self) -> Side {
        self.load.from
    }

    /// When the next datagram is due.
    pub(crate) fn sends_at(&self) -> Option<Instant> {
        let sent = Bytes::from(self.sent_at.len() * self.load.size);
        let at = self.begun_at.unwrap_or(self.load.starts_at) + self.load.rate.time_for(sent);
        (at < self.load.ends_at).then_some(at)
    }

    /// Sends what is due; `clock` is the session's time. What it refuses counts as sent.
    pub(crate) fn send(&mut self, (now, clock): (Instant, Instant), session: &mut Session) {
        if !session.is_connected() {
            return;
        }
        self.begun_at.get_or_insert(now);
        while self.sends_at().is_some_and(|at| at <= now) {
            let mut data = vec![0; self.load.size.max(8)];
            data[..8].copy_from_slice(&(self.sent_at.len() as u64).to_be_bytes());
            self.sent_at.push(now);
            self.came.push(false);
            // A full queue loses it, as a full link would.
            let _ = session.send_datagram(clock, self.id, self.load.order, &data);
        }
    }

    /// A datagram of the flow came out at the other end.
    ///
    /// # Panics
    /// When it came before, or was never sent.
    pub(crate) fn receive(&mut self, now: Instant, data: &[u8]) {
        let head = data.first_chunk::<8>().expect("a number in front");
        let number = u64::from_be_bytes(*head) as usize;
        assert!(
            !std::mem::replace(&mut self.came[number], true),
            "datagram {number} of {:?} came twice",
            self.id
        );
        self.arrivals.push(Arrival {
            number,
            delay: now - self.sent_at[number],
            in_order: number >= self.next,
        });
        self.next = self.next.max(number + 1);
    }

    /// What became of the datagrams sent from `from` until `to`.
    #[must_use]
    pub fn outcome(&self, from: Instant, to: Instant, deadline: Duration) -> FlowOutcome {
        let counts = |at: &Instant| (from..to).contains(at);
        let sent = self.sent_at.iter().filter(|at| counts(at)).count();
        let came: Vec<_> = self
            .arrivals
            .iter()
            .filter(|arrival| counts(&self.sent_at[arrival.number]))
            .collect();
        let in_time = |arrival: &&&Arrival| arrival.in_order && arrival.delay <= deadline;
        let mut delays: Vec<_> = came.iter().map(|arrival| arrival.delay).collect();
        delays.sort_unstable();
        let share = |n: usize| n as f64 / sent.max(1) as f64;
        FlowOutcome {
            delivered: share(came.len()),
            in_order: share(came.iter().filter(|arrival| arrival.in_order).count()),
            in_time: share(came.iter().filter(in_time).count()),
            goodput: Rate::of(Bytes::from(came.len() * self.load.size), to - from),
            delay_median: delays.get(delays.len() / 2).copied().unwrap_or_default(),
            delay_p95: delays
                .get(delays.len() * 95 / 100)
                .copied()
                .unwrap_or_default(),
        }
    }
}

/// What became of a flow: shares of what was sent, and the delays of what came.
#[derive(Clone, Copy, Debug)]
pub struct FlowOutcome {
    /// Came at all.
    pub delivered: f64,
    /// Came after nothing that was sent later.
    pub in_order: f64,
    /// Came in order and within the deadline asked for.
    pub in_time: f64,
    /// Bytes of datagrams that came, by the time in which they were sent.
    pub goodput: Rate,
    /// From the application's call to the other application.
    pub delay_median: Duration,
    /// The same, for all but a twentieth.
    pub delay_p95: Duration,
}
