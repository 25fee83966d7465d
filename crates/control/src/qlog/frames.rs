//! A packet's frames in the words of qlog.

use crate::trace::TraceFrame;
use serde_json::{Map, Value, json};

/// A frame of a packet on `path`. Types that QUIC does not have are `unknown` to qlog; ours is then
/// told beside it.
pub(super) fn frame(path: u32, frame: &TraceFrame) -> Value {
    let data = json!({ "payload_length": frame.length });
    let own = match &frame.name[..] {
        "padding" => json!({ "payload_length": frame.length }),
        "ping" | "path_challenge" | "path_response" => json!({}),
        // The numbers of another path are not of this group.
        "ack" if frame.path == Some(path) => json!({
            "ack_delay": frame.delay_us.unwrap_or_default() as f64 / 1e3,
            "acked_ranges": frame.ranges,
        }),
        "stream" => {
            let mut own = json!({
                "stream_id": frame.stream,
                "offset": frame.offset,
                "length": frame.length,
                "raw": data,
            });
            if frame.is_last {
                own["fin"] = true.into();
            }
            own
        }
        "crypto" => json!({ "offset": frame.offset, "length": frame.length, "raw": data }),
        "reset_stream" => json!({
            "stream_id": frame.stream,
            "error_code": frame.error,
            "final_size": frame.limit,
        }),
        "stop_sending" => json!({ "stream_id": frame.stream, "error_code": frame.error }),
        "max_data" => json!({ "maximum": frame.limit }),
        "max_stream_data" => json!({ "stream_id": frame.stream, "maximum": frame.limit }),
        "max_streams" => json!({ "stream_type": "bidirectional", "maximum": frame.limit }),
        "connection_close" => json!({ "error_code": frame.error }),
        "datagram" => json!({ "length": frame.length, "raw": data }),
        _ => return unknown(frame),
    };
    named(&frame.name, own)
}

fn unknown(frame: &TraceFrame) -> Value {
    let own = json!({ "frame_type_bytes": frame.code, "tabane": frame });
    named("unknown", own)
}

fn named(name: &str, own: Value) -> Value {
    let mut whole = Map::from_iter([("frame_type".to_owned(), name.into())]);
    if let Value::Object(own) = own {
        whole.extend(own);
    }
    whole.into()
}
