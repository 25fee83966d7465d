//! Observe and assist: the pure gateway, fed from the kernel's queues.
//!
//! One queue for each direction. Packets come as large as hardware takes them, to be cut later; the
//! gateway never changes such a one.

use std::io;

use anyhow::{Context, Result};
use tabane_base::{Duration, Instant};
use tabane_control::GatewayMode;
use tabane_gateway::{Checksum, Config, Gateway, Mode, Side, Survey, Verdict};
use tabane_linux::HostClock;
use tabane_linux::nfqueue::{PacketQueue, QueueVerdict};
use tabane_linux::raw_ip::RawIp;
use tokio::task::yield_now;
use tokio::time::sleep;

use super::{FLOWS_LISTED, report, rules};
use crate::instance::Asked;
use crate::signals::Signals;

/// Packets of one queue before the other's turn.
const TURN: usize = 64;
/// Turns before timers of others, signals and questions: not even a flood of packets keeps them
/// out.
const TURNS: usize = 16;
/// How often a draining gateway looks whether anything is owed.
const LOOK: Duration = Duration::from_millis(50);

/// Flows looked at, for who asks, before the next packets' turn: microseconds.
const SURVEYED: usize = 64;

#[derive(Debug)]
pub(crate) struct Forwarder {
    radio: String,
    mode: GatewayMode,
    gateway: Gateway,
    to_mobile: PacketQueue,
    to_server: PacketQueue,
    raw: RawIp,
    clock: HostClock,
    visible: Asked,
    /// While somebody waits for it.
    survey: Option<Survey>,
    draining: bool,
    /// How long to look out for the next packet before sleeping.
    poll: Duration,
}

impl Forwarder {
    /// Opens queues `first` and `first` + 1 and hangs them into the packet filter.
    pub(crate) fn start(radio: &str, first: u16, config: Config, visible: Asked) -> Result<Self> {
        let queue = |number| {
            PacketQueue::open(number).with_context(|| {
                format!("cannot open queue {number}; another number with --queue, or is this root?")
            })
        };
        let mode = match config.mode {
            Mode::Observe => GatewayMode::Observe,
            Mode::Assist => GatewayMode::Assist,
        };
        let forwarder = Self {
            radio: radio.to_owned(),
            mode,
            gateway: Gateway::new(config),
            to_mobile: queue(first)?,
            to_server: queue(first + 1)?,
            raw: RawIp::open().context("cannot open a raw socket")?,
            clock: HostClock::new(),
            visible,
            survey: None,
            draining: false,
            poll: Duration::ZERO,
        };
        rules::queue(radio, first)?;
        Ok(forwarder)
    }

    /// Stays awake for `span` after each packet.
    pub(crate) fn polling(self, span: Duration) -> Self {
        Self { poll: span, ..self }
    }

    /// Forwards until a signal; then owes nothing any more, or `patience` has passed, or there is
    /// a second signal.
    pub(crate) async fn run(mut self, signals: &Signals, patience: Duration) -> Result<()> {
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
        rules::unqueue(&self.radio)?;
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
                ready = self.to_mobile.readable() => ready?,
                ready = self.to_server.readable() => ready?,
                // The runtime asks the kernel what is ready, and does not wait for it.
                () = yield_now(), if now < awake_until || self.survey.is_some() => {}
                () = sleep(wait.unwrap_or_default()), if wait.is_some() => {}
                arrived = signals.next() => {
                    arrived?;
                    return Ok(());
                }
                () = self.visible.asked(), if self.survey.is_none() => {
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
        self.visible.tell(told);
    }

    /// What waits, both ways in turn, then timers; whether there was any packet.
    fn turn(&mut self) -> io::Result<bool> {
        let mut has_worked = false;
        for _ in 0..TURNS {
            let gateway = &mut self.gateway;
            let now = self.clock.now();
            let down = decide(gateway, now, &mut self.to_mobile, Side::Wired)?;
            let up = decide(gateway, now, &mut self.to_server, Side::Radio)?;
            gateway.handle_timeout(now);
            while let Some(transmit) = gateway.poll_transmit() {
                if let Err(error) = self.raw.send(&transmit.packet) {
                    // As if it were lost on its way: it is repeated.
                    tracing::debug!(%error, "cannot send a packet of our own");
                }
            }
            if down + up == 0 {
                break;
            }
            has_worked = true;
        }
        Ok(has_worked)
    }
}

/// Decides on up to a turn's packets of a queue; returns how many there were.
fn decide(
    gateway: &mut Gateway,
    now: Instant,
    queue: &mut PacketQueue,
    from: Side,
) -> io::Result<usize> {
    for count in 0..TURN {
        let Some(packet) = queue.poll()? else {
            return Ok(count);
        };
        let checksum = if packet.is_checksum_known {
            Checksum::Known
        } else {
            Checksum::Unknown
        };
        let id = packet.id;
        let verdict = gateway.handle_packet(now, from, packet.bytes, checksum);
        match &verdict {
            Verdict::Accept => queue.verdict(id, QueueVerdict::Accept)?,
            Verdict::Drop => queue.verdict(id, QueueVerdict::Drop)?,
            Verdict::Replace(bytes) => queue.verdict(id, QueueVerdict::Replace(bytes))?,
        }
    }
    Ok(TURN)
}
