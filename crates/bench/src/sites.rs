//! `cargo xtask bench sites`: from a host behind one client to one behind another.
//!
//! Owns the network and the figures (issue 22). Beside it: plain TCP to the narrower site's machine
//! over each of its links by itself, without hosts, relay or the other site in the way.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tabane_lab::host_name;
use tabane_linux::netns::Netns;
use tabane_netem::Scenario;

use super::bond::{self, Bond};
use super::options::Options;
use super::process::{Running, ip};
use super::scratch::Scratch;
use super::sheet::{Bound, Row};
use super::stage::Stage;
use super::summary::Spread;
use super::visitors::{self, joined, rate_mbps, silence_ms};

const NETWORK: &str = "name = \"sites\"\nwhy = \"30 Mbit/s at one site, 24 at the other\"\n\
    duration = \"600s\"\n\
    [[link]]\nname = \"cable\"\nrate = \"20mbit\"\ndelay = \"10ms\"\nqueue = \"100kB\"\n\
    [[link]]\nname = \"lte\"\nrate = \"10mbit\"\ndelay = \"25ms\"\nqueue = \"100kB\"\n\
    [[link]]\nname = \"dsl\"\nrate = \"16mbit\"\ndelay = \"15ms\"\nqueue = \"100kB\"\n\
    [[link]]\nname = \"umts\"\nrate = \"8mbit\"\ndelay = \"30ms\"\nqueue = \"100kB\"";
/// The links of the site that the other one fetches from.
const FAR_LINKS: [usize; 2] = [2, 3];

const OURS: &str = "tabane up --route";
const PORT: u16 = 8_080;
/// Where a site's hosts are.
const LAN: &str = "lan0";
const NEAR: u8 = 10;
const FAR: u8 = 20;

/// What was asked for.
const LEAST_OF_SUM: f64 = 0.93;
const MOST_SILENCE_MS: f64 = 400.0;

/// Links are full by then.
const BEFORE_CUT: Duration = Duration::from_secs(3);
/// A cut is watched for so long.
const AFTER_CUT: Duration = Duration::from_secs(3);
/// A link that was cut is used again by then.
const SETTLE: Duration = Duration::from_secs(5);
const START_WITHIN: Duration = Duration::from_secs(20);

/// A network namespace of this bench's own.
struct Host(Netns);

/// The lab, with both sites in place.
struct Place {
    // Dropped before the lab they live in.
    _ups: [Running; 2],
    hosts: [Host; 2],
    _far: Host,
    _home: Scratch,
    _bond: Bond,
    stage: Stage,
}

pub(super) fn scenarios() -> Result<Vec<Scenario>> {
    let scenario = Scenario::parse(NETWORK, None, &mut |_| Err(String::new()));
    Ok(vec![scenario.context("a network of the program's own")?])
}

pub(super) fn measure(scenario: &Scenario, binary: &Path, options: &Options) -> Result<Row> {
    let place = Place::set_up(scenario, binary, options)?;
    let mut row = Row::new(&scenario.name);
    place.downloads(&mut row, options)?;
    place.cuts(&mut row, options)?;
    Ok(row)
}

impl Host {
    fn new(what: &str) -> Result<Self> {
        Ok(Self(Netns::create(&host_name(what))?))
    }

    /// A host behind a machine, which becomes its router.
    fn behind(machine: &Netns, site: u8) -> Result<Self> {
        let host = Self::new(&format!("site{site}"))?;
        let (there, own) = (machine.name(), host.0.name());
        for line in [
            format!("-n {there} link add {LAN} type veth peer name eth0 netns {own}"),
            format!("-n {there} addr add 192.168.{site}.1/24 dev {LAN}"),
            format!("-n {there} link set {LAN} up"),
            format!("-n {own} addr add {}/24 dev eth0", host_of(site)),
            format!("-n {own} link set eth0 up"),
            format!("-n {own} route add default via 192.168.{site}.1"),
        ] {
            ip(&line)?;
        }
        let path = "/proc/sys/net/ipv4/ip_forward";
        machine.run(|| std::fs::write(path, "1"))?.context(path)?;
        Ok(host)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Its interfaces go with it.
        let _ = Netns::remove(self.0.name());
    }
}

const fn host_of(site: u8) -> Ipv4Addr {
    Ipv4Addr::new(192, 168, site, 2)
}

fn network(site: u8) -> String {
    format!("192.168.{site}.0/24")
}

/// Offers the site's network, and leads its hosts to the others'.
fn offer(mut up: Command, site: u8, options: &Options) -> Result<Running> {
    up.args(["up", "--lan", LAN, "--route", &network(site)]);
    if let Some(name) = &options.congestion {
        up.args(["--congestion", name]);
    }
    Running::start(OURS, &mut up)
}

impl Place {
    fn set_up(scenario: &Scenario, binary: &Path, options: &Options) -> Result<Self> {
        let mut stage = Stage::up(scenario)?;
        stage.set_congestion("bbr")?;
        let far = Host::new("far")?;
        for link in FAR_LINKS {
            stage.move_link(link, &far.0)?;
        }
        let grants = ["--group", "offices", "--routes", &network(NEAR)];
        let bond = Bond::up_with(&stage, binary, options.congestion.as_deref(), &grants)?;
        let grants = ["--group", "offices", "--routes", &network(FAR)];
        bond.manage(&stage, &[&["user", "add", "far"], &grants[..]].concat())?;
        let line = bond.manage(&stage, &["token", "new", "--user", "far"])?;
        let home = Scratch::new()?;
        let at_far = || {
            let mut command = far.0.command(&binary.to_string_lossy());
            bond::private(&mut command, home.path());
            command
        };
        bond::join(&mut at_far(), &line)?;
        let hosts = [
            Host::behind(stage.client(), NEAR)?,
            Host::behind(&far.0, FAR)?,
        ];
        visitors::serve(&hosts[1].0, PORT)?;
        visitors::serve(&far.0, PORT)?;
        let ups = [
            offer(bond.command(&stage), NEAR, options)?,
            offer(at_far(), FAR, options)?,
        ];
        let place = Self {
            _ups: ups,
            hosts,
            _far: far,
            _home: home,
            _bond: bond,
            stage,
        };
        place.await_way()?;
        Ok(place)
    }

    /// The server behind the other site.
    fn server(&self) -> SocketAddr {
        (host_of(FAR), PORT).into()
    }

    fn await_way(&self) -> Result<()> {
        let deadline = Instant::now() + START_WITHIN;
        loop {
            match visitors::set_up(&self.hosts[0].0, self.server()) {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() >= deadline => return Err(error),
                // Both sites are on their way yet.
                Err(_) => sleep(Duration::from_millis(100)),
            }
        }
    }

    /// The median rate of a download from there, in Mbit/s.
    fn rate(&self, at: &Netns, to: SocketAddr, options: &Options) -> Result<Option<f64>> {
        let lasts = Duration::from_secs(options.seconds);
        let mut rates = Vec::new();
        for _ in 0..options.repeats {
            self.stage.rest()?;
            let download = visitors::download(at, to, lasts)?;
            rates.push(rate_mbps(&joined(download)?));
        }
        Ok(Spread::of(rates).map(|spread| spread.median))
    }

    fn downloads(&self, row: &mut Row, options: &Options) -> Result<()> {
        let mut sum = 0.0;
        for link in FAR_LINKS.map(|index| &self.stage.links()[index]) {
            let to = (link.client, PORT).into();
            let plain = self.rate(self.stage.server(), to, options)?;
            sum += plain.unwrap_or_default();
            let contender = format!("plain TCP, {}", link.interface);
            row.find(&contender, "download", (plain, "Mbit/s"), None);
        }
        let ours = self.rate(&self.hosts[0].0, self.server(), options)?;
        row.find(OURS, "download", (ours, "Mbit/s"), None);
        let part = ours.map(|ours| ours / sum);
        let bound = Some(Bound::AtLeast(LEAST_OF_SUM));
        row.find(OURS, "of the narrower site's sum", (part, ""), bound);
        Ok(())
    }

    /// The longest silence of a download one of whose links swallows everything at once: of the
    /// site that fetches, and of the other.
    fn cuts(&self, row: &mut Row, options: &Options) -> Result<()> {
        for (whose, link) in [("here", 0), ("there", FAR_LINKS[0])] {
            let mut longest: f64 = 0.0;
            for _ in 0..options.repeats {
                self.stage.rest()?;
                let lasts = BEFORE_CUT + AFTER_CUT;
                let download = visitors::download(&self.hosts[0].0, self.server(), lasts)?;
                sleep(BEFORE_CUT);
                let cut_at = Instant::now();
                self.stage.silence(link, true);
                let course = joined(download);
                self.stage.silence(link, false);
                longest = longest.max(silence_ms(&course?, cut_at));
                sleep(SETTLE);
            }
            let what = format!("silence at a cut {whose}, longest");
            let bound = Some(Bound::AtMost(MOST_SILENCE_MS));
            row.find(OURS, what, (Some(longest), "ms"), bound);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_network_has_two_links_for_each_site() {
        assert_eq!(scenarios().unwrap()[0].links.len(), 4);
    }
}
