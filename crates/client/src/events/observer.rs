//! What happened, seen from one state of an instance to the next.
//!
//! Pure: the time is an argument. A link that is silent for a moment has not gone, so that what is
//! told is so still after a while; what is over before that is not told at all. What the user
//! wished (a pause) is no news.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::Serialize;
use tabane_control::{Link, LinkBudget, LinkState, SessionState, State};
use tabane_policy::Trigger;

/// For how long a link has to carry nothing: handovers of mobile links are over by then.
const LINK_PATIENCE: Duration = Duration::from_secs(2);
/// For how long the relay has to be away: another one has taken its place by then.
const RELAY_PATIENCE: Duration = Duration::from_secs(3);
/// Of a budget, in hundredths: low from here on.
const LOW: u64 = 80;

/// Something that happened, with all that is known of it. Its JSON is what commands and web hooks
/// get; what does not concern it is left out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Alert {
    /// What kind of thing.
    #[serde(serialize_with = "by_name")]
    pub event: Trigger,
    /// In words.
    pub text: String,
    /// When: milliseconds since 1970.
    pub at_unix_ms: u64,
    /// Who tells of it: the name that `--instance` takes.
    pub instance: String,
    /// The link that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
    /// Why, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The relay that is used, by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relay: Option<String>,
    /// What carries the link's packets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub carrier: Option<String>,
    /// What did before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub carrier_before: Option<String>,
    /// What the link may carry in a period.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget_bytes: Option<u64>,
    /// What it has carried in this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_bytes: Option<u64>,
    /// The day on which the next one begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub renews: Option<String>,
}

/// Remembers what was told.
#[derive(Debug, Default)]
pub(super) struct Observer {
    links: BTreeMap<String, Seen>,
    relay: Standing,
}

/// Of one link.
#[derive(Debug, Default)]
struct Seen {
    standing: Standing,
    /// What carried its packets last.
    carrier: Option<String>,
    budget: Option<(LinkBudget, Level)>,
}

/// Whether something is there, and since when it is not.
#[derive(Clone, Copy, Debug, Default)]
enum Standing {
    /// Nobody was told anything yet.
    #[default]
    Unknown,
    Here,
    /// It may be gone.
    Missing {
        since: Instant,
        was_here: bool,
    },
    Gone,
}

/// How much of a budget is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Fine,
    Low,
    Spent,
}

/// What changed of a [`Standing`].
#[derive(PartialEq, Eq)]
enum Turn {
    Came,
    Returned,
    Went,
}

impl Observer {
    /// What has happened since the last look.
    pub(super) fn observe(&mut self, now: Instant, state: &State) -> Vec<Alert> {
        let mut found = Vec::new();
        for link in &state.links {
            let seen = self.links.entry(link.name.clone()).or_default();
            seen.observe(now, state, link, &mut found);
        }
        for (name, seen) in &mut self.links {
            if !state.links.iter().any(|link| link.name == *name)
                && seen.standing.see(now, false, LINK_PATIENCE) == Some(Turn::Went)
            {
                found.push(link_down(state, name, "not there any more"));
            }
        }
        if state.instance.relay.is_some() {
            self.observe_relay(now, state, &mut found);
        }
        found
    }

    fn observe_relay(&mut self, now: Instant, state: &State, found: &mut Vec<Alert>) {
        let mut sessions = state.sessions.iter();
        let is_here = sessions.any(|session| {
            let mut paths = session.paths.iter();
            session.straight_to.is_none()
                && session.state == SessionState::Connected
                && paths.any(|path| path.state == LinkState::Active)
        });
        let relay = state.instance.relay.as_deref().unwrap_or_default();
        let (event, text) = match self.relay.see(now, is_here, RELAY_PATIENCE) {
            Some(Turn::Went) => (Trigger::RelayLost, "is not reached over any link"),
            Some(Turn::Returned) => (Trigger::RelayBack, "is reached again"),
            // That all is as it should be at the start is no news.
            Some(Turn::Came) | None => return,
        };
        found.push(alert(state, event, format!("relay {relay} {text}")));
    }
}

impl Seen {
    fn observe(&mut self, now: Instant, state: &State, link: &Link, found: &mut Vec<Alert>) {
        let name = &link.name;
        match is_left_alone(link) {
            true => self.standing = Standing::Unknown,
            false => {
                let is_here = link.state == LinkState::Active;
                match self.standing.see(now, is_here, LINK_PATIENCE) {
                    Some(Turn::Came | Turn::Returned) => {
                        let text = format!("link {name} carries data");
                        let up = alert(state, Trigger::LinkUp, text);
                        let carrier = link.carrier.clone();
                        found.push(Alert { carrier, ..up }.of(name));
                    }
                    Some(Turn::Went) => found.push(link_down(state, name, &why_down(link))),
                    None => {}
                }
            }
        }
        self.observe_carrier(state, link, found);
        self.observe_budget(state, link, found);
    }

    fn observe_carrier(&mut self, state: &State, link: &Link, found: &mut Vec<Alert>) {
        let Some(carrier) = &link.carrier else { return };
        let before = self.carrier.replace(carrier.clone());
        let Some(before) = before.filter(|before| before != carrier) else {
            return;
        };
        let text = format!(
            "link {} is carried by {carrier}, no more by {before}",
            link.name
        );
        let changed = alert(state, Trigger::CarrierChanged, text).of(&link.name);
        found.push(Alert {
            carrier: Some(carrier.clone()),
            carrier_before: Some(before),
            reason: link.carrier_reason.clone(),
            ..changed
        });
    }

    fn observe_budget(&mut self, state: &State, link: &Link, found: &mut Vec<Alert>) {
        let Some(budget) = &link.budget else {
            self.budget = None;
            return;
        };
        let level = Level::of(budget);
        let before = self.budget.replace((budget.clone(), level));
        let told = match &before {
            // What was so when we came, somebody has been told already.
            None => level,
            Some((old, level)) => match is_same(old, budget) {
                true => *level,
                false => Level::Fine,
            },
        };
        if level <= told {
            return;
        }
        let (event, how) = match level {
            Level::Spent => (Trigger::BudgetSpent, "is spent"),
            Level::Low | Level::Fine => (Trigger::BudgetLow, "is used by 80 %"),
        };
        let text = format!("the budget of link {} {how}", link.name);
        let turned = alert(state, event, text).of(&link.name);
        found.push(Alert {
            budget_bytes: Some(budget.amount_bytes),
            used_bytes: Some(budget.used_bytes),
            renews: Some(budget.renews.clone()),
            ..turned
        });
    }
}

impl Standing {
    /// It is there `now`, or is not; it counts as gone when it is not for `patience`.
    fn see(&mut self, now: Instant, is_here: bool, patience: Duration) -> Option<Turn> {
        let (next, turn) = match (*self, is_here) {
            (Self::Unknown, true) => (Self::Here, Some(Turn::Came)),
            (Self::Gone, true) => (Self::Here, Some(Turn::Returned)),
            (Self::Here, true) => (Self::Here, None),
            (Self::Missing { was_here, .. }, true) => {
                (Self::Here, (!was_here).then_some(Turn::Came))
            }
            (Self::Unknown | Self::Here, false) => {
                let was_here = matches!(self, Self::Here);
                let since = now;
                (Self::Missing { since, was_here }, None)
            }
            (Self::Missing { since, .. }, false)
                if now.saturating_duration_since(since) >= patience =>
            {
                (Self::Gone, Some(Turn::Went))
            }
            (same, false) => (same, None),
        };
        *self = next;
        turn
    }
}

impl Level {
    const fn of(budget: &LinkBudget) -> Self {
        let used = budget.used_bytes.saturating_mul(100);
        if budget.is_spent() {
            Self::Spent
        } else if used >= budget.amount_bytes.saturating_mul(LOW) {
            Self::Low
        } else {
            Self::Fine
        }
    }
}

impl Alert {
    fn of(self, link: &str) -> Self {
        Self {
            link: Some(link.to_owned()),
            ..self
        }
    }
}

/// The same period of the same budget.
fn is_same(a: &LinkBudget, b: &LinkBudget) -> bool {
    a.amount_bytes == b.amount_bytes && a.renews == b.renews
}

/// By the user's wish, or since its budget is spent, which has an event of its own.
fn is_left_alone(link: &Link) -> bool {
    let is_spent = link.budget.as_ref().is_some_and(LinkBudget::is_spent);
    link.paused || link.state == LinkState::Unused && is_spent
}

fn why_down(link: &Link) -> String {
    let known = match link.state {
        LinkState::Silent => "nothing comes back over it",
        LinkState::Opening => "the relay has not answered over it yet",
        LinkState::Active | LinkState::Down | LinkState::Paused | LinkState::Unused => {
            "it cannot be used"
        }
    };
    link.problem.clone().unwrap_or_else(|| known.to_owned())
}

fn link_down(state: &State, link: &str, why: &str) -> Alert {
    let text = format!("link {link} carries nothing: {why}");
    let down = alert(state, Trigger::LinkDown, text).of(link);
    Alert {
        reason: Some(why.to_owned()),
        ..down
    }
}

fn alert(state: &State, event: Trigger, text: String) -> Alert {
    Alert {
        event,
        text,
        at_unix_ms: state.at_unix_ms,
        instance: state.instance.name.clone(),
        link: None,
        reason: None,
        relay: state.instance.relay.clone(),
        carrier: None,
        carrier_before: None,
        budget_bytes: None,
        used_bytes: None,
        renews: None,
    }
}

fn by_name<S: serde::Serializer>(event: &Trigger, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(event.name())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// An instance that is well, with two links, by the control API's own example.
    pub(crate) fn example() -> State {
        let text = include_str!("../../../control/src/example.json");
        let mut state: State = serde_json::from_str(text).expect("the API's example");
        state.links.reverse();
        for link in &mut state.links {
            link.state = LinkState::Active;
            link.problem = None;
            link.budget = None;
        }
        state.sessions[0].state = SessionState::Connected;
        for path in &mut state.sessions[0].paths {
            path.state = LinkState::Active;
        }
        state
    }

    /// Looks every half second, `seconds` long; what was found, as `event link`.
    struct Watched {
        observer: Observer,
        now: Instant,
        state: State,
    }

    impl Watched {
        fn new() -> Self {
            let mut watched = Self {
                observer: Observer::default(),
                now: Instant::now(),
                state: example(),
            };
            assert_eq!(watched.look(1.0).len(), watched.state.links.len());
            watched
        }

        fn look(&mut self, seconds: f64) -> Vec<Alert> {
            let mut found = Vec::new();
            for _ in 0..(seconds * 2.0) as u32 {
                self.now += Duration::from_millis(500);
                found.extend(self.observer.observe(self.now, &self.state));
            }
            found
        }

        fn names(&mut self, seconds: f64) -> Vec<String> {
            let found = self.look(seconds).into_iter();
            let name = |it: Alert| format!("{} {}", it.event, it.link.unwrap_or_default());
            found.map(|it| name(it).trim().to_owned()).collect()
        }
    }

    fn nothing() -> Vec<String> {
        Vec::new()
    }

    #[test]
    fn a_link_that_is_silent_for_a_moment_is_not_told_and_one_that_stays_so_is_once() {
        let mut watched = Watched::new();
        let silent = |watched: &mut Watched, state| watched.state.links[1].state = state;
        silent(&mut watched, LinkState::Silent);
        assert_eq!(watched.names(1.5), nothing());
        silent(&mut watched, LinkState::Active);
        assert_eq!(watched.names(5.0), nothing());
        silent(&mut watched, LinkState::Silent);
        let down = watched.look(60.0);
        assert_eq!(down.len(), 1, "{down:?}");
        assert_eq!(down[0].event, Trigger::LinkDown);
        assert_eq!(
            down[0].reason.as_deref(),
            Some("nothing comes back over it")
        );
        silent(&mut watched, LinkState::Active);
        assert_eq!(watched.names(5.0), ["link-up usb0"]);
        watched.state.links.remove(1);
        assert_eq!(watched.names(5.0), ["link-down usb0"]);
    }

    #[test]
    fn what_the_user_wished_is_no_news() {
        let mut watched = Watched::new();
        watched.state.links[1].paused = true;
        watched.state.links[1].state = LinkState::Paused;
        assert_eq!(watched.names(10.0), nothing());
        watched.state.links[1].paused = false;
        watched.state.links[1].state = LinkState::Active;
        assert_eq!(watched.names(1.0), ["link-up usb0"]);
    }

    #[test]
    fn a_budget_is_told_at_80_percent_and_when_spent_once_a_period() {
        let mut watched = Watched::new();
        let used = |watched: &mut Watched, used_bytes, renews: &str| {
            watched.state.links[1].budget = Some(LinkBudget {
                amount_bytes: 1_000,
                used_bytes,
                renews: renews.to_owned(),
            });
            watched.names(1.0)
        };
        assert_eq!(used(&mut watched, 790, "2026-12-01"), nothing());
        assert_eq!(used(&mut watched, 799, "2026-12-01"), nothing());
        assert_eq!(used(&mut watched, 800, "2026-12-01"), ["budget-low usb0"]);
        assert_eq!(used(&mut watched, 900, "2026-12-01"), nothing());
        watched.state.links[1].state = LinkState::Unused;
        // And not as a link that is down as well.
        assert_eq!(
            used(&mut watched, 1_000, "2026-12-01"),
            ["budget-spent usb0"]
        );
        assert_eq!(watched.names(10.0), nothing());
        watched.state.links[1].state = LinkState::Active;
        assert_eq!(used(&mut watched, 0, "2027-01-01"), ["link-up usb0"]);
        assert_eq!(used(&mut watched, 850, "2027-01-01"), ["budget-low usb0"]);
        // One that comes to an instance that has begun is told by those that were there.
        let mut later = Watched::new();
        assert_eq!(used(&mut later, 900, "2026-12-01"), nothing());
    }

    #[test]
    fn the_relay_is_lost_after_a_while_and_back_at_once() {
        let mut watched = Watched::new();
        let sessions = std::mem::take(&mut watched.state.sessions);
        assert_eq!(watched.names(2.5), nothing());
        watched.state.sessions = sessions.clone();
        assert_eq!(watched.names(5.0), nothing());
        watched.state.sessions.clear();
        assert_eq!(watched.names(20.0), ["relay-lost"]);
        watched.state.sessions = sessions;
        assert_eq!(watched.names(5.0), ["relay-back"]);
        for path in &mut watched.state.sessions[0].paths {
            path.state = LinkState::Silent;
        }
        assert_eq!(watched.names(20.0), ["relay-lost"]);
    }

    #[test]
    fn a_relay_that_never_answered_is_lost_and_nobody_misses_one_that_was_never_wanted() {
        let mut watched = Watched::new();
        watched.observer = Observer::default();
        watched.state.links.clear();
        watched.state.sessions.clear();
        assert_eq!(watched.names(20.0), ["relay-lost"]);
        watched.observer = Observer::default();
        watched.state.instance.relay = None;
        assert_eq!(watched.names(20.0), nothing());
    }

    #[test]
    fn a_carrier_that_changes_is_told_with_its_reason() {
        let mut watched = Watched::new();
        let mut carried = |carrier: Option<&str>| {
            let link = &mut watched.state.links[0];
            link.carrier = carrier.map(str::to_owned);
            link.carrier_reason = Some("UDP is not answered".to_owned());
            watched.look(1.0)
        };
        carried(Some("udp"));
        assert!(carried(None).is_empty());
        let found = carried(Some("tls"));
        assert_eq!(found.len(), 1);
        let text = serde_json::to_value(&found[0]).expect("plain values");
        assert_eq!(text["event"], "carrier-changed");
        assert_eq!(
            (&text["carrier"], &text["carrier_before"]),
            (&"tls".into(), &"udp".into())
        );
        assert_eq!(text["reason"], "UDP is not answered");
        assert!(text.get("budget_bytes").is_none());
    }
}
