//! What a gateway does, as text for a terminal.

use std::cmp::Reverse;

use tabane_control::{Flow, Gateway, GatewayMode, GatewayTotals};

use crate::output;

/// Lines for flows, and for those that have ended.
const SHOWN: usize = 40;
const ENDED_SHOWN: usize = 10;

/// For a terminal: what it means first, then the flows, the busiest on top, then the last that have
/// ended.
pub(crate) fn screen(gateway: &Gateway) -> String {
    let mut text = format!(
        "gateway on {}, mode {}{}: {} flows now, {} since the start\n{}\n",
        gateway.radio,
        gateway.mode.name(),
        if gateway.draining { ", draining" } else { "" },
        gateway.flow_count(),
        gateway.totals.opened.max(gateway.totals.joined),
        meaning(gateway)
    );
    if !gateway.bypassed.is_empty() {
        let reasons = gateway
            .bypassed
            .iter()
            .map(|(why, count)| format!("{count} {why}"));
        text += &format!("left alone: {}\n", reasons.collect::<Vec<_>>().join(", "));
    }
    let mut flows: Vec<&Flow> = gateway.flows.iter().collect();
    flows.sort_by_key(|flow| Reverse(flow.bytes));
    let ended = gateway.ended.iter().rev().take(ENDED_SHOWN);
    let shown = flows.iter().take(SHOWN);
    let mut rows: Vec<Vec<String>> = shown.map(|flow| row(flow, None)).collect();
    let omitted = gateway.flow_count().saturating_sub(rows.len() as u64);
    rows.extend(ended.map(|flow| row(flow, Some("ended"))));
    if !rows.is_empty() {
        let headings = [
            "mobile",
            "server",
            "state",
            "radio ms",
            "wired ms",
            "MB",
            "needless %",
            "silences",
            "spurious",
            "avoided",
            "held kB",
        ];
        text += &format!("\n{}", output::table(&headings, &rows));
    }
    if omitted > 0 {
        text += &format!("\nand {omitted} more");
    }
    text
}

fn row(flow: &Flow, state: Option<&str>) -> Vec<String> {
    let trip = |ms: Option<f64>| ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.0}"));
    let state = match (state, flow.shut) {
        (Some(state), _) => state,
        (None, true) => "shut",
        (None, false) => flow.stance.name(),
    };
    vec![
        flow.mobile.to_string(),
        flow.server.to_string(),
        state.to_owned(),
        trip(flow.radio_rtt_ms),
        trip(flow.wired_rtt_ms),
        format!("{:.1}", flow.bytes as f64 / 1e6),
        format!("{:.2}", share(flow.needless_bytes, flow.bytes)),
        format!("{}", flow.silences),
        format!("{}", flow.spurious_timeouts),
        format!("{}", flow.avoided_timeouts),
        format!("{}", flow.held_bytes / 1_000),
    ]
}

fn share(part: u64, whole: u64) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}

/// Whether assistance would help, or does, in figures.
fn meaning(gateway: &Gateway) -> String {
    let GatewayTotals {
        silences,
        spurious_timeouts: spurious,
        needless_bytes: needless,
        bytes,
        ..
    } = gateway.totals;
    let flows = gateway.flows.iter().chain(&gateway.ended);
    let helpless = flows
        .filter(|f| f.spurious_timeouts > 0 && !f.undoes)
        .count();
    match gateway.mode {
        GatewayMode::Split => format!(
            "{} connections joined, {:.1} MB carried",
            gateway.totals.joined,
            gateway.totals.carried_bytes as f64 / 1e6
        ),
        GatewayMode::Assist => format!(
            "{silences} silences longer than a sender's timer, {} timeouts avoided; {} kB held, \
             {} sent again",
            gateway.totals.avoided_timeouts,
            gateway.totals.held_bytes / 1_000,
            gateway.totals.resent
        ),
        GatewayMode::Observe => {
            let verdict = if helpless > 0 {
                format!("assist would help: {helpless} flows cannot undo such timeouts themselves")
            } else if spurious > 0 || share(needless, bytes) > 0.5 {
                "assist would save the repetitions; these senders undo the rest themselves".into()
            } else {
                "nothing yet that assist would mend".to_owned()
            };
            format!(
                "{silences} silences longer than a sender's timer, {spurious} timeouts for \
                 nothing, {:.2} % sent needlessly: {verdict}",
                share(needless, bytes)
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tabane_control::Stance;
    use tabane_relay::gateway::empty;

    fn observing(undoes: bool, spurious: u64) -> Gateway {
        let ends = ["10.0.0.2:40000", "192.0.2.1:443"].map(|end| end.parse().unwrap());
        Gateway {
            totals: GatewayTotals {
                spurious_timeouts: spurious,
                ..GatewayTotals::default()
            },
            ended: vec![Flow {
                spurious_timeouts: spurious,
                undoes,
                ..Flow::between(ends[0], ends[1], Stance::Watching)
            }],
            bypassed: [("mid-flow".to_owned(), 3)].into(),
            ..empty("wwan0", GatewayMode::Observe, false)
        }
    }

    #[test]
    fn observing_says_whether_assistance_would_help() {
        assert!(screen(&observing(false, 2)).contains("assist would help: 1 flows"));
        assert!(screen(&observing(true, 2)).contains("senders undo the rest"));
        assert!(screen(&observing(true, 0)).contains("nothing yet"));
        assert!(screen(&observing(true, 0)).contains("left alone: 3 mid-flow"));
        let text = screen(&observing(true, 2));
        let line = text.lines().find(|line| line.contains("10.0.0.2:40000"));
        assert!(line.unwrap().contains("ended"), "{text}");
    }

    #[test]
    fn of_very_many_flows_those_that_do_not_fit_are_counted() {
        let mut gateway = observing(true, 0);
        gateway.flows = vec![gateway.ended[0]; 100];
        gateway.flows_omitted = 9_650;
        let text = screen(&gateway);
        assert!(text.contains("9750 flows now"), "{text}");
        assert!(text.ends_with("and 9710 more"), "{text}");
    }
}
