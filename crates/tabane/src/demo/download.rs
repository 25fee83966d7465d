//! One download by curl, watched: what curl hands out, checked byte by byte, and what each link
//! carries meanwhile.

use std::time::Instant;

use anyhow::{Context, Result, bail};
use tabane_base::{Bytes, Duration, Rate};
use tabane_lab::Control;
use tabane_sim::{Download, DownloadSample, LinkTraffic};
use tokio::io::AsyncReadExt;
use tokio::time::{MissedTickBehavior, interval};

use super::process::Process;
use super::view::{Rates, View};
use super::web_server::BODY;
use super::world::{Fetch, curl};

/// How often counters are read: fine enough for a picture, too rare to cost anything.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);
/// Rates for display are over so many samples, so that they can be read.
const DISPLAY_SAMPLES: usize = 5;
/// What is read from curl at once.
const BLOCK: usize = 64 * 1024;

/// Runs a download to its end.
pub(crate) async fn run(fetch: Fetch, control: &Control, view: &mut View) -> Result<Download> {
    let (command, session) = fetch.into_parts();
    // So that every download meets the same outages and traces.
    control.restart_schedule();
    let outcome = watch(Process::start(command)?, control, view).await;
    session.close().await;
    outcome
}

async fn watch(mut process: Process, control: &Control, view: &mut View) -> Result<Download> {
    let mut output = process.output();
    let mut verified = 0;
    let mut buffer = vec![0; BLOCK];
    let mut samples = Sampler::start(control)?;
    let mut ticks = interval(SAMPLE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            read = output.read(&mut buffer) => match read.context("cannot read from curl")? {
                0 => break,
                count => {
                    check(verified, &buffer[..count])?;
                    verified += count as u64;
                }
            },
            _ = ticks.tick() => {
                samples.take(verified)?;
                view.show(&samples.rates())?;
            }
        }
    }
    samples.take(verified)?;
    let ended_at = samples.elapsed();
    let ended = process.end().await?;
    let lasted = curl::time_taken(&ended)?;
    if verified == 0 {
        bail!("no data came");
    }
    Ok(Download {
        received: Bytes::new(verified),
        lasted,
        begun_at: ended_at.saturating_sub(lasted),
        samples: samples.taken,
    })
}

/// Whether these bytes of the body, from `offset` on, are the ones that were sent.
fn check(offset: u64, bytes: &[u8]) -> Result<()> {
    if let Some(at) = BODY.first_difference(offset, bytes) {
        bail!("byte {at} of the download is not the one that was sent");
    }
    Ok(())
}

/// Takes samples.
struct Sampler<'a> {
    control: &'a Control,
    begun_at: Instant,
    taken: Vec<DownloadSample>,
}

impl<'a> Sampler<'a> {
    fn start(control: &'a Control) -> Result<Self> {
        let mut sampler = Self {
            control,
            begun_at: Instant::now(),
            taken: Vec::new(),
        };
        sampler.take(0)?;
        Ok(sampler)
    }

    fn take(&mut self, received: u64) -> Result<()> {
        let snapshot = self.control.snapshot()?;
        let links = snapshot.links.iter().map(|link| LinkTraffic {
            down: link.down.delivered.bytes,
            up: link.up.delivered.bytes,
        });
        self.taken.push(DownloadSample {
            at: self.begun_at.elapsed(),
            received: Bytes::new(received),
            links: links.collect(),
        });
        Ok(())
    }

    fn elapsed(&self) -> Duration {
        self.taken.last().map_or(Duration::ZERO, |last| last.at)
    }

    fn rates(&self) -> Rates {
        rates(&self.taken)
    }
}

/// Over the last samples.
fn rates(samples: &[DownloadSample]) -> Rates {
    let recent = &samples[samples.len().saturating_sub(DISPLAY_SAMPLES + 1)..];
    let (Some(first), Some(last)) = (recent.first(), recent.last()) else {
        return Rates {
            elapsed: Duration::ZERO,
            received: Rate::ZERO,
            links: Vec::new(),
        };
    };
    let span = last.at.saturating_sub(first.at);
    let over = |before: Bytes, after: Bytes| {
        if span.is_zero() {
            Rate::ZERO
        } else {
            Rate::of(after - before, span)
        }
    };
    let pairs = first.links.iter().zip(&last.links);
    Rates {
        elapsed: last.at,
        received: over(first.received, last.received),
        links: pairs
            .map(|(first, last)| (over(first.down, last.down), over(first.up, last.up)))
            .collect(),
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
            at: SAMPLE_INTERVAL * u32::try_from(number).unwrap(),
            received: Bytes::new(number * 50_000),
            links: vec![link(40_000), link(20_000)],
        }
    }

    #[test]
    fn rates_are_those_of_the_last_half_second() {
        let mut samples: Vec<DownloadSample> = (0..=4).map(|_| sample(0)).collect();
        assert_eq!(rates(&samples[..1]).received, Rate::ZERO);
        assert_eq!(rates(&[]).received, Rate::ZERO);
        samples = (0..=20).map(sample).collect();
        let rates = rates(&samples);
        assert_eq!(rates.received, Rate::from_mbps(4));
        let [wide, narrow] = rates.links[..] else {
            panic!("two links");
        };
        assert_eq!(wide, (Rate::from_bps(3_200_000), Rate::from_bps(160_000)));
        assert_eq!(narrow.0, Rate::from_bps(1_600_000));
    }
}
