//! A download over several links as it was counted: what came, and what each link carried.
//!
//! Whether the links were real or emulated makes no difference here.

use tabane_base::{Bytes, Duration, Rate};

/// Everything counted at one moment; totals of the download so far.
#[derive(Clone, Debug, PartialEq)]
pub struct DownloadSample {
    /// Since the first sample.
    pub at: Duration,
    /// What curl has handed out.
    pub received: Bytes,
    /// What came out of each link, in whole IP packets, since the lab was built.
    pub links: Vec<LinkTraffic>,
}

/// What came out of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LinkTraffic {
    /// Towards the client.
    pub down: Bytes,
    /// From the client.
    pub up: Bytes,
}

/// A download that is over.
#[derive(Clone, Debug)]
pub struct Download {
    /// Every byte of it checked.
    pub received: Bytes,
    /// By curl's clock, start-up included.
    pub lasted: Duration,
    /// When curl began, on the samples' clock.
    pub begun_at: Duration,
    /// From its beginning to its end.
    pub samples: Vec<DownloadSample>,
}

impl Download {
    /// Goodput.
    #[must_use]
    pub fn rate(&self) -> Rate {
        Rate::of(self.received, self.lasted)
    }

    /// Each link's part of the goodput, as its part of what all links carried.
    #[must_use]
    pub fn parts(&self) -> Vec<Rate> {
        let carried = self.carried();
        let all: Bytes = carried.iter().copied().sum();
        let part = |bytes: &Bytes| bytes.get() as f64 / all.get().max(1) as f64;
        carried
            .iter()
            .map(|bytes| self.rate().scaled(part(bytes)))
            .collect()
    }

    /// What each link carried towards the client.
    #[must_use]
    pub fn carried(&self) -> Vec<Bytes> {
        let (Some(first), Some(last)) = (self.samples.first(), self.samples.last()) else {
            return Vec::new();
        };
        let pairs = first.links.iter().zip(&last.links);
        pairs.map(|(first, last)| last.down - first.down).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Per 100 ms: 50 kB received, of 60 kB on two links.
    fn sample(number: u64) -> DownloadSample {
        let link = |down: u64| LinkTraffic {
            down: Bytes::new(7 + number * down),
            up: Bytes::new(number * down / 20),
        };
        DownloadSample {
            at: Duration::from_millis(100) * u32::try_from(number).unwrap(),
            received: Bytes::new(number * 50_000),
            links: vec![link(40_000), link(20_000)],
        }
    }

    #[test]
    fn parts_add_up_to_what_was_received() {
        let download = Download {
            received: Bytes::new(500_000),
            lasted: Duration::from_secs(1),
            begun_at: Duration::ZERO,
            samples: (0..=10).map(sample).collect(),
        };
        assert_eq!(download.rate(), Rate::from_mbps(4));
        assert_eq!(download.carried(), [400_000, 200_000].map(Bytes::new));
        let parts = download.parts();
        assert_eq!(parts[0].as_bps(), 2_666_666);
        assert_eq!(parts[1].as_bps(), 1_333_333);
    }
}
