//! How fast the way to the relay is, by as many bytes as it takes, and how long echoes take beside
//! them.
//!
//! Owns what is sent and what of it counts. A session that is measured should carry nothing else;
//! which links are measured is the [`report`]'s.

mod report;

use std::cell::{Cell, RefCell};
use std::future::pending;
use std::io;

use tabane_base::{Bytes, Duration, Rate};
use tabane_tunnel::{Carried, Client, Measure, OpenError, loopback};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

pub use report::{Report, Row, report};

/// Echoes that are timed while nothing else is sent, and how long they may take in all.
const IDLE_ECHOES: usize = 5;
const IDLE_TIME: Duration = Duration::from_secs(2);
/// Between an echo and the next beside a load.
const ECHO_INTERVAL: Duration = Duration::from_millis(20);
/// Bytes written or read by one call.
const BLOCK: usize = 256 * 1024;

/// How fast one way to the relay is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Speed {
    /// What an echo takes while nothing else is sent; `None` where none came back in time.
    idle: Option<Duration>,
    /// From the relay.
    down: LoadSample,
    /// To the relay.
    up: LoadSample,
}

/// One direction while it is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LoadSample {
    /// What arrived in the second half of the time: the first is left to senders to find out.
    rate: Rate,
    /// What an echo took meanwhile, the median.
    latency: Option<Duration>,
}

/// Why there is no figure.
#[derive(Debug, thiserror::Error)]
enum SpeedError {
    /// The relay does not measure, or no more for now; or the session ended.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// No connection on loopback.
    #[error("no connection within this machine: {0}")]
    Loopback(#[source] io::Error),
}

/// Measures the session of `client` for `span`, half of it down and half up, and a few echoes
/// before.
async fn measure(client: &Client, span: Duration) -> Result<Speed, SpeedError> {
    let mut echo = Echo::open(client).await?;
    let idle = echo.idle().await;
    let down = load(client, &mut echo, Measure::Down, span / 2).await?;
    // The relay ends each line after ten seconds, and serves few at once.
    drop(echo);
    let mut echo = Echo::open(client).await?;
    let up = load(client, &mut echo, Measure::Up, span / 2).await?;
    Ok(Speed { idle, down, up })
}

/// A measure, and its near end; dropping it ends it at once, whatever is under way.
struct Line {
    tcp: TcpStream,
    _carrying: JoinSet<Carried>,
}

impl Line {
    async fn open(client: &Client, measure: Measure) -> Result<Self, SpeedError> {
        let flow = client.open_measure(measure).await?;
        let (tcp, far) = loopback::pair().await.map_err(SpeedError::Loopback)?;
        let mut carrying = JoinSet::new();
        carrying.spawn_local(flow.carry(far));
        Ok(Self {
            tcp,
            _carrying: carrying,
        })
    }
}

async fn load(
    client: &Client,
    echo: &mut Echo,
    measure: Measure,
    span: Duration,
) -> Result<LoadSample, SpeedError> {
    let mut line = Line::open(client, measure).await?;
    let arrivals = Arrivals::begin();
    let half = async {
        sleep(span / 2).await;
        let before = arrivals.latest.get();
        sleep(span / 2).await;
        arrivals.rate_since(before)
    };
    let moving = async {
        match measure {
            Measure::Up => arrivals.of_reports(&mut line.tcp).await,
            Measure::Down | Measure::Echo => arrivals.of_bytes(&mut line.tcp).await,
        }
    };
    let rate = async {
        tokio::select! {
            rate = half => Ok(rate),
            // Neither end has an end of its own before the time is over.
            () = moving => Err(SpeedError::Open(OpenError::SessionLost)),
        }
    };
    let (rate, latency) = echo.during(rate).await;
    Ok(LoadSample {
        rate: rate?,
        latency,
    })
}

/// How many bytes have arrived, and when the last of them did.
struct Arrivals {
    latest: Cell<(Instant, u64)>,
}

impl Arrivals {
    fn begin() -> Self {
        Self {
            latest: Cell::new((Instant::now(), 0)),
        }
    }

    fn rate_since(&self, before: (Instant, u64)) -> Rate {
        let latest = self.latest.get();
        let span = latest.0.saturating_duration_since(before.0);
        match span.is_zero() {
            true => Rate::ZERO,
            false => Rate::of(Bytes::new(latest.1.saturating_sub(before.1)), span),
        }
    }

    /// Reads until `tcp` ends.
    async fn of_bytes(&self, tcp: &mut TcpStream) {
        let mut block = vec![0; BLOCK];
        while let Ok(len @ 1..) = tcp.read(&mut block).await {
            let (_, before) = self.latest.get();
            self.latest.set((Instant::now(), before + len as u64));
        }
    }

    /// Writes, and reads what the relay says has come of it, until `tcp` ends.
    async fn of_reports(&self, tcp: &mut TcpStream) {
        let (mut reader, mut writer) = tcp.split();
        let block = vec![0; BLOCK];
        let writing = async { while writer.write_all(&block).await.is_ok() {} };
        let reading = async {
            while let Ok(count) = reader.read_u64().await {
                self.latest.set((Instant::now(), count));
            }
        };
        tokio::select! {
            () = writing => {}
            () = reading => {}
        }
    }
}

/// Numbers that go to the relay and back, one at a time.
struct Echo {
    line: Line,
    number: u64,
    /// Bytes that are back and not looked at.
    back: Vec<u8>,
}

impl Echo {
    async fn open(client: &Client) -> Result<Self, SpeedError> {
        Ok(Self {
            line: Line::open(client, Measure::Echo).await?,
            number: 0,
            back: Vec::new(),
        })
    }

    /// What an echo takes with nothing beside it.
    async fn idle(&mut self) -> Option<Duration> {
        let times = RefCell::new(Vec::new());
        let asking = async {
            for _ in 0..IDLE_ECHOES {
                let time = self.once(&Cell::default()).await;
                times.borrow_mut().push(time);
            }
        };
        // What has come by then is as good.
        let _ = timeout(IDLE_TIME, asking).await;
        median(times.into_inner())
    }

    /// What `load` comes to, and what an echo took meanwhile. One that is not back at the end
    /// counts where it has taken longer than all others: queues may be longer than the time.
    async fn during<R>(&mut self, load: impl Future<Output = R>) -> (R, Option<Duration>) {
        let times = RefCell::new(Vec::new());
        let waits_since = Cell::new(None);
        let asking = async {
            loop {
                let time = self.once(&waits_since).await;
                times.borrow_mut().push(time);
                sleep(ECHO_INTERVAL).await;
            }
        };
        let result = tokio::select! {
            result = load => result,
            never = asking => never,
        };
        let mut times = times.into_inner();
        let waits = waits_since.get().map(|since: Instant| since.elapsed());
        if let Some(waits) = waits.filter(|waits| times.iter().all(|time| time < waits)) {
            times.push(waits);
        }
        (result, median(times))
    }

    /// The time of one echo, for ever where none comes back. May be given up at any point.
    async fn once(&mut self, waits_since: &Cell<Option<Instant>>) -> Duration {
        self.number += 1;
        let number = self.number.to_be_bytes();
        let sent_at = Instant::now();
        waits_since.set(Some(sent_at));
        if self.line.tcp.write_all(&number).await.is_err() {
            return pending().await;
        }
        loop {
            // Ones that were given up come back before it.
            while let Some((heard, rest)) = self.back.split_first_chunk::<8>() {
                let is_it = *heard == number;
                self.back = rest.to_vec();
                if is_it {
                    waits_since.set(None);
                    return sent_at.elapsed();
                }
            }
            match self.line.tcp.read_buf(&mut self.back).await {
                Ok(1..) => {}
                Ok(0) | Err(_) => return pending().await,
            }
        }
    }
}

fn median(mut times: Vec<Duration>) -> Option<Duration> {
    times.sort_unstable();
    times.get(times.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_what_was_timed_counts() {
        let times = |millis: &[u64]| millis.iter().map(|it| Duration::from_millis(*it)).collect();
        assert_eq!(median(times(&[])), None);
        assert_eq!(
            median(times(&[900, 10, 20])),
            Some(Duration::from_millis(20))
        );
    }

    #[test]
    fn what_came_before_does_not_count() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let arrivals = Arrivals::begin();
        arrivals.latest.set((at(1_000), 9_000_000));
        let before = arrivals.latest.get();
        assert_eq!(arrivals.rate_since(before), Rate::ZERO);
        arrivals.latest.set((at(3_000), 11_000_000));
        assert_eq!(arrivals.rate_since(before), Rate::from_mbps(8));
    }
}
