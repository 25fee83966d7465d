//! What a qlog file must look like: the parts of the schema that we use, as the drafts
//! (draft-ietf-quic-qlog-main-schema, draft-ietf-quic-qlog-quic-events) have them in CDDL.

use serde_json::Value;

/// The type of a field.
#[derive(Clone, Copy)]
enum Type {
    Text,
    /// `uint64`
    Number,
    /// `float32`, `float64`
    Float,
    Bool,
    Object,
    /// `[+ AckRange]`: one or two numbers each
    Ranges,
    /// `[+ uint64]`
    Numbers,
    Frames,
}

use Type::{Bool, Float, Frames, Number, Numbers, Object, Ranges, Text};

/// A name, and its fields; those with `?` may be absent.
type Definition = (&'static str, &'static [(&'static str, Type)]);

const EVENTS: [Definition; 7] = [
    (
        "quic:packet_sent",
        &[("header", Object), ("raw?", Object), ("frames?", Frames)],
    ),
    (
        "quic:packet_received",
        &[("header", Object), ("raw?", Object), ("frames?", Frames)],
    ),
    ("quic:packets_acked", &[("packet_numbers?", Numbers)]),
    ("quic:packet_lost", &[("header?", Object)]),
    (
        "quic:recovery_metrics_updated",
        &[
            ("min_rtt?", Float),
            ("smoothed_rtt?", Float),
            ("latest_rtt?", Float),
            ("rtt_variance?", Float),
            ("congestion_window?", Number),
            ("bytes_in_flight?", Number),
            ("pacing_rate?", Number),
            ("controller_phase?", Text),
        ],
    ),
    ("loglevel:info", &[("message?", Text)]),
    ("loglevel:warning", &[("message?", Text)]),
];

const FRAMES: [Definition; 15] = [
    ("padding", &[("payload_length", Number)]),
    ("ping", &[]),
    ("ack", &[("ack_delay?", Float), ("acked_ranges?", Ranges)]),
    (
        "reset_stream",
        &[
            ("stream_id", Number),
            ("error_code", Number),
            ("final_size", Number),
        ],
    ),
    (
        "stop_sending",
        &[("stream_id", Number), ("error_code", Number)],
    ),
    (
        "crypto",
        &[("offset", Number), ("length", Number), ("raw?", Object)],
    ),
    (
        "stream",
        &[
            ("stream_id", Number),
            ("offset", Number),
            ("length", Number),
            ("fin?", Bool),
            ("raw?", Object),
        ],
    ),
    ("max_data", &[("maximum", Number)]),
    (
        "max_stream_data",
        &[("stream_id", Number), ("maximum", Number)],
    ),
    ("max_streams", &[("stream_type", Text), ("maximum", Number)]),
    ("path_challenge", &[]),
    ("path_response", &[]),
    ("connection_close", &[("error_code?", Number)]),
    ("datagram", &[("length?", Number), ("raw?", Object)]),
    (
        "unknown",
        &[("frame_type_bytes", Number), ("tabane?", Object)],
    ),
];

const HEAD: Definition = (
    "head",
    &[
        ("file_schema", Text),
        ("serialization_format", Text),
        ("title?", Text),
        ("description?", Text),
        ("trace", Object),
    ],
);
const EVENT: Definition = (
    "event",
    &[
        ("time", Float),
        ("name", Text),
        ("group_id?", Text),
        ("data", Object),
    ],
);
const HEADER: Definition = (
    "header",
    &[("packet_type", Text), ("packet_number?", Number)],
);
const RAW: Definition = ("raw", &[("length?", Number), ("payload_length?", Number)]);

/// The events of a file, every record of which is as the schema has it.
pub(crate) fn events(file: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(file).unwrap();
    let mut records = text.split_inclusive('\n').map(|record| {
        let json = record.strip_prefix('\u{1e}').expect(record);
        serde_json::from_str::<Value>(json).unwrap()
    });
    let head = records.next().unwrap();
    check(&head, HEAD);
    assert_eq!(head["file_schema"], "urn:ietf:params:qlog:file:sequential");
    assert_eq!(head["serialization_format"], "application/qlog+json-seq");
    let trace = &head["trace"];
    assert!(
        trace["event_schemas"]
            .as_array()
            .unwrap()
            .iter()
            .all(Value::is_string)
    );
    assert_eq!(trace["vantage_point"]["type"], "client");
    let time = &trace["common_fields"]["reference_time"];
    assert_eq!(
        (&time["clock_type"], &time["epoch"]),
        (&"monotonic".into(), &"unknown".into())
    );
    records.inspect(check_event).collect()
}

fn check_event(event: &Value) {
    check(event, EVENT);
    let data = &event["data"];
    check(data, definition(&EVENTS, &event["name"]));
    let header = &data["header"];
    if header.is_object() {
        check(header, HEADER);
        assert_eq!(header["packet_type"], "1RTT", "{event}");
    }
}

fn definition(known: &[Definition], name: &Value) -> Definition {
    let found = known.iter().find(|(known, _)| name == known);
    *found.unwrap_or_else(|| panic!("qlog has no {name}"))
}

fn check(object: &Value, (name, fields): Definition) {
    let object = object
        .as_object()
        .unwrap_or_else(|| panic!("{name}: {object}"));
    for (field, what) in fields {
        let (field, is_optional) = match field.strip_suffix('?') {
            Some(field) => (field, true),
            None => (*field, false),
        };
        match object.get(field) {
            Some(value) => assert!(is(value, *what), "{field} of {name}: {object:?}"),
            None => assert!(is_optional, "no {field} of {name}: {object:?}"),
        }
        if let ("raw", Some(raw)) = (field, object.get(field)) {
            check(raw, RAW);
        }
    }
    let is_known = |key: &String| {
        key == "frame_type"
            || fields
                .iter()
                .any(|(field, _)| field.trim_end_matches('?') == key)
    };
    assert!(object.keys().all(is_known), "{name} has more: {object:?}");
}

fn is(value: &Value, what: Type) -> bool {
    let all = |is_so: &dyn Fn(&Value) -> bool| {
        let values = value.as_array();
        values.is_some_and(|values| !values.is_empty() && values.iter().all(is_so))
    };
    match what {
        Text => value.is_string(),
        Number => value.is_u64(),
        Float => value.is_number(),
        Bool => value.is_boolean(),
        Object => value.is_object(),
        Numbers => all(&Value::is_u64),
        Ranges => {
            all(&|run| is(run, Numbers) && matches!(run.as_array().map(Vec::len), Some(1 | 2)))
        }
        Frames => value.as_array().is_some_and(|frames| {
            let kind = |frame: &Value| definition(&FRAMES, &frame["frame_type"]);
            frames.iter().for_each(|frame| check(frame, kind(frame)));
            true
        }),
    }
}
