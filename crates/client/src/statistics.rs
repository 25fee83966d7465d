//! What each link has carried over a whole run, and how fast.
//!
//! Fed with snapshots, pure otherwise.

use serde::{Deserialize, Serialize};
use tabane_base::{Bytes, Duration, Rate};
use tabane_control::Traffic;
use tabane_core::PathSnapshot;
use tabane_tunnel::{LinkEstimate, LinkSnapshot, shown::Ledger};

use crate::far_ends::Seen;
use crate::view::of_link;

/// The shortest time that says something about a rate.
const MIN_SAMPLE: Duration = Duration::from_millis(100);

/// Adds up.
#[derive(Debug, Default)]
pub struct Statistics {
    links: Vec<Link>,
    sessions: u64,
    /// When the last sample was taken, from the beginning.
    sampled_at: Duration,
}

#[derive(Debug, Default)]
struct Link {
    name: String,
    ledger: Ledger,
    rtt_ms: Option<f64>,
    rtt_min_ms: Option<f64>,
    jitter_ms: Option<f64>,
    pair_in_bps: Option<u64>,
    pair_out_bps: Option<u64>,
    rate_bps: Option<u64>,
    /// What had been carried at the last sample.
    sampled: Traffic,
    peak_sent_bps: u64,
    peak_received_bps: u64,
}

/// One link's run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LinkReport {
    /// Its name.
    pub link: String,
    /// Away from here, headers included.
    pub sent_bytes: u64,
    /// Towards here.
    pub received_bytes: u64,
    /// Of all bytes in both directions.
    pub share: f64,
    /// The mean over the run.
    pub sent_rate_bps: u64,
    /// The mean over the run.
    pub received_rate_bps: u64,
    /// The most in any half second.
    pub sent_peak_bps: u64,
    /// The most in any half second.
    pub received_peak_bps: u64,
    /// Smoothed, at the end; none if never measured.
    pub rtt_ms: Option<f64>,
    /// The least there was.
    pub rtt_min_ms: Option<f64>,
    /// Mean difference of successive round trips, at the end.
    #[serde(default)]
    pub jitter_ms: Option<f64>,
    /// What the way from the relay could carry, by packet pairs, at the end; IP packets whole.
    #[serde(default)]
    pub pair_in_bps: Option<u64>,
    /// The same towards the relay.
    #[serde(default)]
    pub pair_out_bps: Option<u64>,
    /// Of the packets we sent.
    pub loss: f64,
    /// The bandwidth last believed in, towards the relay.
    pub bandwidth_bps: Option<u64>,
}

/// A run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunReport {
    /// How long it took.
    pub seconds: f64,
    /// More than one says that the session was lost and set up anew.
    pub sessions: u64,
    /// Every link that carried something or could have.
    pub links: Vec<LinkReport>,
}

impl Statistics {
    /// Takes note of a moment, `elapsed` from the beginning, with all clients there are.
    pub fn on_sessions(&mut self, elapsed: Duration, sessions: &[Seen]) {
        self.sessions = sessions.iter().map(|seen| seen.snapshot.sessions).sum();
        for seen in sessions {
            for link in &seen.snapshot.links {
                self.on_link(link);
            }
        }
        for link in &mut self.links {
            let of = sessions.iter().flat_map(|seen| {
                let all = seen.snapshot.links.iter();
                let with = all.filter(|it| it.name == link.name);
                with.flat_map(move |it| of_link(seen, it))
            });
            link.ledger.count(of);
        }
        self.sample(elapsed);
    }

    /// Takes the rates since the last sample.
    fn sample(&mut self, elapsed: Duration) {
        let span = elapsed.saturating_sub(self.sampled_at);
        if span < MIN_SAMPLE {
            return;
        }
        self.sampled_at = elapsed;
        for link in &mut self.links {
            let totals = link.ledger.traffic();
            let rate = |bytes: u64| Rate::of(Bytes::new(bytes), span).as_bps();
            let sent = rate(totals.sent_bytes - link.sampled.sent_bytes);
            let received = rate(totals.received_bytes - link.sampled.received_bytes);
            link.peak_sent_bps = link.peak_sent_bps.max(sent);
            link.peak_received_bps = link.peak_received_bps.max(received);
            link.sampled = totals;
        }
    }

    fn on_link(&mut self, snapshot: &LinkSnapshot) {
        let known = self
            .links
            .iter()
            .position(|link| link.name == snapshot.name);
        let at = known.unwrap_or_else(|| {
            self.links.push(Link {
                name: snapshot.name.clone(),
                ..Link::default()
            });
            self.links.len() - 1
        });
        if let Some(path) = &snapshot.path {
            self.links[at].on_path(path);
        }
        if let Some(estimate) = &snapshot.estimate {
            self.links[at].on_estimate(estimate);
        }
    }

    /// What there is to tell after `elapsed`.
    pub fn report(&self, elapsed: Duration) -> RunReport {
        let seconds = elapsed.as_secs_f64();
        let all: u64 = self
            .links
            .iter()
            .map(|link| both(&link.ledger.traffic()))
            .sum();
        let rate = |bytes: u64| match elapsed.is_zero() {
            true => 0,
            false => Rate::of(Bytes::new(bytes), elapsed).as_bps(),
        };
        let part = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
        let link_report = |link: &Link| {
            let totals = link.ledger.traffic();
            LinkReport {
                link: link.name.clone(),
                sent_bytes: totals.sent_bytes,
                received_bytes: totals.received_bytes,
                share: part(both(&totals), all),
                sent_rate_bps: rate(totals.sent_bytes),
                received_rate_bps: rate(totals.received_bytes),
                // A run shorter than a sample has only its mean.
                sent_peak_bps: link.peak_sent_bps.max(rate(totals.sent_bytes)),
                received_peak_bps: link.peak_received_bps.max(rate(totals.received_bytes)),
                rtt_ms: link.rtt_ms,
                rtt_min_ms: link.rtt_min_ms,
                jitter_ms: link.jitter_ms,
                pair_in_bps: link.pair_in_bps,
                pair_out_bps: link.pair_out_bps,
                loss: part(totals.lost_packets, totals.sent_packets),
                bandwidth_bps: link.rate_bps,
            }
        };
        let links = self.links.iter().map(link_report).collect();
        RunReport {
            seconds,
            sessions: self.sessions,
            links,
        }
    }
}

impl Link {
    fn on_path(&mut self, path: &PathSnapshot) {
        if let Some((latest, least)) = path.link_round_trip() {
            let millis = |span: Duration| span.as_secs_f64() * 1e3;
            self.rtt_ms = Some(millis(latest));
            self.rtt_min_ms = Some(millis(least));
        }
        let rate = path.delivery_rate.as_bps();
        if rate > 0 {
            self.rate_bps = Some(rate);
        }
    }

    fn on_estimate(&mut self, estimate: &LinkEstimate) {
        let jitter = estimate.jitter.map(|span| span.as_secs_f64() * 1e3);
        self.jitter_ms = jitter.or(self.jitter_ms);
        self.pair_in_bps = estimate.pair_in.map(Rate::as_bps).or(self.pair_in_bps);
        self.pair_out_bps = estimate.pair_out.map(Rate::as_bps).or(self.pair_out_bps);
    }
}

/// In both directions.
fn both(traffic: &Traffic) -> u64 {
    traffic.sent_bytes + traffic.received_bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use tabane_tunnel::shown::Source;

    fn carried(sent_bytes: u64) -> Traffic {
        Traffic {
            sent_bytes,
            received_bytes: 2 * sent_bytes,
            sent_packets: sent_bytes / 100,
            lost_packets: sent_bytes / 1_000,
            ..Traffic::default()
        }
    }

    /// A path's session and number, and what it had sent at that moment.
    type Sample = ((u64, u32), u64);

    fn statistics(counts: &[(&str, &[Sample])]) -> Statistics {
        let mut statistics = Statistics {
            sessions: 1,
            ..Statistics::default()
        };
        for (name, samples) in counts {
            let mut link = Link {
                name: (*name).to_owned(),
                ..Link::default()
            };
            for (source, sent) in *samples {
                let (session, path) = *source;
                link.ledger
                    .count([(Source::Path(session, path), carried(*sent))]);
            }
            statistics.links.push(link);
        }
        statistics
    }

    #[test]
    fn what_replaced_paths_carried_is_kept() {
        let statistics = statistics(&[
            (
                "a",
                &[
                    ((1, 0), 1_000),
                    ((1, 0), 4_000),
                    ((1, 2), 500),
                    ((2, 2), 1_500),
                ],
            ),
            ("b", &[((1, 1), 2_000)]),
        ]);
        let report = statistics.report(Duration::from_secs(2));
        assert_eq!(report.links[0].sent_bytes, 4_000 + 500 + 1_500);
        assert_eq!(report.links[0].received_bytes, 2 * 6_000);
        assert_eq!(report.links[0].share, 0.75);
        assert_eq!(report.links[1].sent_rate_bps, 8_000);
        assert_eq!(report.links[1].loss, 0.1);
    }

    #[test]
    fn the_peak_is_that_of_the_best_sample() {
        let mut statistics = statistics(&[("a", &[((1, 0), 1_000)])]);
        statistics.sample(Duration::from_secs(1));
        statistics.links[0]
            .ledger
            .count([(Source::Path(1, 0), carried(11_000))]);
        statistics.sample(Duration::from_millis(1_500));
        statistics.links[0]
            .ledger
            .count([(Source::Path(1, 0), carried(12_000))]);
        statistics.sample(Duration::from_millis(1_550));
        statistics.sample(Duration::from_secs(3));
        let report = statistics.report(Duration::from_secs(3));
        assert_eq!(report.links[0].sent_peak_bps, 10_000 * 8 * 2);
        assert_eq!(report.links[0].sent_rate_bps, 32_000);
    }

    #[test]
    fn nothing_carried_divides_by_nothing() {
        let report = statistics(&[("a", &[])]).report(Duration::ZERO);
        assert_eq!((report.links[0].share, report.links[0].loss), (0.0, 0.0));
    }
}
