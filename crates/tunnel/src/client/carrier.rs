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
//!
//! UDP that answers and yet loses much, second after second, is suspected of being policed: TLS is
//! dialed as well, both carry the link side by side for a few seconds, and what carries far more is
//! kept. The same comparison decides whether UDP is taken back later.
//!
//! A link may begin with what its network taught before ([`CarrierMemory`]): TLS is dialed at once
//! then, beside the question by UDP.

mod memory;
mod policed;
mod recall;
mod why;
mod wish;

use super::comparison::{
    Comparison, LOOK_ALONE, LOOK_BESIDE, Sample, Suspicion, Verdict, Watch, is_loaded,
};
use tabane_base::Duration;
use tokio::time::Instant;

use policed::Policed;

pub use memory::{CarrierMemory, CarrierMemoryError, PolicedRates};
pub use wish::{Carrier, CarrierKind, CarrierWish};

/// UDP is given so long before TLS is tried beside it: an answer over the slowest usual link takes
/// less, and a dial in vain costs a few packets.
pub(super) const UDP_PATIENCE: Duration = Duration::from_millis(400);
/// Waits before another dial: first and longest.
const FIRST_DIAL: Duration = Duration::from_secs(2);
const LAST_DIAL: Duration = Duration::from_secs(60);
/// The longest where a connection has lasted before: nothing else tells that the network is back.
const LAST_REDIAL: Duration = Duration::from_secs(8);
/// Waits before other ports are asked once more, like those of dials.
const FIRST_PORTS: Duration = Duration::from_secs(2);
const LAST_PORTS: Duration = Duration::from_secs(60);
/// Waits before UDP is asked again where TLS carries, and the relay's own port where another one
/// does: first and longest. A question is one packet, repeated three times.
const FIRST_ASK: Duration = Duration::from_secs(15);
const LAST_ASK: Duration = Duration::from_secs(300);
/// A connection that has lasted for so long is dialed anew at once.
const STEADY: Duration = Duration::from_secs(10);
/// UDP that falls silent again so soon was not back.
const TRUST: Duration = Duration::from_secs(60);

/// Waits before UDP that is policed is tried again: first and longest. It costs some seconds of the
/// link, and policers stay.
const FIRST_POLICED_ASK: Duration = Duration::from_secs(120);
const LAST_POLICED_ASK: Duration = Duration::from_secs(3_600);
/// Where there is nothing to compare it by, it is looked again so much later.
const LOAD_WAIT: Duration = Duration::from_secs(5);
/// Waits before UDP that was suspected in vain is suspected again: first and longest.
const FIRST_DOUBT: Duration = Duration::from_secs(30);
const LAST_DOUBT: Duration = Duration::from_secs(3_600);

/// The choice for one link.
#[derive(Debug)]
pub(super) struct Choice {
    kind: CarrierKind,
    carrier: Carrier,
    /// UDP was asked for and has not answered since.
    silent_since: Option<Instant>,
    /// When other ports of the relay's are to be asked beside the silent one.
    ports_at: Option<Instant>,
    ports_in_vain: u32,
    dial: Dial,
    dial_failures: u32,
    /// The latest connection did not end soon after it began.
    has_lasted: bool,
    ask_at: Option<Instant>,
    asked_in_vain: u32,
    /// When UDP at the relay's own port took over from anything else.
    back_at: Option<Instant>,
    /// When TLS began to carry.
    tls_up_at: Option<Instant>,
    /// What the last dial came to.
    problem: Option<String>,
    /// UDP by itself.
    watch: Watch,
    look_at: Option<Instant>,
    /// UDP loses much: TLS is wanted beside it.
    suspected: Option<(Instant, Suspicion)>,
    doubt_at: Option<Instant>,
    suspected_in_vain: u32,
    comparison: Option<Comparison>,
    policed: Option<Policed>,
    /// TLS that carries a link with policed UDP, at the last look for load.
    loaded: Option<Sample>,
    /// What the network taught before, until it is seen anew.
    remembered: Option<CarrierMemory>,
    /// What it has taught this link.
    learnt: Option<CarrierMemory>,
}

/// What a look at both carriers came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// The link goes by the other one from here on.
    Over,
    /// It stays, and the other one is given up.
    Stay,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dial {
    NotBefore(Option<Instant>),
    Underway,
}

impl Choice {
    pub(super) fn new(kind: CarrierKind, remembered: Option<CarrierMemory>) -> Self {
        let mut choice = Self {
            kind,
            carrier: Carrier::Udp,
            silent_since: None,
            ports_at: None,
            ports_in_vain: 0,
            dial: Dial::NotBefore(None),
            dial_failures: 0,
            has_lasted: false,
            ask_at: None,
            asked_in_vain: 0,
            back_at: None,
            tls_up_at: None,
            problem: None,
            watch: Watch::default(),
            look_at: None,
            suspected: None,
            doubt_at: None,
            suspected_in_vain: 0,
            comparison: None,
            policed: None,
            loaded: None,
            remembered: None,
            learnt: None,
        };
        if let Some(memory) = remembered {
            choice.recall(memory);
        }
        choice
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
        if self.silent_since.is_none() {
            self.silent_since = Some(now);
            self.ports_at = self.uses_udp().then(|| now + UDP_PATIENCE);
        }
    }

    /// When other ports are to be asked.
    pub(super) const fn ports_at(&self) -> Option<Instant> {
        self.ports_at
    }

    /// They are.
    pub(super) fn on_ports_asked(&mut self, now: Instant) {
        let wait = FIRST_PORTS * 2_u32.pow(self.ports_in_vain.min(8));
        self.ports_at = Some(now + wait.min(LAST_PORTS));
        self.ports_in_vain += 1;
    }

    /// What carries the link is silent: the other one is tried beside it.
    pub(super) fn on_silent(&mut self, now: Instant) {
        match self.carrier {
            Carrier::Udp => self.on_udp_asked(now),
            Carrier::Tls => self.ask_at = self.ask_at.map(|_| now),
        }
    }

    /// UDP carries, to the relay's own port or to another.
    pub(super) fn on_udp_up(&mut self, now: Instant, port: Option<u16>) {
        match port {
            None if self.is_elsewhere() => self.back_at = Some(now),
            None => {}
            Some(_) => self.on_leaving(now),
        }
        let again = now + self.ask_wait();
        self.ask_at = port.map(|_| self.ask_at.unwrap_or(again));
        self.carrier = Carrier::Udp;
        self.silent_since = None;
        self.ports_at = None;
        self.ports_in_vain = 0;
        if self.kind == CarrierKind::Auto && self.comparison.is_none() {
            self.look_at = Some(now + LOOK_ALONE);
            // As it was before.
            let again = self.policed.map(|policed| (now, policed.suspicion));
            self.suspected = self.suspected.or(again);
        }
        if self.policed.is_none() {
            self.learnt = Some(port.map_or(CarrierMemory::Usual, CarrierMemory::Port));
        }
    }

    /// Neither UDP nor the relay's own port carries.
    fn is_elsewhere(&self) -> bool {
        self.carrier == Carrier::Tls || matches!(self.learnt, Some(CarrierMemory::Port(_)))
    }

    /// The link goes by something else than UDP to the relay's own port.
    fn on_leaving(&mut self, now: Instant) {
        let was_back = self.back_at.take();
        if !self.is_elsewhere() && was_back.is_none_or(|at| now - at > TRUST) {
            self.asked_in_vain = 0;
        }
    }

    /// TLS carries.
    pub(super) fn on_tls_up(&mut self, now: Instant) {
        self.on_leaving(now);
        self.carrier = Carrier::Tls;
        self.silent_since = None;
        self.ports_at = None;
        self.dial = Dial::NotBefore(None);
        self.tls_up_at = Some(now);
        self.problem = None;
        self.look_at = None;
        self.suspected = None;
        self.comparison = None;
        self.loaded = None;
        self.ask_at = (self.kind == CarrierKind::Auto).then(|| now + self.ask_wait());
        let policed = self.policed.map(|it| CarrierMemory::Policed(it.rates()));
        self.learnt = Some(policed.unwrap_or(CarrierMemory::Silent));
    }

    /// TLS carries nothing any more: both are tried at once.
    pub(super) fn on_tls_gone(&mut self, now: Instant) {
        self.carrier = Carrier::Udp;
        self.silent_since = Some(now);
        self.ask_at = None;
        self.comparison = None;
        self.look_at = None;
        self.has_lasted = self.tls_up_at.take().is_some_and(|at| now - at > STEADY);
        if self.has_lasted {
            self.dial_failures = 0;
            self.dial = Dial::NotBefore(None);
        } else {
            self.on_dial_failed(
                now,
                Some("its connections end soon after they began".to_owned()),
            );
        }
    }

    /// UDP, or the relay's own port, is asked beside what carries.
    pub(super) fn on_ask(&mut self) {
        self.ask_at = None;
    }

    /// Whether it is, and has not answered.
    pub(super) fn is_asking(&self) -> bool {
        self.ask_at.is_none() && self.is_elsewhere()
    }

    /// It did not answer.
    pub(super) fn on_ask_failed(&mut self, now: Instant) {
        self.asked_in_vain += 1;
        self.remembered = None;
        if self.carrier == Carrier::Tls {
            self.comparison = None;
            self.look_at = None;
        }
        self.ask_at = Some(now + self.ask_wait());
    }

    fn ask_wait(&self) -> Duration {
        let (first, last) = match self.policed {
            None => (FIRST_ASK, LAST_ASK),
            Some(_) => (FIRST_POLICED_ASK, LAST_POLICED_ASK),
        };
        (first * 2_u32.pow(self.asked_in_vain.min(8))).min(last)
    }

    /// Whether UDP may be asked now that it is time to: where it is policed only load shows whether
    /// that is over, and it is put off until there is some.
    pub(super) fn may_ask(&mut self, now: Instant, tls: Option<Sample>) -> bool {
        if self.policed.is_none() {
            return true;
        }
        let before = std::mem::replace(&mut self.loaded, tls);
        let is_silent = tls.is_none_or(|tls| !tls.is_active);
        let both = before.zip(tls);
        let is_loaded = both.is_some_and(|(before, now)| is_loaded(&before, &now));
        let may = is_silent || is_loaded;
        if !may {
            self.ask_at = Some(now + LOAD_WAIT);
        }
        may
    }

    /// UDP loses much, and TLS is wanted or compared with it.
    pub(super) const fn is_suspected(&self) -> bool {
        self.suspected.is_some()
    }

    pub(super) const fn is_comparing(&self) -> bool {
        self.comparison.is_some()
    }

    /// The other carrier's path is up beside the one in use: whether both are compared before the
    /// link goes over.
    pub(super) fn on_beside(&mut self, now: Instant) -> bool {
        let suspicion = match self.carrier {
            // What is known to be policed is left at once.
            Carrier::Udp if self.silent_since.is_none() && self.policed.is_none() => {
                self.suspected.map(|it| it.1)
            }
            Carrier::Udp => None,
            Carrier::Tls => self.policed.map(|policed| policed.suspicion),
        };
        let is_back = self.carrier == Carrier::Tls;
        self.comparison = suspicion.map(|it| Comparison::new(now, it, is_back));
        if self.is_comparing() {
            self.look_at = Some(now);
        }
        self.is_comparing()
    }

    /// When the carriers are to be looked at.
    pub(super) const fn look_at(&self) -> Option<Instant> {
        self.look_at
    }

    /// A look at the path in use, and the one beside it.
    pub(super) fn on_look(
        &mut self,
        now: Instant,
        used: Option<Sample>,
        beside: Option<Sample>,
    ) -> Option<Change> {
        let Some(comparison) = &mut self.comparison else {
            self.look_at = Some(now + LOOK_ALONE);
            self.watch(now, used);
            return None;
        };
        self.look_at = Some(now + LOOK_BESIDE);
        let (used, beside) = used.zip(beside)?;
        let verdict = match self.carrier {
            Carrier::Udp => comparison.add(used, beside),
            Carrier::Tls => comparison.add(beside, used),
        };
        self.comparison.take_if(|_| verdict.is_some());
        Some(self.on_verdict(now, verdict?))
    }

    fn watch(&mut self, now: Instant, udp: Option<Sample>) {
        let found = udp.and_then(|udp| self.watch.add(udp));
        let is_doubted = self.doubt_at.is_some_and(|at| now < at);
        if self.suspected.is_none() && !is_doubted {
            self.suspected = found.map(|suspicion| (now, suspicion));
        }
    }

    fn on_verdict(&mut self, now: Instant, verdict: Verdict) -> Change {
        let suspected = self.suspected.take().map(|it| it.1);
        let suspicion = suspected.or_else(|| self.policed.map(|it| it.suspicion));
        match (verdict, self.carrier) {
            (Verdict::TlsCarriesMore { tls }, carrier) => {
                self.policed = suspicion.map(|suspicion| Policed { suspicion, tls });
                match carrier {
                    Carrier::Udp => Change::Over,
                    Carrier::Tls => {
                        self.on_ask_failed(now);
                        Change::Stay
                    }
                }
            }
            (Verdict::UdpWillDo, Carrier::Udp) => {
                self.on_suspected_in_vain(now);
                Change::Stay
            }
            (Verdict::UdpWillDo, Carrier::Tls) => {
                self.policed = None;
                Change::Over
            }
        }
    }

    /// Nothing better was found.
    fn on_suspected_in_vain(&mut self, now: Instant) {
        let wait = FIRST_DOUBT * 2_u32.pow(self.suspected_in_vain.min(8));
        self.doubt_at = Some(now + wait.min(LAST_DOUBT));
        self.suspected_in_vain += 1;
        self.suspected = None;
        self.comparison = None;
        self.policed = None;
        self.watch = Watch::default();
    }

    pub(super) fn on_dial(&mut self) {
        self.dial = Dial::Underway;
    }

    /// There is no connection, or it did not lead to the relay.
    pub(super) fn on_dial_failed(&mut self, now: Instant, problem: Option<String>) {
        let wait = FIRST_DIAL * 2_u32.pow(self.dial_failures.min(8));
        let longest = match self.has_lasted {
            true => LAST_REDIAL,
            false => LAST_DIAL,
        };
        self.dial = Dial::NotBefore(Some(now + wait.min(longest)));
        self.dial_failures += 1;
        if self.is_suspected() {
            self.on_suspected_in_vain(now);
        }
        self.problem = problem.or_else(|| self.problem.take());
    }

    /// Nothing is under way any more.
    pub(super) fn on_dial_dropped(&mut self) {
        self.dial = Dial::NotBefore(None);
    }

    /// The session is gone.
    pub(super) fn on_session_ended(&mut self) {
        self.silent_since = None;
        self.ports_at = None;
        self.ports_in_vain = 0;
        self.ask_at = None;
        self.look_at = None;
        self.suspected = None;
        self.comparison = None;
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
            (CarrierKind::Auto, Carrier::Udp) => {
                let expected = self.learnt.or(self.remembered);
                let patience = match expected.is_some_and(CarrierMemory::is_tls) {
                    true => Duration::ZERO,
                    false => UDP_PATIENCE,
                };
                let silent = self.silent_since.map(|since| since + patience);
                let suspected = self.suspected.filter(|_| !self.is_comparing());
                silent.into_iter().chain(suspected.map(|it| it.0)).min()?
            }
        };
        Some(earliest.map_or(wanted, |earliest| wanted.max(earliest)))
    }

    /// When UDP is to be asked beside TLS, or the relay's own port beside another.
    pub(super) const fn ask_at(&self) -> Option<Instant> {
        self.ask_at
    }
}

#[cfg(test)]
mod tests;
