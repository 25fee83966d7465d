//! `cargo xtask bench expose`: a server behind a client, visited by way of the relay.
//!
//! Owns the network and the figures (issue 22). Beside it: plain TCP to the server over each link
//! by itself, which is what a port forward over one link comes to at the best, `rathole` where it
//! is installed, and a server on the relay's own host. Visitors come from there, so that only the
//! links are between them and the server.

mod rathole;

use std::net::SocketAddr;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tabane_linux::descriptors;
use tabane_netem::Scenario;

use super::bond::Bond;
use super::options::Options;
use super::process::Running;
use super::sheet::{Bound, Row};
use super::stage::Stage;
use super::summary::Spread;
use super::visitors::{self, joined, rate_mbps, silence_ms};
use rathole::Rathole;

const NETWORK: &str = "name = \"expose\"\nwhy = \"a server behind 20 + 10 Mbit/s up\"\n\
    duration = \"600s\"\n\
    [[link]]\nname = \"cable\"\nrate = \"20mbit\"\ndelay = \"10ms\"\nqueue = \"100kB\"\n\
    [[link]]\nname = \"lte\"\nrate = \"10mbit\"\ndelay = \"25ms\"\nqueue = \"100kB\"";

const OURS: &str = "tabane expose";
/// Served behind the client, and led to it; and on the relay's own host.
const PORT: u16 = 8_080;
const PORT_AT_RELAY: u16 = 9_090;

/// What was asked for.
const LEAST_OF_SUM: f64 = 0.95;
const MOST_SETUP_MS: f64 = 1.0;
const MOST_SILENCE_MS: f64 = 400.0;
const AT_ONCE: usize = 1_000;
const IN_A_SECOND: u32 = 200;
/// They come for so many times as long as a download takes: for a minute, unless told otherwise.
const DOWNLOADS: u32 = 3;
/// What allocators keep and give back is no growth.
const MOST_GROWTH_KB: f64 = 1_000.0;

const SETUPS: usize = 40;
/// What is over is let go by then.
const SETTLE: Duration = Duration::from_secs(5);
/// A cut is watched for so long.
const AFTER_CUT: Duration = Duration::from_secs(3);
/// Links are full by then.
const BEFORE_CUT: Duration = Duration::from_secs(3);
const START_WITHIN: Duration = Duration::from_secs(10);

/// The lab, with everybody in place.
struct Place {
    // Dropped before the lab they live in.
    exposing: Running,
    bond: Bond,
    stage: Stage,
}

pub(super) fn scenarios() -> Result<Vec<Scenario>> {
    let scenario = Scenario::parse(NETWORK, None, &mut |_| Err(String::new()));
    Ok(vec![scenario.context("a network of the program's own")?])
}

pub(super) fn measure(scenario: &Scenario, binary: &Path, options: &Options) -> Result<Row> {
    // Both ends of every visitor's connection are this process's.
    descriptors::raise_limit().context("too few descriptors for a crowd")?;
    let place = Place::set_up(scenario, binary, options)?;
    let mut row = Row::new(&scenario.name);
    place.downloads(&mut row, options)?;
    place.setups(&mut row)?;
    place.crowds(&mut row, options)?;
    place.cuts(&mut row, options)?;
    Ok(row)
}

impl Place {
    fn set_up(scenario: &Scenario, binary: &Path, options: &Options) -> Result<Self> {
        let stage = Stage::up(scenario)?;
        stage.set_congestion("bbr")?;
        let port = PORT.to_string();
        let grants = ["--port", &port];
        let bond = Bond::up_with(&stage, binary, options.congestion.as_deref(), &grants)?;
        visitors::serve(stage.client(), PORT)?;
        visitors::serve(stage.server(), PORT_AT_RELAY)?;
        let mut command = bond.command(&stage);
        command.args(["expose", &port]);
        if let Some(name) = &options.congestion {
            command.args(["--congestion", name]);
        }
        let mut exposing = Running::start(OURS, &mut command)?;
        exposing.wait_for_line("leads to", START_WITHIN)?;
        Ok(Self {
            exposing,
            bond,
            stage,
        })
    }

    /// Where visitors find the server.
    fn door(&self) -> SocketAddr {
        (self.stage.service(), PORT).into()
    }

    /// The server itself, over one link.
    fn over(&self, link: usize) -> SocketAddr {
        (self.stage.links()[link].client, PORT).into()
    }

    fn downloads(&self, row: &mut Row, options: &Options) -> Result<()> {
        let lasts = Duration::from_secs(options.seconds);
        let rate = |to: SocketAddr| -> Result<Option<f64>> {
            let mut rates = Vec::new();
            for _ in 0..options.repeats {
                self.stage.rest()?;
                let download = visitors::download(self.stage.server(), to, lasts)?;
                rates.push(rate_mbps(&joined(download)?));
            }
            Ok(Spread::of(rates).map(|spread| spread.median))
        };
        let mut sum = 0.0;
        for (index, link) in self.stage.links().iter().enumerate() {
            let plain = rate(self.over(index))?;
            sum += plain.unwrap_or_default();
            let contender = format!("plain TCP, {}", link.interface);
            row.find(&contender, "download", (plain, "Mbit/s"), None);
        }
        let ours = rate(self.door())?;
        row.find(OURS, "download", (ours, "Mbit/s"), None);
        let part = ours.map(|ours| ours / sum);
        let bound = Some(Bound::AtLeast(LEAST_OF_SUM));
        row.find(OURS, "of the links' sum", (part, ""), bound);
        if let Some(_peer) = Rathole::start(&self.stage)? {
            let door = (self.stage.service(), rathole::DOOR).into();
            let theirs = rate(door)?;
            row.find(rathole::NAME, "download", (theirs, "Mbit/s"), None);
            let part = theirs.map(|theirs| theirs / sum);
            row.find(rathole::NAME, "of the links' sum", (part, ""), None);
        }
        Ok(())
    }

    fn setups(&self, row: &mut Row) -> Result<()> {
        self.stage.rest()?;
        let from = self.stage.server();
        let medians = |to: SocketAddr| -> Result<[f64; 2]> {
            let times = (0..SETUPS).map(|_| visitors::set_up(from, to));
            let times: Vec<_> = times.collect::<Result<_>>()?;
            let median = |index: usize| {
                let all = times.iter().map(|times| times[index].as_secs_f64() * 1e3);
                Spread::of(all.collect()).map_or(f64::NAN, |spread| spread.median)
            };
            Ok([median(0), median(1)])
        };
        let [_, direct] = medians((self.stage.service(), PORT_AT_RELAY).into())?;
        let [round_trip, plain] = medians(self.over(0))?;
        let [_, ours] = medians(self.door())?;
        let ms = |value: f64| (Some(value), "ms");
        row.find("plain TCP at the relay", "first byte", ms(direct), None);
        row.find("plain TCP, first link", "round trip", ms(round_trip), None);
        row.find("plain TCP, first link", "first byte", ms(plain), None);
        row.find(OURS, "first byte", ms(ours), None);
        let beyond = ours - direct - round_trip;
        let bound = Some(Bound::AtMost(MOST_SETUP_MS));
        let what = "beyond the relay's and a round trip";
        row.find(OURS, what, ms(beyond), bound);
        Ok(())
    }

    fn crowds(&self, row: &mut Row, options: &Options) -> Result<()> {
        let (from, none) = (self.stage.server(), Some(Bound::AtMost(0.0)));
        // The same crowd at a server without us: whose loss it is.
        let at_relay = (self.stage.service(), PORT_AT_RELAY).into();
        let crowds = [
            ("plain TCP at the relay", at_relay, None),
            (OURS, self.door(), none),
        ];
        for (whose, to, bound) in crowds {
            let crowd = visitors::at_once(from, to, AT_ONCE)?;
            for (seen, how_many) in &crowd.lost {
                eprintln!("bench: {how_many} visitors of {whose} lost, {seen}");
            }
            let lost = Some((AT_ONCE - crowd.served) as f64);
            row.find(whose, format!("{AT_ONCE} at once, lost"), (lost, ""), bound);
        }
        // What the crowd took is there for those who come now.
        let lasts = Duration::from_secs(options.seconds);
        visitors::one_by_one(from, self.door(), IN_A_SECOND, lasts / DOWNLOADS)?;
        sleep(SETTLE);
        let memory = || -> Result<[f64; 2]> {
            Ok([self.bond.relay().memory_kb()?, self.exposing.memory_kb()?])
        };
        let before = memory()?;
        let lasts = lasts * DOWNLOADS;
        let [served, all] = visitors::one_by_one(from, self.door(), IN_A_SECOND, lasts)?;
        let what = format!("{IN_A_SECOND}/s for {} s, lost", lasts.as_secs());
        row.find(OURS, what, (Some((all - served) as f64), ""), none);
        sleep(SETTLE);
        let after = memory()?;
        for (index, whose) in ["relay", "client"].into_iter().enumerate() {
            let growth = after[index] - before[index];
            let bound = Some(Bound::AtMost(MOST_GROWTH_KB));
            let what = format!("memory after, {whose}");
            row.find(OURS, what, (Some(after[index] / 1e3), "MB"), None);
            let what = format!("growth meanwhile, {whose}");
            row.find(OURS, what, (Some(growth), "kB"), bound);
        }
        Ok(())
    }

    /// The longest silence of a download whose first link swallows everything at once.
    fn cuts(&self, row: &mut Row, options: &Options) -> Result<()> {
        let mut longest: f64 = 0.0;
        for _ in 0..options.repeats {
            self.stage.rest()?;
            let lasts = BEFORE_CUT + AFTER_CUT;
            let download = visitors::download(self.stage.server(), self.door(), lasts)?;
            sleep(BEFORE_CUT);
            let cut_at = Instant::now();
            self.stage.silence(0, true);
            let course = joined(download);
            self.stage.silence(0, false);
            longest = longest.max(silence_ms(&course?, cut_at));
            // The link is used again by the next.
            sleep(SETTLE);
        }
        let bound = Some(Bound::AtMost(MOST_SILENCE_MS));
        row.find(
            OURS,
            "silence at a cut, longest",
            (Some(longest), "ms"),
            bound,
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_network_is_one() {
        assert_eq!(scenarios().unwrap()[0].links.len(), 2);
    }
}
