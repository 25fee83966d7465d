//! A session's record as qlog, the format that qvis and other QUIC tools read.
//!
//! qlog 0.3 (draft-ietf-quic-qlog-main-schema-02, draft-ietf-quic-qlog-quic-events-01): one trace
//! per path, for each has packet numbers of its own. An acknowledgement is in the trace of the path
//! it is about, whichever path it came on.

use serde_json::{Value, json};
use tabane_control::{Kind, State, TraceEntry, TraceWhat};

/// A record in the making.
pub(crate) struct Qlog {
    began_unix_ms: u64,
    paths: Vec<PathTrace>,
    missed: u64,
    events: usize,
}

/// What is known of one path.
struct PathTrace {
    id: u32,
    events: Vec<Value>,
}

impl Qlog {
    /// An empty record that began then.
    pub(crate) fn new(began_unix_ms: u64) -> Self {
        Self {
            began_unix_ms,
            paths: Vec::new(),
            missed: 0,
            events: 0,
        }
    }

    /// How many events it has.
    pub(crate) const fn len(&self) -> usize {
        self.events
    }

    /// How many events it lacks.
    pub(crate) const fn missed(&self) -> u64 {
        self.missed
    }

    /// So many events were lost before the next ones.
    pub(crate) fn add_missed(&mut self, missed: u64) {
        self.missed += missed;
    }

    pub(crate) fn add(&mut self, entry: &TraceEntry) {
        let index = self.paths.iter().position(|path| path.id == entry.path);
        let index = index.unwrap_or_else(|| {
            self.paths.push(PathTrace {
                id: entry.path,
                events: Vec::new(),
            });
            self.paths.len() - 1
        });
        self.paths[index].events.push(event(entry));
        self.events += 1;
    }

    /// The whole file. `state` names instance and links.
    pub(crate) fn finish(mut self, state: &State) -> Value {
        self.paths.sort_by_key(|path| path.id);
        let missed = self.missed;
        let began = self.began_unix_ms;
        let traces = self.paths.into_iter().map(|path| {
            json!({
                "vantage_point": {
                    "name": format!("tabane {}", state.instance.version),
                    "type": match state.instance.kind {
                        Kind::Relay => "server",
                        Kind::Run
                        | Kind::Proxy
                        | Kind::Up
                        | Kind::Web
                        | Kind::Get
                        | Kind::Gateway => "client",
                    },
                },
                "title": title(state, path.id),
                "common_fields": {
                    "ODCID": format!("{:08x}", path.id),
                    "group_id": format!("path {}", path.id),
                    "protocol_type": ["QUIC", "tabane"],
                    "time_format": "relative",
                    "reference_time": began,
                },
                "events": path.events,
            })
        });
        json!({
            "qlog_version": "0.3",
            "qlog_format": "JSON",
            "title": format!("tabane {}", state.instance.name),
            "description": match missed {
                0 => state.instance.about.clone(),
                missed => format!("{}; {missed} events are missing", state.instance.about),
            },
            "traces": traces.collect::<Vec<_>>(),
        })
    }
}

/// What a path is called: its link where it has one.
fn title(state: &State, id: u32) -> String {
    let of_link = state
        .links
        .iter()
        .find(|link| link.path.as_ref().is_some_and(|path| path.id == id));
    match of_link {
        Some(link) => format!("path {id}: {}", link.name),
        None => format!("path {id}"),
    }
}

fn event(entry: &TraceEntry) -> Value {
    let header = |pn: &u64| json!({ "packet_type": "1RTT", "packet_number": pn });
    let (name, data) = match &entry.what {
        TraceWhat::Sent {
            pn,
            size,
            eliciting,
        } => {
            let frame = match eliciting {
                true => "stream",
                false => "ack",
            };
            let frames = json!([{ "frame_type": frame }]);
            (
                "transport:packet_sent",
                json!({ "header": header(pn), "raw": { "length": size }, "frames": frames }),
            )
        }
        TraceWhat::Received { pn, size } => (
            "transport:packet_received",
            json!({ "header": header(pn), "raw": { "length": size }, "frames": [] }),
        ),
        TraceWhat::Acked { first, last } => (
            "transport:packet_received",
            json!({
                "header": { "packet_type": "1RTT" },
                "frames": [{ "frame_type": "ack", "acked_ranges": [[first, last]] }],
            }),
        ),
        TraceWhat::Lost { pn, size } => (
            "recovery:packet_lost",
            json!({ "header": header(pn), "raw": { "length": size } }),
        ),
        TraceWhat::Metrics {
            rtt_ms,
            rtt_latest_ms,
            rtt_min_ms,
            rtt_variation_ms,
            cwnd_bytes,
            in_flight_bytes,
            pacing_bps,
            phase,
        } => (
            "recovery:metrics_updated",
            json!({
                "smoothed_rtt": rtt_ms,
                "latest_rtt": rtt_latest_ms,
                "min_rtt": rtt_min_ms,
                "rtt_variance": rtt_variation_ms,
                "congestion_window": cwnd_bytes,
                "bytes_in_flight": in_flight_bytes,
                "pacing_rate": pacing_bps,
                "controller_phase": phase,
            }),
        ),
        TraceWhat::Status(status) => (
            "connectivity:connection_state_updated",
            json!({ "new": status }),
        ),
    };
    json!({ "time": entry.at_us as f64 / 1e3, "name": name, "data": data })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_has_a_trace_of_its_own_with_its_link_s_name() {
        let state: State = serde_json::from_str(include_str!("top/example.json")).unwrap();
        let mut qlog = Qlog::new(1_700_000_000_000);
        let mut add = |at_us, path, what| qlog.add(&TraceEntry { at_us, path, what });
        let (pn, size) = (7, 1_452);
        let sent = TraceWhat::Sent {
            pn,
            size,
            eliciting: true,
        };
        add(1_500, 1, sent.clone());
        add(2_000, 0, sent);
        add(21_500, 1, TraceWhat::Acked { first: 5, last: 7 });
        qlog.add_missed(3);
        assert_eq!((qlog.len(), qlog.missed()), (3, 3));
        let file = qlog.finish(&state);
        assert_eq!(file["qlog_version"], "0.3");
        assert!(file["description"].as_str().unwrap().contains("3 events"));
        let traces = file["traces"].as_array().unwrap();
        assert_eq!(traces[0]["title"], "path 0");
        assert_eq!(traces[1]["title"], "path 1: usb0");
        let events = traces[1]["events"].as_array().unwrap();
        assert_eq!(events[0]["time"], 1.5);
        assert_eq!(events[0]["name"], "transport:packet_sent");
        assert_eq!(events[0]["data"]["raw"]["length"], 1_452);
        assert_eq!(events[1]["data"]["frames"][0]["acked_ranges"][0][1], 7);
    }
}
