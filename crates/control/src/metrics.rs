//! The state as Prometheus text (format 0.0.4).
//!
//! Owns the names of the metrics: whoever builds a dashboard relies on them. Counters only grow
//! while the instance lives; units are Prometheus's base units (bytes, seconds, ratios), rates in
//! bits per second where they are the controller's belief.

mod fleet;
mod gateway;

use std::fmt::Write;

use crate::state::{Condition, Fleet, Link, LinkState, Path, RuleUse, Session, State, Traffic};

/// What to call it in HTTP.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A metric: its name without `tabane_`, its kind, and what it says.
type Family = (&'static str, &'static str, &'static str);

/// A link's value, where it has one.
type OfLink = fn(&Link) -> Option<f64>;

/// A rule's value.
type OfRule = fn(&RuleUse) -> Option<f64>;

/// A session's value.
type OfSession = fn(&Session) -> Option<f64>;

const LINK_FAMILIES: [(Family, OfLink); 17] = [
    (
        (
            "link_received_bytes_total",
            "counter",
            "Received over the link.",
        ),
        |link| Some(link.traffic.received_bytes as f64),
    ),
    (
        ("link_sent_bytes_total", "counter", "Sent over the link."),
        |link| Some(link.traffic.sent_bytes as f64),
    ),
    (
        (
            "link_sent_packets_total",
            "counter",
            "Packets sent over the link.",
        ),
        |link| Some(link.traffic.sent_packets as f64),
    ),
    (
        ("link_lost_packets_total", "counter", "Of these, lost."),
        |link| Some(link.traffic.lost_packets as f64),
    ),
    (
        (
            "link_loss_ratio",
            "gauge",
            "Lost of what was sent over the last 10 s.",
        ),
        |link| link.traffic.loss,
    ),
    (
        (
            "link_receive_rate_bps",
            "gauge",
            "Received over the last second.",
        ),
        |link| Some(link.traffic.received_bps as f64),
    ),
    (
        ("link_send_rate_bps", "gauge", "Sent over the last second."),
        |link| Some(link.traffic.sent_bps as f64),
    ),
    (
        (
            "link_share_ratio",
            "gauge",
            "The link's part of all bytes so far.",
        ),
        |link| Some(link.share),
    ),
    (
        (
            "link_weight_ratio",
            "gauge",
            "What share of the link may be used.",
        ),
        |link| Some(link.weight),
    ),
    (
        (
            "link_paused",
            "gauge",
            "1 while the link is left alone by the user's wish.",
        ),
        |link| Some(f64::from(u8::from(link.paused))),
    ),
    (
        ("link_up", "gauge", "1 while the link carries data."),
        |link| Some(f64::from(u8::from(link.state == LinkState::Active))),
    ),
    (
        ("link_rtt_seconds", "gauge", "Round-trip time, smoothed."),
        |link| seconds(link.path.as_ref()?.rtt_ms),
    ),
    (
        ("link_rtt_min_seconds", "gauge", "Least round-trip time."),
        |link| seconds(link.path.as_ref()?.rtt_min_ms),
    ),
    (
        (
            "link_queue_seconds",
            "gauge",
            "Round-trip time above the least: waiting in queues.",
        ),
        |link| seconds(link.path.as_ref()?.queue_ms),
    ),
    (
        (
            "link_in_flight_bytes",
            "gauge",
            "Sent, neither acknowledged nor lost.",
        ),
        |link| Some(link.path.as_ref()?.in_flight_bytes as f64),
    ),
    (
        (
            "link_cwnd_bytes",
            "gauge",
            "The most that may be in flight.",
        ),
        |link| Some(link.path.as_ref()?.cwnd_bytes as f64),
    ),
    (
        (
            "link_bandwidth_bps",
            "gauge",
            "The rate the controller believes the link to have.",
        ),
        |link| Some(link.path.as_ref()?.bandwidth_bps as f64),
    ),
];

/// What no rule fits has the name "".
const RULE_FAMILIES: [(Family, OfRule); 4] = [
    (
        (
            "rule_connections",
            "gauge",
            "Connections and UDP flows carried now under the rule.",
        ),
        |rule| Some(rule.connections as f64),
    ),
    (
        (
            "rule_connections_total",
            "counter",
            "So far, those left out of the tunnel included.",
        ),
        |rule| Some(rule.connections_so_far as f64),
    ),
    (
        (
            "rule_sent_bytes_total",
            "counter",
            "Carried into the tunnel under the rule.",
        ),
        |rule| Some(rule.sent_bytes as f64),
    ),
    (
        (
            "rule_received_bytes_total",
            "counter",
            "Carried out of the tunnel under the rule.",
        ),
        |rule| Some(rule.received_bytes as f64),
    ),
];

const SESSION_FAMILIES: [(Family, OfSession); 6] = [
    (
        (
            "session_received_bytes_total",
            "counter",
            "Received in the session.",
        ),
        |session| Some(session.traffic.received_bytes as f64),
    ),
    (
        (
            "session_sent_bytes_total",
            "counter",
            "Sent in the session.",
        ),
        |session| Some(session.traffic.sent_bytes as f64),
    ),
    (
        (
            "session_streams",
            "gauge",
            "Connections and UDP flows carried now.",
        ),
        |session| Some(session.streams as f64),
    ),
    (
        ("session_paths", "gauge", "Paths that carry data."),
        |session| Some(session.paths.iter().filter(|path| is_active(path)).count() as f64),
    ),
    (
        (
            "session_rtt_min_seconds",
            "gauge",
            "Least round-trip time over all paths.",
        ),
        |session| {
            let times = session.paths.iter().filter_map(|path| path.rtt_min_ms);
            seconds(times.min_by(f64::total_cmp))
        },
    ),
    (
        (
            "session_receive_memory_bytes",
            "gauge",
            "Received data that nobody has read yet.",
        ),
        |session| Some(session.receive_memory_bytes as f64),
    ),
];

/// The state in Prometheus's words.
#[must_use]
pub fn render(state: &State) -> String {
    let mut text = String::with_capacity(4_096);
    instance(&mut text, state);
    totals(&mut text, state);
    if let Some(gateway) = &state.gateway {
        // It has none of what follows.
        gateway::render(&mut text, gateway);
        return text;
    }
    for (family, value) in &LINK_FAMILIES {
        head(&mut text, family);
        for link in &state.links {
            let labels = [("link", &link.name[..])];
            sample(&mut text, family.0, &labels, value(link));
        }
    }
    for (family, value) in &RULE_FAMILIES {
        head(&mut text, family);
        for rule in &state.rules {
            let labels = [("rule", rule.rule.as_deref().unwrap_or(""))];
            sample(&mut text, family.0, &labels, value(rule));
        }
    }
    for (family, value) in &SESSION_FAMILIES {
        head(&mut text, family);
        for session in &state.sessions {
            let number = session.number.to_string();
            let labels = [
                ("session", &number[..]),
                ("peer", session.peer.as_deref().unwrap_or("")),
            ];
            sample(&mut text, family.0, &labels, value(session));
        }
    }
    if let Some(fleet) = &state.fleet {
        fleet::render(&mut text, fleet);
    }
    text
}

/// A fleet in the same words.
#[must_use]
pub fn render_fleet(fleet: &Fleet) -> String {
    let mut text = String::with_capacity(4_096);
    fleet::render(&mut text, fleet);
    text
}

fn instance(text: &mut String, state: &State) {
    let instance = &state.instance;
    head(
        text,
        &("info", "gauge", "Always 1; which instance this is."),
    );
    let labels = [
        ("instance_name", &instance.name[..]),
        ("kind", instance.kind.name()),
        ("version", &instance.version[..]),
        ("relay", instance.relay.as_deref().unwrap_or("")),
    ];
    sample(text, "info", &labels, Some(1.0));
    let condition = match state.condition {
        Condition::Up => 1.0,
        Condition::Degraded => 0.5,
        Condition::Down => 0.0,
    };
    single(
        text,
        ("condition", "gauge", "1 all is well, 0.5 degraded, 0 down."),
        condition,
    );
    let started = instance.started_at_unix_ms as f64 / 1e3;
    single(
        text,
        (
            "start_time_seconds",
            "gauge",
            "Since when it runs, unix time.",
        ),
        started,
    );
    let memory = state.process.memory_bytes as f64;
    single(
        text,
        (
            "process_resident_memory_bytes",
            "gauge",
            "Memory of the process.",
        ),
        memory,
    );
    let cpu = state.process.cpu_ms as f64 / 1e3;
    single(
        text,
        ("process_cpu_seconds_total", "counter", "Processor time."),
        cpu,
    );
}

fn by_worker(text: &mut String, sessions: &[u64]) {
    let meta = (
        "worker_sessions",
        "gauge",
        "Sessions of each worker of a relay that has several.",
    );
    if !sessions.is_empty() {
        head(text, &meta);
    }
    for (worker, count) in sessions.iter().enumerate() {
        let worker = worker.to_string();
        sample(text, meta.0, &[("worker", &worker)], Some(*count as f64));
    }
}

fn totals(text: &mut String, state: &State) {
    let totals = &state.totals;
    let Traffic {
        sent_bytes,
        received_bytes,
        ..
    } = totals.traffic;
    single(
        text,
        (
            "received_bytes_total",
            "counter",
            "Received over all links and sessions.",
        ),
        received_bytes as f64,
    );
    single(
        text,
        (
            "sent_bytes_total",
            "counter",
            "Sent over all links and sessions.",
        ),
        sent_bytes as f64,
    );
    single(
        text,
        ("sessions", "gauge", "Sessions there are."),
        totals.sessions as f64,
    );
    by_worker(text, &totals.sessions_by_worker);
    single(
        text,
        ("sessions_total", "counter", "Sessions so far."),
        totals.sessions_so_far as f64,
    );
    single(
        text,
        ("streams", "gauge", "Connections and UDP flows carried now."),
        totals.streams as f64,
    );
    let bypassing = (
        "bypassing_total",
        "counter",
        "Connections and UDP flows that went without the relay, though no rule says so.",
    );
    head(text, &bypassing);
    for (kind, count) in [
        ("tcp", totals.bypassing_connections),
        ("udp", totals.bypassing_flows),
    ] {
        sample(text, bypassing.0, &[("protocol", kind)], Some(count as f64));
    }
    head(
        text,
        &(
            "dropped_packets_total",
            "counter",
            "Packets that were not used, by reason.",
        ),
    );
    for (reason, count) in &totals.drops {
        let labels = [("reason", &reason[..])];
        sample(text, "dropped_packets_total", &labels, Some(*count as f64));
    }
}

fn single(text: &mut String, family: Family, value: f64) {
    head(text, &family);
    sample(text, family.0, &[], Some(value));
}

fn head(text: &mut String, (name, kind, help): &Family) {
    let written = writeln!(
        text,
        "# HELP tabane_{name} {help}\n# TYPE tabane_{name} {kind}"
    );
    written.expect("a string takes everything");
}

fn sample(text: &mut String, name: &str, labels: &[(&str, &str)], value: Option<f64>) {
    let Some(value) = value else { return };
    let labels: Vec<String> = labels
        .iter()
        .map(|(label, value)| format!("{label}=\"{}\"", escaped(value)))
        .collect();
    let labels = match &labels[..] {
        [] => String::new(),
        labels => format!("{{{}}}", labels.join(",")),
    };
    writeln!(text, "tabane_{name}{labels} {value}").expect("a string takes everything");
}

fn escaped(value: &str) -> String {
    let value = value.replace('\\', "\\\\").replace('"', "\\\"");
    value.replace('\n', "\\n")
}

fn seconds(millis: Option<f64>) -> Option<f64> {
    millis.map(|millis| millis / 1e3)
}

fn is_active(path: &Path) -> bool {
    path.state == LinkState::Active
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::tests::{example, fleet, gateway};

    #[test]
    fn every_line_is_a_comment_or_a_sample_of_a_declared_family() {
        let mut state = example();
        state.links[0].name = "a\"b\\c\nd".to_owned();
        let text = render(&state);
        check(&text);
        assert!(
            text.contains(r#"tabane_link_rtt_seconds{link="a\"b\\c\nd"} 0.02"#),
            "{text}"
        );
        assert!(text.contains("tabane_dropped_packets_total{reason=\"replayed\"} 2"));
        assert!(text.contains(r#"tabane_session_streams{session="1",peer="AQEBAQEB"} 3"#));
    }

    #[test]
    fn a_fleet_has_the_relay_as_label_wherever_it_is_seen() {
        let mut state = example();
        state.fleet = Some(fleet());
        let text = render(&state);
        check(&text);
        for line in [
            r#"tabane_fleet_relay_up{relay="oslo",region="no\"rth"} 1"#,
            r#"tabane_fleet_relay_draining{relay="oslo",region="no\"rth"} 0"#,
            r#"tabane_fleet_relay_sessions{relay="oslo",region="no\"rth"} 7"#,
            r#"tabane_fleet_relay_clock_behind_seconds{relay="oslo",region="no\"rth"} -60"#,
            r#"tabane_fleet_relay_up{relay="rome",region=""} 0"#,
            r#"tabane_fleet_relay_draining{relay="rome",region=""} 1"#,
            r#"tabane_fleet_relay_asking{relay="lima",region=""} 1"#,
            "tabane_fleet_list_epoch 3",
            "tabane_fleet_etcd_away 0",
            "tabane_fleet_odd_values 1",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}: {text}");
        }
        let alone = render_fleet(&fleet());
        check(&alone);
        assert!(text.ends_with(&alone), "{alone}");
    }

    #[test]
    fn a_gateway_has_its_own_and_a_line_for_each_reason() {
        let mut state = example();
        state.gateway = Some(gateway());
        let text = render(&state);
        check(&text);
        assert!(
            text.contains("tabane_gateway_flows{radio=\"wwan0\"} 42\n"),
            "{text}"
        );
        let reason = "tabane_gateway_flows_bypassed_total{radio=\"wwan0\",reason=\"mid-flow\"} 3\n";
        assert!(text.contains(reason), "{text}");
        assert!(!text.contains("link_rtt"), "{text}");
    }

    fn check(text: &str) {
        let mut declared = Vec::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let name = rest.split(' ').next().unwrap();
                assert!(!declared.contains(&name), "{name} twice");
                declared.push(name);
            } else if !line.starts_with("# HELP ") {
                let (name, value) = line.rsplit_once(' ').unwrap();
                let name = name.split('{').next().unwrap();
                assert_eq!(declared.last(), Some(&name), "{line}");
                assert!(value.parse::<f64>().unwrap().is_finite(), "{line}");
            }
        }
    }
}
