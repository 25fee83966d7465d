//! What a simulated transfer came to: as JSON, as a table, and as a picture's curves.

use serde::Serialize;
use tabane_base::{Bytes, Rate, Seed};
use tabane_core::{ControllerKind, SchedulerKind};
use tabane_netem::{Direction, Scenario};

use crate::figure::{Curve, Figure, Panel};
use crate::network::LinkId;
use crate::series::{Sample, Series};
use crate::world::World;

/// Points of a curve in the picture.
const POINTS: usize = 200;

/// How the sessions were set.
#[derive(Debug)]
pub struct RunSettings {
    /// Both ends' scheduler.
    pub scheduler: SchedulerKind,
    /// Both ends' congestion controller.
    pub congestion: ControllerKind,
    /// What a receiver may hold.
    pub receive_memory: Bytes,
    /// What chance came from.
    pub seed: Seed,
}

/// Everything about a run.
#[derive(Debug, Serialize)]
pub struct Summary {
    scenario: String,
    direction: &'static str,
    scheduler: &'static str,
    congestion: &'static str,
    receive_memory_bytes: u64,
    seed: u64,
    seconds: f64,
    /// Mean of what the reader got, handshake and start included.
    goodput_bps: u64,
    /// The links' mean rates together, headers included.
    links_bps: u64,
    silence_ms_max: f64,
    held_bytes_max: u64,
    links: Vec<LinkSummary>,
    series: Curves,
}

#[derive(Debug, Serialize)]
struct LinkSummary {
    name: String,
    rate_bps: u64,
    carried_bps: u64,
    rtt_ms_min: Option<f64>,
    rtt_ms_smoothed: Option<f64>,
    queue_ms_p95: f64,
    queue_drops: u64,
    lost_bytes: u64,
    reinjected_bytes: u64,
}

/// Values at the same moments, per curve. Rates are means since the moment before.
#[derive(Debug, Serialize)]
struct Curves {
    seconds: Vec<f64>,
    goodput_bps: Vec<u64>,
    held_bytes: Vec<u64>,
    links: Vec<LinkCurves>,
}

#[derive(Debug, Serialize)]
struct LinkCurves {
    name: String,
    carried_bps: Vec<u64>,
    rtt_ms: Vec<Option<f64>>,
    queued_bytes: Vec<u64>,
}

impl Summary {
    /// What came of a run of `scenario`.
    pub fn new(settings: RunSettings, scenario: &Scenario, world: &World, series: &Series) -> Self {
        let outcome = world.outcome(series.reader());
        let (direction, rate) = match series.direction {
            Direction::Down => ("download", scenario.rate_down()),
            Direction::Up => ("upload", scenario.rate_up()),
        };
        let held = series.samples.iter().map(|sample| sample.held).max();
        let links = 0..scenario.links.len();
        Self {
            scenario: scenario.name.clone(),
            direction,
            scheduler: settings.scheduler.name(),
            congestion: settings.congestion.name(),
            receive_memory_bytes: settings.receive_memory.get(),
            seed: settings.seed.0,
            seconds: world.now().as_secs_f64(),
            goodput_bps: outcome.goodput(world.now()).as_bps(),
            links_bps: rate.as_bps(),
            silence_ms_max: outcome.silence_max().as_secs_f64() * 1e3,
            held_bytes_max: held.unwrap_or_default().get(),
            links: links
                .map(|index| link(scenario, world, series, index))
                .collect(),
            series: Curves::new(scenario, series),
        }
    }

    /// For people; `table` lays rows out under their headings.
    pub fn text(&self, table: impl Fn(&[&str], &[Vec<String>]) -> String) -> String {
        let optional = |ms: Option<f64>| ms.map_or_else(|| "–".to_owned(), |ms| format!("{ms:.1}"));
        let row = |link: &LinkSummary| {
            vec![
                link.name.clone(),
                mbps(link.rate_bps),
                mbps(link.carried_bps),
                optional(link.rtt_ms_min),
                optional(link.rtt_ms_smoothed),
                format!("{:.1}", link.queue_ms_p95),
                format!("{:.1}", link.lost_bytes as f64 / 1e3),
                format!("{:.1}", link.reinjected_bytes as f64 / 1e3),
            ]
        };
        let headings = [
            "link",
            "Mbit/s",
            "carried",
            "RTT min, ms",
            "RTT, ms",
            "queue p95, ms",
            "lost, kB",
            "sent again, kB",
        ];
        let rows: Vec<_> = self.links.iter().map(row).collect();
        format!(
            "{} {} for {:.0} s: {}, {}, seed {}\n\n{}\n\n\
             goodput {} Mbit/s, {:.1} % of the links' {}; longest silence {:.0} ms; \
             most held for order {:.1} kB",
            self.scenario,
            self.direction,
            self.seconds,
            self.scheduler,
            self.congestion,
            self.seed,
            table(&headings, &rows),
            mbps(self.goodput_bps),
            100.0 * self.goodput_bps as f64 / (self.links_bps as f64).max(1.0),
            mbps(self.links_bps),
            self.silence_ms_max,
            self.held_bytes_max as f64 / 1e3,
        )
    }

    /// Four panels over time.
    pub fn figure(&self) -> Figure {
        let seconds = &self.series.seconds;
        let points = |values: &mut dyn Iterator<Item = Option<f64>>| -> Vec<(f64, f64)> {
            let timed = seconds.iter().zip(values);
            timed
                .filter_map(|(at, value)| Some((*at, value?)))
                .collect()
        };
        let mega = |bps: &u64| Some(*bps as f64 / 1e6);
        let kilo = |bytes: &u64| Some(*bytes as f64 / 1e3);
        // Links keep their colours in all panels; the whole comes after them.
        let links = |values: &dyn Fn(&LinkCurves) -> Vec<(f64, f64)>| -> Vec<Curve> {
            let curve =
                |link: &LinkCurves| Curve::thinned(link.name.clone(), &values(link), POINTS);
            self.series.links.iter().map(curve).collect()
        };
        let whole = |name: &str, values: Vec<(f64, f64)>| Curve::thinned(name, &values, POINTS);
        let panel = |title: &str, y, curves| Panel {
            title: title.to_owned(),
            x: "time, s",
            y,
            curves,
            ..Panel::default()
        };
        let mut rates = links(&|link| points(&mut link.carried_bps.iter().map(mega)));
        let goodput = points(&mut self.series.goodput_bps.iter().map(mega));
        rates.push(whole("the reader's goodput", goodput));
        let mut held = vec![Curve::thinned("", &[], 1); self.links.len()];
        let bytes = points(&mut self.series.held_bytes.iter().map(kilo));
        held.push(whole("held for order", bytes));
        Figure {
            title: format!("{}: {}", self.scenario, self.direction),
            subtitle: format!(
                "scheduler {}, congestion control {}, seed {}; {} Mbit/s of the links' {}",
                self.scheduler,
                self.congestion,
                self.seed,
                mbps(self.goodput_bps),
                mbps(self.links_bps),
            ),
            panels: vec![
                panel("what each link carries, and what arrives", "Mbit/s", rates),
                panel(
                    "round-trip time, smoothed",
                    "ms",
                    links(&|link| points(&mut link.rtt_ms.iter().copied())),
                ),
                panel(
                    "waiting in each link's queue",
                    "kB",
                    links(&|link| points(&mut link.queued_bytes.iter().map(kilo))),
                ),
                panel(
                    "waiting for order at the receiver, the most in 0.1 s",
                    "kB",
                    held,
                ),
            ],
        }
    }
}

fn mbps(bps: u64) -> String {
    format!("{:.2}", bps as f64 / 1e6)
}

fn link(scenario: &Scenario, world: &World, series: &Series, index: usize) -> LinkSummary {
    let spec = &scenario.links[index];
    let id = LinkId(index);
    let last = series.samples.last().map(|sample| &sample.links[index]);
    let path = last.and_then(|link| link.path.as_ref());
    let measured = path.filter(|path| path.rtt_measured);
    let elapsed = world.now() - tabane_base::Instant::EPOCH;
    LinkSummary {
        name: spec.name.clone(),
        rate_bps: spec.config(series.direction).mean_rate().as_bps(),
        carried_bps: last.map_or(0, |link| Rate::of(link.carried, elapsed).as_bps()),
        rtt_ms_min: measured.map(|path| path.rtt_min.as_secs_f64() * 1e3),
        rtt_ms_smoothed: measured.map(|path| path.rtt_smoothed.as_secs_f64() * 1e3),
        queue_ms_p95: world
            .network()
            .queueing_delay(id, series.direction, 0.95)
            .as_secs_f64()
            * 1e3,
        queue_drops: world
            .network()
            .counters(id, series.direction)
            .queue_full
            .packets,
        lost_bytes: path.map_or(0, |path| path.lost.get()),
        reinjected_bytes: path.map_or(0, |path| path.reinjected.get()),
    }
}

impl Curves {
    fn new(scenario: &Scenario, series: &Series) -> Self {
        let rates = |rates: Vec<(f64, Rate)>| -> Vec<u64> {
            rates.into_iter().map(|(_, rate)| rate.as_bps()).collect()
        };
        // A rate needs a moment before it: the first sample is only that.
        let samples = || series.samples.iter().skip(1);
        let link = |(index, spec): (usize, &tabane_netem::LinkSpec)| {
            let rtt = |sample: &Sample| {
                let path = sample.links[index].path.as_ref();
                let measured = path.filter(|path| path.rtt_measured);
                measured.map(|path| path.rtt_smoothed.as_secs_f64() * 1e3)
            };
            LinkCurves {
                name: spec.name.clone(),
                carried_bps: rates(series.carried(LinkId(index))),
                rtt_ms: samples().map(rtt).collect(),
                queued_bytes: samples()
                    .map(|sample| sample.links[index].queued.get())
                    .collect(),
            }
        };
        Self {
            seconds: samples().map(|sample| sample.at.as_secs_f64()).collect(),
            goodput_bps: rates(series.goodput()),
            held_bytes: samples().map(|sample| sample.held.get()).collect(),
            links: scenario.links.iter().enumerate().map(link).collect(),
        }
    }
}
