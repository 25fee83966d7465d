//! Observe and assist: the pure gateway, fed by the kernel.
//!
//! Packets to the mobile hosts go on at once, and we get copies of them: nothing waits for this
//! program. Those from them, acknowledgements for the most part, wait in a queue for a verdict.
//! Packets come as large as hardware takes them, to be cut later; the gateway never changes such a
//! one.

use std::io;

use anyhow::{Context, Result};
use tabane_base::Duration;
use tabane_gateway::{Checksum, Config, Gateway, Mode, Side, Verdict};
use tabane_linux::HostClock;
use tabane_linux::nflog::PacketLog;
use tabane_linux::nfqueue::{PacketQueue, QueueVerdict};
use tabane_linux::raw_ip::RawIp;
use tokio::net::UnixListener;
use tokio::task::yield_now;
use tokio::time::sleep;

use super::{Report, door, rules};
use crate::signals::Signals;

/// Packets of one queue before the other's turn.
const TURN: usize = 64;
/// Turns before timers of others, signals and questions: not even a flood of packets keeps them
/// out.
const TURNS: usize = 16;
/// How often a draining gateway looks whether anything is owed.
const LOOK: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(crate) struct Forwarder {
    radio: String,
    mode: &'static str,
    gateway: Gateway,
    to_mobile: PacketLog,
    to_server: PacketQueue,
    /// The one from a mobile host that is decided on.
    packet: Vec<u8>,
    raw: RawIp,
    clock: HostClock,
    door: UnixListener,
    draining: bool,
    /// How long to look out for the next packet before sleeping.
    poll: Duration,
}

impl Forwarder {
    /// Opens the log and the queue of that `number` and hangs them into the packet filter.
    pub(crate) fn start(radio: &str, number: u16, config: Config) -> Result<Self> {
        let failed = |what: &str| {
            format!("cannot open {what} {number}; another number with --queue, or is this root?")
        };
        let mode = match config.mode {
            Mode::Observe => "observe",
            Mode::Assist => "assist",
        };
        let forwarder = Self {
            radio: radio.to_owned(),
            mode,
            gateway: Gateway::new(config),
            to_mobile: PacketLog::open(number).with_context(|| failed("log group"))?,
            to_server: PacketQueue::open(number).with_context(|| failed("queue"))?,
            packet: Vec::new(),
            raw: RawIp::open().context("cannot open a raw socket")?,
            clock: HostClock::new(),
            door: door::open(radio)?,
            draining: false,
            poll: Duration::ZERO,
        };
        rules::intercept(radio, number)?;
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
        rules::let_pass()?;
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
                () = yield_now(), if now < awake_until => {}
                () = sleep(wait.unwrap_or_default()), if wait.is_some() => {}
                arrived = signals.next() => {
                    arrived?;
                    return Ok(());
                }
                asked = self.door.accept() => {
                    let (stream, _) = asked?;
                    let report = self.report();
                    if let Err(error) = door::answer(stream, &report) {
                        tracing::debug!(%error, "cannot answer who asks");
                    }
                }
            }
        }
    }

    fn report(&self) -> Report {
        Report::of(
            &self.radio,
            self.mode,
            self.draining,
            &self.gateway.snapshot(),
        )
    }

    /// What waits, both ways in turn, then timers; whether there was any packet.
    fn turn(&mut self) -> io::Result<bool> {
        let mut has_worked = false;
        for _ in 0..TURNS {
            let count = self.see(TURN)? + self.decide()?;
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

    /// Takes note of up to `most` packets that went to the mobile hosts; returns how many there
    /// were.
    fn see(&mut self, most: usize) -> io::Result<usize> {
        let now = self.clock.now();
        for count in 0..most {
            let Some(bytes) = self.to_mobile.poll()? else {
                return Ok(count);
            };
            // It has gone on, whatever is said of it.
            let _ = self
                .gateway
                .handle_packet(now, Side::Wired, bytes, Checksum::Unsaid);
        }
        Ok(most)
    }

    /// Decides on up to a turn's packets from the mobile hosts; returns how many there were.
    fn decide(&mut self) -> io::Result<usize> {
        for count in 0..TURN {
            let Some(packet) = self.to_server.poll()? else {
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
            // What it acknowledges went by here before it, and must be known.
            self.see(usize::MAX)?;
            let now = self.clock.now();
            let verdict = self
                .gateway
                .handle_packet(now, Side::Radio, &self.packet, checksum);
            let verdict = match &verdict {
                Verdict::Accept => QueueVerdict::Accept,
                Verdict::Drop => QueueVerdict::Drop,
                Verdict::Replace(bytes) => QueueVerdict::Replace(bytes),
            };
            // What was said before must not come after: an older window would shut again, and an
            // older acknowledgement count as a duplicate.
            self.flush();
            self.to_server.verdict(id, verdict)?;
        }
        Ok(TURN)
    }
}
