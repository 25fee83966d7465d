//! A session's record as qlog, the format that qvis and other QUIC tools read.
//!
//! A sequence of JSON texts (RFC 7464), as draft-ietf-quic-qlog-main-schema and
//! draft-ietf-quic-qlog-quic-events have it: the file's head, then one event after the other.
//! Packet numbers are a path's own, so each path is a group. What happened to a path is in its
//! group, whichever path the news came on.

use std::time::SystemTime;

use serde_json::{Value, json};

use crate::state::{Kind, State};
use crate::trace::{TraceEntry, TraceWhat};

mod frames;

/// Before each text (RFC 7464 §2.2).
const RECORD_SEPARATOR: u8 = 0x1e;

/// A record in the making.
pub struct Qlog {
    text: Vec<u8>,
    /// Paths by number, and what they are called.
    names: Vec<(u32, String)>,
    /// Of the last event.
    at_ms: f64,
    missed: u64,
    events: usize,
}

impl Qlog {
    /// A record without events that began then. `state` names instance and links.
    pub fn new(began: SystemTime, state: &State) -> Self {
        let names = state.links.iter().filter_map(|link| {
            let id = link.path.as_ref()?.id;
            Some((id, format!("path {id}: {}", link.name)))
        });
        let mut qlog = Self {
            text: Vec::new(),
            names: names.collect(),
            at_ms: 0.0,
            missed: 0,
            events: 0,
        };
        qlog.append(&head(began, state));
        qlog
    }

    /// How many events it has.
    pub const fn events(&self) -> usize {
        self.events
    }

    /// How many events it lacks.
    pub const fn missed(&self) -> u64 {
        self.missed
    }

    /// So many events were lost before the next ones.
    pub fn add_missed(&mut self, missed: u64) {
        if missed > 0 {
            self.missed += missed;
            let message = format!("{missed} events are missing here");
            self.append(&json!({
                "time": self.at_ms,
                "name": "loglevel:warning",
                "data": { "message": message },
            }));
        }
    }

    /// Adds an event.
    pub fn add(&mut self, entry: &TraceEntry) {
        self.at_ms = entry.at_us as f64 / 1e3;
        let name = self.names.iter().find(|(id, _)| *id == entry.path);
        let group = name.map_or_else(|| format!("path {}", entry.path), |(_, it)| it.clone());
        let (name, data) = event(entry);
        let time = self.at_ms;
        self.append(&json!({ "time": time, "name": name, "group_id": group, "data": data }));
        self.events += 1;
    }

    /// The whole file.
    pub fn into_text(self) -> Vec<u8> {
        self.text
    }

    fn append(&mut self, record: &Value) {
        self.text.push(RECORD_SEPARATOR);
        serde_json::to_writer(&mut self.text, record).expect("plain values become JSON");
        self.text.push(b'\n');
    }
}

/// What stands before the events.
fn head(began: SystemTime, state: &State) -> Value {
    let name = &state.instance.name;
    let side = match state.instance.kind {
        Kind::Relay => "server",
        Kind::Run
        | Kind::Proxy
        | Kind::Up
        | Kind::Web
        | Kind::Get
        | Kind::Sctp
        | Kind::Gateway
        | Kind::Expose => "client",
    };
    let began = jiff::Timestamp::try_from(began).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    json!({
        "file_schema": "urn:ietf:params:qlog:file:sequential",
        "serialization_format": "application/qlog+json-seq",
        "title": format!("tabane {name}"),
        "description": state.instance.about,
        "trace": {
            "vantage_point": {
                "name": format!("tabane {}", state.instance.version),
                "type": side,
            },
            "common_fields": {
                "time_format": "relative_to_epoch",
                "reference_time": {
                    "clock_type": "monotonic",
                    "epoch": "unknown",
                    "wall_clock_time": began.to_string(),
                },
            },
            "event_schemas": [
                "urn:ietf:params:qlog:events:quic",
                "urn:ietf:params:qlog:events:loglevel",
            ],
        },
    })
}

/// Name and data of an event.
fn event(entry: &TraceEntry) -> (&'static str, Value) {
    let header = |pn: &u64| json!({ "packet_type": "1RTT", "packet_number": pn });
    let packet = |pn, size, frames: &[_]| {
        let frames: Vec<Value> = frames
            .iter()
            .map(|it| frames::frame(entry.path, it))
            .collect();
        json!({ "header": header(pn), "raw": { "length": size }, "frames": frames })
    };
    match &entry.what {
        TraceWhat::Sent {
            pn, size, frames, ..
        } => ("quic:packet_sent", packet(pn, size, frames)),
        TraceWhat::Received { pn, size, frames } => {
            ("quic:packet_received", packet(pn, size, frames))
        }
        TraceWhat::Acked { first, last } => {
            let numbers: Vec<u64> = (*first..=*last).collect();
            ("quic:packets_acked", json!({ "packet_numbers": numbers }))
        }
        TraceWhat::Lost { pn, .. } => ("quic:packet_lost", json!({ "header": header(pn) })),
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
            "quic:recovery_metrics_updated",
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
        // qlog has states of connections, and none of paths.
        TraceWhat::Status(status) => {
            let message = format!("the path is {status}");
            ("loglevel:info", json!({ "message": message }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_a_head_and_events_each_of_its_path_s_group() {
        let state: State = serde_json::from_str(include_str!("example.json")).unwrap();
        let mut qlog = Qlog::new(SystemTime::UNIX_EPOCH, &state);
        let mut add = |at_us, path, what| qlog.add(&TraceEntry { at_us, path, what });
        add(1_500, 1, TraceWhat::Lost { pn: 7, size: 1_452 });
        add(21_500, 0, TraceWhat::Acked { first: 5, last: 7 });
        qlog.add_missed(0);
        qlog.add_missed(3);
        assert_eq!((qlog.events(), qlog.missed()), (2, 3));
        let text = String::from_utf8(qlog.into_text()).unwrap();
        let records: Vec<Value> = text
            .split_inclusive('\n')
            .map(|it| serde_json::from_str(it.strip_prefix('\u{1e}').unwrap()).unwrap())
            .collect();
        let began = &records[0]["trace"]["common_fields"]["reference_time"]["wall_clock_time"];
        assert_eq!(*began, "1970-01-01T00:00:00Z");
        let lost = json!({ "header": { "packet_type": "1RTT", "packet_number": 7 } });
        let lost = json!({ "time": 1.5, "name": "quic:packet_lost", "group_id": "path 1: usb0",
            "data": lost });
        assert_eq!(records[1], lost);
        assert_eq!(records[2]["group_id"], "path 0");
        assert_eq!(records[2]["data"]["packet_numbers"], json!([5, 6, 7]));
        assert_eq!(records[3]["time"], 21.5);
        assert_eq!(records[3]["data"]["message"], "3 events are missing here");
        assert_eq!(records.len(), 4);
    }
}
