//! What carries a link's packets: UDP, or TLS where UDP does not pass.
//!
//! Pure: owns when another carrier is tried, told what happens and asked with the time. Dialing and
//! paths are for `carriers`.
//!
//! ```text
//!        UDP silent for 0.4 s           TLS path up
//!  Udp ─────────────────────► dialing ─────────────► Tls ──15 s … 5 min──► UDP asked beside it
//!   ▲  ◄─────────────────────────                     ▲                      │
//!   │     UDP answers first                           └──── no answer ───────┤
//!   └────────────────────────────────────────────────────── an answer ───────┘
//! ```

use std::fmt;

use crate::carrier::Proxy;
use tabane_base::Duration;
use tokio::time::Instant;

/// UDP is given so long before TLS is tried beside it: an answer over the slowest usual link takes
/// less, and a dial in vain costs a few packets.
const UDP_PATIENCE: Duration = Duration::from_millis(400);
/// Waits before another dial: first and longest.
const FIRST_DIAL: Duration = Duration::from_secs(2);
const LAST_DIAL: Duration = Duration::from_secs(60);
/// Waits before UDP is asked again where TLS carries: first and longest. A question is one packet,
/// repeated three times.
const FIRST_ASK: Duration = Duration::from_secs(15);
const LAST_ASK: Duration = Duration::from_secs(300);
/// A connection that has lasted for so long is dialed anew at once.
const STEADY: Duration = Duration::from_secs(10);
/// UDP that falls silent again so soon was not back.
const TRUST: Duration = Duration::from_secs(60);

/// What may carry a link's packets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CarrierWish {
    /// Which carriers.
    pub kind: CarrierKind,
    /// By which proxy TLS goes.
    pub proxy: Option<Proxy>,
}

/// Which carriers a link may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CarrierKind {
    /// UDP, and TLS where that does not pass.
    #[default]
    Auto,
    /// UDP alone.
    Udp,
    /// TLS alone.
    Tls,
}

/// What carries a link's packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Carrier {
    /// Datagrams.
    #[default]
    Udp,
    /// A TLS connection.
    Tls,
}

impl fmt::Display for Carrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Udp => "udp",
            Self::Tls => "tls",
        })
    }
}

/// The choice for one link.
#[derive(Debug)]
pub(super) struct Choice {
    kind: CarrierKind,
    carrier: Carrier,
    /// UDP was asked for and has not answered since.
    silent_since: Option<Instant>,
    dial: Dial,
    dial_failures: u32,
    ask_at: Option<Instant>,
    asked_in_vain: u32,
    /// When UDP took over from TLS.
    udp_back_at: Option<Instant>,
    /// When TLS began to carry.
    tls_up_at: Option<Instant>,
    /// What the last dial came to.
    problem: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dial {
    NotBefore(Option<Instant>),
    Underway,
}

impl Choice {
    pub(super) fn new(kind: CarrierKind) -> Self {
        Self {
            kind,
            carrier: Carrier::Udp,
            silent_since: None,
            dial: Dial::NotBefore(None),
            dial_failures: 0,
            ask_at: None,
            asked_in_vain: 0,
            udp_back_at: None,
            tls_up_at: None,
            problem: None,
        }
    }

    pub(super) const fn carrier(&self) -> Carrier {
        self.carrier
    }

    /// In a row, so that another address is tried each time.
    pub(super) const fn dial_failures(&self) -> u32 {
        self.dial_failures
    }

    pub(super) fn uses_udp(&self) -> bool {
        self.kind != CarrierKind::Tls
    }

    /// UDP is asked for an answer.
    pub(super) fn on_udp_asked(&mut self, now: Instant) {
        self.silent_since.get_or_insert(now);
    }

    /// What carries the link is silent: the other one is tried beside it.
    pub(super) fn on_silent(&mut self, now: Instant) {
        match self.carrier {
            Carrier::Udp => {
                self.silent_since.get_or_insert(now);
            }
            Carrier::Tls => self.ask_at = self.ask_at.map(|_| now),
        }
    }

    /// UDP carries.
    pub(super) fn on_udp_up(&mut self, now: Instant) {
        if self.carrier == Carrier::Tls {
            self.udp_back_at = Some(now);
        }
        self.carrier = Carrier::Udp;
        self.silent_since = None;
        self.ask_at = None;
    }

    /// TLS carries.
    pub(super) fn on_tls_up(&mut self, now: Instant) {
        let was_back = self.udp_back_at.take();
        if was_back.is_none_or(|at| now - at > TRUST) {
            self.asked_in_vain = 0;
        }
        self.carrier = Carrier::Tls;
        self.silent_since = None;
        self.dial = Dial::NotBefore(None);
        self.tls_up_at = Some(now);
        self.problem = None;
        self.ask_at = (self.kind == CarrierKind::Auto).then(|| now + self.ask_wait());
    }

    /// TLS carries nothing any more: both are tried at once.
    pub(super) fn on_tls_gone(&mut self, now: Instant) {
        self.carrier = Carrier::Udp;
        self.silent_since = Some(now.checked_sub(UDP_PATIENCE).unwrap_or(now));
        self.ask_at = None;
        if self.tls_up_at.take().is_some_and(|at| now - at > STEADY) {
            self.dial_failures = 0;
            self.dial = Dial::NotBefore(None);
        } else {
            self.on_dial_failed(
                now,
                Some("its connections end soon after they began".to_owned()),
            );
        }
    }

    /// UDP is asked beside TLS.
    pub(super) fn on_ask(&mut self) {
        self.ask_at = None;
    }

    /// It did not answer.
    pub(super) fn on_ask_failed(&mut self, now: Instant) {
        self.asked_in_vain += 1;
        self.ask_at = Some(now + self.ask_wait());
    }

    fn ask_wait(&self) -> Duration {
        (FIRST_ASK * 2_u32.pow(self.asked_in_vain.min(8))).min(LAST_ASK)
    }

    pub(super) fn on_dial(&mut self) {
        self.dial = Dial::Underway;
    }

    /// There is no connection, or it did not lead to the relay.
    pub(super) fn on_dial_failed(&mut self, now: Instant, problem: Option<String>) {
        let wait = FIRST_DIAL * 2_u32.pow(self.dial_failures.min(8));
        self.dial = Dial::NotBefore(Some(now + wait.min(LAST_DIAL)));
        self.dial_failures += 1;
        self.problem = problem.or_else(|| self.problem.take());
    }

    /// Nothing is under way any more.
    pub(super) fn on_dial_dropped(&mut self) {
        self.dial = Dial::NotBefore(None);
    }

    /// The session is gone.
    pub(super) fn on_session_ended(&mut self) {
        self.silent_since = None;
        self.ask_at = None;
        if self.dial != Dial::Underway {
            self.dial = Dial::NotBefore(None);
        }
    }

    /// When TLS is to be dialed.
    pub(super) fn dial_at(&self) -> Option<Instant> {
        let Dial::NotBefore(earliest) = self.dial else {
            return None;
        };
        let wanted = match (self.kind, self.carrier) {
            (CarrierKind::Udp, _) | (_, Carrier::Tls) => return None,
            (CarrierKind::Tls, Carrier::Udp) => self.silent_since?,
            (CarrierKind::Auto, Carrier::Udp) => self.silent_since? + UDP_PATIENCE,
        };
        Some(earliest.map_or(wanted, |earliest| wanted.max(earliest)))
    }

    /// When UDP is to be asked beside TLS.
    pub(super) const fn ask_at(&self) -> Option<Instant> {
        self.ask_at
    }

    /// Why the link is carried as it is, where that is not as usual.
    pub(super) fn why(&self, now: Instant) -> Option<String> {
        match (self.carrier, self.kind) {
            (Carrier::Tls, CarrierKind::Tls) => Some("the policy says so".to_owned()),
            (Carrier::Tls, _) => Some("UDP gets no answer here".to_owned()),
            (Carrier::Udp, _) => {
                let silent = self.silent_since?;
                let is_late = now > silent + UDP_PATIENCE;
                let problem = self.problem.as_ref().filter(|_| is_late)?;
                Some(match self.kind {
                    CarrierKind::Tls => format!("no TLS: {problem}"),
                    CarrierKind::Auto | CarrierKind::Udp => {
                        format!("no UDP, and no TLS either: {problem}")
                    }
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn tls_is_dialed_once_udp_is_late_and_never_while_it_answers() {
        let now = Instant::now();
        let mut choice = Choice::new(CarrierKind::Auto);
        assert_eq!(choice.dial_at(), None);
        choice.on_udp_asked(now);
        choice.on_udp_asked(now + SECOND);
        assert_eq!(choice.dial_at(), Some(now + UDP_PATIENCE));
        choice.on_udp_up(now);
        assert_eq!(choice.dial_at(), None);
        choice.on_silent(now + SECOND);
        choice.on_dial();
        assert_eq!(choice.dial_at(), None);
        choice.on_dial_failed(now + SECOND, Some("HTTP 407".to_owned()));
        assert_eq!(choice.dial_at(), Some(now + SECOND + FIRST_DIAL));
        let why = choice.why(now + 2 * SECOND).unwrap();
        assert!(why.contains("407"), "{why}");
    }

    #[test]
    fn udp_is_asked_again_ever_more_rarely() {
        let now = Instant::now();
        let mut choice = Choice::new(CarrierKind::Auto);
        choice.on_udp_asked(now);
        choice.on_tls_up(now);
        assert_eq!(choice.dial_at(), None);
        let mut at = choice.ask_at().unwrap();
        assert_eq!(at, now + FIRST_ASK);
        let mut waits = Vec::new();
        for _ in 0..8 {
            choice.on_ask();
            assert_eq!(choice.ask_at(), None);
            choice.on_ask_failed(at);
            let next = choice.ask_at().unwrap();
            waits.push((next - at).as_secs());
            at = next;
        }
        assert_eq!(waits, [30, 60, 120, 240, 300, 300, 300, 300]);
        // UDP comes and goes: what was learnt holds.
        choice.on_udp_up(at);
        choice.on_silent(at + SECOND);
        choice.on_tls_up(at + 2 * SECOND);
        assert_eq!(choice.ask_at(), Some(at + 2 * SECOND + LAST_ASK));
        // It was back for good.
        choice.on_udp_up(at);
        choice.on_tls_up(at + 2 * TRUST);
        assert_eq!(choice.ask_at(), Some(at + 2 * TRUST + FIRST_ASK));
    }

    #[test]
    fn a_connection_that_ends_is_dialed_again_while_udp_is_asked() {
        let now = Instant::now();
        let mut choice = Choice::new(CarrierKind::Auto);
        choice.on_tls_up(now);
        choice.on_tls_gone(now + 2 * STEADY);
        assert_eq!(choice.carrier(), Carrier::Udp);
        assert_eq!(choice.dial_at(), Some(now + 2 * STEADY));
        // Not those that end at once, as behind a firewall that cuts them after some bytes.
        let mut waits = Vec::new();
        for _ in 0..3 {
            choice.on_dial();
            choice.on_tls_up(now);
            choice.on_tls_gone(now + SECOND);
            waits.push(choice.dial_at().unwrap() - (now + SECOND));
        }
        assert_eq!(waits, [FIRST_DIAL, 2 * FIRST_DIAL, 4 * FIRST_DIAL]);
    }

    #[test]
    fn the_policy_has_the_last_word() {
        let now = Instant::now();
        let mut udp = Choice::new(CarrierKind::Udp);
        udp.on_udp_asked(now);
        assert_eq!(udp.dial_at(), None);
        let mut tls = Choice::new(CarrierKind::Tls);
        assert!(!tls.uses_udp());
        tls.on_udp_asked(now);
        assert_eq!(tls.dial_at(), Some(now));
        tls.on_tls_up(now);
        assert_eq!(tls.ask_at(), None);
    }
}
