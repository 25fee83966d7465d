//! What the screen shows and what keys do. No terminal, no clock.

use std::collections::{BTreeMap, VecDeque};

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use tabane_control::{
    Gateway, Kind, Link, LinkChange, LinkState, Path, Session, SessionState, State, Traffic,
    key_label,
};

/// Samples kept per row: two minutes, and more than any screen is wide.
const HISTORY: usize = 240;
/// A little less than an instance's interval.
const MIN_STEP_MS: u64 = 400;
/// A step of + and -.
const WEIGHT_STEPS: f64 = 10.0;

/// What the user wants.
#[derive(Debug, PartialEq)]
pub(super) enum Action {
    Quit,
    Change(String, LinkChange),
}

/// In which order rows are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sort {
    /// As the instance has them.
    #[default]
    Given,
    Name,
    Rate,
    Rtt,
    Loss,
}

/// Rates of the last samples, oldest first.
#[derive(Debug, Default)]
pub(super) struct History {
    pub(super) received_bps: VecDeque<u64>,
    pub(super) sent_bps: VecDeque<u64>,
}

/// A line of the table: a client's link, a relay's session, or a gateway as a whole.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) state: &'static str,
    pub(super) is_active: bool,
    pub(super) traffic: Traffic,
    pub(super) rtt_ms: Option<f64>,
    pub(super) queue_ms: Option<f64>,
    pub(super) share: Option<f64>,
    pub(super) weight: Option<f64>,
    pub(super) paused: bool,
}

#[derive(Debug, Default)]
pub(super) struct App {
    pub(super) state: Option<State>,
    /// Why nothing comes any more.
    pub(super) lost: Option<String>,
    /// What to tell about the last key.
    pub(super) message: Option<String>,
    pub(super) history: BTreeMap<String, History>,
    pub(super) sort: Sort,
    pub(super) is_help_open: bool,
    /// When the newest sample of the history was taken.
    sampled_at_ms: u64,
    /// The row that keys are about, by name, so that sorting does not change it.
    selected: Option<String>,
}

impl App {
    pub(super) fn handle_state(&mut self, state: State) {
        let is_other = self
            .state
            .as_ref()
            .is_none_or(|old| old.instance.started_at_unix_ms != state.instance.started_at_unix_ms);
        if is_other {
            self.history.clear();
            self.message = None;
        }
        self.lost = None;
        let at = state.at_unix_ms;
        self.state = Some(state);
        let rows = self.rows();
        self.history
            .retain(|name, _| rows.iter().any(|row| row.name == *name));
        // What is told between two samples would stretch the time axis.
        if at.abs_diff(self.sampled_at_ms) < MIN_STEP_MS && !self.history.is_empty() {
            return;
        }
        self.sampled_at_ms = at;
        for row in &rows {
            let history = self.history.entry(row.name.clone()).or_default();
            push(&mut history.received_bps, row.traffic.received_bps);
            push(&mut history.sent_bps, row.traffic.sent_bps);
        }
    }

    pub(super) fn handle_lost(&mut self, why: String) {
        self.lost = Some(why);
    }

    pub(super) fn handle_answer(&mut self, answer: Result<(), String>) {
        self.message = answer.err();
    }

    pub(super) fn handle_key(&mut self, key: KeyEvent) -> Option<Action> {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        if self.is_help_open {
            self.is_help_open = false;
            let quits = key.code == KeyCode::Char('c') && is_control;
            return quits.then_some(Action::Quit);
        }
        match key.code {
            KeyCode::Char('c') if is_control => return Some(Action::Quit),
            KeyCode::Char('q') | KeyCode::Esc => return Some(Action::Quit),
            KeyCode::Char('?' | 'h') => self.is_help_open = true,
            KeyCode::Char('s') => self.sort = self.sort.next(),
            KeyCode::Up | KeyCode::Char('k') => self.select(-1),
            KeyCode::Down | KeyCode::Char('j') => self.select(1),
            KeyCode::Char('p') => {
                return self.change(|link| LinkChange {
                    paused: Some(!link.paused),
                    weight: None,
                });
            }
            KeyCode::Char('+' | '=') => return self.change_weight(1.0),
            KeyCode::Char('-' | '_') => return self.change_weight(-1.0),
            _ => {}
        }
        None
    }

    /// The rows in the order that they are shown.
    pub(super) fn rows(&self) -> Vec<Row> {
        let Some(state) = &self.state else {
            return Vec::new();
        };
        let mut rows: Vec<Row> = match state.instance.kind {
            Kind::Relay => state.sessions.iter().map(of_session).collect(),
            Kind::Gateway => state
                .gateway
                .iter()
                .map(|it| of_gateway(it, state))
                .collect(),
            Kind::Run
            | Kind::Proxy
            | Kind::Up
            | Kind::Web
            | Kind::Get
            | Kind::Sctp
            | Kind::Expose => state.links.iter().map(of_link).collect(),
        };
        let rate = |row: &Row| {
            row.traffic
                .sent_bps
                .saturating_add(row.traffic.received_bps)
        };
        let worst =
            |a: Option<f64>, b: Option<f64>| b.unwrap_or(-1.0).total_cmp(&a.unwrap_or(-1.0));
        match self.sort {
            Sort::Given => {}
            Sort::Name => rows.sort_by(|a, b| a.name.cmp(&b.name)),
            Sort::Rate => rows.sort_by_key(|row| std::cmp::Reverse(rate(row))),
            Sort::Rtt => rows.sort_by(|a, b| worst(a.rtt_ms, b.rtt_ms)),
            Sort::Loss => rows.sort_by(|a, b| worst(a.traffic.loss, b.traffic.loss)),
        }
        rows
    }

    /// Which of the rows keys are about: the first, where the one that was is gone.
    pub(super) fn selected(&self, rows: &[Row]) -> usize {
        let name = self.selected.as_deref();
        let at = rows.iter().position(|row| Some(&row.name[..]) == name);
        at.unwrap_or(0)
    }

    fn select(&mut self, step: isize) {
        let rows = self.rows();
        let last = rows.len().saturating_sub(1);
        let at = self.selected(&rows).saturating_add_signed(step).min(last);
        self.selected = rows.get(at).map(|row| row.name.clone());
    }

    fn change_weight(&mut self, step: f64) -> Option<Action> {
        self.change(|link| {
            let steps = (link.weight * WEIGHT_STEPS).round() + step;
            LinkChange {
                weight: Some((steps / WEIGHT_STEPS).clamp(0.0, 1.0)),
                paused: None,
            }
        })
    }

    /// Asks for a change of the selected link, and shows it at once: the next key builds on it.
    fn change(&mut self, wish: impl FnOnce(&Link) -> LinkChange) -> Option<Action> {
        let rows = self.rows();
        let name = rows.get(self.selected(&rows))?.name.clone();
        if let Some(why) = &self.lost {
            self.message = Some(why.clone());
            return None;
        }
        let links = &mut self.state.as_mut()?.links;
        let Some(link) = links.iter_mut().find(|link| link.name == name) else {
            self.message = Some("there are no links to change here".to_owned());
            return None;
        };
        let change = wish(link);
        link.weight = change.weight.unwrap_or(link.weight);
        link.paused = change.paused.unwrap_or(link.paused);
        // From here on keys are about this one, wherever sorting puts it.
        self.selected = Some(name.clone());
        Some(Action::Change(name, change))
    }
}

impl Sort {
    fn next(self) -> Self {
        match self {
            Self::Given => Self::Name,
            Self::Name => Self::Rate,
            Self::Rate => Self::Rtt,
            Self::Rtt => Self::Loss,
            Self::Loss => Self::Given,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Given => "as given",
            Self::Name => "name",
            Self::Rate => "rate",
            Self::Rtt => "RTT",
            Self::Loss => "loss",
        }
    }
}

fn push(samples: &mut VecDeque<u64>, value: u64) {
    if samples.len() == HISTORY {
        samples.pop_front();
    }
    samples.push_back(value);
}

fn of_link(link: &Link) -> Row {
    let path = link.path.as_ref();
    Row {
        name: link.name.clone(),
        state: match link.paused {
            true => LinkState::Paused.name(),
            false => link.state.name(),
        },
        is_active: link.state == LinkState::Active && !link.paused,
        traffic: link.traffic,
        rtt_ms: path.and_then(|path| path.rtt_ms),
        queue_ms: path.and_then(|path| path.queue_ms),
        share: link.share_now,
        weight: Some(link.weight),
        paused: link.paused,
    }
}

fn of_gateway(gateway: &Gateway, state: &State) -> Row {
    Row {
        name: gateway.radio.clone(),
        state: gateway.mode.name(),
        is_active: true,
        traffic: state.totals.traffic,
        rtt_ms: None,
        queue_ms: None,
        share: None,
        weight: None,
        paused: false,
    }
}

fn of_session(session: &Session) -> Row {
    let best = |value: fn(&Path) -> Option<f64>| {
        let values = session.paths.iter().filter_map(value);
        values.min_by(f64::total_cmp)
    };
    let peer = session
        .peer
        .as_deref()
        .map_or_else(|| "?".to_owned(), key_label);
    Row {
        name: format!("{:.6} {}", peer, session.number),
        state: match session.state {
            SessionState::Connecting => "opening",
            SessionState::Connected => "up",
            SessionState::Closed => "closed",
        },
        is_active: session
            .paths
            .iter()
            .any(|path| path.state == LinkState::Active),
        traffic: session.traffic,
        rtt_ms: best(|path| path.rtt_ms),
        queue_ms: best(|path| path.queue_ms),
        share: None,
        weight: None,
        paused: false,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    const STATE: &str = include_str!("../../../control/src/example.json");

    /// Two links, one of them idle.
    pub(crate) fn example() -> State {
        serde_json::from_str(STATE).unwrap()
    }

    fn press(app: &mut App, keys: &str) -> Vec<Action> {
        let press = |key| app.handle_key(KeyEvent::from(KeyCode::Char(key)));
        keys.chars().filter_map(press).collect()
    }

    #[test]
    fn keys_are_about_the_selected_link_wherever_it_is_sorted_to() {
        let mut app = App::default();
        app.handle_state(example());
        assert_eq!(
            press(&mut app, "jp"),
            [Action::Change(
                "wlan0".to_owned(),
                LinkChange {
                    paused: Some(true),
                    weight: None
                }
            )]
        );
        press(&mut app, "s");
        let rows = app.rows();
        assert_eq!(rows[app.selected(&rows)].name, "wlan0");
        assert!(rows[app.selected(&rows)].paused);
        press(&mut app, "kkkkjjjjj");
        let rows = app.rows();
        assert_eq!(app.selected(&rows), rows.len() - 1);
    }

    #[test]
    fn every_step_of_the_weight_counts_and_ends_at_none_and_all() {
        let mut app = App::default();
        app.handle_state(example());
        let last = |actions: Vec<Action>| match actions.last() {
            Some(Action::Change(_, change)) => change.weight,
            _ => None,
        };
        assert_eq!(last(press(&mut app, "+")), Some(1.0));
        assert_eq!(last(press(&mut app, "---")), Some(0.7));
        assert_eq!(last(press(&mut app, "-----------")), Some(0.0));
        assert_eq!(last(press(&mut app, "+")), Some(0.1));
    }

    #[test]
    fn an_instance_that_is_gone_takes_no_changes_and_another_one_begins_anew() {
        let mut app = App::default();
        assert_eq!(press(&mut app, "p+-jks"), []);
        app.handle_state(example());
        app.handle_state(example());
        app.handle_lost("the instance has ended".to_owned());
        assert_eq!(press(&mut app, "p"), []);
        assert!(app.message.is_some());
        let mut next = example();
        next.instance.started_at_unix_ms += 1;
        app.handle_state(next);
        assert!(app.lost.is_none());
        assert!(app.history.values().all(|it| it.sent_bps.len() == 1));
    }

    #[test]
    fn help_closes_with_any_key_and_q_ends() {
        let mut app = App::default();
        assert_eq!(press(&mut app, "?q"), []);
        assert_eq!(press(&mut app, "q"), [Action::Quit]);
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        app.is_help_open = true;
        assert_eq!(app.handle_key(control_c), Some(Action::Quit));
    }
}
