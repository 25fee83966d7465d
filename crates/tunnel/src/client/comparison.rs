//! Whether one of a link's two carriers carries far more than the other: how UDP that is policed
//! shows.
//!
//! Pure: owns what of a path's counters makes it suspected, and what is made of two paths that
//! carry a link side by side. When that is looked at and what follows is for `carrier`.
//!
//! A policer drops what is above a rate of its own, second after second; so do slow links with
//! short queues and radio with losses. Only what TLS carries beside it tells them apart.

use std::collections::VecDeque;

use tabane_base::Duration;
use tabane_core::{PathSnapshot, PathStatus};
use tokio::time::Instant;

/// How often the carriers are looked at, alone and side by side.
pub(super) const LOOK_ALONE: Duration = Duration::from_secs(1);
pub(super) const LOOK_BESIDE: Duration = Duration::from_millis(500);
/// Seconds in a row with such losses make UDP suspected: neither what a sender loses while it
/// looks for the rate of a link nor a bad moment of radio lasts for so long.
const SUSPICIOUS: usize = 3;
/// Less of what was sent is lost on most links that are merely bad, in thousandths.
const LOSSY_PERMILLE: u64 = 30;
/// Fewer packets in a second do not show what a link carries.
const FEW_PACKETS: u64 = 20;
/// Carriers are compared for so long at most, and from then on judged by the last few looks; the
/// first shows how TCP begins.
const PATIENCE: Duration = Duration::from_secs(6);
const JUDGED_LOOKS: usize = 3;
/// TLS that carries so many times as much is worth its costs.
const FAR_MORE: u64 = 2;
/// Less than this is no load that could show anything, in bytes per second.
const LOAD: u64 = 12_500;

/// What has passed by a path in one direction, since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Count {
    /// Bytes that arrived.
    pub(super) bytes: u64,
    /// Packets that were sent and either arrived or did not.
    pub(super) packets: u64,
    /// Packets that did not arrive.
    pub(super) lost: u64,
}

/// A path's counters at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) at: Instant,
    /// Away from here, and towards here.
    pub(super) counts: [Count; 2],
    /// It carries data.
    pub(super) is_active: bool,
}

impl Sample {
    pub(super) fn of(path: &PathSnapshot, at: Instant) -> Self {
        let lost = path.lost_packets.saturating_sub(path.spurious_losses);
        let out = Count {
            bytes: path.acked.get(),
            packets: path.sent_packets,
            lost,
        };
        let into = Count {
            bytes: path.received.get(),
            packets: path.received_packets + path.missing_packets,
            lost: path.missing_packets,
        };
        Self {
            at,
            counts: [out, into],
            is_active: path.status == PathStatus::Active,
        }
    }

    /// What passed since an earlier moment, one way.
    fn since(&self, earlier: &Self, way: usize) -> Count {
        let (now, then) = (self.counts[way], earlier.counts[way]);
        Count {
            bytes: now.bytes.saturating_sub(then.bytes),
            packets: now.packets.saturating_sub(then.packets),
            lost: now.lost.saturating_sub(then.lost),
        }
    }
}

impl Count {
    fn is_lossy(&self) -> bool {
        self.packets >= FEW_PACKETS && self.lost * 1_000 >= self.packets * LOSSY_PERMILLE
    }
}

/// A direction whose losses need an explanation, and what UDP carried there meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Suspicion {
    /// 0 away from here, 1 towards here.
    pub(super) way: usize,
    /// Bytes a second.
    pub(super) carried: u64,
}

/// UDP that carries a link by itself, looked at now and then.
#[derive(Debug, Default)]
pub(super) struct Watch {
    samples: VecDeque<Sample>,
}

impl Watch {
    /// One more look; tells what is suspected. Looks that are far apart, or of another path, begin
    /// anew.
    pub(super) fn add(&mut self, sample: Sample) -> Option<Suspicion> {
        let is_next = |last: &Sample| {
            let counts = last.counts.iter().zip(&sample.counts);
            let mut grows = counts.map(|(then, now)| now.packets >= then.packets);
            sample.at - last.at < 2 * LOOK_ALONE && grows.all(|grows| grows)
        };
        if !self.samples.back().is_some_and(is_next) {
            self.samples.clear();
        }
        self.samples.push_back(sample);
        if self.samples.len() <= SUSPICIOUS {
            return None;
        }
        let first = self.samples.pop_front()?;
        (0..2).find_map(|way| {
            let mut last = &first;
            for next in &self.samples {
                if !next.since(last, way).is_lossy() {
                    return None;
                }
                last = next;
            }
            let carried = rate(&first, &sample, way);
            Some(Suspicion { way, carried })
        })
    }
}

/// What a comparison came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// TLS does far more: so many bytes a second.
    TlsCarriesMore { tls: u64 },
    /// UDP is as good, or nothing could be seen.
    UdpWillDo,
}

/// Two carriers of one link side by side.
#[derive(Debug)]
pub(super) struct Comparison {
    suspicion: Suspicion,
    /// TLS carries the link, and UDP is tried beside it.
    is_back: bool,
    until: Instant,
    /// Of UDP and TLS.
    samples: VecDeque<(Sample, Sample)>,
}

impl Comparison {
    /// Both carry from here on: TLS beside UDP that is suspected, or UDP once more (`is_back`)
    /// beside TLS.
    pub(super) fn new(now: Instant, suspicion: Suspicion, is_back: bool) -> Self {
        Self {
            suspicion,
            is_back,
            until: now + PATIENCE,
            samples: VecDeque::new(),
        }
    }

    /// One more look at both, after which there may be a verdict.
    pub(super) fn add(&mut self, udp: Sample, tls: Sample) -> Option<Verdict> {
        let first = match self.samples.len() > JUDGED_LOOKS {
            true => self.samples.pop_front(),
            false => self.samples.front().copied(),
        };
        self.samples.push_back((udp, tls));
        let (first_udp, first_tls) = first.unwrap_or((udp, tls));
        let way = self.suspicion.way;
        let rates = (rate(&first_udp, &udp, way), rate(&first_tls, &tls, way));
        match (udp.is_active, tls.is_active) {
            (false, true) => return Some(Verdict::TlsCarriesMore { tls: rates.1 }),
            (true, false) if self.is_back => return Some(Verdict::UdpWillDo),
            _ => {}
        }
        let is_over = udp.at >= self.until;
        match self.is_back {
            false if self.samples.len() > JUDGED_LOOKS && self.is_policed(rates) => {
                Some(Verdict::TlsCarriesMore { tls: rates.1 })
            }
            false => is_over.then_some(Verdict::UdpWillDo),
            // A policer lets some pass at first: only the end counts.
            true if !is_over => None,
            true => Some(match self.is_freed(udp.since(&first_udp, way), rates) {
                true => Verdict::UdpWillDo,
                false => Verdict::TlsCarriesMore { tls: rates.1 },
            }),
        }
    }

    /// TLS must carry far more than UDP does beside it, and than UDP did alone: else it merely
    /// pushes UDP aside where both have one bottleneck, or UDP has nothing to do any more.
    fn is_policed(&self, (udp, tls): (u64, u64)) -> bool {
        tls >= LOAD && tls >= FAR_MORE * udp.max(self.suspicion.carried)
    }

    /// UDP carries far more than when it was suspected, or what TLS does, and loses little.
    fn is_freed(&self, count: Count, (udp, tls): (u64, u64)) -> bool {
        let is_more = udp >= FAR_MORE * self.suspicion.carried || udp >= tls;
        udp >= LOAD && is_more && !count.is_lossy()
    }
}

/// Whether a path carries enough between two looks to be compared with another.
pub(super) fn is_loaded(first: &Sample, last: &Sample) -> bool {
    (0..2).any(|way| rate(first, last, way) >= LOAD)
}

/// Bytes a second between two looks at one path.
fn rate(first: &Sample, last: &Sample, way: usize) -> u64 {
    let bytes = u128::from(last.since(first, way).bytes);
    let millis = (last.at - first.at).as_millis().max(1);
    u64::try_from(bytes * 1_000 / millis).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
