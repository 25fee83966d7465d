//! How the screen looks: the instance, the table, the selected row in large, what is wrong, what
//! happened, the keys. Takes whatever room there is.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Sparkline, Wrap};
use tabane_control::{Condition, Kind, LanHost, Link, LinkBudget, LinkState, RuleUse, State};

use super::app::{App, History, Row};
use super::columns::{self, cell};
use crate::commands::status::{duration, megabits};
use crate::gateway;

/// Lines of the large pictures, borders included.
const PICTURE_LINES: u16 = 5;
/// With fewer lines than this there are no pictures.
const MIN_LINES_FOR_PICTURES: u16 = 18;
/// Problems shown; the table tells most of the others.
const MAX_PROBLEMS: usize = 3;
/// Rules shown; `tabane status` has them all.
const MAX_RULES: usize = 6;
/// The same of hosts behind this machine.
const MAX_HOSTS: usize = 4;

const HELP: &str = "\
 up, down    choose a link
 p           pause it, or use it again
 + -         how much of it may be used
 s           sort: as given, name, rate, RTT, loss
 ?           this
 q           end (tabane goes on)

 queue       how long packets wait on the way, in ms
 loss        of what was sent over the last 10 s
 share       of the traffic of the last second
 wt          weight; at 0 only when nothing else works";

pub(super) fn draw(app: &App, frame: &mut Frame<'_>) {
    let area = frame.area();
    let rows = app.rows();
    let problems = problems(app);
    let wants_pictures = area.height >= MIN_LINES_FOR_PICTURES && !rows.is_empty();
    let pictures = if wants_pictures { PICTURE_LINES } else { 0 };
    let rules = app.state.as_ref().map(below).unwrap_or_default();
    let fixed = 2 + pictures + problems.len() as u16;
    let table = (rows.len() as u16 + 1).min(area.height.saturating_sub(fixed).max(2));
    let [title, table, picture, trouble, used, events, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(table),
        Constraint::Length(pictures),
        Constraint::Length(problems.len() as u16),
        Constraint::Max(rules.len() as u16),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(area);
    frame.render_widget(heading(app), title);
    draw_table(app, &rows, frame, table);
    if let Some(row) = rows.get(app.selected(&rows)).filter(|_| wants_pictures) {
        draw_pictures(row, app.history.get(&row.name), frame, picture);
    }
    frame.render_widget(Paragraph::new(problems), trouble);
    frame.render_widget(Paragraph::new(rules), used);
    if let Some(state) = &app.state {
        frame.render_widget(Paragraph::new(happened(state, events.height)), events);
    }
    frame.render_widget(footer(app), keys);
    if app.is_help_open {
        draw_help(frame, area);
    }
}

fn heading(app: &App) -> Line<'static> {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let Some(state) = &app.state else {
        let text = app.lost.clone();
        return Line::styled(text.unwrap_or_else(|| "waiting".to_owned()), bold);
    };
    let instance = &state.instance;
    let totals = &state.totals;
    if let Some(why) = &app.lost {
        let text = format!("{}: {why}; waiting for the next", instance.name);
        return Line::styled(text, bold.fg(Color::Red));
    }
    let colour = match state.condition {
        Condition::Up => Color::Green,
        Condition::Degraded => Color::Yellow,
        Condition::Down => Color::Red,
    };
    let age = state.at_unix_ms.saturating_sub(instance.started_at_unix_ms) / 1_000;
    let packets = state.sessions.iter().filter_map(|it| it.packets.as_ref());
    let address = packets.flat_map(|packets| &packets.addresses).next();
    // A relay's clients have many.
    let address = address.filter(|_| instance.kind != Kind::Relay);
    let relay = instance.relay.as_ref().map(|relay| format!(" to {relay}"));
    Line::from(vec![
        Span::styled(instance.name.clone(), bold),
        Span::raw(relay.unwrap_or_default()),
        Span::raw(address.map_or_else(String::new, |address| format!(" as {address}"))),
        Span::raw(" "),
        Span::styled(state.condition.name(), bold.fg(colour)),
        Span::raw(format!(
            " {}  in {} out {} Mbit/s  {}  {} MB",
            duration(age),
            megabits(totals.traffic.received_bps),
            megabits(totals.traffic.sent_bps),
            crate::output::count(totals.streams, "stream"),
            state.process.memory_bytes / 1_000_000,
        )),
    ])
}

fn draw_table(app: &App, rows: &[Row], frame: &mut Frame<'_>, area: Rect) {
    let columns = columns::fitting(area.width.into());
    let line = |texts: Vec<String>| texts.join(" ");
    let titles = columns
        .iter()
        .map(|column| cell(column, column.title))
        .collect();
    let title = Style::new().add_modifier(Modifier::UNDERLINED);
    let mut lines = vec![Line::styled(line(titles), title)];
    let selected = app.selected(rows);
    // The selected row is always in sight.
    let room = usize::from(area.height).saturating_sub(1).max(1);
    let first = (selected + 1).saturating_sub(room);
    let none = History::default();
    for (at, row) in rows.iter().enumerate().skip(first).take(room) {
        let history = app.history.get(&row.name).unwrap_or(&none);
        let texts = columns
            .iter()
            .map(|column| cell(column, &(column.value)(row, history, column.width)))
            .collect();
        let mut style = match (row.paused, row.is_active) {
            (true, _) => Style::new().fg(Color::DarkGray),
            (false, true) => Style::new(),
            (false, false) => Style::new().fg(Color::Red),
        };
        if at == selected {
            style = style.add_modifier(Modifier::REVERSED);
        }
        lines.push(Line::styled(line(texts), style));
    }
    frame.render_widget(Paragraph::new(lines), area);
}

fn draw_pictures(row: &Row, history: Option<&History>, frame: &mut Frame<'_>, area: Rect) {
    let halves = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]);
    let [left, right]: [Rect; 2] = halves.areas(area);
    let none = History::default();
    let history = history.unwrap_or(&none);
    for (area, word, samples, colour) in [
        (left, "in", &history.received_bps, Color::Cyan),
        (right, "out", &history.sent_bps, Color::Magenta),
    ] {
        let width = usize::from(area.width.saturating_sub(2));
        let skipped = samples.len().saturating_sub(width);
        let newest: Vec<u64> = samples.iter().skip(skipped).copied().collect();
        let most = newest.iter().copied().max().unwrap_or(0);
        let title = format!(" {} {word}, most {} Mbit/s ", row.name, megabits(most));
        let picture = Sparkline::default()
            .block(Block::bordered().title(title))
            .style(Style::new().fg(colour))
            .data(&newest);
        frame.render_widget(picture, area);
    }
}

fn problems(app: &App) -> Vec<Line<'static>> {
    let yellow = Style::new().fg(Color::Yellow);
    let mut lines = Vec::new();
    if let Some(message) = &app.message {
        lines.push(Line::styled(message.clone(), Style::new().fg(Color::Red)));
    }
    if let Some(state) = app.state.as_ref().filter(|_| app.lost.is_none()) {
        let told = state.problems.iter().take(MAX_PROBLEMS);
        lines.extend(told.map(|problem| {
            Line::styled(format!("! {}: {}", problem.what, problem.remedy), yellow)
        }));
        // Why a spent budget's is not, is told above.
        let is_spent = |link: &Link| link.budget.as_ref().is_some_and(LinkBudget::is_spent);
        let unused = state.links.iter();
        let unused = unused.filter(|link| link.state == LinkState::Unused && !is_spent(link));
        lines.extend(unused.take(MAX_PROBLEMS).filter_map(|link| {
            let why = link.problem.as_ref()?;
            Some(Line::raw(format!("{} is not used: {why}", link.name)))
        }));
        let notes = state.links.iter().filter_map(Link::carrier_note);
        lines.extend(notes.take(MAX_PROBLEMS).map(Line::raw));
    }
    lines
}

/// What a gateway does, or rules are used for, and for which hosts.
fn below(state: &State) -> Vec<Line<'static>> {
    let Some(gateway) = &state.gateway else {
        return [rules(state), lan_hosts(state)].concat();
    };
    let text = gateway::screen(gateway);
    text.lines()
        .map(|line| Line::raw(line.to_owned()))
        .collect()
}

/// What the policy's rules are used for, those with something under way first.
fn rules(state: &State) -> Vec<Line<'static>> {
    let mut rules: Vec<_> = state.rules.iter().collect();
    rules.sort_by_key(|rule| rule.connections == 0);
    let line = |rule: &&RuleUse| {
        let name = rule.rule.as_deref().unwrap_or("(no rule)");
        let megabytes = (rule.received_bytes + rule.sent_bytes) as f64 / 1e6;
        Line::raw(format!(
            "rule {name}: {} now, {} so far, {megabytes:.1} MB  {}",
            rule.connections, rule.connections_so_far, rule.text
        ))
    };
    rules.iter().take(MAX_RULES).map(line).collect()
}

/// The busiest hosts behind this machine.
fn lan_hosts(state: &State) -> Vec<Line<'static>> {
    let line = |host: &LanHost| {
        let address = host.address.map(|address| address.to_string());
        let card = host.hardware.as_ref().map(|card| format!(" {card}"));
        Line::raw(format!(
            "host {}{}: {} now, {} so far, {:.1} MB in, {:.1} MB out",
            address.unwrap_or_else(|| "others".to_owned()),
            card.unwrap_or_default(),
            host.connections,
            host.connections_so_far,
            host.received_bytes as f64 / 1e6,
            host.sent_bytes as f64 / 1e6,
        ))
    };
    state.lan_hosts.iter().take(MAX_HOSTS).map(line).collect()
}

/// The newest events that fit, the newest first.
fn happened(state: &State, lines: u16) -> Vec<Line<'static>> {
    let newest = state.events.iter().rev().take(lines.into());
    newest
        .map(|event| {
            let age = state.at_unix_ms.saturating_sub(event.at_unix_ms) / 1_000;
            let link = event.link.as_ref().map(|link| format!("{link}: "));
            Line::raw(format!(
                "{:>12} ago  {}{}",
                duration(age),
                link.unwrap_or_default(),
                event.text
            ))
        })
        .collect()
}

fn footer(app: &App) -> Line<'static> {
    let text = format!(
        "q end  ↑↓ choose  p pause  + - weight  s sort ({})  ? help",
        app.sort.name()
    );
    Line::styled(text, Style::new().fg(Color::DarkGray))
}

fn draw_help(frame: &mut Frame<'_>, area: Rect) {
    let width = 56.min(area.width);
    let height = (HELP.lines().count() as u16 + 2).min(area.height);
    let place = Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height - height) / 2,
        width,
        height,
    };
    let text = Paragraph::new(HELP).wrap(Wrap { trim: false });
    frame.render_widget(Clear, place);
    frame.render_widget(text.block(Block::bordered().title(" keys ")), place);
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyEvent};

    use tabane_control::{Flow, Gateway, GatewayMode, GatewayTotals, Stance};

    use super::super::app::tests::example;
    use super::*;

    fn screen(app: &App, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(app, frame)).unwrap();
        let buffer = terminal.backend().buffer();
        let cells = buffer.content().chunks(usize::from(width.max(1)));
        let line = |cells: &[ratatui::buffer::Cell]| -> String {
            cells.iter().map(|cell| cell.symbol()).collect()
        };
        cells
            .map(|cells| line(cells).trim_end().to_owned() + "\n")
            .collect()
    }

    #[test]
    fn eighty_by_twenty_four_shows_everything() {
        let mut app = App::default();
        for half_second in 0..60 {
            let mut state = example();
            state.at_unix_ms += 500 * half_second;
            app.handle_state(state);
        }
        let text = screen(&app, 80, 24);
        for word in [
            "run-7 to home",
            "usb0",
            "wlan0",
            "42.0",
            "12.5",
            "queue",
            "wlan0 cannot be used",
            "it is tried again",
            "session up",
            "q end",
            "▁",
            "usb0 in, most 42.0 Mbit/s",
        ] {
            assert!(text.contains(word), "{word}:\n{text}");
        }
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
    }

    #[test]
    fn a_link_that_is_carried_otherwise_says_why() {
        let mut app = App::default();
        let mut state = example();
        state.links[0].carrier = Some("tls".to_owned());
        state.links[0].carrier_reason = Some("UDP gets no answer here".to_owned());
        app.handle_state(state);
        let text = screen(&app, 80, 24);
        assert!(
            text.contains("is carried by tls: UDP gets no answer"),
            "{text}"
        );
    }

    #[test]
    fn rules_show_what_they_are_used_for_and_leave_room_for_links() {
        let mut app = App::default();
        let mut state = example();
        state.rules = (0..9)
            .map(|place| RuleUse {
                rule: Some(format!("rule{place}")),
                text: "never by usb0".to_owned(),
                connections: u64::from(place == 8),
                connections_so_far: 5,
                sent_bytes: 1_000_000,
                received_bytes: 2_000_000,
            })
            .collect();
        app.handle_state(state);
        let text = screen(&app, 80, 24);
        let busy = "rule rule8: 1 now, 5 so far, 3.0 MB  never by usb0";
        assert!(text.contains(busy) && text.contains("rule0"), "{text}");
        assert!(!text.contains("rule6"), "{text}");
        assert!(screen(&app, 80, 8).contains("usb0"));
    }

    #[test]
    fn a_gateway_shows_its_rate_and_its_flows() {
        let mut state = example();
        state.instance.kind = Kind::Gateway;
        state.links.clear();
        state.totals.traffic.received_bps = 7_500_000;
        let ends = ["10.0.0.2:40000", "192.0.2.1:443"].map(|end| end.parse().unwrap());
        state.gateway = Some(Gateway {
            radio: "wwan0".to_owned(),
            mode: GatewayMode::Assist,
            draining: false,
            totals: GatewayTotals::default(),
            bypassed: [("mid-flow".to_owned(), 3)].into(),
            flows: vec![Flow::between(ends[0], ends[1], Stance::Assisting)],
            flows_omitted: 0,
            ended: Vec::new(),
        });
        let mut app = App::default();
        app.handle_state(state);
        let text = screen(&app, 80, 24);
        for word in ["wwan0", "assist", "7.5", "3 mid-flow", "10.0.0.2:40000"] {
            assert!(text.contains(word), "{word}:\n{text}");
        }
        app.handle_key(KeyEvent::from(KeyCode::Char('p')));
        assert!(screen(&app, 80, 24).contains("no links to change"));
    }

    #[test]
    fn small_screens_show_the_rates_and_the_smallest_ones_do_no_harm() {
        let mut app = App::default();
        app.handle_state(example());
        let text = screen(&app, 40, 10);
        assert!(text.contains("usb0") && text.contains("42.0"), "{text}");
        for is_help_open in [false, true] {
            app.is_help_open = is_help_open;
            for (width, height) in [(1, 1), (2, 3), (7, 2), (20, 5), (500, 3), (3, 200)] {
                screen(&app, width, height);
            }
        }
    }

    #[test]
    fn the_selected_row_is_in_sight_however_many_there_are() {
        let mut app = App::default();
        let mut state = example();
        let link = state.links[0].clone();
        state.links = (0..50)
            .map(|i| tabane_control::Link {
                name: format!("link{i}"),
                ..link.clone()
            })
            .collect();
        app.handle_state(state);
        for _ in 0..49 {
            app.handle_key(KeyEvent::from(KeyCode::Down));
        }
        for height in [8, 24, 40] {
            let text = screen(&app, 80, height);
            assert!(text.contains("link49"), "{text}");
        }
    }

    #[test]
    fn an_end_and_a_refusal_are_told() {
        let mut app = App::default();
        assert!(screen(&app, 80, 24).contains("waiting"));
        app.handle_state(example());
        app.handle_answer(Err("not today".to_owned()));
        assert!(screen(&app, 80, 24).contains("not today"));
        app.handle_lost("the instance has ended".to_owned());
        let text = screen(&app, 80, 24);
        assert!(text.contains("has ended; waiting"), "{text}");
        app.is_help_open = true;
        assert!(screen(&app, 80, 24).contains("pause it"));
    }
}
