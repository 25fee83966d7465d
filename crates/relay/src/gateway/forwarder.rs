//! Observe and assist: the pure gateway, fed by the kernel.
//!
//! Data for the mobile hosts goes on at once, and we get copies of it: it waits for nobody. What
//! comes from them, and what servers send without data, waits in queues for a verdict. Packets come
//! as large as hardware takes them, to be cut later; the gateway never changes such a one.

use std::io;

use anyhow::{Context, Result};
use tabane_base::Duration;
use tabane_control::GatewayMode;
use tabane_gateway::{Checksum, Config, Gateway, Mode, Side, Survey, Verdict};
use tabane_linux::{
    HostClock,
    nflog::PacketLog,
    nfqueue::{PacketQueue, QueueVerdict},
    raw_ip::RawIp,
    signals::Signals,
};
use tokio::task::yield_now;
use tokio::time::sleep;

use super::{Audience, FLOWS_LISTED, report, rules};

/// Packets of one queue before the other's turn.
const TURN: usize = 64;
/// Turns before timers of others, signals and questions: not even a flood of packets keeps them
/// out.
const TURNS: usize = 16;
/// How often a draining gateway looks whether anything is owed.
const LOOK: Duration = Duration::from_millis(50);

/// Flows looked at, for who asks, before the next packets' turn: microseconds.
const SURVEYED: usize = 64;

/// The pure gateway between the packet filter and its queues.
#[derive(Debug)]
pub struct Forwarder {
    radio: String,
    mode: GatewayMode,
    gateway: Gateway,
    data: PacketLog,
    queues: Queues,
    /// The one that is decided on.
    packet: Vec<u8>,
    raw: RawIp,
    clock: HostClock,
    audience: Audience,
    /// While somebody waits for it.
    survey: Option<Survey>,
    draining: bool,
    /// How long to look out for the next packet before sleeping.
    poll: Duration,
}

/// Packets that wait for a verdict.
#[derive(Debug)]
struct Queues {
    to_mobile: PacketQueue,
    to_server: PacketQueue,
}

impl Queues {
    fn of(&mut self, from: Side) -> &mut PacketQueue {
        match from {
            Side::Wired => &mut self.to_mobile,
            Side::Radio => &mut self.to_server,
        }
    }
}

impl Forwarder {
    /// Opens the log and the queue `first`, and the queue `first` + 1, and hangs them into the
    /// packet filter.
    pub fn start(radio: &str, first: u16, config: Config, audience: Audience) -> Result<Self> {
        let failed = |what: &str, number: u16| {
            format!("cannot open {what} {number}; another number with --queue, or is this root?")
        };
        let queue =
            |number: u16| PacketQueue::open(number).with_context(|| failed("queue", number));
        let mode = match config.mode {
            Mode::Observe => GatewayMode::Observe,
            Mode::Assist => GatewayMode::Assist,
        };
        let forwarder = Self {
            radio: radio.to_owned(),
            mode,
            gateway: Gateway::new(config),
            data: PacketLog::open(first).with_context(|| failed("log group", first))?,
            queues: Queues {
                to_mobile: queue(first)?,
                to_server: queue(first + 1)?,
            },
            packet: Vec::new(),
            raw: RawIp::open(None).context("cannot open a raw socket")?,
            clock: HostClock::new(),
            audience,
            survey: None,
            draining: false,
            poll: Duration::ZERO,
        };
        rules::intercept(radio, first)?;
        Ok(forwarder)
    }

    /// Stays awake for `span` after each packet.
    pub fn polling(self, span: Duration) -> Self {
        Self { poll: span, ..self }
    }

    /// Forwards until a signal; then owes nothing any more, or `patience` has passed, or there is
    /// a second signal.
    pub async fn run(mut self, signals: &Signals, patience: Duration) -> Result<()> {
        let worked = self.forward(signals, None).await;
        if worked.is_ok() {
            self.gateway.drain();
            self.draining = true;
            let owed = self.gateway.owed();
            tracing::info!(
                owed,
                "nothing is acknowledged early any more; waiting for what is owed"
            );
            self.forward(signals, Some(patience)).await?;
        }
        rules::let_pass(&self.radio)?;
        // What was queued before the rules went.
        while self.turn()? {}
        let owed = self.gateway.owed();
        if owed > 0 {
            tracing::warn!(owed, "ended with bytes owed: those flows will stand still");
        }
        worked
    }

    async fn forward(&mut self, signals: &Signals, patience: Option<Duration>) -> Result<()> {
        let end = patience.map(|patience| self.clock.now() + patience);
        let mut awake_until = self.clock.now();
        loop {
            let has_worked = self.turn()?;
            self.survey();
            let now = self.clock.now();
            if has_worked {
                awake_until = now + self.poll;
            }
            if end.is_some_and(|end| now >= end || self.gateway.owed() == 0) {
                return Ok(());
            }
            let due = self.gateway.poll_timeout().map(|at| at.since(now));
            let look = end.map(|_| LOOK);
            let wait = due.into_iter().chain(look).min();
            tokio::select! {
                ready = self.data.readable() => ready?,
                ready = self.queues.to_mobile.readable() => ready?,
                ready = self.queues.to_server.readable() => ready?,
                // The runtime asks the kernel what is ready, and does not wait for it.
                () = yield_now(), if now < awake_until || self.survey.is_some() => {}
                () = sleep(wait.unwrap_or_default()), if wait.is_some() => {}
                arrived = signals.next() => {
                    arrived?;
                    return Ok(());
                }
                () = self.audience.asked(), if self.survey.is_none() => {
                    self.survey = Some(Survey::new(FLOWS_LISTED));
                }
            }
        }
    }

    /// A step towards the answer for who asks, in between packets; after the last one, the answer.
    fn survey(&mut self) {
        let Some(mut survey) = self.survey.take() else {
            return;
        };
        if !self.gateway.survey(&mut survey, SURVEYED) {
            self.survey = Some(survey);
            return;
        }
        let empty = report::empty(&self.radio, self.mode, self.draining);
        let told = report::fill(empty, &self.gateway.snapshot(), &survey.busiest());
        self.audience.tell(told);
    }

    /// What waits, both ways in turn, then timers; whether there was any packet.
    fn turn(&mut self) -> io::Result<bool> {
        let mut has_worked = false;
        for _ in 0..TURNS {
            let count = self.see(TURN)? + self.decide(Side::Wired)? + self.decide(Side::Radio)?;
            self.gateway.handle_timeout(self.clock.now());
            self.flush();
            if count == 0 {
                break;
            }
            has_worked = true;
        }
        Ok(has_worked)
    }

    /// Sends what the gateway says itself.
    fn flush(&mut self) {
        while let Some(transmit) = self.gateway.poll_transmit() {
            if let Err(error) = self.raw.send(&transmit.packet) {
                // As if it were lost on its way: it is repeated.
                tracing::debug!(%error, "cannot send a packet of our own");
            }
        }
    }

    /// Takes note of up to `most` packets with data that went to the mobile hosts; returns how many
    /// there were.
    fn see(&mut self, most: usize) -> io::Result<usize> {
        let now = self.clock.now();
        for count in 0..most {
            let Some(bytes) = self.data.poll()? else {
                return Ok(count);
            };
            self.gateway.handle_copy(now, bytes);
        }
        Ok(most)
    }

    /// Decides on up to a turn's packets that wait, `from` one side; returns how many there were.
    fn decide(&mut self, from: Side) -> io::Result<usize> {
        for count in 0..TURN {
            let Some(packet) = self.queues.of(from).poll()? else {
                return Ok(count);
            };
            let (id, is_known) = (packet.id, packet.is_checksum_known);
            let checksum = if is_known {
                Checksum::Known
            } else {
                Checksum::Unknown
            };
            self.packet.clear();
            self.packet.extend_from_slice(packet.bytes);
            // What it acknowledges or follows went by here before it, and must be known.
            self.see(usize::MAX)?;
            let now = self.clock.now();
            let verdict = self
                .gateway
                .handle_packet(now, from, &self.packet, checksum);
            let verdict = match &verdict {
                Verdict::Accept => QueueVerdict::Accept,
                Verdict::Drop => QueueVerdict::Drop,
                Verdict::Replace(bytes) => QueueVerdict::Replace(bytes),
            };
            // What was said before must not come after: an older window would shut again, and an
            // older acknowledgement count as a duplicate.
            self.flush();
            self.queues.of(from).verdict(id, verdict)?;
        }
        Ok(TURN)
    }
}
