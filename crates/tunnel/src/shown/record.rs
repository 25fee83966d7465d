//! A session's record, handed to a control client as it grows.

use tabane_base::{Duration, Instant};
use tabane_control::{TraceBatch, TraceEntry, TraceFrame, TraceWhat};
use tabane_core::{TraceEvent, TraceLog, Traced, TracedFrame};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use crate::trace::SessionTrace;

/// How often the record is looked at; in between core keeps it.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Hands over what is recorded until nobody listens, or the session is over. Where the listener is
/// slow, core keeps the latest and counts the rest.
pub fn follow_record(trace: SessionTrace) -> mpsc::Receiver<TraceBatch> {
    let (sender, receiver) = mpsc::channel(1);
    tokio::task::spawn_local(async move {
        let mut looks = interval(LOOK_INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = sender.closed() => return,
                _ = looks.tick() => {}
            }
            let Ok(place) = sender.reserve().await else {
                return;
            };
            let Some(log) = trace.take() else { return };
            place.send(batch(trace.began(), log));
        }
    });
    receiver
}

fn batch(began: Instant, log: TraceLog) -> TraceBatch {
    TraceBatch {
        missed: log.missed,
        events: log
            .events
            .into_iter()
            .map(|event| entry(began, event))
            .collect(),
    }
}

fn entry(began: Instant, event: TraceEvent) -> TraceEntry {
    let millis = |span: Duration| span.as_secs_f64() * 1e3;
    TraceEntry {
        at_us: u64::try_from(event.at.since(began).as_micros()).unwrap_or(u64::MAX),
        path: event.path.get(),
        what: match event.what {
            Traced::Sent {
                pn,
                size,
                eliciting,
                frames,
            } => TraceWhat::Sent {
                pn: pn.get(),
                size,
                eliciting,
                frames: frames.into_iter().map(frame).collect(),
            },
            Traced::Received { pn, size, frames } => TraceWhat::Received {
                pn: pn.get(),
                size,
                frames: frames.into_iter().map(frame).collect(),
            },
            Traced::Acked { first, last } => TraceWhat::Acked {
                first: first.get(),
                last: last.get(),
            },
            Traced::Lost { pn, size } => TraceWhat::Lost { pn: pn.get(), size },
            Traced::Status(status) => TraceWhat::Status(status.name().to_owned()),
            Traced::Metrics(metrics) => TraceWhat::Metrics {
                rtt_ms: millis(metrics.rtt_smoothed),
                rtt_latest_ms: millis(metrics.rtt_latest),
                rtt_min_ms: millis(metrics.rtt_min),
                rtt_variation_ms: millis(metrics.rtt_variation),
                cwnd_bytes: metrics.cwnd.get(),
                in_flight_bytes: metrics.in_flight.get(),
                pacing_bps: metrics.pacing_rate.as_bps(),
                phase: metrics.phase.to_owned(),
            },
        },
    }
}

fn frame(traced: TracedFrame) -> TraceFrame {
    TraceFrame {
        name: traced.name.to_owned(),
        code: traced.code,
        path: traced.path,
        stream: traced.stream,
        offset: traced.offset,
        length: traced.length,
        is_last: traced.is_last,
        limit: traced.limit,
        error: traced.error,
        delay_us: traced.delay_us,
        ranges: traced.ranges,
    }
}
