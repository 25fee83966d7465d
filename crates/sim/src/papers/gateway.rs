//! The cooperative gateway: table 1, a download over a radio link with periodic bad phases.
//!
//! The paper gives the delays its radio simulator put in (20 to 50 ms, and 50 to 1000 ms in bad
//! phases), no rate, no window, no period. [`CHOICE`] has the receive window and segment of a BSD
//! of that time, and a link fast enough for delay alone to matter: on one of 32 kbit/s a window's
//! queue is longer than the delays are, and no sender of ours takes them for loss.

use tabane_base::{Bytes, Content, Duration, Instant, Rate, Rng, Seed};
use tabane_gateway::{Config, Gateway, Mode, Seq};
use tabane_netem::{LinkConfig, RateModel};

use crate::figure::{Curve, Figure, Panel, Style, Table};
use crate::papers::report::Report;
use crate::passage::{Impairments, Passage, PassageLinks};
use crate::tcp::{Endpoint, TcpClient, TcpServer};

/// What the paper measured without and with the gateway: bytes per second, and the useful share
/// of data packets.
pub const PAPER: [(f64, f64); 2] = [(2_152.0, 0.923), (3_899.0, 1.0)];

/// A file worth of minutes.
const TRANSFER: u64 = 1_000_000;
/// Longer than any transfer takes.
const LIMIT: Duration = Duration::from_secs(7_200);

/// What the paper does not say.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    /// The radio link's rate, in bits per second.
    pub rate: Rate,
    /// The mobile host's window, in bytes.
    pub window: u16,
    /// A full segment, in bytes.
    pub segment: u64,
    /// A bad phase begins this often.
    pub period: Duration,
    /// It lasts so long.
    pub bad: Duration,
    /// A new delay is drawn this often.
    pub draw: Duration,
}

/// As the report has it.
pub const CHOICE: Choice = Choice {
    rate: Rate::from_mbps(1),
    window: 8_192,
    segment: 512,
    period: Duration::from_secs(4),
    bad: Duration::from_secs(2),
    draw: Duration::from_secs(1),
};

/// What a download came to.
#[derive(Clone, Debug)]
pub struct Download {
    /// Bytes per second.
    pub throughput: f64,
    /// Useful share of the data packets that went over the radio link.
    pub goodput: f64,
    /// Seconds, and kB received by then.
    pub progress: Vec<(f64, f64)>,
}

/// One download from a sender of that time, with or without the gateway.
///
/// # Panics
/// When it does not end.
#[must_use]
pub fn download(assisted: bool, choice: Choice, seed: Seed) -> Download {
    let radio = LinkConfig {
        rate: RateModel::Constant(choice.rate),
        queue: Bytes::kilo(64),
        delay: Duration::from_millis(20),
        ..LinkConfig::wire()
    };
    let wired = LinkConfig {
        rate: RateModel::Constant(Rate::from_mbps(10)),
        delay: Duration::from_millis(1),
        ..LinkConfig::wire()
    };
    let way = PassageLinks {
        wired_down: wired.clone(),
        radio_down: radio.clone(),
        radio_up: radio,
        wired_up: wired,
    };
    let gateway = assisted.then(|| {
        Gateway::new(Config {
            mode: Mode::Assist,
            ..Config::default()
        })
    });
    let mut passage = Passage::new(way, Impairments::default(), gateway, seed);
    let content = Content::new(seed);
    let [server, mobile] = ["192.0.2.1:20", "10.0.0.2:40000"].map(|at| {
        at.parse::<std::net::SocketAddr>()
            .expect("it is an address")
    });
    let end = |own, peer, isn| Endpoint { own, peer, isn };
    let at_server = end(server, mobile, Seq(1));
    let at_mobile = end(mobile, server, Seq(1));
    let mut server = TcpServer::new(at_server, content, TRANSFER, choice.segment);
    let mut mobile = TcpClient::new(at_mobile, content, choice.window);
    let mut rng = seed.rng("delay");
    let mut next = Instant::EPOCH;
    let mut progress = Vec::new();
    while mobile.received() < TRANSFER {
        assert!(passage.now() < Instant::EPOCH + LIMIT, "the download ends");
        passage.set_radio_delay(delay(&mut rng, passage.now(), choice));
        next += choice.draw;
        progress.push((passage.now().as_secs_f64(), mobile.received() as f64 / 1e3));
        while passage.step(&mut server, &mut mobile, next) && mobile.received() < TRANSFER {}
    }
    let took = (passage.now() - Instant::EPOCH).as_secs_f64();
    let useful = TRANSFER.div_ceil(choice.segment) as f64;
    Download {
        throughput: TRANSFER as f64 / took,
        goodput: useful / (useful + mobile.useless as f64),
        progress,
    }
}

/// The delay at a time: good at first, bad at the end of each period.
fn delay(rng: &mut Rng, now: Instant, choice: Choice) -> Duration {
    let at = now.as_nanos() % choice.period.as_nanos() as u64;
    let is_bad = at >= (choice.period - choice.bad).as_nanos() as u64;
    let (from, span) = if is_bad { (50, 950) } else { (20, 30) };
    Duration::from_micros(1_000 * from + rng.below(1_000 * span))
}

pub(crate) fn table1(seed: Seed) -> Report {
    let runs = [false, true].map(|assisted| download(assisted, CHOICE, seed));
    // As long as the faster one takes: after it there is nothing to compare.
    let end = runs[1].progress.last().map_or(0.0, |last| last.0);
    let curve = |run: &Download, name: &str| Curve {
        name: name.to_owned(),
        style: Style::Line,
        points: run
            .progress
            .iter()
            .copied()
            .filter(|at| at.0 <= end)
            .collect(),
    };
    let panel = Panel {
        x: "seconds",
        y: "received, kB",
        curves: vec![
            curve(&runs[0], "without the gateway"),
            curve(&runs[1], "with the gateway"),
        ],
        ..Panel::default()
    };
    const TITLE: &str = "Download over a radio link that delays, cooperative gateway table 1";
    Report {
        title: TITLE,
        settings: vec![
            "1 MByte from a sender with Reno and no options; delays of 20 to 50 ms, in bad phases \
             50 to 1000 ms, each way"
                .to_owned(),
            format!(
                "chosen, the paper does not say: bad for {} of every {} s, a new delay every {} s, \
                 {} Mbit/s, window {} bytes, segments of {}",
                CHOICE.bad.as_secs(),
                CHOICE.period.as_secs(),
                CHOICE.draw.as_secs(),
                CHOICE.rate.as_mbps_f64(),
                CHOICE.window,
                CHOICE.segment
            ),
        ],
        table: comparison(&runs),
        figure: Figure {
            title: TITLE.to_owned(),
            subtitle: "a sender with Reno and no options".to_owned(),
            panels: vec![panel],
        },
        notes: vec![
            "Bytes per second cannot be compared: the paper names no rate. Its ratio and the share \
             of useful packets can."
                .to_owned(),
        ],
    }
}

/// The paper's figures and ours, without and with the gateway.
fn comparison(runs: &[Download; 2]) -> Table {
    let mut table = Table::new(&[
        "gateway",
        "paper, bytes/s",
        "here, bytes/s",
        "paper, of without",
        "here",
        "goodput, paper",
        "goodput, here",
    ]);
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    for (index, name) in ["without", "with"].into_iter().enumerate() {
        let (paper, run) = (PAPER[index], &runs[index]);
        table.row(vec![
            name.to_owned(),
            format!("{:.0}", paper.0),
            format!("{:.0}", run.throughput),
            format!("{:.2}", paper.0 / PAPER[0].0),
            format!("{:.2}", run.throughput / runs[0].throughput),
            percent(paper.1),
            percent(run.goodput),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gateway_gains_what_the_paper_says_whatever_the_seed() {
        for seed in 1..=5 {
            let [without, with] = [false, true].map(|on| download(on, CHOICE, Seed(seed)));
            let gain = with.throughput / without.throughput;
            assert!(gain >= 1.8, "seed {seed}: {gain}");
            assert!(without.goodput < 0.95, "seed {seed}: {}", without.goodput);
            assert!(with.goodput >= 0.9995, "seed {seed}: {}", with.goodput);
        }
    }
}
