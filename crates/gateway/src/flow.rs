//! One connection through the gateway, from the end of its handshake.
//!
//! The server's data goes on to the mobile host, copies are kept, and the server is told of it at
//! once in the mobile host's name; the mobile host's own acknowledgements free copies and open the
//! window. Invariants: no byte is acknowledged to the server that the mobile host has not and that
//! the copies have not; what the server was told never goes back, neither edge.
//!
//! `downstream` decides on the server's packets, `upstream` on the mobile host's, `repair` on what
//! is sent again, `voice` writes what is said in another's name.

mod downstream;
mod repair;
mod upstream;
mod voice;

use std::collections::VecDeque;

use tabane_base::{Duration, Instant};

use crate::allowance::Allowance;
use crate::config::Config;
use crate::copies::Copies;
use crate::counters::{Bypass, Counters};
use crate::key::Key;
use crate::meter::Meter;
use crate::opening::Agreed;
use crate::packet::Packet;
use crate::segment::Manner;
use crate::seq::Seq;
use crate::window::Window;
use crate::{Side, Transmit};

/// How long the newest segment waits for a follower or for the mobile host before it is
/// acknowledged too. Something of the server's stays outstanding as long as it sends, else Nagle's
/// algorithm and the avoidance of silly windows would have nothing to go by; no sender's timer is
/// as short.
const HOLD: Duration = Duration::from_millis(40);
/// How long a flow is remembered after its end, for what is still on its way.
const LINGER: Duration = Duration::from_secs(10);

/// What the gateway does with a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stance {
    /// Everything passes as it is; only measured.
    Watching,
    /// Acknowledged early.
    Assisting,
    /// No longer acknowledged early, but owed bytes that were.
    Draining,
}

/// What a flow needs of the gateway during one call.
#[derive(Debug)]
pub(crate) struct Surroundings<'a> {
    pub(crate) now: Instant,
    pub(crate) config: &'a Config,
    pub(crate) counters: &'a mut Counters,
    /// Bytes of copies that may be added for its host.
    pub(crate) room: usize,
    pub(crate) out: &'a mut VecDeque<Transmit>,
}

/// One end, as its packets show it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    /// One past the last byte it sent.
    pub(crate) next: Seq,
    /// Its newest timestamp, and the newest it echoed.
    pub(crate) stamps: (u32, u32),
    /// The window field of its last segment.
    pub(crate) window: u16,
    pub(crate) manner: Manner,
    /// Where its FIN was.
    pub(crate) fin: Option<Seq>,
}

#[derive(Debug)]
pub(crate) struct Flow {
    key: Key,
    stance: Stance,
    /// Why it is not assisted, where it might have been.
    bypass: Option<Bypass>,
    agreed: Agreed,
    mobile: End,
    server: End,
    copies: Copies,
    window: Window,
    allowance: Allowance,
    /// Bytes of copies at most.
    copies_most: u32,
    /// What the server was told to have arrived.
    acked: Seq,
    /// The timestamp that goes with it.
    echo: u32,
    /// What the server said to have received from the mobile host.
    upstream_acked: Seq,
    /// Sequence number of the segment that last set the window (RFC 9293 §3.10.7.4, SND.WL1).
    window_from: Seq,
    /// The mobile host reports congestion marks; up to which number they have been answered.
    ece: bool,
    ece_answered: Option<Seq>,
    /// The server was stopped, and hears again that it may go on when nothing is owed any more: the
    /// first word may be lost, or overtaken by the one that stopped it.
    stopped: bool,
    /// The server asked something that only the mobile host can answer: its next word goes on.
    asked: bool,
    duplicates: u32,
    /// What reached the mobile host a second time, and what asked it something that was answered
    /// here: it will say so, and that is no sign of a loss.
    echoes: u32,
    /// Losses below were answered by a smaller allowance.
    recovery: Option<Seq>,
    /// After our timer ran out: where the first copy sent again ends, and up to where others were
    /// sent that may be lost too.
    resending: Option<(Seq, Seq)>,
    hold_until: Option<Instant>,
    /// When our retransmission timer was started.
    timer_from: Instant,
    backoff: u32,
    /// When a silence towards the mobile host began that may end the flow.
    closing_at: Option<Instant>,
    reset_by: Option<Side>,
    seen_at: Instant,
    meter: Meter,
}

/// What becomes of a flow when its time has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Fate {
    #[default]
    Lives,
    /// Nothing is owed, or it ended.
    Forgotten,
    /// The mobile host is gone; both ends have been told.
    Reset,
}

impl Flow {
    pub(crate) fn new(
        now: Instant,
        key: Key,
        agreed: Agreed,
        stance: Stance,
        config: &Config,
    ) -> Self {
        let base = agreed.server.first;
        let most = u32::try_from(config.copies_per_flow.get()).unwrap_or(u32::MAX);
        let end = |greeting: &crate::opening::Greeting| End {
            next: greeting.first,
            stamps: greeting.stamps,
            window: greeting.window,
            manner: greeting.manner,
            fin: None,
        };
        let mut meter = Meter::default();
        for (trip, sample) in [
            (&mut meter.radio, agreed.radio),
            (&mut meter.wired, agreed.wired),
        ] {
            if let Some(sample) = sample {
                trip.sample(now, sample);
            }
        }
        Self {
            key,
            stance,
            bypass: None,
            mobile: end(&agreed.mobile),
            server: end(&agreed.server),
            copies: Copies::new(base),
            window: Window::new(agreed.shift, base + u32::from(agreed.mobile.window)),
            allowance: Allowance::new(most, !agreed.sack),
            copies_most: most,
            acked: base,
            echo: agreed.server.stamps.0,
            upstream_acked: agreed.mobile.first,
            window_from: agreed.mobile.first,
            ece: false,
            ece_answered: None,
            stopped: false,
            asked: true,
            duplicates: 0,
            echoes: 0,
            recovery: None,
            resending: None,
            hold_until: None,
            timer_from: now,
            backoff: 0,
            closing_at: None,
            reset_by: None,
            seen_at: now,
            meter,
            agreed,
        }
    }

    pub(crate) fn key(&self) -> Key {
        self.key
    }

    pub(crate) fn stance(&self) -> Stance {
        self.stance
    }

    pub(crate) fn bypass(&self) -> Option<Bypass> {
        self.bypass
    }

    pub(crate) fn meter(&self) -> &Meter {
        &self.meter
    }

    pub(crate) fn agreed(&self) -> &Agreed {
        &self.agreed
    }

    /// Bytes of memory that its copies occupy.
    pub(crate) fn held(&self) -> usize {
        self.copies.memory()
    }

    /// Bytes acknowledged to the server that the mobile host has not acknowledged.
    pub(crate) fn owed(&self) -> u32 {
        self.acked.beyond(self.copies.base())
    }

    /// Both ends have said their last, and a new connection may have the same addresses.
    pub(crate) fn is_over(&self) -> bool {
        self.closing_at.is_some()
    }

    /// The window is shut towards the server.
    pub(crate) fn is_shut(&self) -> bool {
        self.stance == Stance::Assisting && self.window.told().beyond(self.acked) < self.segment()
    }

    /// Acknowledges nothing early any more.
    pub(crate) fn stop_assisting(&mut self, why: Option<Bypass>) {
        if self.stance == Stance::Assisting {
            self.stance = Stance::Draining;
            self.bypass = why;
            self.hold_until = None;
            self.settle();
        }
    }

    /// A draining flow that owes nothing is only watched.
    fn settle(&mut self) {
        if self.stance == Stance::Draining && self.owed() == 0 {
            self.stance = Stance::Watching;
        }
    }

    /// Payload of a full segment to the mobile host.
    fn segment(&self) -> u32 {
        u32::from(self.agreed.segment)
    }

    /// Beyond this the server may not be told to send.
    fn limit(&self) -> Seq {
        // However little is allowed, the window can be opened for it.
        let least = self.window.slack() + 2 * self.segment();
        let most = self.copies.base() + self.allowance.bytes().max(least);
        self.window.edge().earlier(most)
    }

    /// Notes what every packet tells of its sender.
    fn note(&mut self, now: Instant, from: Side, packet: &Packet<'_>) {
        self.seen_at = now;
        let end = match from {
            Side::Wired => &mut self.server,
            Side::Radio => &mut self.mobile,
        };
        if let Some((value, echo)) = packet.options().timestamps
            && value.wrapping_sub(end.stamps.0) as i32 >= 0
        {
            end.stamps = (value, echo);
        }
        end.window = packet.window();
        end.manner = Manner::of(packet);
        if self.reset_by == Some(from) {
            self.reset_by = None;
            self.closing_at = None;
        }
    }

    fn on_reset(&mut self, now: Instant, from: Side) {
        self.reset_by = Some(from);
        self.closing_at = Some(now + LINGER);
    }

    /// Starts the end once both directions are closed and acknowledged.
    fn look_for_the_end(&mut self, now: Instant) {
        let done = |fin: Option<Seq>, acked: Seq| fin.is_some_and(|fin| acked.is_after(fin));
        if self.closing_at.is_none()
            && done(self.server.fin, self.copies.base())
            && done(self.mobile.fin, self.upstream_acked)
        {
            self.closing_at = Some(now + LINGER);
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) has something to do.
    pub(crate) fn poll_timeout(&self, config: &Config) -> Instant {
        let end = match self.closing_at {
            Some(at) => at,
            None if self.owed() > 0 => self.meter.progress_at() + config.give_up,
            None => self.seen_at + config.idle,
        };
        let hold = self.hold_until.unwrap_or(Instant::NEVER);
        let repair = self.repair_at().unwrap_or(Instant::NEVER);
        end.min(hold).min(repair)
    }

    pub(crate) fn handle_timeout(&mut self, around: &mut Surroundings<'_>) -> Fate {
        let now = around.now;
        if self.hold_until.is_some_and(|at| at <= now) {
            self.hold_until = None;
            self.acknowledge_all(around);
        }
        if self.repair_at().is_some_and(|at| at <= now) {
            self.on_repair_timeout(around);
        }
        let is_due = |at: Instant| at <= now;
        if self.closing_at.is_some_and(is_due) {
            return Fate::Forgotten;
        }
        if self.closing_at.is_some() {
            return Fate::Lives;
        }
        if self.owed() > 0 {
            if !is_due(self.meter.progress_at() + around.config.give_up) {
                return Fate::Lives;
            }
            if self.bypass == Some(Bypass::OneWay) {
                // The mobile host's words go another way, to a server that hears them.
                return Fate::Forgotten;
            }
            self.reset_both(around);
            return Fate::Reset;
        }
        if is_due(self.seen_at + around.config.idle) {
            return Fate::Forgotten;
        }
        Fate::Lives
    }
}
